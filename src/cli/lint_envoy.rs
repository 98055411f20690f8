//! Reads an Envoy configuration and reports traps: settings that Envoy accepts silently and that limit nothing, or
//! not what the author meant.
//!
//! Every trap was seen with a real Envoy 1.40. The input is a bootstrap in YAML or JSON, the output of Envoy's
//! `/config_dump`, or Istio's EnvoyFilter resources. Messages are recognised anywhere in it, by their `@type` or by
//! their shape. `walk.rs` finds what there is to look at, and `traps.rs` lists the traps, one item each.

mod actions;
mod document;
mod finding;
#[cfg(test)]
mod tests;
mod trap;
mod traps;
pub(super) mod unreadable;
mod walk;

use crate::{config::file::BYTE_ORDER_MARK, core::matcher::Matcher};

use self::{actions::KnownRules, document::Document, unreadable::Unreadable, walk::EnvoyWalk};

pub(super) use self::finding::Finding;

/// A larger file is not read: the dump of an Envoy with ten thousand clusters has half this size.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reports all traps of one file, in its order; with `rules`, also descriptors that no rule matches.
///
/// # Errors
///
/// If the file is not an Envoy configuration.
pub(super) fn lint(text: &str, rules: Option<&Matcher>) -> Result<Vec<Finding>, Unreadable> {
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
    let mut findings = walk.findings;
    findings.sort();
    findings.dedup();
    Ok(findings)
}
