//! Explains how a request would be decided, and why. Each descriptor gets the steps to its rule, and its limits with
//! their counters or the reason why it has none. The overall code gets the descriptors that settle it.
//!
//! None of this is on the path of a decision. It plans the request as a decision does, predicts the counts from a look,
//! and decides by them as a decision does.

use super::{
    CounterLook,
    account::{
        Advice, CountBefore, ExplainedCause, ExplainedCounter, ExplainedDescriptor, ExplainedEntry,
        ExplainedLimit, ExplainedNode, ExplainedRule, ExplainedSibling, ExplainedStep,
        ExplainedWindow, Explanation, HitsEffect, LimitEffect, MatchResult, SourcePlace, text,
    },
    words::{dismissal_words, is_over, operation_words, settled},
};
use crate::{
    core::{
        calendar,
        charging::{empty_look, predicted},
        counter::{Batch, CounterState, CounterStates, IncrementSpec, KeyFormat},
        decision::{Code, LimitReport, Status, all_limits, decide, is_quota},
        kind::Algorithm,
        limit::{Allows, Limit, Modes, Rule},
        matcher::{
            Matcher, NodeId, RuleOrigin,
            cause::{Cause, NoLimit},
            trace::{Dismissal, MatchForm, Step, Trace},
        },
        plan::{Outcome, Plan, PlannedDescriptor},
        request::{Descriptor, Entry, Request},
        window::Timestamp,
    },
    store::contract::StoreError,
};

/// Most descriptors that are explained. Each one is matched again and compared with many rules.
const MAX_DESCRIPTORS: usize = 16;

/// Most entries of one descriptor that are shown.
const MAX_ENTRIES: usize = 16;

/// Explains how `request` would be decided. `look` is the answer to a look at its counters; without a store, all of
/// them are assumed to be empty.
pub(super) fn explain<'a>(
    matcher: &'a Matcher,
    request: &'a Request<'_>,
    modes: Modes,
    now: Timestamp,
    look: Option<Result<CounterLook<'_>, StoreError>>,
) -> Explanation {
    let plan = Plan::new(matcher, request, modes, now);
    let empty = empty_look(&plan.batch);
    let looked = match look {
        Some(Ok(look)) if look.counts.len() == empty.len() => look.counts,
        _ => &empty,
    };
    let from_slices = match look {
        Some(Ok(look)) => in_slices(&plan.batch, looked, look.leased),
        _ => None,
    };
    let counts = predicted(&plan.batch, from_slices.as_deref().unwrap_or(looked));
    let decision = decide(&plan, &counts, modes, now);
    let (settled_by, mut why) = settled(&plan, &decision, modes);
    let (counters, error) = match look {
        None => {
            why += "; counters are taken as empty";
            ("empty", None)
        }
        Some(Ok(_)) => ("known", None),
        Some(Err(error)) => {
            why = format!("{error}; Envoy does as its failure_mode_deny says");
            ("unknown", Some(error.to_string()))
        }
    };
    let basis = AccountBasis {
        matcher,
        domain: request.domain,
        modes,
        now,
        plan: &plan,
        looked,
        counts: &counts,
        leased: match look {
            Some(Ok(look)) => look.leased,
            _ => &[],
        },
        is_known: matches!(look, Some(Ok(_))),
        is_decided: error.is_none(),
    };
    let statuses = decision.statuses.iter().take(MAX_DESCRIPTORS);
    let descriptors = request.descriptors().zip(statuses).enumerate();
    let refuses = basis.is_known && decision.overall == Code::OverLimit;
    Explanation {
        version: 1,
        domain: text(request.domain),
        code: basis.is_decided.then(|| decision.overall.name().to_owned()),
        why,
        settled_by: basis.is_decided.then(|| settled_by.to_owned()),
        degraded: decision.is_degraded,
        counters: counters.to_owned(),
        descriptors: descriptors
            .map(|(index, (descriptor, status))| basis.descriptor(index, descriptor, status))
            .collect(),
        omitted: request.len().saturating_sub(MAX_DESCRIPTORS),
        error,
        retry_secs: refuses.then_some(decision.retry_secs),
    }
}

/// The counts without the hits that this process has charged in advance, if the request takes all of its hits from
/// those: slices admit it, however full the counters are.
fn in_slices(batch: &Batch, looked: &[CounterState], leased: &[u64]) -> Option<CounterStates> {
    let mut takes = batch.all_specs().zip(leased);
    let is_free = |(spec, free): (&IncrementSpec, &u64)| {
        spec.is_sliced && spec.hits > 0 && spec.added() <= *free
    };
    if leased.len() != batch.len() || !takes.all(is_free) {
        return None;
    }
    let counts = looked.iter().zip(leased);
    let unused = |(count, free): (&CounterState, &u64)| CounterState {
        after: count.after.saturating_sub(*free),
        ..*count
    };
    Some(counts.map(unused).collect())
}

