"""The programs that take part. Both control planes are built from their sources by Go's own client."""

import os
import shutil
import subprocess

from sandbox import fail, run

ENVOY_GATEWAY = "v1.9.1"
# A commit of the branch for 1.31, in Go's notation: Istio has no tags that Go accepts.
ISTIO = "v0.0.0-20260827124520-eed52ebb66ad"
# What has to be on the path, and where it comes from.
NEEDED = {
    "go": "Go 1.26.6 or later, from go.dev",
    "ip": "Debian's iproute2",
    "iptables": "Debian's iptables",
    "mount": "Debian's mount",
    "nice": "Debian's coreutils",
    "unshare": "Debian's util-linux",
}
# What `make tools` installs.
TOOLS = ("envoy", "redis-server")
# Where Go's archive and Debian put programs that need not be on everybody's path.
MORE_PATHS = ("/usr/local/go/bin", "/usr/sbin", "/sbin")


def programs(root, cache):
    """The path of each program by its name, or the end of the job with the names of all that are missing."""
    os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *MORE_PATHS])
    missing = [f"{name} ({source})" for name, source in NEEDED.items() if not shutil.which(name)]
    tools = {name: root / "target" / "tools" / "bin" / name for name in TOOLS}
    missing += [f"{name} (`make tools`)" for name, path in tools.items() if not path.exists()]
    if missing:
        fail(f"nothing was run, because programs are missing: {', '.join(missing)}")
    folder = cache / "bin"
    return tools | {
        "envoy-gateway": built(folder / f"envoy-gateway-{ENVOY_GATEWAY}", build_envoy_gateway),
        "pilot-discovery": built(folder / f"pilot-discovery-{ISTIO}", build_istio),
    }


def built(program, build):
    """The program, which `build` makes beside it if it is not there yet."""
    if not program.exists():
        print(f"control-planes: building {program.name}, some ten minutes of a processor", flush=True)
        program.parent.mkdir(parents=True, exist_ok=True)
        build(program.parent).rename(program)
    return program


def build_envoy_gateway(folder):
    go("install", f"github.com/envoyproxy/gateway/cmd/envoy-gateway@{ENVOY_GATEWAY}", folder=folder)
    return folder / "envoy-gateway"


def build_istio(folder):
    """Not by `go install` alone, which needs a version with a tag."""
    module = folder.parent / "istio"
    module.mkdir(exist_ok=True)
    (module / "go.mod").write_text(f"module control-planes\n\ngo 1.26\n\nrequire istio.io/istio {ISTIO}\n")
    go("install", "-mod=mod", "istio.io/istio/pilot/cmd/pilot-discovery", folder=folder, cwd=module)
    return folder / "pilot-discovery"


def go(*arguments, folder, cwd=None):
    """Go, in the background of what else the machine does."""
    settings = [f"GOBIN={folder}", "GOFLAGS=-p=2 -buildvcs=false"]
    done = subprocess.run(["nice", "-n", "19", "env", *settings, "go", *arguments], check=False, cwd=cwd)
    if done.returncode != 0:
        fail(f"`go {' '.join(arguments)}` has ended with {done.returncode}")


def versions(programs):
    """What ran, as a sentence has it."""
    commit = ISTIO.rpartition("-")[2]
    return (
        f"Envoy Gateway {ENVOY_GATEWAY.removeprefix('v')}, Istio's pilot-discovery 1.31-rc ({commit}), "
        f"Envoy {version_of_envoy(programs['envoy'])} and {run(programs['tollgate'], '--version').strip()}"
    )


def version_of_envoy(envoy):
    """Such as 1.40.0, of the line `PATH  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL`."""
    return run(envoy, "--version").rpartition("version: ")[2].split("/")[1]
