//! The servers and tools of the tests. Each picks its own ports and folders and ends with its owner.

use std::{
    io::Read as _,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

pub mod ads;
pub mod ask;
pub mod busy;
pub mod caches;
pub mod certificates;
pub mod chaos;
pub mod clients;
pub mod cluster;
pub mod demo;
pub mod envoy;
pub mod frames;
pub mod hoard;
pub mod http;
pub mod in_flight;
pub mod json;
pub mod model;
pub mod nginx;
pub mod nutcracker;
pub mod ports;
pub mod prometheus;
pub mod proxy;
pub mod ratelimit;
pub mod raw;
pub mod redis;
pub mod sentinel;
pub mod statsd;
pub mod steps;
pub mod storm;
pub mod tollgate;
pub mod unwritable_log;
pub mod wall_clock;

pub use ports::free_port;

/// How long a test waits before it gives up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An installed program. `make tools` installs it; a test without it fails.
pub fn tool(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("target/tools/bin").join(name);
    assert!(
        path.exists(),
        "{} is missing: run `make tools`",
        path.display()
    );
    path
}

/// A running program. Killed on drop, also when the test fails before it is used.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn();
        Self(child.expect("the program is there"))
    }

    /// Starts a program whose output nobody reads.
    #[track_caller]
    pub fn start_quietly(command: &mut Command) -> Self {
        Self::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.status().is_some()
    }

    /// Its exit status, once it has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }
}

/// Runs a program that ends by itself; otherwise the test fails. Its output must fit into a pipe.
#[track_caller]
pub fn finish(command: &mut Command) -> Output {
    let mut process = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut status = None;
    wait_until("the program has ended", || {
        status = process.0.try_wait().unwrap();
        status.is_some()
    });
    let mut output = Output {
        status: status.unwrap(),
        stdout: Vec::new(),
        stderr: Vec::new(),
    };
    let Process(child) = &mut process;
    let (stdout, stderr) = (child.stdout.as_mut(), child.stderr.as_mut());
    stdout.unwrap().read_to_end(&mut output.stdout).unwrap();
    stderr.unwrap().read_to_end(&mut output.stderr).unwrap();
    output
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The service counts in whole milliseconds, so two calls can be this much closer for it than they look.
pub const GRAIN_MILLIS: u64 = 1;

/// Pauses between two looks double: a condition that becomes true soon is seen soon, and one that takes seconds costs
/// other tests little processor time.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// Waits until `is_so` returns true.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so in time: {what}");
        std::thread::sleep(pause);
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

/// Waits until `is_so` returns true, without blocking other tasks.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not so in time: {what}");
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

/// Random numbers that depend only on their seed: splitmix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
