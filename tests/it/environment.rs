//! The environment: variables that are wrong, unknown, or set by Kubernetes; and errors before the log begins.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, Output},
};

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

/// The first line of the error of a process with these variables, by both names.
#[track_caller]
fn check(variables: &[(&str, &str)], expected: &str) {
    let variables = variables.iter().copied();
    for name in ["/bin/tollgate", "/bin/ratelimit"] {
        let lines = lines(serve(name).envs(variables.clone()));
        assert_eq!(lines[0], format!("error: {expected}"));
    }
}

#[test]
fn a_wrong_variable_is_blamed_itself_and_not_its_flag() {
    check(
        &[("GRPC_PORT", "abc")],
        "invalid value 'abc' for 'GRPC_PORT': expected a port from 0 to 65535",
    );
    check(
        &[("LOG_LEVEL", "loud")],
        "invalid value 'loud' for 'LOG_LEVEL'",
    );
    for ratio in ["0", "80", "-1", "NaN"] {
        let expected = format!(
            "invalid value '{ratio}' for 'NEAR_LIMIT_RATIO': expected a number above 0 and at most 1, such as 0.8"
        );
        check(&[("NEAR_LIMIT_RATIO", ratio)], &expected);
    }
    check(
        &[
            ("REDIS_URL", "redis://:sesame@h:1"),
            ("TOLLGATE_REDIS_URL_FILE", "f"),
        ],
        "the argument 'REDIS_URL' cannot be used with 'TOLLGATE_REDIS_URL_FILE'",
    );
}

#[test]
fn variables_of_ours_that_no_setting_reads_are_named_in_one_line() {
    let server = tollgate::with_rules(RULES)
        .env("TOLLGATE_MAX_COUNTER", "sesame")
        .env("TOLLGATE_STATE_FILE", "sesame")
        .start();
    let log = server.log().text();
    let named: Vec<_> = log
        .lines()
        .filter(|line| line.contains("TOLLGATE_"))
        .collect();
    let [line] = named[..] else {
        panic!("{log}");
    };
    let names = "no setting reads TOLLGATE_MAX_COUNTER, TOLLGATE_STATE_FILE; ";
    assert!(line.contains(names), "{line}");
    assert!(!log.contains("sesame"), "{log}");
}

/// `cargo run`, and so `make run`, sets the variables that the build script sets for the compiler.
#[test]
fn the_variables_of_the_build_are_no_settings() {
    let set = |line: &'static str| line.split_once("cargo:rustc-env=")?.1.split_once('=');
    let names = include_str!("../../build.rs").lines().filter_map(set);
    let names: Vec<_> = names.map(|(name, _)| name).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(
        names.iter().all(|name| !name.starts_with("TOLLGATE_")),
        "{names:?}"
    );
}

/// The kubelet sets these for Services called `tollgate`, `tollgate-reuse`, `statsd` and `grpc`; the last three have
/// names of settings.
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
        &format!("invalid value 'x' for 'PORT': {port}"),
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
