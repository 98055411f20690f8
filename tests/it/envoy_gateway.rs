//! As the rate limit service of Envoy Gateway: configured by its variables alone, with rules pushed over mutual TLS,
//! and called by an Envoy with its settings.

use ::tollgate::rls_conf::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};

use crate::support::{
    ads::{Ads, snapshot},
    certificates::{Authority, Pair, Secret},
    envoy::{Envoy, with_upstream},
    free_port,
    http::{self, get_with},
    ratelimit::{self, Ratelimit},
    redis::Redis,
    wait_until,
};

/// The variables that Envoy Gateway sets, with Prometheus on. Ports and paths are adapted below.
const ENVOY_GATEWAY: &[(&str, &str)] = &[
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("LOG_LEVEL", "info"),
    ("USE_STATSD", "false"),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
    ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis:6379"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_ADDR", ":19001"),
    ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
];

/// A listener of a Gateway, which is the domain, and a route.
const DOMAIN: &str = "default/eg/http";
const ROUTE: &str = "httproute/default/shop/rule/0/match/0/www_example_com";

/// A certificate in the form of Envoy Gateway's `certgen`; here the control plane's host is `localhost`.
fn certificate(authority: &Authority, of_control_plane: bool) -> Pair {
    if of_control_plane {
        authority.issue_rsa(&[
            "envoy-gateway",
            "envoy-gateway.envoy-gateway-system",
            "envoy-gateway.envoy-gateway-system.svc",
            "envoy-gateway.envoy-gateway-system.svc.cluster.local",
            "localhost",
        ])
    } else {
        authority.issue_rsa(&["*.envoy-gateway-system"])
    }
}

fn mounted<'a>(pair: &'a Pair, authority: &'a Authority) -> [(&'static str, &'a str); 3] {
    [
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &authority.certificate),
    ]
}

/// Envoy Gateway, as a rate limit service and its Envoys see it.
struct Gateway {
    ads: Ads,
    /// The Secrets of the control plane, of the rate limit service and of the Envoys.
    _control: Secret,
    service: Secret,
    envoy: Secret,
    prometheus: u16,
}

impl Gateway {
    fn new() -> Self {
        let authority = Authority::rsa("envoy-gateway");
        let mount = |of_control_plane| {
            Secret::mount(&mounted(
                &certificate(&authority, of_control_plane),
                &authority,
            ))
        };
        let control = mount(true);
        Self {
            ads: Ads::with_tls(&control),
            _control: control,
            service: mount(false),
            envoy: mount(false),
            prometheus: free_port(),
        }
    }

    /// The Deployment, with this program as its image.
    #[track_caller]
    fn deploy(&self, redis: &Redis) -> Ratelimit {
        let server = format!("localhost:{}", self.ads.address.port());
        let certs: Vec<_> = ENVOY_GATEWAY
            .iter()
            .filter_map(|(name, value)| Some((*name, value.strip_prefix("/certs/")?)))
            .collect();
        assert_eq!(certs.len(), 6);
        let mut builder = ratelimit::with_env(ENVOY_GATEWAY)
            .env("CONFIG_GRPC_XDS_SERVER_URL", &server)
            .env("PROMETHEUS_ADDR", &format!("127.0.0.1:{}", self.prometheus));
        for (name, file) in certs {
            builder = builder.env(name, &self.service.at(file));
        }
        builder.redis(redis).start()
    }

    /// An Envoy in front of a service that always answers 200; it calls `server`.
    #[track_caller]
    fn envoy(&self, server: &Ratelimit) -> Envoy {
        let [certificate, key, ca] =
            ["tls.crt", "tls.key", "ca.crt"].map(|name| self.envoy.at(name));
        Envoy::start(|| {
            with_upstream(BOOTSTRAP)
                .replace("$DOMAIN", DOMAIN)
                .replace("$ROUTE", ROUTE)
                .replace("$PORT", &server.grpc.port().to_string())
                .replace("$CERTIFICATE", &certificate)
                .replace("$KEY", &key)
                .replace("$CA", &ca)
        })
    }
}

