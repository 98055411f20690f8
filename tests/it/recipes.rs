//! `docs/rules/recipes.md`: the Envoy configuration and the rules of each recipe, run by a real Envoy and tollgate.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli::run;
use crate::lint_envoy::Compared;
use crate::support::{
    envoy::{Envoy, with_upstream},
    http::{Reply, get_with},
    json,
    tollgate::{self, Tollgate},
};

/// Tokens of two tenants, signed with the key of [`JWKS`].
const BLUE: &str = "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUuY29tIiwidGVuYW50Ij\
    oiYmx1ZSJ9.eSAdm2w90cWKi1KU2lRFKswvhGp6lEZq60HfqeL8mvE";
const RED: &str = "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUuY29tIiwidGVuYW50Ijo\
    icmVkIn0.Nd2f4TeTGtPSAz6dfqNErFTaYrLq1KuddYN3Vjr840c";
const JWKS: &str = r#"{"keys": [{"kty": "oct", "alg": "HS256", "k": "YSBrZXkgb2YgYW4gZXhhbXBsZSwgMzIgYnl0ZXMgdXA"}]}"#;

/// The file that the recipe for claims names.
const JWKS_FILE: &str = "/etc/envoy/jwks.json";

/// A request: its path and its headers.
type Request<'a> = (&'a str, &'a [(&'a str, &'a str)]);

#[test]
fn log_ins_are_limited_for_each_user_and_for_each_address() {
    const HOME: (&str, &str) = ("x-forwarded-for", "192.0.2.1");
    const ELSEWHERE: (&str, &str) = ("x-forwarded-for", "192.0.2.2");
    check("Log-ins per user and address", |shop| {
        let log_in = |user: &str, from| shop.status(("/login", &[("x-user", user), from]));
        let guesses = [(); 6].map(|()| log_in("ann", HOME));
        let name = |n: u32| log_in(&format!("user{n}"), ELSEWHERE);
        let names: Vec<u16> = (0..21).map(name).collect();
        guesses == [200, 200, 200, 200, 200, 429]
            && log_in("ann", ELSEWHERE) == 429
            && log_in("bob", HOME) == 200
            && names[..20].iter().all(|&status| status == 200)
            && names[20] == 429
            && shop.status(("/", &[ELSEWHERE])) == 200
    });
}

#[test]
fn each_plan_has_its_limit_for_each_key() {
    check("A plan for each API key", |shop| {
        let ask = |plan, key| shop.status(("/", &[("x-plan", plan), ("x-api-key", key)]));
        shop.use_up(&[("plan", "free"), ("api_key", "k")], 59);
        shop.use_up(&[("plan", "other"), ("api_key", "k")], 10);
        [ask("free", "k"), ask("free", "k"), ask("free", "l")] == [200, 429, 200]
            && [ask("pro", "k"), ask("other", "k"), ask("other", "l")] == [200, 429, 200]
    });
}

#[test]
fn a_claim_of_a_verified_token_is_limited() {
    check("A limit by a claim of a token", |shop| {
        let ask = |token| shop.status(("/", &[("authorization", token)]));
        shop.use_up(&[("tenant", "blue")], 999);
        [ask(BLUE), ask(BLUE), ask(RED), ask("Bearer forged")] == [200, 429, 200, 401]
    });
}

#[test]
fn addresses_of_a_range_share_a_counter() {
    check("An address range", |shop| {
        let ask = |from| shop.status(("/", &[("x-forwarded-for", from)]));
        for (range, hits) in [
            ("192.0.2.0/24", 299),
            ("198.51.100.0/24", 300),
            ("2001:db8::/64", 299),
        ] {
            shop.use_up(&[("masked_remote_address", range)], hits);
        }
        [ask("192.0.2.7"), ask("192.0.2.200"), ask("192.0.3.7")] == [200, 429, 200]
            && [ask("2001:db8::1"), ask("2001:db8::2"), ask("198.51.100.7")] == [200, 429, 200]
    });
}

#[test]
fn all_requests_share_one_cap() {
    check("One cap for all", |shop| {
        shop.use_up(&[("cap", "all")], 499);
        [shop.status(("/", &[])), shop.status(("/other", &[]))] == [200, 429]
    });
}

#[test]
fn health_checks_are_not_limited() {
    check("Exempt health checks", |shop| {
        let statuses: Vec<_> = (0..21).map(|_| shop.status(("/", &[]))).collect();
        statuses[..20].iter().all(|&status| status == 200)
            && statuses[20] == 429
            && shop.status(("/healthz", &[])) == 200
    });
}

