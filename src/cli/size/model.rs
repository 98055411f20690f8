//! Computes processors, memory, Redis shards and network from a load and measured costs. Pure arithmetic.

use super::costs::Costs;
use crate::settings::command_line::SizeStore;

/// The highest share of a processor that a plan uses. Above it, waiting times grow quickly.
pub(crate) const MOST_USE: f64 = 0.6;

/// The demand on a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    pub decisions_per_second: f64,
    /// How many different values are counted at a time.
    pub values: f64,
    /// Limits per descriptor.
    pub limits: f64,
    /// As in the table: `fixed_window`, `first_hit`, …
    pub algorithm: &'a str,
    pub store: SizeStore,
    pub replica_cores: f64,
    pub least_replicas: f64,
    /// Connections per replica, from all Envoys.
    pub connections: f64,
    pub shard_bytes: f64,
    /// Simultaneous calls per replica, if the number is known.
    pub together: Option<f64>,
}

/// The plan for a service.
#[derive(Clone, Debug)]
pub(crate) struct SizePlan {
    pub replicas: f64,
    /// Simultaneous calls per replica.
    pub together: f64,
    /// Cores that all replicas together keep busy.
    pub busy_cores: f64,
    pub replica_bytes: f64,
    /// Shards of Redis; 0 if counters are in memory.
    pub shards: f64,
    /// Cores that all shards together keep busy.
    pub redis_busy: f64,
    pub redis_bytes: f64,
    /// Bits a second between the Envoys and all replicas.
    pub envoy_bits: f64,
    /// Bits a second between all replicas and Redis.
    pub redis_bits: f64,
    /// The parts, most used first. The first one is the bottleneck.
    pub uses: Vec<Use>,
}

/// A part, and the share of it that is used: 1 is all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub part: &'static str,
    pub share: f64,
}

impl SizePlan {
    /// The smallest plan for `load`.
    #[must_use]
    pub(crate) fn new(load: &Load<'_>, costs: &Costs) -> Self {
        let mut replicas = load.least_replicas.max(1.0);
        let mut shards = 1.0;
        // With more replicas, each has fewer simultaneous calls, so that a call costs more. Each round adds replicas or
        // is the last one.
        loop {
            let plan = Self::with(load, costs, replicas, shards);
            let wanted = match load.store {
                // Each replica counts for itself.
                SizeStore::Memory => replicas,
                _ => (plan.busy_cores / MOST_USE / load.replica_cores).ceil(),
            };
            let wanted_shards = match load.store {
                SizeStore::RedisCluster => {
                    let for_memory = plan.redis_bytes / MOST_USE / load.shard_bytes;
                    (plan.redis_busy / MOST_USE).max(for_memory).ceil()
                }
                _ => 1.0,
            };
            if wanted <= replicas && wanted_shards <= shards {
                return plan;
            }
            replicas = replicas.max(wanted);
            shards = shards.max(wanted_shards);
        }
    }

