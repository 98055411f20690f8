"""Mistakes in pods and network policies to which no schema objects."""


def pod_errors(pod):
    errors = []
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True:
        errors.append("pod may run as root")
    if security.get("runAsUser") != 65532:
        errors.append("pod does not run as 65532")
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        errors.append("pod has no seccomp profile")
    if pod.get("automountServiceAccountToken") is not False:
        errors.append("pod has a token of the API server")
    for container in containers(pod):
        errors += container_errors(container)
        if container["name"] == "tollgate":
            errors += tollgate_errors(pod, container)
        if container["name"] == "redis" and "--user default off " not in container["args"][-1]:
            errors.append("redis lets in everybody")
    return errors


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def container_errors(container):
    errors = []
    name, security = container["name"], container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False:
        errors.append(f"{name} may gain privileges")
    if security.get("readOnlyRootFilesystem") is not True:
        errors.append(f"{name} may write to its image")
    if security.get("capabilities") != {"drop": ["ALL"]}:
        errors.append(f"{name} keeps capabilities")
    tag = container["image"].rpartition("/")[2].partition(":")[2]
    if tag in ("", "latest"):
        errors.append(f"{name} has no fixed image tag: {container['image']}")
    if any("subPath" in mount for mount in container.get("volumeMounts", [])):
        errors.append(f"{name} mounts a single file, which never sees an update")
    return errors


def tollgate_errors(pod, container):
    """The lack of probes, bounds, a metrics port or time to drain."""
    errors = []
    env = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
    is_sidecar = container in pod.get("initContainers", [])
    # Neither a lack of rules nor one of Redis is a reason to start it again, or to take a pod with its own out of rotation.
    ready = "/livez" if is_sidecar else "/healthcheck"
    probes = {"startupProbe": "/livez", "readinessProbe": ready, "livenessProbe": "/livez"}
    for probe, path in probes.items():
        if container.get(probe, {}).get("httpGet", {}).get("path") != path:
            errors.append(f"tollgate has no {probe} at {path}")
    if container.get("resources", {}).get("limits") != {"memory": "256Mi"}:
        errors.append("tollgate's memory is not limited to 256Mi, or its CPU is limited")
    if env.get("TOLLGATE_HTTP_JSON") != "false":
        errors.append("anything that reaches tollgate's HTTP port can count at /json")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    if env.get("USE_PROMETHEUS") != "true" or env.get("PROMETHEUS_ADDR") != f":{ports.get('http-metrics')}":
        errors.append("tollgate's metrics are not at the port http-metrics")
    drain = [seconds(env.get("TOLLGATE_DRAIN_DELAY", "3s")), seconds(env.get("TOLLGATE_DRAIN_TIMEOUT", "30s"))]
    if is_sidecar and container.get("restartPolicy") != "Always":
        errors.append("tollgate is not a native sidecar")
    # Nothing finds a sidecar by its endpoints, and it outlives its Envoy.
    if not is_sidecar and drain[0] < 10:
        errors.append("tollgate stops before its endpoint is gone everywhere")
    if not is_sidecar and pod.get("terminationGracePeriodSeconds", 30) <= sum(drain):
        errors.append("tollgate is killed before it has drained")
    return errors


def seconds(text):
    return int(text.removesuffix("s"))


def policy_errors(documents):
    """Pods without a network policy that need one, and policies that let in every pod."""
    errors = []
    policies = [document for document in documents if document.kind == "NetworkPolicy"]
    for document in documents:
        if document.kind != "Deployment" or not needs_policy(document):
            continue
        labels = document.body["spec"]["template"]["metadata"]["labels"]
        if not any(covers(policy, labels) for policy in policies):
            errors.append(f"{document.where}: no network policy is for these pods")
    for policy in policies:
        for rule in policy.body["spec"]["ingress"]:
            if not rule.get("from") or not rule.get("ports") or {} in rule["from"]:
                errors.append(f"{policy.where}: lets in every pod, or to all ports")
    return errors


def needs_policy(document):
    """Whether other pods reach a port of it that counts."""
    return document.name == "tollgate" or document.name.endswith("-redis")


def covers(policy, labels):
    wanted = policy.body["spec"]["podSelector"]["matchLabels"]
    return wanted.items() <= labels.items()