#[test]
fn shadow_mode_counts_and_refuses_nothing() {
    check("Try a limit first: shadow mode", |shop| {
        let counted = "ratelimit.service.rate_limit.shop.remote_address.shadow_mode: 2\n";
        let passes = (0..12).all(|_| shop.status(("/", &[])) == 200);
        passes && shop.tollgate.page("/stats").contains(counted)
    });
}

#[test]
fn a_used_up_quota_is_explained_by_a_body() {
    check("A monthly quota, with a body", |shop| {
        let ask = || shop.ask(("/", &[("x-api-key", "k")]));
        shop.use_up(&[("api_key", "k")], 99_999);
        let (first, second) = (ask(), ask());
        let problem: Value = serde_json::from_str(&second.body).unwrap_or_default();
        [first.status, second.status] == [200, 429]
            && second.header("content-type") == Some("application/problem+json")
            && problem["violated-policies"] == json!(["monthly"])
    });
}

#[test]
fn a_search_costs_ten_hits() {
    check("A cost for each path", |shop| {
        let ask = |path| shop.status((path, &[("x-api-key", "k")]));
        (0..9).all(|_| ask("/search?q=x") == 200)
            && ask("/") == 200
            && ask("/search") == 429
            && (0..9).all(|_| ask("/") == 200)
            && ask("/") == 429
    });
}

/// Its rule, and the three parts of an Envoy below it: the filter, the cluster and the actions.
#[test]
fn the_front_page_s_envoy_obeys_the_front_page_s_rule() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let [rules, envoy] = ["## A rule", "## An Envoy"].map(|heading| {
        let (_, section) = readme.split_once(heading).unwrap();
        let (_, block) = section.split_once("```yaml\n").unwrap();
        block.split_once("```").unwrap().0
    });
    let parts: Vec<_> = envoy.split("---\n").collect();
    let parts: [&str; 3] = parts.try_into().unwrap();
    let [filter, cluster, actions] = parts.map(|part| serde_yaml::from_str::<Value>(part).unwrap());
    let recipe = Recipe {
        rules: rules.to_owned(),
        envoy: json!({"filter": filter, "cluster": cluster, "rate_limits": actions["rate_limits"]}),
    };
    // A second may end between two requests, and a busy machine may take longer than Envoy waits here.
    let holds = |shop: &Shop| {
        let statuses = [(); 4].map(|()| shop.status(("/", &[])));
        statuses == [200, 200, 200, 429]
    };
    assert!((0..9).any(|_| holds(&Shop::open(&recipe))));
}

/// Requests of each recipe with their headers; `lint-envoy --request` shows the descriptors that Envoy sends for them.
const SHOWN: &str = "
Log-ins per user and address => /login x-user=ann; /login; /
A plan for each API key => / x-plan=free x-api-key=k; / x-plan=pro
A limit by a claim of a token => / authorization=BLUE
An address range => / x-forwarded-for=192.0.2.7; /
One cap for all => /; /other
Exempt health checks => /; /healthz
Try a limit first: shadow mode => /
A monthly quota, with a body => / x-api-key=k; /
A cost for each path => /search?q=x x-api-key=k; / x-api-key=k
";

#[test]
fn the_descriptors_of_each_recipe_are_shown() {
    let shown: Vec<_> = SHOWN.trim().lines().collect();
    for line in &shown {
        let (heading, requests) = line.split_once(" => ").unwrap();
        let shop = Shop::open(&Recipe::of(&page(), heading));
        let file = shop.files.path().join("envoy.json").display().to_string();
        let rules = shop.tollgate.rules().display().to_string();
        let mut compared = Compared::new(&shop.envoy, &shop.tollgate);
        for request in requests.split("; ") {
            let (path, headers) = request.split_once(' ').unwrap_or((request, ""));
            let headers = headers.split_whitespace().map(|header| {
                let (name, value) = header.split_once('=').unwrap();
                (name, if value == "BLUE" { BLUE } else { value })
            });
            let headers: Vec<_> = headers.collect();
            let request = format!("GET shop.example.com{path}");
            compared.check("front", [&file, &rules], &request, &headers);
        }
    }
    assert_eq!(shown.len(), page().matches("\n## ").count());
}

#[test]
fn every_recipe_of_the_page_has_a_test() {
    let source = include_str!("recipes.rs");
    let page = page();
    let lines = page.lines();
    let headings: Vec<_> = lines.filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(headings.len(), 9, "{headings:?}");
    for heading in headings {
        let is_run = source.contains(&format!("check(\"{heading}\""));
        assert!(is_run, "{heading}");
    }
}

/// Runs a recipe in memory, again if a window ended meanwhile or a bucket gained a token.
#[track_caller]
fn check(heading: &str, holds: impl Fn(&Shop) -> bool) {
    let recipe = Recipe::of(&page(), heading);
    assert!((0..5).any(|_| holds(&Shop::open(&recipe))), "{heading}");
}

