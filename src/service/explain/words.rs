//! The sentences of an explanation.

use crate::{
    core::{
        counter::Charge,
        decision::Decision,
        explanation::SettledBy,
        matcher::steps::{Dismissal, MatchForm},
    },
    store::contract::StoreError,
};

/// The counters that an explanation was made from.
#[derive(Clone, Copy, Debug)]
pub(super) enum CounterSource {
    /// No server was asked; all counters are taken as empty.
    Empty,
    Store,
    /// The store did not answer.
    Lost(StoreError),
}

/// Why the overall code is as it is.
pub(super) fn decision_words(
    settled_by: &SettledBy,
    decision: &Decision,
    counters: CounterSource,
) -> String {
    let listed = |indexes: &[usize]| {
        let numbers: Vec<_> = indexes
            .iter()
            .map(|index| (index + 1).to_string())
            .collect();
        let noun = if indexes.len() == 1 {
            "descriptor"
        } else {
            "descriptors"
        };
        format!("{noun} {}", numbers.join(", "))
    };
    let are = |indexes: &[usize]| if indexes.len() == 1 { "is" } else { "are" };
    let mut words = match settled_by {
        SettledBy::NoLimits => "no limit applies to any descriptor".to_owned(),
        SettledBy::Room => "no limit is over".to_owned(),
        SettledBy::Over(indexes) => format!("{} {} over the limit", listed(indexes), are(indexes)),
        SettledBy::Quotas(indexes) => {
            format!("all quotas are over the limit: {}", listed(indexes))
        }
        SettledBy::Spared { shadowed, quotas } => {
            let part = |indexes: &[usize], why: &str| {
                let words = || {
                    format!(
                        "{} {} over the limit, but {why}",
                        listed(indexes),
                        are(indexes)
                    )
                };
                (!indexes.is_empty()).then(words)
            };
            let parts = [
                part(shadowed, "in shadow mode"),
                part(quotas, "another quota has room"),
            ];
            parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
        }
    };
    if decision.is_shadowed {
        words += ", and shadow mode of the server answers OK";
    }
    if decision.is_degraded {
        words += "; decided without the store, which does not answer";
    }
    match counters {
        CounterSource::Empty => words += "; counters are taken as empty",
        CounterSource::Store => {}
        CounterSource::Lost(error) => {
            return format!("{error}; Envoy does as its failure_mode_deny says");
        }
    }
    words
}

/// The name of the reason for programs.
pub(super) const fn settled_words(settled_by: &SettledBy) -> &'static str {
    match settled_by {
        SettledBy::NoLimits => "no_limits",
        SettledBy::Room => "room",
        SettledBy::Over(_) => "over",
        SettledBy::Quotas(_) => "quotas",
        SettledBy::Spared { .. } => "spared",
    }
}

/// The hits that a counter takes.
pub(super) const fn charge_words(charge: Charge) -> &'static str {
    match charge {
        Charge::Always => "all hits",
        Charge::Within => "hits that this limit lets pass",
        Charge::Admitted => "hits of requests that pass",
        Charge::Stopping => "hits while no other limit is over",
        Charge::Grant => "no hits: as many more may pass",
        Charge::Never => "no hits",
    }
}

/// Why a sibling does not get the entry.
pub(super) const fn dismissal_words(why: Dismissal) -> &'static str {
    match why {
        Dismissal::Hidden {
            chosen: MatchForm::Wildcard,
            own: MatchForm::Wildcard,
            ..
        } => "matches as well, but the first wildcard wins, not the longest",
        Dismissal::Hidden {
            chosen: MatchForm::Wildcard,
            ..
        } => "matches as well, but a wildcard wins over a bare key",
        Dismissal::Hidden { .. } => "matches as well, but an exact value wins",
        Dismissal::OtherValue => "another value",
        Dismissal::OtherPattern => "the pattern does not match",
        Dismissal::KeptApart => {
            "reads alike once key and value are joined, but strict matching keeps them apart"
        }
        Dismissal::OtherKey => "another key",
    }
}
