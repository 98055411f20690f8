"""Token budgets, as in the table of docs/token-budgets.md: 1,000 tokens, 20 requests of 200 at once, then 10 more.

By the patches of deploy/envoy-gateway/ and deploy/istio/.
"""

import concurrent.futures
import contextlib
import itertools
import json
import sys
import typing

import yaml

import envoy_gateway
import istio
import life
import policies
import tollgate
from lint import expect_lint, without_drained
from sandbox import PATIENCE_SECS, Failed, Program, expect, expect_equal, fetch, redirected, wait_until
from servers import Model

# Each has a group, a title and a function that gets the Gateway.
CASES = []
# The same for a function that gets the mesh.
MESH_CASES = []

GATEWAY = "`deploy/envoy-gateway/token-budget.yaml`"
MESH = "`deploy/istio/token-budget.yaml`"

LIMIT = 1000
AT_ONCE = 20
LATER = 10
HOST = "llm.example.com"
EVENTS = {"accept": "text/event-stream"}
# Tenants that no case counts.
probes = (f"probe-{number}" for number in itertools.count())


def case(group, title, cases=None):
    def add(check):
        (CASES if cases is None else cases).append((group, title, check))
        return check

    return add


class Rule(typing.NamedTuple):
    """A rule for each tenant whose requests lease, and how `/stats` names the leases that were made and ended."""

    settings: dict
    total: str
    made: str
    ended: str

    def text(self):
        return yaml.safe_dump({"domain": "llm", "descriptors": [{"key": "tenant"} | self.settings]})


def reserve(estimate):
    """A budget with this estimate."""
    settings = {"reserve": {"estimate": estimate}, "rate_limits": [f"{LIMIT}/year"]}
    return Rule(settings, "reservations_total", "made", "settled")


def patient(text, timeout):
    """A patch with a timeout that a busy machine cannot exceed."""
    expect(f"timeout: {timeout}\n" in text, "the patch has another timeout")
    return text.replace(f"timeout: {timeout}\n", "timeout: 10s\n")


class Leases:
    """A model behind a proxy that leases by this rule, at a tollgate with this debug port."""

    def __init__(self, model, rule, debug_port, ask):
        self.model = model
        self._rule = rule
        self._debug_port = debug_port
        # Returns the status of a request to a path, with headers and as `fetch` has it.
        self._ask = ask
        # How many leases of probes do not end.
        self._lost = 0

    def begin(self):
        """Waits until the proxy leases, and closes the model."""
        self.model.open()
        for event in (self._rule.made, self._rule.ended):
            wait_until(f"leases are {event}", lambda event=event: self.ask(next(probes)) == 200 and self.count(event) > 0)
        # A proxy that gets its clusters anew meanwhile can lose the end of a probe.
        with contextlib.suppress(Failed):
            self.await_ended(5)
        self._lost = self._open()
        self.model.begin()

    def _open(self):
        return self.count(self._rule.made) - self.count(self._rule.ended)

    def count(self, event):
        """How many leases had this event since the start."""
        lines = fetch(self._debug_port, "/stats")[2].splitlines()
        name = f"tollgate.{self._rule.total}.llm.tenant.{event}: "
        return sum(int(line.removeprefix(name)) for line in lines if line.startswith(name))

    def await_ended(self, patience=PATIENCE_SECS):
        """Waits until the end of each request is counted."""
        wait_until("all leases have ended", lambda: self._open() <= self._lost, patience)

    def ask(self, tenant, headers=None, path="/", **more):
        return self._ask(path, {"x-tenant": tenant} | (headers or {}), **more)

    def expect_spent(self, tenant, passed, spent, headers=None):
        seen = at_once(self.model, lambda: self.ask(tenant, headers))
        self.await_ended()
        for _ in range(LATER):
            self.ask(tenant, headers)
            self.await_ended()
        expect_equal((seen, self.model.spent), (passed, spent), "passed at once, and spent in all")


