//! `cargo bench --bench wire`: the cost of a decision over real sockets, in one table.
//!
//! Each case has its own server process, and its own Redis if it counts there. The cases take turns, so that other
//! load on the machine affects all of them, and the table shows medians. Processor time is the time that the
//! operating system charged to the process; it is more informative than decisions per second wherever the callers,
//! Redis and the server share cores. An unexpected answer ends its case with an error.

#![expect(
    unreachable_pub,
    clippy::print_stdout,
    reason = "a program without an outside, which prints a table"
)]

use std::{net::SocketAddr, path::PathBuf, thread};

use clap::Parser;

mod cases;
mod cores;
mod figures;
mod frames;
mod hot;
mod hpack;
mod latency;
mod load;
mod page;
mod processes;
mod rivals;
mod run;
mod settlements;
mod sizes;
mod table;
mod under_use;

/// As in tollgate itself, because this program also serves the floor and the rivals.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures the cost of a decision over real sockets.
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

    /// Print only the names of all cases
    #[arg(long)]
    list: bool,

    /// Print one JSON object for each row instead of the table
    #[arg(long)]
    json: bool,

    /// Seconds of each turn of a case
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,

    /// Turns of each case
    #[arg(long, default_value_t = 5)]
    repeats: usize,

    /// Threads of each server; 0 means one per core
    #[arg(long, default_value_t = 0)]
    workers: usize,

    /// Let the kernel choose cores, instead of binding each worker and its callers to one
    #[arg(long)]
    unbound: bool,

    /// Also measure memory and start-up
    #[arg(long)]
    sizes: bool,

    /// Only measure the answers of the debug port, and decisions beside them, while a client sends new values
    #[arg(long)]
    page: bool,

    /// Only count the commands to Redis for a refused key beside settlements of others
    #[arg(long)]
    settlements: bool,

    /// Only count the commands to Redis for one hot key of four processes, counted one by one and in slices
    #[arg(long)]
    hot: bool,

    /// Only count the hits that are admitted on four processes with slices, at demand 1.1 times the limit
    #[arg(long)]
    under_use: bool,

    /// Also measure the server at this address; it needs the rules that --rules prints
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<SocketAddr>,

    /// Process id of that server, for processor time and memory
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// Process id of its Redis, for processor time
    #[arg(long, value_name = "PID")]
    redis_pid: Option<u32>,

    /// Print only the rules that a foreign server needs
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

    /// Cargo passes this flag.
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
    if options.page {
        return page::print(&options);
    }
    if options.settlements {
        return settlements::print(&options);
    }
    if options.hot {
        return hot::print(&options);
    }
    if options.under_use {
        return under_use::print();
    }
    let rows = run::Contest::new(&options)?.run(&options);
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
