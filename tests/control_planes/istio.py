"""Istio without Kubernetes: pilot-discovery with resources from files, plain Envoys as its gateway and sidecars, and
tollgate as a Service of the mesh."""

import contextlib
import json

import yaml

import tollgate
from sandbox import Program, fetch, redirected, wait_until
from servers import Kubernetes, Service

# The pods of the mesh; all clients outside have addresses of 192.0.2.0/24.
GATEWAY = "10.1.0.10"
TOLLGATE = "10.1.0.20"
SHOP = "10.1.0.30"
NEIGHBOUR = "10.1.0.40"
SHOP_PORT = 8080
HOST = "shop.example.com"
# Where a sidecar takes what is sent to its pod, and the address from which it passes that on.
INBOUND_PORT = 15006
INBOUND_ADDRESS = "127.0.0.6"
XDS = "127.0.0.1:15010"
READY_PORT = 15080
KUBERNETES_PORT = 15443

# Features that need Istio's own Envoy, or an authority for certificates, are off.
VARIABLES = {
    "PILOT_ENABLE_METADATA_EXCHANGE": "false",
    "PILOT_ENABLE_ALPN_FILTER": "false",
    "PILOT_CERT_PROVIDER": "none",
    "ENABLE_CA_SERVER": "false",
    "POD_NAME": "istiod",
}
METADATA = {"CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0"}
SERVICES = [{"envoy_grpc": {"cluster_name": "xds"}}]
DYNAMIC_RESOURCES = {
    "lds_config": {"ads": {}, "resource_api_version": "V3"},
    "cds_config": {"ads": {}, "resource_api_version": "V3"},
    "ads_config": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": SERVICES},
}
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "nothing",
    "contexts": [{"name": "nothing", "context": {"cluster": "nothing", "user": "nothing"}}],
    "clusters": [{"name": "nothing", "cluster": {"server": f"http://127.0.0.1:{KUBERNETES_PORT}"}}],
    "users": [{"name": "nothing", "user": {}}],
}


def mesh_service(name, host, address, port):
    """A service of the mesh, whose pods and Service the ServiceEntry stands for, and its way through the gateway."""
    return f"""
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{ name: {name}, namespace: istio-system }}
spec:
  selector: {{ istio: ingressgateway }}
  servers:
    - {{ port: {{ number: 80, name: http, protocol: HTTP }}, hosts: [{host}] }}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{ name: {name}, namespace: {name} }}
spec:
  hosts: [{host}]
  gateways: [istio-system/{name}]
  http:
    - route: [{{ destination: {{ host: {name}.{name}.svc.cluster.local, port: {{ number: {port} }} }} }}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{ name: {name}, namespace: {name} }}
spec:
  hosts: [{name}.{name}.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{ number: {port}, name: http, protocol: HTTP }}]
  endpoints: [{{ address: {address}, labels: {{ app: {name} }} }}]
"""


SHOP_RESOURCES = f"""
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{ name: default, namespace: istio-system }}
spec: {{ mtls: {{ mode: DISABLE }} }}
---{mesh_service("shop", HOST, SHOP, SHOP_PORT)}"""
RULES = """
domain: shop
descriptors:
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 3 }
"""


@contextlib.contextmanager
def surroundings(programs, folder):
    """The service behind the gateway, Redis and a Kubernetes, as long as a `with` lasts."""
    redis = tollgate.redis(programs, folder)
    with redis, Kubernetes("127.0.0.1", KUBERNETES_PORT), Service(SHOP, SHOP_PORT):
        yield


