//! Random faults for a long time: memory stays flat, no connection is left behind, nobody panics,
//! and counts are exact at the end.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use crate::it::support::{
    ask::connect,
    chaos::{Plan, all_work, off_by, start},
    proxy::{Fault, Proxy},
    redis::Redis,
    storm::Storm,
    tollgate::Tollgate,
};

/// How long one fault lasts at most, and the peace after it.
const LONGEST: u64 = 2_000;
const PEACE: Duration = Duration::from_millis(500);

/// Between two questions of one stream.
const PERIOD: Duration = Duration::from_millis(20);

/// What the servers answer while Redis is gone.
const ANSWERS: [&str; 2] = ["error", "local"];

/// What all of them together may have grown by in the end. Allocators keep some of what they once had.
const MAX_GROWTH: u64 = 48 << 20;

/// Runs for `time`.
pub async fn soak(time: Duration, plan: &Plan) {
    let mut redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let servers = ANSWERS.map(|answer| {
        let mut plan = plan.clone();
        plan.args
            .extend(["--on-store-loss", answer].map(str::to_owned));
        start(&plan, &proxy.url(), &[])
    });
    let addresses = servers.each_ref().map(|server| server.grpc);
    let mut clients = Vec::new();
    for address in addresses {
        clients.push(connect(address).await);
    }
    let all_count = async || {
        for client in &clients {
            all_work(client).await;
        }
    };
    all_count().await;
    // One round of load, so that what is needed under load is there.
    let storm = || Storm::paced(&addresses, &["a", "b", "c"], PERIOD);
    let warm_up = storm();
    tokio::time::sleep(PEACE).await;
    warm_up.end().await;
    let size = || {
        let bytes = servers.iter().map(Tollgate::resident_bytes);
        let files = servers.iter().map(open_files);
        (bytes.sum::<u64>(), files.sum::<usize>())
    };
    let (bytes, files) = size();
    let mut chance = Chance(RandomState::new().hash_one(0) | 1);
    let until = Instant::now() + time;
    let (mut answers, mut errors, mut degraded, mut faults) = (0, 0, 0, 0);
    let mut largest = bytes;
    let mut longest = Duration::ZERO;
    while Instant::now() < until {
        let storm = storm();
        tokio::time::sleep(PEACE).await;
        one_fault(&mut chance, &mut redis, &proxy).await;
        faults += 1;
        tokio::time::sleep(PEACE).await;
        let seen = storm.end().await;
        answers += seen.0.len();
        errors += seen.error_count();
        degraded += seen.degraded().0.len();
        longest = longest.max(seen.longest());
        largest = largest.max(size().0);
        all_count().await;
    }
    let mut off = 0;
    for client in &mut clients.clone() {
        off += off_by(client).await.abs();
    }
    tokio::time::sleep(PEACE).await;
    let (bytes_after, files_after) = size();
    println!(
        "{faults} faults in {} s: {answers} answers, {errors} of them errors and {degraded} made \
         without Redis, the longest took {:.1} ms",
        time.as_secs(),
        longest.as_secs_f64() * 1000.0
    );
    println!(
        "memory: {} kB before, {} kB at most, {} kB after",
        bytes >> 10,
        largest >> 10,
        bytes_after >> 10
    );
    println!("open files: {files} before, {files_after} after");
    println!("off by {off} at the end");
    assert_eq!(off, 0, "counts are exact at the end");
    assert!(files_after <= files + 8, "connections are left behind");
    assert!(bytes_after < bytes + MAX_GROWTH, "memory grew");
    for server in &servers {
        let log = server.log().text();
        assert!(!log.contains("panicked"), "{log}");
        println!(
            "handed back: {}, forgotten: {}, lines in the log: {}",
            server.metric("tollgate_handed_back_hits_total"),
            server.metric("tollgate_forgotten_hits_total"),
            log.lines().count()
        );
    }
}

fn open_files(server: &Tollgate) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.process_id()))
        .unwrap()
        .count()
}

async fn one_fault(chance: &mut Chance, redis: &mut Redis, proxy: &Proxy) {
    let lasts = Duration::from_millis(50 + chance.below(LONGEST));
    let network = |fault| async move {
        proxy.set(fault);
        tokio::time::sleep(lasts).await;
        proxy.heal();
    };
    match chance.below(8) {
        0 => {
            redis.kill();
            tokio::time::sleep(lasts).await;
            redis.restart();
        }
        1 => {
            redis.freeze();
            tokio::time::sleep(lasts).await;
            redis.thaw();
        }
        2 => {
            let cuts = Fault {
                cuts: true,
                ..Fault::default()
            };
            network(cuts).await;
        }
        3 => {
            let swallows = Fault {
                swallows: true,
                ..Fault::default()
            };
            network(swallows).await;
        }
        4 => {
            let latency = Duration::from_millis(chance.below(200));
            let late = Fault {
                latency,
                ..Fault::default()
            };
            network(late).await;
        }
        5 => proxy.forget(),
        6 => {
            redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
            tokio::time::sleep(lasts).await;
            redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        }
        _ => {
            redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
    }
}

/// Numbers that nobody foresees (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
