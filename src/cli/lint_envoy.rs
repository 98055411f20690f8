//! Reads an Envoy configuration and reports traps: settings that Envoy accepts silently and that limit nothing, or
//! not what the author meant.
//!
//! Every trap was seen with a real Envoy 1.40. The input is a bootstrap in YAML or JSON, the output of Envoy's
//! `/config_dump`, or Istio's EnvoyFilter resources. Messages are recognised anywhere in it, by their `@type` or by
//! their shape.

use self::unreadable::{Unreadable, at};

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{config::position::Position, core::matcher::Matcher};

mod actions;
mod document;
#[cfg(test)]
mod tests;
pub mod unreadable;

use actions::{Holder, KnownRules, RateLimitItem};
use document::{Document, DocumentValue, is_authority};

/// A larger file is not read: the dump of an Envoy with ten thousand clusters has half this size.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is limited there, or every request is refused.
    Error,
    /// Limits apply, but not always or not as the text suggests.
    Warning,
    /// It works, but may surprise.
    Advice,
}

/// One trap, and how to avoid it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// `None` for JSON, which is read without positions.
    pub position: Option<Position>,
    /// The path in the file, such as `static_resources.clusters[0]`.
    pub path: String,
    pub severity: Severity,
    /// The name of the trap, stable across versions.
    pub trap: &'static str,
    pub text: String,
    pub fix: String,
}

impl fmt::Display for Finding {
    /// `12:9: error: static_resources.clusters[0]: [http2] it speaks HTTP/1.1, …; add …`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Advice => "advice",
        };
        write!(
            f,
            "{}{severity}: {}: [{}] {}; {}",
            at(self.position),
            self.path.escape_debug(),
            self.trap,
            self.text.escape_debug(),
            self.fix.escape_debug()
        )
    }
}

/// Reports all traps of one file, in its order; with `rules`, also descriptors that no rule matches.
///
/// # Errors
///
/// If the file is not an Envoy configuration.
pub fn lint(text: &str, rules: Option<&Matcher>) -> Result<Vec<Finding>, Unreadable> {
    let documents = Document::parse_all(text)?;
    let mut lint = Lint::default();
    for document in &documents {
        lint.gather(&document.root(), LOOSE, Under::Nothing);
    }
    if !lint.has_envoy {
        return Err(Unreadable::NoEnvoy);
    }
    lint.judge(rules.map(KnownRules::new).as_ref());
    let mut findings = lint.findings;
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// Whether a status code, a number or a name in Envoy's `StatusCode`, is below 400 and so no refusal.
fn is_below_400(code: &str) -> bool {
    const NAMES: [&str; 19] = [
        "Empty",
        "Continue",
        "OK",
        "Created",
        "Accepted",
        "NonAuthoritativeInformation",
        "NoContent",
        "ResetContent",
        "PartialContent",
        "MultiStatus",
        "AlreadyReported",
        "IMUsed",
        "MultipleChoices",
        "MovedPermanently",
        "Found",
        "SeeOther",
        "NotModified",
        "TemporaryRedirect",
        "PermanentRedirect",
    ];
    match code.parse::<u32>() {
        Ok(number) => number < 400,
        Err(_) => NAMES.contains(&code),
    }
}

/// The scope of values outside of any connection manager, such as the patches of an EnvoyFilter.
const LOOSE: usize = 0;

/// The rate limit filters of a connection manager and the descriptors of its routes.
#[derive(Debug, Default)]
struct Scope<'d> {
    /// The connection manager; `None` for [`LOOSE`].
    manager: Option<DocumentValue<'d>>,
    filters: Vec<Filter<'d>>,
    descriptors: Vec<RateLimitItem<'d>>,
    has_routes: bool,
    /// Name of the route configuration that arrives over xDS.
    route_config: Option<String>,
}

/// `envoy.filters.http.ratelimit`
#[derive(Debug)]
struct Filter<'d> {
    value: DocumentValue<'d>,
    stage: u64,
    domain: Option<String>,
    /// Whether it has its own `rate_limits`, which win over those of routes.
    has_own: bool,
}

/// The context of a value, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    Nothing,
    /// The list `clusters` of a bootstrap.
    Clusters,
}

