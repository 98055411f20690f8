"""A place where the control planes have the names, ports and paths that they insist on, and nothing else is reachable.

The namespaces of Linux give it: a network with only a loopback device, processes that end with the first one, and a
root folder with a hosts file and `/certs` of its own over the real one.
"""

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

# Longest wait for a condition. A busy machine takes long to start an Envoy.
PATIENCE_SECS = 60

# Where the Services of Envoy Gateway are, and that of a tollgate beside it. Different addresses, because several have a
# port 8081.
HOSTS = {
    "localhost": "127.0.0.1",
    "envoy-gateway": "127.0.0.1",
    "tollgate-redis.envoy-gateway-system.svc.cluster.local": "127.0.0.1",
    "envoy-ratelimit.envoy-gateway-system.svc.cluster.local": "127.0.0.2",
    "tollgate.tollgate.svc.cluster.local": "127.0.0.3",
}
# What the loopback device answers for besides 127.0.0.0/8: the pods of the mesh, and clients outside of it.
NETWORKS = ("10.1.0.1/24", "192.0.2.1/24")


class Failed(Exception):
    """What a case saw and did not expect."""


def expect(claim, what):
    if not claim:
        raise Failed(what)


def expect_equal(seen, expected, what):
    expect(seen == expected, f"{what}: {seen}, not {expected}")


def wait_until(what, holds, patience=PATIENCE_SECS):
    """Returns the first value of `holds` that is true."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.02)
    raise Failed(f"not within {patience} s: {what}")


def enter(command):
    """Starts `command` in namespaces of its own, and returns its exit code once all processes there have ended."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", *user, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    # An exception ends `unshare`, and with it everything inside; the default of this signal would leave it alone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return subprocess.run([*unshare, *command], check=False).returncode


def furnish(folder):
    """Makes the root folder of this process; called inside, once."""
    root = folder / "root"
    root.mkdir()
    run("mount", "-t", "tmpfs", "control-planes", root)
    for entry in os.scandir("/"):
        place = root / entry.name
        if entry.is_symlink():
            place.symlink_to(os.readlink(entry.path))
        elif entry.is_dir():
            place.mkdir()
            run("mount", "--rbind", entry.path, place)
    hosts = folder / "hosts"
    hosts.write_text("".join(f"{address} {name}\n" for name, address in HOSTS.items()))
    run("mount", "--bind", hosts, root / "etc" / "hosts")
    (root / "certs").mkdir()
    os.chroot(root)
    os.chdir("/")
    os.environ["XTABLES_LOCKFILE"] = str(folder / "iptables.lock")
    run("ip", "link", "set", "lo", "up")
    for network in NETWORKS:
        run("ip", "address", "add", network, "dev", "lo")


@contextlib.contextmanager
def redirected(address, port, target, but_from=None):
    """What connects to this address and port comes to `target`, unless it comes from one address."""
    others = ["!", "-s", but_from] if but_from else []
    rule = [*others, "-p", "tcp", "-d", address, "--dport", port, "-j", "DNAT", "--to-destination", target]
    run("iptables", "-t", "nat", "-A", "OUTPUT", *rule)
    try:
        yield
    finally:
        run("iptables", "-t", "nat", "-D", "OUTPUT", *rule)


def run(*command, codes=(0,), **options):
    """The output of a program that has to succeed."""
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True, **options)
    if done.returncode not in codes:
        words = " ".join(map(str, command))
        raise Failed(f"`{words}` has ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


class Program:
    """A running program, with its log in a file."""

    def __init__(self, name, folder, command, env=None):
        self.name = name
        self.log = folder / f"{name}.log"
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)} | (env or {})
        with self.log.open("ab") as log:
            words, streams = [str(word) for word in command], {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(words, stdout=log, env=environment, cwd=folder, **streams)

    def wait_until(self, what, holds):
        """As the function, as long as the program runs."""

        def check():
            code = self.process.poll()
            expect(code is None, f"{self.name} has ended with {code}, see {self.log}")
            return holds()

        return wait_until(what, check)

    def stop(self, kill=False):
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()
        try:
            self.process.wait(PATIENCE_SECS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed(f"{self.name} does not end") from None

    def log_text(self):
        return self.log.read_text(errors="replace")


def fetch(port, path="/", address="127.0.0.1", method="GET", headers=None, client=None, timeout=30):
    """The status, the headers and the body of a response; status 0 if there is none."""
    source = (client, 0) if client else None
    connection = http.client.HTTPConnection(address, port, timeout=timeout, source_address=source)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, {}, ""
    finally:
        connection.close()


class Traffic:
    """Requests without a break from a thread, one after the other, and their statuses so far."""

    def __init__(self, ask):
        self.statuses = []
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._over.wait(0.005):
            self.statuses.append(self._ask())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def count(self, status):
        return self.statuses.count(status)

    def wait_for(self, status, more=1):
        """Waits until so many more requests got this status."""
        wanted = self.count(status) + more
        wait_until(f"{more} more requests with {status}", lambda: self.count(status) >= wanted)


def expect_answered(traffic):
    """No request fails, whatever happens."""
    others = sorted(set(traffic.statuses) - {200, 429})
    expect(not others, f"statuses other than 200 and 429 under way: {others}")


def fresh_folder(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def fail(text):
    sys.exit(f"control-planes: {text}")
