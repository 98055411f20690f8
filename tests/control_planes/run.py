#!/usr/bin/env python3
"""Runs tollgate under Envoy Gateway and Istio themselves, without Kubernetes, and prints a table of what held.

`make control-planes` starts it. Both control planes are built from their sources the first time.
"""

import argparse
import datetime
import pathlib
import sys
import textwrap
import time

sys.dont_write_bytecode = True

import budgets
import build
import envoy_gateway
import istio
import life
import mesh
import policies
import sandbox
import slots
from table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / "target" / "control-planes"
# The width of paragraphs in pages.
COLUMNS = 128
POLICIES = "policies: selectors, costs, shared limits, shadow mode, metadata, listeners, Gateways"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tollgate", type=pathlib.Path, default=ROOT / "target" / "release" / "tollgate")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help="put the table into this page")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.tollgate.exists():
        sandbox.fail(f"no program {options.tollgate}: `make build` makes it, or --tollgate names another")
    programs = build.programs(ROOT, CACHE)
    if not options.inside:
        sys.exit(sandbox.enter([sys.executable, __file__, "--inside", *sys.argv[1:]]))
    programs |= {"root": ROOT, "tollgate": options.tollgate.resolve()}
    page = options.write.resolve() if options.write else None
    folder = sandbox.fresh_folder(CACHE / "run")
    try:
        sandbox.furnish(folder)
    except sandbox.Failed as failed:
        sandbox.fail(f"nothing was run, because a place for it cannot be made: {failed}")
    table = Table()
    versions = build.versions(programs)
    begin = time.monotonic()
    for store in envoy_gateway.STORES:
        run_envoy_gateway(programs, folder, store, table)
    run_istio(programs, folder, table)
    secs = time.monotonic() - begin
    about = f"Run on {datetime.date.today()} with {versions}: {table.summary()}, in {secs:.0f} s."
    failed = [f"Failed: {name}." for name in table.failed]
    text = "\n\n".join([table.markdown(), textwrap.fill(" ".join([about, *table.remarks, *failed]), COLUMNS)])
    print(f"\n{text}")
    if page:
        table.write(page, text)
    sys.exit(1 if table.failed else 0)


def run_envoy_gateway(programs, folder, store, table):
    place = folder / store.replace(" ", "-")
    place.mkdir()
    gateway = envoy_gateway.Gateway(programs, place, store)
    listed = policies.read()
    cases = [(POLICIES, policy.title, lambda _, policy=policy: policy.check()) for policy in listed]
    cases += life.CASES + budgets.CASES + slots.CASES

    def begin():
        gateway.start()
        policies.install(gateway, listed)

    with envoy_gateway.surroundings(programs, place):
        try:
            table.run_all("Envoy Gateway", store, (POLICIES, "all are in force", begin), cases, gateway)
        finally:
            gateway.stop()


def run_istio(programs, folder, table):
    place = folder / "istio"
    place.mkdir()
    meshed = istio.Mesh(programs, place)
    with istio.surroundings(programs, place):
        try:
            start = (mesh.GATEWAY, "the gateway gets its routes", meshed.start)
            table.run_all("Istio", "with Redis", start, mesh.CASES + budgets.MESH_CASES + slots.MESH_CASES, meshed)
        finally:
            meshed.stop()


if __name__ == "__main__":
    main()
