//! A real Envoy calls tollgate for every request, and obeys its decisions.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use ::tollgate::now;
use nix::sys::signal::Signal;

use crate::support::{
    certificates::{self, Authority, Secret},
    clients::{Channel, SERVER_NAME, Served, Transport},
    envoy::{Envoy, with_upstream},
    http::{Reply, get_with},
    tollgate::{self, Tollgate},
    wait_until,
};

/// Two requests of each API key but one.
const RULES: &str = "
domain: shop
descriptors:
  - {key: api_key, rate_limits: [2/year]}
  - {key: api_key, value: many, rate_limits: [100000000/year]}
";

#[test]
fn a_burst_meets_the_limit_of_the_second_and_a_window_of_several_units_is_shown_in_seconds() {
    const RULES: &str = "
domain: shop
descriptors:
  - {key: remote_address, rate_limits: [3/second, 20/minute]}
  - {key: remote_address, value: 10.1.*, rate_limits: [5000/day, 300/30m]}
";
    let tollgate = tollgate::with_rules(RULES).start();
    let envoy = front(tollgate.grpc);
    let (_, replies) = burst(&envoy, "10.0.0", 5);
    let expected = [(200, 2), (200, 1), (200, 0), (429, 0), (429, 0)];
    let expected = expected.map(|(status, left)| format!("{status} | 3, 3;w=1 | {left} | 1"));
    assert_eq!(replies, expected);
    let (second, replies) = burst(&envoy, "10.1.0", 2);
    let reset = 1800 - second % 1800;
    let expected = [299, 298].map(|left| format!("200 | 300, 300;w=1800 | {left} | {reset}"));
    assert_eq!(replies, expected);
}

/// Bodies of two types for two values of one key; the name of a limit has what JSON and HTML escape.
const BODIES: &str = r#"
domain: shop
refusal: { body: problem+json }
descriptors:
  - key: api_key
    rate_limits: [{ name: 'a "name" & <b>', unit: year, requests_per_unit: 1 }]
  - key: api_key
    value: page-*
    rate_limits: [{ name: 'a "name" & <b>', unit: year, requests_per_unit: 1 }]
    refusal: { content_type: text/html, body: "<p>{limit}</p>{{limit}}", headers: { X-Should-Retry: "false" } }
"#;

