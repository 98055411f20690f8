//! Attacks of end users, far clients and web pages.

use std::fmt::Write as _;

use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{
    super::{
        ask::{ask, connect},
        attack::Size,
        envoy::Envoy,
        http::{get_with, post_json},
        json,
        tollgate::with_rules,
    },
    Effect, with_limit,
};

/// A descriptor with five hits, and then a reset that comes through an Envoy beside the server.
pub(super) fn reset_through_a_proxy(_: Size) -> Effect {
    const DESCRIPTOR: &str =
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let folder = TempDir::new().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "sesame\n").unwrap();
    let server = with_limit()
        .args(["--admin-token-file", token.to_str().unwrap()])
        .start();
    for _ in 0..5 {
        json::send(server.http, "POST", "/json", DESCRIPTOR.as_bytes());
    }
    let hits = || {
        let reply = post_json(server.debug, "/counters/get", DESCRIPTOR).unwrap();
        let reply: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        let counter = &reply["descriptors"][0]["counters"][0];
        counter["hits"].as_u64().unwrap_or(0)
    };
    let envoy = Envoy::before(server.debug.port());
    let before = hits();
    let address = envoy.listener("all");
    let status = post_json(address, "/counters/reset", DESCRIPTOR)
        .unwrap()
        .status;
    let after = hits();
    Effect {
        text: format!("{status}, {before} hits -> {after}"),
        is_harmless: status == 403 && [before, after] == [5, 5],
    }
}

/// Calls with a value of which almost every piece is almost the text of a wildcard.
pub(super) fn long_value_for_wildcards(size: Size) -> Effect {
    let rules = (0..300).fold(
        String::from("domain: d\ndescriptors:\n"),
        |mut rules, number| {
            let _ = writeln!(
                rules,
                "- {{key: k, value: '*badbot{number}*', rate_limits: [1/day]}}"
            );
            rules
        },
    );
    let server = with_rules(&rules).start();
    let value = "badbo".repeat(12_000);
    let calls = size.of(100);
    let before = server.processor_time();
    let answered = Runtime::new().unwrap().block_on(async {
        let mut client = connect(server.grpc).await;
        let mut answered = 0;
        for _ in 0..calls {
            answered += usize::from(ask(&mut client, "d", &[("k", &value)]).await.is_ok());
        }
        answered
    });
    let spent = (server.processor_time() - before).as_secs_f64() * 1000.0;
    Effect {
        text: format!("{:.1} ms a call", spent / calls as f64),
        is_harmless: answered == calls,
    }
}

/// Reads the pages of the debug port over loopback, under the name of another site.
pub(super) fn rebound_page(_: Size) -> Effect {
    const PAGES: [&str; 5] = [
        "/rules",
        "/settings",
        "/top",
        "/explain?domain=d&descriptor=k=v",
        "/snapshot",
    ];
    let server = with_limit().start();
    let headers: [(&str, &[u8]); 3] = [
        ("host", b"rebind.evil.example"),
        ("origin", b"http://rebind.evil.example"),
        ("sec-fetch-site", b"same-origin"),
    ];
    let is_read = |page: &&str| get_with(server.debug, page, &headers).status == 200;
    let read = PAGES.iter().filter(|page| is_read(page)).count();
    Effect {
        text: format!("{read} of {} pages read", PAGES.len()),
        is_harmless: read == 0,
    }
}
