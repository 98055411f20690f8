//! Bounds on memory: a budget for the process, and its shares for everything that grows with clients and rules.

use std::sync::Arc;

use clap::Args;

use crate::{
    foundation::printable::Megabytes,
    settings::{listen::Bounds, shapes::ArgShape as _, values::number},
    store::{memory::CounterBounds, slices},
};

/// Bounds on memory.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemorySettings {
    /// Memory budget of the process in bytes, from which bounds that are not set are derived [default: 80 % of the
    /// memory limit of the container or control group, or else the sum of the bounds' own defaults]
    #[arg(long, env = "TOLLGATE_MAX_MEMORY_BYTES", value_parser = number::<usize>(32 << 20..), value_name = "N")]
    pub max_memory_bytes: Option<usize>,

    /// Most counters in memory. Beyond it, new values of a rule share one counter, so that they are refused early
    #[arg(long, env = "TOLLGATE_MAX_COUNTERS", text = ("N", "1000000"), value_parser = number::<usize>(1..))]
    pub max_counters: usize,

    /// Most bytes of counters in memory. A sliding log takes up to 32 bytes for each hit [default: 192 MiB, or the
    /// share of --max-memory-bytes: six tenths or more]
    #[arg(long, env = "TOLLGATE_MAX_COUNTER_BYTES", value_parser = number::<usize>(1 << 20..), value_name = "N")]
    pub max_counter_bytes: Option<usize>,
}

/// Memory of the process without clients and counters, with its statistics at their bounds. It takes at most half of
/// the budget.
const BASE_BYTES: usize = 24 << 20;

/// Memory for replies of Redis, and for the keys that are known to expire by themselves.
const REPLY_BYTES: usize = 8 << 20;

/// Memory for a gRPC connection with a call.
const CONNECTION_BYTES: usize = 24_000;
const TLS_CONNECTION_BYTES: usize = 33_000;

/// Memory for a connection of an HTTP port, without the reply that it waits for.
const HTTP_CONNECTION_BYTES: usize = 8_000;

/// Most HTTP ports.
const HTTP_PORTS: usize = 3;

/// The bounds if memory is not scarce, and the fewest connections.
const MAX_HELD_BYTES: usize = 32 << 20;
const MAX_CONNECTIONS: usize = 10_000;
const MAX_RULE_BYTES: usize = 64 << 20;
const LEAST_CONNECTIONS: usize = 32;
const MAX_HTTP_CONNECTIONS: usize = 1_000;
const MIN_HTTP_CONNECTIONS: usize = 16;

/// Memory for one purpose: the bound that is set, or a share of what the set bounds leave.
#[derive(Clone, Copy, Debug)]
struct Share {
    name: &'static str,
    /// Its part of the rest, relative to the other shares.
    weight: usize,
    /// The most bytes that it gets by default; `least` is the minimum that it works with.
    most: usize,
    least: usize,
    set: Option<usize>,
}

impl Share {
    fn bytes(self) -> usize {
        self.set.unwrap_or(self.most)
    }
}

/// The memory of the process, divided by purpose.
#[derive(Clone, Debug)]
pub(crate) struct MemoryShares {
    /// All memory in bytes; `None` if nothing limits it.
    pub(crate) total: Option<usize>,
    pub(crate) counters: CounterBounds,
    /// Most bytes that clients can make the process hold.
    pub(crate) held_bytes: usize,
    /// Most gRPC connections.
    pub(crate) connections: usize,
    /// Most connections of each HTTP port.
    pub(crate) http_connections: usize,
    /// Bytes for the rules in use and a load of new ones. They can exceed this while other shares are not used up.
    pub(crate) rule_bytes: usize,
}

/// Facts that the division depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryFacts {
    /// The memory limit of the control group, in bytes.
    pub(crate) group_limit: Option<u64>,
    pub(crate) has_tls: bool,
    /// Bytes of the local cache, if counters are in Redis.
    pub(crate) redis_cache: Option<usize>,
}

/// The bounds that are set do not fit into the budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is not enough memory: {needs}; the budget is {total} ({origin}). Lower a bound, raise the limit, or set \
     --max-memory-bytes"
)]
pub(crate) struct MemoryError {
    needs: String,
    total: Megabytes,
    origin: String,
}

