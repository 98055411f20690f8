//! Whether the number of replicas has to be found out.

use std::sync::{Arc, Weak};

use crate::{
    core::limit::OnStoreLoss,
    service::limiter::{RuleSet, Rules},
};

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
