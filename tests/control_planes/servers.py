"""HTTP servers of the tests, each in threads of this process."""

import http.server
import json
import sys
import threading


class Threads(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # Room for all connections that come at once.
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Prints it, unless the client has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """A server on an address, as long as a `with` lasts."""

    def __init__(self, handler, address, port):
        self._server = Threads((address, port), handler)

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

    def answer(self, status, body=b"", content_type="text/plain", headers=None):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(status)
        own = {"content-type": content_type, "content-length": str(len(body))}
        for name, value in (own | (headers or {})).items():
            self.send_header(name, value)
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


class Model(Server):
    """Answers like a language model: each answer costs 200 tokens, which it tells in a header and as OpenAI's do.

    It answers nothing before it is opened. `arrived` and `spent` are the requests and tokens so far.
    """

    COST = 200

    def __init__(self, address, port):
        super().__init__(ModelHandler, address, port)
        self._server.model = self
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self.begin()

    def begin(self):
        """Forgets what was, and closes."""
        self._opened.clear()
        self.arrived = self.spent = 0

    def open(self):
        """Answers the requests that wait, and all further ones at once."""
        self._opened.set()

    def __exit__(self, *exception):
        self.open()
        super().__exit__(*exception)

    def wait(self):
        with self._lock:
            self.arrived += 1
        self._opened.wait()

    def spend(self):
        with self._lock:
            self.spent += self.COST


class ModelHandler(Quiet):
    # A connection serves one request, so that none outlives the model.
    protocol_version = "HTTP/1.0"

    def do_GET(self):
        model = self.server.model
        model.wait()
        if self.path == "/fails":
            self.answer(500)
            return
        tokens, usage = {}, {}
        if self.path != "/silent":
            model.spend()
            tokens = {"x-tokens": str(model.COST)}
            usage = {"usage": {"prompt_tokens": 50, "completion_tokens": 150, "total_tokens": model.COST}}
        last = json.dumps({"choices": []} | usage)
        if self.headers.get("accept") == "text/event-stream":
            self.send_events(['{"choices": [{"delta": {"content": "Hello"}}]}', last, "[DONE]"], tokens)
        else:
            self.answer(200, last.encode(), "application/json", tokens)

    def send_events(self, events, headers):
        self.send_response(200)
        for name, value in (headers | {"content-type": "text/event-stream"}).items():
            self.send_header(name, value)
        self.end_headers()
        for event in events:
            self.wfile.write(f"data: {event}\n\n".encode())


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
