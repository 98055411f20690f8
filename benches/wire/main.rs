//! `cargo bench --bench wire`: what a decision costs, over real sockets, in one table.
//!
//! Each case has a server process of its own, and a Redis if it counts there. The cases take turns,
//! so that what else the machine does falls on all of them, and the table holds medians. Processor
//! time is what the operating system charged the process; it says more than decisions a second
//! wherever the callers, Redis and the server share cores. An answer that is not the expected one
//! ends the case with its error.

#![expect(
    unreachable_pub,
    clippy::print_stdout,
    reason = "a program without an outside, which prints a table"
)]

use std::{net::SocketAddr, path::PathBuf, thread, time::Duration};

use clap::Parser;

mod cases;
mod cores;
mod figures;
mod frames;
mod hpack;
mod latency;
mod load;
mod processes;
mod rivals;
mod run;
mod sizes;
mod table;

/// As in tollgate itself, for the floor and the rivals are served by this program.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What a decision costs, in one table.
#[derive(Debug, Parser)]
#[command(name = "wire")]
struct Options {
    /// Measure cases whose names contain one of these texts, instead of the usual ones
    #[arg(value_name = "TEXT")]
    filter: Vec<String>,

    /// Measure the case of exactly this name, and its floor; may be repeated
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,

    /// Measure all cases
    #[arg(long)]
    full: bool,

    /// Print the names of all cases and nothing else
    #[arg(long)]
    list: bool,

    /// Print one JSON object for each row instead of the table
    #[arg(long)]
    json: bool,

    /// How long each case is measured each time, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,

    /// How often each case has its turn
    #[arg(long, default_value_t = 5)]
    repeats: usize,

    /// Threads of each server; 0 means as many as there are cores
    #[arg(long, default_value_t = 0)]
    workers: usize,

    /// Let the kernel choose cores, instead of binding each worker and its callers to one
    #[arg(long)]
    unbound: bool,

    /// Also measure memory and start-up
    #[arg(long)]
    sizes: bool,

    /// Also measure the server at this address; it needs the rules that --rules prints
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<SocketAddr>,

    /// Its process, for processor time and memory
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// The process of its Redis, for processor time
    #[arg(long, value_name = "PID")]
    redis_pid: Option<u32>,

    /// Print the rules that a foreign server needs and nothing else
    #[arg(long)]
    rules: bool,

    /// Also measure this other tollgate program, in the rows of memory and Redis; may be repeated
    #[arg(long, value_name = "FILE")]
    other: Vec<PathBuf>,

    /// Serve as one of the rivals; the program starts itself this way
    #[arg(long, hide = true)]
    rival: Option<String>,

    #[arg(long, hide = true)]
    redis: Option<SocketAddr>,

    /// Cargo says so.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let mut options = Options::parse();
    if options.workers == 0 {
        options.workers = thread::available_parallelism().map_or(1, Into::into);
    }
    if let Some(name) = &options.rival {
        return rivals::serve(name, options.workers, options.redis);
    }
    if options.rules {
        print!("{}", cases::rules(cases::TWO_PERIODS));
        return Ok(());
    }
    if options.list {
        for case in cases::all() {
            println!("{}", case.name);
        }
        return Ok(());
    }
    let mut contest = run::Contest::new(&options)?;
    for round in 0..options.repeats {
        contest.round(round, Duration::from_secs_f64(options.seconds));
    }
    let rows = contest.rows();
    if options.json {
        table::print_json(&rows);
    } else {
        table::print(&rows);
    }
    if options.sizes {
        sizes::print(&options)?;
    }
    Ok(())
}
