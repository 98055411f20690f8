//! The account of how a request would be decided, and why: for each descriptor the way to its rule, the limits with
//! their counters, or the cause of having none; and the descriptors that settle the overall code.
//!
//! This is for people who ask, beside the path of a decision: it plans the request as a decision does, predicts the
//! counts from a look that counts nothing, and judges them as a decision does.

use crate::core::{
    calendar,
    counter::{CounterState, IncrementSpec, KeyFormat},
    decision::{Binding, Code, Decision, LimitReport, Status, all_limits, decide, is_quota},
    limit::{Algorithm, Allows, Limit, Modes},
    matcher::{
        Matcher, PlacedRule,
        cause::{Cause, NoLimit},
        steps::Step,
        suggestion::Suggestion,
    },
    plan::{Outcome, Plan, PlannedDescriptor},
    request::{Descriptor, Request},
    window::Timestamp,
};

mod prediction;

pub(crate) use prediction::look_of;

/// Most descriptors that are explained, because each is matched once more and compared with many rules.
pub(crate) const MAX_DESCRIPTORS: usize = 16;

/// The account of one request.
#[derive(Debug)]
pub(crate) struct Explanation<'a> {
    /// The decision that the request would get.
    pub(crate) decision: Decision,
    pub(crate) settled_by: SettledBy,
    /// The first descriptors of the request, in order.
    pub(crate) descriptors: Vec<DescriptorAccount<'a>>,
    /// How many descriptors follow.
    pub(crate) omitted: usize,
}

/// The reason for an overall code. Descriptors are named by their index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettledBy {
    /// No descriptor has a limit.
    NoLimits,
    /// No limit is over.
    Room,
    /// These are over.
    Over(Vec<usize>),
    /// These are all quotas of the request, and all are over.
    Quotas(Vec<usize>),
    /// These are over, and have no effect.
    Spared {
        /// Their rules are in shadow mode.
        shadowed: Vec<usize>,
        /// Another quota has room.
        quotas: Vec<usize>,
    },
}

/// The account of one descriptor.
#[derive(Debug)]
pub(crate) struct DescriptorAccount<'a> {
    pub(crate) descriptor: Descriptor<'a>,
    pub(crate) steps: Vec<Step<'a>>,
    pub(crate) result: MatchResult<'a>,
    pub(crate) code: Code,
    /// Whether a limit is over; in shadow mode the code is OK even so.
    pub(crate) is_over: bool,
    pub(crate) is_quota: bool,
    /// The limits of the rule, or that of the request.
    pub(crate) limits: Vec<LimitAccount<'a>>,
}

/// The source of a descriptor's limits.
#[derive(Debug)]
pub(crate) enum MatchResult<'a> {
    Rule(PlacedRule<'a>),
    /// The limit that the request brings.
    OwnLimit,
    NoLimit {
        /// The rule that matches nevertheless.
        rule: Option<PlacedRule<'a>>,
        why: NoLimit<'a>,
        suggestion: Option<Suggestion<'a>>,
        /// The place of the suggested rule.
        suggested: Option<PlacedRule<'a>>,
    },
}

/// One limit of a descriptor.
#[derive(Debug)]
pub(crate) struct LimitAccount<'a> {
    pub(crate) limit: &'a Limit,
    /// Beginning and end of the present window in RFC 3339, if windows are aligned.
    pub(crate) window: Option<[String; 2]>,
    /// `None` if the limit does not apply, because the rule of the descriptor with this index replaces it.
    pub(crate) counter: Result<CounterAccount, Option<usize>>,
}

/// A counter before the request, and the effect of the request on it.
#[derive(Debug)]
pub(crate) struct CounterAccount {
    pub(crate) key: Vec<u8>,
    pub(crate) spec: IncrementSpec,
    /// Whether the hits of the request would be counted.
    pub(crate) is_charged: bool,
    pub(crate) is_over: bool,
    /// The state without the request; of no use if no store was asked.
    pub(crate) count: u64,
    /// The hits that pass beyond the limit, because they were granted.
    pub(crate) owed: u64,
    pub(crate) remaining: u32,
    pub(crate) reset_secs: u64,
    pub(crate) retry_secs: Option<u64>,
}

