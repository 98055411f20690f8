//! Measures the costs that `tollgate size` computes with, and how close its results are to four other measurements.

use std::{collections::HashMap, fs, path::Path, process::Command};

use anyhow::{Context as _, bail, ensure};
use tollgate::{Cost, Costs};

use crate::{
    Options,
    run::{Contest, Figures},
};

const ALONE: &str = "1 stream";

/// The ending of a cost, and the load that it is measured with.
const LOADS: [(&str, &str); 4] = [
    ("calls_1", ALONE),
    ("calls_4", "100,000 keys, 4 over 4"),
    ("calls_16", "100,000 keys, 16 over 4"),
    ("calls_64", "100,000 keys"),
];

/// Other numbers of calls at a time over 4 connections, which no cost is taken from: the store and the calls.
const SETUPS: [(&str, u32); 4] = [("memory", 8), ("memory", 32), ("redis", 8), ("redis", 32)];

/// Writes the table of this machine's costs to `path`, and prints the set-ups beside the computed figures.
pub fn write(options: &mut Options, path: &Path) -> anyhow::Result<()> {
    let row = |store: &str, load: &str| format!("{store}, {load}");
    let sources = ["memory", "redis"].map(|store| LOADS.map(|(_, load)| row(store, load)));
    options.case = sources.as_flattened().to_vec();
    let setup = |store, calls| row(store, &format!("100,000 keys, {calls} over 4"));
    options
        .case
        .extend(SETUPS.map(|(store, calls)| setup(store, calls)));
    let figures = measure(options)?;
    let get = |name: String| figures.get(&name).with_context(|| format!("no row {name}"));

    let mut costs = Costs::measured().all().to_vec();
    for store in ["memory", "redis"] {
        for (ending, load) in LOADS {
            let source = row(store, load);
            let measured = get(source.clone())?;
            let mut set = |name: String, value: Option<f64>| -> anyhow::Result<()> {
                let value = value.with_context(|| format!("{name} was not measured"))?;
                let rounded = (value * 100.0).round() / 100.0;
                let cost = costs.iter_mut().find(|cost| cost.name == name);
                let cost = cost.with_context(|| format!("the table has no {name}"))?;
                cost.value = rounded;
                cost.source = format!("wire, {source}");
                Ok(())
            };
            set(format!("{store}.{ending}"), measured.server_cpu)?;
            if store == "redis" {
                set(format!("redis_server.{ending}"), measured.redis_cpu)?;
            }
            if load == ALONE {
                set(format!("{store}.wait"), Some(measured.p50_micros))?;
            }
        }
    }
    let text: String = costs.iter().map(line).collect();
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{} has the costs of this machine\n", path.display());

    println!("cores that are busy, computed by `tollgate size` and measured:");
    println!(
        "{:<34} {:>9} {:>9} {:>6} {:>9} {:>9} {:>6}",
        "case", "tollgate", "measured", "of", "Redis", "measured", "of"
    );
    for (store, together) in SETUPS {
        let name = setup(store, together);
        let measured = get(name.clone())?;
        let rate = measured.decisions_per_sec;
        let plan = plan(path, rate, store, together)?;
        let number = |field: &str| plan[field].as_f64().context("the plan has such a number");
        let cores = |cpu: Option<f64>| cpu.map_or(0.0, |cpu| rate * cpu / 1e6);
        print!("{name:<34}");
        compare(number("busy_cores")?, cores(measured.server_cpu));
        if store == "redis" {
            compare(number("redis_busy_cores")?, cores(measured.redis_cpu));
        }
        println!();
    }
    Ok(())
}

/// A line of the table, as `tollgate size` reads it.
fn line(cost: &Cost) -> String {
    let Cost {
        name,
        value,
        unit,
        meaning,
        source,
    } = cost;
    format!("{name}\t{value}\t{unit}\t{meaning}\t{source}\n")
}

fn compare(computed: f64, measured: f64) {
    let of = computed / measured;
    print!(" {computed:>9.2} {measured:>9.2} {of:>6.2}");
}

fn measure(options: &Options) -> anyhow::Result<HashMap<String, Figures>> {
    let mut figures = HashMap::new();
    for row in Contest::new(options)?.run(options) {
        match row.medians {
            Ok(medians) => figures.insert(row.name, medians),
            Err(error) => bail!("{}: {error}", row.name),
        };
    }
    Ok(figures)
}

/// The plan of `tollgate size` for so many decisions a second.
fn plan(costs: &Path, rate: f64, store: &str, together: u32) -> anyhow::Result<serde_json::Value> {
    let run = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["size", "--json", "--keys=100000", "--limits=2"])
        .args([format!("--rps={rate:.0}"), format!("--store={store}")])
        .args([format!("--together={together}"), "--replicas=1".to_owned()])
        .arg("--costs")
        .arg(costs)
        .output()?;
    ensure!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    Ok(serde_json::from_slice(&run.stdout)?)
}
