//! The flags of `tollgate size`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, builder::PossibleValuesParser};

use crate::{core::counter::CounterKind, settings::values::number};

#[derive(Debug, Args)]
#[command(
    after_help = "The costs were measured on one small machine: docs/run/sizing.md lists them. Yours differs, so take \
                  the ratios first."
)]
pub(crate) struct Size {
    /// Decisions per second of all replicas together, at the busiest time
    #[arg(long, value_parser = number::<u32>(1..), value_name = "N")]
    pub rps: u32,

    /// How many different values, such as users or addresses, are counted at a time
    #[arg(long, value_parser = number::<u32>(1..), value_name = "N")]
    pub keys: u32,

    /// Limits per descriptor
    #[arg(long, default_value_t = 2, value_parser = number::<u32>(1..), value_name = "N")]
    pub limits: u32,

    /// Where to count
    #[arg(long, default_value = "redis", value_enum, value_name = "STORE")]
    pub store: SizeStore,

    /// Algorithm of the limits
    #[arg(
        long,
        default_value = "fixed_window",
        value_parser = PossibleValuesParser::new(Size::algorithms()),
        value_name = "NAME"
    )]
    pub algorithm: String,

    /// Fewest replicas [default: 1 in memory, 2 with Redis]
    #[arg(long, value_parser = number::<u32>(1..), value_name = "N")]
    pub replicas: Option<u32>,

    /// Cores per replica
    #[arg(long, default_value_t = 2, value_parser = number::<u32>(1..), value_name = "N")]
    pub cores: u32,

    /// Connections per replica: one for each worker thread of each Envoy
    #[arg(long, default_value_t = 32, value_parser = number::<u32>(1..), value_name = "N")]
    pub connections: u32,

    /// Simultaneous calls per replica [default: computed from the rate and the duration of a call]
    #[arg(long, value_parser = number::<u32>(1..), value_name = "N")]
    pub together: Option<u32>,

    /// Memory of a Redis, in MB
    #[arg(long, default_value_t = 1000, value_parser = number::<u32>(1..), value_name = "MB")]
    pub redis_memory: u32,

    /// Costs of your machine, in a file that `cargo bench --bench wire -- --costs FILE` writes
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Size {
    /// The algorithms by their names in rules, where `first_hit` is a value of `window`.
    pub(crate) fn algorithms() -> Vec<&'static str> {
        let kinds = CounterKind::all();
        kinds.map(|kind| kind.facts().report_name).collect()
    }
}

/// Where counters are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SizeStore {
    Memory,
    Redis,
    RedisCluster,
}
