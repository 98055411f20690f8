//! `/rules`: the rules in use as JSON, node by node. `/rlconfig`: one limit per line.

use std::{fmt::Write as _, iter, sync::Arc};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    core::{
        kind::Algorithm,
        limit::{Allows, CountPolicy, LeasePolicy, Limit, OnStoreLoss, Rule},
        matcher::{Matcher, trace::OutlinedNode},
        window::Unit,
    },
    foundation::{
        ascii_json::{ascii_json, json_without_nulls},
        named::Named as _,
    },
    service::{
        admin::{
            counters::{algorithm, limit_document, report::LimitDocument, text},
            page::{PageWriter, texts},
        },
        explain::account::ExplainedReserve,
        limiter::{RuleSet, Rules},
    },
};

/// A part of the page.
enum TreePart {
    /// The beginning of a domain.
    Domain(usize),
    /// A node, and whether it is the first one of its domain.
    Node(OutlinedNode, bool),
    /// The end of a domain.
    End,
}

/// Returns the writer of the page.
pub(super) fn rule_tree(rules: &Rules) -> PageWriter {
    let rules = rules.current();
    let parts = rules
        .as_ref()
        .map_or_else(Vec::new, |rules| parts(&rules.matcher));
    writer(rules, parts)
}

fn parts(matcher: &Matcher) -> Vec<TreePart> {
    let mut parts = Vec::new();
    for (index, domain) in matcher.domain_names().iter().enumerate() {
        parts.push(TreePart::Domain(index));
        let nodes = matcher.outline(domain).into_iter().enumerate();
        parts.extend(nodes.map(|(nth, node)| TreePart::Node(node, nth == 0)));
        parts.push(TreePart::End);
    }
    parts
}

fn writer(rules: Option<Arc<RuleSet>>, parts: Vec<TreePart>) -> PageWriter {
    let parts = parts.into_iter();
    let parts = parts.filter_map(move |part| Some(text_of(&rules.as_ref()?.matcher, &part)));
    let head = iter::once("{\"domains\":[".to_owned());
    texts(head.chain(parts).chain(iter::once("]}\n".to_owned())))
}

fn text_of(matcher: &Matcher, part: &TreePart) -> String {
    let separator = |is_first| if is_first { "\n" } else { ",\n" };
    match part {
        TreePart::Domain(index) => {
            let name = ascii_json(&text(&matcher.domain_names()[*index]));
            let separator = separator(*index == 0);
            format!("{separator}{{\"domain\":{name},\"nodes\":[")
        }
        TreePart::Node(found, is_first) => {
            [separator(*is_first), &ascii_json(&node(matcher, *found))].concat()
        }
        TreePart::End => "]}".to_owned(),
    }
}

/// A node, and its rule if it has one.
#[derive(Serialize)]
struct NodeDocument<'a> {
    depth: usize,
    key: String,
    value: Option<String>,
    file: Option<&'a str>,
    line: Option<u32>,
    #[serde(flatten)]
    rule: Option<Value>,
}

/// The path and the limits of a rule, and the options that differ from their defaults.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OutlinedRule<'a> {
    rule: &'a str,
    unlimited: Option<bool>,
    limits: Option<Vec<OutlinedLimit<'a>>>,
    shadow_mode: Option<bool>,
    quota_mode: Option<bool>,
    count: Option<&'static str>,
    reserve: Option<ExplainedReserve>,
    accuracy: Option<&'static str>,
    replaces: Option<Vec<&'a str>>,
    on_store_loss: Option<&'static str>,
}

#[derive(Serialize)]
struct OutlinedLimit<'a> {
    #[serde(flatten)]
    limit: LimitDocument,
    rate: String,
    algorithm: &'static str,
    zone: Option<&'a str>,
}

fn node(matcher: &Matcher, OutlinedNode { node, depth }: OutlinedNode) -> Value {
    let (key, value) = matcher.key_and_value(node);
    let origin = matcher.node_origin(node);
    json!(NodeDocument {
        depth,
        key: text(key),
        value: (!value.is_empty()).then(|| text(value)),
        file: (!origin.file.is_empty()).then_some(&*origin.file),
        line: origin.line,
        rule: matcher.rule(node).map(rule),
    })
}

