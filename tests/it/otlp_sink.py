"""An OpenTelemetry collector that prints the spans it is sent: over HTTP and over gRPC, read with
OpenTelemetry's own messages. Its first line tells the two ports, each further line is a span."""

import concurrent.futures
import http.server
import json
import sys
import threading

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

lock = threading.Lock()


def say(value):
    with lock:
        print(json.dumps(value), flush=True)


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def tell(way, request, headers):
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                say(
                    {
                        "way": way,
                        "headers": headers,
                        "resource": attributes(resource.resource.attributes),
                        "scope": scope.scope.name,
                        "trace": span.trace_id.hex(),
                        "span": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "state": span.trace_state,
                        "name": span.name,
                        "kind": span.kind,
                        "nanos": span.end_time_unix_nano - span.start_time_unix_nano,
                        "start": span.start_time_unix_nano,
                        "attributes": attributes(span.attributes),
                        "code": span.status.code,
                        "message": span.status.message,
                    }
                )


class Http(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/v1/traces" or self.headers["content-type"] != "application/x-protobuf":
            self.send_error(404)
            return
        tell("http", messages.ExportTraceServiceRequest.FromString(body), {k.lower(): v for k, v in self.headers.items()})
        answer = messages.ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


class Grpc(services.TraceServiceServicer):
    def Export(self, request, context):
        tell("grpc", request, {key: str(value) for key, value in context.invocation_metadata()})
        return messages.ExportTraceServiceResponse()


web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Http)
threading.Thread(target=web.serve_forever, daemon=True).start()
server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
services.add_TraceServiceServicer_to_server(Grpc(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
say({"http": web.server_address[1], "grpc": port})
# The owner holds the other end.
sys.stdin.read()
