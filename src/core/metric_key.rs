//! The keys under which statistics are counted: one segment for each entry, as the reference writes them.

use crate::core::{counter::Joined, limit::Metric, matcher::Domain, request::Entry};

/// The key for the rule of `rules` that `entries` match; `domain` is the name of the domain.
pub(super) fn of_rule(
    rules: Domain<'_>,
    domain: &[u8],
    entries: &[Entry<'_>],
    metric: Metric,
) -> String {
    let mut joined = Joined::new();
    let mut shares = false;
    rules.walk(entries, &mut joined, |_, _, level| {
        shares |= level.is_wildcard() && level.shared_value().is_some();
    });
    let mut key = domain.to_vec();
    let mut push = |parts: [&[u8]; 3]| {
        key.push(b'.');
        key.extend(parts.concat());
    };
    let separator_if = |has_value| -> &[u8] { if has_value { b"_" } else { b"" } };
    rules.walk(entries, &mut joined, |_, entry, level| {
        let is_shared = level.is_wildcard() && level.shared_value().is_some();
        let is_exact = !level.is_wildcard() && !level.value().is_empty();
        match metric {
            Metric::AllValues if !is_shared => {
                let separator = separator_if(!(entry.value.is_empty() && shares));
                push([entry.key, separator, entry.value]);
            }
            Metric::SomeValues if level.reports_value() && !is_shared && !is_exact => {
                let separator = separator_if(!entry.value.is_empty());
                push([level.key(), separator, entry.value]);
            }
            _ => {
                let separator = separator_if(!level.value().is_empty());
                push([level.key(), separator, level.value()]);
            }
        }
    });
    String::from_utf8_lossy(&key).into_owned()
}

/// The key for a limit that a request brings.
pub(super) fn of_override(domain: &[u8], entries: &[Entry<'_>]) -> String {
    let mut key = domain.to_vec();
    for Entry { key: name, value } in entries {
        key.push(b'.');
        key.extend_from_slice(name);
        if !value.is_empty() {
            key.push(b'_');
            key.extend_from_slice(value);
        }
    }
    String::from_utf8_lossy(&key).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::matcher::{Matcher, NodeId, tests::matcher};

    #[track_caller]
    fn check_metric(
        paths: &[&[&str]],
        flag: impl FnOnce(&mut Matcher),
        entries: &[(&str, &str)],
        metric: Metric,
        expected: &str,
    ) {
        let mut matcher = matcher(paths);
        flag(&mut matcher);
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| Entry {
                key: key.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let domain = matcher.domain(b"d").unwrap();
        let key = of_rule(domain, b"d", &entries, metric);
        assert_eq!(key, expected);
    }

    /// Flags the nodes with these numbers; the root is 0.
    fn reports(nodes: &'static [usize]) -> impl FnOnce(&mut Matcher) {
        |matcher| {
            nodes
                .iter()
                .for_each(|&node| matcher.report_values(NodeId(node)))
        }
    }

    #[test]
    fn statistics_are_named_as_in_the_reference() {
        let route: &[&[&str]] = &[&["route", "method=GET", "id"]];
        let entries = &[("route", "draw"), ("method", "GET"), ("id", "1")];
        let some = Metric::SomeValues;
        check_metric(
            route,
            reports(&[1]),
            entries,
            some,
            "d.route_draw.method_GET.id",
        );
        check_metric(
            route,
            reports(&[1, 3]),
            entries,
            some,
            "d.route_draw.method_GET.id_1",
        );
        // A node with an exact value keeps that value.
        check_metric(route, reports(&[2]), entries, some, "d.route.method_GET.id");
        let empty = &[("route", ""), ("method", "GET"), ("id", "")];
        check_metric(route, reports(&[1]), empty, some, "d.route.method_GET.id");
        let wild: &[&[&str]] = &[&["w=x*"]];
        check_metric(wild, reports(&[]), &[("w", "xy")], some, "d.w_x*");
        check_metric(wild, reports(&[1]), &[("w", "xy")], some, "d.w_xy");

        let all = Metric::AllValues;
        check_metric(&[&["det"]], reports(&[]), &[("det", "")], all, "d.det_");
        check_metric(&[&["det"]], reports(&[]), &[("det", "v")], all, "d.det_v");
        // Neither a wildcard without `share` nor the exact text of a pattern shares its values.
        let two: &[&[&str]] = &[&["w=x*", "ep"]];
        let empty = &[("w", "xy"), ("ep", "")];
        check_metric(two, reports(&[]), empty, all, "d.w_xy.ep_");
        let shared: &[&[&str]] = &[&["svc=s/*", "ep"]];
        let share = |matcher: &mut Matcher| matcher.share(NodeId(1), b"s/*");
        check_metric(
            shared,
            share,
            &[("svc", "s/1"), ("ep", "")],
            all,
            "d.svc_s/*.ep",
        );
        let written = &[("svc", "s/*"), ("ep", "")];
        check_metric(shared, share, written, all, "d.svc_s/*.ep_");
        check_metric(
            shared,
            share,
            &[("svc", "s/1"), ("ep", "e")],
            all,
            "d.svc_s/*.ep_e",
        );
        let both = |matcher: &mut Matcher| {
            matcher.share(NodeId(1), b"s/*");
            matcher.report_values(NodeId(1));
        };
        check_metric(
            shared,
            both,
            &[("svc", "s/1"), ("ep", "e")],
            some,
            "d.svc_s/*.ep",
        );
    }
}
