"""Token budgets under Envoy Gateway: by the patch of deploy/envoy-gateway/, and by its own policies.

As in the table of docs/token-budgets.md: 1,000 tokens, 20 requests of 200 at once, then 10 more.
"""

import concurrent.futures
import contextlib

import yaml

import envoy_gateway
import life
import policies
import tollgate
from lint import expect_lint, without_drained
from sandbox import Program, expect, expect_equal, fetch, redirected, wait_until
from servers import Model

# Each has a group, a title and a function that gets the Gateway.
CASES = []

PATCH = "`deploy/envoy-gateway/token-budget.yaml`: a budget that 20 requests at once cannot overrun"
OWN = "a token budget by its own policy, which 20 requests at once overrun"

BUDGET = 1000
AT_ONCE = 20
LATER = 10
HOST = "llm.example.com"
MODEL_PORT = 3001
EVENTS = {"accept": "text/event-stream"}
# The tollgate with the budgets, beside the one in the place of Envoy Gateway's rate limit service.
GRPC_PORT, HTTP_PORT, DEBUG_PORT = 28082, 28080, 6071

BACKEND = policies.resource(
    "gateway.envoyproxy.io/v1alpha1",
    "Backend",
    "model",
    {"endpoints": [{"ip": {"address": "127.0.0.1", "port": MODEL_PORT}}]},
)
# The metadata that AI Gateway makes of an answer, and zero for the request, which has no cost yet.
METADATA = {"namespace": "io.envoy.ai_gateway", "key": "llm_total_token"}
LUA = """
function envoy_on_request(handle)
  handle:streamInfo():dynamicMetadata():set("shop", "nothing", 0)
end
function envoy_on_response(handle)
  local tokens = handle:headers():get("x-tokens")
  if tokens ~= nil then
    handle:streamInfo():dynamicMetadata():set("io.envoy.ai_gateway", "llm_total_token", tonumber(tokens))
  end
end
"""


def case(group, title):
    def add(check):
        CASES.append((group, title, check))
        return check

    return add


def route(name):
    """An HTTPRoute to the model."""
    resource = life.route(name)
    resource["spec"]["rules"][0]["backendRefs"][0]["name"] = "model"
    return resource


def lua(name):
    """The policy that puts the cost of each answer of a route into metadata."""
    target = {"group": policies.GATEWAY_API, "kind": "HTTPRoute", "name": name}
    spec = {"targetRefs": [target], "lua": [{"type": "Inline", "inline": LUA}]}
    return policies.resource("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy", name, spec)


def deployed(gateway):
    """The patch as it is, but for a timeout that a busy machine cannot exceed."""
    text = (gateway.programs["root"] / "deploy/envoy-gateway/token-budget.yaml").read_text()
    expect("timeout: 0.1s" in text, "the patch has another timeout")
    return text.replace("timeout: 0.1s", "timeout: 10s")


@contextlib.contextmanager
def budget(gateway, estimate, patch=deployed, also=()):
    """The model, behind a Gateway whose Envoy reserves so many tokens for each request, as long as a `with` lasts."""
    rules = gateway.folder / "budgets" / "llm.yaml"
    rules.parent.mkdir(exist_ok=True)
    rule = {"key": "tenant", "reserve": {"estimate": estimate}, "rate_limits": [f"{BUDGET}/year"]}
    rules.write_text(yaml.safe_dump({"domain": "llm", "descriptors": [rule]}))
    ports = {"GRPC_PORT": GRPC_PORT, "PORT": HTTP_PORT, "DEBUG_PORT": DEBUG_PORT}
    env = {"TOLLGATE_CONFIG_DIR": str(rules.parent)} | {name: str(port) for name, port in ports.items()}
    if gateway.store == "with Redis":
        env["REDIS_URL"] = tollgate.REDIS
    way = redirected("127.0.0.3", 8081, f"127.0.0.1:{GRPC_PORT}")
    with way, Model("127.0.0.1", MODEL_PORT) as model:
        program = Program("tollgate-budgets", gateway.folder, [gateway.programs["tollgate"], "serve"], env)
        try:
            program.wait_until("it is healthy", lambda: fetch(HTTP_PORT, "/healthcheck")[0] == 200)
            resources = yaml.safe_dump_all([BACKEND, route("llm"), *also])
            gateway.write("llm", f"{resources}---\n{patch(gateway)}")
            model.open()
            tenants = (f"{patch.__name__}-{number}" for number in range(100_000))
            wait_until("the Envoy reserves", lambda: ask(next(tenants)) == 200 and reservations("made") > 0)
            await_settled(model)
            model.begin()
            yield model
        finally:
            program.stop()


def reservations(event):
    """How many there were since the start."""
    lines = fetch(DEBUG_PORT, "/stats")[2].splitlines()
    found = [line for line in lines if line.startswith(f"tollgate.reservations_total.llm.tenant.{event}: ")]
    return int(found[0].split()[-1]) if found else 0


def await_settled(model):
    """Waits until the cost of each answer is counted."""
    wait_until("all reservations are settled", lambda: reservations("made") == reservations("settled"))


