"""Everything that a test can run: programs with arguments, variables and files, and Envoy bootstraps."""

import pathlib
import re

import yaml

from .documents import DEPLOY, OVERLAYS, Problem, helm, kustomize, presets, read
from .pods import containers

RATELIMIT = "envoy.filters.http.ratelimit"


def everything():
    sidecar = kustomize(OVERLAYS / "sidecar")
    pod = one(sidecar, "Deployment", "shop").pod()
    by_name = {container["name"]: container for container in containers(pod)}
    envoy = by_name["envoy"]
    config = pathlib.PurePath(envoy["args"][envoy["args"].index("--config-path") + 1])
    redis = kustomize(OVERLAYS / "redis")
    cluster = kustomize(OVERLAYS / "redis-cluster")
    return {
        "sidecar": start(sidecar, pod) | {"envoy": mounted(sidecar, pod, envoy, config.parent)[config.name]},
        "service": start(redis, one(redis, "Deployment", "tollgate").pod()),
        "redis": redis_servers(),
        "chart": chart(),
        "cluster": start(cluster, one(cluster, "Deployment", "tollgate").pod()),
        "istio": {
            "gateway": text(with_istio(read(DEPLOY / "istio" / "envoyfilter.yaml"))),
            "sidecar-inbound": text(with_istio(read(DEPLOY / "istio" / "sidecar-inbound.yaml"))),
        },
        "contour": text(with_contour(read(DEPLOY / "contour" / "contour.yaml"))),
        "compose": compose(),
        "helm_test": helm_test(),
    }


def redis_servers():
    """The commands of every Redis in here, by the name of its source."""
    groups = [kustomize(OVERLAYS / name) for name in ("redis", "istio", "envoy-gateway")]
    groups += [documents for documents, _ in helm(presets()).values()]
    servers = {"compose": compose()["redis"]}
    for document in (document for group in groups for document in group):
        if document.kind == "Deployment" and document.name.endswith("-redis"):
            container, = document.pod()["containers"]
            servers[document.where] = container["command"] + container["args"]
    return servers


def chart():
    """tollgate as the chart starts it with every Secret that it knows, and with rules of its own."""
    documents, _ = helm({"full": presets()["full"] | {"rulesConfigMap": ""}})["full"]
    return start(documents, one(documents, "Deployment", "limits").pod())


def helm_test():
    """The arguments of the pod that `helm test` starts."""
    documents, _ = helm({"redis": presets()["redis"]})["redis"]
    return one(documents, "Pod", "tollgate-test").pod()["containers"][0]["args"]


def text(bootstrap):
    return yaml.safe_dump(bootstrap, sort_keys=False)


def start(documents, pod):
    """All that a tollgate container is started with."""
    container = next(container for container in containers(pod) if container["name"] == "tollgate")
    env = {variable["name"]: variable["value"] for variable in container.get("env", [])}
    folder = pathlib.PurePath(env["TOLLGATE_CONFIG_DIR"])
    return {"args": container["args"], "env": env, "rules": mounted(documents, pod, container, folder)}


def one(documents, kind, name):
    found = [document for document in documents if (document.kind, document.name) == (kind, name)]
    if len(found) != 1:
        raise Problem(f"{len(found)} documents are called {kind}/{name}")
    return found[0]


def mounted(documents, pod, container, folder):
    """The files that a container finds in a folder that is mounted from a ConfigMap."""
    for mount in container.get("volumeMounts", []):
        if pathlib.PurePath(mount["mountPath"]) == folder:
            volume = next(volume for volume in pod["volumes"] if volume["name"] == mount["name"])
            return one(documents, "ConfigMap", volume["configMap"]["name"]).body["data"]
    raise Problem(f"{container['name']}: nothing is mounted at {folder}")


def compose():
    """The services of compose.yaml as they can be run without containers."""
    folder = DEPLOY / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    return {
        "tollgate": {
            "args": services["tollgate"]["command"],
            "env": services["tollgate"]["environment"],
            "healthcheck": services["tollgate"]["healthcheck"]["test"],
            "rules": {path.name: path.read_text() for path in sorted((folder / "rules").iterdir())},
        },
        # A lone $ would be one of Compose's own variables.
        "redis": [word.replace("$$", "$") for word in services["redis"]["entrypoint"] + services["redis"]["command"]],
        "envoys": sorted(name for name in services if name.startswith("envoy")),
        "envoy": (folder / "envoy.yaml").read_text(),
        "prometheus": (folder / "prometheus.yaml").read_text(),
    }


def with_filter(http_filter, rate_limits, cluster):
    """The plain bootstrap with another rate limit filter and other actions."""
    bootstrap = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())
    resources = bootstrap["static_resources"]
    for known in resources["clusters"]:
        if known["name"] == "tollgate":
            known["name"] = known["load_assignment"]["cluster_name"] = cluster
    front = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    filters = [item for item in front["http_filters"] if item["name"] != RATELIMIT]
    front["http_filters"] = [http_filter, *filters]
    for host in front["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            # A route with actions of its own would hide those of the virtual host.
            route["route"].pop("rate_limits", None)
        host["rate_limits"] = rate_limits
    return bootstrap


def with_istio(documents):
    """The bootstrap with what Istio's control plane would make of the EnvoyFilters.

    The cluster of tollgate gets the name that Istio gives it, which is all that is left of a mesh.
    """
    patches = {
        patch["applyTo"]: patch["patch"]["value"]
        for document in documents for patch in document.body["spec"]["configPatches"]
    }
    http_filter = patches["HTTP_FILTER"]
    service = http_filter["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"]
    if not re.fullmatch(r"[a-z0-9.-]+", service.get("authority", "")):
        raise Problem("an EnvoyFilter names no authority that is a host name")
    return with_filter(http_filter, patches["VIRTUAL_HOST"]["rate_limits"], service["cluster_name"])


def with_contour(documents):
    """The bootstrap with the filter that Contour makes of its resources."""
    extension = one(documents, "ExtensionService", "tollgate").body
    settings = one(documents, "ContourConfiguration", "contour").body["spec"]["rateLimitService"]
    proxy = one(documents, "HTTPProxy", "shop").body["spec"]["virtualhost"]
    named = {name: extension["metadata"][name] for name in ("name", "namespace")}
    if settings["extensionService"] != named:
        raise Problem(f"contour.yaml: there is no ExtensionService {settings['extensionService']}")
    cluster = f"extension/{named['namespace']}/{named['name']}"
    http_filter = {
        "name": RATELIMIT,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": settings["domain"],
            "timeout": f"{int(extension['spec']['timeoutPolicy']['response'].removesuffix('ms')) / 1000}s",
            "failure_mode_deny": not settings["failOpen"],
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03" if settings["enableXRateLimitHeaders"] else "OFF",
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": cluster, "authority": cluster.replace("/", ".")}},
            },
        },
    }
    descriptors = proxy["rateLimitPolicy"]["global"]["descriptors"]
    actions = [{"actions": [action(entry) for entry in item["entries"]]} for item in descriptors]
    return with_filter(http_filter, actions, cluster)


def action(entry):
    """The action of Envoy that Contour makes of an entry of an HTTPProxy."""
    (name, fields), = entry.items()
    if name == "remoteAddress":
        return {"remote_address": {}}
    if name == "genericKey":
        key = {"descriptor_key": fields["key"]} if "key" in fields else {}
        return {"generic_key": {"descriptor_value": fields["value"]} | key}
    raise Problem(f"contour.yaml: an entry {name}, which this check does not know")
