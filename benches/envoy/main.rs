//! `cargo bench --bench envoy`: the end-to-end cost of rate limiting with a real Envoy, in one table.
//!
//! Each case has its own Envoy, rate limit service and, if the service counts there, Redis. All Envoys have one cheap
//! upstream behind them. The cases take turns, so that other programs on the machine affect all of them alike, and
//! the table shows medians. Envoy waits for an answer for its default time, 20 ms, and then lets the request pass.
//! Such requests were not limited, so the table counts them.

#![expect(
    unreachable_pub,
    clippy::print_stdout,
    reason = "a program without an outside, which prints a table"
)]

use std::{num::NonZeroUsize, path::PathBuf, thread, time::Duration};

use anyhow::ensure;
use clap::Parser;

mod busy;
mod callers;
mod cases;
#[path = "../wire/figures.rs"]
mod figures;
mod foreign;
mod front;
#[expect(dead_code, reason = "most of it is for the tests")]
#[path = "../../tests/it/support/http.rs"]
mod http;
#[path = "../wire/latency.rs"]
mod latency;
#[expect(dead_code, reason = "some of it is for the other benchmark")]
#[path = "../wire/processes.rs"]
mod processes;
mod run;
mod table;
mod upstream;

/// Longest time until a process is ready, and until a request is answered.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures the end-to-end cost of rate limiting with a real Envoy.
#[derive(Debug, Parser)]
#[command(name = "envoy")]
struct Options {
    /// Measure the cases whose names contain one of these texts, instead of the usual ones
    #[arg(value_name = "TEXT")]
    filter: Vec<String>,

    /// Measure the case of exactly this name; may be repeated
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,

    /// Print only the names of all cases
    #[arg(long)]
    list: bool,

    /// Turns of each case
    #[arg(long, default_value = "3")]
    turns: NonZeroUsize,

    /// Seconds of each turn
    #[arg(long, default_value = "3", value_parser = positive)]
    secs: f64,

    /// Connections to Envoy, 1 to 1000 [default: 64, or 256 with --rate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: Option<u16>,

    /// Send so many requests a second at fixed times, independent of the answers, and measure latency from those
    /// times; without it each connection sends again as soon as it has its answer
    #[arg(long, value_name = "REQUESTS", value_parser = positive)]
    rate: Option<f64>,

    /// Distinct values of the limited header
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,

    /// Keep so many other processes busy during the run, at equal priority
    #[arg(long, value_name = "N", default_value_t = 0)]
    busy: usize,

    /// The tollgate program [default: the one that cargo built along with the benchmark]
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,

    /// The Envoy program [default: target/tools/bin/envoy, from `make tools`]
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,

    /// Also measure the service that this shell command starts.
    ///
    /// It is configured by environment variables, those of envoyproxy/ratelimit. GRPC_HOST and GRPC_PORT are its gRPC
    /// address; HOST, PORT, DEBUG_HOST and DEBUG_PORT are for its HTTP servers. REDIS_URL is the host:port of an
    /// empty Redis, with REDIS_SOCKET_TYPE=tcp and BACKEND_TYPE=redis. Its rules are a file in the folder
    /// $RUNTIME_ROOT/$RUNTIME_SUBDIRECTORY/$RUNTIME_APPDIRECTORY, with RUNTIME_WATCH_ROOT=false. USE_STATSD=false and
    /// LOG_LEVEL=warn are set too. The command may override any of them, and may use them as arguments: --foreign
    /// 'my-service --listen $GRPC_HOST:$GRPC_PORT'.
    #[arg(long, value_name = "COMMAND")]
    foreign: Option<String>,

    /// The name of that service in the table
    #[arg(
        long,
        value_name = "NAME",
        default_value = "foreign",
        requires = "foreign"
    )]
    foreign_name: String,

    /// Give that service both periods on one descriptor, as `rate_limits`, instead of one period on each of two
    /// descriptors
    #[arg(long, requires = "foreign")]
    foreign_one_descriptor: bool,

    /// Keep a core busy until standard input ends; the program starts itself this way
    #[arg(long, hide = true)]
    spin: bool,

    /// Cargo passes this flag.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn load(&self) -> callers::Load {
        let default = if self.rate.is_some() { 256 } else { 64 };
        callers::Load {
            connections: self.connections.unwrap_or(default).into(),
            rate: self.rate,
            keys: self.keys,
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.001..=1e6).contains(&value) => Ok(value),
        _ => Err("not a number between 0.001 and 1000000".to_owned()),
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if options.spin {
        busy::spin();
        return Ok(());
    }
    if options.list {
        for case in cases::all(&options) {
            println!("{}", case.name);
        }
        return Ok(());
    }
    let mut contest = run::Contest::new(&options)?;
    let busy = busy::Busy::start(options.busy)?;
    for turn in 0..options.turns.get() {
        contest.round(turn, Duration::from_secs_f64(options.secs));
    }
    drop(busy);
    let rows = contest.rows();
    println!("{}\n", conditions(&options));
    table::print(&rows);
    let failed = rows.iter().filter(|row| row.medians.is_err()).count();
    ensure!(
        failed == 0,
        "{failed} of {} cases could not be measured",
        rows.len()
    );
    Ok(())
}

/// The conditions of the run, in one sentence.
fn conditions(options: &Options) -> String {
    let load = options.load();
    let pace = load.rate.map_or_else(
        || "each asks again when it is answered".to_owned(),
        |rate| format!("{rate} requests a second at fixed times"),
    );
    let build = if cfg!(debug_assertions) {
        "; a debug build of the callers and the upstream"
    } else {
        ""
    };
    format!(
        "{} cores, {} busy processes; {} connections, {pace}; {} keys; {} turns of {} s{build}",
        thread::available_parallelism().map_or(1, NonZeroUsize::get),
        options.busy,
        load.connections,
        load.keys,
        options.turns,
        options.secs,
    )
}
