//! The variables of envoyproxy/ratelimit, and what each of them does in tollgate.

use std::ffi::OsString;

use super::xds::ConfigType;

/// How tollgate treats a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// A flag of `serve` reads this variable or, if it is about traces, `settings/traces.rs`.
    Honoured,
    /// It has no effect. The text gives the reason or the replacement.
    Instead(&'static str),
}

use Treatment::{Honoured, Instead};

/// All variables of the reference's settings, sorted by name.
pub const VARIABLES: [(&str, Treatment); 118] = [
    ("BACKEND_TYPE", Honoured),
    ("CACHE_KEY_PREFIX", Honoured),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", Honoured),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", Honoured),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", Honoured),
    ("CONFIG_GRPC_XDS_NODE_ID", Honoured),
    ("CONFIG_GRPC_XDS_NODE_METADATA", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_URL", Honoured),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", Honoured),
    ("CONFIG_TYPE", Honoured),
    ("DEBUG_HOST", Honoured),
    ("DEBUG_PORT", Honoured),
    ("DISABLE_STATS", Honoured),
    (
        "ENABLE_NEGATIVE_HITS",
        Instead("negative hits are always given back"),
    ),
    ("EXPIRATION_JITTER_MAX_SECONDS", Honoured),
    ("EXTRA_TAGS", Honoured),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", Honoured),
    ("GRPC_CLIENT_TLS_CACERT", Honoured),
    ("GRPC_CLIENT_TLS_SAN", Honoured),
    ("GRPC_HOST", Honoured),
    ("GRPC_MAX_CONNECTION_AGE", Honoured),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", Honoured),
    ("GRPC_PORT", Honoured),
    ("GRPC_SERVER_TLS_CERT", Honoured),
    ("GRPC_SERVER_TLS_KEY", Honoured),
    ("GRPC_SERVER_USE_TLS", Honoured),
    ("GRPC_UDS", Honoured),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Honoured),
    ("HOST", Honoured),
    ("LIMIT_LIMIT_HEADER", Honoured),
    ("LIMIT_REMAINING_HEADER", Honoured),
    ("LIMIT_RESET_HEADER", Honoured),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Honoured),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Honoured),
    ("LOG_FORMAT", Honoured),
    ("LOG_LEVEL", Honoured),
    (
        "MEMCACHE_HOST_PORT",
        Instead("there is no memcached store; use --redis-url"),
    ),
    (
        "MEMCACHE_MAX_IDLE_CONNS",
        Instead("there is no memcached store; use --redis-url"),
    ),
    (
        "MEMCACHE_SRV",
        Instead("there is no memcached store; use --redis-url"),
    ),
    (
        "MEMCACHE_SRV_REFRESH",
        Instead("there is no memcached store; use --redis-url"),
    ),
    (
        "MEMCACHE_TLS",
        Instead("there is no memcached store; use --redis-url"),
    ),
    (
        "MEMCACHE_TLS_CACERT",
        Instead("there is no memcached store; use --redis-url"),
    ),
    (
        "MEMCACHE_TLS_CLIENT_CERT",
        Instead("there is no memcached store; use --redis-url"),
    ),
    (
        "MEMCACHE_TLS_CLIENT_KEY",
        Instead("there is no memcached store; use --redis-url"),
    ),
    (
        "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
        Instead("there is no memcached store; use --redis-url"),
    ),
    ("MERGE_DOMAIN_CONFIG", Honoured),
    ("NEAR_LIMIT_RATIO", Honoured),
    ("PORT", Honoured),
    ("PROMETHEUS_ADDR", Honoured),
    ("PROMETHEUS_MAPPER_YAML", Honoured),
    ("PROMETHEUS_PATH", Honoured),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", Honoured),
    ("QUOTA_MODE", Honoured),
    ("REDIS_AUTH", Honoured),
    (
        "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
        Instead("a connection that a replica refused is always replaced"),
    ),
    (
        "REDIS_CLUSTER_PIPELINE_PARALLELISM",
        Instead("all nodes of a cluster are queried in parallel"),
    ),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", Honoured),
    ("REDIS_PERSECOND", Honoured),
    ("REDIS_PERSECOND_AUTH", Honoured),
    (
        "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
        Instead("all nodes of a cluster are queried in parallel"),
    ),
    (
        "REDIS_PERSECOND_PIPELINE_LIMIT",
        Instead("requests that arrive while a batch is under way form the next one"),
    ),
    (
        "REDIS_PERSECOND_PIPELINE_WINDOW",
        Instead("requests that arrive while a batch is under way form the next one"),
    ),
    (
        "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
        Instead("requests wait for the next batch, at most --redis-timeout"),
    ),
    (
        "REDIS_PERSECOND_POOL_SIZE",
        Instead("each worker has one connection to each server, which makes the largest batches"),
    ),
    ("REDIS_PERSECOND_SENTINEL_AUTH", Honoured),
    ("REDIS_PERSECOND_SOCKET_TYPE", Honoured),
    ("REDIS_PERSECOND_TIMEOUT", Honoured),
    ("REDIS_PERSECOND_TLS", Honoured),
    ("REDIS_PERSECOND_TYPE", Honoured),
    ("REDIS_PERSECOND_URL", Honoured),
    (
        "REDIS_PIPELINE_LIMIT",
        Instead("requests that arrive while a batch is under way form the next one"),
    ),
    (
        "REDIS_PIPELINE_WINDOW",
        Instead("requests that arrive while a batch is under way form the next one"),
    ),
    (
        "REDIS_POOL_ON_EMPTY_BEHAVIOR",
        Instead("requests wait for the next batch, at most --redis-timeout"),
    ),
    (
        "REDIS_POOL_SIZE",
        Instead("each worker has one connection to each server, which makes the largest batches"),
    ),
    ("REDIS_SENTINEL_AUTH", Honoured),
    ("REDIS_SOCKET_TYPE", Honoured),
    (
        "REDIS_STARTUP_INITIAL_INTERVAL",
        Instead("tollgate starts without waiting for Redis"),
    ),
    (
        "REDIS_STARTUP_MAX_ELAPSED_TIME",
        Instead("tollgate starts without waiting for Redis"),
    ),
    (
        "REDIS_STARTUP_MAX_INTERVAL",
        Instead("tollgate starts without waiting for Redis"),
    ),
    ("REDIS_TIMEOUT", Honoured),
    ("REDIS_TLS", Honoured),
    ("REDIS_TLS_CACERT", Honoured),
    ("REDIS_TLS_CLIENT_CERT", Honoured),
    ("REDIS_TLS_CLIENT_KEY", Honoured),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Honoured),
    ("REDIS_TYPE", Honoured),
    ("REDIS_URL", Honoured),
    ("RESPONSE_DYNAMIC_METADATA", Honoured),
    ("RUNTIME_APPDIRECTORY", Honoured),
    ("RUNTIME_IGNOREDOTFILES", Honoured),
    ("RUNTIME_ROOT", Honoured),
    ("RUNTIME_SUBDIRECTORY", Honoured),
    ("RUNTIME_WATCH_ROOT", Honoured),
    ("SHADOW_MODE", Honoured),
    (
        "SOFT_BREACH_HEADER_RATIO",
        Instead("no header says so; NEAR_LIMIT_RATIO sets when limits count as near"),
    ),
    ("STATSD_HOST", Honoured),
    ("STATSD_PORT", Honoured),
    ("STATS_FLUSH_INTERVAL", Honoured),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Honoured),
    ("TRACING_ENABLED", Honoured),
    ("TRACING_EXPORTER_PROTOCOL", Honoured),
    ("TRACING_SAMPLING_RATE", Honoured),
    ("TRACING_SERVICE_INSTANCE_ID", Honoured),
    ("TRACING_SERVICE_NAME", Honoured),
    ("TRACING_SERVICE_NAMESPACE", Honoured),
    (
        "USE_CALENDAR_MONTH_RATE_LIMIT",
        Instead("set `calendar: true` on the limits that follow a calendar"),
    ),
    ("USE_DOG_STATSD", Honoured),
    ("USE_DOG_STATSD_MOGRIFIERS", Honoured),
    ("USE_PROMETHEUS", Honoured),
    ("USE_STATSD", Honoured),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Honoured),
    ("XDS_CLIENT_BACKOFF_JITTER", Honoured),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Honoured),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", Honoured),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Honoured),
];

