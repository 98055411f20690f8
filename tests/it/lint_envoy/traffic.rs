//! The requests that pass a real Envoy because of a trap.

use std::net::{SocketAddr, TcpListener};

use crate::support::{
    envoy::Envoy,
    http::{get_with, try_get},
    tollgate,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: api_key
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: path
    rate_limit: { unit: year, requests_per_unit: 2 }
";

/// The configuration with one listener for each trap, named after it, and others
/// that have none.
const UNLIMITED: &str = include_str!("unlimited.yaml");

fn start(tollgate: SocketAddr, silent: SocketAddr) -> Envoy {
    Envoy::start(|| {
        UNLIMITED
            .replace("$TOLLGATE", &tollgate.port().to_string())
            .replace("$SILENT", &silent.port().to_string())
    })
}

#[test]
fn a_real_envoy_limits_nothing_where_a_trap_is_found() {
    let tollgate = tollgate::with_rules(RULES).start();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let envoy = start(tollgate.grpc, silent.local_addr().unwrap());
    let codes = |listener: &str, path: fn(u8) -> String, key: Option<&[u8]>| {
        let front = envoy.listener(listener);
        let headers: Vec<_> = key.map(|key| ("x-api-key", key)).into_iter().collect();
        [1, 2, 3, 4].map(|number| get_with(front, &path(number), &headers).status)
    };
    let plain = |_: u8| "/".to_owned();
    let is_limited = [200, 200, 429, 429];
    assert_eq!(codes("good", plain, Some(b"a")), is_limited);
    assert_eq!(codes("absent-value", plain, Some(b"b")), is_limited);
    assert_eq!(codes("absent-value", plain, None), [200; 4]);
    assert_eq!(
        codes("absent-value", |_| "/skip".to_owned(), None),
        [200; 4]
    );
    assert_eq!(codes("query-string", plain, None), is_limited);
    let changing = |number: u8| format!("/?x={number}");
    assert_eq!(codes("query-string", changing, None), [200; 4]);
    for trap in [
        "filter-disabled",
        "route-disabled",
        "unknown-cluster",
        "no-filter",
    ] {
        assert_eq!(codes(trap, plain, Some(b"c")), [200; 4], "{trap}");
    }
    assert_eq!(codes("redirect", plain, Some(b"d")), [301; 4]);
    // The key of a route's settings is the name of the filter, whatever its type is.
    let name = "route-filter-name";
    assert_eq!(codes(name, plain, None), [200; 4]);
    assert_eq!(codes(name, |_| "/router".to_owned(), None), [200; 4]);
    assert_eq!(codes(name, |_| "/right".to_owned(), None), is_limited);
    assert_eq!(codes(name, |_| "/wrapped".to_owned(), None), is_limited);
    assert_eq!(codes("list-of-one", plain, None), is_limited);
    // The fixes that are suggested.
    assert_eq!(codes("enabled", plain, Some(b"e")), is_limited);
    assert_eq!(
        codes("good", |number| format!("/expression?x={number}"), None),
        is_limited
    );
    assert_eq!(
        codes("good", |_| "/other-item".to_owned(), None),
        is_limited
    );
}

/// The timeout there is an hour, so an answer at all shows that another one applies.
#[test]
fn a_real_envoy_does_not_use_a_timeout_below_grpc_service() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap();
    let envoy = start(silent_port, silent_port);
    let front = envoy.listener("service-timeout");
    let reply = try_get(front, "/", &[("x-api-key", b"k")]).expect("it is answered");
    assert_eq!(reply.status, 200);
    assert_eq!(envoy.stat("cluster.silent.upstream_rq_timeout"), 1);
}

/// Each trap is found on its listener, and the other listeners have none.
#[test]
fn the_traps_of_that_envoy_are_found() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("unlimited.yaml");
    let text = UNLIMITED.replace("$TOLLGATE", "1").replace("$SILENT", "2");
    std::fs::write(&file, &text).unwrap();
    let (_, said) = super::run(&[&file.display().to_string()]);
    let mut found: Vec<_> = super::lines(&said, &file)
        .into_iter()
        .map(|found| {
            let line: usize = found.line.parse().unwrap();
            let before = text.lines().take(line);
            let names = before.filter_map(|line| line.strip_prefix("    - name: "));
            (names.last().unwrap_or_default(), found.trap)
        })
        .collect();
    found.dedup();
    let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
    for (listener, trap) in &found {
        assert_eq!(listener, trap, "{said}");
    }
    let expected = [
        "absent-value",
        "query-string",
        "filter-disabled",
        "route-disabled",
        "unknown-cluster",
        "no-filter",
        "redirect",
        "service-timeout",
        "route-filter-name",
        "list-of-one",
    ];
    assert_eq!(names, expected, "{said}");
}
