"""HTTP servers of the tests, each in threads of this process."""

import http.server
import json
import threading


class Server:
    """A server on an address, as long as a `with` lasts."""

    def __init__(self, handler, address, port):
        self._server = http.server.ThreadingHTTPServer((address, port), handler)
        self._server.daemon_threads = True

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


class Quiet(http.server.BaseHTTPRequestHandler):
    """Writes no log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", content_type="text/plain"):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Service(Server):
    """Answers every request with 200, and with the headers that it got."""

    def __init__(self, address, port):
        super().__init__(ServiceHandler, address, port)


class ServiceHandler(Quiet):
    def do_GET(self):
        self.answer(200, json.dumps(dict(self.headers)).encode(), "application/json")

    do_POST = do_PUT = do_GET


class Kubernetes(Server):
    """An API server of a cluster in which there is nothing: every list is empty, every watch silent."""

    def __init__(self, address, port):
        super().__init__(KubernetesHandler, address, port)


class KubernetesHandler(Quiet):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/version":
            self.answer_json(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        elif "sendInitialEvents=true" in query:
            # The client then lists first, and watches afterwards.
            self.answer_status(422, "Invalid")
        elif "watch=true" in query:
            self.watch()
        elif is_list(path):
            only = "as=PartialObjectMetadataList" in self.headers.get("accept", "")
            kind = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList"} if only else {}
            self.answer_json(200, kind | {"metadata": {"resourceVersion": "1"}, "items": []})
        else:
            self.answer_status(404, "NotFound")

    def do_POST(self):
        self.answer_status(403, "Forbidden")

    do_PUT = do_PATCH = do_DELETE = do_POST

    def watch(self):
        """Sends headers and then nothing, until the client goes."""
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        self.rfile.read(1)

    def answer_status(self, code, reason):
        status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code}
        self.answer_json(code, status)

    def answer_json(self, status, value):
        self.answer(status, json.dumps(value).encode(), "application/json")


def is_list(path):
    """Whether the path ends with the name of a kind, as `/api/v1/namespaces/NAMESPACE/KINDS` does."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    return len(parts) == 1
