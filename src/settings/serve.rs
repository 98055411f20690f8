//! The settings of `serve`.

use std::path::PathBuf;

use clap::Args;

use super::bounds::Bounds;
use super::decisions::Decisions;
use super::listen::Listen;
use super::loss::StoreLoss;
use super::memory::{MemoryError, MemoryFacts, MemorySettings, MemoryShares};
use super::process::Process;
use super::redis::Redis;
use super::redis_per_second::RedisPerSecond;
use super::resolved::ResolvedSetting;
use super::runtime::RuntimeSettings;
use super::shapes::{ArgShape as _, named};
use super::stats::Stats;
use super::tls::TlsSettings;
use super::traces::Traces;
use super::values::file_path;
use super::xds::Xds;
use crate::{
    config::{self, source::Source},
    control::reload::OnEmptyReload,
};

/// All settings of `serve`. Each flag has an environment variable, with envoyproxy/ratelimit's name where there is
/// one.
#[derive(Clone, Debug, Args)]
pub(crate) struct Settings {
    /// Folder of rule files (.yaml, .yml, .json, sub-folders included); watched for changes [default: config, or the
    /// folder that --runtime-root names]
    #[arg(long, env = "TOLLGATE_CONFIG_DIR", value_parser = file_path, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,

    /// Let several files name one domain; their descriptors are merged
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", boolean = false)]
    pub merge_domains: bool,

    /// Match keys and values separately; otherwise the entry (a, b) also matches the bare key a_b, as in
    /// envoyproxy/ratelimit
    #[arg(long, env = "TOLLGATE_STRICT_MATCHING", boolean = false)]
    pub strict_matching: bool,

    /// Start even if the first load of the rules fails or no control plane has pushed any; calls get UNAVAILABLE until
    /// a load succeeds
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", boolean = false)]
    pub start_without_rules: bool,

    /// Effect of a reload that leaves a domain without its rules: `keep` refuses it, and the last good rules stay;
    /// `allow` accepts it, so that nothing there is limited
    #[arg(long, env = "TOLLGATE_EMPTY_RELOAD", value_parser = named::<OnEmptyReload>(), choice = ("WHAT", "keep"))]
    pub empty_reload: OnEmptyReload,

    /// Report healthy only while the rules in use have at least one domain
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", boolean = false)]
    pub healthy_with_rules_only: bool,

    #[command(flatten)]
    pub runtime: RuntimeSettings,

    #[command(flatten)]
    pub xds: Xds,

    #[command(flatten)]
    pub listen: Listen,

    #[command(flatten)]
    pub tls: TlsSettings,

    #[command(flatten)]
    pub redis: Redis,

    #[command(flatten)]
    pub redis_per_second: RedisPerSecond,

    #[command(flatten)]
    pub memory: MemorySettings,

    #[command(flatten)]
    pub decisions: Decisions,

    #[command(flatten)]
    pub loss: StoreLoss,

    #[command(flatten)]
    pub bounds: Bounds,

    #[command(flatten)]
    pub stats: Stats,

    #[command(flatten)]
    pub traces: Traces,

    #[command(flatten)]
    pub process: Process,

    /// All settings as texts, and where each comes from.
    #[arg(skip)]
    pub resolved: Vec<ResolvedSetting>,

    /// The names of variables of ours that no setting reads.
    #[arg(skip)]
    pub unread_variables: Vec<String>,
}

impl Settings {
    /// Notes for the log on variables of the reference that are set but have no effect.
    pub(crate) fn reference_notes(&self) -> Vec<String> {
        super::reference::notes(std::env::vars_os(), self.xds.config_type)
    }

    /// Divides the memory of the process. `group_limit` is the memory limit of its control group.
    ///
    /// # Errors
    ///
    /// If the bounds that are set do not fit.
    pub(crate) fn memory_shares(
        &self,
        group_limit: Option<u64>,
    ) -> Result<MemoryShares, MemoryError> {
        let redis = self.redis.address();
        let facts = MemoryFacts {
            group_limit,
            has_tls: self.tls.grpc_tls && self.listen.grpc_socket().is_none(),
            redis_cache: redis.map(|_| self.redis.local_cache_bytes),
        };
        MemoryShares::new(&self.memory, &self.bounds, facts)
    }

    /// The names of the modes that are on and change the answers to all requests, or `none`.
    pub(crate) fn modes(&self) -> String {
        let modes = [
            (self.decisions.shadow_mode, "shadow-mode"),
            (self.decisions.quota_mode, "quota-mode"),
            (self.decisions.stop_when_over, "stop-when-over"),
            (self.strict_matching, "strict-matching"),
        ];
        let is_on = modes.into_iter().filter(|(is_on, _)| *is_on);
        let names: Vec<_> = is_on.map(|(_, name)| name).collect();
        if names.is_empty() {
            return "none".to_owned();
        }
        names.join(",")
    }

    /// Whether the number of replicas is unknown until it is read from Redis. With counters in memory, no rule needs
    /// the number.
    pub(crate) fn lacks_replicas(&self) -> bool {
        self.redis.address().is_some() && self.loss.replicas.fixed().is_none()
    }

    /// Where the rules are, if they come from files.
    pub(crate) fn source(&self) -> Source {
        let runtime = &self.runtime;
        let is_runtime = runtime.runtime_root.is_some() || runtime.runtime_subdirectory.is_some();
        match &self.config_dir {
            Some(folder) if !folder.as_os_str().is_empty() => Source::Paths(vec![folder.clone()]),
            _ if is_runtime => Source::Runtime(config::source::RuntimeFolder {
                root: runtime
                    .runtime_root
                    .clone()
                    .unwrap_or_else(|| "/srv/runtime_data/current".into()),
                subdirectory: runtime.runtime_subdirectory.clone().unwrap_or_default(),
                app_directory: runtime.runtime_app_directory.clone(),
                ignores_dot_files: runtime.runtime_ignore_dot_files,
                watches_root: runtime.runtime_watch_root,
            }),
            _ => Source::Paths(vec!["config".into()]),
        }
    }
}
