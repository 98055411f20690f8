//! Shows what Envoy sends for one request: its virtual host and route, the descriptors that items make or why they make
//! none, and the rules that these reach.

use std::{fmt::Write as _, iter};

use super::{
    document::{EnvoyFile, EnvoyValue, quoted},
    item::{ItemAction, KnownEntry, LimitItem},
    matching::{LintRequest, headers_match, host_for, parameters_match, route_for},
    model::{EnvoyModel, HttpFilter, LOOSE, PerRoute, RouteLevel, Scope},
    rules::KnownRules,
};
use crate::{
    core::{
        limit::{Allows, Rule},
        matcher::RuleOrigin,
    },
    foundation::printable::{Shown, on_one_line},
};

/// Most rules that are listed for a descriptor with unknown values.
const MAX_RULES: usize = 5;

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
    let has_limits = |scope: &Scope<'_>| !scope.filters.is_empty() || scope.has_unknown_filter;
    let limits_somewhere = model.scopes.iter().skip(LOOSE + 1).any(has_limits);
    let mut text = String::new();
    for scope in model.scopes.iter().skip(LOOSE + 1) {
        if limits_somewhere && !has_limits(scope) {
            continue;
        }
        for table in &scope.tables {
            let view = &mut RequestView {
                file,
                scope,
                request,
                rules,
                text: &mut text,
            };
            view.table(&model.tables[*table]);
        }
    }
    (!text.is_empty()).then(|| text.trim_end().to_owned())
}

struct RequestView<'m, 'd, 'r> {
    file: &'m EnvoyFile<'m>,
    scope: &'m Scope<'d>,
    request: &'m LintRequest,
    rules: Option<&'m KnownRules<'r>>,
    text: &'m mut String,
}

