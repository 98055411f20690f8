//! `tollgate size`: computes the processors, memory, Redis shards and network that a load needs, from measured costs.

pub(crate) mod costs;
pub(crate) mod model;

use std::{fmt::Write as _, fs, path::Path, process::ExitCode};

use anyhow::Context as _;
use serde_json::json;

use self::{
    costs::Costs,
    model::{Load, MOST_USE, SizePlan, Use},
};
use super::print::print;
use crate::settings::command_line::{Size, SizeStore};

/// Prints the plan for a load.
///
/// # Errors
///
/// If the file of costs cannot be used, or the plan cannot be printed.
pub(super) fn print_size(size: &Size) -> anyhow::Result<ExitCode> {
    let costs = match &size.costs {
        Some(path) => costs_of(path).with_context(|| format!("{}", path.display()))?,
        None => Costs::measured(),
    };
    let load = load(size);
    let plan = SizePlan::new(&load, &costs);
    print(&if size.json {
        json(&plan)
    } else {
        text(size, &load, &plan)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn costs_of(path: &Path) -> anyhow::Result<Costs> {
    Ok(Costs::parse(&fs::read_to_string(path)?)?)
}

fn load(size: &Size) -> Load<'_> {
    // When one replica restarts, another should serve. With counters in memory, though, a second one would count for
    // itself.
    let fewest = if size.store == SizeStore::Memory {
        1
    } else {
        2
    };
    Load {
        decisions_per_second: size.rps.into(),
        values: size.keys.into(),
        limits: size.limits.into(),
        algorithm: &size.algorithm,
        store: size.store,
        replica_cores: size.cores.into(),
        least_replicas: size.replicas.unwrap_or(fewest).into(),
        connections: size.connections.into(),
        shard_bytes: f64::from(size.redis_memory) * 1e6,
        together: size.together.map(f64::from),
    }
}

/// Lines for people. Writing to a string cannot fail.
fn text(size: &Size, load: &Load<'_>, plan: &SizePlan) -> String {
    let cores = load.replica_cores;
    let mut text = format!(
        "{} decisions a second, {} values, {} limits each ({})\n",
        size.rps, size.keys, size.limits, size.algorithm
    );
    let _ = writeln!(
        text,
        "replicas    {} with {cores} cores: {:.2} cores are busy, with {:.0} calls at a time in each replica",
        plan.replicas, plan.busy_cores, plan.together
    );
    let _ = writeln!(
        text,
        "memory      {:.0} MB for a replica at most",
        plan.replica_bytes / 1e6
    );
    if load.store != SizeStore::Memory {
        let _ = writeln!(
            text,
            "Redis       {}: {:.2} cores are busy, {:.0} MB of counters",
            shards(plan.shards),
            plan.redis_busy,
            plan.redis_bytes / 1e6
        );
    }
    let _ = writeln!(
        text,
        "network     {:.0} Mbit/s with the Envoys, {:.0} Mbit/s with Redis",
        plan.envoy_bits / 1e6,
        plan.redis_bits / 1e6
    );
    if let Some(Use { part, share }) = plan.uses.first() {
        let _ = writeln!(
            text,
            "bottleneck  {part}: {:.0} % in use, of at most {:.0} % in a plan",
            share * 100.0,
            MOST_USE * 100.0
        );
    }
    for note in notes(load, plan) {
        let _ = writeln!(text, "note        {note}");
    }
    text.trim_end().to_owned()
}

fn shards(count: f64) -> String {
    match count {
        1.0 => "one".to_owned(),
        count => format!("{count} shards"),
    }
}

/// Notes on what the numbers do not say.
fn notes(load: &Load<'_>, plan: &SizePlan) -> Vec<String> {
    let mut notes = Vec::new();
    let is_full = |part: &str| {
        let mut uses = plan.uses.iter();
        uses.any(|used| used.part == part && used.share > MOST_USE)
    };
    if load.store == SizeStore::Memory && plan.replicas > 1.0 {
        notes.push("each replica counts for itself, so that together they admit more".to_owned());
    }
    if load.store == SizeStore::Redis && (is_full("threads of Redis") || is_full("memory of Redis"))
    {
        notes.push("one Redis is not enough: --store redis-cluster".to_owned());
    }
    if is_full("processors of tollgate") {
        notes.push(
            "there are not enough processors: raise --cores, or use --store redis".to_owned(),
        );
    }
    if is_full("--max-counter-bytes") {
        notes.push("raise --max-counters and --max-counter-bytes, or count in Redis".to_owned());
    }
    if load.algorithm == "sliding_log" {
        notes.push(
            "a log grows with its hits: 32 bytes in memory, 20 in Redis, for each".to_owned(),
        );
    }
    notes
}

fn json(plan: &SizePlan) -> String {
    let uses: Vec<_> = plan
        .uses
        .iter()
        .map(|used| json!({ "part": used.part, "share": used.share }))
        .collect();
    json!({
        "replicas": plan.replicas,
        "calls_at_a_time": plan.together,
        "busy_cores": plan.busy_cores,
        "replica_bytes": plan.replica_bytes,
        "redis_shards": plan.shards,
        "redis_busy_cores": plan.redis_busy,
        "redis_bytes": plan.redis_bytes,
        "envoy_bits_per_second": plan.envoy_bits,
        "redis_bits_per_second": plan.redis_bits,
        "bottleneck": plan.uses.first().map(|used| used.part),
        "uses": uses,
    })
    .to_string()
}