fn rule(rule: &Rule) -> Value {
    // Naming all fields makes the compiler ask what to do with a new one.
    let Rule {
        path,
        allows,
        replaces,
        shadow_mode,
        quota_mode,
        counts,
        lease,
        on_store_loss,
        id: _,
        number: _,
        refusal: _,
        metric: _,
        metadata: _,
    } = rule;
    let (unlimited, limits) = match allows {
        Allows::Unlimited => (Some(true), None),
        Allows::Within(limits) => (None, Some(limits.iter().map(limit).collect())),
    };
    json_without_nulls(&OutlinedRule {
        rule: path,
        unlimited,
        limits,
        shadow_mode: shadow_mode.then_some(true),
        quota_mode: quota_mode.then_some(true),
        count: (*counts == CountPolicy::Admitted).then_some("admitted"),
        reserve: rule.reserve().map(Into::into),
        accuracy: (*lease == Some(LeasePolicy::Slices)).then_some("exact-leased"),
        replaces: (!replaces.is_empty()).then(|| replaces.iter().map(|name| &**name).collect()),
        on_store_loss: (*on_store_loss != OnStoreLoss::Error).then(|| on_store_loss.name()),
    })
}

fn limit(limit: &Limit) -> OutlinedLimit<'_> {
    OutlinedLimit {
        limit: limit_document(limit),
        rate: limit.rate().to_string(),
        algorithm: algorithm(limit),
        zone: match &limit.algorithm {
            Algorithm::Calendar(calendar) => Some(calendar.zone_name()),
            _ => None,
        },
    }
}

/// One line for each limit, in the reference's format, with tollgate's own fields appended.
pub(super) fn rlconfig(rules: &Rules) -> PageWriter {
    let rules = rules.current();
    let count = rules
        .as_ref()
        .map_or(0, |rules| rules.matcher.rules().len());
    let rule = move |nth: usize| Some(lines(&rules.as_ref()?.matcher.rules()[nth]));
    texts((0..count).filter_map(rule))
}

/// The lines of one rule. Writing to a string cannot fail.
fn lines(rule: &Rule) -> String {
    let mut page = String::new();
    // A rule's value can be any text, but a line must stay one line.
    let path = rule.path.replace(char::is_control, "?");
    let mut line = |unit: &str, requests_per_unit: u64, more: &str| {
        let _ = writeln!(
            page,
            "{}: unit={} requests_per_unit={requests_per_unit}, shadow_mode: {}, quota_mode: {}{more}",
            path,
            unit.to_uppercase(),
            rule.shadow_mode,
            rule.quota_mode
        );
    };
    let limits = match &rule.allows {
        Allows::Unlimited => {
            line("unknown", 0, "");
            &[]
        }
        Allows::Within(limits) => &limits[..],
    };
    for limit in limits {
        let mut more = String::new();
        let multiplier = limit.unit_multiplier();
        if multiplier > 1 {
            let _ = write!(more, ", unit_multiplier: {multiplier}");
        }
        match &limit.algorithm {
            Algorithm::FixedWindow => {}
            Algorithm::FirstHit => more.push_str(", window: first_hit"),
            Algorithm::Calendar(calendar) => {
                let _ = write!(more, ", calendar: {}", calendar.zone_name());
            }
            other => {
                let _ = write!(more, ", algorithm: {}", other.name());
            }
        }
        if limit.is_concurrency() {
            let _ = write!(more, ", ttl: {}s", limit.period.secs());
        }
        if let Algorithm::TokenBucket { burst } = limit.algorithm {
            let _ = write!(more, ", burst: {burst}");
        }
        if rule.counts == CountPolicy::Admitted {
            more.push_str(", count: admitted");
        }
        if rule.on_store_loss != OnStoreLoss::Error {
            let _ = write!(more, ", on_store_loss: {}", rule.on_store_loss.name());
        }
        let unit = limit.unit().map_or("unknown", Unit::name);
        line(unit, limit.requests_per_unit, &more);
    }
    page
}
