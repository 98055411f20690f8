//! The environment: variables that are wrong, unknown, or set by Kubernetes; and errors before the log begins.

use std::os::unix::process::CommandExt as _;

use crate::cli::{files, path, run_in, with_variables};
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

/// The first line of the error of a process with these variables, by both names, which ends with exit code 2.
#[track_caller]
fn check(variables: &[(&str, &str)], expected: &str) {
    for name in ["/bin/tollgate", "/bin/ratelimit"] {
        let mut serve = program();
        serve.arg0(name).envs(variables.iter().copied());
        let output = finish(&mut serve);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert_eq!(said.lines().next(), Some(&*format!("error: {expected}")));
    }
}

#[test]
fn a_wrong_variable_is_blamed_itself_and_not_its_flag() {
    let port = "invalid value 'abc' for 'GRPC_PORT': expected a port from 0 to 65535";
    check(&[("GRPC_PORT", "abc")], port);
    let level = "invalid value 'loud' for 'LOG_LEVEL'";
    check(&[("LOG_LEVEL", "loud")], level);
    for ratio in ["0", "80", "-1", "NaN"] {
        let expected =
            "for 'NEAR_LIMIT_RATIO': expected a number above 0 and at most 1, such as 0.8";
        let expected = format!("invalid value '{ratio}' {expected}");
        check(&[("NEAR_LIMIT_RATIO", ratio)], &expected);
    }
    let both = [
        ("REDIS_URL", "redis://:sesame@h:1"),
        ("TOLLGATE_REDIS_URL_FILE", "f"),
    ];
    let clash = "the argument 'REDIS_URL' cannot be used with 'TOLLGATE_REDIS_URL_FILE'";
    check(&both, clash);
}

#[test]
fn variables_of_ours_that_no_setting_reads_are_named_in_one_line() {
    let server = tollgate::with_rules(RULES)
        .env("TOLLGATE_MAX_COUNTER", "sesame")
        .env("TOLLGATE_STATE_FILE", "sesame")
        .start();
    let log = server.log().text();
    let named = log.lines().filter(|line| line.contains("TOLLGATE_"));
    let named: Vec<_> = named.collect();
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
    let is_ours = names.iter().any(|name| name.starts_with("TOLLGATE_"));
    assert!(!is_ours, "{names:?}");
}

/// The kubelet sets these for Services called `tollgate`, `tollgate-reuse`, `statsd` and `grpc`; the last three have
/// names of settings.
#[test]
fn the_links_of_kubernetes_change_nothing() {
    const LINKS: &str = "TOLLGATE_SERVICE_HOST=10.0.0.1 TOLLGATE_SERVICE_PORT=8081 TOLLGATE_SERVICE_PORT_GRPC=8081 \
        TOLLGATE_PORT=tcp://10.0.0.1:8081 TOLLGATE_PORT_8081_TCP=tcp://10.0.0.1:8081 TOLLGATE_PORT_8081_TCP_PROTO=tcp \
        TOLLGATE_PORT_8081_TCP_PORT=8081 TOLLGATE_PORT_8081_TCP_ADDR=10.0.0.1 STATSD_PORT=tcp://10.0.0.3:8125 \
        GRPC_PORT=tcp://10.0.0.4:80";
    let server = with_variables(tollgate::with_rules(RULES), LINKS).start();
    assert_eq!(get(server.http, "/healthcheck").status, 200);
}

// --- before the log begins -----------------------------------------------------------------------

/// A process with this environment and these arguments logs one line, as JSON.
#[track_caller]
fn check_json(variables: &[(&str, &str)], arguments: &str, code: i32, expected: &str) {
    let mut command = program();
    let command = command.envs(variables.iter().copied());
    let output = finish(command.args(arguments.split_whitespace()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let line: serde_json::Value = serde_json::from_str(&said).expect(&said);
    assert_eq!(line["level"], "error", "{line}");
    let message = line["@message"].as_str().unwrap();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn errors_of_the_start_are_lines_of_the_log() {
    const JSON: &str = "--log-format json";
    let nowhere = "/nowhere: cannot be read: No such file";
    check_json(&[], &format!("{JSON} --config-dir /nowhere"), 1, nowhere);
    let variables = [("LOG_FORMAT", "json"), ("TOLLGATE_CONFIG_DIR", "/nowhere")];
    check_json(&variables, "", 1, nowhere);
    let unknown = "unexpected argument '--grpc-prt' found";
    check_json(&[], &format!("{JSON} --grpc-prt 1"), 2, unknown);
    let port = "expected a port from 0 to 65535";
    check_json(&[("LOG_FORMAT", "JSON")], "--port=x", 2, port);
    let variable = format!("invalid value 'x' for 'PORT': {port}");
    check_json(&[("PORT", "x")], JSON, 2, &variable);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = files(&[("d.yaml", RULES)]);
    let ports = format!("--grpc-host 127.0.0.1 --grpc-port {port} --port=0 --debug-port=0");
    let line = format!("{JSON} --config-dir {} {ports}", path(&folder));
    let (_, _, said) = run_in(folder.path(), &line);
    for line in said.lines() {
        let line: Result<serde_json::Value, _> = serde_json::from_str(line);
        assert!(line.is_ok(), "{said}");
    }
    assert!(said.contains("Address already in use"), "{said}");
}
