//! Attacks of those who can write rule files, or into a folder that the server uses.

use std::{fs, os::unix::fs::symlink, time::Duration};

use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::json;

use super::{
    super::{
        attack::Size,
        finish,
        tollgate::{bare, builder, program},
    },
    Effect, costs, time_of_change, time_until, with_limit,
};

const LOADED: &str = "ratelimit_service_config_load_success";
const REFUSED: &str = "ratelimit_service_config_load_error";

/// A file of rules that are all mistakes, beside good ones, and then good ones in its place.
pub(super) fn mistakes_without_end(size: Size) -> Effect {
    let server = with_limit().start();
    let before = server.processor_time();
    let file = server.rules().join("bad.yaml");
    let rules = vec!["{}"; size.of(1 << 20) / 3].join(",");
    fs::write(&file, format!("domain: q\ndescriptors: [{rules}]")).unwrap();
    let is_refused = time_until(|| server.metric(REFUSED) > 0).is_some();
    fs::remove_file(&file).unwrap();
    let _ = time_of_change(&server);
    // All lines about the mistakes are before it.
    let loads = || server.log().text().matches("rules loaded").count() >= 2;
    let is_loaded = time_until(loads).is_some();
    let costs = costs(&server, before);
    Effect {
        is_harmless: costs.is_harmless && is_refused && is_loaded,
        ..costs
    }
}

pub(super) fn pipe_among_the_rules(_: Size) -> Effect {
    let server = with_limit().start();
    let loads = |name| server.metric(name);
    let before = loads(LOADED) + loads(REFUSED);
    let pipe = server.rules().join("x.yaml");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    // The server has looked at it, or will not answer this.
    let _ = time_until(|| loads(LOADED) + loads(REFUSED) > before);
    fs::remove_file(&pipe).unwrap();
    effect_of_change(time_of_change(&server))
}

pub(super) fn links_to_the_folder(_: Size) -> Effect {
    let server = with_limit().start();
    for number in 1..=4 {
        symlink(".", server.rules().join(format!("l{number}"))).unwrap();
    }
    effect_of_change(time_of_change(&server))
}

fn effect_of_change(took: Option<Duration>) -> Effect {
    Effect {
        text: match took {
            Some(took) => format!("a change comes through after {:.1} s", took.as_secs_f64()),
            None => "no change comes through within 10 s".to_owned(),
        },
        is_harmless: took.is_some(),
    }
}

/// The processor time of a start with rules in JSON, on one line and indented.
pub(super) fn rules_on_one_line(size: Size) -> Effect {
    let rule = |number| json!({"key": format!("k{number}"), "rate_limit": {"unit": "day", "requests_per_unit": 5}});
    let rules: Vec<_> = (0..size.of(20_000)).map(rule).collect();
    let rules = json!({"domain": "d", "descriptors": rules});
    let spent = |text: &str| {
        let server = builder().file("rules.json", text).start();
        server.processor_time().as_secs_f64()
    };
    let on_one_line = spent(&rules.to_string());
    let indented = spent(&serde_json::to_string_pretty(&rules).unwrap());
    Effect {
        text: format!("{on_one_line:.1} s CPU at the start; indented {indented:.1} s"),
        is_harmless: true,
    }
}

/// Shows a file with a mistake, whose name is lines of a log, a command of a workflow and an escape of terminals.
pub(super) fn forging_names(_: Size) -> Effect {
    const LINE: &str = "2026-11-24T00:00:00Z ERROR tollgate: FAKE";
    let names = [
        format!("x\n{LINE}.yaml"),
        "x\n::warning file=x::INJECTED.yaml".to_owned(),
        "x\u{1b}[31m.yaml".to_owned(),
    ];
    let server = bare();
    for name in &names {
        fs::write(server.rules().join(name), "domain: d\ndescriptors: [{}]").unwrap();
    }
    let folder = server.rules().to_str().unwrap().to_owned();
    let ports = ["--grpc-port", "--port", "--debug-port"].map(|port| [port, "0"]);
    let checked = finish(program().args(["check", &folder]));
    let (_, logged) = server
        .args(["serve", "--log-format", "text", "--host", "127.0.0.1"])
        .args(["--grpc-host", "127.0.0.1", "--config-dir", &folder])
        .args(ports.into_iter().flatten())
        .fail();
    let checked = [checked.stdout, checked.stderr].map(|text| String::from_utf8(text).unwrap());
    let forged = |text: &str| {
        let is_forged = |line: &&str| {
            line.starts_with(LINE) || line.starts_with("::") || line.contains('\u{1b}')
        };
        text.lines().filter(is_forged).count()
    };
    let [logged, checked] = [forged(&logged), forged(&checked.concat())];
    Effect {
        text: format!("{logged} forged lines of the log, {checked} of `check`"),
        is_harmless: logged + checked == 0,
    }
}