/// Envoy sends header bytes unchanged, in a field that should be UTF-8. A server that refused the call would let the
/// request pass.
#[test]
fn a_refused_client_gets_the_body_of_the_rule_whatever_it_sends() {
    let tollgate = tollgate::with_rules(BODIES).start();
    let envoy = front(tollgate.grpc);
    let front = envoy.listener("front");
    let refused = |key: &[u8]| {
        let first = ask(front, key);
        assert_eq!((first.status, &*first.body), (200, ""));
        assert_eq!(first.header("content-type"), None);
        assert_eq!(first.header("x-should-retry"), None);
        let refused = ask(front, key);
        assert_eq!(refused.status, 429);
        let length = refused.body.len().to_string();
        assert_eq!(refused.header("content-length"), Some(&*length));
        refused
    };
    let long = [b'<'; 16 << 10];
    let hostile = [
        &b"\"}],{<script>"[..],
        b"{limit}\t\\u0000",
        b"\xff",
        b"\xfe",
        b"a\xc3(",
        &long,
    ];
    for key in hostile {
        let refused = refused(key);
        let content_type = refused.header("content-type");
        assert_eq!(content_type, Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!(problem["status"], 429);
        let policies = serde_json::json!(["a \"name\" & <b>"]);
        assert_eq!(problem["violated-policies"], policies);
        let expected = "The limit a \"name\" & <b> (1/year) is used up; try again in ";
        assert!(problem["detail"].as_str().unwrap().starts_with(expected));
        assert_eq!(problem.as_object().unwrap().len(), 5, "{problem}");
    }
    let name = "a &quot;name&quot; &amp; &lt;b&gt;";
    let refused = refused(b"page-<script>");
    let content_type = refused.header("content-type");
    assert_eq!(content_type, Some("text/html; charset=utf-8"));
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(refused.body, format!("<p>{name}</p>{{{name}}}"));
    // A call of gRPC gets it as its message.
    let grpc = ("content-type", &b"application/grpc"[..]);
    let call = || {
        let headers = [("x-api-key", &b"page-1"[..]), grpc];
        get_with(front, "/", &headers)
    };
    assert_eq!(call().status, 200);
    let refused = call();
    assert_eq!((refused.status, &*refused.body), (200, ""));
    assert_eq!(refused.header("content-type"), Some("application/grpc"));
    assert_eq!(refused.header("grpc-status"), Some("14"));
    let message = refused.header("grpc-message").unwrap();
    assert!(message.starts_with("<p>a &quot;name&quot;"), "{message}");
}

const ISTIO: &str = "outbound|8081||tollgate.tollgate.svc.cluster.local";

/// Envoy sends the name of the cluster as authority, and HTTP/2 libraries reset such calls. tollgate replaces it by a
/// valid one, also in calls that only refer to an earlier header, and where no valid character has a code of equal
/// length.
#[test]
fn without_an_authority_a_cluster_of_any_name_is_limited() {
    for cluster in [ISTIO, "<tollgate>", "{a:b}#c`^", "a@"] {
        let tollgate = tollgate::with_rules(RULES).start();
        let mut front = Front::of(&[tollgate.grpc]);
        (front.cluster, front.authority) = (cluster, None);
        check_limited(&front.start(), 20, cluster);
        assert!(tollgate.metric("tollgate_authorities_replaced_total") > 0);
        assert_eq!(tollgate.metric("tollgate_authorities_refused_total"), 0);
        if cluster == ISTIO {
            let reported = "set `authority` in Envoy's `envoy_grpc`";
            let said = tollgate.log().with(reported);
            assert_eq!(said.matches(reported).count(), 1, "once a minute: {said}");
            assert!(said.contains(ISTIO), "{said}");
        }
    }
}

#[test]
fn over_a_unix_socket_it_limits() {
    let served = Served::with_rules(Transport::Unix, RULES);
    let mut front = Front::of(&[]);
    front.pipe = served.channel.target.strip_prefix("unix:");
    check_limited(&front.start(), 1, "Unix");
}

/// Envoy's other client, gRPC's C-core.
#[test]
fn google_grpc_is_limited_over_every_transport_under_any_authority_and_compressed() {
    for (transport, authority, is_gzip) in [
        (Transport::Tcp, None, true),
        (Transport::Tcp, Some(ISTIO), false),
        (Transport::Unix, None, false),
        (Transport::Tls, None, true),
    ] {
        let served = Served::with_rules(transport, RULES);
        let Channel { target, ca, .. } = served.channel;
        let mut front = Front::of(&[]);
        front.authority = authority;
        front.google_grpc = Some(GoogleGrpc {
            target,
            ca,
            is_gzip,
        });
        check_limited(&front.start(), 20, &format!("{transport:?} {authority:?}"));
        let refused = served.server.metric("tollgate_authorities_refused_total");
        assert_eq!(refused, 0, "{transport:?} {authority:?}");
    }
}

/// Of four requests for each key two pass, and no call fails. Keys are long enough to be worth compressing.
#[track_caller]
fn check_limited(envoy: &Envoy, keys: usize, what: &str) {
    let front = envoy.listener("front");
    for key in 0..keys {
        let key = format!("k{key}").repeat(100);
        let codes = [(); 4].map(|()| ask(front, key.as_bytes()).status);
        assert_eq!(codes, [200, 200, 429, 429], "{what}");
    }
    for failure in ["error", "failure_mode_allowed"] {
        let failures = envoy.stat(&format!("cluster.service.ratelimit.{failure}"));
        assert_eq!(failures, 0, "{what}: {failure}");
    }
}

/// Lets so many clients send requests until `work` is done. Each has to pass; an Envoy that refuses requests without a
/// decision shows every lost call.
fn check_none_is_lost(envoy: &Envoy, clients: usize, work: impl FnOnce()) {
    let front = envoy.listener("front");
    let is_over = AtomicBool::new(false);
    let codes: Vec<_> = std::thread::scope(|scope| {
        let ask_on = || {
            let mut codes = Vec::new();
            while !is_over.load(Relaxed) {
                codes.push(ask(front, b"many").status);
            }
            codes
        };
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(ask_on)).collect();
        work();
        is_over.store(true, Relaxed);
        let clients = clients.into_iter();
        clients.flat_map(|asked| asked.join().unwrap()).collect()
    });
    let lost = codes.iter().filter(|&&code| code != 200).count();
    assert_eq!(lost, 0, "of {} requests", codes.len());
    assert!(codes.len() > clients, "{}", codes.len());
    assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
}

