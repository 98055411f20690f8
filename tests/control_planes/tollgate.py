"""What a tollgate says about itself, and the Redis in which it counts."""

import contextlib
import socket

from sandbox import Program, fetch

DEBUG_PORT = 6070
REDIS_PORT = 6379
REDIS = f"127.0.0.1:{REDIS_PORT}"


@contextlib.contextmanager
def redis(programs, folder):
    """A Redis, as long as a `with` lasts."""
    program = Program("redis", folder, [programs["redis-server"], "--port", REDIS_PORT, "--save", ""])
    try:
        program.wait_until("it listens", listens)
        yield
    finally:
        program.stop()


def listens():
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", REDIS_PORT)) == 0


def rules():
    """The rules in use, a line each."""
    return fetch(DEBUG_PORT, "/rlconfig")[2]


def metric(name):
    """A metric without labels."""
    lines = fetch(DEBUG_PORT, "/metrics")[2].splitlines()
    values = [line.split()[-1] for line in lines if line.split()[:1] == [name]]
    return int(float(values[0])) if values else 0
