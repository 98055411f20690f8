"""Runs tollgate, an Envoy in front of a service, and clients, until Ctrl-C. `make demo` starts it.

All listen on free ports of 127.0.0.1, and all files are in a folder that is deleted at the end.
"""

import argparse
import http.client
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

# The import below leaves no file in the repository.
sys.dont_write_bytecode = True
import budget  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Longest wait for a program to be ready.
READY_SECS = 30

BOOTSTRAP = """
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }
static_resources:
  listeners:
    - name: front
      address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                use_remote_address: true
                xff_num_trusted_hops: 1
                route_config:
                  virtual_hosts:
                    - name: shop
                      domains: ["*"]
                      rate_limits:
                        - actions: [{ remote_address: {} }]
                        - actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }]
                        - actions: [{ request_headers: { header_name: ":path", descriptor_key: path } }]
                        - actions:
                            - request_headers: { header_name: ":path", descriptor_key: path }
                            - remote_address: {}
                      routes:
                        - match: { prefix: / }
                          route: { cluster: service }
                http_filters:
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: shop
                      timeout: 1s
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: tollgate, authority: tollgate } }
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
    # The service behind: Envoy asks about no request that it answers itself, so this is a listener of its own.
    - name: service
      address: { pipe: { path: $FOLDER/service.sock } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: service
                route_config:
                  virtual_hosts:
                    - name: service
                      domains: ["*"]
                      routes:
                        - match: { prefix: / }
                          direct_response: { status: 200, body: { inline_string: "hello\\n" } }
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: service
      type: STATIC
      load_assignment:
        cluster_name: service
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: $FOLDER/service.sock } } } }] }]
    - name: tollgate
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: tollgate
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: $PORT } } }
"""


def wait_for(what, ready, program):
    """Returns the first result of `ready` that is true, as long as `program` runs."""
    deadline = time.monotonic() + READY_SECS
    while time.monotonic() < deadline:
        if program.poll() is not None:
            sys.exit(f"{what} has ended with {program.returncode}")
        found = ready()
        if found:
            return found
        time.sleep(0.05)
    sys.exit(f"{what} is not ready after {READY_SECS} s")