    fn with(load: &Load<'_>, costs: &Costs, replicas: f64, shards: f64) -> Self {
        let rate = load.decisions_per_second;
        let has_redis = load.store != SizeStore::Memory;
        let wait = costs.get(if has_redis {
            "redis.wait"
        } else {
            "memory.wait"
        });
        // Little's law: the number of running calls is their rate times their duration.
        let together = load
            .together
            .unwrap_or(rate / replicas * wait / 1e6)
            .max(1.0);
        let more = 1.0 + costs.get("limit.share") * (load.limits - 2.0).max(0.0);
        let at_shard = together / shards;
        let mut busy_cores = rate * costs.call("memory", together) * more / 1e6;
        let counters = load.values * load.limits;
        let mut replica_bytes = costs.get("process.start")
            + costs.get("process.bounds")
            + load.connections * costs.get("process.connection");
        let (mut redis_busy, mut redis_bytes, mut redis_bits) = (0.0, 0.0, 0.0);
        if has_redis {
            // A decision asks one shard, and shares its round trip with other decisions that ask this shard.
            let trips = costs.call("redis", at_shard) - costs.call("memory", at_shard);
            busy_cores += rate * trips.max(0.0) * more / 1e6;
            let script = match load.algorithm {
                "fixed_window" => 1.0,
                _ => costs.get("redis_server.script"),
            };
            let limits = (load.limits / 2.0).max(0.5);
            redis_busy = rate * costs.call("redis_server", at_shard) * limits * script / 1e6;
            redis_bytes = counters * costs.get(&format!("key.{}", load.algorithm));
            replica_bytes += counters.min(260_000.0) * costs.get("process.known_key");
            let bytes = costs.get("wire.command") + costs.get("wire.reply");
            redis_bits = rate * load.limits * bytes * 8.0;
        } else {
            replica_bytes += in_memory(load, costs);
        }
        let bytes = costs.get("wire.call") + costs.get("wire.answer");
        let mut plan = Self {
            replicas,
            together,
            busy_cores,
            replica_bytes,
            shards: if has_redis { shards } else { 0.0 },
            redis_busy,
            redis_bytes,
            envoy_bits: rate * bytes * 8.0,
            redis_bits,
            uses: Vec::new(),
        };
        plan.uses = plan.uses(load, costs);
        plan
    }

    fn uses(&self, load: &Load<'_>, costs: &Costs) -> Vec<Use> {
        let cores = self.replicas * load.replica_cores;
        let mut uses = vec![Use {
            part: "processors of tollgate",
            share: self.busy_cores / cores,
        }];
        if load.store == SizeStore::Memory {
            // Three quarters of the default of --max-counter-bytes are for counters.
            let bound = 0.75 * f64::from(192 << 20);
            uses.push(Use {
                part: "--max-counter-bytes",
                share: in_memory(load, costs) / bound,
            });
        } else {
            uses.push(Use {
                part: "threads of Redis",
                share: self.redis_busy / self.shards,
            });
            uses.push(Use {
                part: "memory of Redis",
                share: self.redis_bytes / (self.shards * load.shard_bytes),
            });
        }
        uses.sort_by(|one, other| other.share.total_cmp(&one.share));
        uses
    }
}

