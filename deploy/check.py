#!/usr/bin/env python3
"""Checks the files of this folder, and takes out of them what a test can run.

Every overlay of kustomize/ is rendered by kubectl, and the Helm chart with every values file in its
ci/. Every document must pass the schema of its kind and checks that no schema can express; a preset of the
chart must be the same as the overlay of its name; files that are made of others must be up to date.

Needs PyYAML, kubernetes-validate, kubectl, helm-python-sdk and grafana-foundation-sdk, which `make tools`
installs.
"""

import argparse
import json
import pathlib
import re
import sys

import yaml

sys.dont_write_bytecode = True  # This folder may be read-only, and is no place for caches.

from checks import documents, extract, grafana, inventory, prometheus, schemas
from checks.documents import DEPLOY, Problem
from checks.pods import pod_errors, policy_errors

# Examples that stand for themselves.
EXAMPLES = [
    "istio/envoyfilter.yaml",
    "istio/sidecar-inbound.yaml",
    "istio/token-budget.yaml",
    "contour/contour.yaml",
    "envoy-gateway/policy.yaml",
    "envoy-gateway/token-budget.yaml",
]
# Values that the chart must refuse, and a part of the reason.
BAD_VALUES = [
    ({"replicas": 3}, "replicas"),
    ({"replicaCount": "3"}, "replicaCount"),
    ({"image": {"repository": "registry.example.com/tollgate", "tag": "latest"}}, "tag"),
    ({"rules": {"shop.txt": "domain: shop"}}, "shop.txt"),
    ({"onStoreLoss": "ignore"}, "onStoreLoss"),
    ({"redis": {"url": "redis://:secret@redis:6379"}}, "/redis/url"),
    ({"resources": {"limits": {"memory": "lots"}}}, "memory"),
    ({"networkPolicy": {"envoys": []}}, "envoys"),
    ({"extraEnv": [{"name": "log-level", "value": "warn"}]}, "extraEnv"),
    ({"extraVolumes": [{"emptyDir": {}}]}, "extraVolumes"),
    ({"extraVolumeMounts": [{"name": "mapping", "path": "/etc/mapping"}]}, "extraVolumeMounts"),
    ({"image": {"repository": "registry.example.com/tollgate", "digest": "1f"}}, "digest"),
    ({"redis": {"imageDigest": "sha256:1f"}}, "imageDigest"),
    ({"redis": {"tls": {"secret": "redis-tls"}}}, "tls"),
    ({"redis": {"tls": {"secretName": "redis-tls"}}}, "redis.tls needs redis.url"),
    ({"redis": {"bundled": True}}, "redis.authSecret.name"),
    ({"adminToken": {"secret": "token"}}, "adminToken"),
    ({"metrics": {"prometheusRule": {"runbookUrl": "docs/run/runbook.md"}}}, "runbookUrl"),
    ({"autoscaling": {"enabled": True}}, "count in memory"),
    ({"redis": {"bundled": True, "url": "redis://other:6379", "authSecret": {"name": "auth"}}}, "exclude each other"),
]


def main():
    options = parse_options()
    try:
        if options.write:
            return write()
        if options.plant:
            problems = plant()
        elif options.inventory:
            problems = inventory.take()
        elif options.rendered:
            options.rendered.mkdir(parents=True, exist_ok=True)
            for name, text in documents.rendered().items():
                (options.rendered / name).write_text(text)
            problems = []
        elif options.unit_tests:
            options.unit_tests.write_text(yaml.safe_dump(prometheus.unit_tests(), width=10_000))
            problems = []
        elif options.expressions:
            options.expressions.write_text(json.dumps(prometheus.expressions(), indent=2))
            problems = []
        elif options.metrics:
            problems = prometheus.unknown_metrics(options.metrics.read_text().split())
        elif options.extract:
            options.extract.write_text(json.dumps(extract.everything(), indent=2))
            problems = []
        else:
            problems = check()
    except Problem as problem:
        problems = [str(problem)]
    for problem in problems:
        print(f"ERROR {problem}", file=sys.stderr)
    return 1 if problems else 0


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    way = parser.add_mutually_exclusive_group()
    path = {"type": pathlib.Path, "metavar": "FILE"}
    way.add_argument("--write", action="store_true", help="write the files that are made of others")
    way.add_argument("--rendered", type=pathlib.Path, metavar="FOLDER", help="write each overlay as one file")
    way.add_argument("--plant", action="store_true", help="misspell every field once; each must be refused")
    way.add_argument("--inventory", action="store_true", help="count all that is rendered, and name all that is not")
    way.add_argument("--unit-tests", **path, help="write promtool's unit tests of the alerts")
    way.add_argument("--expressions", **path, help="write all expressions of rules and dashboards as JSON")
    way.add_argument("--metrics", **path, help="expressions may name only the metrics that this file lists")
    way.add_argument("--extract", **path, help="write what tests run as JSON")
    return parser.parse_args()


