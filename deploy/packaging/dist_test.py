#!/usr/bin/env python3
"""Installs each package where there is nothing else, and asks the program that it brings.

The archive goes into an empty folder that becomes the root, the Debian package into a new Debian of essential packages,
and the wheel into a new virtual environment without an index. The packages for another processor are compared with
those.
"""

import argparse
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True

import project
from dist import WHEELS
from project import DIST, ROOT, TARGETS
from trial import RULES, Server, as_root, expect, run

HERE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
USER = "65532:65532"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=pathlib.Path, default=DIST, help="the folder that dist.py fills")
    parser.add_argument("--suite", default="bookworm", help="the release of Debian")
    parser.add_argument("--source", action="store_true", help="also `cargo install --path .`, which takes minutes")
    options = parser.parse_args()
    run("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=options.dist)
    for trial in [archive, wheel, *([from_source] if options.source else [])]:
        with tempfile.TemporaryDirectory() as folder:
            trial(options.dist, pathlib.Path(folder))
    root = pathlib.Path(tempfile.mkdtemp())
    try:
        debian(options.dist, root, options.suite)
    finally:
        run(*as_root("rm", "-rf", root))


def package(dist, pattern):
    found = sorted(dist.glob(pattern))
    expect(len(found) == 1, f"{len(found)} packages are {pattern}")
    return found[0]


def archive(dist, folder):
    """The archive as the whole root."""
    name = f"tollgate-{project.version()}-linux-"
    listings = []
    for architecture in TARGETS:
        path = package(dist, f"{name}{architecture}.tar.gz")
        listings.append([line.split("/", 1)[1] for line in run("tar", "-tzf", path).splitlines() if "/" in line])
        run("tar", "-xzf", path, "--directory", folder)
    expect(listings[0] == listings[1], "archives of two processors have other files")
    expect("bin/tollgate" in listings[0] and "share/man/man1/tollgate-serve.1" in listings[0], str(listings[0]))
    root = folder / f"{name}{HERE}"
    shutil.copytree(RULES, root / "config")
    run_folder(root / "run")
    chroot = as_root("chroot", f"--userspec={USER}", root)
    variables = {"TOLLGATE_CONFIG_DIR": "/config", "GRPC_UDS": "/run/tollgate.sock"}
    with Server([*chroot, "/bin/tollgate", "serve"], root / "run", variables) as server:
        server.ask(*chroot, "/bin/tollgate", socket="/run/tollgate.sock")
    print(f"ok    {name}{HERE}.tar.gz: {len(listings[0])} files; answers in a root of nothing else")


def run_folder(path):
    """A folder for the socket, which any user may write."""
    path.mkdir()
    path.chmod(0o777)


def wheel(dist, folder):
    """The wheel in a new virtual environment; pip itself chooses it among those of all processors."""
    python = folder / "venv" / "bin" / "python3"
    run(sys.executable, "-m", "venv", folder / "venv")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run(*pip, "install", "--no-index", "--find-links", dist, f"tollgate=={project.version()}")
    program = folder / "venv" / "bin" / "tollgate"
    expect(run(program, "--version").startswith(f"tollgate {project.version()}"), "another version")
    with Server([program, "serve"], folder) as server:
        server.ask(program)
    run(*pip, "check")
    run(*pip, "uninstall", "--yes", "tollgate")
    expect(not program.exists(), "it stays after its removal")
    for architecture, processor in WHEELS.items():
        for platform_tag in (f"manylinux_2_17_{processor}", f"musllinux_1_1_{processor}"):
            run(*pip, "download", "--quiet", "--no-index", "--find-links", dist, "--no-deps", "--only-binary", ":all:",
                "--platform", platform_tag, "--dest", folder / architecture, "tollgate")
    print(f"ok    {package(dist, f'*{WHEELS[HERE]}.whl').name}: answers in a new virtual environment")


def debian(dist, root, suite):
    """The Debian package, installed and removed by dpkg, started as its unit starts it."""
    debs = {architecture: package(dist, f"tollgate_*_{architecture}.deb") for architecture in TARGETS}
    one, other = (paths(deb) for deb in debs.values())
    expect(one == other, "packages of two processors have other files")
    # Only what every Debian has; the machine's own users and services stay out of it.
    run(*as_root("mmdebstrap", "--variant=essential", "--mode=root", "--quiet", suite, root))
    run(*as_root("cp", debs[HERE], root / "tollgate.deb"))
    chroot = as_root("chroot", root)
    run(*chroot, "dpkg", "--install", "/tollgate.deb")
    run(*chroot, "dpkg", "--verify", "tollgate")
    run(*as_root("cp", *sorted(RULES.iterdir()), root / "etc/tollgate/rules/"))
    unit = (root / "usr/lib/systemd/system/tollgate.service").read_text()
    command = re.search("^ExecStart=(.*)$", unit, re.MULTILINE)[1].split()
    lines = re.findall("^Environment=(.*)$", unit, re.MULTILINE)
    variables = dict(pair.split("=", 1) for line in lines for pair in line.split())
    socket = pathlib.Path(variables["GRPC_UDS"])
    run(*as_root("install", "--directory", "--owner=65532", "--group=65532", root / str(socket.parent).lstrip("/")))
    as_user = as_root("chroot", f"--userspec={USER}", root)
    # Only ports are others: this machine may use the unit's.
    variables |= {"PORT": "0", "DEBUG_PORT": "0", "TOLLGATE_DRAIN_DELAY": "0"}
    with tempfile.TemporaryDirectory() as folder, Server([*as_user, *command], folder, variables) as server:
        server.ask(*as_user, "/usr/bin/tollgate", socket=socket)
    # The files of rules are the operator's, and stay.
    run(*as_root("find", root / "etc/tollgate/rules", "-type", "f", "-delete"))
    run(*chroot, "dpkg", "--purge", "tollgate")
    run(*as_root("rm", "-r", root / "tollgate.deb", root / "run/tollgate"))
    left = run(*as_root("find", root, "-xdev", "-name", "*tollgate*"))
    expect(not left, f"left after its removal: {left}")
    print(f"ok    {debs[HERE].name}: answers in a new Debian {suite} as its unit starts it; its removal leaves nothing")


def paths(deb):
    """The rights, owners and paths in a Debian package."""
    lines = (line.split(maxsplit=5) for line in run("dpkg-deb", "--contents", deb).splitlines())
    return [(rights, owner, path) for rights, owner, _, _, _, path in lines]


def from_source(_, folder):
    """`cargo install`, with the quick profile of `make run`."""
    run("cargo", "install", "--path", ROOT, "--root", folder, "--locked", "--quiet", "--profile", "local",
        "--no-default-features", env=os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target")})
    program = folder / "bin" / "tollgate"
    with Server([program, "serve"], folder) as server:
        server.ask(program)
    print("ok    cargo install --path .: answers")


if __name__ == "__main__":
    project.run(main)
