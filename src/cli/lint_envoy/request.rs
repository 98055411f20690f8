//! Shows what Envoy sends for one request: its virtual host and route, the descriptors that items make or why they make
//! none, and the rules that these reach.

use std::collections::BTreeSet;

use super::{
    document::{EnvoyFile, EnvoyValue, quoted},
    groups::Reader,
    item::{Holder, ItemAction, KnownEntry, LimitItem},
    matching::{
        LintRequest, headers_match, host_for, is_set_by_envoy, parameters_match, route_for,
    },
    model::{EnvoyModel, LOOSE, Manager, RouteLevel},
    rules::KnownRules,
};
use crate::{
    core::{
        limit::{Allows, Rule},
        matcher::RuleOrigin,
    },
    foundation::printable::{Shown, on_one_line},
};

/// Most lines that are shown, and most settings, clusters, domains and rules in a list.
const MAX_LINES: usize = 100;
const MAX_LISTED: usize = 5;

/// Settings that can change the answer and are not read: of connection managers, route configurations, virtual hosts
/// and filters.
const UNREAD: [&str; 4] = [
    "normalize_path merge_slashes path_with_escaped_slashes_action strip_any_host_port strip_matching_host_port \
     scoped_routes early_header_mutation_extensions",
    "ignore_path_parameters_in_path_matching vhds internal_only_headers",
    "matcher require_tls",
    "filter_enabled request_type",
];

/// The value of an entry.
enum EntryValue {
    Known(String),
    /// A value that the configuration and the request do not show: its name.
    Unknown(String),
    /// The entry is left out (`skip_if_absent`).
    Skipped,
    /// The whole descriptor is left out, for this reason.
    Missing(String),
}

