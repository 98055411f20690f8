"""Starts tollgate as a package has it, and asks it."""

import os
import pathlib
import shutil
import subprocess
import time

from project import ROOT, Problem

ADDRESS = "remote_address=192.0.2.1"
ASK = ["ask", "--domain", "shop", "-d", ADDRESS]
# The first answer by the rules in config/.
ANSWER = f"OK\n  {ADDRESS}: OK, 2 of 3 per second left"
RULES = ROOT / "config"
# Seconds. Another processor is emulated, and the machine may be busy.
PATIENCE = 60


def as_root(*command):
    """The command as root: by sudo, if this is another user."""
    return [*([] if os.geteuid() == 0 else ["sudo", "-n"]), *map(str, command)]


def run(*command, text="", **options):
    """The output of a program that must succeed; it reads `text`."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(
            command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=10 * PATIENCE, **options)
    except FileNotFoundError as error:
        raise Problem(f"{command[0]} is not installed: run deploy/packaging/install try") from error
    if done.returncode != 0:
        raise Problem(f"`{' '.join(command)}` ended with {done.returncode}: {done.stdout.strip()}")
    return done.stdout


def wait_for(what, attempt, details=lambda: ""):
    """The first result of `attempt` that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (result := attempt()):
        if time.monotonic() > deadline:
            raise Problem(f"not so in {PATIENCE} s: {what} {details()}")
        time.sleep(0.001)
    return result


def answers(*command, **options):
    """Whether a program ends with success, and its output."""
    done = subprocess.run(
        [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, **options)
    return done.stdout if done.returncode == 0 else None


def expect(is_so, problem):
    if not is_so:
        raise Problem(problem)


class Server:
    """`tollgate serve` on a Unix socket, with free ports for the rest; ended at the end of a `with`."""

    def __init__(self, command, folder, environment=None):
        self.socket = pathlib.Path(folder) / "tollgate.sock"
        self.environment = {
            "TOLLGATE_CONFIG_DIR": str(RULES), "GRPC_UDS": str(self.socket), "HOST": "127.0.0.1", "PORT": "0",
            "DEBUG_PORT": "0", "TOLLGATE_DRAIN_DELAY": "0",
        } | (environment or {})
        # The environment of the server has no PATH, and that of users may lack the folders of programs for root.
        program = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        expect(program, f"{command[0]} is not installed")
        self.command = [program, *map(str, command[1:])]
        self.log = open(pathlib.Path(folder) / "tollgate.log", "w+", encoding="utf-8")

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        return self

    def ask(self, *program, socket=None):
        """The answer to the first request that is answered."""
        command = [*program, *ASK, "--server", f"unix://{socket or self.socket}"]

        def attempt():
            expect(self.process.poll() is None, f"the server ended: {self.lines()}")
            return answers(*command)

        answer = wait_for("an answer", attempt, self.lines)
        expect(answer.startswith(ANSWER), f"another answer: {answer}")

    def lines(self):
        self.log.seek(0)
        return self.log.read()

    def __exit__(self, *_):
        self.process.terminate()
        try:
            code = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
        # A failure in the `with` counts more.
        if _[0] is None:
            expect(code == 0, f"the server ended with {code}: {self.lines()}")
