//! `tollgate healthcheck`: the health of a real server, by the variables that the server was started with.

use std::net::TcpListener;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::{
    certificates::{self, Authority},
    finish, free_port,
    tollgate::{self, Tollgate, program},
    wait_until,
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [5/y]}]";

/// Runs the probe with these variables. Returns its exit code and its only line. A busy machine needs more than the
/// default time.
#[track_caller]
fn probe(variables: &[(&str, &str)], args: &[&str]) -> (Option<i32>, String) {
    probe_for("30s", variables, args)
}

#[track_caller]
fn probe_for(timeout: &str, variables: &[(&str, &str)], args: &[&str]) -> (Option<i32>, String) {
    let mut command = program();
    command
        .args(["healthcheck", "--timeout", timeout])
        .args(args);
    let output = finish(command.envs(variables.iter().copied()));
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    (output.status.code(), said.trim_end().to_owned())
}

/// The ports of a server, for its own variables `GRPC_PORT` and `PORT`.
fn ports(server: &Tollgate) -> [String; 2] {
    [server.grpc, server.http].map(|address| address.port().to_string())
}

#[track_caller]
fn check(variables: &[(&str, &str)], args: &[&str], code: i32, line: &str) {
    assert_eq!(probe(variables, args), (Some(code), line.to_owned()));
}

#[test]
fn health_is_good_until_the_drain_and_nothing_listens_after_it() {
    let mut server = tollgate::with_rules(RULES)
        .args(["--drain-delay", "1h"])
        .start();
    let (grpc, http) = (server.grpc, server.http);
    let [grpc_port, http_port] = ports(&server);
    let variables = [("GRPC_PORT", &*grpc_port), ("PORT", &*http_port)];
    check(&variables, &[], 0, &format!("healthy: {grpc} (gRPC)"));
    let line = format!("healthy: {http} (HTTP)");
    check(&variables, &["--http"], 0, &line);

    server.signal(Signal::SIGTERM);
    wait_until("health is bad", || probe(&variables, &[]).0 == Some(1));
    let line = format!("unhealthy: {grpc} (gRPC) answers NOT_SERVING");
    check(&variables, &[], 1, &line);
    let answer = "HTTP/1.1 500 Internal Server Error";
    let line = format!("unhealthy: {http} (HTTP) answers {answer}");
    check(&variables, &["--http"], 1, &line);

    // The second signal ends the wait.
    server.signal(Signal::SIGTERM);
    server.wait();
    for args in [&[][..], &["--http"]] {
        let (code, line) = probe(&variables, args);
        assert_eq!(code, Some(1));
        assert!(line.starts_with("unhealthy: cannot reach "), "{line}");
        assert!(line.contains("refused"), "{line}");
    }
}

#[test]
fn a_socket_is_asked_where_the_server_has_one() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("limits.sock");
    let path = path.to_str().unwrap();
    let _server = tollgate::with_rules(RULES).env("GRPC_UDS", path).start();
    let line = format!("healthy: {path} (gRPC)");
    check(&[("GRPC_UDS", path)], &[], 0, &line);
}

/// An alert fires on handshakes that fail, so a probe must not cause any.
#[test]
fn a_port_with_tls_is_left_alone() {
    let ours = Authority::new("ours");
    let secret = certificates::mount(&ours.issue("tollgate.limits.example"), &ours);
    let server = certificates::serving(tollgate::with_rules(RULES), &secret).start();
    let [grpc, http] = ports(&server);
    let ports = [("GRPC_PORT", &*grpc), ("PORT", &*http)];
    let variables = [("GRPC_SERVER_USE_TLS", "true"), ports[0], ports[1]];
    let line = format!("healthy: {} (HTTP)", server.http);
    check(&variables, &[], 0, &line);
    let page = server.page("/metrics");
    let name = "tollgate_tls_handshakes_failed_total{";
    let mut failed = page.lines().filter(|line| line.starts_with(name));
    assert!(failed.all(|line| line.ends_with(" 0")), "{page}");
}

#[test]
fn a_server_that_is_silent_or_not_there_is_unhealthy_and_a_bad_variable_is_named() {
    // It accepts, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    for (variable, args, protocol) in [
        ("GRPC_PORT", &[][..], "gRPC"),
        ("PORT", &["--http"], "HTTP"),
    ] {
        let (code, said) = probe_for("100ms", &[(variable, &port)], args);
        assert_eq!(code, Some(1));
        let expected = format!("unhealthy: 127.0.0.1:{port} ({protocol}) ");
        assert!(said.starts_with(&expected), "{said}");
    }
    let (code, line) = probe(&[("GRPC_PORT", &free_port().to_string())], &[]);
    assert_eq!(code, Some(1), "{line}");
    let output = finish(program().arg("healthcheck").env("GRPC_PORT", "many"));
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("GRPC_PORT"), "{said}");
}
