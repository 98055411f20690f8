//! `docs/openapi.yaml` against a running server: it has every path, and replies as it says.

use std::{collections::BTreeSet, fs, net::SocketAddr, path::Path, process::Command};

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{files, path};
use crate::support::{
    json::{self, Reply},
    tollgate::{self, Tollgate},
    tool,
};

const RULES: &str = "domain: shop
descriptors:
  - key: remote_address
    rate_limits: [1/year]
";

fn document() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.yaml");
    serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// One operation: its path, its method, and its description.
struct Operation<'d> {
    path: &'d str,
    method: String,
    about: &'d Value,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, about) in methods.as_object().unwrap() {
            let method = method.to_ascii_uppercase();
            if method != "SERVERS" {
                found.push(Operation {
                    path,
                    method,
                    about,
                });
            }
        }
    }
    found
}

impl Operation<'_> {
    fn tag(&self) -> &str {
        self.about["tags"][0].as_str().unwrap()
    }

    fn port(&self, server: &Tollgate) -> SocketAddr {
        match self.tag() {
            "http" => server.http,
            "debug" => server.debug,
            tag => panic!("no port is called {tag}"),
        }
    }

    /// The path, with all parameters that have an example.
    fn target(&self) -> String {
        let parameters = self.about["parameters"].as_array();
        let (mut path, mut query) = (self.path.to_owned(), Vec::new());
        for parameter in parameters.into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let Some(example) = parameter["example"].as_str() else {
                continue;
            };
            match parameter["in"].as_str() {
                Some("path") => path = path.replace(&format!("{{{name}}}"), example),
                _ => query.push(format!("{name}={example}")),
            }
        }
        match query.is_empty() {
            true => path,
            false => format!("{path}?{}", query.join("&")),
        }
    }

    /// The example of its body.
    fn body(&self, document: &Value) -> String {
        let body = resolved(document, &self.about["requestBody"]);
        match &body["content"]["application/json"]["example"] {
            Value::Null => String::new(),
            example => example.to_string(),
        }
    }

    /// The media types that a reply with this status may have; none if it has no body.
    #[track_caller]
    fn media_types<'d>(&'d self, document: &'d Value, status: u16) -> Vec<&'d str> {
        let reply = &self.about["responses"][status.to_string()];
        assert!(!reply.is_null(), "{} may not be {status}", self.path);
        let content = resolved(document, reply).get("content");
        let content = content.and_then(Value::as_object);
        let types = content.into_iter().flat_map(serde_json::Map::keys);
        types.map(String::as_str).collect()
    }

    #[track_caller]
    fn check(&self, document: &Value, reply: &Reply) {
        let found = reply.content_type.split(';').next().unwrap();
        let expected = self.media_types(document, reply.status);
        let is_known = expected.contains(&found) || (expected.is_empty() && found.is_empty());
        assert!(is_known, "{}: {expected:?} {reply:?}", self.path);
    }
}

/// A part of the document, or what it refers to.
fn resolved<'d>(document: &'d Value, part: &'d Value) -> &'d Value {
    let Some(name) = part["$ref"].as_str() else {
        return part;
    };
    document.pointer(name.strip_prefix('#').unwrap()).unwrap()
}

/// A server that needs the token `sesame` for changes, and the folder of the token.
fn with_token() -> (Tollgate, TempDir) {
    let folder = files(&[("token", "sesame")]);
    let token = format!("{}/token", path(&folder));
    let builder = tollgate::with_rules(RULES);
    (builder.args(["--admin-token-file", &token]).start(), folder)
}

#[test]
fn every_operation_replies_as_the_document_says() {
    let document = document();
    let (server, _folder) = with_token();
    let headers = "content-type: application/json\r\nauthorization: Bearer sesame\r\n";
    for operation in operations(&document) {
        let port = operation.port(&server);
        let (method, target) = (&*operation.method, operation.target());
        let body = operation.body(&document);
        let reply = json::send_with(port, method, &target, headers, body.as_bytes());
        assert_eq!(reply.status, 200, "{method} {target}: {reply:?}");
        operation.check(&document, &reply);
    }
}

/// Requests that the document allows, and others: each reply has a status, a type and a content of the document, valid
/// requests are accepted and invalid ones refused. The seed is fixed, so that every run sends the same requests.
#[track_caller]
fn check_port(tag: &str, port: fn(&Tollgate) -> SocketAddr) {
    let (server, folder) = with_token();
    let port = port(&server);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(tool("schemathesis"))
        .arg("--config-file")
        .arg(root.join("tests/it/openapi_checks.toml"))
        .arg("run")
        .arg(root.join("docs/openapi.yaml"))
        .args(["--url", &format!("http://{port}"), "--include-tag", tag])
        .args(["--header", "authorization: Bearer sesame"])
        .args(["--request-timeout", "30", "--seed", "20", "--no-color"])
        // It keeps notes on its runs there.
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tag}:\n{text}{errors}");
    let document = document();
    let operations = operations(&document).into_iter();
    let tagged = operations.filter(|operation| operation.tag() == tag);
    let all = format!("Tested: {}\n", tagged.count());
    assert!(text.contains(&all), "not all of {tag}:\n{text}");
    assert!(server.page("/").contains("/metrics"), "it is still there");
}

#[test]
fn requests_made_of_the_document_are_answered_by_the_http_port_as_it_says() {
    check_port("http", |server| server.http);
}

#[test]
fn requests_made_of_the_document_are_answered_by_the_debug_port_as_it_says() {
    check_port("debug", |server| server.debug);
}

#[test]
fn every_refusal_of_json_is_in_the_document() {
    let document = document();
    let operations = operations(&document);
    let mut all = operations.iter();
    let json = all.find(|operation| operation.path == "/json").unwrap();
    let server = tollgate::with_rules(RULES).start();
    let good = json.body(&document);
    let long = " ".repeat(300_000);
    let json_type = "content-type: application/json\r\n";
    for (method, headers, body, expected) in [
        ("POST", json_type, &*good, 200),
        ("POST", json_type, &*good, 429),
        ("POST", json_type, "{", 400),
        ("GET", json_type, "", 405),
        ("POST", json_type, &*long, 413),
        ("POST", "origin: http://other.example\r\n", &*good, 403),
    ] {
        let reply = json::send_with(server.http, method, "/json", headers, body.as_bytes());
        assert_eq!(reply.status, expected, "{body}");
        json.check(&document, &reply);
    }
}

#[test]
fn the_debug_port_lists_the_paths_of_the_document() {
    let document = document();
    let operations = operations(&document);
    let documented = operations.iter().filter(|one| one.tag() == "debug");
    let documented: BTreeSet<_> = documented.map(|operation| operation.path).collect();
    let server = tollgate::with_rules(RULES).start();
    let page = server.page("/");
    let listed = page.lines().map(|line| {
        let (page, _) = line.split_once(": ").unwrap();
        page.trim_start_matches("POST ").split('?').next().unwrap()
    });
    let listed: BTreeSet<_> = listed.collect();
    assert_eq!(listed, documented);
}
