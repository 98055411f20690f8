//! `/rules`: the rules in use as JSON, node by node.

use std::{iter, sync::Arc};

use serde_json::{Value, json};

use super::{
    counters::{algorithm, limit_json},
    page::{PageWriter, texts},
};
use crate::{
    core::{
        kind::Algorithm,
        limit::{Allows, CountPolicy, LeasePolicy, Limit, OnStoreLoss, Reserve, Rule},
        matcher::{Matcher, outline::OutlinedNode},
    },
    foundation::named::Named as _,
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

/// Returns the writer of the page, and the bytes that it holds.
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
    let parts = parts.into_iter();
    let parts = parts.filter_map(move |part| Some(text_of(&rules.as_ref()?.matcher, &part)));
    let head = iter::once("{\"domains\":[".to_owned());
    texts(head.chain(parts).chain(iter::once("]}\n".to_owned())))
}

fn text_of(matcher: &Matcher, part: &TreePart) -> String {
    let separator = |is_first| if is_first { "\n" } else { ",\n" };
    match part {
        TreePart::Domain(index) => {
            let name = text(&matcher.domain_names()[*index]);
            let separator = separator(*index == 0);
            format!("{separator}{{\"domain\":{name},\"nodes\":[")
        }
        TreePart::Node(found, is_first) => {
            format!("{}{}", separator(*is_first), node(matcher, *found))
        }
        TreePart::End => "]}".to_owned(),
    }
}

fn node(matcher: &Matcher, OutlinedNode { node, depth }: OutlinedNode) -> Value {
    let (key, value) = matcher.key_and_value(node);
    let origin = matcher.node_origin(node);
    let mut fields = json!({
        "depth": depth,
        "key": text(key),
        "value": (!value.is_empty()).then(|| text(value)),
        "file": (!origin.file.is_empty()).then_some(&*origin.file),
        "line": origin.line,
    });
    if let Some(rule) = matcher.rule(node) {
        put_rule(rule, &mut fields);
    }
    fields
}

/// Adds the path and the limits of a rule, and the options that differ from their defaults.
fn put_rule(rule: &Rule, fields: &mut Value) {
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
        refusal: _,
        metric: _,
        metadata: _,
    } = rule;
    fields["rule"] = (**path).into();
    match allows {
        Allows::Unlimited => fields["unlimited"] = true.into(),
        Allows::Within(limits) => fields["limits"] = limits.iter().map(limit).collect(),
    };
    if *shadow_mode {
        fields["shadowMode"] = true.into();
    }
    if *quota_mode {
        fields["quotaMode"] = true.into();
    }
    if *counts == CountPolicy::Admitted {
        fields["count"] = "admitted".into();
    }
    if let Some(LeasePolicy::Reserve(Reserve { estimate, missing })) = lease {
        fields["reserve"] = json!({"estimate": estimate, "missing": missing.name()});
    }
    if *lease == Some(LeasePolicy::Slices) {
        fields["accuracy"] = "exact-leased".into();
    }
    if !replaces.is_empty() {
        let names = replaces.iter().map(|name| Value::from(&**name));
        fields["replaces"] = names.collect();
    }
    if *on_store_loss != OnStoreLoss::Error {
        fields["onStoreLoss"] = on_store_loss.name().into();
    }
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
