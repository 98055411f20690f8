//! A real Envoy calls tollgate for every request, and obeys its decisions.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use ::tollgate::now;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::{
    certificates::{Authority, Secret},
    clients::{Channel, SERVER_NAME, Served, Transport, is_first_message_compressed},
    envoy::{Envoy, with_upstream},
    http::{Reply, get, get_with, try_get},
    tollgate::{self, Tollgate},
    wait_until,
};

/// One client address: three requests a second and twenty a minute.
const RULES: &str = "
domain: shop
descriptors:
  - key: remote_address
    rate_limits:
      - { unit: second, requests_per_unit: 3 }
      - { unit: minute, requests_per_unit: 20 }
";

const TWO_FOR_EACH_KEY: &str = "
domain: shop
descriptors:
  - key: api_key
    rate_limit: { unit: year, requests_per_unit: 2 }
";

#[test]
fn a_burst_meets_the_limit_of_the_second() {
    let tollgate = tollgate::with_rules(RULES).start();
    let envoy = Front::of(&[tollgate.grpc]).start();
    let front = envoy.listener("front");
    let burst = undisturbed(|client| burst(front, client, 5));
    let expected = [
        "200 | 3, 3;w=1 | 2 | 1",
        "200 | 3, 3;w=1 | 1 | 1",
        "200 | 3, 3;w=1 | 0 | 1",
        "429 | 3, 3;w=1 | 0 | 1",
        "429 | 3, 3;w=1 | 0 | 1",
    ];
    assert_eq!(burst.replies, expected);
}

#[test]
fn a_window_of_several_units_is_shown_in_seconds() {
    let rules = "
domain: shop
descriptors:
  - key: remote_address
    rate_limits: [5000/day, 300/30m]
";
    let tollgate = tollgate::with_rules(rules).start();
    let envoy = Front::of(&[tollgate.grpc]).start();
    let front = envoy.listener("front");
    let burst = undisturbed(|client| burst(front, client, 2));
    let reset = 1800 - burst.second % 1800;
    let expected = [
        format!("200 | 300, 300;w=1800 | 299 | {reset}"),
        format!("200 | 300, 300;w=1800 | 298 | {reset}"),
    ];
    assert_eq!(burst.replies, expected);
}