def write():
    for path, text in documents.copies().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(DEPLOY)}")
    return 0


def check():
    """Prints a line for each document and returns every problem."""
    problems = stale()
    rendered = {name: documents.kustomize(documents.OVERLAYS / name) for name in documents.overlays()}
    presets = documents.helm(documents.presets())
    examples = [document for name in EXAMPLES for document in documents.read(DEPLOY / name)]
    for group in [*rendered.values(), *(found for found, _ in presets.values()), examples]:
        problems += group_errors(group)
    problems += same_as_overlays(rendered, presets)
    problems += chart_errors(presets)
    problems += envoy_gateway_errors(rendered["envoy-gateway"]) + compose_errors()
    problems += prometheus.rule_errors() + grafana.dashboard_errors()
    return problems


def stale():
    """Files that are made of others and were not made anew."""
    return [
        f"{path.relative_to(DEPLOY)} is not up to date: run deploy/check.py --write"
        for path, text in documents.copies().items() if not path.exists() or path.read_text() != text
    ]


def group_errors(group):
    """The errors of documents that are applied together."""
    problems = policy_errors(group)
    for document in group:
        found = [error for error in [schemas.schema_error(document)] if error]
        found += pod_errors(document.pod()) if document.pod() else []
        print(f"ERROR {document.where}" if found else f"ok    {document.where}")
        problems += [f"{document.where}: {error}" for error in found]
    return problems


def same_as_overlays(rendered, presets):
    """How presets of the chart differ from the overlays of their names."""
    problems = []
    for name in sorted(rendered.keys() & presets.keys()):
        overlay = {key(document): plain(document) for document in rendered[name] if document.kind != "Namespace"}
        preset = {key(document): plain(document) for document in presets[name][0] if document.kind != "Pod"}
        problems += [f"{name}: only the overlay has {one}" for one in sorted(overlay.keys() - preset.keys())]
        problems += [f"{name}: only the chart has {one}" for one in sorted(preset.keys() - overlay.keys())]
        for one in sorted(overlay.keys() & preset.keys()):
            problems += [f"{name} {one}{place}" for place in differences(overlay[one], preset[one])]
        print(f"same  kustomize {name} and helm {name}: {len(overlay)} documents")
    return problems


def key(document):
    return f"{document.kind} {document.body['metadata'].get('namespace', '')}/{document.name}"


def plain(document):
    """A document without the labels that only Helm sets, and in one order."""
    body = yaml.safe_load(document.text())
    for label in ("app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"):
        body["metadata"].get("labels", {}).pop(label, None)
    pod = documents.Document("", body).pod()
    for part in [pod or {}, *(pod or {}).get("containers", [])]:
        for name in ("env", "volumes", "volumeMounts"):
            if name in part:
                part[name] = sorted(part[name], key=lambda item: item["name"])
    return body


def differences(overlay, preset, place=""):
    if isinstance(overlay, dict) and isinstance(preset, dict):
        return [
            line for name in sorted(overlay.keys() | preset.keys())
            for line in differences(overlay.get(name), preset.get(name), f"{place}.{name}")
        ]
    if isinstance(overlay, list) and isinstance(preset, list) and len(overlay) == len(preset):
        return [
            line for number, (one, other) in enumerate(zip(overlay, preset))
            for line in differences(one, other, f"{place}[{number}]")
        ]
    return [] if overlay == preset else [f"{place}: {overlay!r} in the overlay, {preset!r} in the chart"]


def chart_errors(presets):
    problems = [f"helm lint: {message}" for message in documents.helm_lint()]
    for name, (found, notes) in presets.items():
        hooks = [document for document in found if document.kind == "Pod"]
        args = [hook.pod()["containers"][0]["args"][0] for hook in hooks]
        if args != ["ask"]:
            problems.append(f"helm {name}: its test does not call `tollgate ask`")
        if "helm test" not in notes or "registry" not in notes:
            problems.append(f"helm {name}: its notes lack how to try it, or where the image comes from")
        shown = " ".join(document.text() for document in found)
        problems += [f"helm {name}: nothing shows {text}" for text in texts(documents.presets()[name]) if text not in shown]
    for values, reason in BAD_VALUES:
        refused = documents.helm_refuses(values)
        if refused is None or reason not in refused:
            problems.append(f"helm does not refuse {values} for {reason!r}: {refused}")
    print(f"ok    helm refuses {len(BAD_VALUES)} mistakes in values")
    return problems


