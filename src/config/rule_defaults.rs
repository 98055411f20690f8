//! How rules are read, and the settings that a file can have for all its rules and each rule for itself → their
//! values, with every error; `reserve`, `accuracy` and `concurrency` among them.

use std::sync::Arc;

use crate::{
    config::{
        algorithm::{Faults, unknown},
        fault::Fault,
        mirror::{DefaultKeys, DescriptorNode, ReserveKeys},
        refusal::refusal,
    },
    core::{
        counter::KeyFormat,
        kind::Algorithm,
        limit::{CountPolicy, LeasePolicy, Limit, MissingCost, OnStoreLoss, Reserve},
        refusal::RuleRefusal,
    },
    foundation::named::Named as _,
};

/// How a rule is counted and answered, independent of its limits.
#[derive(Clone, Default)]
pub(super) struct RuleDefaults {
    pub(super) counts: CountPolicy,
    pub(super) on_store_loss: OnStoreLoss,
    pub(super) refusal: Option<Arc<RuleRefusal>>,
}

impl RuleDefaults {
    /// The settings in `keys`, completed with those in `otherwise`. It is valid only if no fault was added.
    pub(super) fn new(
        keys: &DefaultKeys,
        otherwise: &Self,
        lacks_replicas: bool,
        faults: &mut Faults,
    ) -> Self {
        let mut defaults = otherwise.clone();
        if let Some(word) = keys.count.as_deref() {
            match word.text.as_str() {
                "all" => defaults.counts = CountPolicy::All,
                "admitted" => defaults.counts = CountPolicy::Admitted,
                _ => faults.push(unknown("count", word)),
            }
        }
        if let Some(word) = keys.on_store_loss.as_deref() {
            let mut names = OnStoreLoss::NAMES.iter();
            match names.find(|(name, _)| *name == word.text.as_str()) {
                Some((_, answer)) => {
                    defaults.on_store_loss = *answer;
                    if *answer == OnStoreLoss::Local && lacks_replicas {
                        faults.push((word.at, Fault::UnknownReplicas));
                    }
                }
                None => faults.push(unknown("on_store_loss", word)),
            }
        }
        if let Some(keys) = keys.refusal.as_deref() {
            defaults.refusal = refusal(keys, faults).map(Arc::new);
        }
        defaults
    }
}

/// How rules are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Several files may name one domain; their top-level descriptors are merged.
    pub merge_domains: bool,
    /// Keep keys and values apart: the entry (`a`, `b`) is not the bare key `a_b`.
    pub strict_matching: bool,
    /// How counters are named; the reference's format cannot name every counter.
    pub key_format: KeyFormat,
    /// Answer of rules that set no `on_store_loss`, while the store is lost.
    pub on_store_loss: OnStoreLoss,
    /// The number of replicas is unknown, so no rule can count locally.
    pub lacks_replicas: bool,
    /// Counters are known to be in memory, where no rule needs slices.
    pub lacks_redis: bool,
}

/// How the rule with these `limits` leases hits; `None` if it does not. It is valid only if no fault was added.
pub(super) fn lease(
    descriptor: &DescriptorNode,
    limits: &[Limit],
    is_unlimited: bool,
    faults: &mut Faults,
) -> Option<LeasePolicy> {
    let has_slots = limits.iter().any(Limit::is_concurrency);
    let slices = slices(descriptor, limits, is_unlimited, faults);
    if let Some(reserve) = reserve(descriptor, limits, is_unlimited, faults) {
        return Some(LeasePolicy::Reserve(reserve));
    }
    if !has_slots {
        return slices;
    }
    let fix = "remove `count: all`: only requests that are admitted are in flight";
    check_count(descriptor, "concurrency", fix, faults);
    Some(LeasePolicy::Slots)
}

