//! Reads an Envoy configuration and tells the traps in it: what Envoy accepts without a word and
//! what then limits nothing, or not what was meant.
//!
//! Everything here was seen with a real Envoy 1.40. It takes a bootstrap in YAML or JSON, the
//! answer of Envoy's `/config_dump`, and Istio's EnvoyFilter resources: messages are known by their
//! `@type` or by their shape, wherever they stand.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{config::Position, matcher::Matcher};

mod actions;
mod document;
#[cfg(test)]
mod tests;

use actions::{Descriptor, Holder, Rules};
use document::{Document, Value, is_authority};

/// A larger file is not read: the dump of an Envoy with ten thousand clusters is half of it.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Why nothing can be said about a file.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("{}{text}", at(*position))]
    Syntax {
        position: Option<Position>,
        text: String,
    },
    #[error("not an Envoy configuration: there is no listener, cluster, filter or route in it")]
    NoEnvoy,
}

impl Unreadable {
    /// Where reading ended, if that is known. The message begins with it.
    pub fn position(&self) -> Option<Position> {
        match self {
            Self::Syntax { position, .. } => *position,
            Self::NoEnvoy => None,
        }
    }
}

fn at(position: Option<Position>) -> String {
    // Whoever prints it has written the name of the file and a colon.
    position.map_or_else(
        || " ".to_owned(),
        |Position { line, column }| format!("{line}:{column}: "),
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is limited there, or all is refused.
    Error,
    /// Limits hold, but not always or not as it reads.
    Warning,
    /// It works; somebody will wonder all the same.
    Advice,
}

/// One trap, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Nothing for JSON, which is read without its lines.
    pub position: Option<Position>,
    /// The way through the file, such as `static_resources.clusters[0]`.
    pub path: String,
    pub severity: Severity,
    /// What the trap is called, the same in every version.
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

/// Tells all traps of one file, in its order; with `rules`, also what no rule answers.
///
/// # Errors
///
/// If the file is no Envoy configuration.
pub fn lint(text: &str, rules: Option<&Matcher>) -> Result<Vec<Finding>, Unreadable> {
    let documents = Document::parse_all(text)?;
    let mut lint = Lint::default();
    for document in &documents {
        lint.gather(&document.root(), LOOSE, Under::Nothing);
    }
    if !lint.has_envoy {
        return Err(Unreadable::NoEnvoy);
    }
    lint.judge(rules.map(Rules::new).as_ref());
    let mut findings = lint.findings;
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// Whether a code, which may be written by its name in Envoy's `StatusCode`, is no refusal.
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

/// The scope of what stands in no connection manager, such as the patches of an EnvoyFilter.
const LOOSE: usize = 0;

/// What a connection manager asks, and where it is told to.
#[derive(Debug, Default)]
struct Scope<'d> {
    /// The connection manager itself; nothing for [`LOOSE`].
    manager: Option<Value<'d>>,
    filters: Vec<Filter<'d>>,
    descriptors: Vec<Descriptor<'d>>,
    has_routes: bool,
    /// Routes that came over xDS, by name.
    route_config: Option<String>,
}

/// `envoy.filters.http.ratelimit`
#[derive(Debug)]
struct Filter<'d> {
    value: Value<'d>,
    stage: u64,
    domain: Option<String>,
    /// Its own `rate_limits` win over those of routes.
    has_own: bool,
}

/// What a value stands in, as far as it matters.
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
    /// What routes that came over xDS ask, by the name of their configuration.
    route_configs: BTreeMap<String, Vec<Descriptor<'d>>>,
    clusters: BTreeMap<String, Value<'d>>,
    /// Whether this is what a running Envoy says, which leaves out whatever is false or 0.
    is_dump: bool,
    /// The clusters that are asked about limits.
    asked: BTreeSet<String>,
    findings: Vec<Finding>,
}

