//! Settings that a file can have for all its rules, and each rule for itself → their values, with every error.

use std::sync::Arc;

use super::{
    algorithm::{Faults, unknown},
    fault::Fault,
    mirror::DefaultKeys,
    refusal::refusal,
};
use crate::{
    core::{
        limit::{CountPolicy, OnStoreLoss},
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
                _ => faults.push(unknown("count", word, "all or admitted")),
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
                None => faults.push(unknown(
                    "on_store_loss",
                    word,
                    "error, allow, deny or local",
                )),
            }
        }
        if let Some(keys) = keys.refusal.as_deref() {
            defaults.refusal = refusal(keys, faults).map(Arc::new);
        }
        defaults
    }
}
