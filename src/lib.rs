//! tollgate, a rate-limit sidecar for Envoy: how many requests may pass, decided in memory or in
//! Redis.
//!
//! ```text
//! RateLimitRequest ──grpc/wire──▶ Request ──matcher──▶ rules ──plan──▶ counters ──store──▶ counts
//!                                    RateLimitResponse ◀──grpc/wire── Decision ◀──decision── counts
//! ```
//!
//! The folders are the floors: each imports from those above it in this list and from itself, which
//! `tests/tidy.rs` holds. `ARCHITECTURE.md` describes them, and lists what is never found on them.

// 0: foundation
/// Helps for every floor that know nothing of rate limits, and do no I/O.
pub mod foundation {
    pub mod backoff;
    pub mod causes;
    pub mod generations;
    pub mod histogram;
    pub mod lock;
    pub mod log_throttle;
    pub mod metric_name;
    pub mod object_pool;
    pub mod random;
    pub mod sample;
    pub mod text;
}

// 1: core
/// From a request to its decision, all but the counting: values in, values out.
pub mod core {
    pub mod algorithm;
    pub mod calendar;
    pub mod charging;
    pub mod counter;
    pub mod decision;
    pub mod limit;
    pub mod matcher;
    pub mod metadata;
    mod metric_key;
    pub mod plan;
    pub mod request;
    pub mod window;
}

// 2: edge
/// Connections to other servers.
pub mod net {
    pub mod connect;
    pub mod dial;
    pub mod endpoint;
    pub mod pem;
    pub mod tls;
}

/// Rules: from files to a matcher, or every reason why not.
pub mod config {
    mod algorithm;
    mod check;
    mod compile;
    pub mod fault;
    mod fields;
    mod file;
    pub mod files;
    mod free_form;
    mod keys;
    mod marks;
    pub mod message;
    mod mirror;
    pub(crate) mod node;
    mod one_pass;
    pub mod options;
    pub(crate) mod parse;
    mod path;
    mod pieces;
    pub mod position;
    mod reader;
    mod scalar;
    mod short_form;
    pub mod source;
    #[cfg(test)]
    mod tests;
    mod yaml;
}

/// Where counters live: the `Store` trait, its implementations, and stores around stores.
pub mod store {
    pub mod any;
    pub mod contract;
    pub mod loss;
    pub mod memory;
    pub mod over_limit_cache;
    pub mod per_second;
    /// Counters in Redis.
    pub mod redis {
        pub mod address;
        mod batcher;
        pub mod batchers;
        mod breaker;
        mod clock;
        mod cluster;
        mod connection;
        mod detector;
        pub mod failure;
        mod late_reply;
        pub mod node;
        pub mod options;
        mod packed;
        mod pending;
        mod permits;
        mod pipeline;
        mod pool;
        mod probe;
        mod queue;
        mod redirect;
        pub mod running;
        mod sentinel;
        pub mod servers;
        mod slot;
        mod slot_map;
        pub mod stats;
        mod step;
        pub mod store;
        pub mod topology;
        mod waiting;
        mod watchdog;
    }
    pub mod replicas;
    mod split;
}

// 3: observe
/// Numbers and spans about tollgate itself.
pub mod observe {
    pub mod metrics;
    pub mod traces;
}

// 4: service
/// Answers calls.
pub mod service {
    pub mod admin;
    pub mod budget;
    pub mod grpc;
    pub mod limiter;
}

// 5: control
/// Takes new rules into use while the process serves.
pub mod control {
    pub mod changes;
    pub mod reload;
    pub mod xds;
}

// 6: program
/// Flags and environment variables, as types.
pub mod settings {
    pub mod bounds;
    pub mod command_line;
    pub mod decisions;
    pub mod listen;
    pub mod loss;
    pub mod process;
    pub mod redis;
    pub mod redis_address;
    pub mod redis_per_second;
    pub mod redis_tls;
    pub mod reference;
    pub mod runtime;
    pub mod serve;
    mod shapes;
    pub mod stats;
    pub mod tls;
    pub mod traces;
    pub mod values;
    pub mod xds;
}

/// Starts everything, owns every task, drains.
pub mod server {
    pub mod authority;
    mod backend;
    pub mod bench;
    mod connection;
    mod cpu_quota;
    pub mod error;
    mod file_limit;
    mod health;
    mod http;
    mod http_ports;
    pub mod log;
    mod parts;
    mod poll_timer;
    mod ports;
    mod replicas;
    mod rules;
    pub mod run;
    mod runtime;
    mod services;
    mod signals;
    mod spans;
    mod statistics;
    mod store_tasks;
    pub mod tls;
    mod worker;
    mod workers;
}

/// The other commands of the program.
pub mod cli {
    pub mod ask;
    pub mod lint_envoy;
}
