//! Clients of gRPC's C-core: Python's grpcio, and Envoy's `google_grpc`, which is in `envoy`.
//!
//! They spell out the name `:authority`, and over a Unix socket its value is the path of the socket,
//! which is no authority.

use std::{path::Path, process::Command};

use ::tollgate::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use prost::Message as _;
use tempfile::TempDir;

use crate::support::{
    ask::{descriptor, request},
    certificates::{Authority, Secret},
    finish,
    tollgate::{self, Tollgate},
    tool,
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: year, requests_per_unit: 2 }
";

const ISTIO: &str = "outbound|8081||tollgate.tollgate.svc.cluster.local";

/// How calls of one channel of grpcio end: with an overall code, or with an error.
#[track_caller]
fn grpcio(target: &str, value: &str, calls: usize, args: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/grpcio_ask.py");
    let message = request("d", vec![descriptor(&[("k", value)])]).encode_to_vec();
    let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
    let output = finish(
        Command::new(tool("python3"))
            .arg(script)
            .args([target, &hex, &calls.to_string()])
            .args(args),
    );
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (said, errors) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{errors}");
    said.lines().map(ending).collect()
}

fn ending(line: &str) -> String {
    let Some(hex) = line.strip_prefix("OK ") else {
        return line.to_owned();
    };
    let bytes: Vec<_> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    let reply = RateLimitResponse::decode(&bytes[..]).unwrap();
    format!("{:?}", reply.overall_code())
}

/// Two channels in turn: the limit of each value is enforced, and no stream is reset.
#[track_caller]
fn check_limited(server: &Tollgate, target: &str, args: &[&str], replaced: bool) {
    for value in ["a", "b"] {
        let expected = ["Ok", "Ok", "OverLimit", "OverLimit"];
        assert_eq!(
            grpcio(target, value, 4, args),
            expected,
            "{target} {args:?}"
        );
    }
    let count = server.metric("tollgate_authorities_replaced_total");
    assert_eq!(count > 0, replaced, "{count}");
    assert_eq!(server.metric("tollgate_authorities_refused_total"), 0);
}

#[test]
fn over_a_unix_socket_grpcio_is_limited() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tollgate.sock").display().to_string();
    let server = tollgate::with_rules(RULES)
        .args(["--grpc-uds", &path])
        .start();
    check_limited(&server, &format!("unix:{path}"), &[], true);
}

#[test]
fn over_tcp_grpcio_is_limited() {
    let server = tollgate::with_rules(RULES).start();
    check_limited(&server, &server.grpc.to_string(), &[], false);
}

#[test]
fn under_a_mesh_s_name_grpcio_is_limited() {
    let server = tollgate::with_rules(RULES).start();
    let args = ["--authority", ISTIO];
    check_limited(&server, &server.grpc.to_string(), &args, true);
    server.log().with(ISTIO);
}

/// All that a path or a name may hold: C-core sends it as it is.
#[test]
fn under_any_name_grpcio_is_limited() {
    let server = tollgate::with_rules(RULES).start();
    let target = server.grpc.to_string();
    for name in ["<tollgate>", "a:b:c:d", "{x}^`", "tollgäte", "[", "a@"] {
        let replies = grpcio(&target, name, 3, &["--authority", name]);
        assert_eq!(replies, ["Ok", "Ok", "OverLimit"], "{name}");
    }
    assert_eq!(server.metric("tollgate_authorities_refused_total"), 0);
}

#[test]
fn over_tls_grpcio_is_limited() {
    let authority = Authority::new("ours");
    let pair = authority.issue("tollgate.example");
    let secret = Secret::mount(&[
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &authority.certificate),
    ]);
    let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| secret.at(name));
    let server = tollgate::with_rules(RULES)
        .args(["--grpc-tls", "--grpc-tls-cert", &certificate])
        .args(["--grpc-tls-key", &key])
        .start();
    let args = ["--ca", &ca, "--server-name", "tollgate.example"];
    check_limited(&server, &server.grpc.to_string(), &args, false);
}
