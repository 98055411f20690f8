"""What clients get in a mesh with the EnvoyFilters of deploy/istio/."""

import contextlib
import json

import istio
import tollgate
from lint import expect_lint, without_drained
from sandbox import Traffic, expect, expect_answered, expect_equal, wait_until

# Each has a group, a title and a function that gets the mesh.
CASES = []

GATEWAY = "`deploy/istio/envoyfilter.yaml` as it is"
RESTARTS = "restarts of both sides"
AUTHORITY = "the same file without `authority`"
INJECTED = "tollgate behind a sidecar, with and without `authority`"
INBOUND = "`deploy/istio/sidecar-inbound.yaml` as it is"
LINT = "`tollgate lint-envoy` on gateway and sidecar"

LIMITED = [200, 200, 200, 429]
FILTER = "envoy.filters.http.ratelimit"
# The last part of the address of the next client.
clients = iter(range(1, 250))


def case(group, title):
    def add(check):
        CASES.append((group, title, check))
        return check

    return add


def new_client():
    return f"192.0.2.{next(clients)}"


def statuses(count, client=None, headers=None):
    """What a client gets from outside: one that is not known yet, unless one is named."""
    client = client or new_client()
    return [istio.ask(client, headers) for _ in range(count)]


def statuses_inside(count, headers=None):
    return [istio.ask_inside(headers) for _ in range(count)]


def listeners(proxy):
    """The listeners in use, as text."""
    document = json.loads(proxy.dump())
    lists = [part.get("dynamic_listeners", []) for part in document["configs"]]
    return json.dumps([listener.get("active_state") for group in lists for listener in group])


def deploy_filter(mesh, with_authority=True):
    """The filter at the gateway, and waits until the gateway has it and limits."""
    text = mesh.deployed("envoyfilter.yaml")
    if not with_authority:
        lines = text.splitlines(keepends=True)
        kept = [line for line in lines if not line.strip().startswith("authority:")]
        expect_equal(len(kept), len(lines) - 1, "lines without the authority")
        text = "".join(kept)
    mesh.write("filter", text)

    def holds():
        seen = listeners(mesh.gateway)
        return FILTER in seen and ('"authority"' in seen) == with_authority and '"rate_limits"' in mesh.gateway.dump()

    mesh.gateway.wait_until("it has the filter", holds)


def deploy_limits(mesh):
    deploy_filter(mesh)
    client = new_client()
    wait_until("requests are refused", lambda: istio.ask(client) == 429)


@case(GATEWAY, "each client has its own limit, and reads it in the headers")
def limited(mesh):
    deploy_limits(mesh)
    for _ in range(2):
        expect_equal(statuses(4), LIMITED, "a client")
    headers = istio.answer(new_client())[1]
    expect_equal(headers.get("x-ratelimit-limit"), "3, 3;w=31536000", "x-ratelimit-limit")


@case(GATEWAY, "a client that names other addresses is the same client")
def forged(mesh):
    deploy_limits(mesh)
    client = new_client()
    seen = [istio.ask(client, {"x-forwarded-for": f"203.0.113.{number}"}) for number in range(4)]
    expect_equal(seen, LIMITED, "a client with x-forwarded-for")


@case(RESTARTS, "tollgate is killed under traffic, which passes meanwhile, and counts stay")
def tollgate_is_killed(mesh):
    deploy_limits(mesh)
    before = new_client()
    expect_equal(statuses(4, before), LIMITED, "before")
    client = new_client()
    with Traffic(lambda: istio.ask(client)) as traffic:
        traffic.wait_for(429)
        mesh.tollgate.stop(kill=True)
        traffic.wait_for(200, more=3)
        mesh.start_tollgate()
        traffic.wait_for(429, more=3)
    expect_answered(traffic)
    expect_equal(statuses(1, before), [429], "the count of before")


@case(AUTHORITY, "tollgate repairs the authority, and each client has its own limit")
def repaired(mesh):
    deploy_filter(mesh, with_authority=False)
    asking = new_client()
    # The gateway may still answer with its configuration of before.
    wait_until("tollgate repairs authorities", lambda: statuses(1, asking) and replaced() > 0)
    expect_equal(statuses(4), LIMITED, "a client")