fn in_memory(load: &Load<'_>, costs: &Costs) -> f64 {
    let windows = match load.algorithm {
        // Two windows of a descriptor share a record.
        "fixed_window" => (load.limits / 2.0).ceil(),
        _ => load.limits,
    };
    load.values * windows * costs.get(&format!("counter.{}", load.algorithm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{core::kind::Algorithm, settings::command_line::Size};

    fn load(place: SizeStore) -> Load<'static> {
        Load {
            decisions_per_second: 100_000.0,
            values: 100_000.0,
            limits: 2.0,
            algorithm: "fixed_window",
            store: place,
            replica_cores: 2.0,
            least_replicas: 1.0,
            connections: 4.0,
            shard_bytes: 1e9,
            together: Some(64.0),
        }
    }

    #[track_caller]
    fn check_close(what: &str, computed: f64, measured: f64) {
        let ratio = computed / measured;
        assert!(
            (0.8..1.2).contains(&ratio),
            "{what}: {computed} for {measured}"
        );
    }

    /// Rows of the table in docs/run/sizing.md: four that costs were taken from, and four others.
    #[test]
    fn measured_installations_are_met_within_a_fifth() {
        let costs = Costs::measured();
        for (place, values, rate, together, cores, redis, resident) in [
            (SizeStore::Memory, 1e3, 340_328.0, 64.0, 5.0, 0.0, 16.0),
            (SizeStore::Memory, 1e5, 329_778.0, 64.0, 5.16, 0.0, 29.6),
            (SizeStore::Memory, 1e5, 113_468.0, 8.0, 11.74, 0.0, 29.4),
            (SizeStore::Memory, 1e3, 29_614.0, 1.0, 24.47, 0.0, 15.4),
            (SizeStore::Redis, 1e5, 167_156.0, 64.0, 6.84, 2.23, 20.4),
            (SizeStore::Redis, 1e5, 124_359.0, 32.0, 8.78, 2.94, 20.2),
            (SizeStore::Redis, 1e5, 52_982.0, 8.0, 19.84, 6.42, 19.7),
            (SizeStore::Redis, 1e3, 14_011.0, 1.0, 48.47, 16.41, 15.0),
        ] {
            let load = Load {
                decisions_per_second: rate,
                values,
                together: Some(together),
                ..load(place)
            };
            let plan = SizePlan::with(&load, &costs, 1.0, 1.0);
            check_close("cores", plan.busy_cores, rate * cores / 1e6);
            if place == SizeStore::Redis {
                check_close("Redis", plan.redis_busy, rate * redis / 1e6);
            }
            let used = plan.replica_bytes - costs.get("process.bounds");
            check_close("memory", used / 1e6, resident);
        }
    }

    #[test]
    fn a_plan_has_room_and_names_its_bottleneck() {
        let costs = Costs::measured();
        for place in [SizeStore::Redis, SizeStore::RedisCluster] {
            let plan = SizePlan::new(&load(place), &costs);
            assert!(
                plan.busy_cores <= plan.replicas * 2.0 * MOST_USE,
                "{plan:?}"
            );
            assert!(plan.uses.is_sorted_by(|one, next| one.share >= next.share));
        }
        let many = Load {
            decisions_per_second: 5e6,
            ..load(SizeStore::Redis)
        };
        let plan = SizePlan::new(&many, &costs);
        assert_eq!(plan.uses[0].part, "threads of Redis");
        assert!(plan.uses[0].share > 1.0, "one Redis is not enough");
        let plan = SizePlan::new(
            &Load {
                store: SizeStore::RedisCluster,
                ..many
            },
            &costs,
        );
        assert!(
            plan.uses.iter().all(|used| used.share <= MOST_USE),
            "{plan:?}"
        );
        assert!(plan.shards > 15.0, "smaller pipelines cost more: {plan:?}");
    }

    #[test]
    fn more_of_anything_never_needs_less() {
        let costs = Costs::measured();
        for place in [SizeStore::Memory, SizeStore::Redis, SizeStore::RedisCluster] {
            let base = load(place);
            let plan = SizePlan::new(&base, &costs);
            for more in [
                Load {
                    decisions_per_second: 300_000.0,
                    ..base
                },
                Load {
                    values: 1e7,
                    ..base
                },
                Load {
                    limits: 6.0,
                    ..base
                },
                Load {
                    algorithm: "sliding_log",
                    ..base
                },
                Load {
                    together: Some(2.0),
                    ..base
                },
            ] {
                let other = SizePlan::new(&more, &costs);
                assert!(other.busy_cores >= plan.busy_cores * 0.999, "{more:?}");
                assert!(other.redis_busy >= plan.redis_busy * 0.999, "{more:?}");
                assert!(other.redis_bytes >= plan.redis_bytes, "{more:?}");
                assert!(other.replicas >= plan.replicas && other.shards >= plan.shards);
            }
        }
    }

    #[test]
    fn every_algorithm_has_its_sizes() {
        let costs = Costs::measured();
        for algorithm in Algorithm::one_of_each(3) {
            let name = algorithm.name();
            assert!(
                Size::algorithms().contains(&name),
                "{name} is no value of the flag"
            );
        }
        for algorithm in Size::algorithms() {
            for place in [SizeStore::Memory, SizeStore::Redis] {
                let plan = SizePlan::new(
                    &Load {
                        algorithm,
                        ..load(place)
                    },
                    &costs,
                );
                assert!(plan.replica_bytes > 50e6, "{algorithm}");
            }
        }
    }
}
