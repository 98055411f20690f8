//! The wording of explanations: sentences for people, and names of reasons for programs.

use crate::core::{
    counter::{Charge, Operation},
    decision::{Code, Decision, Status, is_quota},
    limit::Modes,
    matcher::trace::{Dismissal, MatchForm},
    plan::Plan,
};

/// The reason for the overall code of `decision`: its name, and a sentence that refers to descriptors by number.
pub(super) fn settled(
    plan: &Plan<'_>,
    decision: &Decision,
    modes: Modes,
) -> (&'static str, String) {
    let numbers = |is_it: fn(&Status, bool) -> bool| -> Vec<String> {
        let judged = plan.outcomes.iter().zip(&decision.statuses).zip(1_usize..);
        let judged = judged
            .filter(|((outcome, status), _)| is_it(status, is_quota(outcome, modes)))
            .map(|(_, number)| number.to_string());
        judged.collect()
    };
    let listed = |numbers: &[String]| match numbers {
        [one] => format!("descriptor {one}"),
        _ => format!("descriptors {}", numbers.join(", ")),
    };
    let over = |numbers: &[String]| {
        let are = if numbers.len() == 1 { "is" } else { "are" };
        format!("{} {are} over the limit", listed(numbers))
    };
    let plain = numbers(|status, is_quota| status.code == Code::OverLimit && !is_quota);
    let quotas = numbers(|status, is_quota| status.code == Code::OverLimit && is_quota);
    let shadowed = numbers(|status, _| is_over(status) && status.code == Code::Ok);
    let (name, mut words) = if decision.overall == Code::OverLimit || decision.is_shadowed {
        if plain.is_empty() {
            let all = listed(&quotas);
            ("quotas", format!("all quotas are over the limit: {all}"))
        } else {
            ("over", over(&plain))
        }
    } else if decision.statuses.iter().any(is_over) {
        let parts = [
            (shadowed, "in shadow mode"),
            (quotas, "another quota has room"),
        ];
        let parts = parts.iter().filter(|(numbers, _)| !numbers.is_empty());
        let parts = parts.map(|(numbers, why)| format!("{}, but {why}", over(numbers)));
        ("spared", parts.collect::<Vec<_>>().join("; "))
    } else if decision
        .statuses
        .iter()
        .all(|status| status.binding.is_none())
    {
        ("no_limits", "no limit applies to any descriptor".to_owned())
    } else {
        ("room", "no limit is over".to_owned())
    };
    if decision.is_shadowed {
        words += ", and shadow mode of the server answers OK";
    }
    if decision.is_degraded {
        words += "; decided without the store, which does not answer";
    }
    (name, words)
}

/// Whether a limit is over, with or without an effect.
pub(super) fn is_over(status: &Status) -> bool {
    let binding = status.binding.as_ref();
    binding.is_some_and(|binding| binding.is_over)
}

/// Which hits a counter takes.
pub(super) const fn operation_words(operation: Operation) -> &'static str {
    match operation {
        Operation::Add(Charge::Always) | Operation::GiveBack | Operation::Reset => "all hits",
        Operation::Add(Charge::Within) => "hits that this limit lets pass",
        Operation::Add(Charge::Admitted) => "hits of requests that pass",
        Operation::Add(Charge::Stopping) => "hits while no other limit is over",
        Operation::Look => "no hits",
    }
}

/// Why a sibling node does not match the entry: the name of the reason, and a sentence.
pub(super) const fn dismissal_words(why: Dismissal) -> (&'static str, &'static str) {
    match why {
        Dismissal::Hidden { chosen, own, .. } => match (chosen, own) {
            (MatchForm::Wildcard, MatchForm::Wildcard) => (
                "later_wildcard",
                "matches as well, but the first wildcard wins, not the longest",
            ),
            (MatchForm::Wildcard, _) => (
                "hidden_by_wildcard",
                "matches as well, but a wildcard wins over a bare key",
            ),
            _ => (
                "hidden_by_exact",
                "matches as well, but an exact value wins",
            ),
        },
        Dismissal::OtherValue => ("other_value", "another value"),
        Dismissal::OtherPattern => ("other_pattern", "the pattern does not match"),
        Dismissal::KeptApart => (
            "strict_matching",
            "reads alike once key and value are joined, but strict matching keeps them apart",
        ),
        Dismissal::OtherKey => ("other_key", "another key"),
    }
}
