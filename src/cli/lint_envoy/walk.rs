//! The walk over a configuration: finds the parts that can contain traps, wherever they are, and has them checked.

mod messages;

use std::collections::BTreeMap;

use super::{
    actions::{Holder, KnownRules, RateLimitItem},
    document::DocumentValue,
    finding::{Findings, SeenParts},
    scope::Scope,
    surroundings::ItemList,
    traps,
};

/// The scope of values outside all connection managers, such as the patches of an EnvoyFilter.
const LOOSE: usize = 0;

/// The surroundings of a value, as far as the checks need them.
#[derive(Clone, Copy, Debug)]
struct WalkPlace<'p, 'd> {
    scope: usize,
    /// Whether it is an item of the list `clusters` of a bootstrap.
    is_cluster: bool,
    parent: Option<&'p DocumentValue<'d>>,
    listener: Option<&'p DocumentValue<'d>>,
    /// The virtual host that the value belongs to.
    host: Option<&'p DocumentValue<'d>>,
    route: Option<&'p DocumentValue<'d>>,
    /// In the content of a TypedStruct, the owner of its `rate_limits`.
    carried: Option<Holder>,
}

/// A route configuration that arrived over xDS.
#[derive(Debug, Default)]
struct RouteConfig<'d> {
    descriptors: Vec<RateLimitItem<'d>>,
    configured: Vec<DocumentValue<'d>>,
}

/// The state of a walk: the parts and the findings so far.
#[derive(Debug, Default)]
pub(super) struct EnvoyWalk<'d> {
    /// Whether the file contains a part of an Envoy configuration.
    pub(super) has_envoy: bool,
    pub(super) findings: Findings,
    pub(super) seen: SeenParts,
    scopes: Vec<Scope<'d>>,
    /// Route configurations that arrived over xDS, by name.
    route_configs: BTreeMap<String, RouteConfig<'d>>,
    clusters: BTreeMap<String, DocumentValue<'d>>,
    /// Whether the file is a dump of a running Envoy.
    is_dump: bool,
    /// The version of that Envoy, major and minor, if the dump has it.
    version: Option<(u64, u64)>,
    is_bootstrap: bool,
    /// Whether more clusters can arrive from a control plane or from other Kubernetes resources.
    has_more_clusters: bool,
    /// By name of a cluster, the `envoy_grpc` of the filters that call it for decisions.
    calls: BTreeMap<String, Vec<DocumentValue<'d>>>,
}

impl<'d> EnvoyWalk<'d> {
    /// Walks over one document.
    pub(super) fn document(&mut self, root: &DocumentValue<'d>) {
        let place = WalkPlace {
            scope: LOOSE,
            is_cluster: false,
            parent: None,
            listener: None,
            host: None,
            route: None,
            carried: None,
        };
        self.gather(root, place);
    }

    /// Checks what only all documents together show.
    pub(super) fn finish(&mut self, rules: Option<&KnownRules<'_>>) {
        self.seen.clusters = self.clusters.len();
        let clusters = std::mem::take(&mut self.clusters);
        // A bootstrap without any cluster is probably an excerpt.
        let are_all_known =
            self.is_bootstrap && !self.is_dump && !self.has_more_clusters && !clusters.is_empty();
        for (name, calls) in std::mem::take(&mut self.calls) {
            let name = &*name;
            if let Some(cluster) = clusters.get(name) {
                traps::cluster(name, cluster, &mut self.findings);
            }
            if are_all_known {
                for envoy_grpc in &calls {
                    traps::call(envoy_grpc, &clusters, &mut self.findings);
                }
            }
        }
        self.finish_scopes(rules);
    }