/// Envoy sends header bytes unchanged, in a field that should be UTF-8. A server that refused the call would let the
/// request pass.
#[test]
fn a_header_that_is_no_text_does_not_get_through() {
    let tollgate = tollgate::with_rules(TWO_FOR_EACH_KEY).start();
    let envoy = Front::of(&[tollgate.grpc]).start();
    let front = envoy.listener("front");
    let codes = |key: &[u8]| [(); 3].map(|()| ask(front, key).status);
    assert_eq!(codes(b"\xff"), [200, 200, 429]);
    assert_eq!(codes(b"\xfe"), [200, 200, 429], "has a counter of its own");
    assert_eq!(codes(b"a\xc3(b"), [200, 200, 429]);
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

#[test]
fn a_refused_client_gets_the_body_of_the_rule_whatever_it_sends() {
    let tollgate = tollgate::with_rules(BODIES).start();
    let envoy = Front::of(&[tollgate.grpc]).start();
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
    let hostile: [&[u8]; 5] = [
        b"k",
        b"\"}],{<script>",
        b"\xff\xfe\xc3(",
        b"{limit}\t\\u0000",
        &long,
    ];
    for key in hostile {
        let refused = refused(key);
        assert_eq!(
            refused.header("content-type"),
            Some("application/problem+json")
        );
        let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!(problem["status"], 429);
        assert_eq!(
            problem["violated-policies"],
            serde_json::json!(["a \"name\" & <b>"])
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.starts_with("The limit a \"name\" & <b> (1/year) is used up; try again in ")
        );
        assert_eq!(problem.as_object().unwrap().len(), 5, "{problem}");
    }
    for key in [&b"page-1"[..], b"page-<script>"] {
        let refused = refused(key);
        let content_type = refused.header("content-type");
        assert_eq!(content_type, Some("text/html; charset=utf-8"));
        assert_eq!(refused.header("x-should-retry"), Some("false"));
        let name = "a &quot;name&quot; &amp; &lt;b&gt;";
        assert_eq!(refused.body, format!("<p>{name}</p>{{{name}}}"));
    }
}

#[test]
fn a_refused_call_of_grpc_gets_the_body_as_its_message() {
    let tollgate = tollgate::with_rules(BODIES).start();
    let envoy = Front::of(&[tollgate.grpc]).start();
    let front = envoy.listener("front");
    let headers: [(&str, &[u8]); 2] = [
        ("x-api-key", b"page-1"),
        ("content-type", b"application/grpc"),
    ];
    assert_eq!(get_with(front, "/", &headers).status, 200);
    let refused = get_with(front, "/", &headers);
    assert_eq!((refused.status, &*refused.body), (200, ""));
    assert_eq!(refused.header("content-type"), Some("application/grpc"));
    assert_eq!(refused.header("grpc-status"), Some("14"));
    let message = refused.header("grpc-message").unwrap();
    assert!(message.starts_with("<p>a &quot;name&quot;"), "{message}");
}

const ISTIO: &str = "outbound|8081||tollgate.tollgate.svc.cluster.local";

/// Envoy sends the name of the cluster as authority, and HTTP/2 libraries reset such calls. tollgate replaces it by a
/// valid one, also in calls that only refer to an earlier header.
#[test]
fn without_an_authority_a_mesh_s_cluster_is_limited_too() {
    let tollgate = tollgate::with_rules(TWO_FOR_EACH_KEY).start();
    let envoy = Front {
        cluster: ISTIO,
        authority: None,
        ..Front::of(&[tollgate.grpc])
    }
    .start();
    let front = envoy.listener("front");
    for key in 0..20 {
        let key = format!("k{key}");
        let codes = [(); 3].map(|()| ask(front, key.as_bytes()).status);
        assert_eq!(codes, [200, 200, 429]);
    }
    assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
    assert!(tollgate.metric("tollgate_authorities_replaced_total") > 0);
    assert_eq!(tollgate.metric("tollgate_authorities_refused_total"), 0);
    let reported = "set `authority` in Envoy's `envoy_grpc`";
    let said = tollgate.log().with(reported);
    assert_eq!(said.matches(reported).count(), 1, "once a minute: {said}");
    assert!(said.contains(ISTIO), "{said}");
}

/// Characters that no authority may contain; for some of them no valid character has a code of equal length.
#[test]
fn without_an_authority_a_cluster_of_any_name_is_limited() {
    for cluster in ["<tollgate>", "{a:b}#c`^", "a@"] {
        let tollgate = tollgate::with_rules(TWO_FOR_EACH_KEY).start();
        let envoy = Front {
            cluster,
            authority: None,
            ..Front::of(&[tollgate.grpc])
        }
        .start();
        let front = envoy.listener("front");
        let codes = [(); 3].map(|()| ask(front, b"k").status);
        assert_eq!(codes, [200, 200, 429], "{cluster}");
        assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
        assert!(tollgate.metric("tollgate_authorities_replaced_total") > 0);
        assert_eq!(tollgate.metric("tollgate_authorities_refused_total"), 0);
    }
}

#[test]
fn over_a_unix_socket_it_limits() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("tollgate.sock").display().to_string();
    let _tollgate = tollgate::with_rules(TWO_FOR_EACH_KEY)
        .args(["--grpc-uds", &socket])
        .start();
    let envoy = Front {
        pipe: Some(&socket),
        ..Front::of(&[])
    }
    .start();
    let front = envoy.listener("front");
    let codes = [(); 3].map(|()| ask(front, b"k").status);
    assert_eq!(codes, [200, 200, 429]);
    assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
}

#[test]
fn over_tcp_google_grpc_is_limited() {
    for authority in [None, Some("tollgate"), Some(ISTIO)] {
        let tollgate = tollgate::with_rules(TWO_FOR_EACH_KEY).start();
        check_google_grpc(&tollgate, GoogleGrpc::to(&tollgate.grpc), authority);
    }
}

#[test]
fn google_grpc_that_compresses_is_limited_over_every_transport() {
    for transport in Transport::ALL {
        let served = Served::with_rules(transport, TWO_FOR_EACH_KEY);
        for is_gzip in [false, true] {
            let Channel { target, ca, .. } = served.channel.clone();
            let to = GoogleGrpc {
                target,
                ca,
                is_gzip,
            };
            // Another value than before.
            check_google_grpc_with(&served.server, to, None, |key| {
                format!("{is_gzip}{key}").repeat(100)
            });
        }
    }
}

/// Makes sure that the case above tests compression at all.
#[test]
fn google_grpc_that_is_to_compress_does() {
    for is_gzip in [false, true] {
        let compresses = is_first_message_compressed(|target| {
            let to = GoogleGrpc {
                is_gzip,
                ..GoogleGrpc::to(target)
            };
            let envoy = Front {
                google_grpc: Some(to),
                ..Front::of(&[])
            }
            .start();
            let front = envoy.listener("front");
            // The request has no answer until Envoy ends.
            let key = "k".repeat(500);
            std::thread::spawn(move || try_get(front, "/", &[("x-api-key", key.as_bytes())]));
            envoy
        });
        assert_eq!(compresses, is_gzip);
    }
}