/// Explains how `request` would be decided. `looked` are the counts of [`look_of`] its batch; without them all
/// counters are taken as empty.
pub(crate) fn explain<'a>(
    matcher: &'a Matcher,
    request: &'a Request<'_>,
    modes: Modes,
    now: Timestamp,
    looked: Option<&[CounterState]>,
) -> Explanation<'a> {
    let plan = Plan::new(matcher, request, modes, now);
    let empty = prediction::empty_look(&plan.batch);
    let looked = match looked {
        Some(looked) if looked.len() == empty.len() => looked,
        _ => &empty,
    };
    let counts = prediction::predicted(&plan.batch, looked);
    let decision = decide(&plan, &counts, modes, now);
    let basis = AccountBasis {
        matcher,
        domain: request.domain,
        modes,
        now,
        plan: &plan,
        looked,
        counts: &counts,
    };
    let descriptors = request.descriptors().zip(&decision.statuses).enumerate();
    let accounts = descriptors
        .take(MAX_DESCRIPTORS)
        .map(|(index, (descriptor, status))| basis.account(index, descriptor, status));
    Explanation {
        descriptors: accounts.collect(),
        omitted: request.len().saturating_sub(MAX_DESCRIPTORS),
        settled_by: settled_by(&plan, &decision, modes),
        decision,
    }
}

/// The reason for the overall code of `decision`.
fn settled_by(plan: &Plan<'_>, decision: &Decision, modes: Modes) -> SettledBy {
    let judged = || plan.outcomes.iter().zip(&decision.statuses).enumerate();
    let indexes = |is_it: fn(&Status) -> bool, quotas: bool| -> Vec<usize> {
        judged()
            .filter(|(_, (outcome, status))| is_it(status) && is_quota(outcome, modes) == quotas)
            .map(|(index, _)| index)
            .collect()
    };
    let refused = |status: &Status| status.code == Code::OverLimit;
    if decision.overall == Code::OverLimit || decision.is_shadowed {
        return match indexes(refused, false) {
            none if none.is_empty() => SettledBy::Quotas(indexes(refused, true)),
            plain => SettledBy::Over(plain),
        };
    }
    let is_shadowed = |status: &Status| is_over(status) && status.code == Code::Ok;
    if decision.statuses.iter().any(is_over) {
        let mut shadowed = indexes(is_shadowed, false);
        shadowed.extend(indexes(is_shadowed, true));
        shadowed.sort_unstable();
        SettledBy::Spared {
            shadowed,
            quotas: indexes(refused, true),
        }
    } else if decision
        .statuses
        .iter()
        .all(|status| status.binding.is_none())
    {
        SettledBy::NoLimits
    } else {
        SettledBy::Room
    }
}

/// Whether a limit is over, with or without an effect.
fn is_over(status: &Status) -> bool {
    matches!(status.binding, Some(Binding { is_over: true, .. }))
}

/// All that the account of a descriptor is made from.
struct AccountBasis<'a, 'p> {
    matcher: &'a Matcher,
    domain: &'a [u8],
    modes: Modes,
    now: Timestamp,
    plan: &'p Plan<'a>,
    looked: &'p [CounterState],
    counts: &'p [CounterState],
}

