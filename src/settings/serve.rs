//! The settings of `serve`: its parts, and those about rules, answers, and the time in which Redis does not answer.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;

use crate::{
    config::{self, source::Source},
    control::reload::OnEmptyReload,
    core::limit::OnStoreLoss,
    service::grpc::wire::LimitFields,
    settings::{
        listen::{Listen, TlsSettings},
        memory::MemorySettings,
        process::Process,
        redis::{Redis, RedisPerSecond},
        resolved::ResolvedSetting,
        shapes::{ArgShape as _, named},
        stats::Stats,
        values::{file_path, header_name, number, share},
        xds::Xds,
    },
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
    pub stats: Stats,

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

/// The reference's folder of rules. Every file in it counts, whatever its name.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Rules where envoyproxy/ratelimit keeps them")]
pub(crate) struct RuntimeSettings {
    /// First part of the folder's path; without --config-dir, this flag or the next makes tollgate find rule files as
    /// envoyproxy/ratelimit does [default: /srv/runtime_data/current]
    #[arg(long, env = "RUNTIME_ROOT", value_parser = file_path, value_name = "DIR")]
    pub runtime_root: Option<PathBuf>,

    /// Middle part of the folder's path
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", value_parser = file_path, value_name = "DIR")]
    pub runtime_subdirectory: Option<PathBuf>,

    /// Last part of the folder's path
    #[arg(long, env = "RUNTIME_APPDIRECTORY", text = ("DIR", "config"), value_parser = file_path)]
    pub runtime_app_directory: PathBuf,

    /// Ignore names that begin with a dot
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", boolean = false)]
    pub runtime_ignore_dot_files: bool,

    /// Treat the last part as a prefix of file names in the middle folder, with dots in place of slashes
    #[arg(long, env = "RUNTIME_WATCH_ROOT", boolean = true)]
    pub runtime_watch_root: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "While Redis does not answer")]
pub(crate) struct StoreLoss {
    /// Answer for rules without on_store_loss: `error` leaves it to Envoy's failure_mode_deny, `allow` fails open,
    /// `deny` fails closed, `local` counts this replica's share of each limit in memory
    #[arg(long, env = "TOLLGATE_ON_STORE_LOSS", value_parser = named::<OnStoreLoss>(), choice = ("ANSWER", "error"))]
    pub on_store_loss: OnStoreLoss,

    #[command(flatten)]
    pub replicas: ReplicaSettings,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "While Redis does not answer")]
pub(crate) struct ReplicaSettings {
    /// How many replicas share the limits, for counting locally; 0 counts those that are asked for a rule's
    /// domain, through counters in this Redis that each updates every ten seconds
    #[arg(long, env = "TOLLGATE_REPLICAS", text = ("N", "0"), value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub replicas: u32,
}

impl ReplicaSettings {
    /// The configured number of replicas; `None` if it is detected.
    pub(crate) fn fixed(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.replicas)
    }
}

/// How requests are answered, whatever their rules say.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Decisions")]
pub(crate) struct Decisions {
    /// Count and report as usual, but answer OK to every request
    #[arg(long, env = "SHADOW_MODE", boolean = false)]
    pub shadow_mode: bool,

    /// Refuse only if every limited descriptor of a request is over its limit
    #[arg(long, env = "QUOTA_MODE", boolean = false)]
    pub quota_mode: bool,

    /// If a request exceeds some of its limits, count it only against those
    #[arg(long, env = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", boolean = false)]
    pub stop_when_over: bool,

    /// Add three headers to responses: limit, remaining and seconds until reset
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED", boolean = false)]
    pub response_headers: bool,

    /// Name of the header with the limit
    #[arg(long, env = "LIMIT_LIMIT_HEADER", text = ("NAME", "RateLimit-Limit"), value_parser = header_name)]
    pub limit_header: String,

    /// Name of the header with the remaining hits
    #[arg(long, env = "LIMIT_REMAINING_HEADER", text = ("NAME", "RateLimit-Remaining"), value_parser = header_name)]
    pub remaining_header: String,

    /// Name of the header with the seconds until reset
    #[arg(long, env = "LIMIT_RESET_HEADER", text = ("NAME", "RateLimit-Reset"), value_parser = header_name)]
    pub reset_header: String,

    /// Add RateLimit-Policy and RateLimit of the IETF's draft (revision 11) to responses: off, binding (the limit that
    /// the three headers describe) or all (at most 16 limits of a request)
    #[arg(long, env = "TOLLGATE_RATELIMIT_FIELDS", value_parser = named::<LimitFields>(), choice = ("WHICH", "off"))]
    pub ratelimit_fields: LimitFields,

    /// Add a Retry-After header to refused requests: the seconds until they would pass
    #[arg(long, env = "TOLLGATE_RETRY_AFTER", boolean = false)]
    pub retry_after: bool,

    /// Return the request and the metadata of the matched rules as dynamic metadata
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA", boolean = false)]
    pub dynamic_metadata: bool,

    /// Share of a limit above which hits count as near it: above 0, and at most 1
    #[arg(long, env = "NEAR_LIMIT_RATIO", text = ("RATIO", "0.8"), value_parser = share)]
    pub near_limit_ratio: f32,
}