/// The rule that matches, even if its limits do not apply.
fn rule_of<'a>(outcome: &Outcome<'a>) -> Option<&'a Rule> {
    match *outcome {
        Outcome::Counted(PlannedDescriptor { rule, .. }) => rule,
        Outcome::Unlimited(rule) | Outcome::Replaced(rule) => Some(rule),
        Outcome::Unmatched(_) | Outcome::Ordered => None,
    }
}

/// The facts from which a descriptor is explained.
struct AccountBasis<'a, 'p> {
    matcher: &'a Matcher,
    domain: &'a [u8],
    modes: Modes,
    now: Timestamp,
    plan: &'p Plan<'a>,
    looked: &'p [CounterState],
    counts: &'p [CounterState],
    leased: &'p [u64],
    /// Whether the counters come from a store.
    is_known: bool,
    is_decided: bool,
}

impl<'a> AccountBasis<'a, '_> {
    fn descriptor(
        &self,
        index: usize,
        descriptor: Descriptor<'a>,
        status: &Status,
    ) -> ExplainedDescriptor {
        let outcome = &self.plan.outcomes[index];
        let trace = self.matcher.trace(self.domain, descriptor.entries);
        let result = self.result(outcome, &trace, descriptor.entries.len());
        let steps = match result {
            MatchResult::OwnLimit | MatchResult::Order => Vec::new(),
            _ => trace.steps(),
        };
        let limits = self.limits(outcome, descriptor);
        let is_decided = self.is_decided || limits.is_empty();
        let entry = |entry: &Entry<'_>| ExplainedEntry {
            key: text(entry.key),
            value: text(entry.value),
        };
        let steps = steps.iter().take(MAX_ENTRIES).zip(1..);
        ExplainedDescriptor {
            entries: descriptor
                .entries
                .iter()
                .take(MAX_ENTRIES)
                .map(entry)
                .collect(),
            hits: match outcome {
                Outcome::Counted(counted) => counted.hits,
                _ => descriptor.hits,
            }
            .signed(),
            code: is_decided.then(|| status.code.name().to_owned()),
            over: is_decided.then_some(is_over(status)),
            quota: is_quota(outcome, self.modes),
            result,
            path: steps
                .map(|(step, number)| self.step(step, number))
                .collect(),
            limits,
        }
    }

    fn result(&self, outcome: &Outcome<'a>, trace: &Trace<'a>, entries: usize) -> MatchResult {
        let rule = |rule: &Rule| ExplainedRule {
            path: text(rule.path.as_bytes()),
            place: place(self.matcher.origin(rule.id)),
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
            replaces: rule
                .replaces
                .iter()
                .map(|name| text(name.as_bytes()))
                .collect(),
            reserve: rule.reserve().map(|reserve| Box::new(reserve.into())),
        };
        let cause =
            match outcome {
                Outcome::Counted(counted) => {
                    return counted.rule.map_or(MatchResult::OwnLimit, |found| {
                        MatchResult::Limited { rule: rule(found) }
                    });
                }
                Outcome::Ordered => return MatchResult::Order,
                Outcome::Replaced(_) => Cause::Replaced,
                Outcome::Unlimited(_) | Outcome::Unmatched(_) => Cause::WithoutLimit,
            };
        let no_limit = trace.cause().unwrap_or(NoLimit {
            cause,
            matched: entries,
        });
        let advice = trace.suggestion(&no_limit);
        MatchResult::NoLimit(ExplainedCause {
            cause: no_limit.cause.name().to_owned(),
            matched: no_limit.matched,
            why: no_limit.to_string(),
            rule: rule_of(outcome).map(rule),
            advice: advice.map(|(suggestion, nearest)| Advice {
                suggestion,
                nearest: nearest.map(rule),
            }),
        })
    }

    fn step(&self, step: &Step<'_>, number: usize) -> ExplainedStep {
        let form = match step.chosen.map(|(_, form)| form) {
            None => "none",
            Some(MatchForm::Exact) => "exact",
            Some(MatchForm::JoinedExact) => "joined",
            Some(MatchForm::Wildcard) => "wildcard",
            Some(MatchForm::BareKey) => "key",
            Some(MatchForm::JoinedKey) => "joined_key",
        };
        let others = step.others.iter().map(|&(dismissal, other)| {
            let (reason, why) = dismissal_words(dismissal);
            ExplainedSibling {
                node: self.node(other),
                reason: reason.to_owned(),
                why: why.to_owned(),
                would_reach: matches!(
                    dismissal,
                    Dismissal::Hidden {
                        would_reach: true,
                        ..
                    }
                ),
            }
        });
        ExplainedStep {
            entry: number,
            key: text(step.entry.key),
            value: text(step.entry.value),
            form: form.to_owned(),
            node: step.chosen.map(|(chosen, _)| self.node(chosen)),
            others: others.collect(),
            omitted: step.omitted,
        }
    }

    fn node(&self, node: NodeId) -> ExplainedNode {
        let (key, value) = self.matcher.key_and_value(node);
        ExplainedNode {
            key: text(key),
            value: (!value.is_empty()).then(|| text(value)),
            place: place(self.matcher.node_origin(node)),
        }
    }

    fn limits(&self, outcome: &Outcome<'a>, descriptor: Descriptor<'a>) -> Vec<ExplainedLimit> {
        let allows = rule_of(outcome).map(|rule| &rule.allows);
        let limits = match (outcome, allows, descriptor.limit) {
            (_, Some(Allows::Within(limits)), _) => &**limits,
            (Outcome::Counted(_), None, Some(own)) => std::slice::from_ref(own),
            _ => &[],
        };
        let limits = limits.iter().map(|limit| ExplainedLimit {
            name: limit.name.as_ref().map(|name| text(name.as_bytes())),
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit().map(|unit| unit.name().to_owned()),
            unit_multiplier: limit.unit_multiplier(),
            rate: limit.rate().to_string(),
            algorithm: limit.algorithm.name().to_owned(),
            period_secs: limit.period.secs(),
            window_begins: (limit.algorithm == Algorithm::FirstHit).then(|| "first_hit".to_owned()),
            calendar: match &limit.algorithm {
                Algorithm::Calendar(calendar) => Some(calendar.zone_name().to_owned()),
                _ => None,
            },
            burst: match limit.algorithm {
                Algorithm::TokenBucket { burst } => Some(burst),
                _ => None,
            },
            window: self.window(limit),
            effect: self.effect(limit, outcome),
        });
        limits.collect()
    }

    /// The current window of a limit, if its windows begin at the same moments for all counters.
    fn window(&self, limit: &Limit) -> Option<ExplainedWindow> {
        let is_aligned = matches!(
            limit.algorithm,
            Algorithm::FixedWindow | Algorithm::Calendar(_)
        ) || self.matcher.key_format == KeyFormat::Reference;
        let window = limit.window(self.now);
        is_aligned.then(|| ExplainedWindow {
            begins: calendar::utc(window.start),
            ends: calendar::utc(window.end),
        })
    }

    fn effect(&self, limit: &Limit, outcome: &Outcome<'a>) -> LimitEffect {
        if let Outcome::Counted(counted) = outcome {
            let reports = all_limits(counted, self.plan, self.looked, self.now);
            let mut counters = counted.counters.clone().zip(reports);
            let own = counters.find(|(_, report)| std::ptr::eq(report.limit, limit));
            if let Some((counter, report)) = own {
                return self.counted(counter, &report);
            }
        }
        let replaces = |rule: &Rule| limit.is_replaced(&rule.replaces.iter().collect::<Vec<_>>());
        let mut outcomes = self.plan.outcomes.iter().zip(1..);
        let replacer = outcomes.find(|(other, _)| rule_of(other).is_some_and(replaces));
        LimitEffect::Replaced {
            replaced: true,
            replaced_by: replacer.map(|(_, number)| number),
        }
    }

    fn counted(&self, counter: usize, report: &LimitReport<'_>) -> LimitEffect {
        let increment = self.plan.batch.increment(counter);
        let (before, after) = (self.looked[counter], self.counts[counter]);
        LimitEffect::Counted(ExplainedCounter {
            counter: text(increment.key),
            charge: operation_words(increment.operation).to_owned(),
            hits: self.is_decided.then(|| HitsEffect {
                charged: after.is_charged,
                over: after.is_over(increment.limit, increment.added()),
            }),
            before: self.is_known.then(|| CountBefore {
                count: before.after,
                remaining: report.remaining,
                reset_secs: report.reset_secs,
                retry_secs: report.retry_secs,
                oldest_secs: before.oldest_secs(&increment),
                leased: self.leased.get(counter).copied().filter(|hits| *hits > 0),
            }),
        })
    }
}

/// The file and the line of a rule.
fn place(origin: &RuleOrigin) -> SourcePlace {
    SourcePlace {
        file: (!origin.file.is_empty()).then(|| text(origin.file.as_bytes())),
        line: origin.line,
    }
}
