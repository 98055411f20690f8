//! Configurations of one connection manager each: the findings, and the statuses of requests through a real Envoy.

/// One configuration. Its name is that of its listener and of its domain.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// The rules of its domain.
    pub rules: &'static str,
    /// Fields of the rate limit filter beside the usual ones, or the name of a form; `-` stands for no filter.
    pub filter: &'static str,
    /// A route without its `match`, or virtual hosts if it begins with a bracket.
    pub routes: &'static str,
    /// The findings, such as `error stage, warning catch-all`.
    pub finds: &'static str,
    /// The statuses of requests with one value of `x-user`; `0` for a connection that is closed.
    pub statuses: &'static [u16],
    /// The path of these requests.
    pub path: &'static str,
}

const fn case(
    name: &'static str,
    rules: &'static str,
    routes: &'static str,
    finds: &'static str,
    statuses: &'static [u16],
) -> Case {
    Case {
        name,
        rules,
        filter: "",
        routes,
        finds,
        statuses,
        path: "/",
    }
}

const fn filtered(filter: &'static str, case: Case) -> Case {
    Case { filter, ..case }
}

const TWO: &str = "{ key: user, rate_limit: { unit: year, requests_per_unit: 2 } }";
const PLANS: &str = "{ key: plan, rate_limit: { unlimited: true } }, { key: user, rate_limit: { unit: year, \
                     requests_per_unit: 2 } }";
const SLOTS: &str =
    "{ key: user, rate_limits: [{ algorithm: concurrency, requests_per_unit: 2, ttl: 10m }] }";
const BUDGET: &str =
    "{ key: user, reserve: { estimate: 2 }, rate_limit: { unit: year, requests_per_unit: 5 } }";
const USERS: &str = "route: { cluster: service, rate_limits: [{ actions: [$USER] }] }";

const PASSES: &[u16] = &[200, 200, 200, 200];
const IS_LIMITED: &[u16] = &[200, 200, 429, 429];
/// Three costs of 2 on a limit of 5.
const COSTS: &[u16] = &[200, 200, 200, 429];

/// A look, and a cost of 2 at the end of the stream.
const LOOK_AND_COST: &str = "route: { cluster: service }, $LIMITS{ hits_addend: { number: 0 }, actions: [$USER] }, \
                             { hits_addend: { number: 2 }, actions: [$USER], apply_on_stream_done: true }$END";