#[test]
fn certificates_change_and_connections_age_and_no_call_is_lost() {
    const GOAWAYS: u64 = 20;
    let authority = Authority::new("ours");
    let issue = || authority.issue("*.envoy-gateway-system");
    let mut secret = certificates::mount(&issue(), &authority);
    let tollgate = certificates::serving(tollgate::with_rules(RULES), &secret)
        .args(["--max-connection-age", "300ms"])
        .start();
    let mut front = Front::of(&[tollgate.grpc]);
    front.failure_mode_deny = true;
    front.transport_socket = upstream_tls("{}", &secret, false);
    let envoy = front.start();
    check_none_is_lost(&envoy, 64, || {
        for round in 1..=4 {
            wait_until("connections are told to go", || {
                envoy.stat("cluster.tollgate.upstream_cx_close_notify") >= GOAWAYS * round / 4
            });
            secret.update(&certificates::files(&issue(), &authority));
            let count = usize::try_from(round).unwrap();
            wait_until("the new certificate is taken", || {
                tollgate.log().text().matches("read again").count() >= count
            });
        }
    });
}

#[test]
fn without_tollgate_requests_pass_or_fail_as_envoy_was_told() {
    for (failure_mode_deny, expected) in [(false, 200), (true, 500)] {
        let mut tollgate = tollgate::with_rules(RULES).start();
        let mut front = Front::of(&[tollgate.grpc]);
        front.failure_mode_deny = failure_mode_deny;
        let envoy = front.start();
        check_limited(&envoy, 1, "with tollgate");
        tollgate.signal(Signal::SIGKILL);
        tollgate.wait();
        let front = envoy.listener("front");
        let codes = [(); 3].map(|()| ask(front, b"k").status);
        assert_eq!(codes, [expected; 3], "deny: {failure_mode_deny}");
    }
}

/// With the default drain delay.
#[test]
fn one_of_two_stops_and_no_call_is_lost() {
    let start = || {
        let builder = tollgate::bare().file("rules.yaml", RULES);
        let folder = builder.rules().display().to_string();
        builder
            .args(["--config-dir", &folder, "--log-format", "json"])
            .args(["--grpc-host", "127.0.0.1", "--grpc-port", "0"])
            .args(["--port", "0", "--debug-port", "0"])
            .start()
    };
    let (mut going, staying) = (start(), start());
    let mut front = Front::of(&[going.grpc, staying.grpc]);
    (front.failure_mode_deny, front.health_checks) = (true, HEALTH_CHECKS);
    let decisions = |server: &Tollgate| server.metric("tollgate_decisions_total{code=\"ok\"}");
    check_none_is_lost(&front.start(), 4, || {
        wait_until("both are asked", || {
            decisions(&going) > 100 && decisions(&staying) > 100
        });
        going.signal(Signal::SIGTERM);
        assert_eq!(going.wait().code(), Some(0));
        let so_far = decisions(&staying);
        wait_until("the other one answers alone", || {
            decisions(&staying) > so_far + 100
        });
    });
}

/// As Envoy Gateway configures it: each side verifies the other by the authority alone. By default Envoy uses TLS
/// 1.2.
#[test]
fn over_tls_of_either_version_both_know_each_other() {
    let authority = Authority::new("ours");
    let secret = certificates::mount(&authority.issue("*.envoy-gateway-system"), &authority);
    for (params, version, is_mutual) in [("{}", "TLSv1.2", true), (TLS13, "TLSv1.3", false)] {
        let builder = tollgate::with_rules(RULES);
        let tollgate = match is_mutual {
            true => certificates::serving_known(builder, &secret),
            false => certificates::serving(builder, &secret),
        }
        .start();
        let mut front = Front::of(&[tollgate.grpc]);
        front.transport_socket = upstream_tls(params, &secret, is_mutual);
        let envoy = front.start();
        check_limited(&envoy, 1, &format!("{version}, mutual: {is_mutual}"));
        let spoken = envoy.stat(&format!("cluster.tollgate.ssl.versions.{version}"));
        assert!(spoken > 0, "{version}");
    }
}

pub(crate) const TLS13: &str = "{ tls_maximum_protocol_version: TLSv1_3 }";

/// The TLS settings of Envoy's connections, which shows the certificate of `secret` if it has to.
pub(crate) fn upstream_tls(params: &str, secret: &Secret, is_mutual: bool) -> String {
    let [certificate, key, ca] = certificates::paths(secret);
    let own = format!(
        "tls_certificates: [{{ certificate_chain: {{ filename: {certificate} }}, \
         private_key: {{ filename: {key} }} }}],"
    );
    let own = if is_mutual { &*own } else { "" };
    format!(
        "transport_socket: {{ name: tls, typed_config: {{ \
         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, \
         common_tls_context: {{ tls_params: {params}, {own} \
         validation_context: {{ trusted_ca: {{ filename: {ca} }} }} }} }} }}"
    )
}

