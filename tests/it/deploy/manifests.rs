//! Overlays, the chart and all else that can be checked without running it, and mistakes planted in it.

use std::{fs, path::Path};

use super::{check, checked, deploy, planted, rows, text};

#[test]
fn every_overlay_and_every_preset_is_valid() {
    let printed = checked(&[]);
    for overlay in ["istio", "memory", "redis", "redis-cluster"] {
        for line in [
            format!("ok    kustomize {overlay} Deployment/tollgate"),
            format!("ok    helm {overlay} Deployment/tollgate"),
            format!("same  kustomize {overlay} and helm {overlay}: "),
        ] {
            assert!(printed.contains(&line), "{line}: {printed}");
        }
    }
    for line in [
        "ok    kustomize sidecar Deployment/shop",
        "ok    kustomize envoy-gateway ConfigMap/envoy-gateway-config",
        "ok    helm full Deployment/limits",
        "ok    helm digest Deployment/tollgate-redis",
        "ok    helm full ServiceMonitor/limits",
        "ok    contour/contour.yaml HTTPProxy/shop",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}

#[test]
fn every_misspelt_field_is_refused() {
    let printed = checked(&["--plant"]);
    let refused = " misspellings refused";
    let lines = printed
        .lines()
        .filter_map(|line| line.strip_suffix(refused));
    let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
    let refused: usize = counts.sum();
    assert!(refused > 1000, "{refused}: {printed}");
}

#[test]
fn every_file_is_rendered_or_left_out_for_a_reason() {
    let printed = checked(&["--inventory"]);
    for part in ["kustomize", "helm", "envoy", "prometheus", "grafana"] {
        let total = printed.lines().find_map(|line| {
            let (what, count) = line.strip_prefix("total")?.trim().split_once(": ")?;
            (what == part).then(|| count.parse::<usize>().unwrap())
        });
        assert!(total.is_some_and(|total| total > 10), "{part}: {printed}");
    }
}

/// Each problem is in a line of its place.
#[track_caller]
fn check_found(folder: &Path, arguments: &[&str], problems: &str) {
    let output = check(folder, arguments);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stderr);
    for [place, problem] in rows::<2>(problems) {
        let is_it = |line: &str| line.contains(&place) && line.contains(&problem);
        assert!(printed.lines().any(is_it), "{place}: {problem}: {printed}");
    }
}