def ask(tenant, headers=None, path="/", host=HOST):
    headers = {"host": host, "x-tenant": tenant} | (headers or {})
    return fetch(envoy_gateway.PORT, path, headers=headers)[0]


def at_once(model, asks):
    """How many of the requests at once pass. None has an answer before all are decided."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(asks) for _ in range(AT_ONCE)]
        try:
            wait_until(
                "all are refused or have arrived",
                lambda: model.arrived + sum(one.done() for one in asked) == AT_ONCE,
            )
            passed = model.arrived
        finally:
            model.open()
        statuses = sorted(one.result() for one in asked)
    expect_equal(statuses, [200] * passed + [429] * (AT_ONCE - passed), "statuses")
    return passed


def expect_spent(model, tenant, passed, spent, headers=None):
    seen = at_once(model, lambda: ask(tenant, headers))
    await_settled(model)
    for _ in range(LATER):
        ask(tenant, headers)
        await_settled(model)
    expect_equal((seen, model.spent), (passed, spent), "passed at once, and spent in all")


@case(PATCH, "exact estimates")
def exact(gateway):
    with budget(gateway, 200) as model:
        expect_spent(model, "exact", passed=5, spent=1000)


@case(PATCH, "exact estimates, and answers with server-sent events")
def streamed(gateway):
    with budget(gateway, 200) as model:
        expect_spent(model, "streamed", passed=5, spent=1000, headers=EVENTS)


@case(PATCH, "estimates of half the cost")
def half(gateway):
    with budget(gateway, 100) as model:
        expect_spent(model, "half", passed=10, spent=2000)


@case(PATCH, "estimates of double the cost")
def double(gateway):
    with budget(gateway, 400) as model:
        expect_spent(model, "double", passed=2, spent=800, headers=EVENTS)


@case(PATCH, "an answer without a cost keeps what was reserved")
def failed(gateway):
    with budget(gateway, 500) as model:
        model.open()
        expect_equal([ask("failed", path="/fails") for _ in range(3)], [500, 500, 429], "statuses")
        expect_equal(model.spent, 0, "spent")


@case(PATCH, "a route without the patch has no budget")
def elsewhere(gateway):
    gateway.write("free", yaml.safe_dump(route("free")))
    with budget(gateway, 1000) as model:
        model.open()
        wait_until("the route is there", lambda: ask("free", host="free.example.com") == 200)
        expect_equal([ask("free", host="free.example.com") for _ in range(3)], [200] * 3, "without the patch")
        expect_equal(ask("free"), 200, "with the patch")


@case(PATCH, "costs from the metadata that AI Gateway makes, by a Lua filter in its place")
def metadata(gateway):
    def patch(gateway):
        text = deployed(gateway)
        expect_equal(text.count("(tollgate:tokens)"), 2, "entries with a cost")
        return text.replace("(tollgate:tokens)", f"({source})")

    source = "{namespace}:{key}".format_map(METADATA)

    with budget(gateway, 200, patch, [lua("llm")]) as model:
        wait_until("the Envoy has it", lambda: any(source in dump for dump in gateway.config_dumps()))
        expect_spent(model, "metadata", passed=5, spent=1000, headers=EVENTS)


@case(PATCH, "`tollgate lint-envoy` finds nothing")
def linted(gateway):
    with budget(gateway, 200):
        dump = next(dump for dump in gateway.config_dumps() if "tollgate.token-budget" in dump)
        # Envoy Gateway's own filter may be there as well. It asks a service that reserves nothing.
        but = [*life.MEANT, ("warning", "shared-metadata")]
        expect_lint(gateway.programs["tollgate"], gateway.folder / "budget.json", without_drained(dump), [], but)


@case(OWN, "all 20 pass, and each costs")
def own(gateway):
    cost = {
        "request": {"from": "Metadata", "metadata": {"namespace": "shop", "key": "nothing"}},
        "response": {"from": "Metadata", "metadata": METADATA},
    }
    selector = {"headers": [{"name": "x-tenant", "type": "Distinct"}]}
    rule = {"clientSelectors": [selector], "cost": cost, "limit": {"requests": BUDGET, "unit": "Year"}}
    resources = [BACKEND, route("own"), lua("own"), life.policy("own", [rule])]
    host = "own.example.com"
    with Model("127.0.0.1", MODEL_PORT) as model:
        model.open()
        gateway.write("own", yaml.safe_dump_all(resources))
        wait_until("the limit is in force", lambda: life.limits("own") == [BUDGET])
        probes = (f"probe-{number}" for number in range(100_000))
        wait_until("it is asked", lambda: [ask(tenant, host=host) for tenant in [next(probes)] * 9][-1] == 429)
        model.begin()
        passed = at_once(model, lambda: ask("own", host=host))
        expect_equal((passed, model.spent), (AT_ONCE, AT_ONCE * Model.COST), "passed at once, and spent")
        wait_until("the costs are counted", lambda: ask("own", host=host) == 429)
        expect_equal({ask("own", host=host) for _ in range(LATER)}, {429}, "statuses of later ones")