    fn scope(&mut self, id: usize) -> &mut Scope<'d> {
        while self.scopes.len() <= id {
            self.scopes.push(Scope::default());
        }
        &mut self.scopes[id]
    }

    /// Collects `value` and everything below it.
    fn gather<'p>(&mut self, value: &'p DocumentValue<'d>, mut place: WalkPlace<'p, 'd>) {
        let (scope, holder) = self.message(value, place);
        place.scope = scope;
        let holder = place.carried.unwrap_or(holder);
        place.carried = value.is_struct().then_some(holder);
        // A dump repeats messages of the bootstrap. They would be reported twice.
        let dumps = value
            .get("configs")
            .map_or_else(Vec::new, |configs| configs.elements());
        self.is_dump |= !dumps.is_empty();
        let mut bootstraps = dumps.iter().filter(|dump| is_bootstrap_dump(dump));
        if let Some(version) = bootstraps.find_map(version_of) {
            self.version = Some(version);
        }
        if dumps.len() > 1 && dumps.iter().any(is_bootstrap_dump) {
            for dump in dumps.iter().filter(|dump| !is_bootstrap_dump(dump)) {
                self.gather(dump, place);
            }
            return;
        }
        self.resources(value);
        if place.is_cluster || value.get("load_assignment").is_some() {
            self.cluster(value);
        }
        place.is_cluster = false;
        if ["filter_chains", "default_filter_chain"]
            .iter()
            .any(|key| value.get(key).is_some())
        {
            place.listener = Some(value);
            self.single_items(value, &["filter_chains"]);
        }
        if value.at(&["virtual_hosts", "domains"]).is_some() {
            self.single_items(value, &["virtual_hosts"]);
        }
        if is_virtual_host(value) {
            self.has_envoy = true;
            traps::virtual_host(value, &mut self.findings);
            self.single_items(value, &["routes"]);
            place.host = Some(value);
        }
        if is_route(value) {
            self.has_envoy = true;
            self.seen.routes += 1;
            traps::route(value, &mut self.findings);
            place.route = Some(value);
        }
        if value.text_of("apply_to").is_some() && value.get("patch").is_some() {
            traps::patch(value, &mut self.findings);
        }
        let known = self.scope(LOOSE).descriptors.len();
        let known_configured = self.scope(LOOSE).configured.len();
        if value.get("typed_per_filter_config").is_some() {
            self.scope(scope).configured.push(value.clone());
        }
        self.rate_limits(value, place, holder);
        let is_route_config = scope == LOOSE && value.get("virtual_hosts").is_some();
        self.children(value, place);
        if is_route_config && let Some(name) = value.text_of("name") {
            let loose = self.scope(LOOSE);
            let descriptors = loose.descriptors.split_off(known);
            let configured = loose.configured.split_off(known_configured);
            let found = self.route_configs.entry(name.to_owned()).or_default();
            found.descriptors.extend(descriptors);
            found.configured.extend(configured);
        }
    }

    fn children(&mut self, value: &DocumentValue<'d>, place: WalkPlace<'_, 'd>) {
        for child in value.children() {
            // The listeners of a dump repeat its static route configurations, and a draining listener takes no more
            // requests.
            let path = child.path();
            let passed_over = [
                "].static_route_configs",
                ".draining_state",
                ".drainingState",
            ];
            if passed_over.iter().any(|end| path.ends_with(end)) {
                continue;
            }
            let mut below = WalkPlace {
                parent: Some(value),
                ..place
            };
            let is_weighted = path.ends_with("weighted_clusters.clusters")
                || path.ends_with("weightedClusters.clusters");
            if path.ends_with(".clusters") && !is_weighted {
                below.is_cluster = true;
                for item in child.items() {
                    self.gather(&item, below);
                }
            } else {
                self.gather(&child, below);
            }
        }
    }

    /// Records whether the file can know all clusters.
    fn resources(&mut self, value: &DocumentValue<'d>) {
        self.is_bootstrap |= value.get("static_resources").is_some();
        self.has_more_clusters |= value.get("dynamic_resources").is_some()
            || (value.get("apiVersion").is_some() && value.get("kind").is_some());
    }

    /// Checks for maps at these keys, where lists are meant.
    fn single_items(&mut self, value: &DocumentValue<'d>, keys: &[&str]) {
        for key in keys {
            if let Some(single) = value.get(key)
                && single.is_map()
            {
                traps::single_item(key, &single, &mut self.findings);
            }
        }
    }

    /// Collects the `rate_limits` of a value.
    fn rate_limits(&mut self, value: &DocumentValue<'d>, place: WalkPlace<'_, 'd>, holder: Holder) {
        let mut items = value.list("rate_limits");
        for item in &items {
            traps::unknown_actions(item, &mut self.findings);
        }
        items.retain(|item| item.get("actions").is_some());
        if items.is_empty() {
            return;
        }
        self.has_envoy = true;
        self.seen.items += items.len();
        self.single_items(value, &["rate_limits"]);
        for item in &items {
            self.single_items(item, &["actions"]);
        }
        let manager = self.scope(place.scope).manager.clone();
        let list = ItemList {
            items: &items,
            route: place.route,
            host: place.host,
            manager: manager.as_ref(),
        };
        traps::items(&list, &mut self.findings);
        let mut descriptors = Vec::with_capacity(items.len());
        for limit in list.items {
            traps::item(limit, holder, &mut self.findings);
            let mut item = RateLimitItem::new(limit.clone(), holder, value.text_of("domain"));
            if item.order.is_none() {
                item.shorter = list.shorter(limit);
                item.optional_addend = list.optional_addend(limit);
            }
            descriptors.push(item);
        }
        traps::costs(&descriptors, &mut self.findings);
        traps::late_headers(&descriptors, self.version, &mut self.findings);
        self.scope(place.scope).descriptors.extend(descriptors);
    }
}

/// Whether a part of a dump is the bootstrap.
fn is_bootstrap_dump(dump: &DocumentValue<'_>) -> bool {
    let name = dump.message().map(|(name, _)| name);
    name.is_some_and(|name| name.ends_with(".BootstrapConfigDump"))
}

/// The version of the Envoy whose bootstrap is in this part of a dump.
fn version_of(dump: &DocumentValue<'_>) -> Option<(u64, u64)> {
    let keys = ["bootstrap", "node", "user_agent_build_version", "version"];
    let version = dump.at(&keys)?;
    Some((
        version.number("major_number"),
        version.number("minor_number"),
    ))
}

fn is_virtual_host(value: &DocumentValue<'_>) -> bool {
    value.get("domains").is_some() && !value.list("routes").is_empty()
}

/// Whether a value is a route of Envoy. Istio's own routes have lists at `match` and `route`.
fn is_route(value: &DocumentValue<'_>) -> bool {
    let has_answer = || {
        let answers = ["route", "redirect", "direct_response"];
        answers
            .iter()
            .any(|key| value.get(key).is_some_and(|answer| answer.is_map()))
    };
    value.get("match").is_some_and(|of| of.is_map()) && has_answer()
}