/// Each line of the list of findings, and of the table of orders.
pub const CASES: &[Case] = &[
    case("good", TWO, USERS, "", IS_LIMITED),
    filtered(
        "-",
        case("no-filter", TWO, USERS, "error no-filter", PASSES),
    ),
    case(
        "no-item",
        TWO,
        "route: { cluster: service }",
        "error stage",
        PASSES,
    ),
    case(
        "stage",
        TWO,
        "route: { cluster: service, rate_limits: [{ stage: 1, actions: [$USER] }] }",
        "error stage",
        PASSES,
    ),
    filtered(
        "stage: 1",
        case(
            "stages",
            TWO,
            "route: { cluster: service, rate_limits: [{ stage: 1, actions: [$USER] }] }",
            "",
            IS_LIMITED,
        ),
    ),
    // The local filter has a bucket of 2 for each user.
    filtered(
        "$LOCAL",
        case(
            "local-stage",
            "{ key: user, rate_limit: { unit: year, requests_per_unit: 100 } }",
            "route: { cluster: service, rate_limits: [{ actions: [$USER] }, { stage: 1, actions: [$A] }] }",
            "",
            IS_LIMITED,
        ),
    ),
    filtered(
        "$LOCAL",
        case(
            "local-items",
            "{ key: user, rate_limit: { unit: year, requests_per_unit: 100 } }",
            "route: { cluster: service, rate_limits: [{ actions: [$USER] }] }, typed_per_filter_config: { local: { \
             $LOCAL_TYPE, \
         stat_prefix: l, $BUCKETS, rate_limits: [{ actions: [$A] }] } }",
            "",
            IS_LIMITED,
        ),
    ),
    filtered(
        "domain: something-else",
        case("domain", TWO, USERS, "error domain", PASSES),
    ),
    filtered(
        "domain: ordr",
        case(
            "order",
            "{ key: plan, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 2 } }] }",
            "route: { cluster: service, rate_limits: [{ actions: [$USER, $PLAN] }] }",
            "error descriptor, error domain",
            PASSES,
        ),
    ),
    filtered(
        "domain: nothing-like-it",
        case(
            "far-order",
            "{ key: far, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 2 } }] }",
            "route: { cluster: service, rate_limits: [{ actions: [$USER, { generic_key: { descriptor_key: far, \
             descriptor_value: a } }] }] }",
            "error descriptor, error domain",
            PASSES,
        ),
    ),
    case(
        "descriptor",
        TWO,
        "route: { cluster: service, rate_limits: [{ actions: [$PLAN, $USER] }] }",
        "error descriptor",
        PASSES,
    ),
    filtered(
        "$AUTHORITY",
        case("authority", TWO, USERS, "warning authority", IS_LIMITED),
    ),
    // tollgate itself replaces it.
    filtered(
        "$BARS",
        case("istio-authority", TWO, USERS, "error authority", IS_LIMITED),
    ),
    filtered("$PLAIN", case("http2", TWO, USERS, "error http2", PASSES)),
    filtered(
        "name: limits",
        case(
            "route-filter-name",
            TWO,
            "route: { cluster: service }, $LIMITS{ actions: [$USER] }$END",
            "error route-filter-name",
            PASSES,
        ),
    ),
    filtered(
        "name: limits",
        case(
            "named",
            TWO,
            "route: { cluster: service }, $NAMED{ actions: [$USER] }$END",
            "",
            IS_LIMITED,
        ),
    ),
    case(
        "hidden-host",
        PLANS,
        "[{ name: a, domains: ['*'], rate_limits: [{ actions: [$USER] }], routes: [{ match: { prefix: / }, route: { \
         cluster: \
         service, rate_limits: [{ actions: [$PLAN] }] } }] }]",
        "warning hidden-limits",
        PASSES,
    ),
    case(
        "included-host",
        PLANS,
        "[{ name: a, domains: ['*'], rate_limits: [{ actions: [$USER] }], routes: [{ match: { prefix: / }, route: { \
         cluster: \
         service, include_vh_rate_limits: true, rate_limits: [{ actions: [$PLAN] }] } }] }]",
        "",
        IS_LIMITED,
    ),
    filtered(
        "rate_limits: [{ actions: [$PLAN] }]",
        case(
            "hidden-by-filter",
            PLANS,
            USERS,
            "warning hidden-limits",
            PASSES,
        ),
    ),
    case(
        "hidden-by-route",
        PLANS,
        "route: { cluster: service, rate_limits: [{ actions: [$USER] }] }, $LIMITS{ actions: [$PLAN] }$END",
        "warning hidden-limits",
        PASSES,
    ),
    case(
        "hits-addend",
        TWO,
        "route: { cluster: service, rate_limits: [{ hits_addend: { number: 2 }, actions: [$USER] }] }",
        "error hits-addend",
        IS_LIMITED,
    ),
    case(
        "direct-response",
        TWO,
        "[{ name: a, domains: ['*'], rate_limits: [{ actions: [$USER] }], routes: [{ match: { prefix: / }, \
         direct_response: { \
         status: 200 } }] }]",
        "warning direct-response",
        PASSES,
    ),
    case(
        "catch-all",
        TWO,
        "[{ name: shop, domains: [shop.example.org], routes: [{ match: { prefix: / }, route: { cluster: service, \
         rate_limits: [{ \
         actions: [$USER] }] } }] }, { name: rest, domains: ['*'], routes: [{ match: { prefix: / }, route: { \
         cluster: service } }] }]",
        "warning catch-all",
        PASSES,
    ),
    case(
        "included-by-host",
        PLANS,
        "[{ name: a, domains: ['*'], rate_limits: [{ actions: [$USER] }], $CONFIG{ $PER_ROUTE, vh_rate_limits: INCLUDE \
         } }, routes: [{ match: { prefix: / }, route: { cluster: service, rate_limits: [{ actions: [$PLAN] }] } }] }]",
        "",
        IS_LIMITED,
    ),
    case(
        "own-of-route",
        PLANS,
        "[{ name: a, domains: ['*'], $LIMITS{ actions: [$PLAN] }$END, routes: [{ match: { prefix: / }, route: { cluster: \
         service, rate_limits: [{ actions: [$USER] }] }, $CONFIG{ $PER_ROUTE, domain: own-of-route } } }] }]",
        "",
        IS_LIMITED,
    ),
    filtered(
        "$SECOND",
        case(
            "two-filters",
            PLANS,
            "route: { cluster: service, rate_limits: [{ stage: 1, actions: [$USER] }] }, $LIMITS{ actions: [$PLAN] }$END",
            "",
            IS_LIMITED,
        ),
    ),
    // The route's settings win, and have no domain: that of the filter counts.
    case(
        "host-domain",
        TWO,
        "[{ name: a, domains: ['*'], $CONFIG{ $PER_ROUTE, domain: unknown } }, routes: [{ match: { prefix: / }, route: { \
         cluster: service, rate_limits: [{ actions: [$USER] }] }, $CONFIG{ $PER_ROUTE, vh_rate_limits: INCLUDE } } }] }]",
        "error domain",
        IS_LIMITED,
    ),
    filtered(
        "$DISABLED",
        case(
            "enabled-on-route",
            TWO,
            "[{ name: a, domains: ['*'], $LIMITS{ actions: [$USER] }$END, routes: [{ match: { prefix: / }, route: { \
             cluster: service }, $CONFIG{ $FILTER_CONFIG, config: {} } } }] }]",
            "",
            IS_LIMITED,
        ),
    ),
    filtered(
        "$SHARED",
        case(
            "local-shared",
            "{ key: user, rate_limit: { unit: year, requests_per_unit: 100 } }",
            "route: { cluster: service, rate_limits: [{ stage: 1, actions: [$USER] }, { stage: 1, actions: [$A] }] }",
            "",
            IS_LIMITED,
        ),
    ),
    case(
        "weighted",
        TWO,
        "route: { weighted_clusters: { clusters: [{ name: service, weight: 1, $LIMITS{ actions: [$USER] }$END }] } }",
        "",
        IS_LIMITED,
    ),
    case(
        "matcher",
        TWO,
        "[{ name: a, domains: ['*'], matcher: { on_no_match: { action: { name: route, typed_config: { '@type': \
         type.googleapis.com/envoy.config.route.v3.Route, match: { prefix: / }, route: { cluster: service, rate_limits: \
         [{ actions: [$USER] }] } } } } } }]",
        "",
        IS_LIMITED,
    ),
    case(
        "catch-all-disabled",
        TWO,
        "[{ name: shop, domains: [shop.example.org], routes: [{ match: { prefix: / }, route: { cluster: service, \
         rate_limits: [{ actions: [$USER] }] } }] }, { name: rest, domains: ['*'], $CONFIG{ $FILTER_CONFIG, disabled: \
         true } }, routes: [{ match: { prefix: / }, route: { cluster: service } }] }]",
        "",
        PASSES,
    ),
    // Slots.
    case(
        "slots",
        SLOTS,
        "route: { cluster: service }, $LIMITS{ actions: [$USER] }, $RELEASE$END",
        "",
        PASSES,
    ),
    case(
        "slots-of-routes",
        SLOTS,
        "route: { cluster: service, rate_limits: [{ actions: [$USER] }, $RELEASE] }",
        "",
        PASSES,
    ),
    case("no-release", SLOTS, USERS, "error no-release", IS_LIMITED),
    case(
        "weighted-slots",
        SLOTS,
        "route: { weighted_clusters: { clusters: [{ name: service, weight: 1, $LIMITS{ actions: [$USER] }$END }] } }",
        "error no-release",
        IS_LIMITED,
    ),
    case(
        "order-source",
        SLOTS,
        "route: { cluster: service }, $LIMITS{ actions: [$USER] }, { actions: [$USER, { metadata: { descriptor_key: \
         tollgate.release, source: ROUTE_ENTRY, metadata_key: { key: envoy.filters.http.ratelimit, path: [{ key: \
         reservation }] } } }], apply_on_stream_done: true }$END",
        "error order-metadata",
        IS_LIMITED,
    ),
    case(
        "early-order",
        SLOTS,
        "route: { cluster: service }, $LIMITS{ actions: [$USER] }, { actions: [$USER, $TOKEN] }$END",
        "error early-order",
        IS_LIMITED,
    ),
    filtered(
        "name: limits",
        case(
            "order-metadata",
            SLOTS,
            "route: { cluster: service }, $NAMED{ actions: [$USER] }, { actions: [$USER, { metadata: { \
             descriptor_key: \
         tollgate.release, source: DYNAMIC, metadata_key: { key: limits, path: [{ key: reservation }] } } }], \
         apply_on_stream_done: true }$END",
            "error order-metadata",
            IS_LIMITED,
        ),
    ),
    case(
        "order-path",
        SLOTS,
        "route: { cluster: service }, $LIMITS{ actions: [$USER] }, { actions: [$USER, { metadata: { descriptor_key: \
         tollgate.release, source: DYNAMIC, metadata_key: { key: envoy.filters.http.ratelimit, path: [{ key: \
         token }] } } }], \
         apply_on_stream_done: true }$END",
        "error order-metadata",
        IS_LIMITED,
    ),
    filtered(
        "metadata_namespace: mine",
        case(
            "own-namespace",
            SLOTS,
            "route: { cluster: service }, $LIMITS{ actions: [$USER] }, { actions: [$USER, { metadata: { \
             descriptor_key: \
         tollgate.release, source: DYNAMIC, metadata_key: { key: mine, path: [{ key: reservation }] } } }], \
         apply_on_stream_done: true }$END",
            "",
            PASSES,
        ),
    ),
    filtered(
        "metadata_namespace: mine",
        case(
            "other-namespace",
            SLOTS,
            "route: { cluster: service }, $LIMITS{ actions: [$USER] }, $RELEASE$END",
            "error order-metadata",
            IS_LIMITED,
        ),
    ),
    Case {
        path: "/b",
        ..case(
            "other-route",
            SLOTS,
            "[{ name: a, domains: ['*'], routes: [{ match: { prefix: /a }, route: { cluster: service }, $LIMITS{ \
             actions: [$USER] }, \
             $RELEASE$END }, { match: { prefix: / }, route: { cluster: service }, $LIMITS{ actions: [$USER] }$END \
             }] }]",
            "error no-release",
            IS_LIMITED,
        )
    },
    Case {
        filter: "tcp",
        ..case(
            "tcp-slots",
            "{ key: all, rate_limits: [{ algorithm: concurrency, requests_per_unit: 2, ttl: 10m }] }",
            "",
            "error no-release",
            &[200, 200, 0, 0],
        )
    },
    Case {
        filter: "tcp",
        ..case(
            "tcp-budget",
            "{ key: all, reserve: { estimate: 2 }, rate_limit: { unit: year, requests_per_unit: 5 } }",
            "",
            "error no-release",
            &[200, 200, 0, 0],
        )
    },
    Case {
        filter: "tcp",
        ..case(
            "tcp",
            "{ key: all, rate_limit: { unit: year, requests_per_unit: 2 } }",
            "",
            "",
            &[200, 200, 0, 0],
        )
    },
    // Budgets.
    case(
        "budget",
        BUDGET,
        "route: { cluster: service }, $LIMITS{ actions: [$USER] }, { hits_addend: { number: 0 }, actions: [$USER, \
         $SETTLE], \
         apply_on_stream_done: true }$END",
        "",
        PASSES,
    ),
    case(
        "unsettled",
        BUDGET,
        "route: { cluster: service }, $LIMITS{ actions: [$USER] }$END",
        "error no-release",
        IS_LIMITED,
    ),
    case(
        "settled-without-cost",
        BUDGET,
        "route: { cluster: service }, $LIMITS{ actions: [$USER] }, { actions: [$USER, $SETTLE], \
         apply_on_stream_done: true }$END",
        "error late-cost",
        IS_LIMITED,
    ),
    case(
        "early-settlement",
        BUDGET,
        "route: { cluster: service }, $LIMITS{ actions: [$USER] }, { hits_addend: { number: 0 }, actions: [$USER, \
         $SETTLE] }$END",
        "error early-order",
        IS_LIMITED,
    ),
    filtered(
        "metadata_namespace: mine",
        case(
            "budget-namespace",
            BUDGET,
            "route: { cluster: service }, $LIMITS{ actions: [$USER] }, { hits_addend: { number: 0 }, actions: [$USER, \
             $SETTLE], apply_on_stream_done: true }$END",
            "error order-metadata",
            IS_LIMITED,
        ),
    ),
    // Costs at the end.
    case(
        "window-cost",
        "{ key: user, rate_limit: { unit: year, requests_per_unit: 5 } }",
        LOOK_AND_COST,
        "",
        COSTS,
    ),
    case(
        "first-hit-cost",
        "{ key: user, rate_limits: [{ unit: year, requests_per_unit: 5, window: first_hit }] }",
        LOOK_AND_COST,
        "",
        COSTS,
    ),
    case(
        "sliding-cost",
        "{ key: user, rate_limits: [{ unit: year, requests_per_unit: 5, algorithm: sliding_window }] }",
        LOOK_AND_COST,
        "error late-cost",
        PASSES,
    ),
    case(
        "log-cost",
        "{ key: user, rate_limits: [{ unit: year, requests_per_unit: 5, algorithm: sliding_log }] }",
        LOOK_AND_COST,
        "error late-cost",
        PASSES,
    ),
    case(
        "bucket-cost",
        "{ key: user, rate_limits: [{ unit: year, requests_per_unit: 5, algorithm: token_bucket }] }",
        LOOK_AND_COST,
        "error late-cost",
        PASSES,
    ),
    case(
        "admitted-cost",
        "{ key: user, count: admitted, rate_limit: { unit: year, requests_per_unit: 5 } }",
        LOOK_AND_COST,
        "error late-cost",
        PASSES,
    ),
    case(
        "leased-cost",
        "{ key: user, accuracy: exact-leased, rate_limit: { unit: year, requests_per_unit: 5 } }",
        LOOK_AND_COST,
        "error late-cost",
        PASSES,
    ),
    case(
        "reserve-cost",
        BUDGET,
        LOOK_AND_COST,
        "error late-cost, error no-release",
        PASSES,
    ),
    case(
        "one-hit-cost",
        TWO,
        "route: { cluster: service }, $LIMITS{ hits_addend: { number: 0 }, actions: [$USER] }, { actions: [$USER], \
         apply_on_stream_done: true }$END",
        "warning late-cost",
        &[200, 200, 200, 429],
    ),
    // No answer here has that metadata or usage, so nothing is counted.
    case(
        "usage-cost",
        TWO,
        "route: { cluster: service }, $LIMITS{ hits_addend: { number: 0 }, actions: [$USER] }, { hits_addend: { \
         format: \"%CEL(metadata.typed_filter_metadata['envoy.ai.token_usage'].total_tokens)%\" }, actions: [$USER], \
         apply_on_stream_done: true }$END",
        "",
        PASSES,
    ),
    case(
        "answer-cost",
        TWO,
        "route: { cluster: service }, $LIMITS{ hits_addend: { number: 0 }, actions: [$USER] }, { hits_addend: { \
         format: \
         '%DYNAMIC_METADATA(tollgate:tokens)%' }, actions: [$USER], apply_on_stream_done: true }$END",
        "",
        PASSES,
    ),
];