#[track_caller]
fn check_google_grpc(tollgate: &Tollgate, to: GoogleGrpc, authority: Option<&str>) {
    check_google_grpc_with(tollgate, to, authority, |key| format!("k{key}"));
}

#[track_caller]
fn check_google_grpc_with(
    tollgate: &Tollgate,
    to: GoogleGrpc,
    authority: Option<&str>,
    key: impl Fn(usize) -> String,
) {
    let envoy = Front {
        google_grpc: Some(to),
        authority,
        ..Front::of(&[])
    }
    .start();
    let front = envoy.listener("front");
    for key in (0..20).map(key) {
        let codes = [(); 4].map(|()| ask(front, key.as_bytes()).status);
        assert_eq!(codes, [200, 200, 429, 429], "{authority:?}");
    }
    assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
    assert_eq!(
        envoy.stat("cluster.service.ratelimit.failure_mode_allowed"),
        0
    );
    assert_eq!(tollgate.metric("tollgate_authorities_refused_total"), 0);
}

/// Sixty-four clients send requests through an Envoy that refuses requests without a decision, while its connections
/// get a GOAWAY again and again and the certificate changes.
#[test]
fn certificates_change_and_connections_age_and_no_call_is_lost() {
    const CLIENTS: usize = 64;
    const GOAWAYS: u64 = 20;
    let rules = "
domain: shop
descriptors:
  - key: api_key
    rate_limit: { unit: year, requests_per_unit: 100000000 }
";
    let authority = Authority::new("ours");
    let issue = || authority.issue("*.envoy-gateway-system");
    let pair = issue();
    let mut secret = Secret::mount(&[
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &authority.certificate),
    ]);
    let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| secret.at(name));
    let tollgate = tollgate::with_rules(rules)
        .args(["--max-connection-age", "300ms"])
        .args(["--grpc-tls", "--grpc-tls-cert", &certificate])
        .args(["--grpc-tls-key", &key])
        .start();
    let envoy = Front {
        failure_mode_deny: true,
        transport_socket: Some(upstream_tls("{}", None, &ca)),
        ..Front::of(&[tollgate.grpc])
    }
    .start();
    let front = envoy.listener("front");
    let is_over = AtomicBool::new(false);
    let codes: Vec<_> = std::thread::scope(|scope| {
        let ask_on = || {
            let mut codes = Vec::new();
            while !is_over.load(Relaxed) {
                codes.push(ask(front, b"k").status);
            }
            codes
        };
        let clients = [(); CLIENTS].map(|()| scope.spawn(ask_on));
        let told_to_go = || envoy.stat("cluster.tollgate.upstream_cx_close_notify");
        for round in 1..=4 {
            wait_until("connections are told to go", || {
                told_to_go() >= GOAWAYS * round / 4
            });
            let pair = issue();
            secret.update(&[
                ("tls.crt", &pair.certificate),
                ("tls.key", &pair.key),
                ("ca.crt", &authority.certificate),
            ]);
            let count = usize::try_from(round).unwrap();
            wait_until("the new certificate is taken", || {
                tollgate.log().text().matches("read again").count() >= count
            });
        }
        is_over.store(true, Relaxed);
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    let lost = codes.iter().filter(|&&code| code != 200).count();
    assert_eq!(lost, 0, "of {} requests", codes.len());
    assert!(codes.len() > CLIENTS, "{}", codes.len());
    assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
}

#[test]
fn without_tollgate_requests_pass_or_fail_as_envoy_was_told() {
    for (failure_mode_deny, expected) in [(false, 200), (true, 500)] {
        let mut tollgate = tollgate::with_rules(TWO_FOR_EACH_KEY).start();
        let envoy = Front {
            failure_mode_deny,
            ..Front::of(&[tollgate.grpc])
        }
        .start();
        let front = envoy.listener("front");
        let codes = || [(); 3].map(|()| ask(front, b"k").status);
        assert_eq!(codes(), [200, 200, 429]);
        tollgate.signal(Signal::SIGKILL);
        tollgate.wait();
        assert_eq!(codes(), [expected; 3], "deny: {failure_mode_deny}");
    }
}

/// One of two servers gets a stop signal while Envoy calls both. Envoy refuses requests without a decision, so a
/// single lost call would be visible.
#[test]
fn one_of_two_stops_and_no_call_is_lost() {
    let rules = "
domain: shop
descriptors:
  - key: api_key
    rate_limit: { unit: year, requests_per_unit: 1000000 }
";
    let start = || {
        let builder = tollgate::bare().file("rules.yaml", rules);
        let folder = builder.rules().display().to_string();
        // The default drain delay, which this test checks.
        builder
            .args(["--config-dir", &folder, "--log-format", "json"])
            .args(["--grpc-host", "127.0.0.1", "--grpc-port", "0"])
            .args(["--port", "0", "--debug-port", "0"])
            .start()
    };
    let mut going = start();
    let staying = start();
    let envoy = Front {
        failure_mode_deny: true,
        is_health_checked: true,
        ..Front::of(&[going.grpc, staying.grpc])
    }
    .start();
    let front = envoy.listener("front");
    let decisions = |debug: SocketAddr| {
        let page = get(debug, "/metrics").body;
        let mut lines = page.lines();
        let count = lines.find_map(|line| {
            line.strip_prefix("tollgate_decisions_total{code=\"ok\"} ")?
                .parse::<u64>()
                .ok()
        });
        count.expect("decisions are counted")
    };
    let is_over = AtomicBool::new(false);
    let codes: Vec<_> = std::thread::scope(|scope| {
        let ask_on = || {
            let mut codes = Vec::new();
            while !is_over.load(Relaxed) {
                codes.push(ask(front, b"k").status);
            }
            codes
        };
        let clients = [(); 4].map(|()| scope.spawn(ask_on));
        wait_until("both are asked", || {
            decisions(going.debug) > 100 && decisions(staying.debug) > 100
        });
        going.signal(Signal::SIGTERM);
        assert_eq!(going.wait().code(), Some(0));
        let so_far = decisions(staying.debug);
        wait_until("the other one answers alone", || {
            decisions(staying.debug) > so_far + 100
        });
        is_over.store(true, Relaxed);
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    let lost = codes.iter().filter(|&&code| code != 200).count();
    assert_eq!(lost, 0, "of {} requests", codes.len());
    assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
}

/// As Envoy Gateway configures it: each side verifies the other by the authority alone. By default Envoy uses TLS
/// 1.2.
#[test]
fn over_tls_of_either_version_both_know_each_other() {
    let authority = Authority::new("ours");
    let pair = authority.issue("*.envoy-gateway-system");
    let secret = Secret::mount(&[
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &authority.certificate),
    ]);
    let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| secret.at(name));
    for (params, version) in [
        ("{}", "TLSv1.2"),
        ("{ tls_maximum_protocol_version: TLSv1_3 }", "TLSv1.3"),
    ] {
        for is_mutual in [false, true] {
            let mut builder = tollgate::with_rules(TWO_FOR_EACH_KEY)
                .args(["--grpc-tls", "--grpc-tls-cert", &certificate])
                .args(["--grpc-tls-key", &key]);
            if is_mutual {
                builder = builder.args(["--grpc-client-ca", &ca]);
            }
            let tollgate = builder.start();
            let own = is_mutual.then_some((certificate.as_str(), key.as_str()));
            let envoy = Front {
                transport_socket: Some(upstream_tls(params, own, &ca)),
                ..Front::of(&[tollgate.grpc])
            }
            .start();
            let front = envoy.listener("front");
            let codes = [(); 3].map(|()| ask(front, b"k").status);
            assert_eq!(codes, [200, 200, 429], "{version}, mutual: {is_mutual}");
            let spoken = envoy.stat(&format!("cluster.tollgate.ssl.versions.{version}"));
            assert!(spoken > 0, "{version}");
        }
    }
}

/// The TLS settings of Envoy's connections: its own certificate, if any, and the authority that it trusts.
fn upstream_tls(params: &str, own: Option<(&str, &str)>, ca: &str) -> String {
    let own = own.map_or_else(String::new, |(certificate, key)| {
        format!(
            "tls_certificates: [{{ certificate_chain: {{ filename: {certificate} }}, \
             private_key: {{ filename: {key} }} }}],"
        )
    });
    format!(
        "{{ name: tls, typed_config: {{ \
         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, \
         common_tls_context: {{ tls_params: {params}, {own} \
         validation_context: {{ trusted_ca: {{ filename: {ca} }} }} }} }} }}"
    )
}

/// The connection settings of gRPC's C-core.
struct GoogleGrpc {
    target: String,
    /// Uses TLS and trusts this certificate: a file in PEM.
    ca: Option<String>,
    is_gzip: bool,
}

impl GoogleGrpc {
    fn to(target: impl ToString) -> Self {
        Self {
            target: target.to_string(),
            ca: None,
            is_gzip: false,
        }
    }

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

/// An Envoy that calls tollgate for every request: with the client's address, the last one in `x-forwarded-for`, and
/// with the header `x-api-key` if there is one.
struct Front<'a> {
    tollgates: &'a [SocketAddr],
    /// A Unix socket, used instead of `tollgates`.
    pipe: Option<&'a str>,
    /// The name of the cluster.
    cluster: &'a str,
    authority: Option<&'a str>,
    /// Settings of gRPC's C-core, used instead of Envoy's own client.
    google_grpc: Option<GoogleGrpc>,
    failure_mode_deny: bool,
    is_health_checked: bool,
    /// Envoy's TLS settings; `None` means without TLS.
    transport_socket: Option<String>,
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

impl<'a> Front<'a> {
    fn of(tollgates: &'a [SocketAddr]) -> Self {
        Self {
            tollgates,
            pipe: None,
            cluster: "tollgate",
            authority: Some("tollgate"),
            google_grpc: None,
            failure_mode_deny: false,
            is_health_checked: false,
            transport_socket: None,
        }
    }

    #[track_caller]
    fn start(&self) -> Envoy {
        Envoy::start(|| self.bootstrap())
    }

    fn bootstrap(&self) -> String {
        let service = match (&self.google_grpc, self.authority) {
            (None, None) => format!("{{ envoy_grpc: {{ cluster_name: \"{}\" }} }}", self.cluster),
            (None, Some(authority)) => format!(
                "{{ envoy_grpc: {{ cluster_name: \"{}\", authority: \"{authority}\" }} }}",
                self.cluster
            ),
            (Some(to), authority) => to.service(authority),
        };
        let transport_socket = match &self.transport_socket {
            Some(socket) => format!("transport_socket: {socket}"),
            None => String::new(),
        };
        let health_checks = if self.is_health_checked {
            "[{ timeout: 5s, interval: 0.2s, no_traffic_interval: 0.2s, healthy_threshold: 1, unhealthy_threshold: 1, \
             grpc_health_check: { service_name: ratelimit, authority: tollgate } }]"
        } else {
            "[]"
        };
        let endpoints: Vec<_> = self
            .tollgates
            .iter()
            .map(|address| {
                let (ip, port) = (address.ip(), address.port());
                format!(
                    "{{ endpoint: {{ address: {{ socket_address: \
                     {{ address: {ip}, port_value: {port} }} }} }} }}"
                )
            })
            .chain(self.pipe.map(|path| {
                format!("{{ endpoint: {{ address: {{ pipe: {{ path: {path} }} }} }} }}")
            }))
            .collect();
        with_upstream(BOOTSTRAP)
            .replace("$CLUSTER", self.cluster)
            .replace("$SERVICE", &service)
            .replace("$DENY", &self.failure_mode_deny.to_string())
            .replace("$HEALTH_CHECKS", health_checks)
            .replace("$TRANSPORT_SOCKET", &transport_socket)
            .replace("$ENDPOINTS", &endpoints.join(", "))
    }
}

/// With a long timeout: a busy machine must not look like a broken service.
const BOOTSTRAP: &str = r#"
admin:
  address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
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
                            rate_limits:
                              - actions:
                                  - remote_address: {}
                              - actions:
                                  - request_headers: { header_name: x-api-key, descriptor_key: api_key }
                http_filters:
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: shop
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

/// Requests of one client within one second.
struct Burst {
    second: u64,
    /// `status | X-RateLimit-Limit | -Remaining | -Reset`
    replies: Vec<String>,
}

/// Sends `count` requests at the beginning of a second; `None` if they took longer than that second.
#[track_caller]
fn burst(front: SocketAddr, client: &str, count: usize) -> Option<Burst> {
    let before = now().secs();
    wait_until("a second begins", || now().secs() > before);
    let second = now().secs();
    let replies = (0..count)
        .map(|_| {
            let reply = get_with(front, "/", &[("x-forwarded-for", client.as_bytes())]);
            let header = |name| reply.header(name).unwrap_or("none");
            format!(
                "{} | {} | {} | {}",
                reply.status,
                header("x-ratelimit-limit"),
                header("x-ratelimit-remaining"),
                header("x-ratelimit-reset")
            )
        })
        .collect();
    (now().secs() == second).then_some(Burst { second, replies })
}

/// Retries with another client if the machine was too busy to meet the time.
#[track_caller]
fn undisturbed<T>(mut attempt: impl FnMut(&str) -> Option<T>) -> T {
    (1..=10)
        .find_map(|host| attempt(&format!("10.0.0.{host}")))
        .expect("ten requests take less than a second")
}
