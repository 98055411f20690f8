//! Attacks by way of proxies, web pages, files, Redis and the control plane. Each runs against a server of its own, and
//! has an effect of its own: what it cost the server, or what the attacker got.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::{
    attack::Size,
    tollgate::{Builder, Tollgate, with_rules},
};

mod callers;
mod files;
mod servers;

/// An attack, and its effect before there was a defence.
#[derive(Clone, Copy, Debug)]
pub struct DoorAttack {
    pub name: &'static str,
    pub before: &'static str,
    carry_out: fn(Size) -> Effect,
}

/// The effect of an attack.
#[derive(Clone, Debug)]
pub struct Effect {
    /// A cell of a table.
    pub text: String,
    /// Whether it is as it should be, apart from times.
    pub is_harmless: bool,
}

impl DoorAttack {
    pub fn run(&self, size: Size) -> Effect {
        (self.carry_out)(size)
    }
}

/// All of them, in the order of the review.
pub fn all() -> Vec<DoorAttack> {
    let attack = |name, before, carry_out| DoorAttack {
        name,
        before,
        carry_out,
    };
    vec![
        attack(
            "a far client resets a counter through an Envoy in default settings, without the token",
            "200, 5 hits -> 0",
            callers::reset_through_a_proxy,
        ),
        attack(
            "60,000 bytes against 300 wildcards of the form `*text*`",
            "110 ms a call",
            callers::long_value_for_wildcards,
        ),
        attack(
            "1 MiB of rules without a key, beside good ones",
            "peak 242 MB, 57.9 MB of log",
            files::mistakes_without_end,
        ),
        attack(
            "a pipe among the rules, removed again",
            "no later change comes through",
            files::pipe_among_the_rules,
        ),
        attack(
            "20,000 good rules as JSON on one line",
            "7.3 s CPU at the start; indented 0.2 s",
            files::rules_on_one_line,
        ),
        attack(
            "a Redis that answers a count with 5,592,000 values",
            "peak 566 MB, 1.3 s CPU, the call answered after 12 to 16 s",
            servers::endless_count,
        ),
        attack(
            "a cluster whose CLUSTER SLOTS names 4,000 servers, for 10 s",
            "peak 433 MB, 6.2 s CPU, 857 kB of log",
            servers::cluster_of_thousands,
        ),
        attack(
            "4 links from the rules' folder to itself",
            "no change comes through for more than 10 s",
            files::links_to_the_folder,
        ),
        attack(
            "names of files with line breaks and escapes, in a log as text and in `check`",
            "lines of the log and commands of a workflow, forged",
            files::forging_names,
        ),
        attack(
            "a web page whose name leads to loopback reads the debug port",
            "all pages read",
            callers::rebound_page,
        ),
        attack(
            "a control plane pushes 10,000 good and 3,000 bad sets of rules, as fast as it can",
            "13,698 lines, 6.1 MB of log in 12 s",
            servers::flood_of_pushes,
        ),
        attack(
            "a resolver that does not answer, for 10 s",
            "a thread for each attempt to connect",
            servers::silent_resolver,
        ),
        attack(
            "a collector of spans that does not answer, at the end",
            "6 s after `--drain-delay`",
            servers::silent_collector,
        ),
    ]
}

/// Rules by which the limit of `k` can be changed.
fn limit(requests: usize) -> String {
    format!("domain: d\ndescriptors: [{{key: k, rate_limits: [{requests}/year]}}]\n")
}

fn with_limit() -> Builder {
    with_rules(&limit(7))
}

/// Changes the limit of `k`, and returns after which time that is in use, if it is.
fn time_of_change(server: &Tollgate) -> Option<Duration> {
    const LIMIT: usize = 4_321;
    fs::write(server.rules().join("rules.yaml"), limit(LIMIT)).unwrap();
    let is_in_use = || server.page("/rlconfig").contains(&format!("={LIMIT},"));
    time_until(is_in_use)
}

/// How long an effect is waited for.
const TEN_SECONDS: Duration = Duration::from_secs(10);

/// Returns after which time it is so.
fn time_until(mut is_so: impl FnMut() -> bool) -> Option<Duration> {
    let begun = Instant::now();
    while begun.elapsed() < TEN_SECONDS {
        if is_so() {
            return Some(begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

fn megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Below the 256 Mi in `deploy/`.
const MOST_MEMORY: u64 = 160 << 20;

/// Far above a line for each kind of event, and far below one for each event.
const MOST_LOG: usize = 200 << 10;

/// Memory, processor time since `before`, and log of a server.
fn costs(server: &Tollgate, before: Duration) -> Effect {
    let (peak, log) = (server.peak_bytes(), server.log().text().len());
    let cpu = (server.processor_time() - before).as_secs_f64();
    Effect {
        text: format!(
            "peak {} MB, {cpu:.1} s CPU, {:.1} kB of log",
            megabytes(peak),
            log as f64 / 1000.0
        ),
        is_harmless: peak < MOST_MEMORY && log < MOST_LOG,
    }
}
