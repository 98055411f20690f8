//! A log that cannot be written stops nothing, and commands whose output cannot be written end without a panic.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    process::{Command, Output, Stdio},
    thread,
};

use ::tollgate::Cli;
use clap::CommandFactory as _;
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    finish, free_port,
    http::{get, try_get},
    tollgate::{self, Log, Tollgate, program},
    unwritable_log::{LogFault, LogForm, UnwritableLog},
    wait_until,
};

#[test]
fn nothing_stops_whatever_is_wrong_with_standard_error() {
    let check = |fault, form| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let gone_on = runtime.block_on(UnwritableLog { fault, form }.run());
        gone_on.unwrap_or_else(|error| panic!("{fault}, {form:?}: {error:#}"));
    };
    thread::scope(|scope| {
        for fault in LogFault::ALL {
            scope.spawn(move || LogForm::ALL.map(|form| check(fault, form)));
        }
    });
}

#[test]
fn a_log_that_can_be_written_again_says_once_how_many_lines_are_lost() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("log");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let rules = folder.path().join("rules");
    fs::create_dir(&rules).unwrap();
    let write = |text: &str| {
        fs::write(folder.path().join("new"), text).unwrap();
        fs::rename(folder.path().join("new"), rules.join("rules.yaml")).unwrap();
    };
    write("domain: d\n");
    // For reading and writing, it opens without a peer.
    let both = File::options().read(true).write(true).open(&pipe).unwrap();
    let (http, debug) = (free_port(), free_port());
    let mut command = program();
    command
        .args(["serve", "--log-format", "json", "--drain-delay", "0"])
        .args(["--grpc-port", "0", "--host", "127.0.0.1"])
        .args(["--port", &http.to_string()])
        .args(["--debug-port", &debug.to_string(), "--config-dir"])
        .arg(&rules)
        .stderr(File::options().write(true).open(&pipe).unwrap());
    let _server = crate::support::Process::start(&mut command);
    drop(command);
    let [http, debug] = [http, debug].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    wait_until("it is ready", || {
        try_get(http, "/healthcheck", &[]).is_ok_and(|page| page.status == 200)
    });
    drop(both);
    let dropped = || {
        let page = get(debug, "/metrics").body;
        let mut lines = page.lines();
        let count = lines.find_map(|line| line.strip_prefix("tollgate_log_lines_dropped_total "));
        count.unwrap().parse::<u64>().unwrap()
    };
    write("domain: [\n");
    wait_until("lines are lost", || dropped() >= 2);
    let lost = dropped();
    let log = Log::follow(File::open(&pipe).unwrap());
    write("domain: e\n");
    let text = log.with("lines of the log could not be written and are lost");
    let report = text.lines().find(|line| line.contains("are lost")).unwrap();
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["lines"], lost);
    assert_eq!(report["level"], "error");
    write("domain: f\n");
    wait_until("the next load is logged", || {
        log.text().matches("rules loaded").count() == 2
    });
    assert_eq!(log.text().matches("are lost").count(), 1, "{}", log.text());
    assert_eq!(dropped(), lost);
}

/// Where a test lets a command write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    /// A pipe whose reader is gone.
    ReaderGone,
    Full,
    Closed,
}

/// Runs `command` with one descriptor, 1 or 2, on `sink`.
fn run(command: &[String], descriptor: u8, sink: Sink) -> Output {
    let program = program();
    let redirection = match sink {
        Sink::Closed => format!("{descriptor}>&-"),
        Sink::Full => format!("{descriptor}>/dev/full"),
        Sink::ReaderGone => String::new(),
    };
    let mut shell = Command::new("/bin/sh");
    shell
        .env_clear()
        .args(["-c", &format!("exec \"$@\" {redirection}"), "sh"])
        .arg(program.get_program())
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if sink == Sink::ReaderGone {
        let (_, write) = io::pipe().unwrap();
        match descriptor {
            1 => shell.stdout(write),
            _ => shell.stderr(write),
        };
    }
    let child = shell.spawn().unwrap();
    drop(shell);
    child.wait_with_output().unwrap()
}

/// Each command with arguments for which it prints something.
fn printing(server: &Tollgate) -> Vec<Vec<String>> {
    let rules = server.rules().display().to_string();
    let envoy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/envoy/envoy.yaml");
    let (grpc, debug) = (server.grpc, server.debug);
    let http = server.http.port();
    let lines = [
        &*format!("ask --server http://{grpc} --domain d -d k=v"),
        &*format!("check {rules}"),
        "completions bash",
        &*format!("counters get --server http://{debug} --domain d -d k=v"),
        &*format!("explain --rules {rules} --domain d -d k=v"),
        "help",
        &*format!("healthcheck --http --host 127.0.0.1 --port {http}"),
        &*format!("lint-envoy {envoy}"),
        "man",
        "schema",
        "serve --help",
        "--help",
        "--version",
    ];
    lines.map(words).to_vec()
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn every_command_whose_output_cannot_be_written_ends_as_other_tools_do() {
    let rules = "{domain: d, descriptors: [{key: k, rate_limits: [9/year]}]}";
    let server = tollgate::with_rules(rules).start();
    let commands = printing(&server);
    for known in Cli::command().get_subcommands() {
        let name = known.get_name();
        let is_tested = commands.iter().any(|command| command[0] == name);
        assert!(is_tested, "{name} is not tested");
    }
    for command in &commands {
        let output = finish(program().args(command));
        let own = output.status.code();
        let is_printed = own.is_some() && !output.stdout.is_empty();
        assert!(is_printed, "{command:?}: {output:?}");
        let full = "cannot write to standard output: No space left on device";
        for (sink, code, text) in [
            (Sink::ReaderGone, Some(141), ""),
            (Sink::Closed, own, ""),
            (Sink::Full, None, full),
        ] {
            let output = run(command, 1, sink);
            let errors = String::from_utf8_lossy(&output.stderr);
            let ended = output.status.code();
            let is_expected = match code {
                Some(_) => ended == code && errors == text,
                None => matches!(ended, Some(1 | 2)) && errors.starts_with(text),
            };
            assert!(is_expected, "{command:?}, {sink:?}: {ended:?} {errors}");
        }
    }
}

#[test]
fn every_command_that_fails_has_its_exit_code_even_if_nobody_can_read_why() {
    let cli = Cli::command();
    let names: Vec<_> = cli.get_subcommands().map(clap::Command::get_name).collect();
    assert!(names.len() >= 10, "{names:?}");
    let wrong = names
        .iter()
        .map(|name| words(&format!("{name} --no-such-flag")));
    let failing = [
        "check /nowhere",
        "lint-envoy /nowhere",
        "serve --log-format json --port wrong",
        "serve --config-dir /nowhere",
    ];
    let failing = failing.map(words);
    for command in wrong.chain(failing) {
        let own = finish(program().args(&command)).status.code();
        assert!(matches!(own, Some(1 | 2)), "{command:?}: {own:?}");
        for sink in [Sink::ReaderGone, Sink::Full, Sink::Closed] {
            let ended = run(&command, 2, sink).status.code();
            assert_eq!(ended, own, "{command:?}, {sink:?}");
        }
    }
}