impl MemoryShares {
    /// Divides the memory that the set bounds leave.
    ///
    /// # Errors
    ///
    /// If the set bounds leave too little for everything else.
    pub(crate) fn new(
        memory: &MemorySettings,
        bounds: &Bounds,
        facts: MemoryFacts,
    ) -> Result<Self, MemoryError> {
        let connection = if facts.has_tls {
            TLS_CONNECTION_BYTES
        } else {
            CONNECTION_BYTES
        };
        let of_connections = |count: usize| count.saturating_mul(connection);
        let share = |name, weight, most, least, set| Share {
            name,
            weight,
            most,
            least,
            set,
        };
        let mut shares = [
            share(
                "--max-counter-bytes",
                6,
                CounterBounds::DEFAULT_BYTES,
                1 << 20,
                memory.max_counter_bytes,
            ),
            share(
                "--max-held-bytes",
                1,
                MAX_HELD_BYTES,
                1 << 20,
                bounds.max_held_bytes,
            ),
            share(
                "--max-connections",
                1,
                of_connections(MAX_CONNECTIONS),
                of_connections(LEAST_CONNECTIONS),
                bounds.max_connections.map(of_connections),
            ),
            share(
                "HTTP connections",
                1,
                HTTP_PORTS * MAX_HTTP_CONNECTIONS * HTTP_CONNECTION_BYTES,
                HTTP_PORTS * MIN_HTTP_CONNECTIONS * HTTP_CONNECTION_BYTES,
                None,
            ),
            share("rules", 1, MAX_RULE_BYTES, 1 << 20, None),
        ];
        let total = MemoryLimit::of(memory, facts);
        let base = total
            .as_ref()
            .map_or(BASE_BYTES, |limit| BASE_BYTES.min(limit.bytes / 2));
        let own = base
            + facts.redis_cache.map_or(0, |cache| {
                cache.saturating_add(REPLY_BYTES + slices::MAX_BYTES)
            });
        if let Some(limit) = &total
            && !divide(&mut shares, limit.bytes.saturating_sub(own))
        {
            return Err(limit.too_small(&shares, own));
        }
        let [counters, held, connections, http, rules] = shares.map(Share::bytes);
        Ok(Self {
            total: total.map(|limit| limit.bytes),
            counters: CounterBounds {
                counters: memory.max_counters,
                bytes: counters,
                reserved: Arc::default(),
            },
            held_bytes: held,
            connections: connections / connection,
            http_connections: http / HTTP_PORTS / HTTP_CONNECTION_BYTES,
            rule_bytes: rules,
        })
    }
}

/// Lowers the shares that are not set until all together fit into `room`. Returns whether each has at least its
/// minimum.
fn divide(shares: &mut [Share], room: usize) -> bool {
    let set = shares.iter().filter_map(|share| share.set);
    let set = set.fold(0, usize::saturating_add);
    let Some(mut rest) = room.checked_sub(set) else {
        return false;
    };
    let mut open: Vec<_> = shares
        .iter_mut()
        .filter(|share| share.set.is_none())
        .collect();
    loop {
        let weights: usize = open.iter().map(|share| share.weight).sum();
        // A share that needs less than its part leaves more for the others.
        let is_modest = |share: &&mut Share| share.most * weights <= rest * share.weight;
        let Some(at) = open.iter().position(is_modest) else {
            for share in &mut open {
                share.most = rest * share.weight / weights;
            }
            return open.iter().all(|share| share.most >= share.least);
        };
        rest -= open.swap_remove(at).most;
    }
}

/// The memory budget of the process, and where it comes from.
struct MemoryLimit {
    bytes: usize,
    origin: String,
}

impl MemoryLimit {
    fn of(memory: &MemorySettings, facts: MemoryFacts) -> Option<Self> {
        if let Some(bytes) = memory.max_memory_bytes {
            let origin = "--max-memory-bytes".to_owned();
            return Some(Self { bytes, origin });
        }
        let limit = usize::try_from(facts.group_limit?).ok()?;
        let origin = format!("80 % of the memory limit, {}", Megabytes(limit));
        Some(Self {
            bytes: limit / 5 * 4,
            origin,
        })
    }

