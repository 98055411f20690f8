//! Announces the end of a start: the ready line, and lines for people on a terminal.

use std::{env, fmt::Write as _, net::SocketAddr};

use super::{
    log::Log,
    parts::Parts,
    ports::{Addresses, GrpcListener},
};
use crate::{
    core::{limit::Allows, matcher::Matcher},
    foundation::build::VERSION_AND_COMMIT,
};

/// Logs the ready line: version, addresses, TLS, store, modes and number of rules. A terminal gets lines for people
/// too.
pub(super) fn announce(
    (grpc, addresses, store): (&GrpcListener, &Addresses, &str),
    parts: &Parts<'_>,
    workers: usize,
    log: &Log,
) {
    let settings = parts.settings;
    let rules = parts.rules.current();
    let tls = grpc.tls(&settings.tls);
    let is_on = settings.listen.http_json;
    tracing::info!(
        version = VERSION_AND_COMMIT,
        %grpc,
        tls,
        http = addresses.http,
        json = if is_on { "on" } else { "off" },
        debug = addresses.debug,
        prometheus = addresses.prometheus,
        store,
        modes = settings.modes(),
        rules = rules.as_ref().map_or(0, |rules| rules.matcher.rules().len()),
        workers,
        memory_mb = parts.memory_limit / 1_000_000,
        counters = parts.memory.counters.fixed_windows(),
        connections = parts.memory.connections,
        "tollgate is ready"
    );
    let grpc = grpc.to_string();
    let mut lines = format!("page:   http://{}/\n", reachable(&addresses.debug));
    let matcher = rules.as_ref().map(|rules| &rules.matcher);
    let program = env::args().next();
    if let (Some(program), "off", Some(example)) = (program, tls, matcher.and_then(example)) {
        let server = match &*reachable(&grpc) {
            "127.0.0.1:8081" => String::new(),
            path if path.starts_with('/') => format!("--server unix://{path} "),
            address => format!("--server http://{address} "),
        };
        let _ = writeln!(lines, "try:    {program} ask {server}{example}");
    }
    lines += "Envoy:  deploy/envoy/envoy.yaml asks port 8081; docs/envoy/envoy.md explains it\n";
    let json = is_on.then_some((&addresses.http, "/json"));
    let grpc = (tls == "off").then_some((&grpc, "gRPC without TLS"));
    let open = [grpc, json].into_iter().flatten();
    let open = open.filter(|(address, _)| is_for_others(address));
    let open: Vec<_> = open
        .map(|(address, what)| format!("{what} ({address})"))
        .collect();
    if !open.is_empty() {
        let _ = writeln!(
            lines,
            "open to every host that reaches this one: {}",
            open.join(", ")
        );
    }
    log.print_on_terminal(&lines);
}

fn is_for_others(address: &str) -> bool {
    address
        .parse::<SocketAddr>()
        .is_ok_and(|address| !address.ip().is_loopback())
}

/// `address` as a client on this machine would write it.
fn reachable(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(every) if every.ip().is_unspecified() => format!("127.0.0.1:{}", every.port()),
        _ => address.to_owned(),
    }
}

/// The arguments of `tollgate ask` for a simple rule with a limit, whose texts no shell changes.
fn example(matcher: &Matcher) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:@=".contains(&byte);
    let domains = matcher.domain_names().iter();
    let found = domains.flat_map(|domain| {
        let mut path = vec![String::from_utf8_lossy(domain).into_owned()];
        matcher
            .outline(domain)
            .into_iter()
            .filter_map(move |found| {
                let (key, value) = matcher.key_and_value(found.node);
                let value = match (key, value) {
                    (b"remote_address" | b"masked_remote_address", b"") => "192.0.2.1".into(),
                    (_, b"") => "x".into(),
                    (_, value) => String::from_utf8_lossy(value).replace('*', "x"),
                };
                path.truncate(found.depth);
                path.push(format!("{}={value}", String::from_utf8_lossy(key)));
                let rule = matcher.rule(found.node)?;
                let is_plain = path.iter().all(|text| text.bytes().all(is_plain));
                (is_plain && matches!(rule.allows, Allows::Within(_))).then(|| path.clone())
            })
    });
    // The shortest path, with the example address if possible.
    let path = found.min_by_key(|path| (path.len(), !path[1].ends_with("192.0.2.1")))?;
    let (domain, entries) = path.split_first()?;
    Some(format!("--domain {domain} -d {}", entries.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{files::Files, rule_defaults::Options};

    #[test]
    fn the_example_reaches_a_rule_with_a_limit_and_no_shell_changes_it() {
        let rules = "\
domain: shop
descriptors:
  - key: \"user name\"
    rate_limits: [1/s]
  - key: plan
    value: free*
    descriptors:
      - {key: health, unlimited: true}
      - {key: remote_address, rate_limits: [3/s]}
";
        let loaded = Files::of("rules.yaml", rules).compile(Options::default());
        let example = example(&loaded.unwrap().matcher);
        let expected = "--domain shop -d plan=freex,remote_address=192.0.2.1";
        assert_eq!(example.as_deref(), Some(expected));
    }
}
