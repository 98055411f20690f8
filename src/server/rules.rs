//! Loads the rules from the source that the settings name, and follows their changes.

use super::error::ServerError;

use std::{pin::Pin, sync::Arc};

use crate::{
    config::{fault::Fault, rule_defaults::Options, source::Source},
    control::{
        reload::{Intake, Reloader, log_errors},
        xds,
    },
    core::limit::OnStoreLoss,
    observe::metrics::Metrics,
    settings::serve::Settings,
};

/// The source of the rules.
pub(super) enum RuleSource {
    Files(Reloader),
    ControlPlane(Box<xds::Client>),
}

impl RuleSource {
    /// Loads rule files at once. A failure is fatal unless the settings allow a start without rules.
    pub(super) fn new(
        settings: &Settings,
        intake: &Intake,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ServerError> {
        let options = Options {
            merge_domains: settings.merge_domains,
            strict_matching: settings.strict_matching,
            key_format: settings.redis.key_format,
            on_store_loss: settings.loss.on_store_loss,
            lacks_replicas: settings.lacks_replicas(),
            lacks_redis: settings.redis.address().is_none(),
        };
        if options.lacks_replicas && options.on_store_loss == OnStoreLoss::Local {
            tracing::warn!("--on-store-loss: {}", Fault::UnknownReplicas);
        }
        if let Some(xds) = settings.xds.options() {
            let client = xds::Client::new(xds, options, intake.clone(), metrics.clone())?;
            let server = client.server();
            if settings.start_without_rules {
                tracing::info!(
                    "the rules come from {server}; calls get UNAVAILABLE until the first push"
                );
            } else {
                tracing::info!(
                    "the rules come from {server}; gRPC is not served until the first push"
                );
            }
            return Ok(Self::ControlPlane(Box::new(client)));
        }
        let mut reloader = Reloader::new(
            settings.source(),
            options,
            settings.empty_reload,
            intake.clone(),
        );
        match reloader.load() {
            Ok(()) => {}
            Err(problems) if settings.start_without_rules => {
                log_errors(&problems);
                tracing::warn!(
                    "starting without rules; calls get UNAVAILABLE until some are loaded"
                );
            }
            Err(problems) => {
                let source = settings.source();
                let setting = match &source {
                    Source::Paths(_) => "--config-dir, TOLLGATE_CONFIG_DIR",
                    Source::Runtime(_) => "--runtime-root, RUNTIME_ROOT",
                };
                return Err(ServerError::Rules {
                    source_name: format!("{source} (see {setting})"),
                    problems,
                });
            }
        }
        Ok(Self::Files(reloader))
    }

    /// Starts to watch the source. The returned task applies every change from now on.
    pub(super) fn watch(self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self {
            Self::Files(reloader) => {
                let watch = reloader.watch();
                Box::pin(async { match watch.run().await {} })
            }
            Self::ControlPlane(client) => Box::pin(async { match client.run().await {} }),
        }
    }
}
