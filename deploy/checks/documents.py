"""Kubernetes documents: read them, render them from kustomizations and from the Helm chart, write them."""

import json
import pathlib
import shutil
import subprocess
import sys

import yaml

DEPLOY = pathlib.Path(__file__).resolve().parent.parent
CHART = DEPLOY / "helm" / "tollgate"
OVERLAYS = DEPLOY / "kustomize" / "overlays"
RELEASE = "tollgate"


class Problem(Exception):
    """Something that makes the files of this folder unfit for use."""


class Document:
    def __init__(self, source, body, template=None):
        self.body = body
        self.template = template
        self.kind = body["kind"]
        self.api = body["apiVersion"]
        self.name = body.get("metadata", {}).get("name", "")
        self.where = f"{source} {self.kind}/{self.name}"

    def pod(self):
        if self.kind == "Pod":
            return self.body["spec"]
        return self.body["spec"]["template"]["spec"] if self.kind == "Deployment" else None

    def text(self):
        return json.dumps(self.body, sort_keys=True)


def parse(source, text, template=None):
    """The documents of a text; one that holds nothing but comments is none."""
    return [Document(source, body, template) for body in yaml.safe_load_all(text) if body is not None]


def read(path):
    return parse(path.relative_to(DEPLOY), path.read_text())


def overlays():
    return sorted(path.name for path in OVERLAYS.iterdir())


def beside_python(name):
    """A program of the virtual environment that this one runs in, or of the system."""
    beside = pathlib.Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise Problem(f"{name} is not installed: run `make tools`")
    return found


def tool(name):
    """A program that `make tools` installs, or one of the system."""
    installed = pathlib.Path(sys.executable).parent.parent.parent / "bin" / name
    return str(installed) if installed.exists() else beside_python(name)


def kustomize(folder):
    """A kustomization as kubectl builds it."""
    run = subprocess.run(
        [beside_python("kubectl"), "kustomize", folder],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
    )
    if run.returncode != 0:
        raise Problem(f"{folder.relative_to(DEPLOY)}: {run.stderr.strip()}")
    return parse(f"kustomize {folder.name}", run.stdout)


def presets():
    """The values files of the chart, by name."""
    suffix = "-values.yaml"
    files = sorted((CHART / "ci").glob(f"*{suffix}"))
    return {path.name.removesuffix(suffix): yaml.safe_load(path.read_text()) for path in files}


def helm(values_by_name):
    """For each name the documents of the chart with its values, and its notes."""
    import helm_python  # It takes half a second and only some checks need it.

    rendered = {}
    with helm_python.Chart.load(str(CHART)) as chart:
        for name, values in values_by_name.items():
            try:
                files = chart.render(values, name=RELEASE, namespace=RELEASE)
            except helm_python.HelmError as error:
                raise Problem(f"helm {name}: {error}") from error
            notes = files.pop("tollgate/templates/NOTES.txt")
            documents = [
                document for path, text in sorted(files.items()) if not path.endswith(".tpl")
                for document in parse(f"helm {name}", text, path)
            ]
            rendered[name] = (documents, notes)
    return rendered


def helm_refuses(values):
    """Why the chart does not take these values, or nothing if it does."""
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        try:
            chart.render(values, name=RELEASE, namespace=RELEASE)
        except helm_python.HelmError as error:
            return str(error)
    return None


def helm_lint():
    """The complaints of `helm lint`."""
    import helm_python

    found = helm_python.lint(str(CHART), namespace=RELEASE)
    advice = 1  # The severity of "icon is recommended".
    complaints = [message for message in found["messages"] if message["severity"] > advice]
    return [str(complaint) for complaint in complaints + found["errors"]]


class Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and what comes first in a document first."""

    FIRST = ["apiVersion", "kind", "metadata", "name"]

    def ignore_aliases(self, data):
        return True

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)


def represent_text(dumper, text):
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def represent_map(dumper, data):
    place = {key: number for number, key in enumerate(Dumper.FIRST)}
    items = sorted(data.items(), key=lambda item: place.get(item[0], len(place)))
    return dumper.represent_mapping("tag:yaml.org,2002:map", items)


Dumper.add_representer(str, represent_text)
Dumper.add_representer(dict, represent_map)


def dump(bodies):
    texts = (yaml.dump(body, Dumper=Dumper, sort_keys=False, width=10_000) for body in bodies)
    return "---\n".join(texts)


def rendered():
    """Each overlay as one file, for those who have no kustomize: name and text. `make dist` writes them."""
    files = {}
    for name in overlays():
        head = f"# deploy/kustomize/overlays/{name}, rendered.\n\n"
        files[f"{name}.yaml"] = head + dump(document.body for document in kustomize(OVERLAYS / name))
    return files


def copies():
    """Files that stand at two places, because kustomize does not read outside its folder."""
    rules = DEPLOY / "prometheus" / "rules.yaml"
    labels = {f"app.kubernetes.io/{key}": value for key, value in
              [("name", "tollgate"), ("instance", "tollgate"), ("component", "server")]}
    rule = {
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
        "metadata": {"name": "tollgate", "labels": labels}, "spec": yaml.safe_load(rules.read_text()),
    }
    head = "# Made by deploy/check.py --write of deploy/prometheus/rules.yaml.\n"
    component = DEPLOY / "kustomize" / "components" / "prometheus-operator"
    return {component / "prometheusrule.yaml": head + dump([rule])}
