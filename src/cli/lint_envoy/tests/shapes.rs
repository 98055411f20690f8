//! A seeded sample of configurations in all shapes: correct ones have no trap, and each trap that is put into one is
//! found.

use serde_json::{Map, Value, json};

use super::{super::document, Finding, Trap, TrapSeverity, lint, matcher};

const HTTP_FILTER: &str =
    "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit";
const PER_ROUTE: &str =
    "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                       HttpConnectionManager";
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

const RULES: &str = "domain: d\ndescriptors:\n- key: generic_key\n  value: v\n  rate_limit: {unit: day, \
                     requests_per_unit: 1}\n- key: remote_address\n  rate_limit: {unit: day, requests_per_unit: 1}\n";

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let at = usize::try_from(self.next(from.len() as u64)).unwrap();
        from[at].clone()
    }

    fn flip(&mut self) -> bool {
        self.next(2) == 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bootstrap,
    /// With listeners, and with routes that arrived over xDS.
    Dump,
    /// The part of a dump with the routes.
    RouteDump,
    /// With its filter.
    EnvoyFilter,
    /// Without, because another file adds the filter.
    Actions,
    RouteFile,
}

const FORMS: [Form; 6] = [
    Form::Bootstrap,
    Form::Dump,
    Form::RouteDump,
    Form::EnvoyFilter,
    Form::Actions,
    Form::RouteFile,
];

/// The value that has the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Host,
    Route,
    RouteConfig,
    HostConfig,
    TableConfig,
    ClusterConfig,
}

impl Owner {
    fn is_config(self) -> bool {
        !matches!(self, Self::Host | Self::Route)
    }
}

/// The parts of a configuration.
#[derive(Clone, Debug)]
struct Draft {
    form: Form,
    owner: Owner,
    name: &'static str,
    /// The key of a `typed_per_filter_config`.
    key: String,
    domain: &'static str,
    /// That of a RateLimitPerRoute.
    own_domain: Option<&'static str>,
    filter_type: &'static str,
    action: Value,
    stage: u64,
    cluster: &'static str,
    authority: Option<&'static str>,
    context: &'static str,
    host: &'static str,
    is_wrapped: bool,
    is_single: bool,
    is_misplaced: bool,
    is_inline: bool,
    is_camel: bool,
    is_json: bool,
    listeners: u64,
    before: Vec<Value>,
}

fn draft(dice: &mut Dice, form: Form) -> Draft {
    let mut owners = vec![
        Owner::Host,
        Owner::Route,
        Owner::RouteConfig,
        Owner::HostConfig,
    ];
    if !matches!(form, Form::EnvoyFilter | Form::Actions) {
        owners.extend([Owner::TableConfig, Owner::ClusterConfig]);
    }
    let usual = "envoy.filters.http.ratelimit";
    let name = match form {
        Form::Actions => usual,
        _ => dice.pick(&[usual, "envoy.rate-limit", "limits", "shop.limits"]),
    };
    let (context, host) = dice.pick(&[
        ("GATEWAY", "shop.example.com:80"),
        ("GATEWAY", "*:443"),
        ("SIDECAR_INBOUND", "inbound|http|8080"),
        ("SIDECAR_OUTBOUND", "reviews.shop.svc.cluster.local:9080"),
        ("SIDECAR_OUTBOUND", "allow_any"),
        ("ANY", "block_all"),
    ]);
    let of_type = |name: &str, kind: &str| {
        let kind = format!("type.googleapis.com/envoy.extensions.filters.http.{kind}");
        json!({"name": name, "typed_config": {"@type": kind}})
    };
    let over_xds = json!({"config_source": {"ads": {}}, "type_urls": [HTTP_FILTER]});
    let others = [
        of_type("cors", "cors.v3.Cors"),
        of_type("chosen", "composite.v3.Composite"),
        json!({"name": "over-xds", "config_discovery": over_xds}),
    ];
    Draft {
        form,
        owner: dice.pick(&owners),
        name,
        key: name.to_owned(),
        domain: "d",
        own_domain: dice.pick(&[None, Some("d"), Some("")]),
        filter_type: HTTP_FILTER,
        action: dice.pick(&[
            json!({"generic_key": {"descriptor_value": "v"}}),
            json!({"remote_address": {}}),
        ]),
        stage: 0,
        cluster: dice.pick(&["tollgate", "outbound|8081||tollgate.svc"]),
        authority: Some("tollgate"),
        context,
        host,
        is_wrapped: dice.flip(),
        is_single: dice.next(3) == 0,
        is_misplaced: false,
        is_inline: dice.flip(),
        is_camel: dice.flip(),
        is_json: dice.flip(),
        listeners: 1 + dice.next(3),
        before: others.into_iter().filter(|_| dice.next(4) == 0).collect(),
    }
}