class Mesh:
    """Istio's control plane, its gateway and tollgate."""

    def __init__(self, programs, folder):
        self.programs = programs
        self.folder = folder
        self.resources = folder / "resources"
        self.control_plane = None
        self.tollgate = None
        self.gateway = Proxy(self, "router", "ingressgateway", "istio-system", GATEWAY, {"istio": "ingressgateway"})
        self._install()

    def _install(self):
        self.resources.mkdir()
        sources = {"configSources": [{"address": f"fs://{self.resources}"}]}
        (self.folder / "mesh.yaml").write_text(yaml.safe_dump(sources))
        (self.folder / "kubeconfig.yaml").write_text(yaml.safe_dump(KUBECONFIG))
        rules = self.folder / "rules"
        rules.mkdir()
        (rules / "shop.yaml").write_text(RULES)
        self.write("shop", SHOP_RESOURCES)
        self.write("tollgate", yaml.safe_dump(self._service_entry()))

    def _service_entry(self):
        """The Service of deploy/kustomize/, and the pod behind it."""
        service = yaml.safe_load((self.programs["root"] / "deploy/kustomize/base/service.yaml").read_text())
        ports = service["spec"]["ports"]
        ports = [{"number": one["port"], "name": one["name"], "protocol": one["appProtocol"].upper()} for one in ports]
        name = service["metadata"]["name"]
        spec = {
            "hosts": [f"{name}.tollgate.svc.cluster.local"],
            "location": "MESH_INTERNAL",
            "resolution": "STATIC",
            "ports": ports,
            "endpoints": [{"address": TOLLGATE, "labels": service["spec"]["selector"]}],
        }
        kind = {"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry"}
        return kind | {"metadata": {"name": name, "namespace": "tollgate"}, "spec": spec}

    def deployed(self, name):
        """A file of deploy/istio/, as it is."""
        return (self.programs["root"] / "deploy/istio" / name).read_text()

    def write(self, name, text):
        """Puts resources into place, in one step."""
        beside = self.folder / "beside.yaml"
        beside.write_text(text)
        beside.rename(self.resources / f"{name}.yaml")

    def remove(self, name):
        (self.resources / f"{name}.yaml").unlink()

    def start(self):
        self.start_tollgate()
        self.start_control_plane()
        self.gateway.start()
        wait_until("the gateway has the route", lambda: ask("192.0.2.250") == 200)

    def start_control_plane(self):
        files = f"--kubeconfig={self.folder}/kubeconfig.yaml --meshConfig={self.folder}/mesh.yaml"
        ports = f"--grpcAddr={XDS} --httpAddr=127.0.0.1:{READY_PORT} --monitoringAddr=127.0.0.1:15014"
        options = f"discovery --namespace=istio-system {files} {ports} --httpsAddr= --secureGRPCAddr="
        command = [self.programs["pilot-discovery"], *options.split()]
        self.control_plane = Program("pilot-discovery", self.folder, command, VARIABLES)
        self.control_plane.wait_until("Istio is ready", lambda: fetch(READY_PORT, "/ready")[0] == 200)

    def start_tollgate(self):
        env = {"TOLLGATE_CONFIG_DIR": str(self.folder / "rules"), "GRPC_HOST": TOLLGATE, "HOST": TOLLGATE}
        env |= {"DEBUG_PORT": str(tollgate.DEBUG_PORT), "REDIS_URL": tollgate.REDIS}
        self.tollgate = Program("tollgate", self.folder, [self.programs["tollgate"], "serve"], env)
        self.tollgate.wait_until("tollgate is healthy", lambda: fetch(8080, "/healthcheck", TOLLGATE)[0] == 200)

    def stop(self):
        for program in (self.gateway, self.tollgate, self.control_plane):
            if program:
                program.stop()

    @contextlib.contextmanager
    def sidecar(self, name, namespace, address, port, labels):
        """A sidecar that takes all requests to a port of a pod, as long as a `with` lasts."""
        proxy = Proxy(self, "sidecar", name, namespace, address, labels)
        target = f"127.0.0.1:{INBOUND_PORT}"
        with redirected(address, port, target, but_from=INBOUND_ADDRESS):
            try:
                proxy.start()
                proxy.wait_until("it has its listeners", lambda: f"inbound|{port}||" in proxy.dump())
                yield proxy
            finally:
                proxy.stop()


class Proxy:
    """An Envoy that gets all its configuration from Istio."""

    def __init__(self, mesh, kind, name, namespace, address, labels):
        self.name = name
        self._folder = mesh.folder
        self._envoy = mesh.programs["envoy"]
        self._program = None
        host, port = XDS.split(":")
        self._bootstrap = {
            "node": {
                "id": f"{kind}~{address}~{name}.{namespace}~{namespace}.svc.cluster.local",
                "cluster": f"{name}.{namespace}",
                "metadata": {"NAMESPACE": namespace, "LABELS": labels, "INSTANCE_IPS": address} | METADATA,
            },
            "admin": {"address": socket_address("127.0.0.1", 0)},
            "dynamic_resources": DYNAMIC_RESOURCES,
            "static_resources": {"clusters": [cluster("xds", host, int(port))]},
        }

    def start(self):
        place = self._folder / f"{self.name}.json"
        place.write_text(json.dumps(self._bootstrap))
        self._admin = self._folder / f"{self.name}-admin"
        self._admin.unlink(missing_ok=True)
        command = [self._envoy, "-c", place, "--admin-address-path", self._admin, "--concurrency", "1"]
        quiet = ["--disable-hot-restart", "--log-level", "warning"]
        self._program = Program(self.name, self._folder, [*command, *quiet])
        self.wait_until("it is ready", lambda: self._fetch("/ready")[0] == 200)

    def wait_until(self, what, holds):
        return self._program.wait_until(f"{self.name}: {what}", holds)

    def stop(self):
        if self._program:
            self._program.stop()

    def _fetch(self, path):
        if not self._admin.exists() or not self._admin.read_text():
            return 0, {}, ""
        return fetch(int(self._admin.read_text().rpartition(":")[2]), path)

    def dump(self):
        return self._fetch("/config_dump")[2]

    def stat(self, end):
        """The sum of all counters whose names end so."""
        stats = json.loads(self._fetch("/stats?format=json")[2])["stats"]
        return sum(stat["value"] for stat in stats if stat.get("name", "").endswith(end))


def cluster(name, host, port):
    """One server that speaks HTTP/2."""
    options = {"explicit_http_config": {"http2_protocol_options": {}}}
    kind = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    endpoint = {"endpoint": {"address": socket_address(host, port)}}
    extensions = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": kind} | options}
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    own = {"load_assignment": assignment, "typed_extension_protocol_options": extensions}
    return {"name": name, "type": "STATIC"} | own


def socket_address(host, port):
    return {"socket_address": {"address": host, "port_value": port}}


def ask(client, headers=None):
    """The status of a request from outside, through the gateway."""
    return answer(client, headers)[0]


def answer(client, headers=None):
    return fetch(80, address=GATEWAY, client=client, headers={"host": HOST} | (headers or {}))


def ask_inside(headers=None):
    """The status of a request of another workload of the mesh, without the gateway."""
    return fetch(SHOP_PORT, address=SHOP, client=NEIGHBOUR, headers=headers)[0]