def start_tollgate(binary, folder, rules):
    """Starts tollgate, and returns it with its addresses: the line in its log that says it is ready."""
    (folder / "rules").mkdir()
    (folder / "rules/rules.yaml").write_text(rules)
    log = folder / "tollgate.log"
    program = subprocess.Popen(
        [binary, "serve", "--config-dir", folder / "rules", "--log-format", "json", "--drain-delay", "0"]
        + ["--grpc-host", "127.0.0.1", "--host", "127.0.0.1", "--debug-host", "127.0.0.1"]
        + ["--grpc-port", "0", "--port", "0", "--debug-port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log.open("wb"),
        # Ctrl-C is for this script, which ends its programs in order.
        start_new_session=True,
    )

    def ready():
        lines = (line for line in log.read_text().splitlines() if "tollgate is ready" in line)
        return next(map(json.loads, lines), None)

    try:
        return program, wait_for("tollgate", ready, program)
    except SystemExit:
        print(log.read_text(), file=sys.stderr)
        raise


def start_envoy(binary, folder, bootstrap, port):
    """Starts Envoy, which asks tollgate at `port`; returns it with its own port."""
    bootstrap = bootstrap.replace("$PORT", str(port)).replace("$FOLDER", str(folder))
    (folder / "envoy.yaml").write_text(bootstrap)
    admin = folder / "admin"
    program = subprocess.Popen(
        [binary, "--config-path", folder / "envoy.yaml", "--admin-address-path", admin]
        + ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )

    def listener():
        if not admin.exists() or not admin.read_text():
            return None
        try:
            with urllib.request.urlopen(f"http://{admin.read_text()}/listeners", timeout=5) as page:
                lines = page.read().decode().splitlines()
        except OSError:
            return None
        return next((line.rsplit(":", 1)[1] for line in lines if line.startswith("front::")), None)

    return program, int(wait_for("Envoy", listener, program))


# The clients: address, path, key, and requests a second; some come in waves of so many seconds.
CLIENTS = [
    ("198.51.100.7", "/", None, 14, 0),
    ("198.51.100.23", "/search?q=shoes", None, 5, 0),
    ("203.0.113.40", "/login", None, 3, 25),
    ("203.0.113.41", "/", "partner-gold", 7, 0),
    ("203.0.113.80", "/", "partner-silver", 6, 40),
    ("192.0.2.10", "/checkout", None, 1, 0),
    ("192.0.2.55", "/", None, 20, 60),
]

# Visitors, each with an address of its own, who seldom ask.
VISITORS = 200


def wave(length, now):
    """The share of a client's requests that it sends now."""
    if length == 0:
        return 0.85 + 0.3 * random.random()
    return 1.6 if now % length < length * 0.45 else 0.15


def send(port, is_over, choose):
    """Sends a request of the client that `choose` returns, again and again."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    while not is_over.is_set():
        address, path, key, pause = choose()
        headers = {"x-forwarded-for": address} | ({"x-api-key": key} if key else {})
        try:
            connection.request("GET", path.split("?")[0], headers=headers)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection.close()
        is_over.wait(pause)


def start_clients(port, is_over):
    """Starts a thread for each client, and one for the visitors."""

    def client(address, path, key, rate, length):
        return lambda: (address, path, key, random.expovariate(rate * wave(length, time.time())))

    def visitor():
        address = f"10.{random.randrange(8)}.0.{random.randrange(VISITORS)}"
        return address, random.choice(["/", "/", "/search", "/checkout"]), None, random.expovariate(40)

    for choose in [client(*one) for one in CLIENTS] + [visitor]:
        threading.Thread(target=send, args=(port, is_over, choose), daemon=True).start()


def stop(programs):
    """Ends the programs, the last one first."""
    for program in reversed(programs):
        program.terminate()
        try:
            program.wait(10)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tollgate", default=ROOT / "target/local/tollgate", help="the program")
    parser.add_argument("--envoy", default=ROOT / "target/tools/bin/envoy", help="Envoy")
    parser.add_argument("--budget", action="store_true", help="show a token budget instead of a shop")
    options = parser.parse_args()
    rules, bootstrap, model = (HERE / "rules.yaml").read_text(), BOOTSTRAP, None
    if options.budget:
        model = budget.Model()
        threading.Thread(target=model.serve_forever, daemon=True).start()
        rules = budget.rules((ROOT / "docs/token-budgets.md").read_text())
        bootstrap = budget.bootstrap((ROOT / "docs/token-budgets.yaml").read_text(), model.server_port)
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    programs = []
    with tempfile.TemporaryDirectory(prefix="tollgate-demo-") as folder:
        folder = pathlib.Path(folder)
        try:
            tollgate, ready = start_tollgate(options.tollgate, folder, rules)
            programs.append(tollgate)
            envoy, port = start_envoy(options.envoy, folder, bootstrap, ready["grpc"].rsplit(":", 1)[1])
            programs.append(envoy)
            (budget if model else sys.modules[__name__]).start_clients(port, is_over)
            print(f"the page:  http://localhost:{ready['debug'].rsplit(':', 1)[1]}/")
            print(f"{'the model' if model else 'the shop'}:  http://localhost:{port}/")
            print(f"the rules: {folder / 'rules/rules.yaml'}", flush=True)
            print("Ctrl-C ends the demo.", flush=True)
            reported = time.monotonic()
            while not is_over.wait(0.2):
                if model and time.monotonic() - reported > 5:
                    reported = time.monotonic()
                    print(model.report(), flush=True)
                for program in programs:
                    if program.poll() is not None:
                        sys.exit(f"{program.args[0]} has ended with {program.returncode}")
        finally:
            is_over.set()
            stop(programs)
    print("The demo has ended.")


if __name__ == "__main__":
    main()
