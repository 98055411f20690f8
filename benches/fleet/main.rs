//! A simulated fleet, from one sidecar to a thousand replicas on 30 shards of Redis: which part is used up first. And
//! a simulated counter of a limit with slices: whether it stays exact, and its commands to Redis.
//!
//! ```text
//! cargo bench --bench fleet -- [--seed N] [--decisions N] [--write docs/run/sizing.md|docs/leases.md]
//! ```
//!
//! The costs of a fleet are those of docs/run/sizing.md, and slices are those of the core; no server runs. Equal seeds give
//! equal tables.

#![expect(clippy::print_stdout, reason = "a program that prints figures")]

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;

mod fleet;
mod leases;
mod slices;

use fleet::{Outcome, Scene, simulate};
use slices::slices;

/// Above this share a plan has no room, as docs/run/sizing.md has it.
const FULL: f64 = 0.6;
/// Longest simulated time of a step without a failover, in microseconds.
const LONGEST: f64 = 4e6;
/// Connections that a Redis accepts by default.
const REDIS_CLIENTS: f64 = 10_000.0;

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// About as many decisions are simulated in each step.
    #[arg(long, default_value_t = 200_000)]
    decisions: u32,
    /// Write the tables into this page, each between its comments.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Cargo passes this flag to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let fleets = fleets(&arguments);
    let (slices, is_exact) = slices(arguments.seed);
    print!("{fleets}\n{slices}");
    let is_written = arguments
        .write
        .is_none_or(|page| write(&page, "fleet", &fleets) | write(&page, "leases", &slices));
    match is_exact && is_written {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn fleets(arguments: &Arguments) -> String {
    let mut table = String::from(
        "| step | decisions/s | p50, p99 µs | worker, % | shard, busiest, % | pipeline | used most |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (name, mut scene) in steps() {
        if scene.away == 0.0 {
            let wanted = f64::from(arguments.decisions) / scene.decisions_per_second;
            scene.duration = (wanted * 1e6).min(LONGEST);
        }
        let outcome = simulate(scene, arguments.seed);
        let _ = writeln!(table, "{}", row(name, &scene, &outcome));
    }
    table
}

/// From small to large, each with the thing that changes.
fn steps() -> Vec<(&'static str, Scene)> {
    let scene = |replicas, shards, decisions_per_second| Scene {
        replicas,
        shards,
        decisions_per_second,
        hot: 0.0,
        away: 0.0,
        new: 0.0,
        duration: LONGEST,
    };
    let large = scene(1_000, 30, 1e6);
    vec![
        ("1 sidecar in memory", scene(1, 0, 5e3)),
        ("1 sidecar, 1 Redis", scene(1, 1, 5e3)),
        ("3 replicas, 1 Redis", scene(3, 1, 3e4)),
        ("10 replicas, 1 Redis", scene(10, 1, 1e5)),
        ("30 replicas, 3 shards", scene(30, 3, 3e5)),
        ("100 replicas, 10 shards", scene(100, 10, 5e5)),
        ("100 replicas, 30 shards", scene(100, 30, 1e6)),
        ("1,000 sidecars, 30 shards", large),
        (
            "… a tenth of the load on one key",
            Scene { hot: 0.1, ..large },
        ),
        (
            "1,000 sidecars, a failover of 0.3 s",
            Scene {
                away: 300_000.0,
                duration: 600_000.0,
                ..large
            },
        ),
        ("… a tenth of them replaced", Scene { new: 0.1, ..large }),
        ("… all of them replaced", Scene { new: 1.0, ..large }),
    ]
}

fn row(name: &str, scene: &Scene, outcome: &Outcome) -> String {
    let quantile = |percent: usize| {
        let at = outcome.waits.len() * percent / 100;
        outcome.waits.get(at).copied().unwrap_or(0.0)
    };
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let without_store = outcome.without_store as f64 / outcome.waits.len().max(1) as f64;
    let lost = match outcome.without_store {
        0 => String::new(),
        _ => format!("; {:.2} % without Redis", without_store * 100.0),
    };
    // A worker has one connection to each shard, and a replica one more for its probe.
    let clients = 2.0 * scene.replicas as f64 / REDIS_CLIENTS;
    let mut parts = vec![("workers", outcome.busiest_worker)];
    if scene.shards > 0 {
        parts.push(("shard", outcome.busiest_shard));
        parts.push(("connections", clients));
    }
    parts.sort_by(|one, other| other.1.total_cmp(&one.1));
    let (part, share) = parts[0];
    let excess = if share > FULL { ", too much" } else { "" };
    let shard = match scene.shards {
        0 => "-".to_owned(),
        _ => format!(
            "{}, {}",
            percent(outcome.shard),
            percent(outcome.busiest_shard)
        ),
    };
    format!(
        "| {name} | {:.0} | {:.0}, {:.0} | {} | {shard} | {:.1} | {part}{excess}{lost} |",
        scene.decisions_per_second,
        quantile(50),
        quantile(99),
        percent(outcome.worker),
        outcome.pipeline,
    )
}

/// Writes a table between the comments of its name. Returns whether the page has them and was written.
fn write(page: &Path, name: &str, table: &str) -> bool {
    let [begin, end] = ["begin", "end"].map(|edge| format!("<!-- {name}: {edge} -->\n"));
    let Ok(text) = fs::read_to_string(page) else {
        return false;
    };
    let Some((before, rest)) = text.split_once(&begin) else {
        return false;
    };
    let Some((_, after)) = rest.split_once(&end) else {
        return false;
    };
    fs::write(page, format!("{before}{begin}{table}{end}{after}")).is_ok()
}