def at_once(model, ask):
    """How many of the requests at once pass. None has an answer before all are decided."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(ask) for _ in range(AT_ONCE)]
        try:
            counted = lambda: model.arrived + sum(one.done() for one in asked)
            wait_until("all are refused or have arrived", lambda: counted() == AT_ONCE)
            passed = model.arrived
        finally:
            model.open()
        statuses = sorted(one.result() for one in asked)
    expect_equal(statuses, [200] * passed + [429] * (AT_ONCE - passed), "statuses")
    return passed


# Envoy Gateway, and a tollgate beside the one in the place of its rate limit service.
MODEL_PORT = 3001
GRPC_PORT, HTTP_PORT, DEBUG_PORT = 28082, 28080, 6071
PROCESSOR_PORT = 28083
# The metadata that AI Gateway makes of an answer.
METADATA = {"namespace": "io.envoy.ai_gateway", "key": "llm_total_token"}


def backend(name, port):
    spec = {"endpoints": [{"ip": {"address": "127.0.0.1", "port": port}}]}
    return policies.resource("gateway.envoyproxy.io/v1alpha1", "Backend", name, spec)


BACKEND = backend("model", MODEL_PORT)


def route(name):
    """An HTTPRoute to the model."""
    resource = life.route(name)
    resource["spec"]["rules"][0]["backendRefs"][0]["name"] = "model"
    return resource


def processed(name):
    """The policy that sends each answer of a route to the processor, as AI Gateway does with its own one."""
    target = {"group": policies.GATEWAY_API, "kind": "HTTPRoute", "name": name}
    processing = {
        "backendRefs": [{"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "processor"}],
        "messageTimeout": "10s",
        "processingMode": {"allowModeOverride": True, "request": {}, "response": {"body": "Buffered"}},
        "metadata": {"writableNamespaces": [METADATA["namespace"]]},
    }
    spec = {"targetRefs": [target], "extProc": [processing]}
    policy = policies.resource("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy", name, spec)
    return [backend("processor", PROCESSOR_PORT), policy]


@contextlib.contextmanager
def processor(gateway):
    """The processor in the place of AI Gateway's, as long as a `with` lasts."""
    source = gateway.programs["root"] / "tests" / "control_planes" / "processor.py"
    program = Program("processor", gateway.folder, [sys.executable, "-B", source, PROCESSOR_PORT])
    try:
        yield
    finally:
        program.stop()


def asker(host):
    return lambda path, headers, **more: fetch(envoy_gateway.PORT, path, headers={"host": host} | headers, **more)[0]


@contextlib.contextmanager
def behind_gateway(gateway, rule, edit=lambda patch: patch, also=()):
    """Leases by the patch after this edit, with other resources, as long as a `with` lasts."""
    folder = gateway.folder / "budgets"
    folder.mkdir(exist_ok=True)
    (folder / "llm.yaml").write_text(rule.text())
    ports = {"GRPC_PORT": GRPC_PORT, "PORT": HTTP_PORT, "DEBUG_PORT": DEBUG_PORT}
    env = {"TOLLGATE_CONFIG_DIR": str(folder)} | {name: str(port) for name, port in ports.items()}
    if gateway.store == "with Redis":
        env["REDIS_URL"] = tollgate.REDIS
    deployed = (gateway.programs["root"] / "deploy/envoy-gateway/token-budget.yaml").read_text()
    resources = yaml.safe_dump_all([BACKEND, route("llm"), *also])
    way = redirected("127.0.0.3", 8081, f"127.0.0.1:{GRPC_PORT}")
    with way, Model("127.0.0.1", MODEL_PORT) as model:
        program = Program("tollgate-budgets", gateway.folder, [gateway.programs["tollgate"], "serve"], env)
        try:
            program.wait_until("it is healthy", lambda: fetch(HTTP_PORT, "/healthcheck")[0] == 200)
            gateway.write("llm", f"{resources}---\n{edit(patient(deployed, '0.1s'))}")
            leases = Leases(model, rule, DEBUG_PORT, asker(HOST))
            leases.begin()
            yield leases
        finally:
            program.stop()


@case(GATEWAY, "an answer without a cost keeps what was reserved")
def failed(gateway):
    with behind_gateway(gateway, reserve(500)) as budget:
        budget.model.open()
        expect_equal([budget.ask("failed", path="/fails") for _ in range(3)], [500, 500, 429], "statuses")
        expect_equal(budget.model.spent, 0, "spent")


def has_processor(dump):
    """Whether the Envoy uses the cluster of a processor: routes to it are in force before that."""
    parts = [part.get("dynamic_active_clusters", []) for part in json.loads(dump)["configs"]]
    return any("/extproc/" in active["cluster"]["name"] for active in itertools.chain(*parts))