const READ_BY_PROGRAMS: &str = "
envoy/envoy.yaml => failure_mode_deny => failure_mode_denied
Containerfile => WORKDIR /src => WORKDIR src
prometheus/rules.yaml => tollgate_stores_lost => tollgate_stores_lost{
";

const HIDDEN: &str = r#"
kustomize/components/new/kustomization.yaml => resources: []\n
grafana/spare.json => {"panels": [], "templating": {"list": []}}
helm/tollgate/templates/hidden.yaml => {{- if .Values.hidden }}\nkind: Secret\n{{- end }}\n
new/service.yaml => kind: Service\n
"#;

const PROBLEMS_OF_FILES: &str = "
kustomize/components/new/kustomization.yaml => nothing renders it
new/service.yaml => nothing renders it
helm/tollgate/templates/hidden.yaml => no preset
grafana/spare.json => in no ConfigMap
envoy envoy/envoy.yaml => failure_mode_denied
Containerfile => DL3000
prometheus/rules.yaml => could not parse expression
";

/// Files that nothing would look at, and mistakes that only the programs find that read them.
#[test]
fn what_is_not_rendered_is_found() {
    let (_copy, folder) = planted(READ_BY_PROGRAMS);
    for [file, contents] in rows::<2>(HIDDEN) {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    check_found(&folder, &["--inventory"], PROBLEMS_OF_FILES);
}

/// Some fit their schemas: they let a process be root, lose requests, or let in every pod.
const MISTAKES: &str = r#"
kustomize/base/deployment.yaml =>   replicas: 2 =>   replica: 2
kustomize/base/service.yaml => targetPort: grpc-rls => targetPorts: grpc-rls
kustomize/overlays/sidecar/shop.yaml => containerPort: 8080 => containerPort: http
istio/envoyfilter.yaml => applyTo: HTTP_FILTER => applyTo: HTTP_FILTERS
kustomize/overlays/sidecar/shop.yaml => runAsNonRoot: true => runAsNonRoot: false
kustomize/redis/redis.yaml => redis:7.2.16-bookworm => redis:latest
kustomize/base/deployment.yaml => value: 30s => value: 40s
kustomize/base/deployment.yaml => value: "false" => value: "true"
kustomize/base/networkpolicy.yaml =>         - namespaceSelector:\n            matchLabels:\n              tollgate-envoy: "true"\n =>         - {}\n
helm/tollgate/templates/service.yaml => port: 9090 => port: 9091
helm/tollgate/values.schema.json => "replicaCount": {\n      "type": "integer" => "replicaCount": {\n      "type": ["integer", "string"]
helm/tollgate/templates/monitoring.yaml =>  | replace $runbook .Values.metrics.prometheusRule.runbookUrl => NOTHING
helm/tollgate/templates/_helpers.tpl => {{ with .Values.image.digest }}@{{ . }}{{ end }} => NOTHING
envoy-gateway/helm-values.yaml => tollgate:0.1.0 => tollgate:0.0.9
prometheus/rules.yaml => severity: critical => severity: high
grafana/store.json => "id": 3, => "id": 2,
compose/compose.yaml => - 127.0.0.1:8081:8081 => - 8081:8081
compose/compose.yaml => - ./rules: => - ./rule:
compose/compose.yaml => secrets: [redis-auth] => secrets: [redis-pass]
helm/tollgate/templates/redis.yaml => --user default off  => NOTHING
"#;

const PROBLEMS: &str = "
kustomize redis Deployment/tollgate => replica
kustomize redis Service/tollgate => targetPorts
kustomize sidecar Deployment/shop => 'http' is not
kustomize sidecar Deployment/shop => run as root
istio/envoyfilter.yaml EnvoyFilter/tollgate-filter => HTTP_FILTERS
kustomize redis Deployment/tollgate-redis => no fixed image tag
kustomize redis Deployment/tollgate => killed before it has drained
kustomize redis Deployment/tollgate => can count at /json
kustomize redis NetworkPolicy/tollgate => lets in every pod
memory Service tollgate/tollgate.spec.ports => 9091 in the chart
helm does not refuse => replicaCount
helm full: nothing shows => https://wiki.example.com
helm full: nothing shows => sha256:
envoy-gateway => two ways, two configurations
rules.yaml TollgateAbsent => severity
store.json => its id is not unique
compose.yaml => '8081:8081' does not match
compose.yaml tollgate => there is no ./rule
compose.yaml tollgate => there is no secret redis-pass
helm redis Deployment/tollgate-redis => redis lets in everybody
prometheusrule.yaml => is not up to date
";

#[test]
fn mistakes_in_the_manifests_are_found() {
    let (_copy, folder) = planted(MISTAKES);
    check_found(&folder, &[], PROBLEMS);
}

#[test]
fn every_file_names_the_image_of_this_version() {
    let image = format!("tollgate:{}", env!("CARGO_PKG_VERSION"));
    for file in [
        "Containerfile",
        "compose/compose.yaml",
        "envoy-gateway/helm-values.yaml",
        "kustomize/base/deployment.yaml",
        "kustomize/overlays/envoy-gateway/envoy-gateway.yaml",
        "kustomize/overlays/sidecar/shop.yaml",
    ] {
        let text = fs::read_to_string(deploy().join(file)).unwrap();
        assert!(text.contains(&image), "{image} in {file}");
    }
    let chart = fs::read_to_string(deploy().join("helm/tollgate/Chart.yaml")).unwrap();
    let version = concat!("\nappVersion: ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(chart.contains(version), "{chart}");
}
