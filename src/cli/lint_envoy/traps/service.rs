//! Traps between a filter and the service that it calls.

use super::super::{
    document::{DocumentValue, is_authority},
    finding::TrapSeverity,
    trap::{Report, Subject, Trap},
};
use super::no_filter::is_one_slip;

/// A cluster that does not exist.
pub(super) const UNKNOWN_CLUSTER: Trap = Trap {
    name: "unknown-cluster",
    look: |subject, report| {
        let Subject::Call {
            envoy_grpc,
            clusters,
        } = subject
        else {
            return;
        };
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
        report.add(
            &name,
            TrapSeverity::Error,
            format!("there is no cluster `{called}`: every call fails"),
            fix,
        );
    },
};

/// Calls that are retried, or cannot be.
pub(super) const RETRIES: Trap = Trap {
    name: "retries",
    look: |subject, report| {
        let Subject::Service(service) = subject else {
            return;
        };
        if let Some(policy) = service.get("retry_policy") {
            report.add(
                &policy,
                TrapSeverity::Warning,
                "a call that is retried may have been counted: its hits then count twice",
                "remove `retry_policy`",
            );
        }
        if let Some(policy) = service.at(&["envoy_grpc", "retry_policy"]) {
            report.add(
                &policy,
                TrapSeverity::Advice,
                "`retry_policy` has no effect on these calls",
                "remove it",
            );
        }
    },
};

/// An `:authority` that HTTP/2 servers refuse, of calls or of health checks.
pub(super) const AUTHORITY: Trap = Trap {
    name: "authority",
    look: |subject, report| match subject {
        Subject::Service(service) => {
            if let Some(envoy) = service.get("envoy_grpc") {
                let cluster = envoy.text_of("cluster_name").unwrap_or_default();
                authority(&envoy, cluster, report);
            }
        }
        Subject::Cluster { name, cluster } => {
            for check in cluster.list("health_checks") {
                if let Some(grpc) = check.get("grpc_health_check") {
                    authority(&grpc, name, report);
                }
            }
        }
        _ => {}
    },
};

/// Checks the `:authority` that Envoy sends: the configured one, or the name of the cluster.
fn authority(value: &DocumentValue<'_>, cluster: &str, report: &mut Report<'_>) {
    let authority = value.text_of("authority").unwrap_or_default();
    let sent = if authority.is_empty() {
        cluster
    } else {
        authority
    };
    if sent.is_empty() || is_authority(sent) {
        return;
    }
    // Istio makes such names, and its sidecars check authorities.
    let is_of_mesh = sent.contains('|');
    let (severity, consequence) = match is_of_mesh {
        true => (
            TrapSeverity::Error,
            ", but a sidecar before tollgate resets the call first",
        ),
        false => (TrapSeverity::Warning, ""),
    };
    report.add(
        value,
        severity,
        format!(
            "Envoy sends `{sent}` as `:authority`, which is invalid: HTTP/2 servers reset every call, and \
             then nothing is limited; tollgate replaces it{consequence}"
        ),
        "write `authority: HOST`, such as the host name of the service",
    );
}

/// A cluster that does not speak HTTP/2.
pub(super) const HTTP2: Trap = Trap {
    name: "http2",
    look: |subject, report| {
        const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let Subject::Cluster { cluster, .. } = subject else {
            return;
        };
        let options = cluster.at(&["typed_extension_protocol_options", OPTIONS]);
        let speaks_http2 = cluster.get("http2_protocol_options").is_some()
            || options.is_some_and(|options| {
                let explicit = ["explicit_http_config", "http2_protocol_options"];
                options.at(&explicit).is_some()
                    || options.get("auto_config").is_some()
                    || options.get("use_downstream_protocol_config").is_some()
            });
        if !speaks_http2 {
            report.add(
                cluster,
                TrapSeverity::Error,
                "the cluster speaks HTTP/1.1, but gRPC needs HTTP/2: every call fails",
                format!(
                    "add `typed_extension_protocol_options` with {OPTIONS} and \
                     `explicit_http_config: {{ http2_protocol_options: {{}} }}`"
                ),
            );
        }
    },
};

/// Health checks that are rare before the first call.
pub(super) const NO_TRAFFIC_INTERVAL: Trap = Trap {
    name: "no-traffic-interval",
    look: |subject, report| {
        let Subject::Cluster { cluster, .. } = subject else {
            return;
        };
        for check in cluster.list("health_checks") {
            if check.get("no_traffic_interval").is_none() {
                report.add(
                    &check,
                    TrapSeverity::Advice,
                    "before the first call Envoy checks health once a minute, so it notices late that a \
                     host stops or starts",
                    "write `no_traffic_interval: 1s`",
                );
            }
        }
    },
};

/// Health checks that do not affect a single host.
pub(super) const PANIC_THRESHOLD: Trap = Trap {
    name: "panic-threshold",
    look: |subject, report| {
        let Subject::Cluster { cluster, .. } = subject else {
            return;
        };
        let panic = ["common_lb_config", "healthy_panic_threshold"];
        let checks = cluster.list("health_checks");
        if let (Some(check), None) = (checks.first(), cluster.at(&panic)) {
            report.add(
                check,
                TrapSeverity::Advice,
                "while half of the hosts are unhealthy Envoy uses all of them, so health checks \
                 do not affect a single host",
                "write `common_lb_config: { healthy_panic_threshold: { value: 0 } }` on the cluster",
            );
        }
    },
};
