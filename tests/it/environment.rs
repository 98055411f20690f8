//! The environment: variables that are wrong, unknown, or set by Kubernetes; and errors before the log begins.

use std::{
    any::TypeId,
    ffi::OsStr,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Command, Output},
};

use ::tollgate::{Cli, Hidden};
use clap::{Arg, CommandFactory as _};

use crate::support::{
    finish,
    http::get,
    tollgate::{self, program},
};

const RULES: &str = "
domain: d
descriptors:
  - key: one
    rate_limits: [2/year]
";

/// The flags of `serve`.
fn flags() -> Vec<Arg> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    serve.get_arguments().cloned().collect()
}

fn variable(flag: &Arg) -> &str {
    flag.get_env().unwrap().to_str().unwrap()
}

/// `serve`, under its own name or that of the reference.
fn serve(name: &str) -> Command {
    let mut command = program();
    command.arg0(name);
    command
}

/// The lines on standard error of a process that ends with exit code 2.
#[track_caller]
fn lines(command: &mut Command) -> Vec<String> {
    let output: Output = finish(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(output.stdout.is_empty(), "{output:?}");
    said.lines().map(str::to_owned).collect()
}

/// Whether the value is a text, a path or an address, which may be checked only by the part that uses it.
fn is_text(flag: &Arg) -> bool {
    let kind = flag.get_value_parser().type_id();
    kind == TypeId::of::<String>()
        || kind == TypeId::of::<PathBuf>()
        || kind == TypeId::of::<Hidden>()
}

#[test]
fn all_wrong_variables_are_named_at_once_with_the_form_that_they_need() {
    const BAD: &str = "#bad {value}";
    for name in ["/bin/tollgate", "/bin/ratelimit"] {
        let flags = flags();
        let lines = lines(serve(name).envs(flags.iter().map(|flag| (variable(flag), BAD))));
        for flag in &flags {
            let name = variable(flag);
            let start = format!("error: the variable {name}: ");
            let about: Vec<_> = lines
                .iter()
                .filter_map(|line| line.strip_prefix(&start))
                .filter(|text| !text.starts_with("cannot be set together with "))
                .collect();
            if is_text(flag) && about.is_empty() {
                continue;
            }
            let [text] = about[..] else {
                panic!("{name}: {about:?}");
            };
            assert!(text.starts_with("expected "), "{name}: {text}");
            assert!(text.ends_with(&format!(", not `{BAD}`")), "{name}: {text}");
        }
    }
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    let bytes = OsStr::from_bytes(b"\xff");
    let flags = flags();
    let lines = lines(serve("tollgate").envs(flags.iter().map(|flag| (variable(flag), bytes))));
    for flag in &flags {
        let expected = format!(
            "error: the variable {}: expected text in UTF-8",
            variable(flag)
        );
        assert!(lines.contains(&expected), "{expected}: {lines:?}");
    }
}

#[track_caller]
fn check(variables: &[(&str, &str)], expected: &[&str]) {
    let variables = variables.iter().copied();
    let expected: Vec<_> = expected
        .iter()
        .map(|line| format!("error: {line}"))
        .collect();
    for name in ["/bin/tollgate", "/bin/ratelimit"] {
        assert_eq!(lines(serve(name).envs(variables.clone())), expected);
    }
}

#[test]
fn a_wrong_variable_is_blamed_itself_and_not_its_flag() {
    check(
        &[("GRPC_PORT", "abc")],
        &["the variable GRPC_PORT: expected a port from 0 to 65535, not `abc`"],
    );
    check(
        &[("LOG_LEVEL", "loud")],
        &["the variable LOG_LEVEL: expected one of error, warn, info, debug, trace, not `loud`"],
    );
    for ratio in ["0", "80", "-1", "NaN"] {
        let expected = format!(
            "the variable NEAR_LIMIT_RATIO: expected a number above 0 and at most 1, such as 0.8, not `{ratio}`"
        );
        check(&[("NEAR_LIMIT_RATIO", ratio)], &[&expected]);
    }
    check(
        &[
            ("REDIS_URL", "redis://:sesame@h:1"),
            ("TOLLGATE_REDIS_URL_FILE", "f"),
        ],
        &["the variable REDIS_URL: cannot be set together with TOLLGATE_REDIS_URL_FILE"],
    );
}

#[test]
fn an_unknown_variable_of_ours_is_refused_with_a_suggestion() {
    check(
        &[
            ("TOLLGATE_MAX_COUNTER", "5"),
            ("TOLLGATE_CONFIGDIR", "/x"),
            ("GRPC_PORT", "x"),
        ],
        &[
            "the variable TOLLGATE_CONFIGDIR is unknown; did you mean TOLLGATE_CONFIG_DIR?",
            "the variable TOLLGATE_MAX_COUNTER is unknown; did you mean TOLLGATE_MAX_COUNTERS?",
            "the variable GRPC_PORT: expected a port from 0 to 65535, not `x`",
        ],
    );
}

/// The kubelet sets these for Services called `tollgate`, `tollgate-reuse`, `statsd` and `grpc`; the last three have
/// names of settings.
/// `cargo run`, and so `make run`, sets the variables that the build script sets for the compiler.
#[test]
fn the_variables_of_the_build_are_no_settings() {
    let set = |line: &'static str| line.split_once("cargo:rustc-env=")?.1.split_once('=');
    let names = include_str!("../../build.rs").lines().filter_map(set);
    let names: Vec<_> = names.map(|(name, _)| (name, "x")).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let lines = lines(serve("/bin/ratelimit").envs(names).env("PORT", "x"));
    assert!(
        matches!(&lines[..], [line] if line.contains("PORT")),
        "{lines:?}"
    );
}

#[test]
fn the_links_of_kubernetes_change_nothing() {
    let server = tollgate::with_rules(RULES)
        .env("TOLLGATE_SERVICE_HOST", "10.0.0.1")
        .env("TOLLGATE_SERVICE_PORT", "8081")
        .env("TOLLGATE_SERVICE_PORT_GRPC", "8081")
        .env("TOLLGATE_PORT", "tcp://10.0.0.1:8081")
        .env("TOLLGATE_PORT_8081_TCP", "tcp://10.0.0.1:8081")
        .env("TOLLGATE_PORT_8081_TCP_PROTO", "tcp")
        .env("TOLLGATE_PORT_8081_TCP_PORT", "8081")
        .env("TOLLGATE_PORT_8081_TCP_ADDR", "10.0.0.1")
        .env("TOLLGATE_REUSE_PORT", "tcp://10.0.0.2:80")
        .env("STATSD_PORT", "tcp://10.0.0.3:8125")
        .env("GRPC_PORT", "tcp://10.0.0.4:80")
        .start();
    assert_eq!(get(server.http, "/healthcheck").status, 200);
}

// --- before the log begins -----------------------------------------------------------------------

/// The one line that a process with this environment and these arguments logs as JSON.
#[track_caller]
fn check_json(variables: &[(&str, &str)], arguments: &[&str], code: i32, expected: &str) {
    let output = finish(program().envs(variables.iter().copied()).args(arguments));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    let lines: Vec<_> = said.lines().collect();
    let [line] = lines[..] else {
        panic!("not one line: {said}");
    };
    let line: serde_json::Value = serde_json::from_str(line).expect(line);
    assert_eq!(line["level"], "error", "{line}");
    let message = line["@message"].as_str().unwrap();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn errors_of_the_start_are_lines_of_the_log() {
    let json = ["--log-format", "json"];
    let with = |more: &[&'static str]| [&json[..], more].concat();
    let nowhere = "/nowhere: cannot be read: No such file";
    check_json(&[], &with(&["--config-dir", "/nowhere"]), 1, nowhere);
    check_json(
        &[("LOG_FORMAT", "json"), ("TOLLGATE_CONFIG_DIR", "/nowhere")],
        &[],
        1,
        nowhere,
    );
    check_json(
        &[],
        &with(&["--grpc-prt", "1"]),
        2,
        "unexpected argument '--grpc-prt' found",
    );
    let port = "expected a port from 0 to 65535";
    check_json(&[("LOG_FORMAT", "JSON")], &["--port=x"], 2, port);
    check_json(
        &[("PORT", "x")],
        &json,
        2,
        &format!("the variable PORT: {port}, not `x`"),
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("d.yaml"), RULES).unwrap();
    let output = finish(
        program()
            .args(json)
            .args(["--config-dir"])
            .arg(folder.path())
            .args([
                "--grpc-host",
                "127.0.0.1",
                "--grpc-port",
                &port,
                "--port=0",
                "--debug-port=0",
            ]),
    );
    let said = String::from_utf8(output.stderr).unwrap();
    for line in said.lines() {
        let line: Result<serde_json::Value, _> = serde_json::from_str(line);
        assert!(line.is_ok(), "{said}");
    }
    assert!(said.contains("Address already in use"), "{said}");
}

// --- help ----------------------------------------------------------------------------------------

#[test]
fn the_short_help_of_serve_fits_a_screen_and_names_the_long_one() {
    let help = |argument: &str| {
        let output = finish(program().args(["serve", argument]));
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let short = help("-h");
    assert!(short.lines().count() < 60, "{short}");
    let last = short.trim_end().lines().last().unwrap();
    let all = flags().len();
    assert!(
        last.starts_with(&format!("`tollgate serve --help` has all {all} settings")),
        "{last}"
    );
    for flag in ["--config-dir", "--grpc-port", "--redis-url", "--log-level"] {
        assert!(short.contains(&format!(" {flag} ")), "{flag}: {short}");
    }
    assert!(help("--help").lines().count() > 2 * all);
}

#[test]
fn a_flag_beside_files_takes_its_value_after_an_equals_sign_only() {
    for arguments in [
        ["check", "--merge-domains", "false", "config"],
        ["check", "--strict-matching", "true", "config"],
        ["lint-envoy", "--strict-matching", "false", "envoy.yaml"],
    ] {
        let said = lines(program().args(arguments)).join("\n");
        let [_, flag, value, _] = arguments;
        let expected = format!(
            "error: write `{flag}={value}`: without the equals sign, `{value}` is read as a file"
        );
        assert!(said.starts_with(&expected), "{said}");
    }
}
