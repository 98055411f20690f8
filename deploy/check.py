#!/usr/bin/env python3
"""Checks the manifests in this folder, and takes out of them what a test can run.

Every document of kubernetes/ must pass the schema of its kind, and what a schema cannot say: fixed
image tags, the restricted security context, rules mounted as a directory. To show that the schema
looks closely, a misspelt field is planted in a copy, and that copy must be refused. Istio's own
kinds have no schema here; their filter is made a part of a bootstrap that a real Envoy can load.

Needs PyYAML and the `kubernetes-validate` command.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

DEPLOY = pathlib.Path(__file__).resolve().parent
KUBERNETES = "1.36.0"
# An easy slip: the API server would only warn, and the file system would stay writable.
MISSPELLING = ("readOnlyRootFilesystem", "readOnlyRootFileSystem")
RATELIMIT = "envoy.filters.http.ratelimit"


def main():
    options = parse_options()
    documents = [doc for folder in ("kubernetes", "istio") for doc in load(DEPLOY / folder)]
    problems = check(documents)
    if not problems:
        try:
            extract(options, documents)
        except Problem as problem:
            problems = [str(problem)]
    for problem in problems:
        print(f"ERROR {problem}", file=sys.stderr)
    return 1 if problems else 0


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = {"type": pathlib.Path, "metavar": "OUT"}
    parser.add_argument("--extract-envoy", **path, help="write the sidecar's Envoy bootstrap")
    parser.add_argument("--extract-args", **path, help="write the sidecar's args, env and rules as JSON")
    parser.add_argument("--extract-service", **path, help="the same of the service, with the args of its Redis")
    parser.add_argument("--extract-istio", **path, help="write envoy/envoy.yaml with Istio's patches applied")
    return parser.parse_args()


class Problem(Exception):
    """Something that makes the manifests unfit for use."""


class Document:
    def __init__(self, path, text):
        self.text = text
        self.body = yaml.safe_load(text)
        self.kind = self.body["kind"]
        self.name = self.body["metadata"]["name"]
        self.where = f"{path.relative_to(DEPLOY)} {self.kind}/{self.name}"
        self.is_istio = "istio.io/" in self.body["apiVersion"]

    def pod(self):
        return self.body["spec"]["template"]["spec"] if self.kind == "Deployment" else None


def load(folder):
    """The documents of all files of a folder; what holds nothing but comments is none."""
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise SystemExit(f"ERROR {folder}: no manifests")
    texts = ((path, text) for path in paths for text in re.split(r"(?m)^---$", path.read_text()))
    return [Document(path, text) for path, text in texts if yaml.safe_load(text) is not None]


def check(documents):
    """Prints a line for each document and returns every problem."""
    problems = []
    for document in documents:
        if document.is_istio:
            found = []
            print(f"skip  {document.where}: no schema for Istio's own kinds")
        else:
            found = [error for error in [schema_error(document.text)] if error]
            found += pod_errors(document.pod()) if document.pod() else []
            found += misspelling_errors(document.text) if document.pod() else []
            planted = ", and refused with a misspelt field" if document.pod() else ""
            print(f"ERROR {document.where}" if found else f"ok    {document.where}{planted}")
        problems += [f"{document.where}: {error}" for error in found]
    return problems


def schema_error(text):
    """What the schema has against a document, or nothing."""
    beside = pathlib.Path(sys.executable).with_name("kubernetes-validate")
    command = beside if beside.exists() else shutil.which("kubernetes-validate")
    if command is None:
        raise SystemExit("ERROR kubernetes-validate is not installed")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        run = subprocess.run(
            [command, "--strict", "--quiet", "-k", KUBERNETES, file.name],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )
        said = run.stdout.strip().replace(f"ERROR {file.name} ", "")
    return None if run.returncode == 0 else said or f"kubernetes-validate failed with {run.returncode}"


def misspelling_errors(text):
    right, wrong = MISSPELLING
    if right not in text:
        return [f"does not set {right}"]
    error = schema_error(text.replace(right, wrong, 1))
    if error is None or wrong not in error:
        return [f"the misspelling {wrong} was not refused: {error}"]
    return []


def pod_errors(pod):
    """What is wrong with a pod that no schema objects to."""
    errors = []
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True:
        errors.append("pod may run as root")
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        errors.append("pod has no seccomp profile")
    for container in containers(pod):
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


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def extract(options, documents):
    """Takes everything out, and writes what was asked for: a manifest must be fit for all of it."""
    pod = one(documents, "Deployment", "shop").pod()
    by_name = {container["name"]: container for container in containers(pod)}
    tollgate, envoy = by_name["tollgate"], by_name["envoy"]
    if tollgate not in pod["initContainers"] or tollgate.get("restartPolicy") != "Always":
        raise Problem("tollgate is not a native sidecar")

    config = pathlib.PurePath(envoy["args"][envoy["args"].index("--config-path") + 1])
    bootstrap = mounted(documents, pod, envoy, config.parent)[config.name]
    service = one(documents, "Deployment", "tollgate").pod()
    redis = one(documents, "Deployment", "redis").pod()
    started = start(documents, service, service["containers"][0])
    started["redis"] = redis["containers"][0]["args"]
    if options.extract_envoy:
        options.extract_envoy.write_text(bootstrap)
    if options.extract_args:
        options.extract_args.write_text(json.dumps(start(documents, pod, tollgate), indent=2))
    if options.extract_service:
        options.extract_service.write_text(json.dumps(started, indent=2))
    istio = with_istio(documents)
    if options.extract_istio:
        options.extract_istio.write_text(yaml.safe_dump(istio, sort_keys=False))


def start(documents, pod, container):
    """All that a tollgate container is started with."""
    prefix = "--config-dir="
    folder = next(arg.removeprefix(prefix) for arg in container["args"] if arg.startswith(prefix))
    return {
        "args": container["args"],
        "env": {variable["name"]: variable["value"] for variable in container.get("env", [])},
        "rules": mounted(documents, pod, container, pathlib.PurePath(folder)),
    }


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


def with_istio(documents):
    """The plain bootstrap with what Istio's control plane would make of the EnvoyFilters.

    The cluster of tollgate gets the name that Istio gives it, which is all that is left of a mesh.
    """
    patches = {
        patch["applyTo"]: patch["patch"]["value"]
        for document in documents if document.kind == "EnvoyFilter"
        for patch in document.body["spec"]["configPatches"]
    }
    service = patches["HTTP_FILTER"]["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"]
    if not re.fullmatch(r"[a-z0-9.-]+", service.get("authority", "")):
        raise Problem("the EnvoyFilter names no authority that is a host name")

    bootstrap = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())
    resources = bootstrap["static_resources"]
    for cluster in resources["clusters"]:
        if cluster["name"] == "tollgate":
            cluster["name"] = cluster["load_assignment"]["cluster_name"] = service["cluster_name"]
    front = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    filters = [item for item in front["http_filters"] if item["name"] != RATELIMIT]
    front["http_filters"] = [patches["HTTP_FILTER"], *filters]
    for host in front["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            # A route with actions of its own would hide those of the virtual host.
            route["route"].pop("rate_limits", None)
        host.update(patches["VIRTUAL_HOST"])
    return bootstrap


if __name__ == "__main__":
    sys.exit(main())
