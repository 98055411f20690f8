"""Envoy Gateway without Kubernetes: resources from files, an Envoy of its own, and tollgate in the place of its rate
limit service."""

import base64
import contextlib
import os
import shutil
import tempfile

import yaml

import build
import tollgate
from sandbox import Program, fetch, redirected, run
from servers import Service

CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"
NAMESPACE = "envoy-gateway-system"
# The port of the listener `http` of the Gateway that all policies without one of their own use.
PORT = 10080
# Where the service behind the Gateway listens, and tollgate: Envoy Gateway has port 8081 of every address itself.
BACKEND_PORT = 3000
GRPC_PORT = 28081
# Where Envoy Gateway has the rules for tollgate.
RULES_PORT = 18001

# The variables that Envoy Gateway sets in the Deployment of its rate limit service, in `expectedRateLimitContainerEnv`
# of internal/infrastructure/kubernetes/ratelimit/resource.go.
VARIABLES = {
    "RUNTIME_ROOT": "/data",
    "RUNTIME_SUBDIRECTORY": "ratelimit",
    "RUNTIME_IGNOREDOTFILES": "true",
    "RUNTIME_WATCH_ROOT": "false",
    "LOG_LEVEL": "info",
    "USE_STATSD": "false",
    "CONFIG_TYPE": "GRPC_XDS_SOTW",
    "CONFIG_GRPC_XDS_SERVER_URL": f"envoy-gateway:{RULES_PORT}",
    "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
    "GRPC_SERVER_USE_TLS": "true",
    "GRPC_SERVER_TLS_CERT": "/certs/tls.crt",
    "GRPC_SERVER_TLS_KEY": "/certs/tls.key",
    "GRPC_SERVER_TLS_CA_CERT": "/certs/ca.crt",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": "/certs/tls.crt",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": "/certs/tls.key",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "/certs/ca.crt",
    "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
}
# How tollgate is started. Under the name `ratelimit`, as in Envoy Gateway's Deployment, it always counts in Redis.
STORES = {
    "in memory": (["tollgate", "serve"], {}),
    "with Redis": (["ratelimit"], {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": tollgate.REDIS}),
}
# Ports that are taken here.
PORTS = {"GRPC_PORT": str(GRPC_PORT), "DEBUG_PORT": str(tollgate.DEBUG_PORT)}

# What every policy needs.
BASE = f"""
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{ name: eg }}
spec:
  controllerName: {CONTROLLER}
  parametersRef: {{ group: gateway.envoyproxy.io, kind: EnvoyProxy, name: host, namespace: {NAMESPACE} }}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {{ name: host, namespace: {NAMESPACE} }}
spec:
  provider: {{ type: Host, host: {{ envoyVersion: $ENVOY_VERSION }} }}
  # Several Envoys run here on one host.
  extraArgs: [--disable-hot-restart]
  telemetry: {{ accessLog: {{ disable: true }} }}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{ name: eg, namespace: default }}
spec:
  gatewayClassName: eg
  listeners:
    - {{ name: http, protocol: HTTP, port: {PORT} }}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {{ name: service, namespace: default }}
spec:
  endpoints: [{{ ip: {{ address: 127.0.0.1, port: {BACKEND_PORT} }} }}]
"""


@contextlib.contextmanager
def surroundings(programs, folder):
    """The service behind the Gateway and Redis, and the way to tollgate's port."""
    redis = tollgate.redis(programs, folder)
    way = redirected("127.0.0.2", 8081, f"127.0.0.1:{GRPC_PORT}")
    with redis, way, Service("127.0.0.1", BACKEND_PORT):
        yield


class Gateway:
    """Envoy Gateway, its Envoys and tollgate."""

    def __init__(self, programs, folder, store):
        self.programs = programs
        self.folder = folder
        self.store = store
        self.resources = folder / "resources"
        self.resources.mkdir()
        self.certificates = folder / "config" / "certs"
        self.control_plane = None
        self.tollgate = None
        self._resources = {}
        self._install()

    def _install(self):
        envoy = self.programs["envoy"]
        version = build.version_of_envoy(envoy)
        place = self.folder / "data" / "envoy-versions" / version / "bin" / "envoy"
        place.parent.mkdir(parents=True)
        place.symlink_to(envoy)
        for name in ("ratelimit", "tollgate"):
            (self.folder / name).symlink_to(self.programs["tollgate"])
        values = yaml.safe_load((self.programs["root"] / "deploy/envoy-gateway/helm-values.yaml").read_text())
        limits = values["config"]["envoyGateway"]["rateLimit"]
        homes = {"configHome": "config", "dataHome": "data", "stateHome": "state", "runtimeDir": "runtime"}
        host = {"type": "Host", "host": {name: str(self.folder / home) for name, home in homes.items()}}
        files = {"type": "File", "file": {"paths": [str(self.resources)]}}
        config = {
            "apiVersion": "gateway.envoyproxy.io/v1alpha1",
            "kind": "EnvoyGateway",
            "gateway": {"controllerName": CONTROLLER},
            "provider": {"type": "Custom", "custom": {"resource": files, "infrastructure": host}},
            "extensionApis": {"enableBackend": True, "enableEnvoyPatchPolicy": True, "enableLua": True},
            # Longer than Envoy's default, so that a busy machine does not look like a service that is away.
            "rateLimit": limits | {"timeout": "10s"},
        }
        (self.folder / "envoy-gateway.yaml").write_text(yaml.safe_dump(config))
        self.write("base", BASE.replace("$ENVOY_VERSION", version))
        self.rotate()

    def write(self, name, text):
        """Puts resources into place, in the room of those that had this name."""
        self._resources[name] = text
        self._publish()

    def remove(self, *names):
        for name in names:
            del self._resources[name]
        self._publish()

    def _publish(self):
        """In one step and in one file, because Envoy Gateway needs a second of a processor for each file."""
        beside = self.resources / ".all"
        beside.write_text("\n---\n".join(self._resources.values()))
        beside.rename(self.resources / "all.yaml")

    def rotate(self):
        """New certificates of a new authority for all, and the Secrets of the pods as the kubelet writes them."""
        shutil.rmtree(self.certificates, ignore_errors=True)
        run(self.programs["envoy-gateway"], "certgen", "--local", "--config-home", self.folder / "config")
        mount_secret(self.certificates / "envoy-rate-limit")
        files = [self.certificates / "envoy" / name for name in ("tls.crt", "tls.key", "ca.crt")]
        data = {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}
        kind = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls"}
        secret = kind | {"metadata": {"name": "envoy", "namespace": NAMESPACE}, "data": data}
        self.write("secret", yaml.safe_dump(secret))

    def start(self):
        self.start_control_plane()
        self.start_tollgate()

    def start_control_plane(self):
        command = [self.programs["envoy-gateway"], "server", "--config-path", self.folder / "envoy-gateway.yaml"]
        self.control_plane = Program("envoy-gateway", self.folder, command)
        self.control_plane.wait_until(
            "Envoy Gateway is ready", lambda: fetch(8081, "/readyz")[0] == 200 and self.admin_ports()
        )

    def start_tollgate(self):
        (name, *arguments), store = STORES[self.store]
        command = [self.folder / name, *arguments]
        self.tollgate = Program("tollgate", self.folder, command, VARIABLES | store | PORTS)
        self.tollgate.wait_until("tollgate is healthy", lambda: fetch(8080, "/healthcheck")[0] == 200)

    def stop(self):
        for program in (self.tollgate, self.control_plane):
            if program:
                program.stop()

    def admin_ports(self):
        """Where the running Envoys answer questions about themselves."""
        files = self.folder.glob("runtime/*/admin-address.txt")
        ports = [int(file.read_text().rpartition(":")[2] or 0) for file in files]
        return [port for port in ports if fetch(port, "/ready")[0] == 200]

    def version(self):
        """The version of the rules for tollgate: a number that Envoy Gateway counts from its start on."""
        lines = self.control_plane.log_text().splitlines()
        starts = [at for at, line in enumerate(lines) if "Start runners" in line]
        return sum("global-ratelimit" in line and "received a notification" in line for line in lines[starts[-1] :])

    def config_dumps(self):
        return [fetch(port, "/config_dump")[2] for port in self.admin_ports()]


def mount_secret(source):
    """Fills /certs as the kubelet does: a folder for each version, and a link that moves from one to the next."""
    version = tempfile.mkdtemp(prefix="..", dir="/certs")
    for file in source.iterdir():
        shutil.copy(file, version)
        link = f"/certs/{file.name}"
        if not os.path.lexists(link):
            os.symlink(f"..data/{file.name}", link)
    os.symlink(os.path.basename(version), "/certs/..data_tmp")
    os.rename("/certs/..data_tmp", "/certs/..data")
