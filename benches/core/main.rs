//! `cargo bench --bench core`: the cost of each room of a decision, in instructions and allocations.
//!
//! callgrind counts instructions, so a busy machine gives the numbers of an idle one; without valgrind the unit is
//! nanoseconds. Rows are rule sets, from 10 rules to 100,000, found by exact value, by bare key and by wildcard (of
//! which a level has 2,000 at most): a cost that grows from row to row grows with the rules.
//!
//! `cargo bench --bench core -- --wildcards`: the search of a wildcard in long values, in instructions and
//! microseconds.

#![expect(
    clippy::print_stdout,
    unreachable_pub,
    reason = "a program without an outside, which prints a table"
)]

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

mod rooms;
mod wildcards;

use rooms::{Kind, ROOMS, Rooms};
use wildcards::{LENGTHS, SHAPES, Search, room_find};

/// How often each room is entered during a measurement.
const ENTERED: u32 = 200;

/// How often it is entered before that, until tables and buffers have their final sizes.
const WARMED: u32 = 20;

const COUNTS: [usize; 3] = [10, 1_000, 100_000];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, kind, count] = &arguments[..]
        && flag == "--enter"
    {
        let kind = Kind::ALL.into_iter().find(|known| known.name() == kind);
        let rooms = Rooms::new(kind.context("a kind of rules")?, count.parse()?)?;
        for room in ROOMS {
            for _ in 0..ENTERED {
                (room.enter)(&rooms);
            }
        }
        return Ok(());
    }
    if let [_, flag, of @ ..] = &arguments[..]
        && flag == "--find"
    {
        let search = Search::of(of)?;
        for _ in 0..FOUND {
            room_find(&search);
        }
        return Ok(());
    }
    if arguments.iter().any(|argument| argument == "--wildcards") {
        return wildcards();
    }
    let has_valgrind = Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let unit = if has_valgrind {
        "instructions"
    } else {
        "nanoseconds (there is no valgrind)"
    };
    println!("{unit} / allocations, each time that a room is entered\n");
    print!("{:20}", "rules");
    for room in ROOMS {
        print!(" {:>14}", room.name);
    }
    println!();
    for kind in Kind::ALL {
        for count in COUNTS.map(|count| kind.at_most(count)) {
            let rooms = Rooms::new(kind, count)?;
            let costs = if has_valgrind {
                instructions(kind, count)?
            } else {
                ROOMS.map(|room| nanoseconds(&rooms, room.enter))
            };
            print!("{:20}", format!("{count} {}", kind.name()));
            for (room, cost) in ROOMS.iter().zip(costs) {
                let allocations = allocations(&rooms, room.enter);
                print!(" {:>14}", format!("{cost:.0} / {allocations:.1}"));
            }
            println!();
        }
    }
    Ok(())
}

fn allocations(rooms: &Rooms, enter: fn(&Rooms)) -> f64 {
    for _ in 0..WARMED {
        enter(rooms);
    }
    let counted = allocation_counter::measure(|| {
        for _ in 0..ENTERED {
            enter(rooms);
        }
    });
    counted.count_total as f64 / f64::from(ENTERED)
}

/// The fastest of several runs.
fn nanoseconds(rooms: &Rooms, enter: fn(&Rooms)) -> f64 {
    let run = |_| {
        let began = Instant::now();
        for _ in 0..ENTERED {
            enter(rooms);
        }
        began.elapsed().as_secs_f64() * 1e9 / f64::from(ENTERED)
    };
    (0..20).map(run).fold(f64::INFINITY, f64::min)
}

/// How often a wildcard is searched during a measurement.
const FOUND: u32 = 5;

/// Prints the cost of a search by shape, number of rules and length of the value. Needs valgrind.
fn wildcards() -> anyhow::Result<()> {
    println!("instructions / microseconds of a search, by the bytes of the value\n");
    print!("{:20}", "wildcards");
    for length in LENGTHS {
        print!(" {length:>20}");
    }
    println!();
    for shape in SHAPES {
        for count in wildcards::COUNTS {
            print!("{:20}", format!("{count} {shape}"));
            for length in LENGTHS {
                let search = Search::new(shape, count, length)?;
                let runs = (0..20).map(|_| {
                    let began = Instant::now();
                    room_find(&search);
                    began.elapsed().as_secs_f64() * 1e6
                });
                let micros = runs.fold(f64::INFINITY, f64::min);
                let texts = [shape, &count.to_string(), &length.to_string()].map(str::to_owned);
                let costs = callgrind("--find", &texts)?;
                let own = costs.iter().find(|(name, _)| name.contains("room_find"));
                let (_, (calls, instructions)) = own.context("room_find is not there")?;
                let each = *instructions as f64 / *calls as f64;
                print!(" {:>20}", format!("{each:.0} / {micros:.1}"));
            }
            println!();
        }
    }
    Ok(())
}

/// The costs of this program's functions with these arguments, under callgrind.
fn callgrind(flag: &str, texts: &[String]) -> anyhow::Result<HashMap<String, (u64, u64)>> {
    let folder = TempDir::new()?;
    let profile = folder.path().join("profile");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .arg(flag)
        .args(texts)
        .status()?;
    ensure!(status.success(), "valgrind ended with {status}");
    inclusive(&profile)
}

/// Runs this program again under callgrind.
fn instructions(kind: Kind, count: usize) -> anyhow::Result<[f64; ROOMS.len()]> {
    let texts = [kind.name().to_owned(), count.to_string()];
    let costs = callgrind("--enter", &texts)?;
    let mut each = [0.0; ROOMS.len()];
    for (room, cost) in ROOMS.iter().zip(&mut each) {
        let suffix = format!("room_{}", room.name);
        // A room may have closures, which carry its name.
        let own = costs.iter().filter(|(name, _)| name.contains(&suffix));
        let own = own.max_by_key(|(_, (_, instructions))| *instructions);
        let (_, (calls, instructions)) = own.with_context(|| format!("{suffix} is not there"))?;
        *cost = *instructions as f64 / *calls as f64;
    }
    Ok(each)
}

/// The number of calls of each function, and their cost including callees. The format is in valgrind's manual,
/// "Callgrind Format Specification".
fn inclusive(profile: &Path) -> anyhow::Result<HashMap<String, (u64, u64)>> {
    let text = fs::read_to_string(profile)?;
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut costs: HashMap<String, (u64, u64)> = HashMap::new();
    let mut called = "";
    let mut calls = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=").or(line.strip_prefix("cfn=")) {
            // "(7) name" at the first occurrence, "(7)" after that.
            let (id, name) = name.split_once(' ').unwrap_or((name, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            if line.starts_with('c') {
                called = names.get(id).copied().unwrap_or_default();
            }
        } else if let Some(count) = line.strip_prefix("calls=") {
            let count = count.split(' ').next().unwrap_or_default();
            calls = Some(count.parse::<u64>()?);
        } else if let Some(calls) = calls.take() {
            let cost = line.rsplit(' ').next().unwrap_or_default();
            let total = costs.entry(called.to_owned()).or_default();
            total.0 += calls;
            total.1 += cost.parse::<u64>()?;
        }
    }
    Ok(costs)
}
