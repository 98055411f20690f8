//! Settings of answers: modes for all rules, and response headers.

use clap::Args;

use super::shapes::{ArgShape as _, named};
use super::values::{header_name, share};
use crate::service::grpc::wire::LimitFields;

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