impl Draft {
    /// A list, or its only item.
    fn list(&self, item: Value) -> Value {
        if self.is_single { item } else { json!([item]) }
    }

    /// The only item of such a list.
    fn item(&self, mut list: Value) -> Value {
        if self.is_single { list } else { list[0].take() }
    }

    fn limits(&self) -> Value {
        let mut item = json!({"actions": self.list(self.action.clone())});
        if self.stage > 0 {
            item["stage"] = json!(self.stage);
        }
        self.list(item)
    }

    /// A `typed_per_filter_config`.
    fn config(&self) -> Value {
        let mut config = json!({"@type": PER_ROUTE, "rate_limits": self.limits()});
        if let Some(domain) = self.own_domain {
            config["domain"] = json!(domain);
        }
        if self.is_wrapped {
            let wrapper = "type.googleapis.com/envoy.config.route.v3.FilterConfig";
            config = json!({"@type": wrapper, "config": config});
        }
        let configs = Map::from_iter([(self.key.clone(), config)]);
        Value::Object(configs)
    }

    /// Adds the limits to `value` if it is their owner.
    fn own(&self, owner: Owner, value: &mut Value) {
        if self.owner != owner {
            return;
        }
        match owner {
            Owner::Route if !self.is_misplaced => value["route"]["rate_limits"] = self.limits(),
            Owner::Host | Owner::Route => value["rate_limits"] = self.limits(),
            _ => value["typed_per_filter_config"] = self.config(),
        }
    }

    fn routes(&self) -> Value {
        let mut route = json!({"match": {"prefix": "/"}, "route": {"cluster": "service"}});
        if self.owner == Owner::ClusterConfig {
            let mut cluster = json!({"name": "service", "weight": 1});
            self.own(Owner::ClusterConfig, &mut cluster);
            route["route"] = json!({"weighted_clusters": {"clusters": [cluster]}});
        }
        self.own(Owner::Route, &mut route);
        self.own(Owner::RouteConfig, &mut route);
        let mut host = json!({"name": "shop", "domains": ["*"], "routes": self.list(route)});
        self.own(Owner::Host, &mut host);
        self.own(Owner::HostConfig, &mut host);
        let mut routes = json!({"name": "shared", "virtual_hosts": self.list(host)});
        self.own(Owner::TableConfig, &mut routes);
        routes
    }

    fn filter(&self) -> Value {
        let mut envoy = json!({"cluster_name": self.cluster});
        if let Some(authority) = self.authority {
            envoy["authority"] = json!(authority);
        }
        let service = json!({"transport_api_version": "V3", "grpc_service": {"envoy_grpc": envoy}});
        let config = json!({
            "@type": self.filter_type,
            "domain": self.domain,
            "timeout": "0.25s",
            "failure_mode_deny": true,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": service,
        });
        json!({"name": self.name, "typed_config": config})
    }

    fn listener(&self, number: u64) -> Value {
        let mut filters = self.before.clone();
        filters.push(self.filter());
        let mut manager = json!({
            "@type": MANAGER,
            "stat_prefix": "shop",
            "use_remote_address": true,
            "http_filters": filters,
        });
        if self.is_inline || self.form == Form::Bootstrap {
            manager["route_config"] = self.routes();
        } else {
            let source = json!({"ads": {}});
            manager["rds"] = json!({"route_config_name": "shared", "config_source": source});
        }
        let chain = json!({"filters": [{"name": "hcm", "typed_config": manager}]});
        json!({"name": format!("listener-{number}"), "filter_chains": [chain]})
    }

