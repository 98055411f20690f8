//! The facts about one decision, borrowed from where it was made.

use std::time::{Duration, Instant};

use super::values::LoggedValues;
use crate::core::{
    counter::CounterState,
    decision::{Decision, Status},
    limit::Limit,
    matcher::{Matcher, NoMatch, PlacedRule},
    plan::{Outcome, Plan},
    request::{Descriptor, Request},
    window::Timestamp,
};

/// The name of logged decisions among all lines, by which the log lets them pass at every level.
pub(crate) const TARGET: &str = "tollgate::decision";

/// The moment of a request, and the start of the call that brought it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    pub(crate) now: Timestamp,
    pub(crate) began: Instant,
}

/// One decision.
#[derive(Debug)]
pub(super) struct DecisionRecord<'a> {
    pub(super) domain: &'a [u8],
    pub(super) decision: &'a Decision,
    /// In the order of the request.
    pub(super) descriptors: Vec<DescriptorRecord<'a>>,
    pub(super) moment: Timestamp,
    /// From the start of the call to the decision.
    pub(super) took: Duration,
}

/// One descriptor of a request, and how it was judged.
#[derive(Debug)]
pub(super) struct DescriptorRecord<'a> {
    pub(super) descriptor: Descriptor<'a>,
    /// How its values are shown.
    pub(super) values: LoggedValues,
    pub(super) status: &'a Status,
    pub(super) judged_by: JudgedBy<'a>,
    /// The limits that were counted.
    pub(super) limits: Vec<LimitRecord<'a>>,
}

/// Why a descriptor has the limits that it has.
#[derive(Debug)]
pub(super) enum JudgedBy<'a> {
    /// No limit applies.
    Nothing(NoMatch),
    Unlimited(PlacedRule<'a>),
    /// Other rules of the request replace all its limits.
    Replaced(PlacedRule<'a>),
    Rule(PlacedRule<'a>),
    /// The limit that the request brought.
    OwnLimit,
}

/// A limit and its counter after the request.
#[derive(Debug)]
pub(super) struct LimitRecord<'a> {
    pub(super) limit: &'a Limit,
    pub(super) count: u64,
    pub(super) is_over: bool,
    /// Whether it is the one that the status reports.
    pub(super) is_binding: bool,
}

impl<'a> DecisionRecord<'a> {
    pub(super) fn new(
        (matcher, plan, counts): (&'a Matcher, &'a Plan<'_>, &[CounterState]),
        request: &'a Request<'_>,
        decision: &'a Decision,
        RequestTimes { now, began }: RequestTimes,
        values: LoggedValues,
    ) -> Self {
        let judged = plan.outcomes.iter().zip(&decision.statuses);
        let descriptors = request.descriptors().zip(judged);
        Self {
            domain: request.domain,
            decision,
            descriptors: descriptors
                .map(|(descriptor, (outcome, status))| DescriptorRecord {
                    descriptor,
                    values,
                    status,
                    judged_by: judged_by(matcher, outcome),
                    limits: limits(plan, outcome, counts, status),
                })
                .collect(),
            moment: now,
            took: began.elapsed(),
        }
    }
}

fn judged_by<'a>(matcher: &'a Matcher, outcome: &'a Outcome<'_>) -> JudgedBy<'a> {
    match outcome {
        Outcome::Unmatched(reason) => JudgedBy::Nothing(*reason),
        Outcome::Unlimited(rule) => JudgedBy::Unlimited(matcher.placed(rule)),
        Outcome::Replaced(rule) => JudgedBy::Replaced(matcher.placed(rule)),
        Outcome::Counted(counted) => match counted.rule {
            Some(rule) => JudgedBy::Rule(matcher.placed(rule)),
            None => JudgedBy::OwnLimit,
        },
    }
}

fn limits<'a>(
    plan: &'a Plan<'_>,
    outcome: &Outcome<'_>,
    counts: &[CounterState],
    status: &Status,
) -> Vec<LimitRecord<'a>> {
    let Outcome::Counted(counted) = outcome else {
        return Vec::new();
    };
    let counters = counted.counters.clone();
    let binding = status.binding.as_ref().map(|binding| binding.counter);
    counters
        .map(|counter| {
            let (limit, count) = (plan.limits[counter], counts[counter]);
            LimitRecord {
                limit,
                count: count.after,
                is_over: count.is_over(limit.capacity(), counted.hits),
                is_binding: binding == Some(counter),
            }
        })
        .collect()
}
