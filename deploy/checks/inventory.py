"""The count of everything in this folder: what was rendered, and what was not, with the reason.

Every file must be read by something here or have a line in `REASONS`, so that nothing is left out unseen.
"""

import collections
import fnmatch
import subprocess
import tempfile

import yaml

from . import documents, extract, grafana, prometheus
from .documents import CHART, DEPLOY, OVERLAYS

# Kustomizations that are applied as they are.
ROOTS = [*sorted(OVERLAYS.iterdir()), DEPLOY / "grafana", DEPLOY / "istio"]
# Files that nothing renders, and why not.
REASONS = {
    "README.md": "text for people",
    "helm/tollgate/README.md": "text for people",
    "check.py": "the checks themselves",
    "checks/*.py": "the checks themselves",
    "schemas.yaml": "the checks themselves",
    "images.yaml": "a list of images; a test holds the other files to it",
    "packaging/*": "programs that make and try packages; a test runs the quick ones",
    "helm/tollgate/.helmignore": "Helm leaves out what it names",
    "helm/tollgate/templates/_helpers.tpl": "used by the other templates",
    "helm/tollgate/templates/NOTES.txt": "printed after an installation; check.py reads it",
    "compose/grafana/provisioning/*": "read by Grafana only, which the tools do not have",
    "compose/rules/*.yaml": "rules; a test starts the service with them",
    "kustomize/rules/*.yaml": "rules; in the ConfigMaps of the overlays",
    "envoy-gateway/helm-values.yaml": "values for a chart that is not ours; check.py holds them to its schema",
    "demo/*": "run by `make demo`, and by a test",
    "systemd/*": "systemd's; a test lets systemd-analyze read it",
    "helm/tollgate/files/*": "links to files that are checked where they are",
}


class Inventory:
    def __init__(self):
        self.seen = set()
        self.problems = []
        self.totals = collections.Counter()

    def line(self, what, name, counts):
        """Prints and adds up how many there are of each kind."""
        counts = collections.Counter(counts)
        self.totals[what] += counts.total()
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        print(f"{what:<10} {name}: {counts.total()}: {kinds}")

    def run(self, name, *command):
        """Whether a program accepts the files in `command`; its objection is a problem."""
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode != 0:
            lines = run.stdout.strip().splitlines()
            self.problems.append(f"{name}: {' '.join(lines[-3:])}")
        return run.returncode == 0


def take():
    """Prints the inventory and returns every problem."""
    inventory = Inventory()
    for part in (kustomizations, charts, examples, envoys, alerts, dashboards, compose, container):
        part(inventory)
    left_out(inventory)
    for what, count in sorted(inventory.totals.items()):
        print(f"{'total':<10} {what}: {count}")
    return inventory.problems


def kinds(found):
    return [document.kind for document in found]


def kustomizations(inventory):
    for folder in ROOTS:
        inventory.line("kustomize", folder.relative_to(DEPLOY), kinds(documents.kustomize(folder)))
        inventory.seen |= sources(folder)


def sources(folder):
    """The files that a kustomization is made of, those of other kustomizations included."""
    path = folder / "kustomization.yaml"
    body = yaml.safe_load(path.read_text())
    patches = [patch["path"] for patch in body.get("patches", []) if "path" in patch]
    generated = [
        file.rpartition("=")[2] for generator in body.get("configMapGenerator", []) for file in generator.get("files", [])
    ]
    found = {path}
    for name in [*body.get("resources", []), *body.get("components", []), *patches, *generated]:
        other = (folder / name).resolve()
        found |= sources(other) if other.is_dir() else {other}
    return found


def charts(inventory):
    """Every template has to give a document with at least one preset."""
    used = set()
    for name, (found, _) in documents.helm(documents.presets()).items():
        inventory.line("helm", name, kinds(found))
        used |= {document.template for document in found}
        inventory.seen.add(CHART / "ci" / f"{name}-values.yaml")
    inventory.seen |= {CHART / name for name in ("Chart.yaml", "values.yaml", "values.schema.json")}
    for path in sorted(CHART.rglob("templates/**/*.yaml")):
        inventory.seen.add(path)
        if str(path.relative_to(CHART.parent)) not in used:
            inventory.problems.append(f"{path.relative_to(DEPLOY)}: no preset of the chart renders it")