    fn too_small(&self, shares: &[Share], own: usize) -> MemoryError {
        let set = shares
            .iter()
            .filter_map(|share| Some(format!("{} takes {}", share.name, Megabytes(share.set?))));
        let unset = shares.iter().filter(|share| share.set.is_none());
        let least = Megabytes(unset.fold(own, |sum, share| sum.saturating_add(share.least)));
        let rest = format!("everything else takes at least {least}");
        let needs: Vec<_> = set.chain([rest]).collect();
        MemoryError {
            needs: needs.join(", "),
            total: Megabytes(self.bytes),
            origin: self.origin.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::serve::Settings;

    const MIB: u64 = 1 << 20;

    /// The default settings.
    fn settings() -> (MemorySettings, Bounds) {
        let Settings { memory, bounds, .. } = Settings::from_environment();
        (memory, bounds)
    }

    fn in_group_of(limit: Option<u64>) -> MemoryFacts {
        MemoryFacts {
            group_limit: limit,
            ..MemoryFacts::default()
        }
    }

    /// All shares together, in bytes.
    fn sum(shares: &MemoryShares) -> usize {
        BASE_BYTES.min(shares.total.unwrap_or(usize::MAX) / 2)
            + shares.counters.bytes
            + shares.held_bytes
            + shares.connections * CONNECTION_BYTES
            + shares.http_connections * HTTP_CONNECTION_BYTES * HTTP_PORTS
            + shares.rule_bytes
    }

    #[test]
    fn shares_fit_in_four_fifths_of_the_limit_and_are_the_defaults_where_they_can_be() {
        let (memory, bounds) = settings();
        let shares = |limit| MemoryShares::new(&memory, &bounds, in_group_of(limit)).unwrap();
        let unbounded = shares(None);
        let defaults = [192 << 20, 32 << 20, 10_000, 1_000, 64 << 20];
        let of = |shares: &MemoryShares| {
            [
                shares.counters.bytes,
                shares.held_bytes,
                shares.connections,
                shares.http_connections,
                shares.rule_bytes,
            ]
        };
        assert_eq!((unbounded.total, of(&unbounded)), (None, defaults));
        assert_eq!(of(&shares(Some(1024 * MIB))), defaults);
        let mut before = [0; 5];
        for mib in (32..1024).step_by(7) {
            let shares = shares(Some(mib * MIB));
            let total = usize::try_from(mib * MIB).unwrap() / 5 * 4;
            assert_eq!(shares.total, Some(total));
            let used = sum(&shares);
            assert!(used <= total, "{mib} MiB: {used} of {total}");
            let is_whole = of(&shares) == defaults;
            assert!(
                is_whole || used > total - 100_000,
                "{mib} MiB: {used} of {total}"
            );
            let now = of(&shares);
            let grows = now.iter().zip(&before).all(|(now, before)| now >= before);
            assert!(grows, "{mib} MiB: {now:?} after {before:?}");
            before = now;
        }
        // As docs/run/sizing.md has it.
        let of_table = |limit| {
            let shares = shares(limit);
            let windows = shares.counters.fixed_windows();
            (windows, shares.connections, shares.http_connections)
        };
        assert_eq!(of_table(Some(256 * MIB)), (796_246, 789, 789));
        assert_eq!(of_table(Some(512 * MIB)), (1_000_000, 3_264, 1_000));
    }

    #[test]
    fn bounds_that_are_set_stay_and_the_others_share_the_rest() {
        let (mut memory, mut bounds) = settings();
        memory.max_counter_bytes = Some(64 << 20);
        bounds.max_connections = Some(2000);
        let shares = MemoryShares::new(&memory, &bounds, in_group_of(Some(256 * MIB))).unwrap();
        assert_eq!(
            (shares.counters.bytes, shares.connections),
            (64 << 20, 2000)
        );
        assert!(sum(&shares) <= shares.total.unwrap());
        // With TLS each connection takes more.
        let facts = MemoryFacts {
            has_tls: true,
            redis_cache: Some(8 << 20),
            ..in_group_of(Some(256 * MIB))
        };
        let with_tls = MemoryShares::new(&memory, &bounds, facts).unwrap();
        assert!(with_tls.held_bytes < shares.held_bytes);
        memory.max_memory_bytes = Some(1 << 30);
        let raised = MemoryShares::new(&memory, &bounds, in_group_of(Some(256 * MIB))).unwrap();
        assert_eq!(raised.total, Some(1 << 30));
    }

    #[test]
    fn bounds_that_cannot_fit_are_named_with_what_they_take() {
        let (mut memory, mut bounds) = settings();
        bounds.max_connections = Some(9000);
        let refused = |memory: &MemorySettings, bounds: &Bounds, mib| {
            let shares = MemoryShares::new(memory, bounds, in_group_of(Some(mib * MIB)));
            shares.unwrap_err().to_string()
        };
        assert_eq!(
            refused(&memory, &bounds, 256),
            "there is not enough memory: --max-connections takes 216 MB, everything else takes at least 29 MB; the budget \
             is 215 MB (80 % of the memory limit, 269 MB). Lower a bound, raise the limit, or set --max-memory-bytes"
        );
        assert!(
            refused(&memory, &settings().1, 16)
                .starts_with("there is not enough memory: everything else")
        );
        memory.max_counter_bytes = Some(usize::MAX);
        memory.max_memory_bytes = Some(1 << 30);
        assert!(refused(&memory, &bounds, 256).contains("(--max-memory-bytes)"));
    }
}
