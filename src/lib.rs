//! tollgate, a rate-limit sidecar for Envoy. It decides how many requests may pass, with counters in memory or in
//! Redis.
//!
//! ```text
//! RateLimitRequest ──grpc/wire──▶ Request ──matcher──▶ rules ──plan──▶ counters ──store──▶ counts ──decision──▶ Decision ──grpc/wire──▶ RateLimitResponse
//! ```
//!
//! `ARCHITECTURE.md` describes the floors of this crate and what must never appear on each.

// 0: vocabulary
pub mod calendar;
pub mod causes;
pub mod histogram;
pub mod lent;
pub mod limit;
pub mod metadata;
pub mod request;
pub mod text;
pub mod window;

// 1: core
pub mod counter;
pub mod decision;
pub mod matcher;
pub mod meter;
pub mod plan;
pub mod verdict;

// 2: adapters
pub mod changes;
pub mod config;
pub mod dial;
pub mod metrics;
pub mod pem;
pub mod silence;
pub mod store;
pub mod traces;

// 3: use case
pub mod limiter;

// 4: entry points
pub mod admin;
pub mod grpc;
pub mod held;
pub mod reload;
pub mod xds;

// 5: wiring
pub mod ask;
pub mod lint_envoy;
pub mod log;
pub mod server;
pub mod settings;