def texts(values):
    """All texts in values."""
    if isinstance(values, (dict, list)):
        inner = values.values() if isinstance(values, dict) else values
        return [text for value in inner for text in texts(value)]
    return [values] if isinstance(values, str) else []


def envoy_gateway_errors(overlay):
    """Both ways of swapping the image do the same, and their configuration fits its schema."""
    problems = []
    config = next(document for document in overlay if document.name == "envoy-gateway-config")
    body = yaml.safe_load(config.body["data"]["envoy-gateway.yaml"])
    error = schemas.schema_error(documents.Document("", body))
    values = yaml.safe_load((DEPLOY / "envoy-gateway" / "helm-values.yaml").read_text())
    problems += [f"envoy-gateway: {error}" for error in [error, schemas.named_error("helm values of Envoy Gateway", values)] if error]
    # The values have the image at a place of its own.
    config = values["config"]["envoyGateway"]
    container = config["provider"]["kubernetes"]["rateLimitDeployment"]["container"]
    container["image"] = values["global"]["images"]["ratelimit"]["image"]
    if differing := [name for name in config if name != "provider" and config[name] != body[name]] + differences(
        body["provider"]["kubernetes"], config["provider"]["kubernetes"], "provider"
    ):
        problems.append(f"envoy-gateway: two ways, two configurations: {differing}")
    service = next(document for document in overlay if document.kind == "Service")
    url = body["rateLimit"]["backend"]["redis"]["url"]
    if not url.startswith(f"{service.name}.{service.body['metadata']['namespace']}.svc"):
        problems.append(f"envoy-gateway: no Service is at {url}")
    return problems


def compose_errors():
    """A field that is misspelt, a port that is open to the network, a file that is not there."""
    body = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    problems = [f"compose.yaml {error}" for error in [schemas.named_error("compose", body)] if error]
    for name, service in body["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            is_there = (DEPLOY / "compose" / source).exists() if source.startswith(".") else source in body["volumes"]
            if not is_there:
                problems.append(f"compose.yaml {name}: there is no {source}")
        for secret in service.get("secrets", []):
            if secret not in body["secrets"]:
                problems.append(f"compose.yaml {name}: there is no secret {secret}")
        needed = service.get("depends_on", [])
        for other in needed:
            if other not in body["services"]:
                problems.append(f"compose.yaml {name}: there is no service {other}")
            elif isinstance(needed, dict) and "healthcheck" not in body["services"][other]:
                problems.append(f"compose.yaml {name}: {other} has no health to wait for")
    print("ERROR compose.yaml" if problems else f"ok    compose.yaml: {len(body['services'])} services")
    return problems


def plant():
    """Misspells every field of every document once."""
    problems, seen = [], set()
    groups = [documents.kustomize(documents.OVERLAYS / name) for name in documents.overlays()]
    groups.append([document for name in EXAMPLES for document in documents.read(DEPLOY / name)])
    groups.append(documents.helm({"full": documents.presets()["full"]})["full"][0])
    config = next(document for group in groups for document in group if document.name == "envoy-gateway-config")
    groups.append([documents.Document("envoy-gateway.yaml", yaml.safe_load(config.body["data"]["envoy-gateway.yaml"]))])
    for document in (document for group in groups for document in group):
        # One of each shape is enough.
        shape = re.sub(r'"(value|name|image)": "[^"]*"', "", document.text())
        if shape in seen:
            continue
        seen.add(shape)
        count, passed = schemas.misspellings(document)
        problems += [f"{document.where}: {field} may be misspelt" for field in passed]
        print(f"ok    {document.where}: {count} misspellings refused")
    for name, dashboard in grafana.dashboards().items():
        # One panel of each kind is enough.
        kinds = {panel["type"]: panel for panel in dashboard["panels"]}
        count, passed = grafana.misspellings(dashboard | {"panels": list(kinds.values())})
        problems += [f"{name}: {field} may be misspelt" for field in passed]
        print(f"ok    {name}: {count} misspellings refused")
    return problems


if __name__ == "__main__":
    sys.exit(main())