/// Shows a request in all connection managers that limit; `None` if the file has no routes.
pub(super) fn shown(
    file: &EnvoyFile<'_>,
    model: &EnvoyModel<'_>,
    request: &LintRequest,
    rules: Option<&KnownRules<'_>>,
) -> Option<String> {
    let groups = || model.groups.iter().filter(|(key, _)| **key != LOOSE);
    let mut managers = groups().flat_map(|(_, group)| &group.managers);
    let limits_somewhere = managers.any(|manager| !manager.lacks_filter());
    let mut view = RequestView {
        request,
        rules,
        lines: Vec::new(),
    };
    for (_, group) in groups() {
        let managers = group.managers.iter();
        for manager in managers.filter(|manager| !limits_somewhere || !manager.lacks_filter()) {
            if view.lines.len() >= MAX_LINES {
                break;
            }
            // Each table has a line.
            let tables = group.tables.iter().take(MAX_LINES);
            tables.for_each(|table| view.table(manager, table));
            if let Some(value) = manager.value.filter(|_| group.tables.is_empty()) {
                let name = quoted(value.text_of("stat_prefix"));
                let text = format!("{} at {name}: its routes are not in the file", request.text);
                view.line(0, text);
            }
        }
    }
    if view.lines.len() >= MAX_LINES {
        view.lines.truncate(MAX_LINES);
        view.line(0, "and more, which is not shown");
    }
    let places = file.places(view.lines.iter().filter_map(|line| line.2));
    let lines = view.lines.into_iter().map(|(depth, text, value)| {
        let path = value.and_then(|value| places.get(&value.id()));
        let line = value.and_then(|value| file.position(value));
        let line = line.map(|position| format!(" (line {})", position.line));
        let place = line.or_else(|| Some(format!(" ({})", path?.1)));
        let text = on_one_line(&text);
        format!("{}{text}{}", "  ".repeat(depth), place.unwrap_or_default())
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let mut tables = groups().flat_map(|(_, group)| &group.tables);
    tables.next().map(|_| text)
}

struct RequestView<'m, 'd, 'r> {
    request: &'m LintRequest,
    rules: Option<&'m KnownRules<'r>>,
    /// Each with its depth and the value that it is about.
    lines: Vec<(usize, String, Option<EnvoyValue<'d>>)>,
}

impl<'d> RequestView<'_, 'd, '_> {
    fn line(&mut self, depth: usize, text: impl Into<String>) {
        self.lines.push((depth, text.into(), None));
    }

    /// Adds a line about a value, which gets its own line or its path.
    fn line_at(&mut self, depth: usize, value: EnvoyValue<'d>, text: String) {
        self.lines.push((depth, text, Some(value)));
    }

    fn table(&mut self, manager: &Manager<'d>, table: &RouteLevel<'d>) {
        let value = manager.value.unwrap_or(table.value);
        let name = quoted(value.text_of("stat_prefix"));
        self.line(0, format!("{} at {name}", self.request.text));
        let host = host_for(table, self.request);
        let found = host.map(|host| route_for(host, self.request));
        let (route, earlier) = found.unwrap_or_default();
        let of_host = host.map(|host| unread(host.value, 2));
        let of_host = of_host.into_iter().flatten().chain(earlier);
        let of_table = unread(value, 0).chain(unread(table.value, 1));
        let filters = || (value, "filters that the file does not show".to_owned());
        let filters = manager.has_unknown_filter.then(filters);
        self.unread(1, of_table.chain(filters).chain(of_host));
        let Some(host) = host else {
            return self.line(1, "no virtual host that is read takes it: 404, and no call");
        };
        let domains = host.value.list("domains").into_iter().take(MAX_LISTED);
        let domains = domains.filter_map(EnvoyValue::text).map(quoted);
        let domains = domains.collect::<Vec<_>>().join(", ");
        let name = quoted(host.value.text_of("name"));
        let text = format!("virtual host {name} for {domains}");
        self.line_at(1, host.value, text);
        let Some(route) = route else {
            return self.line(1, "no route that is read takes it: 404, and no call");
        };
        let (value, mut text) = (route.value, "route".to_owned());
        if let Some((key, first)) = value.get("match").and_then(|of| of.children().next()) {
            let condition = first.text().unwrap_or_else(|| first.text_of("regex"));
            text += &format!(" {key} {}", quoted(condition));
        }
        if let Some(cluster) = value.at(&["route", "cluster"]).and_then(EnvoyValue::text) {
            text += &format!(" to the cluster {}", quoted(cluster));
        }
        self.line_at(1, value, text);
        if !value.has("route") {
            return self.line(1, "Envoy answers it, and the filter does nothing: no call");
        }
        if manager.filters.is_empty() {
            self.line(1, "no rate limit filter: no call");
        }
        for filter in manager.filters.iter().take(MAX_LINES) {
            let reader = Reader::new(filter).at(table).at(host).at(route);
            let mut clusters = route.below.iter();
            if !clusters.any(|cluster| !cluster.configs.is_empty()) {
                self.filter(reader, [host, route], "");
                continue;
            }
            for cluster in route.below.iter().take(MAX_LISTED) {
                let name = quoted(cluster.value.text_of("name"));
                let when = format!(", if Envoy picks the cluster {name}");
                self.filter(reader.at(cluster), [host, route], &when);
            }
        }
    }

    /// Names settings that are not read, each once.
    fn unread(&mut self, depth: usize, found: impl Iterator<Item = (EnvoyValue<'d>, String)>) {
        let mut named = BTreeSet::new();
        for (value, text) in found {
            if named.len() <= MAX_LISTED && named.insert(text.clone()) {
                let others = named.len() > MAX_LISTED;
                let text = if others { "others" } else { text.as_str() };
                self.line_at(depth, value, format!("not read: {text}"));
            }
        }
    }

    /// Shows the items that a filter reads.
    fn filter(&mut self, reader: Reader<'_, 'd>, at: [&RouteLevel<'d>; 2], when: &str) {
        let [host, route] = at;
        let (name, domain) = (quoted(reader.filter.name), quoted(reader.domain()));
        let stage = reader.filter.stage;
        let text = format!("filter {name}, domain {domain}, stage {stage}{when}");
        self.line(1, text);
        self.unread(2, unread(reader.filter.value, 3));
        if reader.is_disabled {
            return self.line(2, "it is disabled here: no call");
        }
        let takes_host = reader.takes_host(route) == Some(true);
        let of_host = host.items.iter().filter(|_| takes_host);
        let of_route = route.items.iter().chain(of_host);
        let items: Vec<_> = match reader.own_items() {
            [] => of_route.filter(|item| reader.is_for(item)).collect(),
            own => own.iter().collect(),
        };
        if items.is_empty() {
            self.line(2, "no item of `rate_limits` is for it: no call");
        }
        for item in items.into_iter().take(MAX_LINES) {
            self.item(item, reader.domain(), route);
        }
    }

    fn item(&mut self, item: &LimitItem<'d>, domain: &str, route: &RouteLevel<'_>) {
        let (mut shown, mut entries, mut is_needed) = (Vec::new(), Vec::new(), false);
        for action in item.actions() {
            let (key, settings) = (action.key.unwrap_or_default(), action.value);
            let (value, text) = match self.value(&action, route) {
                EntryValue::Skipped => continue,
                EntryValue::Missing(reason) => {
                    return self.line_at(2, item.value, format!("no descriptor: {reason}"));
                }
                EntryValue::Known(text) => (Some(text.clone()), Shown(text.as_bytes()).to_string()),
                EntryValue::Unknown(what) => {
                    let is_optional = settings.is_true("skip_if_absent");
                    is_needed |= !(is_optional || settings.has("default_value"));
                    let end = ["", ", or no entry"][usize::from(is_optional)];
                    (None, format!("<{what}{end}>"))
                }
            };
            shown.push(format!("{}={text}", Shown(key.as_bytes())));
            entries.push((key, value));
        }
        let when = ["", "at the end of the stream: "][usize::from(item.is_at_end)];
        // Without a value for its hits it is not sent; those of a route are not read.
        let hits = item.value.text_at(&["hits_addend", "format"]);
        let is_sure = hits.is_empty() || item.holder == Holder::Route;
        let condition = format!(" if {} has a value", quoted(hits));
        let condition = if is_sure { "" } else { &condition };
        let text = format!("{when}descriptor ({}){condition}", shown.join(", "));
        self.line_at(2, item.value, text);
        let is_known = entries.iter().all(|(_, value)| value.is_some());
        if !is_known {
            let end = ["", "; without them it is not made"][usize::from(is_needed)];
            self.line(3, format!("values in <> are not known here{end}"));
        }
        entries.truncate(entries.len().saturating_sub(item.order.iter().count()));
        let Some(rules) = self.rules else {
            return;
        };
        let known = entries.iter().map(|(key, value)| (*key, value.as_deref()));
        let known: Vec<KnownEntry<'_>> = known.collect();
        let Some(reached) = rules.reached(domain, &known) else {
            let text = "no rule file has this domain, or too many rules have these entries";
            return self.line(3, text);
        };
        if reached.is_empty() {
            self.line(3, "no rule matches: it passes");
        }
        for rule in reached.iter().take(MAX_LISTED) {
            let RuleOrigin { file, line } = rules.matcher.origin(rule.id);
            let some = if is_known { "" } else { "for some values " };
            let (path, line, limits) = (&rule.path, line.unwrap_or_default(), limits(rule));
            self.line(3, format!("{some}rule `{path}` ({file}:{line}): {limits}"));
        }
        if reached.len() > MAX_LISTED {
            self.line(3, "and others");
        }
    }

    fn value(&self, action: &ItemAction<'_>, route: &RouteLevel<'_>) -> EntryValue {
        let settings = action.value;
        let found = |value: Option<String>, what: &str, name: &str| match value {
            Some(value) => EntryValue::Known(value),
            None if settings.is_true("skip_if_absent") => EntryValue::Skipped,
            None => EntryValue::Missing(format!("the {what} {} is missing", quoted(name))),
        };
        let literal = settings.text_of("descriptor_value").to_owned();
        let expects = !settings.is_false("expect_match");
        let matched = |is: Result<bool, String>, what: &str| match is {
            Ok(is) if is == expects => EntryValue::Known(literal.clone()),
            Ok(_) => EntryValue::Missing(format!("its {what} do not match")),
            Err(unread) => EntryValue::Unknown(format!("{unread}, which is not read")),
        };
        let parameters = || parameters_match(settings, self.request, true);
        let unknown = |what: &str| EntryValue::Unknown(what.to_owned());
        let quoted_at = |keys: &[&str]| quoted(settings.text_at(keys));
        match action.kind {
            "generic_key" => EntryValue::Known(literal),
            "request_headers" => {
                let header = settings.text_of("header_name").to_ascii_lowercase();
                match self.request.header(&header) {
                    None if is_set_by_envoy(&header) => unknown(&header),
                    value => found(value.map(str::to_owned), "header", &header),
                }
            }
            "query_parameters" => {
                let name = settings.text_of("query_parameter_name");
                found(self.request.parameter(name, true), "query parameter", name)
            }
            "header_value_match" => matched(headers_match(settings, self.request), "headers"),
            "query_parameter_value_match" => matched(parameters(), "query parameters"),
            "destination_cluster" => match route.value.text_at(&["route", "cluster"]) {
                "" => unknown("the cluster that Envoy chooses"),
                cluster => EntryValue::Known(cluster.to_owned()),
            },
            "remote_address" => unknown("the address of the client"),
            "masked_remote_address" => unknown("the network of the client"),
            "remote_address_match" => unknown("whether the address of the client matches"),
            "source_cluster" => unknown("the `--service-cluster` of Envoy"),
            "metadata" | "dynamic_metadata" => {
                let key = quoted_at(&["metadata_key", "key"]);
                unknown(&format!("the metadata {key}"))
            }
            "extension" => unknown(&format!("the value of {}", quoted_at(&["text"]))),
            _ => unknown("an action that is not read"),
        }
    }
}

/// The settings of a value that are not read, without those that say the default.
fn unread(value: EnvoyValue<'_>, level: usize) -> impl Iterator<Item = (EnvoyValue<'_>, String)> {
    let keys = UNREAD[level].split(' ');
    let is_default = |text| matches!(text, "NONE" | "KEEP_UNCHANGED" | "both");
    let keys = keys.filter(move |key| !value.is_false(key) && !is_default(value.text_of(key)));
    keys.filter_map(move |key| Some((value.get(key)?, quoted(key))))
}

/// `10/minute, 3 in flight`
fn limits(rule: &Rule) -> String {
    match &rule.allows {
        Allows::Unlimited => "unlimited".to_owned(),
        Allows::Within(limits) => {
            let limits = limits.iter().map(|limit| limit.rate().to_string());
            limits.collect::<Vec<_>>().join(", ")
        }
    }
}
