//! The parts that components of the server share: settings, metrics, rules and stores.

use std::sync::Arc;

use super::{
    backend::{StoreBackend, worker_count},
    control_group,
    error::ServerError,
    rules::RuleSource,
    tasks::OwnedTasks,
};
use crate::{
    control::{reload::Intake, rule_memory::RuleMemory},
    core::limit::NearRatio,
    observe::{decision_log::DecisionLog, log_lines::LogStats, metrics::Metrics, talkers::Talkers},
    service::{leases::LeaseBook, limiter::Rules},
    settings::{memory::MemoryShares, serve::Settings},
};

/// The parts that components of the server share.
pub(super) struct Parts<'a> {
    pub(super) settings: &'a Settings,
    pub(super) memory: MemoryShares,
    pub(super) metrics: Arc<Metrics>,
    pub(super) rules: Rules,
    pub(super) intake: Intake,
    pub(super) backend: StoreBackend,
    pub(super) decision_log: DecisionLog,
    pub(super) talkers: Arc<Talkers>,
    pub(super) leases: LeaseBook,
}

impl<'a> Parts<'a> {
    /// Loads the rules, creates the stores and the statistics.
    ///
    /// # Errors
    ///
    /// If the bounds on memory do not fit, or if the rules or the address of a store are invalid.
    pub(super) fn new(
        settings: &'a Settings,
        log: Arc<LogStats>,
        tasks: &OwnedTasks,
    ) -> Result<(Self, RuleSource), ServerError> {
        let memory = settings.memory_shares(control_group::memory_limit())?;
        let near_ratio = NearRatio(settings.decisions.near_limit_ratio);
        let mut metrics = Metrics::new(near_ratio, settings.stats.max_metric_names);
        metrics.log = log;
        metrics.tasks = tasks.stats.clone();
        // Each worker is a thread, and `/json` runs on the main thread.
        let threads = worker_count(settings) + 1;
        let metrics = Arc::new(metrics.for_workers(threads));
        let rules = Rules::default();
        let rule_memory = RuleMemory {
            total: memory.total,
            share: memory.rule_bytes,
            reserved: memory.counters.reserved.clone(),
        };
        let intake = Intake::new(rules.clone(), metrics.clone(), rule_memory);
        let source = RuleSource::new(settings, &intake, &metrics)?;
        let backend = StoreBackend::new(settings, &memory.counters, &metrics)?;
        let leases = match backend {
            StoreBackend::Memory(_) => LeaseBook::of_memory(),
            StoreBackend::Redis { .. } => {
                LeaseBook::of_shared_store().with_losses(backend.losses())
            }
        };
        let parts = Self {
            settings,
            memory,
            metrics,
            rules,
            intake,
            backend,
            decision_log: DecisionLog::new(settings.process.decision_choice()),
            talkers: Arc::new(Talkers::new(threads)),
            leases,
        };
        Ok((parts, source))
    }
}