@contextlib.contextmanager
def behind_ai_gateway(gateway, rule):
    """Leases by the patch with costs from AI Gateway's metadata, as long as a `with` lasts."""
    own, source = "(tollgate:tokens)", "({namespace}:{key})".format_map(METADATA)

    def edit(patch):
        expect_equal(patch.count(own), 2, "entries with a cost")
        return patch.replace(own, source)

    with processor(gateway), behind_gateway(gateway, rule, edit, processed("llm")) as budget:
        wait_until("the Envoy has it", lambda: any(source in dump and has_processor(dump) for dump in gateway.config_dumps()))
        yield budget


@case(GATEWAY, "costs from the metadata of AI Gateway, which a processor in its place sends")
def metadata(gateway):
    with behind_ai_gateway(gateway, reserve(200)) as budget:
        for tenant, headers in [("whole", None), ("events", EVENTS)]:
            budget.model.begin()
            budget.expect_spent(tenant, passed=5, spent=1000, headers=headers)


@case(GATEWAY, "by the same metadata, answers without usage cost nothing, and failed ones keep what was reserved")
def unknown_cost(gateway):
    with behind_ai_gateway(gateway, reserve(500)) as budget:
        budget.model.open()
        for headers in (None, EVENTS):
            for _ in range(3):
                expect_equal(budget.ask("silent", headers, "/silent"), 200, "status without usage")
                budget.await_ended()
        expect_equal([budget.ask("failing", path="/fails") for _ in range(3)], [500, 500, 429], "statuses")


@case(GATEWAY, "`tollgate lint-envoy` finds nothing")
def linted(gateway):
    with behind_gateway(gateway, reserve(200)):
        dump = next(dump for dump in gateway.config_dumps() if "tollgate.token-budget" in dump)
        file = gateway.folder / "budget.json"
        expect_lint(gateway.programs["tollgate"], file, without_drained(dump), [])


# Istio, with the tollgate that other cases use as well.
MODEL = "10.1.0.50"
MODEL_RESOURCES = istio.mesh_service("llm", HOST, MODEL, MODEL_PORT)


@contextlib.contextmanager
def behind_mesh(meshed, rule, edit=lambda patch: patch):
    """Leases at the ingress gateway by the patch after this edit, as long as a `with` lasts."""
    meshed.tollgate.stop()
    (meshed.folder / "rules" / "llm.yaml").write_text(rule.text())
    meshed.start_tollgate()
    meshed.write("llm", MODEL_RESOURCES)
    meshed.write("budget", edit(patient(meshed.deployed("token-budget.yaml"), "0.25s")))

    def ask(path, headers, **more):
        return fetch(80, path, istio.GATEWAY, headers={"host": HOST} | headers, client="192.0.2.250", **more)[0]

    with Model(MODEL, MODEL_PORT) as model:
        leases = Leases(model, rule, tollgate.DEBUG_PORT, ask)
        leases.begin()
        yield leases


@case(MESH, "`tollgate lint-envoy` finds nothing", MESH_CASES)
def linted_mesh(meshed):
    with behind_mesh(meshed, reserve(200)):
        file = meshed.folder / "budget.json"
        expect_lint(meshed.programs["tollgate"], file, without_drained(meshed.gateway.dump()), [])


def add_table():
    """The rows of the page's table with a reservation, for both control planes."""
    for title, tenant, estimate, passed, spent, headers in [
        ("exact estimates", "exact", 200, 5, 1000, None),
        ("exact estimates, and answers with server-sent events", "streamed", 200, 5, 1000, EVENTS),
        ("estimates of half the cost", "half", 100, 10, 2000, None),
        ("estimates of double the cost", "double", 400, 2, 800, EVENTS),
    ]:

        def check(behind, subject, estimate=estimate, expected=(tenant, passed, spent, headers)):
            with behind(subject, reserve(estimate)) as budget:
                budget.expect_spent(*expected)

        case(GATEWAY, title)(lambda gateway, check=check: check(behind_gateway, gateway))
        case(MESH, title, MESH_CASES)(lambda meshed, check=check: check(behind_mesh, meshed))


add_table()
