#!/usr/bin/env python3
"""Starts the image of each processor as Kubernetes does with a restricted pod, and asks it.

skopeo and umoci, which have no part in the making of the image, read and unpack it; runc starts it: as the user of the
image, on a read-only root, without any capability, in a network of its own that has only a loopback. The program for
another processor runs under qemu.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import uuid

sys.dont_write_bytecode = True

import project
from project import DIST, TARGETS, TOOLS
from trial import ANSWER, ASK, PATIENCE, RULES, answers, as_root, expect, run, wait_for

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
USER = 65532
# Where the emulator of another processor is in the container.
EMULATOR = "/qemu"
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) or "") or 0)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=pathlib.Path, default=DIST, help="the folder that image.py fills")
    parser.add_argument("--starts", type=int, default=5, help="how often the time to the first answer is measured")
    options = parser.parse_args()
    check_files(options.dist)
    for architecture in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(architecture, options.dist, pathlib.Path(folder))
            try:
                trial.run(options.starts)
            finally:
                run(*as_root("rm", "-rf", trial.bundle, trial.state))


def check_files(dist):
    """Checksums, the list of parts, and the archives for engines."""
    run("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=dist)
    name = f"tollgate-{project.version()}"
    parts = (dist / f"{name}.cdx.json").read_text()
    run(TOOLS / "venv" / "bin" / "python3", "-c", VALIDATE, text=parts)
    for architecture in TARGETS:
        path = dist / f"{name}-image-{architecture}.tar"
        for kind in ("docker-archive", "oci-archive"):
            seen = json.loads(run("skopeo", "inspect", f"{kind}:{path}"))
            expect(seen["Architecture"] == architecture, f"{path} as {kind} is for {seen['Architecture']}")
    print(f"ok    checksums, {name}.cdx.json by the schema of CycloneDX, archives for engines")


class Trial:
    def __init__(self, architecture, dist, folder):
        self.architecture, self.folder = architecture, folder
        self.is_emulated = MACHINES[architecture] != platform.machine()
        self.unpacked = None
        self.state = folder / "state"
        self.bundle = folder / "bundle"
        layout = f"oci-archive:{dist / f'tollgate-{project.version()}-image.tar'}:{project.version()}"
        single = f"oci:{folder / 'single'}:image"
        run("skopeo", "--override-arch", architecture, "copy", "--quiet", layout, single)
        # As root, so that files keep their owners.
        run(*as_root("umoci", "unpack", "--image", f"{folder / 'single'}:image", self.bundle))
        manifest = json.loads(run("skopeo", "inspect", "--raw", single))
        self.download = sum(part["size"] for part in [manifest["config"], *manifest["layers"]])

    def run(self, starts):
        self.check_root()
        entry = self.config()["process"]["args"]
        expect(entry == ["/bin/tollgate"], f"the image starts {entry}")
        with self.container("tollgate", ["/bin/tollgate", "serve", "--config-dir", "/config"]) as container:
            container.start()
            container.wait()
            container.check_confinement()
            healthy = container.exec("healthcheck")
            expect(healthy.startswith("healthy: "), healthy)
            memory = container.memory()
        # As platforms start envoyproxy/ratelimit: by its name, and with the environment only.
        variables = {
            "RUNTIME_ROOT": "/", "RUNTIME_SUBDIRECTORY": "", "RUNTIME_WATCH_ROOT": "false", "USE_STATSD": "false",
            "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "127.0.0.1:6379", "LOG_LEVEL": "info", "TOLLGATE_REPLICAS": "1",
        }
        with self.container("ratelimit", ["/bin/ratelimit"], variables) as container, container.redis():
            container.start()
            container.wait()
        program = self.bundle / "rootfs" / "bin" / "tollgate"
        print(
            f"ok    {self.architecture}{' under qemu' if self.is_emulated else ''}: answers as user {USER} on a "
            f"read-only root, as tollgate and as ratelimit\n"
            f"      {self.download / 1e6:.2f} MB to download, {self.size(program) / 1e6:.2f} MB program"
        )
        if self.is_emulated:
            return
        times = [self.time_to_first_answer() for _ in range(starts)]
        print(
            f"      {memory / 1e6:.1f} MB of memory when idle, "
            f"{min(times) * 1000:.0f} to {max(times) * 1000:.0f} ms from start to first answer ({starts} starts)"
        )

    def size(self, path):
        return int(run(*as_root("stat", "--format", "%s", path)))

    def check_root(self):
        """Nothing but the program is in the image."""
        found = run(*as_root("find", self.bundle / "rootfs", "-mindepth", "1", "-printf", "%P %y %l %m %U\n"))
        wanted = ["bin d  755 0", "bin/ratelimit l tollgate 777 0", "bin/tollgate f  755 0"]
        expect(sorted(found.splitlines()) == wanted, f"the image holds {found}")

    def time_to_first_answer(self):
        with self.container("timed", ["/bin/tollgate", "serve", "--config-dir", "/config"]) as container:
            # By the program of the image, in the network of the container.
            ask = as_root("nsenter", "--net", f"--target={container.pid}", self.bundle / "rootfs/bin/tollgate", *ASK)
            before = time.monotonic()
            container.start()
            wait_for("an answer", lambda: answers(*ask), container.lines)
            return time.monotonic() - before

    def config(self):
        """What runc is to do, as umoci took it from the image."""
        if self.unpacked is None:
            self.unpacked = run(*as_root("cat", self.bundle / "config.json"))
        return json.loads(self.unpacked)

    def container(self, name, arguments, variables=None):
        config = self.config()
        process = config["process"]
        expect(process["user"] == {"uid": USER, "gid": USER}, f"the user is {process['user']}")
        variables = {"TOLLGATE_DRAIN_DELAY": "0"} | (variables or {})
        process |= {
            "terminal": False,
            "args": self.emulated(arguments),
            "env": [f"{variable}={value}" for variable, value in variables.items()],
            "capabilities": {},
            "noNewPrivileges": True,
        }
        config["root"]["readonly"] = True
        mounts = [(str(RULES), "/config")]
        if self.is_emulated:
            mounts.append((f"/usr/bin/qemu-{MACHINES[self.architecture]}-static", EMULATOR))
        shown = {target for _, target in mounts}
        config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] not in shown] + [
            {"destination": target, "type": "bind", "source": source, "options": ["bind", "ro", "nosuid", "nodev"]}
            for source, target in mounts
        ]
        own = self.folder / "config.json"
        own.write_text(json.dumps(config))
        run(*as_root("cp", own, self.bundle / "config.json"))
        return Container(self, name)

    def emulated(self, arguments):
        """The command, by the emulator if there is one. `-0` keeps the name by which the program knows itself."""
        return [EMULATOR, "-0", arguments[0], *arguments] if self.is_emulated else arguments


class Container(contextlib.AbstractContextManager):
    """A container of runc; it is removed at the end of a `with`."""

    def __init__(self, trial, name):
        self.trial = trial
        self.name = f"tollgate-{name}-{uuid.uuid4()}"
        self.log = open(trial.folder / f"{self.name}.log", "w+", encoding="utf-8")

    def __enter__(self):
        file = self.trial.folder / f"{self.name}.pid"
        subprocess.run(
            self.runc("create", "--bundle", self.trial.bundle, "--pid-file", file, self.name),
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, check=False)
        expect(file.exists(), f"runc: {self.lines()}")
        self.pid = int(file.read_text())
        return self

    def runc(self, *command):
        return as_root("runc", "--root", self.trial.state, *command)

    def start(self):
        run(*self.runc("start", self.name))

    def exec(self, *arguments):
        return run(*self.runc("exec", self.name, *self.trial.emulated(["/bin/tollgate", *arguments])))

    def wait(self):
        """Waits for the first answer, by the program in the container."""
        ask = self.runc("exec", self.name, *self.trial.emulated(["/bin/tollgate", *ASK]))
        answer = wait_for("an answer", lambda: answers(*ask), self.lines)
        expect(answer.startswith(ANSWER), f"another answer: {answer}")

    @contextlib.contextmanager
    def redis(self):
        """A Redis of the machine, in the network of the container."""
        options = ["--bind", "127.0.0.1", "--save", "", "--dir", self.trial.folder]
        redis = as_root("nsenter", "--net", f"--target={self.pid}", "redis-server", *options)
        process = subprocess.Popen(redis, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            subprocess.run(as_root("kill", process.pid), check=False)
            process.wait(PATIENCE)

    def status(self):
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}

    def check_confinement(self):
        status = self.status()
        expect(status["Uid"] == [str(USER)] * 4, f"it runs as {status['Uid']}")
        for kind in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
            expect(int(status[kind][0], 16) == 0, f"{kind} is {status[kind][0]}")
        mounts = run(*as_root("cat", f"/proc/{self.pid}/mountinfo")).splitlines()
        root = next(line.split() for line in mounts if line.split()[4] == "/")
        expect("ro" in root[5].split(","), f"the root is {root[5]}")
        network = f"/proc/{self.pid}/net"
        routes = run(*as_root("cat", f"{network}/route", f"{network}/ipv6_route")).splitlines()[1:]
        outside = [route for route in routes if route.split()[-1] != "lo"]
        expect(not outside, f"it has a network: {outside}")

    def memory(self):
        return int(self.status()["VmRSS"][0]) * 1024

    def lines(self):
        self.log.seek(0)
        return self.log.read()

    def __exit__(self, kind, *_):
        subprocess.run(self.runc("kill", self.name, "TERM"), capture_output=True, check=False)
        if kind is None:
            wait_for("the container has ended", lambda: not os.path.exists(f"/proc/{self.pid}"), self.lines)
            expect("stopped" in self.lines(), f"it was not stopped gently: {self.lines()}")
        subprocess.run(self.runc("delete", "--force", self.name), capture_output=True, check=False, timeout=PATIENCE)


if __name__ == "__main__":
    project.run(main)
