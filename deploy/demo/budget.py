"""The parts of the demo of a token budget: a service that answers like a language model, its clients, and the rules and the
Envoy beside docs/token-budgets.md.
"""

import http.client
import http.server
import json
import random
import threading
import time

# What a tenant may spend in a minute, and a request reserves. Answers cost no more than that.
BUDGET = 20_000
ESTIMATE = 200

TENANTS = ["red", "green", "blue"]
CLIENTS = 20


def rules(page):
    """The rules of the page, with a budget that is used up each minute."""
    return page.split("```yaml\n")[1].split("```")[0].replace("1000/hour", f"{BUDGET}/minute")


def bootstrap(envoy, model):
    """The Envoy beside the page, before a model on this port."""
    admin = "admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n"
    envoy = envoy.replace("port_value: 8000", "port_value: 0")
    return admin + envoy.replace("port_value: 8081", "port_value: $PORT").replace("port_value: 9000", f"port_value: {model}")


class Model(http.server.ThreadingHTTPServer):
    """Answers like a language model, and counts what it costs."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.lock = threading.Lock()
        # The tokens of each tenant in the present minute.
        self.minute, self.spent = 0, {}

    def spend(self, tenant, cost):
        with self.lock:
            if self.minute != int(time.time() // 60):
                self.minute, self.spent = int(time.time() // 60), {}
            self.spent[tenant] = self.spent.get(tenant, 0) + cost

    def report(self):
        with self.lock:
            spent = ", ".join(f"{tenant} {self.spent.get(tenant, 0):,}" for tenant in TENANTS)
        return f"tokens of this minute, of {BUDGET:,}: {spent}"


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        cost = random.randint(ESTIMATE // 4, ESTIMATE)
        self.server.spend(self.headers.get("x-tenant", ""), cost)
        time.sleep(random.uniform(0.05, 0.5))
        usage = {"prompt_tokens": cost // 2, "completion_tokens": cost - cost // 2, "total_tokens": cost}
        if body.get("stream"):
            events = [{"choices": [{"index": 0, "delta": {"content": "hi"}}]}, {"choices": [], "usage": usage}]
            texts = [json.dumps(event) for event in events] + ["[DONE]"]
            answer = "".join(f"data: {text}\n\n" for text in texts)
        else:
            answer = json.dumps({"choices": [{"index": 0, "message": {"content": "hi"}}], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if body.get("stream") else "application/json")
        self.send_header("content-length", str(len(answer)))
        self.send_header("x-tokens", str(cost))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_):
        pass


def ask(port, is_over):
    """Asks the model through Envoy, again and again."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    while not is_over.is_set():
        headers = {"x-tenant": random.choice(TENANTS), "content-type": "application/json"}
        body = json.dumps({"model": "m", "stream": random.random() < 0.5})
        try:
            connection.request("POST", "/v1/chat/completions", body, headers)
            is_refused = connection.getresponse().read() == b""
        except (OSError, http.client.HTTPException):
            connection.close()
            is_refused = True
        is_over.wait(1 if is_refused else 0.02)


def start_clients(port, is_over):
    for _ in range(CLIENTS):
        threading.Thread(target=ask, args=(port, is_over), daemon=True).start()
