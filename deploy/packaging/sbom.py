#!/usr/bin/env python3
"""Writes the list of all parts of the program (CycloneDX 1.6), from Cargo's own account of the dependencies.

It has every crate that is compiled into the program of any processor, with its licence, its checksum in Cargo.lock and
its own dependencies. Crates that only build or test the program are not in it.
"""

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tomllib
import uuid

sys.dont_write_bytecode = True

import project
from image import created
from project import DIST, ROOT, TARGETS, Problem


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=pathlib.Path, default=DIST, help="the folder of the file")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    path = options.to / f"tollgate-{project.version()}.cdx.json"
    path.write_text(text())
    project.write_checksums(options.to)
    print(f"{path}: {len(json.loads(text())['components'])} components")


@functools.cache
def text():
    """The whole list as JSON."""
    return json.dumps(document(), indent=2, sort_keys=True) + "\n"


def document():
    """The whole list as values. Equal sources give equal lists, so its serial number comes from its contents."""
    packages, edges, root = resolved()
    names = sorted(edges, key=lambda name: reference(packages[name]))
    found = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": created(),
            "component": component(packages[root]) | {"type": "application"},
            "properties": [{"name": "rustc", "value": rustc()}, {"name": "commit", "value": project.commit()}],
        },
        "components": [component(packages[name]) for name in names if name != root],
        "dependencies": [
            {"ref": reference(packages[name]), "dependsOn": sorted(reference(packages[other]) for other in edges[name])}
            for name in names
        ],
    }
    found["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(found, sort_keys=True)).urn
    return found


def resolved():
    """The packages by their ids, the dependencies of each that is a part of the program, and the id of the program."""
    packages, edges = {}, {}
    for target in TARGETS.values():
        metadata = json.loads(output(
            "cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target))
        packages |= {package["id"]: package for package in metadata["packages"]}
        root = metadata["resolve"]["root"]
        nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
        waiting = [root]
        seen = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            others = {dep["pkg"] for dep in nodes[name]["deps"] if is_part(dep)}
            edges.setdefault(name, set()).update(others)
            waiting += others
    return packages, edges, root


def is_part(dependency):
    """Whether it is compiled into the program, and not only used to build or test it."""
    return any(kind["kind"] is None for kind in dependency["dep_kinds"])


def component(package):
    found = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
        # In the form of old crates, the slash is an `or`.
        "licenses": [{"expression": " ".join(package["license"].replace("/", " OR ").split())}],
    }
    checksum = checksums().get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("description"):
        found["description"] = " ".join(package["description"].split())
    return found


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version'].replace('+', '%2B')}"


@functools.cache
def checksums():
    """The SHA-256 of each crate by name and version."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(one["name"], one["version"]): one["checksum"] for one in lock["package"] if "checksum" in one}


def rustc():
    return output("rustc", "--version").split()[1]


def output(*command):
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise Problem(f"{command[0]} failed: {run.stderr.strip()}")
    return run.stdout


if __name__ == "__main__":
    project.run(main)