/// Whether the rule is counted in slices.
fn slices(
    descriptor: &DescriptorNode,
    limits: &[Limit],
    is_unlimited: bool,
    faults: &mut Faults,
) -> Option<LeasePolicy> {
    let word = descriptor.accuracy.as_deref()?;
    match word.text.as_str() {
        "exact" => return None,
        "exact-leased" => {}
        _ => {
            faults.push(unknown("accuracy", word));
            return None;
        }
    }
    let mut reject = |at: Option<usize>, with, fix| {
        let key = "accuracy";
        faults.push((at, Fault::DoesNotGo { key, with, fix }));
    };
    if is_unlimited {
        let fix = "remove it: such a rule counts nothing";
        reject(word.at, "`unlimited`", fix);
    }
    if descriptor.reserve.is_some() {
        let fix = "remove one of them: hits are charged in advance for a worker or for a request";
        reject(word.at, "`reserve`", fix);
    }
    let is_aligned = |limit: &Limit| {
        matches!(
            limit.algorithm,
            Algorithm::FixedWindow | Algorithm::Calendar(_)
        )
    };
    if !limits.iter().all(is_aligned) {
        let fix = "only fixed windows without `first_hit` and calendars can be: a slice is used after it is counted";
        reject(word.at, "the algorithm of a limit", fix);
    }
    let fix = "remove `count: all`: slices count admitted hits only";
    check_count(descriptor, "accuracy", fix, faults);
    Some(LeasePolicy::Slices)
}

/// Reports `count: all` beside a `key` that leases.
fn check_count(
    descriptor: &DescriptorNode,
    key: &'static str,
    fix: &'static str,
    faults: &mut Faults,
) {
    let count = descriptor.own.count.as_deref();
    if let Some(word) = count.filter(|word| word.text == "all") {
        let with = "`count: all`";
        faults.push((word.at, Fault::DoesNotGo { key, with, fix }));
    }
}

fn reserve(
    descriptor: &DescriptorNode,
    limits: &[Limit],
    is_unlimited: bool,
    faults: &mut Faults,
) -> Option<Reserve> {
    let keys = descriptor.reserve.as_deref()?;
    let mut reject = |at: Option<usize>, with, fix| {
        let key = "reserve";
        faults.push((at, Fault::DoesNotGo { key, with, fix }));
    };
    if is_unlimited {
        let fix = "remove it: such a rule counts nothing";
        reject(keys.at, "`unlimited`", fix);
    }
    let is_settled = |limit: &Limit| limit.algorithm.kind(1).facts().is_settled;
    if !limits.iter().all(is_settled) {
        let fix = "only fixed windows without `first_hit`, calendars and token buckets can be settled exactly";
        reject(keys.at, "the algorithm of a limit", fix);
    }
    let fix = "remove `count: all`: hits that are reserved are counted if they are admitted";
    check_count(descriptor, "reserve", fix, faults);
    Some(Reserve {
        estimate: estimate(keys, limits, faults),
        missing: missing(keys, faults),
    })
}

/// An estimate above the smallest limit would never pass.
fn estimate(keys: &ReserveKeys, limits: &[Limit], faults: &mut Faults) -> Option<u64> {
    let number = keys.estimate.as_deref()?;
    let value = number.value?;
    let smallest = limits.iter().map(Limit::capacity).min();
    let most = smallest.unwrap_or(Limit::MAX_REQUESTS).max(1);
    let estimate = u64::try_from(value).ok();
    let estimate = estimate.filter(|estimate| (1..=most).contains(estimate));
    if estimate.is_none() {
        let text = match smallest {
            Some(smallest) if value > i128::from(smallest) => {
                format!("{}: the smallest limit would never admit it", number.text)
            }
            _ => number.text.clone(),
        };
        let fault = Fault::OutOfRange {
            key: "estimate",
            low: 1,
            high: most,
            text,
        };
        faults.push((number.at, fault));
    }
    estimate
}

fn missing(keys: &ReserveKeys, faults: &mut Faults) -> MissingCost {
    let Some(word) = keys.missing.as_deref() else {
        return MissingCost::default();
    };
    let mut names = MissingCost::NAMES.iter();
    match names.find(|(name, _)| *name == word.text) {
        Some((_, missing)) => *missing,
        None => {
            faults.push(unknown("missing", word));
            MissingCost::default()
        }
    }
}
