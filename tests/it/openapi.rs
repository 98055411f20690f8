//! `docs/openapi.yaml` against a running server: it has every path, and replies as it says.

use std::{collections::BTreeSet, fs, net::SocketAddr, path::Path};

use serde_json::Value;

use crate::support::{
    json::{self, Reply},
    tollgate::{self, Tollgate},
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
            if method != "servers" {
                let method = method.to_ascii_uppercase();
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

    /// The path, with a query of all parameters that have an example.
    fn target(&self) -> String {
        let parameters = self.about["parameters"].as_array();
        let query: Vec<_> = parameters
            .into_iter()
            .flatten()
            .filter_map(|parameter| {
                let example = parameter["example"].as_str()?;
                Some(format!("{}={example}", parameter["name"].as_str()?))
            })
            .collect();
        match query.is_empty() {
            true => self.path.to_owned(),
            false => format!("{}?{}", self.path, query.join("&")),
        }
    }

    /// The example of its body.
    fn body(&self, document: &Value) -> String {
        let mut body = &self.about["requestBody"];
        if let Some(name) = body["$ref"].as_str() {
            body = document.pointer(name.strip_prefix('#').unwrap()).unwrap();
        }
        match &body["content"]["application/json"]["example"] {
            Value::Null => String::new(),
            example => example.to_string(),
        }
    }

    /// The media type that a reply with this status must have; none if it has no body.
    #[track_caller]
    fn media_type<'d>(&'d self, document: &'d Value, status: u16) -> Option<&'d str> {
        let mut reply = &self.about["responses"][status.to_string()];
        assert!(
            !reply.is_null(),
            "{} {} may not be {status}",
            self.method,
            self.path
        );
        if let Some(name) = reply["$ref"].as_str() {
            reply = document.pointer(name.strip_prefix('#').unwrap()).unwrap();
        }
        let content = reply.get("content")?.as_object().unwrap();
        content.keys().next().map(String::as_str)
    }

    #[track_caller]
    fn check(&self, document: &Value, reply: &Reply) {
        let found = reply.content_type.split(';').next().unwrap();
        let expected = self.media_type(document, reply.status).unwrap_or_default();
        assert_eq!(found, expected, "{} {}: {reply:?}", self.method, self.path);
    }
}

#[test]
fn every_operation_replies_as_the_document_says() {
    let document = document();
    let folder = tempfile::TempDir::new().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "sesame").unwrap();
    let server = tollgate::with_rules(RULES)
        .args(["--admin-token-file", token.to_str().unwrap()])
        .start();
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

#[test]
fn every_refusal_of_json_is_in_the_document() {
    let document = document();
    let operations = operations(&document);
    let json = operations
        .iter()
        .find(|operation| operation.path == "/json")
        .unwrap();
    let server = tollgate::with_rules(RULES)
        .env("TOLLGATE_MAX_MESSAGE_BYTES", "1000")
        .start();
    let good = json.body(&document);
    let long = " ".repeat(2000);
    let json_type = "content-type: application/json\r\n";
    for (method, headers, body, expected) in [
        ("POST", json_type, &*good, 200),
        ("POST", json_type, &*good, 429),
        ("POST", json_type, "{", 400),
        ("GET", json_type, "", 405),
        ("POST", json_type, &*long, 413),
        ("POST", "", &*good, 415),
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
    let documented: BTreeSet<_> = operations
        .iter()
        .filter(|operation| operation.tag() == "debug")
        .map(|operation| operation.path)
        .collect();
    let server = tollgate::with_rules(RULES).start();
    let page = server.page("/");
    let listed: BTreeSet<_> = page
        .lines()
        .map(|line| line.split_once(": ").unwrap().0)
        .map(|page| page.trim_start_matches("POST "))
        .map(|page| page.split_once('?').map_or(page, |(path, _)| path))
        .collect();
    assert_eq!(listed, documented);
}