def examples(inventory):
    names = ["contour/contour.yaml", "envoy-gateway/policy.yaml", "envoy-gateway/token-budget.yaml"]
    for path in [*sorted((DEPLOY / "istio").glob("[!k]*.yaml")), *(DEPLOY / name for name in names)]:
        inventory.line("example", path.relative_to(DEPLOY), kinds(documents.read(path)))
        inventory.seen.add(path)


def envoys(inventory):
    """A real Envoy accepts every bootstrap: those in files, and those that the other examples lead to."""
    found = extract.everything()
    made = {
        "of istio/envoyfilter.yaml": found["istio"]["gateway"],
        "of istio/sidecar-inbound.yaml": found["istio"]["sidecar-inbound"],
        "of contour/contour.yaml": found["contour"],
    }
    for path in sorted(DEPLOY.rglob("envoy.yaml")):
        inventory.seen.add(path)
        made[str(path.relative_to(DEPLOY))] = path.read_text()
    envoy = documents.tool("envoy")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        for name, text in sorted(made.items()):
            file.seek(0)
            file.truncate()
            file.write(text)
            file.flush()
            if inventory.run(f"envoy {name}", envoy, "--mode", "validate", "-c", file.name):
                resources = yaml.safe_load(text)["static_resources"]
                inventory.line("envoy", name, {kind: len(resources[kind]) for kind in ("listeners", "clusters")})


def alerts(inventory):
    promtool = documents.tool("promtool")
    inventory.run("prometheus/rules.yaml", promtool, "check", "rules", prometheus.RULES)
    counts = {
        "alerts": len(prometheus.alerts()),
        "recording rules": len(prometheus.rules()) - len(prometheus.alerts()),
        "unit tests": len(prometheus.unit_tests()["tests"]),
    }
    inventory.line("prometheus", "prometheus/rules.yaml", counts)
    scrapes = DEPLOY / "compose" / "prometheus.yaml"
    inventory.run("compose/prometheus.yaml", promtool, "check", "config", "--syntax-only", scrapes)
    inventory.line("prometheus", "compose/prometheus.yaml", {"jobs": len(yaml.safe_load(scrapes.read_text())["scrape_configs"])})
    inventory.seen |= {prometheus.RULES, prometheus.CASES, scrapes}


def dashboards(inventory):
    places = prometheus.expressions()
    for name, dashboard in grafana.dashboards().items():
        counts = collections.Counter(panel["type"] for panel in grafana.panels(dashboard))
        counts["expressions"] = sum(place.startswith(name) for place in places)
        inventory.line("grafana", f"grafana/{name}", counts)
        if DEPLOY / "grafana" / name not in inventory.seen:
            inventory.problems.append(f"grafana/{name}: in no ConfigMap of grafana/kustomization.yaml")
        inventory.seen.add(DEPLOY / "grafana" / name)


def compose(inventory):
    path = DEPLOY / "compose" / "compose.yaml"
    inventory.line("compose", "compose/compose.yaml", {"services": len(yaml.safe_load(path.read_text())["services"])})
    inventory.seen.add(path)


def container(inventory):
    path = DEPLOY / "Containerfile"
    inventory.seen.add(path)
    if inventory.run("Containerfile", documents.tool("hadolint"), path):
        inventory.line("image", "Containerfile", {"stages": path.read_text().count("\nFROM ")})


def left_out(inventory):
    """Prints the files that nothing here reads, each with its reason; one without is a problem."""
    for path in sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        if path in inventory.seen:
            continue
        name = str(path.relative_to(DEPLOY))
        reason = next((reason for pattern, reason in REASONS.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if reason is None:
            inventory.problems.append(f"{name}: nothing renders it, and checks/inventory.py has no reason")
        else:
            print(f"skipped    {name}: {reason}")
