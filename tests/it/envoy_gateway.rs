//! As the rate limit service of Envoy Gateway: configured by its variables alone, with rules pushed over mutual TLS,
//! and called by an Envoy with its settings.

use ::tollgate::rls_conf::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};

use crate::{
    envoy::{Front, TLS13, upstream_tls},
    support::{
        ads::{Ads, snapshot},
        certificates::{self, Authority, Secret},
        envoy::Envoy,
        free_port,
        http::{self, get_with},
        ratelimit::{self, Ratelimit},
        redis::Redis,
        wait_until,
    },
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
        // In the form of its `certgen`; here the control plane's host is `localhost`.
        let host = "envoy-gateway.envoy-gateway-system.svc.cluster.local";
        let mount = |names: &[&str]| certificates::mount(&authority.issue_rsa(names), &authority);
        let control = mount(&["envoy-gateway", host, "localhost"]);
        let [service, envoy] = [(); 2].map(|()| mount(&["*.envoy-gateway-system"]));
        Self {
            ads: Ads::with_tls(&control),
            _control: control,
            service,
            envoy,
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
        let envoy = Front {
            cluster: "ratelimit_cluster",
            authority: None,
            domain: DOMAIN,
            rate_limits: &RATE_LIMITS.replace("$ROUTE", ROUTE),
            filters: SET_METADATA,
            transport_socket: upstream_tls(TLS13, &self.envoy, true),
            ..Front::of(&[server.grpc])
        };
        envoy.start()
    }
}

fn of(key: &str, value: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        descriptors,
        ..RateLimitDescriptor::default()
    }
}

/// A descriptor with so many requests a year.
fn limited(key: &str, value: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    let limit = RateLimitPolicy {
        unit: RateLimitUnit::Year.into(),
        requests_per_unit,
        ..RateLimitPolicy::default()
    };
    RateLimitDescriptor {
        rate_limit: Some(limit),
        ..of(key, value, vec![])
    }
}

/// The rules that Envoy Gateway makes of a policy with four rules. A match by name only has its name as its value.
fn rules(distinct: u32) -> RateLimitConfig {
    // For free plans, each user from each address of a network: five levels.
    let address = limited("remote_address", "", distinct);
    let network = of("masked_remote_address", "127.0.0.0/8", vec![address]);
    let user = of("rule-0-match-1", "", vec![network]);
    let plan = of("rule-0-match-0", "rule-0-match-0", vec![user]);
    let mut shadowed = limited("rule-1-match-0", "rule-1-match-0", 1);
    shadowed.shadow_mode = true;
    let cost = limited("rule-2-match-0", "rule-2-match-0", 3);
    let overridden = limited("rule-3-match-0", "rule-3-match-0", 1);
    RateLimitConfig {
        name: DOMAIN.to_owned(),
        domain: DOMAIN.to_owned(),
        descriptors: vec![of(ROUTE, ROUTE, vec![plan, shadowed, cost, overridden])],
        ..RateLimitConfig::default()
    }
}

/// The status codes of so many requests with these headers.
fn codes<const N: usize>(envoy: &Envoy, headers: &[(&str, &[u8])]) -> [u16; N] {
    let front = envoy.listener("front");
    [(); N].map(|()| get_with(front, "/", headers).status)
}

/// As after an installation, the pod is ready before any policy exists, and Envoy lets requests pass.
#[test]
fn its_variables_alone_limit_its_envoys() {
    let redis = Redis::start();
    let gateway = Gateway::new();
    let server = gateway.deploy(&redis);
    let first = gateway.ads.next();
    assert_eq!(first.request.node.unwrap().id, "envoy-ratelimit");
    let envoy = gateway.envoy(&server);
    let user = |name: &'static [u8]| [("x-plan", b"free".as_slice()), ("x-user", name)];
    assert_eq!(codes(&envoy, &user(b"ann")), [200; 4]);
    let errors = || envoy.stat("cluster.service.ratelimit.error");
    let errors_before = errors();
    gateway.ads.set(snapshot("1", &[rules(2)]));
    gateway.ads.wait_for_ack("1");

    assert_eq!(codes(&envoy, &user(b"ann")), [200, 200, 429]);
    // Each user counts apart.
    assert_eq!(codes(&envoy, &user(b"bob")), [200, 200, 429]);
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

    assert_eq!(errors(), errors_before);
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
    let page = || http::get(prometheus, "/metrics").body;
    wait_until("the loads are counted", || {
        page().contains("ratelimit_service_config_load_success 3")
    });
    assert!(page().contains("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}"));
    let log = server.log().text();
    assert!(!log.contains("no effect"), "{log}");
}

/// As Envoy Gateway writes them for the four rules: the third reads before the request and costs two hits after it, and
/// the fourth has its limit from metadata.
const RATE_LIMITS: &str = "
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
                                    metadata_key: { key: shop, path: [{ key: limit }] }";

const SET_METADATA: &str = r#"
                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata:
                        - metadata_namespace: shop
                          value: { limit: { requests_per_unit: 3, unit: YEAR } }"#;
