//! Updates: the counters, flags, variables and metrics of earlier versions are those of this one.
//!
//! `recorded/` has what earlier versions wrote and had. Words are added to it and never removed.

use std::{collections::BTreeSet, fs, path::PathBuf};

use ::tollgate::Cli;
use clap::{Command, CommandFactory as _};

use crate::support::{
    ask::{self, connect},
    redis::Redis,
    tollgate,
};

fn recorded(file: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/it/recorded").join(file)
}

/// The lines of a record that are no comments.
fn lines(file: &str) -> Vec<String> {
    let text = fs::read_to_string(recorded(file)).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// An hour after the record. Three hits of ten were counted; the next one leaves six, in the key that is there.
#[tokio::test]
async fn the_counters_of_earlier_versions_go_on() {
    let redis = Redis::start();
    let commands = lines("counters.txt");
    for command in &commands {
        redis.cli(&command.split(' ').collect::<Vec<_>>());
    }
    let rules = fs::read_to_string(recorded("rules.yaml")).unwrap();
    let server = tollgate::with_rules(&rules)
        .redis(&redis)
        .args(["--clock", "local"])
        .env("TZ", "UTC")
        .with_clock("@2026-11-23 12:00:00")
        .start();
    let mut client = connect(server.grpc).await;
    let long = "x".repeat(200);
    for (domain, key, value) in [
        ("recorded", "fixed", "a"),
        ("recorded", "several", "a"),
        ("recorded", "first_hit", "a"),
        ("recorded", "sliding_window", "a"),
        ("recorded", "sliding_log", "a"),
        ("recorded", "token_bucket", "a"),
        ("recorded", "calendar", "a"),
        ("recorded", "long", &long),
        // Counted as `ab` was: all values of the pattern share a counter.
        ("recorded", "shared", "ac"),
        ("admitted", "fixed", "a"),
    ] {
        let answer = ask::ask(&mut client, domain, &[(key, value)]).await;
        let remaining = answer.unwrap().statuses[0].limit_remaining;
        assert_eq!(remaining, 6, "{domain} {key}");
    }
    let keys = redis.keys();
    assert_eq!(keys.len(), commands.len(), "a new key: {keys:?}");
}

/// Every name of the record is still there, and there is no other. A line may begin with a command, of whose flags it is.
#[track_caller]
fn check(file: &str, names: &BTreeSet<String>) {
    let mut known = BTreeSet::new();
    for line in lines(file) {
        let (command, words) = line.split_once(": ").unwrap_or(("", &line));
        let names = words.split(' ').map(|word| format!("{command} {word}"));
        known.extend(names.map(|name| name.trim().to_owned()));
    }
    let gone: Vec<_> = known.difference(names).collect();
    assert!(gone.is_empty(), "{file}: a breaking change: {gone:?}");
    let new: Vec<_> = names.difference(&known).collect();
    assert!(new.is_empty(), "{file}: add {new:?}");
}

#[test]
fn no_flag_and_no_variable_is_gone() {
    let mut names = BTreeSet::new();
    for command in Cli::command().get_subcommands() {
        add_names(command, "", &mut names);
    }
    check("flags.txt", &names);
}

/// The flags and variables of `command` and of its own commands.
fn add_names(command: &Command, parent: &str, names: &mut BTreeSet<String>) {
    let name = format!("{parent}{}", command.get_name());
    for flag in command.get_arguments() {
        if let Some(long) = flag.get_long() {
            names.insert(format!("{name} --{long}"));
        }
        if let Some(variable) = flag.get_env() {
            names.insert(variable.to_str().unwrap().to_owned());
        }
    }
    for own in command.get_subcommands() {
        add_names(own, &format!("{name} "), names);
    }
}

/// With Redis, because a store has metrics of its own.
#[test]
fn no_metric_is_gone() {
    let redis = Redis::start();
    let rules = "domain: d\ndescriptors: [{key: k, rate_limits: [5/y]}]";
    let server = tollgate::with_rules(rules).redis(&redis).start();
    let page = server.page("/metrics");
    let types = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names = types.map(|(name, kind)| format!("{kind} {name}")).collect();
    check("metrics.txt", &names);
}
