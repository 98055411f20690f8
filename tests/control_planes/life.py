"""What happens to Envoy Gateway and tollgate in the course of time, with requests under way."""

import socket
import ssl
import time

import yaml

import envoy_gateway
import policies
import tollgate
from lint import expect_lint, without_drained
from sandbox import Traffic, expect, expect_answered, expect_equal, fetch, redirected, wait_until

# Each has a group, a title and a function that gets the Gateway and may return a remark.
CASES = []

UPDATES = "updates and deletions under traffic"
RESTARTS = "restarts of both sides"
BETWEEN = "a policy changed while Envoy Gateway restarts"
REFUSED = "a push that is refused"
CERTIFICATES = "rotation of every certificate"
DEPLOYED = "`deploy/envoy-gateway/` as it is"
LINT = "`tollgate lint-envoy` on the Envoys of the policies"


def case(group, title):
    def add(check):
        CASES.append((group, title, check))
        return check

    return add


def route(name):
    backend = {"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "service"}
    names = {"parentRefs": [{"name": "eg"}], "hostnames": [f"{name}.example.com"]}
    spec = names | {"rules": [{"backendRefs": [backend]}]}
    return policies.resource(f"{policies.GATEWAY_API}/v1", "HTTPRoute", name, spec)


def policy(name, rules):
    target = {"group": policies.GATEWAY_API, "kind": "HTTPRoute", "name": name}
    spec = {"targetRefs": [target], "rateLimit": {"global": {"rules": rules}}}
    return policies.resource("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy", name, spec)


def each_user(requests):
    """A limit for each value of x-user."""
    selector = {"headers": [{"name": "x-user", "type": "Distinct"}]}
    return {"clientSelectors": [selector], "limit": {"requests": requests, "unit": "Year"}}


def rewrite(gateway, name, *rules):
    """The route and its policy, or no policy without rules."""
    resources = [route(name), policy(name, list(rules))] if rules else [route(name)]
    gateway.write(name, yaml.safe_dump_all(resources))


def limits(name):
    """The limits in force on a route."""
    lines = [line for line in tollgate.rules().splitlines() if f"/{name}/" in line]
    return [int(line.partition("requests_per_unit=")[2].partition(",")[0]) for line in lines]


def install(gateway, name, requests):
    rewrite(gateway, name, each_user(requests))
    wait_for(name, requests)


def wait_for(name, requests):
    """Waits until tollgate has the limit and the Envoy asks for it."""
    wait_until(f"a limit of {requests} on {name}", lambda: limits(name) == [requests] and is_limited(name))


def is_limited(name):
    """Whether an answer names a limit, to a user that no case asks for."""
    return answer(name, "anyone")[1].get("x-ratelimit-limit") is not None


def answer(name, user):
    return fetch(envoy_gateway.PORT, headers={"host": f"{name}.example.com", "x-user": user})


def asker(name, user):
    return lambda: answer(name, user)[0]


def statuses(name, user, count):
    return [answer(name, user)[0] for _ in range(count)]


@case(LINT, "nothing is found that was not meant")
def linted(gateway):
    lint(gateway, [without_drained(dump) for dump in gateway.config_dumps()])


def lint(gateway, dumps):
    expect(len(dumps) > 1, "less than two Envoys run")
    for number, dump in enumerate(dumps):
        expect_lint(gateway.programs["tollgate"], gateway.folder / f"config_dump-{number}.json", dump, [])


@case(UPDATES, "all those policies are deleted at once")
def all_deleted(gateway):
    gateway.remove("policies", "gateways")
    wait_until("no rule is left", lambda: tollgate.rules() == "" and len(gateway.admin_ports()) == 1)


@case(UPDATES, "100 routes, each with a policy, come at once and go at once")
def many(gateway):
    names = [f"many-{number}" for number in range(100)]
    resources = [resource for name in names for resource in (route(name), policy(name, [each_user(2)]))]
    gateway.write("many", yaml.safe_dump_all(resources))
    wait_until("their rules are there", lambda: tollgate.rules().count("/many-") >= len(names))
    for name in (names[0], names[-1]):
        wait_until(f"the Envoy asks {name}", lambda: is_limited(name))
        expect_equal(statuses(name, "ann", 3), [200, 200, 429], f"requests of {name}")
    gateway.remove("many")
    wait_until("no rule is left", lambda: tollgate.rules() == "")


@case(UPDATES, "a limit is raised and lowered under traffic, and counts stay")
def raised(gateway):
    install(gateway, "raised", 20)
    with Traffic(asker("raised", "bob")) as traffic:
        traffic.wait_for(429)
        expect_equal(statuses("raised", "ann", 21), [200] * 20 + [429], "with a limit of 20")
        install(gateway, "raised", 50)
        # A refused request is counted, too.
        expect_equal(statuses("raised", "ann", 30), [200] * 29 + [429], "with a limit of 50")
        install(gateway, "raised", 10)
        expect_equal(statuses("raised", "ann", 1), [429], "with a limit of 10")
        expect_equal(statuses("raised", "carl", 11), [200] * 10 + [429], "another user with a limit of 10")
        traffic.wait_for(429)
    expect_answered(traffic)


@case(RESTARTS, "tollgate is killed under traffic, which passes meanwhile")
def killed(gateway):
    install(gateway, "killed", 2)
    expect_equal(statuses("killed", "ann", 3), [200, 200, 429], "before")
    with Traffic(asker("killed", "bob")) as traffic:
        traffic.wait_for(429)
        gateway.tollgate.stop(kill=True)
        traffic.wait_for(200, more=3)
        gateway.start_tollgate()
        wait_until("the rules are back", lambda: limits("killed") == [2])
        traffic.wait_for(429, more=3)
    expect_answered(traffic)
    expected = 429 if gateway.store == "with Redis" else 200
    expect_equal(statuses("killed", "ann", 1), [expected], "the count of before")


@case(BETWEEN, "a policy changes while Envoy Gateway restarts, which then has the version of before")
def changes_in_between(gateway):
    gateway.control_plane.stop()
    gateway.start_control_plane()
    # Each makes one version more than a start alone.
    for requests in (1, 2, 3):
        install(gateway, "between", requests)
    held = gateway.version()
    # Tollgate gets no earlier version, which would differ from the one that it has.
    with redirected("127.0.0.1", envoy_gateway.RULES_PORT, "127.0.0.1:1"):
        gateway.control_plane.stop()
        rewrite(gateway, "between", each_user(4))
        gateway.start_control_plane()
        wait_until("the Envoy asks", lambda: is_limited("between"))
        for requests in range(1, 1 + held - gateway.version()):
            before = gateway.version()
            rewrite(gateway, "other", each_user(requests))
            wait_until("there is one more version", lambda: gateway.version() == before + 1)
        expect_equal(gateway.version(), held, "the version of Envoy Gateway's rules")
        expect_equal(limits("between"), [3], "the limits without Envoy Gateway")
    begin = time.monotonic()
    wait_for("between", 4)
    taken = time.monotonic() - begin
    wait_until("the limit in force", lambda: statuses("between", "ann", 5)[-1] == 429)
    return f"a policy changed while Envoy Gateway restarted was taken {taken:.1f} s after its return"


@case(REFUSED, "rules that contradict each other are refused, with all later ones until they are corrected")
def refused(gateway):
    install(gateway, "good", 2)
    network = {"value": "127.0.0.0/8"}
    selectors = [{"sourceCIDR": network | {"type": kind}} for kind in ("Exact", "Distinct")]
    both = [{"clientSelectors": [one], "limit": {"requests": 5, "unit": "Year"}} for one in selectors]
    errors = tollgate.metric("ratelimit_service_config_load_error")
    rules = tollgate.rules()
    rewrite(gateway, "bad", *both)
    wait_until("the push is refused", lambda: tollgate.metric("ratelimit_service_config_load_error") > errors)
    rewrite(gateway, "good", each_user(4))
    more = tollgate.metric("ratelimit_service_config_load_error")
    wait_until("the next one, too", lambda: tollgate.metric("ratelimit_service_config_load_error") > more)
    expect_equal(tollgate.rules(), rules, "the rules in use")
    log = gateway.tollgate.log_text()
    for part in ("duplicate descriptor", "httproute/default/bad/", "127.0.0.0/8"):
        expect(part in log, f"the log does not name {part}")
    rewrite(gateway, "bad", both[1])
    wait_for("good", 4)
    gateway.remove("bad")


def served_certificate():
    """The certificate that tollgate shows, which trusts nobody in this question."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", envoy_gateway.GRPC_PORT), timeout=5) as connection:
        with context.wrap_socket(connection) as secured:
            return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True)).split()


@case(CERTIFICATES, "every certificate is rotated, with the authority")
def rotated(gateway):
    install(gateway, "rotated", 2)
    before = served_certificate()
    with Traffic(asker("rotated", "ann")) as traffic:
        traffic.wait_for(429)
        gateway.rotate()
        expected = (gateway.certificates / "envoy-rate-limit" / "tls.crt").read_text().split()
        expect(before != expected, "the certificates are still the old ones")
        wait_until("tollgate shows the new one", lambda: served_certificate() == expected)
        traffic.wait_for(429, more=5)
    expect_answered(traffic)
    # New connections in all directions: Envoy Gateway starts with its new ones, and tollgate connects with its own.
    gateway.control_plane.stop()
    gateway.start_control_plane()
    wait_until("the control plane is up", lambda: tollgate.metric("tollgate_control_plane_up") == 1)
    install(gateway, "rotated", 3)
    wait_until("the new limit is in force", lambda: statuses("rotated", "bob", 4)[-1] == 429)
    expect_equal(statuses("rotated", "carl", 4), [200, 200, 200, 429], "afterwards")


@case(DEPLOYED, "the policy, with the values for Helm in force")
def as_deployed(gateway):
    # So that no hour ends within the case.
    wait_until("the next hour", lambda: time.time() % 3600 < 3600 - 20)
    deployed = (gateway.programs["root"] / "deploy/envoy-gateway/policy.yaml").read_text()
    gateway.write("shop", f"{yaml.safe_dump(route('shop'))}---\n{deployed}")
    wait_for("shop", 3)
    for client in ("127.0.9.1", "127.0.9.2"):
        host = {"host": "shop.example.com"}
        seen = [fetch(envoy_gateway.PORT, headers=host, client=client)[0] for _ in range(4)]
        expect_equal(seen, [200, 200, 200, 429], f"requests of {client}")