fn per_year(requests_per_unit: u32) -> Option<RateLimitPolicy> {
    Some(RateLimitPolicy {
        unit: RateLimitUnit::Year.into(),
        requests_per_unit,
        ..RateLimitPolicy::default()
    })
}

/// A descriptor for a match by name only.
fn matched(name: &str) -> RateLimitDescriptor {
    of(name, name)
}

fn of(key: &str, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        ..RateLimitDescriptor::default()
    }
}

/// `outer` with one more level.
fn around(outer: RateLimitDescriptor, inner: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor {
        descriptors: vec![inner],
        ..outer
    }
}

/// The rules that Envoy Gateway makes of a policy with four rules.
fn rules(distinct: u32) -> RateLimitConfig {
    // For free plans, each user from each address of a network: five levels.
    let address = RateLimitDescriptor {
        rate_limit: per_year(distinct),
        ..of("remote_address", "")
    };
    let network = around(of("masked_remote_address", "127.0.0.0/8"), address);
    let user = around(of("rule-0-match-1", ""), network);
    let plan = around(matched("rule-0-match-0"), user);
    let shadowed = RateLimitDescriptor {
        rate_limit: per_year(1),
        shadow_mode: true,
        ..matched("rule-1-match-0")
    };
    let cost = RateLimitDescriptor {
        rate_limit: per_year(3),
        ..matched("rule-2-match-0")
    };
    let overridden = RateLimitDescriptor {
        rate_limit: per_year(1),
        ..matched("rule-3-match-0")
    };
    let route = RateLimitDescriptor {
        descriptors: vec![plan, shadowed, cost, overridden],
        ..matched(ROUTE)
    };
    RateLimitConfig {
        name: DOMAIN.to_owned(),
        domain: DOMAIN.to_owned(),
        descriptors: vec![route],
        ..RateLimitConfig::default()
    }
}

/// The status codes of so many requests with these headers.
fn codes<const N: usize>(envoy: &Envoy, headers: &[(&str, &[u8])]) -> [u16; N] {
    let front = envoy.listener("front");
    [(); N].map(|()| get_with(front, "/", headers).status)
}

#[test]
fn its_variables_alone_limit_its_envoys() {
    let redis = Redis::start();
    let gateway = Gateway::new();
    gateway.ads.set(snapshot("1", &[rules(2)]));
    let server = gateway.deploy(&redis);
    let first = gateway.ads.next();
    assert_eq!(first.request.node.unwrap().id, "envoy-ratelimit");
    gateway.ads.wait_for_ack("1");
    let envoy = gateway.envoy(&server);

    let user = |name: &'static [u8]| [("x-plan", b"free".as_slice()), ("x-user", name)];
    assert_eq!(codes(&envoy, &user(b"ann")), [200, 200, 429]);
    assert_eq!(
        codes(&envoy, &user(b"bob")),
        [200, 200, 429],
        "counts apart"
    );
    assert_eq!(codes(&envoy, &[]), [200; 3], "no rule matches");
    assert_eq!(codes(&envoy, &[("x-shadow", b"1")]), [200; 3]);
    // Each request reads without counting, and its response costs two hits once Envoy has finished it: after the
    // second there are more than three.
    assert_eq!(codes(&envoy, &[("x-cost", b"1")]), [200, 200]);
    wait_until("the cost is charged", || {
        codes(&envoy, &[("x-cost", b"1")]) == [429]
    });
    // The rule allows one; the request overrides it with three.
    assert_eq!(codes(&envoy, &[("x-override", b"1")]), [200, 200, 200, 429]);

    assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
    assert!(envoy.stat("cluster.ratelimit_cluster.ssl.handshake") > 0);
    let rlconfig = server.rlconfig();
    assert_eq!(rlconfig.lines().count(), 4, "{rlconfig}");
    let line = format!(
        "{DOMAIN}.{ROUTE}_{ROUTE}.rule-0-match-0_rule-0-match-0.rule-0-match-1.\
         masked_remote_address_127.0.0.0/8.remote_address: unit=YEAR requests_per_unit=2,"
    );
    assert!(rlconfig.contains(&line), "{rlconfig}");

    // A changed policy applies at once, and the counts stay.
    gateway.ads.set(snapshot("2", &[rules(4)]));
    gateway.ads.wait_for_ack("2");
    assert_eq!(codes(&envoy, &user(b"ann")), [200, 429]);
    // The policy is deleted.
    gateway.ads.set(snapshot("3", &[]));
    gateway.ads.wait_for_ack("3");
    assert_eq!(codes(&envoy, &user(b"ann")), [200; 3]);

    let prometheus = ([127, 0, 0, 1], gateway.prometheus).into();
    let page = http::get(prometheus, "/metrics").body;
    assert!(
        page.contains("ratelimit_service_config_load_success 3"),
        "{page}"
    );
    assert!(page.contains("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}"));
    let log = server.log().text();
    assert!(!log.contains("no effect"), "{log}");
}