/// The connection settings of gRPC's C-core.
pub(crate) struct GoogleGrpc {
    target: String,
    /// Uses TLS and trusts this certificate: a file in PEM.
    ca: Option<String>,
    is_gzip: bool,
}

impl GoogleGrpc {
    fn service(&self, authority: Option<&str>) -> String {
        const GZIP: u32 = 2;
        let Self { target, ca, .. } = self;
        let mut args = "grpc.enable_http_proxy: { int_value: 0 }".to_owned();
        if let Some(authority) = authority {
            args += &format!(", grpc.default_authority: {{ string_value: \"{authority}\" }}");
        }
        if self.is_gzip {
            args += &format!(", grpc.default_compression_algorithm: {{ int_value: {GZIP} }}");
        }
        let credentials = ca.as_ref().map_or_else(String::new, |ca| {
            args += &format!(", grpc.ssl_target_name_override: {{ string_value: {SERVER_NAME} }}");
            format!("channel_credentials: {{ ssl_credentials: {{ root_certs: {{ filename: {ca} }} }} }},")
        });
        format!(
            "{{ google_grpc: {{ target_uri: \"{target}\", stat_prefix: tollgate, {credentials} \
             channel_args: {{ args: {{ {args} }} }} }} }}"
        )
    }
}

/// An Envoy that calls tollgate for every request; by default with the client's address, the last one in
/// `x-forwarded-for`, and with the header `x-api-key` if there is one.
pub(crate) struct Front<'a> {
    pub(crate) tollgates: Vec<SocketAddr>,
    /// A Unix socket, used instead of `tollgates`.
    pub(crate) pipe: Option<&'a str>,
    /// The name of the cluster.
    pub(crate) cluster: &'a str,
    pub(crate) authority: Option<&'a str>,
    pub(crate) domain: &'a str,
    /// The `rate_limits` of the only route.
    pub(crate) rate_limits: &'a str,
    /// Filters before the one for rate limits.
    pub(crate) filters: &'a str,
    /// Settings of gRPC's C-core, used instead of Envoy's own client.
    pub(crate) google_grpc: Option<GoogleGrpc>,
    pub(crate) failure_mode_deny: bool,
    pub(crate) health_checks: &'a str,
    /// Envoy's TLS settings; empty means without TLS.
    pub(crate) transport_socket: String,
}

/// An Envoy in front of a service, which asks the tollgate at `grpc` about each request.
#[track_caller]
pub(crate) fn front(grpc: SocketAddr) -> Envoy {
    Front::of(&[grpc]).start()
}

/// [`front`], whose Envoy sends spans to an OpenTelemetry collector at this port of gRPC.
#[track_caller]
pub(crate) fn traced_front(grpc: SocketAddr, collector: u64) -> Envoy {
    let before = "                use_remote_address: true\n";
    let tracer = format!(
        "                tracing: {{ provider: {{ name: envoy.tracers.opentelemetry, typed_config: {{ \"@type\": \
         type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig, service_name: front, grpc_service: \
         {{ envoy_grpc: {{ cluster_name: collector }} }} }} }} }}\n{before}"
    );
    let clusters = "  clusters:\n";
    let cluster = format!(
        "{clusters}    - {{ name: collector, type: STATIC, typed_extension_protocol_options: {{ \
         envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \"@type\": \
         type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: \
         {{ http2_protocol_options: {{}} }} }} }}, load_assignment: {{ cluster_name: collector, endpoints: \
         [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: \
         {collector} }} }} }} }}] }}] }} }}\n"
    );
    Envoy::start(|| {
        let bootstrap = Front::of(&[grpc]).bootstrap();
        assert!(bootstrap.contains(before) && bootstrap.contains(clusters));
        let bootstrap = bootstrap.replacen(before, &tracer, 1);
        bootstrap.replacen(clusters, &cluster, 1)
    })
}