    fn clusters(&self) -> Value {
        json!([
            {"name": self.cluster, "type": "STATIC", "http2_protocol_options": {}},
            {"name": "service", "type": "STATIC"},
        ])
    }

    fn patches(&self) -> Vec<Value> {
        let mut host = self.item(self.routes()["virtual_hosts"].take());
        let is_host = matches!(self.owner, Owner::Host | Owner::HostConfig);
        let (apply_to, value) = match is_host {
            true => ("VIRTUAL_HOST", host),
            false => ("HTTP_ROUTE", self.item(host["routes"].take())),
        };
        let vhost = json!({"vhost": {"name": self.host}});
        let routes = json!({
            "applyTo": apply_to,
            "match": {"context": self.context, "routeConfiguration": vhost},
            "patch": {"operation": "MERGE", "value": value},
        });
        let filter = json!({
            "applyTo": "HTTP_FILTER",
            "match": {"context": self.context},
            "patch": {"operation": "INSERT_BEFORE", "value": self.filter()},
        });
        match self.form {
            Form::EnvoyFilter => vec![filter, routes],
            _ => vec![routes],
        }
    }

    fn value(&self) -> Value {
        let numbers = 0..self.listeners;
        let listeners: Vec<_> = numbers.map(|number| self.listener(number)).collect();
        let mut routes = self.routes();
        routes["@type"] = json!(ROUTES);
        let routes = json!({
            "@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump",
            "dynamic_route_configs": [{"version_info": "1", "route_config": routes}],
        });
        let active = |listener| json!({"name": "l", "active_state": {"listener": listener}});
        match self.form {
            Form::Bootstrap => {
                let clusters = self.clusters();
                json!({"static_resources": {"listeners": listeners, "clusters": clusters}})
            }
            Form::Dump => {
                let listeners: Vec<_> = listeners.into_iter().map(active).collect();
                let listeners = json!({
                    "@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
                    "dynamic_listeners": listeners,
                });
                json!({"configs": [listeners, routes]})
            }
            Form::RouteDump => json!({"configs": [routes]}),
            Form::EnvoyFilter | Form::Actions => json!({
                "apiVersion": "networking.istio.io/v1alpha3",
                "kind": "EnvoyFilter",
                "spec": {"configPatches": self.patches()},
            }),
            Form::RouteFile => self.routes(),
        }
    }

    fn text(&self) -> String {
        let value = match self.is_camel {
            true => camel(self.value()),
            false => self.value(),
        };
        if self.is_json {
            serde_json::to_string_pretty(&value).unwrap()
        } else {
            serde_yaml::to_string(&value).unwrap()
        }
    }
}