/// As after an installation: the pod exists before any policy does.
#[test]
fn it_is_ready_before_there_are_rules_and_envoy_lets_requests_pass() {
    let redis = Redis::start();
    let gateway = Gateway::new();
    let server = gateway.deploy(&redis);
    let envoy = gateway.envoy(&server);
    let ann = [("x-plan", b"free".as_slice()), ("x-user", b"ann")];
    assert_eq!(codes(&envoy, &ann), [200; 4]);
    gateway.ads.set(snapshot("1", &[rules(2)]));
    gateway.ads.wait_for_ack("1");
    assert_eq!(codes(&envoy, &ann), [200, 200, 429]);
    wait_until("the load is counted", || {
        let prometheus = ([127, 0, 0, 1], gateway.prometheus).into();
        let page = http::get(prometheus, "/metrics").body;
        page.contains("ratelimit_service_config_load_success 1")
    });
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
                                  - generic_key: { descriptor_key: $ROUTE, descriptor_value: $ROUTE }
                                  - header_value_match:
                                      descriptor_key: rule-0-match-0
                                      descriptor_value: rule-0-match-0
                                      headers: [{ name: x-plan, string_match: { exact: free } }]
                                  - request_headers: { header_name: x-user, descriptor_key: rule-0-match-1 }
                                  - masked_remote_address: { v4_prefix_mask_len: 8 }
                                  - remote_address: {}
                              - actions:
                                  - generic_key: { descriptor_key: $ROUTE, descriptor_value: $ROUTE }
                                  - header_value_match:
                                      descriptor_key: rule-1-match-0
                                      descriptor_value: rule-1-match-0
                                      headers: [{ name: x-shadow, present_match: true }]
                              - hits_addend: { number: 0 }
                                actions: &cost
                                  - generic_key: { descriptor_key: $ROUTE, descriptor_value: $ROUTE }
                                  - header_value_match:
                                      descriptor_key: rule-2-match-0
                                      descriptor_value: rule-2-match-0
                                      headers: [{ name: x-cost, present_match: true }]
                              - hits_addend: { number: 2 }
                                apply_on_stream_done: true
                                actions: *cost
                              - actions:
                                  - generic_key: { descriptor_key: $ROUTE, descriptor_value: $ROUTE }
                                  - header_value_match:
                                      descriptor_key: rule-3-match-0
                                      descriptor_value: rule-3-match-0
                                      headers: [{ name: x-override, present_match: true }]
                                limit:
                                  dynamic_metadata:
                                    metadata_key: { key: shop, path: [{ key: limit }] }
                http_filters:
                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata:
                        - metadata_namespace: shop
                          value: { limit: { requests_per_unit: 3, unit: YEAR } }
                  - name: envoy.filters.http.ratelimit/$DOMAIN
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: $DOMAIN
                      timeout: 10s
                      enable_x_ratelimit_headers: DRAFT_VERSION_03
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: ratelimit_cluster } }
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
    $UPSTREAM_LISTENER
  clusters:
    - name: ratelimit_cluster
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            tls_params: { tls_maximum_protocol_version: TLSv1_3 }
            tls_certificates:
              - { certificate_chain: { filename: $CERTIFICATE }, private_key: { filename: $KEY } }
            validation_context: { trusted_ca: { filename: $CA } }
      load_assignment:
        cluster_name: ratelimit_cluster
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: $PORT } } } }] }]
    $UPSTREAM_CLUSTER
"#;