impl Front<'_> {
    pub(crate) fn of(tollgates: &[SocketAddr]) -> Self {
        Self {
            tollgates: tollgates.to_vec(),
            pipe: None,
            cluster: "tollgate",
            authority: Some("tollgate"),
            domain: "shop",
            rate_limits: RATE_LIMITS,
            filters: "",
            google_grpc: None,
            failure_mode_deny: false,
            health_checks: "[]",
            transport_socket: String::new(),
        }
    }

    #[track_caller]
    pub(crate) fn start(&self) -> Envoy {
        Envoy::start(|| self.bootstrap())
    }

    fn bootstrap(&self) -> String {
        let cluster = self.cluster;
        let authority = self
            .authority
            .map(|name| format!(", authority: \"{name}\""));
        let authority = authority.unwrap_or_default();
        let service = match &self.google_grpc {
            None => format!("{{ envoy_grpc: {{ cluster_name: \"{cluster}\"{authority} }} }}"),
            Some(to) => to.service(self.authority),
        };
        let addresses = self.tollgates.iter().map(|address| {
            let (ip, port) = (address.ip(), address.port());
            format!("socket_address: {{ address: {ip}, port_value: {port} }}")
        });
        let pipe = self.pipe.map(|path| format!("pipe: {{ path: {path} }}"));
        let endpoints = addresses.chain(pipe);
        let endpoints: Vec<_> = endpoints
            .map(|address| format!("{{ endpoint: {{ address: {{ {address} }} }} }}"))
            .collect();
        with_upstream(BOOTSTRAP)
            .replace("$RATE_LIMITS", self.rate_limits)
            .replace("$FILTERS", self.filters)
            .replace("$DOMAIN", self.domain)
            .replace("$CLUSTER", cluster)
            .replace("$SERVICE", &service)
            .replace("$DENY", &self.failure_mode_deny.to_string())
            .replace("$HEALTH_CHECKS", self.health_checks)
            .replace("$TRANSPORT_SOCKET", &self.transport_socket)
            .replace("$ENDPOINTS", &endpoints.join(", "))
    }
}

const HEALTH_CHECKS: &str = "[{ timeout: 5s, interval: 0.2s, no_traffic_interval: 0.2s, healthy_threshold: 1, \
     unhealthy_threshold: 1, grpc_health_check: { service_name: ratelimit, authority: tollgate } }]";

const RATE_LIMITS: &str = "
                              - actions: [{ remote_address: {} }]
                              - actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }]";

/// With a long timeout: a busy machine must not look like a broken service.
const BOOTSTRAP: &str = r#"
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }
static_resources:
  listeners:
    - name: front
      address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                use_remote_address: true
                xff_num_trusted_hops: 1
                route_config:
                  virtual_hosts:
                    - name: shop
                      domains: ["*"]
                      routes:
                        - match: { prefix: / }
                          route:
                            cluster: service
                            rate_limits:$RATE_LIMITS
                http_filters:$FILTERS
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: $DOMAIN
                      timeout: 10s
                      failure_mode_deny: $DENY
                      enable_x_ratelimit_headers: DRAFT_VERSION_03
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: $SERVICE
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
    $UPSTREAM_LISTENER
  clusters:
    - name: "$CLUSTER"
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      health_checks: $HEALTH_CHECKS
      $TRANSPORT_SOCKET
      load_assignment:
        cluster_name: "$CLUSTER"
        endpoints: [{ lb_endpoints: [$ENDPOINTS] }]
    $UPSTREAM_CLUSTER
"#;

/// Sends a request with this API key.
#[track_caller]
fn ask(front: SocketAddr, key: &[u8]) -> Reply {
    get_with(front, "/", &[("x-api-key", key)])
}

/// Sends `count` requests within one second, which is returned too: `status | X-RateLimit-Limit | -Remaining | -Reset`.
/// Tries again as another client of the network if the machine was too busy for that.
#[track_caller]
fn burst(envoy: &Envoy, network: &str, count: usize) -> (u64, Vec<String>) {
    let front = envoy.listener("front");
    let attempt = |host: u32| {
        let client = format!("{network}.{host}");
        let before = now().secs();
        wait_until("a second begins", || now().secs() > before);
        let second = now().secs();
        let shown = |_| {
            let reply = get_with(front, "/", &[("x-forwarded-for", client.as_bytes())]);
            let [limit, left, reset] = ["limit", "remaining", "reset"].map(|name| {
                let value = reply.header(&format!("x-ratelimit-{name}"));
                value.unwrap_or("none").to_owned()
            });
            format!("{} | {limit} | {left} | {reset}", reply.status)
        };
        let replies = (0..count).map(shown).collect();
        (now().secs() == second).then_some((second, replies))
    };
    let undisturbed = (1..=10).find_map(attempt);
    undisturbed.expect("ten requests take less than a second")
}
