//! Bounds on memory: those of counters, connections and rules are parts of what the process may take.

use clap::Args;

use crate::{
    settings::{shapes::ArgShape as _, values::number},
    store::memory::CounterBounds,
};

/// Bounds on memory.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemorySettings {
    /// Most counters in memory. Beyond it, new values of a rule share one counter, so that they are refused early
    #[arg(long, env = "TOLLGATE_MAX_COUNTERS", text = ("N", "1000000"), value_parser = number::<usize>(1..))]
    pub max_counters: usize,

    /// Most bytes of counters in memory. A sliding log takes up to 32 bytes for each hit [default: 192 MiB, but at most
    /// a third of the memory limit of the container or control group]
    #[arg(long, env = "TOLLGATE_MAX_COUNTER_BYTES", value_parser = number::<usize>(1 << 20..), value_name = "N")]
    pub max_counter_bytes: Option<usize>,

    /// Most gRPC connections, unless the limit of open files allows fewer. A new one takes the place of one that has
    /// had no call, or of the one without a call for the longest [default: 10000, but at most as many as fit in an
    /// eighth of the memory limit]
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS", value_parser = number::<usize>(1..=1_000_000), value_name = "N")]
    pub max_connections: Option<usize>,
}

/// The part of all memory that counters take at most by default.
const COUNTERS: usize = 3;

/// The part that connections take at most by default.
const CONNECTIONS: usize = 8;

/// Memory for a gRPC connection with a call; without TLS it is 24 kB.
const CONNECTION_BYTES: usize = 33_000;

/// The part that a load of rules may always take.
const RULES: usize = 12;

/// The bounds if memory is not scarce, and the fewest connections.
const MAX_CONNECTIONS: usize = 10_000;
const LEAST_CONNECTIONS: usize = 32;

/// The bounds that the memory of the process allows.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBounds {
    pub(crate) counters: CounterBounds,
    /// Most gRPC connections.
    pub(crate) connections: usize,
    /// Bytes that a load of rules may always take.
    pub(crate) rule_bytes: usize,
}

impl MemorySettings {
    /// The bounds for a process that may take `limit` bytes.
    pub(crate) fn bounds(&self, limit: usize) -> MemoryBounds {
        let connections =
            (limit / CONNECTIONS / CONNECTION_BYTES).clamp(LEAST_CONNECTIONS, MAX_CONNECTIONS);
        let counters = CounterBounds::DEFAULT_BYTES.min(limit / COUNTERS);
        MemoryBounds {
            counters: CounterBounds {
                counters: self.max_counters,
                bytes: self.max_counter_bytes.unwrap_or(counters),
            },
            connections: self.max_connections.unwrap_or(connections),
            rule_bytes: limit / RULES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::serve::Settings;

    #[test]
    fn the_bounds_are_parts_of_the_limit_and_what_is_set() {
        let Settings { mut memory, .. } = Settings::from_environment();
        let of = |memory: &MemorySettings, limit| {
            let bounds = memory.bounds(limit);
            (bounds.counters.fixed_windows(), bounds.connections)
        };
        // As docs/run/sizing.md has it.
        assert_eq!(of(&memory, 256 << 20), (626_349, 1_016));
        assert_eq!(of(&memory, 512 << 20), (1_000_000, 2_033));
        assert_eq!(of(&memory, usize::MAX), (1_000_000, 10_000));
        assert_eq!(of(&memory, 0).1, LEAST_CONNECTIONS);
        memory.max_counter_bytes = Some(1 << 20);
        memory.max_connections = Some(7);
        assert_eq!(of(&memory, 0), (7_340, 7));
    }
}