const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const PER_ROUTE: &str =
    "'@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
const LOCAL: &str =
    "'@type': type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
const ROUTER: &str = "{ name: envoy.filters.http.router, typed_config: { '@type': \
                      type.googleapis.com/envoy.extensions.filters.http.router.v3.Router } }";
const BUCKETS: &str = "token_bucket: { max_tokens: 100, tokens_per_fill: 100, fill_interval: 3600s }, \
 filter_enabled: { default_value: { \
                       numerator: 100 } }, filter_enforced: { default_value: { numerator: 100 } }, descriptors: \
                       [{ entries: [{ key: a, \
                       value: a }], token_bucket: { max_tokens: 2, tokens_per_fill: 2, fill_interval: 3600s } }]";

/// The text with its short forms written out.
fn written(text: &str) -> String {
    let token = |name: &str| {
        format!(
            "{{ metadata: {{ descriptor_key: tollgate.{name}, source: DYNAMIC, metadata_key: {{ key: \
             envoy.filters.http.ratelimit, path: [{{ key: reservation }}] }} }} }}"
        )
    };
    let limits =
        |name: &str| format!("typed_per_filter_config: {{ {name}: {{ {PER_ROUTE}, rate_limits: [");
    let filter_config = "'@type': type.googleapis.com/envoy.config.route.v3.FilterConfig";
    let text = text
        .replace(
            "$CONFIG",
            "typed_per_filter_config: { envoy.filters.http.ratelimit: ",
        )
        .replace("$PER_ROUTE", PER_ROUTE)
        .replace("$FILTER_CONFIG", filter_config)
        .replace("$LIMITS", &limits("envoy.filters.http.ratelimit"))
        .replace("$NAMED", &limits("limits"))
        .replace("$END", "] } }")
        .replace(
            "$RELEASE",
            "{ actions: [$USER, $TOKEN], apply_on_stream_done: true }",
        );
    text.replace("$TOKEN", &token("release"))
        .replace("$SETTLE", &token("reservation"))
        .replace(
            "$USER",
            "{ request_headers: { header_name: x-user, descriptor_key: user } }",
        )
        .replace(
            "$PLAN",
            "{ generic_key: { descriptor_key: plan, descriptor_value: free } }",
        )
        .replace(
            "$A",
            "{ generic_key: { descriptor_key: a, descriptor_value: a } }",
        )
        .replace("$LOCAL_TYPE", LOCAL)
        .replace("$BUCKETS", BUCKETS)
}