@contextlib.contextmanager
def injected(mesh, with_authority):
    """A sidecar before tollgate, and a gateway that goes through it, as long as a `with` lasts."""
    labels = {"app.kubernetes.io/name": "tollgate"}
    with mesh.sidecar("tollgate", "tollgate", istio.TOLLGATE, 8081, labels) as sidecar:
        # Connections of before would go on past the sidecar.
        mesh.gateway.stop()
        mesh.gateway.start()
        deploy_filter(mesh, with_authority)
        wait_until("the gateway has the route", lambda: istio.ask("192.0.2.250") in (200, 429))
        yield sidecar


@case(INJECTED, "with `authority`, each client has its own limit")
def injected_with_authority(mesh):
    with injected(mesh, with_authority=True) as sidecar:
        asking = new_client()
        wait_until("the sidecar passes calls on", lambda: statuses(1, asking) and sidecar.stat("downstream_rq_2xx") > 0)
        expect_equal(statuses(4), LIMITED, "a client")


@case(INJECTED, "without `authority`, the sidecar resets each call: requests pass, and tollgate sees none")
def injected_without_authority(mesh):
    with injected(mesh, with_authority=False) as sidecar:
        asking = new_client()
        wait_until("the gateway fails to ask", lambda: statuses(1, asking) and mesh.gateway.stat("ratelimit.error") > 0)
        calls, errors = replaced(), mesh.gateway.stat("ratelimit.error")
        expect_equal(statuses(4), [200] * 4, "a client")
        expect_equal(mesh.gateway.stat("ratelimit.error"), errors + 4, "errors at the gateway")
        expect_equal(replaced(), calls, "authorities that tollgate repaired")
        expect(sidecar.stat("downstream_cx_protocol_error") > 0, "the sidecar found no error")


def replaced():
    return tollgate.metric("tollgate_authorities_replaced_total")


@contextlib.contextmanager
def shop(mesh):
    """The sidecar of the shop with its filter, and a gateway without one, as long as a `with` lasts."""
    mesh.remove("filter")
    mesh.write("inbound", mesh.deployed("sidecar-inbound.yaml"))
    try:
        mesh.gateway.wait_until("it has no filter", lambda: FILTER not in listeners(mesh.gateway))
        with mesh.sidecar("shop", "shop", istio.SHOP, istio.SHOP_PORT, {"app": "shop"}) as sidecar:
            sidecar.wait_until("it has the filter", lambda: FILTER in listeners(sidecar))
            # Connections of before would go on past the sidecar.
            mesh.gateway.stop()
            mesh.gateway.start()
            client = new_client()
            wait_until("requests are refused", lambda: istio.ask(client) == 429)
            yield sidecar
    finally:
        mesh.remove("inbound")
        deploy_filter(mesh)


@case(INBOUND, "each client outside has its own limit, also one that names another address")
def inbound_limited(mesh):
    with shop(mesh):
        for _ in range(2):
            expect_equal(statuses(4), LIMITED, "a client")
        forged = {"x-envoy-external-address": "203.0.113.9"}
        for _ in range(2):
            expect_equal(statuses(4, headers=forged), LIMITED, "a client that names another address")


@case(INBOUND, "a workload of the mesh is not limited, unless it names a client")
def inbound_inside(mesh):
    with shop(mesh):
        expect_equal(statuses_inside(5), [200] * 5, "a workload")
        named = {"x-envoy-external-address": "203.0.113.10"}
        expect_equal(statuses_inside(4, named), LIMITED, "a workload that names a client")


@case(LINT, "the gateway has no finding")
def linted_gateway(mesh):
    deploy_limits(mesh)
    lint(mesh, mesh.gateway)


@case(LINT, "the sidecar with the filter has no finding")
def linted_sidecar(mesh):
    with shop(mesh) as sidecar:
        lint(mesh, sidecar)


def lint(mesh, proxy):
    file = mesh.folder / f"config_dump-{proxy.name}.json"
    expect_lint(mesh.programs["tollgate"], file, without_drained(proxy.dump()), [])
