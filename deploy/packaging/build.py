#!/usr/bin/env python3
"""Builds the static program of each processor, equal bit for bit wherever the sources are.

Zig is the C compiler and the linker, for its package holds the C library of every target; `install build` installs it.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True

import program
import project
from project import ROOT, STATIC, TARGETS, TOOLS, Problem


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architecture", nargs="*", help="amd64 or arm64; both if none is named")
    parser.add_argument("--profile", default="release", help="profile of Cargo.toml; another one is for tries")
    options = parser.parse_args()
    for architecture in options.architecture or TARGETS:
        if architecture not in TARGETS:
            raise Problem(f"{architecture} is not one of {', '.join(TARGETS)}")
        build(architecture, options.profile)


def build(architecture, profile):
    target = TARGETS[architecture]
    command = ["cargo", "zigbuild", "--locked", "--profile", profile, "--target", target, "--bin", "tollgate"]
    if subprocess.run(command, cwd=ROOT, env=environment(architecture), check=False).returncode != 0:
        raise Problem(f"the build for {architecture} failed")
    folder = STATIC / architecture
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(STATIC / "cargo" / target / profile / "tollgate", folder / "tollgate")
    (folder / "tollgate").chmod(0o755)
    size = len(program.read(architecture))
    print(f"{architecture}: {size / 1e6:.1f} MB, SHA-256 {project.sha256(folder / 'tollgate')}")


def environment(architecture):
    """The environment of the build: nothing of it may tell one machine from another."""
    foreign = ("RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "CFLAGS", "CC", "LDFLAGS")
    env = {name: value for name, value in os.environ.items() if name not in foreign}
    target = TARGETS[architecture]
    prefixes = path_prefixes(pathlib.Path(env.get("CARGO_HOME", pathlib.Path.home() / ".cargo")))
    rust = [f"--remap-path-prefix={path}={name}" for path, name in prefixes]
    c = [f"-ffile-prefix-map={path}={name}" for path, name in prefixes]
    env |= {
        "PATH": f"{TOOLS / 'venv' / 'bin'}:{env['PATH']}",
        "CARGO_TARGET_DIR": str(STATIC / "cargo"),
        "CARGO_INCREMENTAL": "0",
        # An unknown flag of the C compiler would be an error only where C is compiled.
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(rust),
        "CFLAGS_" + target.replace("-", "_"): " ".join(c),
        "CARGO_ZIGBUILD_CACHE_DIR": str(TOOLS / "zigbuild"),
        "ZIG_GLOBAL_CACHE_DIR": str(TOOLS / "zig"),
        "SOURCE_DATE_EPOCH": str(project.epoch()),
        "TOLLGATE_COMMIT": project.commit(),
    }
    if architecture == "arm64":
        # Kernels for arm64 have pages of 4, 16 or 64 KiB, and jemalloc starts on pages up to the size named here.
        env["JEMALLOC_SYS_WITH_LG_PAGE"] = "16"
    return env


def path_prefixes(cargo_home):
    """Folders of this machine, and their names in the program. If several match a path, the last one counts."""
    folders = [(cargo_home, "/cargo"), (ROOT, "/tollgate"), (STATIC / "cargo", "/target"), (TOOLS, "/tools")]
    registry = cargo_home / "registry" / "src"
    return [*folders, *((path, "/crates") for path in sorted(registry.glob("*")))]


if __name__ == "__main__":
    project.run(main)
