//! Traps between a filter and the service that it calls.

use std::collections::BTreeMap;

use super::super::{
    document::{DocumentValue, is_authority},
    finding::{Findings, Trap, TrapSeverity},
};
use super::no_filter::is_one_slip;

/// The default ports of tollgate that do not serve gRPC.
const OTHER_PORTS: [(&str, &str); 3] =
    [("8080", "HTTP"), ("6070", "debug"), ("9090", "Prometheus")];

/// Checks the port on which the service is called.
fn port(port: &str, at: &DocumentValue<'_>, found: &mut Findings) {
    if let Some((_, name)) = OTHER_PORTS.iter().find(|(other, _)| *other == port) {
        found.error(
            Trap::WrongPort,
            at,
            format!(
                "{port} is the {name} port of tollgate, unless its settings say otherwise, and has no gRPC: every call \
                 fails"
            ),
            "write the gRPC port, 8081 by default",
        );
    }
}

/// Checks the `envoy_grpc` of a filter in a bootstrap that has all `clusters`.
pub(crate) fn call(
    envoy_grpc: &DocumentValue<'_>,
    clusters: &BTreeMap<String, DocumentValue<'_>>,
    found: &mut Findings,
) {
    let Some(name) = envoy_grpc.get("cluster_name") else {
        return;
    };
    let called = name.text().unwrap_or_default();
    if clusters.contains_key(called) {
        return;
    }
    let nearest = clusters.keys().find(|known| is_one_slip(called, known));
    let fix = match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "name one of `static_resources.clusters`, or add it there".to_owned(),
    };
    let text = format!("there is no cluster `{called}`: every call fails");
    found.error(Trap::UnknownCluster, &name, text, fix);
}

/// Checks the `grpc_service` that a filter calls.
pub(crate) fn service(service: &DocumentValue<'_>, found: &mut Findings) {
    if let Some(policy) = service.get("retry_policy") {
        found.warning(
            Trap::Retries,
            &policy,
            "a call that is retried may have been counted: its hits then count twice",
            "remove `retry_policy`",
        );
    }
    if let Some(target) = service.at(&["google_grpc", "target_uri"]) {
        let text = target.text().unwrap_or_default();
        port(text.rsplit(':').next().unwrap_or_default(), &target, found);
    }
    let Some(envoy_grpc) = service.get("envoy_grpc") else {
        return;
    };
    // This is how Istio names the clusters of services.
    if let Some(name) = envoy_grpc.get("cluster_name")
        && let Some(("outbound", rest)) = name.text().and_then(|name| name.split_once('|'))
    {
        port(rest.split('|').next().unwrap_or_default(), &name, found);
    }
    if let Some(policy) = envoy_grpc.get("retry_policy") {
        found.advice(
            Trap::Retries,
            &policy,
            "`retry_policy` has no effect on these calls",
            "remove it",
        );
    }
    let cluster = envoy_grpc.text_of("cluster_name").unwrap_or_default();
    authority(&envoy_grpc, cluster, found);
}

/// Checks a cluster that a filter calls.
pub(crate) fn cluster(name: &str, cluster: &DocumentValue<'_>, found: &mut Findings) {
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
        found.error(
            Trap::Http2,
            cluster,
            "the cluster speaks HTTP/1.1, but gRPC needs HTTP/2: every call fails",
            format!(
                "add `typed_extension_protocol_options` with {OPTIONS} and \
                 `explicit_http_config: {{ http2_protocol_options: {{}} }}`"
            ),
        );
    }
    let localities = cluster
        .get("load_assignment")
        .map(|hosts| hosts.list("endpoints"));
    let hosts = localities
        .iter()
        .flatten()
        .flat_map(|locality| locality.list("lb_endpoints"));
    let address = ["endpoint", "address", "socket_address", "port_value"];
    for at in hosts.filter_map(|host| host.at(&address)) {
        port(at.text().unwrap_or_default(), &at, found);
    }
    let checks = cluster.list("health_checks");
    for check in &checks {
        if let Some(grpc) = check.get("grpc_health_check") {
            authority(&grpc, name, found);
        }
        if check.get("no_traffic_interval").is_none() {
            found.advice(
                Trap::NoTrafficInterval,
                check,
                "before the first call Envoy checks health once a minute, so it notices late that a \
                 host stops or starts",
                "write `no_traffic_interval: 1s`",
            );
        }
    }
    let panic = ["common_lb_config", "healthy_panic_threshold"];
    if let (Some(check), None) = (checks.first(), cluster.at(&panic)) {
        found.advice(
            Trap::PanicThreshold,
            check,
            "while half of the hosts are unhealthy Envoy uses all of them, so health checks \
             do not affect a single host",
            "write `common_lb_config: { healthy_panic_threshold: { value: 0 } }` on the cluster",
        );
    }
}

/// Checks the `:authority` that Envoy sends: the configured one, or the name of the cluster.
fn authority(value: &DocumentValue<'_>, cluster: &str, found: &mut Findings) {
    let authority = value.text_of("authority").unwrap_or_default();
    let sent = if authority.is_empty() {
        cluster
    } else {
        authority
    };
    if sent.is_empty() || is_authority(sent) {
        return;
    }
    // Istio creates such names, and its sidecars check authorities.
    let (severity, consequence) = match sent.contains('|') {
        true => (
            TrapSeverity::Error,
            ", but a sidecar before tollgate resets the call first",
        ),
        false => (TrapSeverity::Warning, ""),
    };
    let text = format!(
        "Envoy sends `{sent}` as `:authority`, which is invalid: HTTP/2 servers reset every call, and \
         then nothing is limited; tollgate replaces it{consequence}"
    );
    let fix = "write `authority: HOST`, such as the host name of the service";
    found.add(severity, Trap::Authority, value, text, fix);
}