#[derive(Debug, Default)]
struct Lint<'d> {
    has_envoy: bool,
    scopes: Vec<Scope<'d>>,
    /// Descriptors of route configurations that arrived over xDS, by name.
    route_configs: BTreeMap<String, Vec<RateLimitItem<'d>>>,
    clusters: BTreeMap<String, DocumentValue<'d>>,
    /// Whether the file is a dump of a running Envoy, which leaves out values that are false or 0.
    is_dump: bool,
    /// The clusters that filters call for decisions.
    asked: BTreeSet<String>,
    findings: Vec<Finding>,
}

impl<'d> Lint<'d> {
    fn find(
        &mut self,
        value: &DocumentValue<'_>,
        severity: Severity,
        trap: &'static str,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.findings.push(Finding {
            position: value.position(),
            path: value.path(),
            severity,
            trap,
            text: text.into(),
            fix: fix.into(),
        });
    }

    fn scope(&mut self, id: usize) -> &mut Scope<'d> {
        while self.scopes.len() <= id {
            self.scopes.push(Scope::default());
        }
        &mut self.scopes[id]
    }

    /// Collects `value` and everything below it.
    fn gather(&mut self, value: &DocumentValue<'d>, scope: usize, under: Under) {
        let (mut scope, mut holder) = (scope, Holder::Route);
        if let Some((name, message)) = value.message() {
            let name = name.strip_prefix("envoy.").unwrap_or_default();
            self.has_envoy |= !name.is_empty();
            match name {
                "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager" => {
                    scope = self.manager(&message);
                }
                "extensions.filters.http.ratelimit.v3.RateLimit" => {
                    self.filter(&message, scope);
                    holder = Holder::Filter;
                }
                "extensions.filters.http.ratelimit.v3.RateLimitPerRoute" => {
                    holder = Holder::PerRoute
                }
                "extensions.filters.network.ratelimit.v3.RateLimit" => self.tcp_filter(&message),
                "extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig" => {
                    self.quota_filter(&message);
                }
                "config.cluster.v3.Cluster" => self.cluster(&message),
                _ => {}
            }
        }
        // A dump repeats the bootstrap's messages, which would be reported twice.
        let dumps = value.list("configs");
        let is_whole_dump = dumps.len() > 1;
        self.is_dump |= !dumps.is_empty();
        let is_bootstrap = |dump: &DocumentValue<'_>| {
            let name = dump.message().map(|(name, _)| name);
            name.is_some_and(|name| name.ends_with(".BootstrapConfigDump"))
        };
        if is_whole_dump && dumps.iter().any(is_bootstrap) {
            for dump in dumps.iter().filter(|dump| !is_bootstrap(dump)) {
                self.gather(dump, scope, Under::Nothing);
            }
            return;
        }
        if under == Under::Clusters || value.get("load_assignment").is_some() {
            self.cluster(value);
        }
        self.virtual_host(value);
        self.route(value);
        self.rate_limits(value, scope, holder);
        let is_route_config = scope == LOOSE && value.get("virtual_hosts").is_some();
        let known = self.scope(LOOSE).descriptors.len();
        for child in value.children() {
            // A dump repeats these in its listeners.
            if child.path().ends_with("].static_route_configs") {
                continue;
            }
            let is_clusters = child.path().ends_with(".clusters");
            for item in if is_clusters {
                child.items()
            } else {
                Vec::new()
            } {
                self.gather(&item, scope, Under::Clusters);
            }
            if !is_clusters {
                self.gather(&child, scope, Under::Nothing);
            }
        }
        if is_route_config && let Some(name) = value.text_of("name") {
            let found = self.scope(LOOSE).descriptors.split_off(known);
            self.route_configs
                .entry(name.to_owned())
                .or_default()
                .extend(found);
        }
    }

    fn manager(&mut self, manager: &DocumentValue<'d>) -> usize {
        let id = self.scopes.len().max(LOOSE + 1);
        let scope = self.scope(id);
        scope.manager = Some(manager.clone());
        scope.has_routes = manager.get("route_config").is_some();
        let name = manager.at(&["rds", "route_config_name"]);
        scope.route_config = name.and_then(|name| name.text()).map(str::to_owned);
        id
    }

    /// Checks the filter's own settings; [`judge`](Self::judge) checks its descriptors.
    fn filter(&mut self, filter: &DocumentValue<'d>, scope: usize) {
        self.timeout(filter);
        if !self.is_dump
            && filter.get("failure_mode_deny").is_none()
            && filter.get("failure_mode_deny_percent").is_none()
        {
            self.find(
                filter,
                Severity::Warning,
                "failure-mode",
                "`failure_mode_deny` is not set, so every request passes while there is no decision",
                "write `failure_mode_deny: false` if that is meant, or `true` to refuse with 500",
            );
        }
        let headers = filter.get("enable_x_ratelimit_headers");
        let setting = headers.as_ref().and_then(DocumentValue::text);
        if matches!(setting, None | Some("OFF" | "false" | "0")) {
            self.find(
                headers.as_ref().unwrap_or(filter),
                Severity::Advice,
                "headers",
                "clients cannot see what is left of their limit",
                "write `enable_x_ratelimit_headers: DRAFT_VERSION_03`",
            );
        }
        for (key, trap, text, fix) in [
            (
                "filter_enabled",
                "switched-off",
                "the filter is enabled for 0 % of the requests",
                "remove `filter_enabled`, or give it a numerator",
            ),
            (
                "filter_enforced",
                "not-enforced",
                "0 % of the refusals are enforced: requests pass, yet their responses carry \
                 `x-envoy-ratelimited: true`",
                "remove `filter_enforced`, or give it a numerator",
            ),
        ] {
            if let Some(share) = filter.get(key)
                && share
                    .get("default_value")
                    .is_none_or(|value| value.number("numerator") == 0)
            {
                self.find(&share, Severity::Warning, trap, text, fix);
            }
        }
        if let Some(status) = filter.get("rate_limited_status")
            && let code = status.text_of("code").unwrap_or("Empty")
            && is_below_400(code)
        {
            self.find(
                &status,
                Severity::Warning,
                "status",
                format!(
                    "a refusal cannot have the status {code}: Envoy sends 429 for codes below 400"
                ),
                "write a code of at least 400, or remove `rate_limited_status`",
            );
        }
        self.service(filter);
        let own = Filter {
            stage: filter.number("stage"),
            domain: filter.text_of("domain").map(str::to_owned),
            has_own: !filter.list("rate_limits").is_empty(),
            value: filter.clone(),
        };
        self.scope(scope).filters.push(own);
    }

    fn timeout(&mut self, filter: &DocumentValue<'_>) {
        let Some(timeout) = filter.get("timeout") else {
            return self.find(
                filter,
                Severity::Warning,
                "timeout",
                "no timeout is set, so Envoy discards answers after 20 ms, its default",
                "write `timeout: 0.25s`; fast answers are not delayed",
            );
        };
        let text = timeout.text().unwrap_or_default();
        let secs = text
            .strip_suffix('s')
            .and_then(|secs| secs.parse::<f64>().ok());
        let (severity, what) = match secs {
            None => (Severity::Error, format!("`{text}` is not a valid duration")),
            Some(secs) if secs <= 0.0 => {
                let what = "without a timeout, a silent service delays requests for ever";
                (Severity::Warning, what.to_owned())
            }
            Some(secs) if secs <= 0.02 => {
                let what = format!("{text} is shorter than a pause of a busy machine");
                (Severity::Warning, what)
            }
            Some(_) => return,
        };
        self.find(
            &timeout,
            severity,
            "timeout",
            what,
            "write `timeout: 0.25s`",
        );
    }

    /// Checks the service that a filter calls.
    fn service(&mut self, filter: &DocumentValue<'_>) {
        let Some(service) = filter.at(&["rate_limit_service", "grpc_service"]) else {
            return;
        };
        if let Some(policy) = service.get("retry_policy") {
            self.find(
                &policy,
                Severity::Warning,
                "retries",
                "a call that is retried may have been counted: its hits then count twice",
                "remove `retry_policy`",
            );
        }
        let Some(envoy) = service.get("envoy_grpc") else {
            return;
        };
        if let Some(policy) = envoy.get("retry_policy") {
            self.find(
                &policy,
                Severity::Advice,
                "retries",
                "`retry_policy` has no effect on these calls",
                "remove it",
            );
        }
        let cluster = envoy.text_of("cluster_name").unwrap_or_default();
        let authority = envoy.text_of("authority").unwrap_or_default();
        self.authority(&envoy, cluster, authority);
        self.asked.insert(cluster.to_owned());
    }

    /// Checks the `:authority` that Envoy sends: the configured one, or the name of the cluster.
    fn authority(&mut self, value: &DocumentValue<'_>, cluster: &str, authority: &str) {
        let sent = if authority.is_empty() {
            cluster
        } else {
            authority
        };
        if sent.is_empty() || is_authority(sent) {
            return;
        }
        self.find(
            value,
            Severity::Warning,
            "authority",
            format!(
                "Envoy sends `{sent}` as `:authority`, which is invalid: HTTP/2 servers reset every call, and \
                 then nothing is limited; tollgate replaces it"
            ),
            "write `authority: HOST`, such as the host name of the service",
        );
    }

    fn tcp_filter(&mut self, filter: &DocumentValue<'_>) {
        self.timeout(filter);
        self.service(filter);
        if !self.is_dump && filter.get("failure_mode_deny").is_none() {
            self.find(
                filter,
                Severity::Warning,
                "failure-mode",
                "`failure_mode_deny` is not set, so every connection passes while there is no \
                 decision",
                "write `failure_mode_deny: false` if that is meant, or `true` to close them",
            );
        }
        for descriptor in filter.list("descriptors") {
            for key in ["hits_addend", "limit"] {
                if let Some(dropped) = descriptor.get(key) {
                    self.find(
                        &dropped,
                        Severity::Error,
                        "tcp-descriptor",
                        format!("the TCP filter sends entries only: `{key}` is dropped"),
                        "remove it, and set it in the rules",
                    );
                }
            }
        }
    }

    fn quota_filter(&mut self, filter: &DocumentValue<'_>) {
        self.find(
            filter,
            Severity::Error,
            "quota-service",
            "this filter speaks RLQS, which tollgate does not: `no_assignment_behavior` decides \
             about every request",
            "use `envoy.filters.http.ratelimit`",
        );
    }

    fn cluster(&mut self, cluster: &DocumentValue<'d>) {
        if let Some(name) = cluster.text_of("name") {
            self.has_envoy = true;
            self.clusters.insert(name.to_owned(), cluster.clone());
        }
    }

    fn virtual_host(&mut self, host: &DocumentValue<'_>) {
        let routes = host.list("routes");
        if host.get("domains").is_none() || routes.is_empty() {
            return;
        }
        self.has_envoy = true;
        let has_limits = !host.list("rate_limits").is_empty();
        for route in routes {
            let own = actions::per_route(&route);
            if let Some(direct) = route.get("direct_response")
                && (has_limits || own.is_some())
            {
                self.find(
                    &direct,
                    Severity::Warning,
                    "direct-response",
                    "a direct response is never limited: the filter does nothing on such a route",
                    "route it to a cluster, or remove the limit",
                );
            }
            let Some(action) = route.get("route") else {
                continue;
            };
            let own_limits = own.as_ref().and_then(|own| own.get("rate_limits"));
            let limits = action.get("rate_limits");
            let hides = own_limits.as_ref().or(limits.as_ref());
            let includes = action.is_true("include_vh_rate_limits")
                || own
                    .as_ref()
                    .is_some_and(|own| own.text_of("vh_rate_limits") == Some("INCLUDE"));
            if let (true, Some(hides), false) = (has_limits, hides, includes) {
                self.find(
                    hides,
                    Severity::Warning,
                    "hidden-limits",
                    "they replace the virtual host's `rate_limits`, which are not \
                     applied to this route",
                    "write `include_vh_rate_limits: true` if both are meant",
                );
            }
            if let (Some(_), Some(limits)) = (&own_limits, &limits) {
                self.find(
                    limits,
                    Severity::Warning,
                    "hidden-limits",
                    "the `rate_limits` of this route's RateLimitPerRoute win: these are not applied",
                    "move them there, or remove them",
                );
            }
        }
    }

    fn route(&mut self, route: &DocumentValue<'_>) {
        self.has_envoy |= route.get("match").is_some() && route.get("route").is_some();
    }

    /// Collects and checks `rate_limits`, wherever they stand.
    fn rate_limits(&mut self, value: &DocumentValue<'d>, scope: usize, holder: Holder) {
        for limit in value.list("rate_limits") {
            if limit.get("actions").is_none() {
                continue;
            }
            self.has_envoy = true;
            let addend = limit.get("hits_addend");
            if let (Some(addend), Holder::Route) = (&addend, holder) {
                self.find(
                    addend,
                    Severity::Error,
                    "hits-addend",
                    "Envoy does not send `hits_addend` from here: every request counts as one hit",
                    "move this item to a RateLimitPerRoute in `typed_per_filter_config`, or to the \
                     filter's own `rate_limits`",
                );
            }
            for locality in actions::early_localities(&limit) {
                self.find(
                    &locality,
                    Severity::Error,
                    "no-host-yet",
                    "CLUSTER_LOCALITY_ENTRY is empty before a host is chosen: the descriptor \
                     is left out",
                    "add `apply_on_stream_done: true`, or use another source",
                );
            }
            if limit.is_true("apply_on_stream_done") {
                self.find(
                    &limit,
                    Severity::Advice,
                    "stream-done",
                    "hits that count after the response include those of refused requests",
                    "allow for that in the limit",
                );
            }
            let descriptor = RateLimitItem::new(limit, holder, value.text_of("domain"));
            self.scope(scope).descriptors.push(descriptor);
        }
    }

    /// Checks that need the whole file.
    fn judge(&mut self, rules: Option<&KnownRules<'_>>) {
        for name in std::mem::take(&mut self.asked) {
            if let Some(cluster) = self.clusters.get(&name).cloned() {
                self.asked_cluster(&name, &cluster);
            }
        }
        let unclaimed = std::mem::take(&mut self.route_configs);
        for mut scope in std::mem::take(&mut self.scopes) {
            let came = scope
                .route_config
                .as_ref()
                .and_then(|name| unclaimed.get(name));
            if let Some(came) = came {
                scope.descriptors.extend(came.iter().cloned());
                scope.has_routes = true;
            }
            self.stages(&scope);
            self.addresses(&scope);
            if let Some(rules) = rules {
                self.answers(&scope, rules);
            }
        }
    }

    fn asked_cluster(&mut self, name: &str, cluster: &DocumentValue<'_>) {
        const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let options = cluster.at(&["typed_extension_protocol_options", OPTIONS]);
        let speaks_http2 = cluster.get("http2_protocol_options").is_some()
            || options.is_some_and(|options| {
                let explicit = ["explicit_http_config", "http2_protocol_options"];
                options.at(&explicit).is_some()
                    || options.get("auto_config").is_some()
                    || options.get("use_downstream_protocol_config").is_some()
            });
        if !speaks_http2 {
            self.find(
                cluster,
                Severity::Error,
                "http2",
                "the cluster speaks HTTP/1.1, and gRPC is HTTP/2: every call fails",
                format!(
                    "add `typed_extension_protocol_options` with {OPTIONS} and \
                     `explicit_http_config: {{ http2_protocol_options: {{}} }}`"
                ),
            );
        }
        let checks = cluster.list("health_checks");
        for check in &checks {
            if let Some(grpc) = check.get("grpc_health_check") {
                let authority = grpc.text_of("authority").unwrap_or_default();
                self.authority(&grpc, name, authority);
            }
            if check.get("no_traffic_interval").is_none() {
                self.find(
                    check,
                    Severity::Advice,
                    "no-traffic-interval",
                    "before the first call Envoy checks health once a minute: it sees a stop or a start \
                     late",
                    "write `no_traffic_interval: 1s`",
                );
            }
        }
        let panic = ["common_lb_config", "healthy_panic_threshold"];
        if let (Some(check), None) = (checks.first(), cluster.at(&panic)) {
            self.find(
                check,
                Severity::Advice,
                "panic-threshold",
                "while half of the hosts are unhealthy Envoy uses all of them, so health checks \
                 do not affect a single host",
                "write `common_lb_config: { healthy_panic_threshold: { value: 0 } }` on the cluster",
            );
        }
    }

    /// Reports filters without items to send, and items that no filter uses.
    fn stages(&mut self, scope: &Scope<'_>) {
        let Scope {
            filters,
            descriptors,
            ..
        } = scope;
        // Outside of a connection manager the rest of the configuration is not visible.
        let sees_filters = scope.manager.is_some() || !filters.is_empty();
        let sees_routes = scope.has_routes || !descriptors.is_empty();
        let of_routes = descriptors
            .iter()
            .filter(|found| found.holder == Holder::Route);
        for descriptor in of_routes.filter(|_| sees_filters) {
            let stage = descriptor.stage();
            let mut of_stage = filters.iter().filter(|filter| filter.stage == stage);
            if of_stage.clone().next().is_none() {
                self.find(
                    &descriptor.value,
                    Severity::Error,
                    "stage",
                    format!("no rate limit filter has the stage {stage}: this item is never used"),
                    "give the filter and its items the same `stage`",
                );
            } else if of_stage.all(|filter| filter.has_own) {
                self.find(
                    &descriptor.value,
                    Severity::Warning,
                    "hidden-limits",
                    "the filter's own `rate_limits` win: this item is not applied",
                    "move it there, or remove those",
                );
            }
        }
        for filter in filters
            .iter()
            .filter(|filter| sees_routes && !filter.has_own)
        {
            let is_asked = |found: &RateLimitItem<'_>| match found.holder {
                Holder::Route => found.stage() == filter.stage,
                Holder::PerRoute => true,
                Holder::Filter => false,
            };
            if !descriptors.iter().any(is_asked) {
                self.find(
                    &filter.value,
                    Severity::Error,
                    "stage",
                    format!(
                        "no route and no virtual host has `rate_limits` of stage {}: this filter \
                         never calls the service",
                        filter.stage
                    ),
                    "add `rate_limits` of that stage to a route or a virtual host",
                );
            }
        }
    }

    /// Reports limits by address where the connection manager trusts every client's `X-Forwarded-For`.
    fn addresses(&mut self, scope: &Scope<'_>) {
        let Some(manager) = &scope.manager else {
            return;
        };
        let shows_address = scope.descriptors.iter().any(RateLimitItem::shows_address);
        let knows_address = manager.is_true("use_remote_address")
            || manager.get("original_ip_detection_extensions").is_some();
        if shows_address && !knows_address && !scope.filters.is_empty() {
            self.find(
                manager,
                Severity::Warning,
                "forged-address",
                "addresses are limited, but `X-Forwarded-For` is trusted: a client that sends \
                 another one with each request is never limited",
                "write `use_remote_address: true`, and `xff_num_trusted_hops` behind your own proxies",
            );
        }
    }

    /// Reports domains and descriptors that no rule covers.
    fn answers(&mut self, scope: &Scope<'_>, rules: &KnownRules<'_>) {
        for filter in &scope.filters {
            let Some(domain) = &filter.domain else {
                continue;
            };
            if !rules.has_domain(domain) {
                self.find(
                    &filter.value,
                    Severity::Error,
                    "domain",
                    format!("no rule file has the domain `{domain}`: everything passes"),
                    "name the `domain` of a rule file",
                );
            }
        }
        for descriptor in &scope.descriptors {
            let stage = descriptor.stage();
            let of_stage = scope.filters.iter().filter(|filter| filter.stage == stage);
            let domains = of_stage.filter_map(|filter| filter.domain.as_deref());
            let domains: Vec<_> = match descriptor.domain {
                Some(domain) => vec![domain],
                None => domains.collect(),
            };
            let mut known = domains.iter().filter(|domain| rules.has_domain(domain));
            let Some(first) = known.clone().next() else {
                continue;
            };
            if !known.any(|domain| rules.may_answer(domain, descriptor)) {
                self.find(
                    &descriptor.value,
                    Severity::Error,
                    "descriptor",
                    format!(
                        "no rule of the domain `{first}` matches ({descriptor}): it is not limited"
                    ),
                    "add a rule with these keys in this order, or change the actions",
                );
            }
        }
    }
}
