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
mod foundation {
    pub(crate) mod ascii_json;
    pub(crate) mod backoff;
    pub(crate) mod build;
    pub(crate) mod causes;
    pub(crate) mod generations;
    pub(crate) mod header_text;
    pub(crate) mod histogram;
    pub(crate) mod lock;
    pub(crate) mod log_throttle;
    pub(crate) mod metric_name;
    pub(crate) mod named;
    pub(crate) mod printable;
    pub(crate) mod random;
    pub(crate) mod sample;
    pub(crate) mod text;
}

// 1: core
/// From a request to its decision, all but the counting: values in, values out.
mod core {
    pub(crate) mod algorithm;
    pub(crate) mod calendar;
    pub(crate) mod charging;
    pub(crate) mod counter;
    pub(crate) mod decision;
    pub(crate) mod kind;
    pub(crate) mod lease;
    pub(crate) mod limit;
    pub(crate) mod matcher;
    pub(crate) mod metadata;
    mod metric_key;
    pub(crate) mod plan;
    pub(crate) mod refusal;
    pub(crate) mod request;
    pub(crate) mod window;
}

// 2: edge
/// Connections to other servers, and TLS in both directions.
mod net {
    pub(crate) mod connect;
    pub(crate) mod dial;
    pub(crate) mod endpoint;
    pub(crate) mod pem;
    pub(crate) mod tls;
}

/// Rules: from files to a matcher, or every reason why not.
mod config {
    mod algorithm;
    mod check;
    mod compile;
    pub(crate) mod fault;
    pub(crate) mod file;
    pub(crate) mod files;
    mod hints;
    pub(crate) mod keys;
    pub(crate) mod manifest;
    pub(crate) mod message;
    mod mirror;
    mod no_effect;
    pub(crate) mod node;
    pub(crate) mod parse;
    mod pieces;
    pub(crate) mod position;
    pub(crate) mod problems;
    mod reader;
    mod refusal;
    pub(crate) mod rule_defaults;
    mod short_form;
    pub(crate) mod source;
    #[cfg(test)]
    mod tests;
    pub(crate) mod yaml;
}

/// Where counters live: the `Store` trait, its implementations, and stores around stores.
mod store {
    pub(crate) mod any;
    pub(crate) mod contract;
    pub(crate) mod known;
    pub(crate) mod loss;
    pub(crate) mod memory;
    pub(crate) mod per_second;
    /// Counters in Redis.
    pub(crate) mod redis {
        pub(crate) mod clock;
        pub(crate) mod connection;
        pub(crate) mod failure;
        pub(crate) mod node;
        pub(crate) mod options;
        mod pool;
        pub(crate) mod probe;
        pub(crate) mod stats;
        pub(crate) mod store;
        pub(crate) mod wait;
        /// The loop of a worker and a node, the commands of a round trip, and their replies.
        pub(crate) mod batch {
            pub(crate) mod batcher;
            pub(crate) mod batchers;
            pub(crate) mod packed;
            pub(crate) mod pipeline;
            pub(crate) mod queue;
            pub(crate) mod redirect;
            pub(crate) mod script_ban;
            pub(crate) mod step;
        }
        /// Which nodes there are, and which keys they have.
        pub(crate) mod topology {
            pub(crate) mod address;
            pub(crate) mod servers;
            pub(crate) mod slot_map;
            pub(crate) mod watcher;
        }
    }
    pub(crate) mod replicas;
    pub(crate) mod returns;
    pub(crate) mod slices;
    mod split;
}

// 3: observe
/// Numbers and spans about tollgate itself.
mod observe {
    pub(crate) mod decision_log;
    pub(crate) mod log_lines;
    pub(crate) mod metrics;
    pub(crate) mod talkers;
    pub(crate) mod traces;
}

// 4: service
/// Answers calls.
mod service {
    pub(crate) mod admin;
    pub(crate) mod answered_leases;
    pub(crate) mod explain;
    pub(crate) mod grpc;
    pub(crate) mod held;
    pub(crate) mod leases;
    pub(crate) mod limiter;
}

// 5: control
/// Takes new rules into use while the process serves.
mod control {
    pub(crate) mod changes;
    pub(crate) mod reload;
    pub(crate) mod xds;
}

// 6: program
/// Flags and environment variables, as types.
mod settings {
    pub(crate) mod command_line;
    pub(crate) mod environment;
    pub(crate) mod listen;
    pub(crate) mod memory;
    pub(crate) mod process;
    pub(crate) mod redis;
    pub(crate) mod reference;
    pub(crate) mod resolved;
    pub(crate) mod serve;
    mod shapes;
    pub(crate) mod stats;
    pub(crate) mod traces;
    pub(crate) mod values;
    pub(crate) mod xds;
}

/// Starts everything, owns every task, drains.
mod server {
    mod accept;
    mod announce;
    pub(crate) mod authority;
    mod backend;
    mod connection;
    pub(crate) mod error;
    mod health;
    mod http;
    mod limits;
    pub(crate) mod log;
    mod parts;
    mod ports;
    mod rules;
    pub(crate) mod run;
    mod service_manager;
    mod spans;
    mod statistics;
    mod tasks;
    pub(crate) mod tls;
    mod workers;
}

/// The other commands of the program.
mod cli {
    mod ask;
    mod check;
    pub(crate) mod command;
    mod counters;
    mod debug_port;
    mod explain;
    mod healthcheck;
    mod lint_envoy;
    mod print;
    mod report;
}

// The program, the tests and the benchmarks use these names. Everything else is `pub(crate)`, which the lint
// `unreachable_pub` holds.

pub use cli::command::run_command;
pub use config::{
    fault::Problem,
    files::{Files as RuleFiles, Loaded},
    message::{Push, TYPE_URL, proto as rls_conf},
    rule_defaults::Options as RuleOptions,
    source::Source as RuleSource,
};
pub use core::{
    counter::{
        Batch, Charge, CounterState, CounterStates, Identity, IncrementSpec, Joined, KeyFormat,
        Operation,
    },
    decision::{Code as DecisionCode, Decision, Status as DecisionStatus, decide, decide_into},
    kind::Algorithm,
    lease::slice::{Slice, SlicePolicy},
    limit::{Allows, Limit, Modes, NearRatio, Rule},
    matcher::Matcher,
    plan::Plan,
    request::{Entry, Hits, Request},
    window::{Period, SteadyTime, Timestamp, Unit},
};
pub use foundation::sample::{Sample, SampleValue};
pub use net::tls::client::ClientTls;
pub use observe::{
    metrics::{
        Metrics,
        mapper::Mapper,
        prometheus::{MetricNames, Renderer},
    },
    traces::Tracer,
};
pub use server::authority::rewrite;
pub use service::{
    grpc::{RequestClock, SHOULD_RATE_LIMIT, Service, fast_path, now, proto, wire},
    leases::LeaseBook,
    limiter::{Basis, Limiter, RuleSet, Rules},
};
pub use settings::{
    command_line::Cli,
    reference::{Treatment, VARIABLES},
    values::Hidden,
};
pub use store::{
    contract::{Deadline, Store},
    known::KnownTables,
    memory::MemoryStore,
    redis::{
        options::{Options as RedisOptions, TimeSource},
        store::RedisStore,
        topology::{
            address::{Address, Secret},
            servers::Servers,
            slot_map::slot_owners,
            watcher::TopologyWatcher,
        },
    },
    returns::Returns,
};