impl<'d> Lint<'d> {
    fn find(
        &mut self,
        value: &Value<'_>,
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

    /// Takes in `value` and all below it.
    fn gather(&mut self, value: &Value<'d>, scope: usize, under: Under) {
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
        // Beside the messages of this dump, those of the bootstrap would be told twice.
        let dumps = value.list("configs");
        let is_whole_dump = dumps.len() > 1;
        self.is_dump |= !dumps.is_empty();
        let is_bootstrap = |dump: &Value<'_>| {
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
            // A dump has them in its listeners, too.
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

    fn manager(&mut self, manager: &Value<'d>) -> usize {
        let id = self.scopes.len().max(LOOSE + 1);
        let scope = self.scope(id);
        scope.manager = Some(manager.clone());
        scope.has_routes = manager.get("route_config").is_some();
        let name = manager.at(&["rds", "route_config_name"]);
        scope.route_config = name.and_then(|name| name.text()).map(str::to_owned);
        id
    }

    /// What stands in the filter itself; what it is asked about comes with [`judge`](Self::judge).
    fn filter(&mut self, filter: &Value<'d>, scope: usize) {
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
        let told = headers.as_ref().and_then(Value::text);
        if matches!(told, None | Some("OFF" | "false" | "0")) {
            self.find(
                headers.as_ref().unwrap_or(filter),
                Severity::Advice,
                "headers",
                "clients are not told what is left of their limit",
                "write `enable_x_ratelimit_headers: DRAFT_VERSION_03`",
            );
        }
        for (key, trap, text, fix) in [
            (
                "filter_enabled",
                "switched-off",
                "the filter asks about 0 % of the requests",
                "remove `filter_enabled`, or give it a numerator",
            ),
            (
                "filter_enforced",
                "not-enforced",
                "0 % of the refusals are enforced: requests pass, and their responses say \
                 `x-envoy-ratelimited: true` all the same",
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
                    "a refusal cannot have the status {code}: Envoy takes 429 for all below 400"
                ),
                "write a code from 400 on, or remove `rate_limited_status`",
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

    fn timeout(&mut self, filter: &Value<'_>) {
        let Some(timeout) = filter.get("timeout") else {
            return self.find(
                filter,
                Severity::Warning,
                "timeout",
                "no timeout is set, so Envoy throws answers away after 20 ms, its default",
                "write `timeout: 0.25s`: an answer in time costs nothing",
            );
        };
        let text = timeout.text().unwrap_or_default();
        let secs = text
            .strip_suffix('s')
            .and_then(|secs| secs.parse::<f64>().ok());
        let (severity, what) = match secs {
            None => (Severity::Error, format!("`{text}` is no duration to Envoy")),
            Some(secs) if secs <= 0.0 => {
                let what = "without a timeout, a service that is silent holds requests up for ever";
                (Severity::Warning, what.to_owned())
            }
            Some(secs) if secs <= 0.02 => {
                let what = format!("{text} are less than a pause of a busy machine");
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

    /// The service that a filter asks.
    fn service(&mut self, filter: &Value<'_>) {
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

    /// What Envoy sends as `:authority`: what it is told to, or the name of the cluster.
    fn authority(&mut self, value: &Value<'_>, cluster: &str, authority: &str) {
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
                "`{sent}` is sent as `:authority` and is none: HTTP/2 servers reset every call, and \
                 then nothing is limited; tollgate makes one of it"
            ),
            "write `authority: HOST`, such as the host name of the service",
        );
    }

    fn tcp_filter(&mut self, filter: &Value<'_>) {
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
                        "remove it, and say it in the rules",
                    );
                }
            }
        }
    }

    fn quota_filter(&mut self, filter: &Value<'_>) {
        self.find(
            filter,
            Severity::Error,
            "quota-service",
            "this filter speaks RLQS, which tollgate does not: `no_assignment_behavior` decides \
             about every request",
            "take `envoy.filters.http.ratelimit`",
        );
    }

    fn cluster(&mut self, cluster: &Value<'d>) {
        if let Some(name) = cluster.text_of("name") {
            self.has_envoy = true;
            self.clusters.insert(name.to_owned(), cluster.clone());
        }
    }

    fn virtual_host(&mut self, host: &Value<'_>) {
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
                    "send it to a cluster, or take the limit away",
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
                    "they take the place of the virtual host's `rate_limits`, which are not \
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

    fn route(&mut self, route: &Value<'_>) {
        self.has_envoy |= route.get("match").is_some() && route.get("route").is_some();
    }

    /// What is asked, wherever a list of it stands.
    fn rate_limits(&mut self, value: &Value<'d>, scope: usize, holder: Holder) {
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
                    "there is no CLUSTER_LOCALITY_ENTRY before a host was chosen: the descriptor \
                     is left out",
                    "add `apply_on_stream_done: true`, or take another source",
                );
            }
            if limit.is_true("apply_on_stream_done") {
                self.find(
                    &limit,
                    Severity::Advice,
                    "stream-done",
                    "what is counted after the response is counted for refused requests too",
                    "keep that in mind where the limit is set",
                );
            }
            let descriptor = Descriptor::new(limit, holder, value.text_of("domain"));
            self.scope(scope).descriptors.push(descriptor);
        }
    }

    /// What only the whole file can tell.
    fn judge(&mut self, rules: Option<&Rules<'_>>) {
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

    fn asked_cluster(&mut self, name: &str, cluster: &Value<'_>) {
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
                    "before the first call health is checked once a minute: an end or a start is \
                     seen late",
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
                 change nothing for a lone one",
                "write `common_lb_config: { healthy_panic_threshold: { value: 0 } }` on the cluster",
            );
        }
    }

    /// Filters that nobody tells what to ask, and what no filter asks.
    fn stages(&mut self, scope: &Scope<'_>) {
        let Scope {
            filters,
            descriptors,
            ..
        } = scope;
        // What stands in no connection manager is a part of something that is not seen here.
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
                    format!("no rate limit filter has the stage {stage}: nobody asks this"),
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
            let is_asked = |found: &Descriptor<'_>| match found.holder {
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
                         never asks",
                        filter.stage
                    ),
                    "add `rate_limits` of that stage to a route or a virtual host",
                );
            }
        }
    }

    /// Whoever believes `X-Forwarded-For` of everybody limits nobody by address.
    fn addresses(&mut self, scope: &Scope<'_>) {
        let Some(manager) = &scope.manager else {
            return;
        };
        let tells_address = scope.descriptors.iter().any(Descriptor::tells_address);
        let knows_address = manager.is_true("use_remote_address")
            || manager.get("original_ip_detection_extensions").is_some();
        if tells_address && !knows_address && !scope.filters.is_empty() {
            self.find(
                manager,
                Severity::Warning,
                "forged-address",
                "addresses are limited, but `X-Forwarded-For` is believed: a client that sends \
                 another one with each request is never limited",
                "write `use_remote_address: true`, and behind proxies of yours `xff_num_trusted_hops`",
            );
        }
    }

    /// What the rules have no word for.
    fn answers(&mut self, scope: &Scope<'_>, rules: &Rules<'_>) {
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