/// The rate limit filter of a case, and the filters before it.
fn filters(case: &Case) -> String {
    let mut fields = format!("domain: {}", case.name);
    let (mut name, mut before, mut service, mut stages) = (
        "envoy.filters.http.ratelimit",
        String::new(),
        "cluster_name: tollgate, authority: tollgate",
        "",
    );
    let local = format!(
        "{{ name: local, typed_config: {{ {LOCAL}, stat_prefix: l, stage: 1, {BUCKETS} }} }}, "
    );
    match case.filter {
        "" => {}
        "-" => return String::new(),
        "$LOCAL" => before = local,
        "$SHARED" => (before, stages) = (local, ", stage: 1"),
        "$SECOND" => {
            before = filters(&Case {
                filter: "name: second",
                ..*case
            })
        }
        "$DISABLED" => name = "envoy.filters.http.ratelimit, disabled: true",
        "$AUTHORITY" => service = "cluster_name: tollgate, authority: 'a b'",
        "$BARS" => service = "cluster_name: tollgate, authority: 'outbound|8081||tollgate.ns.svc'",
        "$PLAIN" => service = "cluster_name: plain, authority: tollgate",
        "name: limits" => name = "limits",
        "name: second" => (name, stages) = ("second", ", stage: 1"),
        domain if domain.starts_with("domain: ") => domain.clone_into(&mut fields),
        more => fields += &format!(", {more}"),
    }
    let fields = written(&fields) + stages;
    format!(
        "{before}{{ name: {name}, typed_config: {{ '@type': \
         type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, \
         {fields}, timeout: 30s, rate_limit_service: {{ transport_api_version: V3, grpc_service: {{ envoy_grpc: \
         {{ {service} }} }} }} }} }}, "
    )
}