impl<'d> RequestView<'_, 'd, '_> {
    /// Adds a line.
    fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.text, "{}{}", "  ".repeat(depth), on_one_line(text));
    }

    /// Adds a line about a value, with its own line or its path.
    fn line_at(&mut self, depth: usize, value: EnvoyValue<'_>, text: &str) {
        let found = self.file.places(iter::once(value)).into_values().next();
        let path = found.map_or_else(String::new, |(_, path)| path);
        let position = self.file.position(value);
        let line = position.map(|position| format!("line {}", position.line));
        self.line(depth, &format!("{text} ({})", line.unwrap_or(path)));
    }

    fn table(&mut self, table: &RouteLevel<'d>) {
        let request = self.request;
        let manager = self.scope.manager.unwrap_or(table.value);
        let manager = manager.text_of("stat_prefix");
        self.line(0, &format!("{} at {}", request.text, quoted(manager)));
        let Some(host) = host_for(table, request) else {
            return self.line(1, "no virtual host takes it: 404, and no call");
        };
        let value = host.value;
        let (name, domains) = (quoted(value.text_of("name")), value.list("domains"));
        let domains = domains.iter().take(10).filter_map(|domain| domain.text());
        let domains = domains.map(quoted).collect::<Vec<_>>().join(", ");
        self.line_at(1, value, &format!("virtual host {name} for {domains}"));
        let (route, mut unread) = route_for(host, request);
        unread.truncate(MAX_RULES);
        if value.has("matcher") {
            unread.push("`matcher`".to_owned());
        }
        if self.scope.has_unknown_filter {
            unread.push("filters that arrive over xDS, or that routes choose".to_owned());
        }
        if !unread.is_empty() {
            self.line(1, &format!("not read: {}", unread.join(", ")));
        }
        let Some(route) = route else {
            return self.line(1, "no route takes it: 404, and no call");
        };
        let (value, mut text) = (route.value, "route".to_owned());
        if let Some((key, first)) = value.get("match").and_then(|of| of.children().next()) {
            let condition = first.text().unwrap_or_else(|| first.text_of("regex"));
            text += &format!(" {key} {}", quoted(condition));
        }
        if let Some(cluster) = value.at(&["route", "cluster"]).and_then(EnvoyValue::text) {
            text += &format!(" to the cluster {}", quoted(cluster));
        }
        self.line_at(1, value, &text);
        if !value.has("route") {
            self.line(1, "Envoy answers it, and the filter does nothing: no call");
        } else if self.scope.filters.is_empty() {
            self.line(1, "no rate limit filter: no call");
        } else {
            let configs = [&route.configs, &host.configs, &table.configs];
            for filter in &self.scope.filters {
                self.filter(filter, configs, host, route);
            }
        }
    }

    /// Shows the items of a filter, whose settings are those of the route, the virtual host or the table.
    fn filter(
        &mut self,
        filter: &HttpFilter<'d>,
        configs: [&Vec<PerRoute<'d>>; 3],
        host: &RouteLevel<'d>,
        route: &RouteLevel<'d>,
    ) {
        let is_own = |config: &&PerRoute<'_>| config.key == Some(filter.name);
        let mut configs = configs.iter();
        let config = configs.find_map(|configs| configs.iter().find(is_own));
        let domain = config.and_then(PerRoute::domain).unwrap_or(filter.domain);
        let (name, stage) = (quoted(filter.name), filter.stage);
        let text = format!("filter {name}, domain {}, stage {stage}", quoted(domain));
        self.line(1, &text);
        if config.map_or(filter.is_disabled, |config| config.is_disabling) {
            return self.line(2, "it is disabled here: no call");
        }
        let limits = config.and_then(|config| config.limits);
        let option = limits.map_or("", |limits| limits.text_of("vh_rate_limits"));
        let takes_host = match option {
            _ if route.includes_host() => true,
            "IGNORE" | "2" => false,
            _ => route.items.is_empty(),
        };
        let of_host = if takes_host { &*host.items } else { &[] };
        let of_stage = |item: &&LimitItem<'_>| item.stage == stage;
        let items: Vec<_> = match config.filter(|config| !config.items.is_empty()) {
            Some(config) => config.items.iter().collect(),
            None if !filter.items.is_empty() => filter.items.iter().collect(),
            None => route.items.iter().chain(of_host).filter(of_stage).collect(),
        };
        if items.is_empty() {
            self.line(2, "no item of `rate_limits` is for it: no call");
        }
        for item in items {
            self.item(item, domain, route);
        }
    }

    fn item(&mut self, item: &LimitItem<'d>, domain: &str, route: &RouteLevel<'_>) {
        let (mut shown, mut entries) = (Vec::new(), Vec::new());
        for action in &item.actions {
            let key = action.key.unwrap_or_default();
            let (value, text) = match self.value(action, route) {
                EntryValue::Skipped => continue,
                EntryValue::Missing(reason) => {
                    return self.line_at(2, item.value, &format!("no descriptor: {reason}"));
                }
                EntryValue::Known(value) => {
                    let text = Shown(value.as_bytes()).to_string();
                    (Some(value), text)
                }
                EntryValue::Unknown(what) => (None, format!("<{what}>")),
            };
            shown.push(format!("{}={text}", Shown(key.as_bytes())));
            entries.push((key, value));
        }
        let when = ["", "at the end of the stream: "][usize::from(item.is_at_end)];
        let text = format!("{when}descriptor ({})", shown.join(", "));
        self.line_at(2, item.value, &text);
        let is_known = entries.iter().all(|(_, value)| value.is_some());
        if !is_known {
            self.line(
                3,
                "values in <> are not known here; without them it is not made",
            );
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
        for rule in reached.iter().take(MAX_RULES) {
            let RuleOrigin { file, line } = rules.matcher.origin(rule.id);
            let some = if is_known { "" } else { "for some values " };
            let (path, line, limits) = (&rule.path, line.unwrap_or_default(), limits(rule));
            self.line(3, &format!("{some}rule `{path}` ({file}:{line}): {limits}"));
        }
        if reached.len() > MAX_RULES {
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
        let expects = settings.text_of("expect_match") != "false";
        let matched = |is: Result<bool, String>, what: &str| match is {
            Ok(is) if is == expects => EntryValue::Known(literal.clone()),
            Ok(_) => EntryValue::Missing(format!("its {what} do not match")),
            Err(unread) => EntryValue::Unknown(format!("{unread}, which is not read")),
        };
        let unknown = |what: &str| EntryValue::Unknown(what.to_owned());
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
                found(self.request.parameter(name), "query parameter", name)
            }
            "header_value_match" => matched(headers_match(settings, self.request), "headers"),
            "query_parameter_value_match" => {
                matched(parameters_match(settings, self.request), "query parameters")
            }
            "destination_cluster" => match route.value.text_at(&["route", "cluster"]) {
                "" => unknown("the cluster that Envoy chooses"),
                cluster => EntryValue::Known(cluster.to_owned()),
            },
            "remote_address" => unknown("the address of the client"),
            "masked_remote_address" => unknown("the network of the client"),
            "remote_address_match" => unknown("whether the address of the client matches"),
            "source_cluster" => unknown("the `--service-cluster` of Envoy"),
            "metadata" | "dynamic_metadata" => {
                let key = settings.text_at(&["metadata_key", "key"]);
                unknown(&format!("the metadata {}", quoted(key)))
            }
            "extension" => unknown(&format!(
                "the value of {}",
                quoted(settings.text_of("text"))
            )),
            _ => unknown("an action that is not read"),
        }
    }
}

/// Whether Envoy adds a header to requests.
fn is_set_by_envoy(header: &str) -> bool {
    const OTHERS: [&str; 3] = ["x-request-id", "x-forwarded-for", "x-forwarded-proto"];
    header.starts_with("x-envoy-") || OTHERS.contains(&header)
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
