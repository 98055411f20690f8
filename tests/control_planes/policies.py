"""The cases of policies.yaml as resources and requests."""

import copy
import json
import pathlib

import yaml

import envoy_gateway
import tollgate
from sandbox import Failed, expect_equal, fetch, wait_until

TABLE = pathlib.Path(__file__).parent / "policies.yaml"
# The first port of Gateways that belong to one case.
FIRST_PORT = 10100
GATEWAY_API = "gateway.networking.k8s.io"


class Policy:
    """A case with names and ports of its own."""

    def __init__(self, number, case):
        self.case = case
        self.title = case["case"]
        self.routes = case.get("routes", ["a"])
        self.name = f"p{number:02}"
        own = case.get("gateway") or case.get("listeners")
        # Some room for the listeners of each.
        first = FIRST_PORT + 4 * number
        self.ports = list(range(first, first + own)) if own else [envoy_gateway.PORT]
        self.gateway = self.name if own else "eg"

    def route(self, letter):
        return self.name if letter == self.routes[0] else f"{self.name}-{letter}"

    def host(self, letter):
        return f"{self.route(letter)}.example.com"

    def has_own_gateway(self):
        return self.gateway == self.name

    def own_gateway(self):
        listeners = [{"name": f"http-{at}", "protocol": "HTTP", "port": port} for at, port in enumerate(self.ports)]
        spec = {"gatewayClassName": "eg", "listeners": listeners}
        return resource(f"{GATEWAY_API}/v1", "Gateway", self.name, spec)

    def resources(self):
        backend = {"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "service"}
        paths = self.case.get("matches", ["/"])
        prefixes = [{"path": {"type": "PathPrefix", "value": path}} for path in paths]
        rules = [{"matches": [prefix], "backendRefs": [backend]} for prefix in prefixes]
        for letter in self.routes:
            spec = {"parentRefs": [{"name": self.gateway}], "hostnames": [self.host(letter)], "rules": rules}
            yield resource(f"{GATEWAY_API}/v1", "HTTPRoute", self.route(letter), spec)
        if self.case.get("gateway"):
            targets = [("Gateway", self.gateway)]
        else:
            targets = [("HTTPRoute", self.route(letter)) for letter in self.routes]
        spec = copy.deepcopy(self.case.get("policy", {}))
        spec["targetRefs"] = [{"group": GATEWAY_API, "kind": kind, "name": name} for kind, name in targets]
        spec.setdefault("rateLimit", {})["global"] = {"rules": self.case["rules"]}
        yield resource("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy", self.name, spec)
        yield from json.loads(json.dumps(self.case.get("also", [])).replace("$CASE", self.name))

    def check(self):
        for number, ask in enumerate(self.case["asks"]):
            host = self.host(ask.get("route", self.routes[0]))
            port = self.ports[ask.get("listener", 0)]

            def answer():
                more = {name: ask[name] for name in ("path", "method", "client") if name in ask}
                return fetch(port, headers={"host": host} | ask.get("headers", {}), **more)

            statuses = [int(status) for status in str(ask["get"]).split()]
            answers = [answer() for _ in statuses]
            expect_equal([status for status, _, _ in answers], statuses, f"request {number + 1}, {ask}")
            if "limit" in ask:
                expect_equal(answers[-1][1].get("x-ratelimit-limit"), ask["limit"], "x-ratelimit-limit")
            if "then" in ask:
                wait_until(f"the answer is {ask['then']}", lambda: answer()[0] == ask["then"])


def resource(version, kind, name, spec):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def read():
    return [Policy(number, case) for number, case in enumerate(yaml.safe_load(TABLE.read_text()))]


def install(gateway, policies):
    """All of them at once, and waits until tollgate has the rules and the Envoys have the routes."""
    gateways = []
    for policy in filter(Policy.has_own_gateway, policies):
        gateways.append(policy.own_gateway())
        gateway.write("gateways", yaml.safe_dump_all(gateways))
        # Envoys that start in the same millisecond share a folder, in which only one can be found.
        wait_until("there is one more Envoy", lambda: len(gateway.admin_ports()) == 1 + len(gateways))
    resources = [resource for policy in policies for resource in policy.resources()]
    gateway.write("policies", yaml.safe_dump_all(resources))
    hosts = [policy.host(letter) for policy in policies for letter in policy.routes]

    def missing():
        rules = tollgate.rules()
        dumps = "".join(gateway.config_dumps())
        names = [policy.name for policy in policies if policy.name not in rules]
        return names + [host for host in hosts if host not in dumps]

    try:
        wait_until("every policy is in force", lambda: not missing())
    except Failed as failed:
        raise Failed(f"{failed}; missing: {' '.join(missing())}") from None
