//! Finds out how many replicas there are, and keeps the number across restarts.

use std::{
    num::NonZeroU32,
    sync::{Arc, Weak},
};

use crate::{
    core::limit::OnStoreLoss,
    foundation::causes::chain,
    service::limiter::{RuleSet, Rules},
    settings::serve::Settings,
    store::replicas::StateFile,
};

/// The file that keeps the number of replicas across a restart.
pub(super) fn state_file(settings: &Settings) -> Option<StateFile> {
    let path = settings.loss.replicas.state_file()?;
    Some(StateFile::at(path.to_owned()))
}

/// The number that an earlier process kept. An invalid file is logged and ignored.
pub(super) fn kept_replicas(settings: &Settings) -> Option<NonZeroU32> {
    state_file(settings)?.read().unwrap_or_else(|error| {
        tracing::warn!("{}; the replicas are detected again", chain(&error));
        None
    })
}

/// Returns a function that reports whether any rule counts locally while its store is lost. It looks at the rules
/// once per load, and does not keep old rules alive.
pub(super) fn counts_locally(rules: Rules) -> impl FnMut() -> bool {
    let mut seen: Option<Weak<RuleSet>> = None;
    let mut is_any = false;
    move || {
        let current = rules.current();
        if seen.as_ref().map(Weak::as_ptr) != current.as_ref().map(Arc::as_ptr) {
            is_any = current.as_ref().is_some_and(|rules| {
                let mut rules = rules.matcher.rules().iter();
                rules.any(|rule| rule.on_store_loss == OnStoreLoss::Local)
            });
            seen = current.as_ref().map(Arc::downgrade);
        }
        is_any
    }
}