/// All names of fields in the other spelling.
fn camel(value: Value) -> Value {
    let is_field = |key: &str| {
        let mut bytes = key.bytes();
        bytes.all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    match value {
        Value::Array(items) => items.into_iter().map(camel).collect(),
        Value::Object(entries) => {
            let entries = entries.into_iter().map(|(key, value)| {
                let key = match is_field(&key) {
                    true => document::camel(&key),
                    false => key,
                };
                (key, camel(value))
            });
            Value::Object(entries.collect())
        }
        other => other,
    }
}

fn found(draft: &Draft) -> Vec<Finding> {
    let rules = matcher(RULES);
    let text = draft.text();
    let linted = lint(&text, Some(&rules));
    linted
        .unwrap_or_else(|error| panic!("{error}: {text}"))
        .findings
}

/// A trap, the forms that show it, and the change that makes it.
type Plant = (Trap, &'static [Form], fn(&mut Draft, &mut Dice));

const WITH_FILTER: &[Form] = &[Form::Bootstrap, Form::Dump, Form::EnvoyFilter];
const WITH_LISTENER: &[Form] = &[Form::Bootstrap, Form::Dump];
const PATCHES: &[Form] = &[Form::EnvoyFilter, Form::Actions];
const WITHOUT_FILTER: &[Form] = &[Form::RouteDump, Form::RouteFile, Form::Actions];

const PLANTS: [Plant; 12] = [
    (Trap::UnknownField, &FORMS, |draft, dice| {
        draft.action = dice.pick(&[
            json!({"remote_adress": {}}),
            json!({"generic_kye": {"descriptor_value": "free"}}),
            json!({"extention": {}}),
            json!({"nothing_like_it": {}}),
        ]);
    }),
    (Trap::WrongPort, WITH_FILTER, |draft, dice| {
        draft.cluster = dice.pick(&["outbound|8080||tollgate.svc", "outbound|6070||tollgate.svc"]);
        draft.authority = Some("tollgate");
    }),
    (Trap::RouteFilterName, WITH_FILTER, |draft, dice| {
        give_config(draft, dice);
        let key = dice.pick(&["typed_config", "cors", "limit", "envoy.filters.http.local"]);
        draft.key = key.to_owned();
    }),
    (Trap::RouteFilterName, WITHOUT_FILTER, |draft, dice| {
        give_config(draft, dice);
        let slips = [
            "typed_config",
            "envoy.filters.http.rate_limit",
            "envoy.rate_limit",
        ];
        draft.key = dice.pick(&slips).to_owned();
    }),
    (Trap::Domain, &FORMS, |draft, dice| {
        give_config(draft, dice);
        draft.own_domain = Some("nope");
    }),
    (Trap::Domain, WITH_FILTER, |draft, _| draft.domain = "nope"),
    (Trap::Stage, WITH_LISTENER, |draft, dice| {
        draft.owner = dice.pick(&[Owner::Host, Owner::Route]);
        draft.stage = 3;
    }),
    (Trap::Descriptor, WITH_LISTENER, |draft, dice| {
        draft.action = dice.pick(&[
            json!({"generic_key": {"descriptor_value": "other"}}),
            json!({"source_cluster": {}}),
        ]);
    }),
    (Trap::NoMatch, PATCHES, |draft, dice| {
        draft.host = dice.pick(&["*", "shop.example.com", "shop:*", "inbound|http"]);
    }),
    (Trap::MisplacedLimits, &FORMS, |draft, _| {
        draft.owner = Owner::Route;
        draft.is_misplaced = true;
    }),
    (Trap::Authority, WITH_FILTER, |draft, _| {
        draft.cluster = "outbound|8081||tollgate.svc";
        draft.authority = None;
    }),
    (Trap::NoFilter, WITH_FILTER, |draft, dice| {
        draft.filter_type = dice.pick(&[
            "type.googleapis.com/envoy.config.filter.http.rate_limit.v2.RateLimit",
            "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimt",
        ]);
    }),
];

fn give_config(draft: &mut Draft, dice: &mut Dice) {
    if !draft.owner.is_config() {
        draft.owner = dice.pick(&[Owner::RouteConfig, Owner::HostConfig]);
    }
}

#[test]
fn correct_configurations_of_all_shapes_have_no_trap() {
    let mut dice = Dice(37);
    for form in FORMS.into_iter().cycle().take(600) {
        let draft = draft(&mut dice, form);
        let mut found = found(&draft);
        let single = (Trap::ListOfOne, TrapSeverity::Advice);
        found.retain(|finding| (finding.trap, finding.severity) != single);
        assert!(found.is_empty(), "{draft:?}: {found:#?}\n{}", draft.text());
    }
}

#[test]
fn each_trap_in_any_shape_is_found() {
    let mut dice = Dice(10);
    for (trap, forms, plant) in PLANTS {
        for form in forms.iter().cycle().take(60) {
            let mut draft = draft(&mut dice, *form);
            plant(&mut draft, &mut dice);
            let found = found(&draft);
            let is_found = found.iter().any(|finding| finding.trap == trap);
            assert!(is_found, "{trap}: {draft:?}: {found:#?}\n{}", draft.text());
        }
    }
}