/// The listener of a case, one line.
pub fn listener(case: &Case) -> String {
    let name = case.name;
    let chain = if case.filter == "tcp" {
        format!(
            "{{ name: envoy.filters.network.ratelimit, typed_config: {{ '@type': \
             type.googleapis.com/envoy.extensions.filters.network.ratelimit.v3.RateLimit, stat_prefix: t, domain: \
             {name}, timeout: 30s, \
             descriptors: [{{ entries: [{{ key: all, value: all }}] }}], rate_limit_service: {{ \
             transport_api_version: V3, grpc_service: \
             {{ envoy_grpc: {{ cluster_name: tollgate, authority: tollgate }} }} }} }} }}, {{ name: \
             envoy.filters.network.tcp_proxy, \
             typed_config: {{ '@type': \
             type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, \
             cluster: service }} }}"
        )
    } else {
        let routes = written(case.routes);
        let hosts = match routes.starts_with('[') {
            true => routes,
            false => format!(
                "[{{ name: all, domains: ['*'], routes: [{{ match: {{ prefix: / }}, {routes} }}] }}]"
            ),
        };
        format!(
            "{{ name: envoy.filters.network.http_connection_manager, typed_config: {{ '@type': {MANAGER}, \
             stat_prefix: {name}, \
             use_remote_address: true, route_config: {{ name: {name}, virtual_hosts: {hosts} }}, http_filters: \
             [{}{ROUTER}] }} }}",
            filters(case)
        )
    };
    format!(
        "    - {{ name: {name}, address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}, \
         filter_chains: [{{ filters: \
         [{chain}] }}] }}\n"
    )
}

/// A bootstrap with these listeners, and with tollgate at a port.
pub fn bootstrap(listeners: &str, port: u16) -> String {
    let cluster = |name: &str, options: &str| {
        format!(
            "    - {{ name: {name}, type: STATIC, {options}load_assignment: {{ cluster_name: {name}, endpoints: [{{ \
             lb_endpoints: [{{ \
             endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}] }}] \
             }} }}\n"
        )
    };
    let http2 = "typed_extension_protocol_options: { envoy.extensions.upstreams.http.v3.HttpProtocolOptions: { \
     '@type': \
                 type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: { \
                 http2_protocol_options: {} } } }, ";
    format!(
        "admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }} }}\nstatic_resources:\n  \
         listeners:\n\
         {listeners}    $UPSTREAM_LISTENER\n  clusters:\n{}{}    $UPSTREAM_CLUSTER\n",
        cluster("tollgate", http2),
        cluster("plain", "")
    )
}

/// The rule file of a case.
pub fn rules(case: &Case) -> String {
    format!("domain: {}\ndescriptors: [{}]\n", case.name, case.rules)
}