/// One line for each variable of `environment` that has no effect. This depends on where the rules come from.
pub(crate) fn notes(
    environment: impl Iterator<Item = (OsString, OsString)>,
    rules: ConfigType,
) -> Vec<String> {
    let mut notes: Vec<_> = environment
        .filter_map(|(name, _)| {
            let (name, treatment) = VARIABLES.iter().find(|(known, _)| name == *known)?;
            let why = match treatment {
                Honoured if rules == ConfigType::File && is_for_control_planes(name) => {
                    "it applies only with CONFIG_TYPE=GRPC_XDS_SOTW"
                }
                Honoured => return None,
                Instead(why) => why,
            };
            Some(format!("{name} has no effect: {why}"))
        })
        .collect();
    notes.sort();
    notes
}

fn is_for_control_planes(name: &str) -> bool {
    name.starts_with("CONFIG_GRPC_XDS_") || name.starts_with("XDS_CLIENT_")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::settings::command_line::Cli;

    fn flags() -> Vec<String> {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let names = serve.get_arguments().filter_map(clap::Arg::get_env);
        names
            .map(|name| name.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_variable_is_honoured_if_and_only_if_it_has_a_flag_or_is_about_traces() {
        let flags = flags();
        for (name, treatment) in VARIABLES {
            let is_read = name.starts_with("TRACING_") || flags.iter().any(|flag| flag == name);
            assert_eq!(is_read, treatment == Honoured, "{name}");
        }
    }

    #[test]
    fn every_other_flag_has_a_variable_of_our_own() {
        let is_known = |flag: &str| VARIABLES.iter().any(|(name, _)| *name == flag);
        for flag in flags() {
            // The reference's library reads this variable itself.
            let is_ours = flag.starts_with("TOLLGATE_") || flag == "STATSD_PROTOCOL";
            assert!(is_known(&flag) || is_ours, "{flag}");
        }
    }

    #[test]
    fn the_variables_stand_in_order_and_once() {
        assert!(VARIABLES.is_sorted_by(|(a, _), (b, _)| a < b));
    }

    #[track_caller]
    fn check(name: &str, rules: ConfigType, expected: usize) {
        let environment = [(name.into(), "1".into())].into_iter();
        assert_eq!(notes(environment, rules).len(), expected, "{name}");
    }

    #[test]
    fn what_has_no_effect_is_said() {
        for rules in [ConfigType::File, ConfigType::Xds] {
            check("GRPC_PORT", rules, 0);
            check("PATH", rules, 0);
            check("CONFIG_TYPE", rules, 0);
            check("REDIS_POOL_SIZE", rules, 1);
        }
        for name in ["CONFIG_GRPC_XDS_NODE_ID", "XDS_CLIENT_BACKOFF_JITTER"] {
            check(name, ConfigType::File, 1);
            check(name, ConfigType::Xds, 0);
        }
    }
}
