//! Reads an Envoy configuration and reports settings that Envoy accepts silently, but that do not limit what the author
//! meant to limit; or shows what one request makes of it.
//!
//! Every finding was seen with a real Envoy. The input is a bootstrap in YAML or JSON, the output of Envoy's
//! `/config_dump`, or a resource of a control plane, such as Istio's EnvoyFilter. `model.rs` reads it in one walk,
//! `checks.rs`, `rules.rs` and `orders.rs` judge it, and `request.rs` follows one request.

mod checks;
mod document;
mod finding;
mod groups;
mod item;
mod matching;
mod model;
mod orders;
pub(super) mod report;
mod request;
mod rules;

use std::{collections::BTreeMap, mem};

use crate::{config::fault::FaultLevel, core::matcher::Matcher};

use self::{
    document::{EnvoyFile, Unreadable},
    finding::{Finding, Findings, Trap},
    groups::GroupUse,
    matching::LintRequest,
    model::EnvoyModel,
    rules::KnownRules,
};

/// The rules to compare with, if there are any.
type LintRules<'a> = Option<&'a Matcher>;

/// The findings in one text, and how many parts of it were checked.
#[derive(Debug, Default)]
struct Linted {
    /// In the order of the text.
    findings: Vec<Finding>,
    /// How many further ones of each kind were found.
    others: BTreeMap<(FaultLevel, Trap), usize>,
    /// How many rate limit filters, and items of `rate_limits`.
    seen: [usize; 2],
}

/// Checks a text; with rules, also whether they match its descriptors.
///
/// # Errors
///
/// If the text is not an Envoy configuration.
fn lint(text: &str, rules: LintRules<'_>) -> Result<Linted, Unreadable> {
    let file = EnvoyFile::parse(text)?;
    let model = EnvoyModel::of(&file)?;
    let mut found = Findings::default();
    let uses: Vec<_> = model.groups.values().map(GroupUse::new).collect();
    let rules = rules.map(KnownRules::new);
    let lists = model.lists(&uses);
    checks::check(&model, &uses, &lists, &mut found);
    orders::check(&lists, rules.as_ref(), &mut found);
    if let Some(rules) = &rules {
        rules::check(&model, &lists, rules, &mut found);
    }
    let items = lists.iter().map(|list| list.items.len()).sum();
    Ok(Linted {
        others: mem::take(&mut found.others),
        findings: found.finish(&file),
        seen: [model.filters().count(), items],
    })
}

/// Shows a request; `None` if the text has no routes.
///
/// # Errors
///
/// As [`lint`].
fn show(
    text: &str,
    request: &LintRequest,
    rules: LintRules<'_>,
) -> Result<Option<String>, Unreadable> {
    let file = EnvoyFile::parse(text)?;
    let model = EnvoyModel::of(&file)?;
    let rules = rules.map(KnownRules::new);
    Ok(request::shown(&file, &model, request, rules.as_ref()))
}
