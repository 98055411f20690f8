//! Stats of the losses of all stores of a process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::{
    core::{
        limit::{Allows, Limit, OnStoreLoss, Rule},
        window::Unit,
    },
    foundation::{named::Named as _, printable::CountOf, sample::SampleWriter},
    store::contract::StoreError,
};

/// Stats over all stores.
#[derive(Debug, Default)]
pub struct LossStats {
    /// The replicas that were counted last; 0 if none were.
    pub replicas: AtomicU64,
    /// Stores that do not answer requests now.
    pub lost: AtomicU64,
    /// Requests that were answered without the store.
    pub degraded: AtomicU64,
    /// Requests that the store did not answer, by [`CAUSES`]; their rules may have answered them.
    causes: [AtomicU64; CAUSES.len()],
    /// The rules in use that answer in each of these ways, by [`OnStoreLoss`] and by [`LostLimits`].
    rules: [[AtomicUsize; 3]; ANSWERS.len()],
}

/// The limits that a lost store counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LostLimits {
    All,
    PerSecond,
    Longer,
}

/// The answers of rules while their store does not reply, and their effect on the requests of one rule or of several.
const ANSWERS: [(OnStoreLoss, &str); 4] = [
    (
        OnStoreLoss::Error,
        "Envoy lets {} requests pass unless failure_mode_deny is set",
    ),
    (OnStoreLoss::Allow, "{} requests pass"),
    (OnStoreLoss::Deny, "{} requests are refused"),
    (
        OnStoreLoss::Local,
        "this replica counts {} requests on its own",
    ),
];

/// Why a store does not answer a request, and the cause's name in statistics.
const CAUSES: [(StoreError, &str); 5] = [
    (StoreError::Timeout, "timeout"),
    (StoreError::Unreachable, "unreachable"),
    (StoreError::Refused, "refused"),
    (StoreError::Moving, "moving"),
    (StoreError::Overloaded, "overloaded"),
];

impl LossStats {
    /// Counts a request that the store did not answer.
    pub fn record(&self, error: StoreError) {
        let error = error.of_part();
        let known = CAUSES.iter().zip(&self.causes);
        for (_, count) in known.filter(|((cause, _), _)| *cause == error) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// How many requests the store did not answer, by cause.
    pub fn causes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.causes.iter().map(|count| count.load(Relaxed));
        CAUSES.iter().map(|(_, name)| *name).zip(counts)
    }

    /// Records the rules in use.
    pub fn change_rules(&self, rules: &[Rule]) {
        let mut counts = [[0; 3]; ANSWERS.len()];
        for rule in rules {
            let Allows::Within(limits) = &rule.allows else {
                continue;
            };
            let counts = &mut counts[rule.on_store_loss as usize];
            let has = |is_per_second| {
                let mut units = limits.iter().map(Limit::unit);
                usize::from(units.any(|unit| (unit == Some(Unit::Second)) == is_per_second))
            };
            counts[LostLimits::All as usize] += 1;
            counts[LostLimits::PerSecond as usize] += has(true);
            counts[LostLimits::Longer as usize] += has(false);
        }
        for (stored, count) in self.rules.iter().flatten().zip(counts.as_flattened()) {
            stored.store(*count, Relaxed);
        }
    }

    /// The effect on clients while the store of `limits` does not answer.
    pub(crate) fn effect(&self, limits: LostLimits) -> String {
        let answers = ANSWERS.iter().filter_map(|(answer, effect)| {
            let (count, verb, whose) = match self.rule_count(*answer, limits) {
                0 => return None,
                1 => (1, "answers", "its"),
                count => (count, "answer", "their"),
            };
            let (rules, effect) = (CountOf(count, "rule"), effect.replace("{}", whose));
            Some(format!("{rules} {verb} `{}`: {effect}", answer.name()))
        });
        let answers: Vec<_> = answers.collect();
        match answers.is_empty() {
            true => "no rule counts in it".to_owned(),
            false => answers.join("; "),
        }
    }

    /// Whether any rule counts in this process while its store does not answer.
    pub(crate) fn counts_locally(&self) -> bool {
        self.rule_count(OnStoreLoss::Local, LostLimits::All) > 0
    }

    fn rule_count(&self, answer: OnStoreLoss, limits: LostLimits) -> usize {
        self.rules[answer as usize][limits as usize].load(Relaxed)
    }

    /// Passes on all stats.
    pub fn samples(&self, list: &mut SampleWriter<'_>) {
        for (cause, count) in self.causes() {
            let name = "tollgate.decisions_without_store_total";
            list.counter(name, &[("cause", cause)], count);
        }
        list.gauge("tollgate.replicas", &[], self.replicas.load(Relaxed));
        list.counter("tollgate.degraded_total", &[], self.degraded.load(Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_a_store_has_a_cause_in_the_statistics() {
        let all = [
            StoreError::Timeout,
            StoreError::Unreachable,
            StoreError::Refused,
            StoreError::Moving,
            StoreError::Overloaded,
        ];
        let stats = LossStats::default();
        for (error, counted) in all.into_iter().zip(1..) {
            // A variant that is added has to be added above as well.
            match error {
                StoreError::Timeout
                | StoreError::Unreachable
                | StoreError::Refused
                | StoreError::Moving
                | StoreError::Overloaded => stats.record(error),
                // Counted as unreachable and as a timeout.
                StoreError::Unsent | StoreError::TimedOutUnsent => {}
            }
            let total: u64 = stats.causes().map(|(_, count)| count).sum();
            assert_eq!(total, counted, "{error:?}");
        }
        assert!(stats.causes().all(|(_, count)| count == 1));
    }
}
