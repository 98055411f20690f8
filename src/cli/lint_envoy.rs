//! Reads an Envoy configuration and reports traps: settings that Envoy accepts silently, but that do not limit what the
//! author meant to limit.
//!
//! Every trap was observed with a real Envoy 1.40. The input is a bootstrap in YAML or JSON, the output of Envoy's
//! `/config_dump`, or Istio's EnvoyFilter resources. Messages are recognised anywhere in the input, by their `@type` or
//! by their shape. `walk.rs` finds the parts that can contain traps, and `traps.rs` has a function for each kind of
//! part.

mod actions;
mod document;
mod finding;
pub(super) mod inputs;
pub(super) mod report;
mod scope;
mod surroundings;
#[cfg(test)]
mod tests;
mod traps;
mod walk;

use crate::{config::file::BYTE_ORDER_MARK, core::matcher::Matcher};

use self::{
    actions::KnownRules,
    document::{Document, Unreadable},
    finding::{Finding, SeenParts},
    walk::EnvoyWalk,
};

/// The traps in one file, and how many parts of it were checked.
#[derive(Debug)]
struct Linted {
    /// In the order of the file.
    findings: Vec<Finding>,
    seen: SeenParts,
}

/// Finds all traps in one file; with `rules`, also descriptors that no rule matches.
///
/// # Errors
///
/// If the file is not an Envoy configuration.
fn lint(text: &str, rules: Option<&Matcher>) -> Result<Linted, Unreadable> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let documents = Document::parse_all(text)?;
    let mut walk = EnvoyWalk::default();
    for document in &documents {
        walk.document(&document.root());
    }
    if !walk.has_envoy {
        return Err(Unreadable::NoEnvoy);
    }
    walk.finish(rules.map(KnownRules::new).as_ref());
    let mut findings = walk.findings.0;
    findings.sort();
    findings.dedup();
    Ok(Linted {
        findings,
        seen: walk.seen,
    })
}