/// The blocks of a section of the page.
struct Recipe {
    rules: String,
    /// `routes` and `rate_limits` of the virtual host, and `http_filters`; or `filter` and `cluster` in place of ours.
    envoy: Value,
}

impl Recipe {
    #[track_caller]
    fn of(page: &str, heading: &str) -> Self {
        let title = format!("\n## {heading}\n");
        let (_, rest) = page.split_once(&title).expect(heading);
        let section = rest.split("\n## ").next().unwrap();
        let blocks = section.split("```yaml\n").skip(1);
        let blocks = blocks.map(|block| block.split("```").next().unwrap());
        let [envoy, rules] = blocks.collect::<Vec<_>>()[..] else {
            panic!("{heading}: two blocks, Envoy's first");
        };
        Self {
            rules: rules.to_owned(),
            envoy: serde_yaml::from_str(envoy).unwrap(),
        }
    }

    fn list(&self, key: &str) -> Vec<Value> {
        self.envoy[key].as_array().cloned().unwrap_or_default()
    }

    /// The whole bootstrap, in which the last address in `x-forwarded-for` is the client's.
    fn bootstrap(&self, port: u16) -> Value {
        let mut bootstrap: Value = serde_yaml::from_str(&with_upstream(BOOTSTRAP)).unwrap();
        let manager = bootstrap
            .pointer_mut("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config")
            .unwrap();
        let host = &mut manager["route_config"]["virtual_hosts"][0];
        let own = host["routes"].as_array().unwrap().clone();
        host["routes"] = [self.list("routes"), own].concat().into();
        host["rate_limits"] = self.list("rate_limits").into();
        let mut own = manager["http_filters"].as_array().unwrap().clone();
        if self.envoy["filter"].is_object() {
            own[0] = self.envoy["filter"].clone();
        }
        manager["http_filters"] = [self.list("http_filters"), own].concat().into();
        if self.envoy["cluster"].is_object() {
            bootstrap["static_resources"]["clusters"][0] = self.envoy["cluster"].clone();
        }
        let address = "/static_resources/clusters/0/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
        bootstrap.pointer_mut(address).unwrap()["port_value"] = port.into();
        bootstrap
    }
}

/// Envoy and tollgate as the recipe has them.
struct Shop {
    tollgate: Tollgate,
    envoy: Envoy,
    files: TempDir,
}

impl Shop {
    fn open(recipe: &Recipe) -> Self {
        let tollgate = tollgate::with_rules(&recipe.rules);
        let tollgate = tollgate.args(["--log-decisions", "all"]).start();
        let files = TempDir::new().unwrap();
        let jwks = files.path().join("jwks.json");
        fs::write(&jwks, JWKS).unwrap();
        let bootstrap = recipe.bootstrap(tollgate.grpc.port()).to_string();
        let bootstrap = bootstrap.replace(JWKS_FILE, jwks.to_str().unwrap());
        let file = files.path().join("envoy.json");
        fs::write(&file, &bootstrap).unwrap();
        let rules = tollgate.rules().display();
        let (_, said) = run(&format!("lint-envoy --rules {rules} {}", file.display()));
        assert!(!said.contains(": error: "), "{said}");
        Self {
            envoy: Envoy::start(|| bootstrap.clone()),
            tollgate,
            files,
        }
    }

    #[track_caller]
    fn ask(&self, (path, headers): Request<'_>) -> Reply {
        let headers = headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()));
        let headers: Vec<_> = headers.collect();
        get_with(self.envoy.listener("front"), path, &headers)
    }

    #[track_caller]
    fn status(&self, request: Request<'_>) -> u16 {
        self.ask(request).status
    }

    /// Counts hits on a descriptor without Envoy.
    #[track_caller]
    fn use_up(&self, entries: &[(&str, &str)], hits: u32) {
        let entry = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
        let entries: Vec<_> = entries.iter().map(entry).collect();
        let descriptors = json!([{"entries": entries}]);
        let request = json!({"domain": "shop", "hitsAddend": hits, "descriptors": descriptors});
        let body = request.to_string();
        let reply = json::send(self.tollgate.http, "POST", "/json", body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rules/recipes.md");
    fs::read_to_string(path).unwrap()
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
                      routes: [{ match: { prefix: / }, route: { cluster: service } }]
                http_filters:
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: shop
                      timeout: 10s
                      failure_mode_deny: true
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: tollgate, authority: tollgate } }
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
    $UPSTREAM_LISTENER
  clusters:
    - name: tollgate
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: tollgate
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } } }] }]
    $UPSTREAM_CLUSTER
"#;
