//! The parts that components of the server share: settings, metrics, rules and stores.

use std::sync::Arc;

use super::{
    backend::{StoreBackend, worker_count},
    error::ServerError,
    rules::RuleSource,
};
use crate::{
    control::reload::Intake, core::limit::NearRatio, observe::metrics::Metrics,
    service::limiter::Rules, settings::serve::Settings,
};

/// The parts that components of the server share.
pub(super) struct Parts<'a> {
    pub(super) settings: &'a Settings,
    pub(super) metrics: Arc<Metrics>,
    pub(super) rules: Rules,
    pub(super) intake: Intake,
    pub(super) backend: StoreBackend,
}

impl<'a> Parts<'a> {
    /// Loads the rules and makes the stores. Nothing runs yet.
    ///
    /// # Errors
    ///
    /// If the rules or the address of a store are invalid.
    pub(super) fn new(settings: &'a Settings) -> Result<(Self, RuleSource), ServerError> {
        let near_ratio = NearRatio(settings.decisions.near_limit_ratio);
        let metrics = Metrics::new(near_ratio, settings.stats.max_metric_names);
        // One for each worker, and one for `/json`, which runs on the main thread.
        let metrics = Arc::new(metrics.for_workers(worker_count(settings) + 1));
        let rules = Rules::default();
        let intake = Intake::new(rules.clone(), metrics.clone());
        let source = RuleSource::new(settings, &intake, &metrics)?;
        let backend = StoreBackend::new(settings, &metrics)?;
        let parts = Self {
            settings,
            metrics,
            rules,
            intake,
            backend,
        };
        Ok((parts, source))
    }
}
