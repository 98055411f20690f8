"""Requests in flight, as in docs/concurrency.md: 5 of each tenant, by the patches for token budgets.

Both as they are and without their parts for a cost.
"""

import concurrent.futures

import yaml

from budgets import AT_ONCE, GATEWAY, MESH, Rule, at_once, behind_gateway, behind_mesh
from lint import without_drained
from sandbox import PATIENCE_SECS, expect, expect_equal, wait_until

# Each has a group, a title and a function that gets the Gateway.
CASES = []
# The same for a function that gets the mesh.
MESH_CASES = []

LIMIT = 5
# The filter and an entry that only costs need.
FILTER, ENTRY = "tollgate.tokens", "tollgate.reservation"
# No slot of a case frees itself.
LIMITS = [{"algorithm": "concurrency", "requests_per_unit": LIMIT, "ttl": "1h"}]
SLOTS = Rule({"rate_limits": LIMITS}, "slots_total", "taken", "freed")


def expect_at_once(leases, tenant):
    """All slots are free."""
    leases.model.begin()
    passed = at_once(leases.model, lambda: leases.ask(tenant))
    expect_equal(passed, LIMIT, f"of {AT_ONCE} at once passed")
    leases.await_ended()


def twice(leases, tenant):
    expect_at_once(leases, tenant)
    expect_at_once(leases, tenant)


def leaving(leases, tenant):
    """Clients that leave before they have an answer, and with it a cost."""
    with concurrent.futures.ThreadPoolExecutor(LIMIT) as pool:
        asked = [pool.submit(leases.ask, tenant, timeout=5) for _ in range(LIMIT)]
        expect_equal([one.result() for one in asked], [0] * LIMIT, "statuses")
    expect_equal(leases.model.arrived, LIMIT, "arrived")
    leases.await_ended()
    expect_at_once(leases, tenant)


def whole(patch):
    return patch


def without_costs(patch):
    """The patch without the first filter and the entries with a cost."""
    text = yaml.safe_dump(without(yaml.safe_load(patch), is_of_cost))
    expect("tokens" not in text, "a part for a cost is left")
    return text


def without(part, is_left_out):
    """A part of a document without some items of its lists."""
    if isinstance(part, dict):
        return {name: without(value, is_left_out) for name, value in part.items()}
    if isinstance(part, list):
        return [without(item, is_left_out) for item in part if not is_left_out(item)]
    return part


def is_of_cost(item):
    if not isinstance(item, dict):
        return False
    filters = [part["value"] for part in (item.get("patch"), item.get("operation")) if part]
    return "hits_addend" in item or any(value.get("name") == FILTER for value in filters)


def costs(dumps):
    """Whether Envoys have the parts for a cost: all, none, or some of them."""
    found = [{part for part in (FILTER, ENTRY) if part in without_drained(dump)} for dump in dumps]
    return {part in set().union(*found) for part in (FILTER, ENTRY)}


def add_cases():
    """Each case for both control planes."""
    at_once_title = f"slots: of {AT_ONCE} at once {LIMIT} pass, and {LIMIT} again once these have ended"
    for title, tenant, edit, check in [
        (at_once_title, "at-once", whole, twice),
        ("slots: clients that leave free theirs", "leaving", whole, leaving),
        (f"{at_once_title}, without the parts for a cost", "bare", without_costs, twice),
    ]:

        def run(behind, subject, dumps, tenant=tenant, edit=edit, check=check):
            with behind(subject, SLOTS, edit) as leases:
                # The patch of before may still be in force: Envoy Gateway reads all resources anew, and slowly.
                has_costs = {edit is whole}
                wait_until("the Envoy has the patch", lambda: costs(dumps()) == has_costs, 3 * PATIENCE_SECS)
                check(leases, f"slots-{tenant}")

        def of_gateway(gateway, run=run):
            run(behind_gateway, gateway, gateway.config_dumps)

        def of_mesh(meshed, run=run):
            run(behind_mesh, meshed, lambda: [meshed.gateway.dump()])

        CASES.append((GATEWAY, title, of_gateway))
        MESH_CASES.append((MESH, title, of_mesh))


add_cases()
