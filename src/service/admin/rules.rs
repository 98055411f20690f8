//! `/rules`: the rules in use as JSON, node by node.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    counters::{algorithm, limit_json},
    page::{PIECE_BYTES, PageWriter},
};
use crate::{
    core::{
        limit::{Algorithm, Allows, CountPolicy, Limit, OnStoreLoss, Rule},
        matcher::{Matcher, outline::OutlinedNode},
    },
    service::limiter::{RuleSet, Rules},
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

/// The writer of the page, and the bytes that it holds.
pub(super) fn rule_tree(rules: &Rules) -> (PageWriter, usize) {
    let rules = rules.current();
    let parts = rules
        .as_ref()
        .map_or_else(Vec::new, |rules| parts(&rules.matcher));
    let bytes = size_of_val(&*parts);
    (writer(rules, parts), bytes)
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
    let mut parts = parts.into_iter();
    let mut is_begun = false;
    Box::new(move |page| {
        if !is_begun {
            is_begun = true;
            page.push_str("{\"domains\":[");
        }
        while page.len() < PIECE_BYTES {
            let (Some(rules), Some(part)) = (&rules, parts.next()) else {
                page.push_str("]}\n");
                return false;
            };
            write(&rules.matcher, &part, page);
        }
        true
    })
}

fn write(matcher: &Matcher, part: &TreePart, page: &mut String) {
    match part {
        TreePart::Domain(index) => {
            let name = text(&matcher.domain_names()[*index]);
            let separator = if *index == 0 { "\n" } else { ",\n" };
            page.push_str(&format!("{separator}{{\"domain\":{name},\"nodes\":["));
        }
        TreePart::Node(found, is_first) => {
            let separator = if *is_first { "\n" } else { ",\n" };
            page.push_str(&format!("{separator}{}", node(matcher, *found)));
        }
        TreePart::End => page.push_str("]}"),
    }
}

fn node(matcher: &Matcher, OutlinedNode { node, depth }: OutlinedNode) -> Value {
    let (key, value) = matcher.key_and_value(node);
    let origin = matcher.node_origin(node);
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("depth", depth.into());
    put("key", text(key));
    put("value", (!value.is_empty()).then(|| text(value)).into());
    let file = (!origin.file.is_empty()).then_some(&*origin.file);
    put("file", file.into());
    put("line", origin.line.into());
    if let Some(rule) = matcher.rule(node) {
        put("rule", (*rule.path).into());
        put_rule(rule, put);
    }
    fields.into()
}

/// Puts in the limits of a rule, and those of its options that differ from their defaults.
fn put_rule<T>(rule: &Rule, mut put: impl FnMut(&str, Value) -> T) {
    // All fields are named: a new one does not compile before it is shown or left out here.
    let Rule {
        allows,
        replaces,
        shadow_mode,
        quota_mode,
        counts,
        on_store_loss,
        id: _,
        path: _,
        refusal: _,
        metric: _,
        metadata: _,
    } = rule;
    match allows {
        Allows::Unlimited => put("unlimited", true.into()),
        Allows::Within(limits) => put("limits", limits.iter().map(limit).collect()),
    };
    if *shadow_mode {
        put("shadowMode", true.into());
    }
    if *quota_mode {
        put("quotaMode", true.into());
    }
    if *counts == CountPolicy::Admitted {
        put("count", "admitted".into());
    }
    if !replaces.is_empty() {
        let names = replaces.iter().map(|name| Value::from(&**name));
        put("replaces", names.collect());
    }
    let on_store_loss = match on_store_loss {
        OnStoreLoss::Error => return,
        OnStoreLoss::Allow => "allow",
        OnStoreLoss::Deny => "deny",
        OnStoreLoss::Local => "local",
    };
    put("onStoreLoss", on_store_loss.into());
}

fn limit(limit: &Limit) -> Value {
    let mut fields = limit_json(limit);
    fields["rate"] = limit.rate().to_string().into();
    fields["algorithm"] = algorithm(limit).into();
    if let Algorithm::Calendar(calendar) = &limit.algorithm {
        fields["zone"] = calendar.zone_name().into();
    }
    fields
}

fn text(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(bytes).into()
}