impl<'a> AccountBasis<'a, '_> {
    fn account(
        &self,
        index: usize,
        descriptor: Descriptor<'a>,
        status: &Status,
    ) -> DescriptorAccount<'a> {
        let outcome = &self.plan.outcomes[index];
        let (domain, entries) = (self.domain, descriptor.entries);
        DescriptorAccount {
            descriptor,
            steps: match outcome {
                Outcome::Counted(PlannedDescriptor { rule: None, .. }) => Vec::new(),
                _ => self.matcher.steps(domain, entries),
            },
            result: self.result(outcome, descriptor),
            code: status.code,
            is_over: is_over(status),
            is_quota: is_quota(outcome, self.modes),
            limits: self.limits(outcome, descriptor),
        }
    }

    fn result(&self, outcome: &Outcome<'a>, descriptor: Descriptor<'a>) -> MatchResult<'a> {
        let (domain, entries) = (self.domain, descriptor.entries);
        let (rule, why) = match *outcome {
            Outcome::Counted(PlannedDescriptor {
                rule: Some(rule), ..
            }) => {
                return MatchResult::Rule(self.matcher.placed(rule));
            }
            Outcome::Counted(PlannedDescriptor { rule: None, .. }) => return MatchResult::OwnLimit,
            Outcome::Replaced(rule) => {
                let why = NoLimit {
                    cause: Cause::Replaced,
                    matched: entries.len(),
                };
                (Some(rule), Some(why))
            }
            Outcome::Unlimited(rule) => (Some(rule), self.matcher.cause(domain, entries)),
            Outcome::Unmatched(_) => (None, self.matcher.cause(domain, entries)),
        };
        let why = why.unwrap_or(NoLimit {
            cause: Cause::WithoutLimit,
            matched: entries.len(),
        });
        let suggestion = self.matcher.suggestion(domain, entries, &why);
        let suggested = suggestion.as_ref().and_then(|suggestion| suggestion.rule);
        MatchResult::NoLimit {
            rule: rule.map(|rule| self.matcher.placed(rule)),
            suggested: suggested.map(|rule| self.matcher.placed(rule)),
            why,
            suggestion,
        }
    }

    fn limits(&self, outcome: &Outcome<'a>, descriptor: Descriptor<'a>) -> Vec<LimitAccount<'a>> {
        let mut counted = match outcome {
            Outcome::Counted(counted) => self.counters(counted),
            _ => Vec::new(),
        };
        let rule = match *outcome {
            Outcome::Counted(PlannedDescriptor { rule, .. }) => rule,
            Outcome::Replaced(rule) => Some(rule),
            Outcome::Unlimited(_) | Outcome::Unmatched(_) => None,
        };
        let limits = match rule.map(|rule| &rule.allows) {
            Some(Allows::Within(limits)) => &**limits,
            Some(Allows::Unlimited) => &[],
            None => descriptor.limit.map_or(&[][..], std::slice::from_ref),
        };
        let is_counted = !counted.is_empty();
        let limits = limits.iter().filter(|_| is_counted || rule.is_some());
        limits
            .map(|limit| {
                let own = counted
                    .iter()
                    .position(|(counted, _)| std::ptr::eq(*counted, limit));
                LimitAccount {
                    limit,
                    window: self.window(limit),
                    counter: match own {
                        Some(at) => Ok(counted.remove(at).1),
                        None => Err(self.replacer(limit)),
                    },
                }
            })
            .collect()
    }

    /// The window of a limit whose windows begin at the same moments for all counters.
    fn window(&self, limit: &Limit) -> Option<[String; 2]> {
        let is_aligned = matches!(
            limit.algorithm,
            Algorithm::FixedWindow | Algorithm::Calendar(_)
        ) || self.matcher.key_format == KeyFormat::Reference;
        let window = limit.window(self.now);
        is_aligned.then(|| [window.start, window.end].map(calendar::utc))
    }

    /// The index of the descriptor whose rule replaces `limit`.
    fn replacer(&self, limit: &Limit) -> Option<usize> {
        self.plan.outcomes.iter().position(|outcome| {
            let rule = match outcome {
                Outcome::Counted(PlannedDescriptor { rule, .. }) => *rule,
                Outcome::Unlimited(rule) | Outcome::Replaced(rule) => Some(*rule),
                Outcome::Unmatched(_) => None,
            };
            rule.is_some_and(|rule| limit.is_replaced(&rule.replaces.iter().collect::<Vec<_>>()))
        })
    }

    /// The limits that are counted, each with its counter.
    fn counters(&self, counted: &PlannedDescriptor<'a>) -> Vec<(&'a Limit, CounterAccount)> {
        let reports = all_limits(counted, self.plan, self.looked, self.now);
        let counters = counted.counters.clone().zip(reports);
        counters
            .map(|(counter, report)| {
                let LimitReport {
                    remaining,
                    reset_secs,
                    retry_secs,
                    ..
                } = report;
                let increment = self.plan.batch.increment(counter);
                let count = self.counts[counter];
                let account = CounterAccount {
                    key: increment.key.to_vec(),
                    spec: increment.spec,
                    is_charged: count.is_charged,
                    is_over: count.is_over(increment.limit, increment.hits),
                    count: self.looked[counter].after,
                    owed: self.looked[counter].owed,
                    remaining,
                    reset_secs,
                    retry_secs,
                };
                (self.plan.limits[counter], account)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
