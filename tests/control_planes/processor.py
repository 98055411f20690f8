"""An external processor in the place of AI Gateway's, on a port of 127.0.0.1.

It sends the metadata that AI Gateway's own one sends, by `ProcessResponseBody` and `buildDynamicMetadata` of its source
of autumn 2026 (internal/extproc/processor_impl.go): the total of tokens as soon as an answer tells it and once more at
its end, 0 if it never does, and nothing for an answer with an error. Events are streamed, and all else is buffered.
"""

import concurrent.futures
import re
import sys

import grpc
from google.protobuf import empty_pb2, struct_pb2, unknown_fields

# Fields of ProcessingRequest and ProcessingResponse in envoy/service/ext_proc/v3/external_processor.proto.
PARTS = range(2, 8)
RESPONSE_HEADERS, RESPONSE_BODY = 3, 5
DYNAMIC_METADATA, MODE_OVERRIDE = 8, 9
# `response_body_mode: STREAMED` in the ProcessingMode of the filter.
STREAMED = bytes([4 << 3, 1])
# More streams than there are requests at once, because each has a thread.
STREAMS = 64


def process(requests, _):
    """Answers the parts of one HTTP request and its response, and changes none."""
    succeeded, body = False, b""
    for request in requests:
        number, part = next(field for field in fields(request) if field[0] in PARTS)
        # The answer to each part has the number before.
        answer = written(number - 1, b"")
        if number == RESPONSE_HEADERS:
            succeeded = re.search(rb":status..2\d\d", part, re.DOTALL) is not None
            if b"text/event-stream" in part:
                answer += written(MODE_OVERRIDE, STREAMED)
        elif number == RESPONSE_BODY and succeeded:
            piece = dict(fields(part))
            body += piece.get(1, b"")
            told = re.findall(rb'"total_tokens": (\d+)', body)
            if told or piece.get(2):
                answer += written(DYNAMIC_METADATA, metadata(int(told[-1]) if told else 0))
        yield answer


def metadata(tokens):
    values = struct_pb2.Struct()
    values.update({"io.envoy.ai_gateway": {"llm_total_token": tokens}})
    return values.SerializeToString()


def fields(message):
    """Numbers and values of the fields of any message."""
    found = unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(message))
    return [(field.field_number, field.data) for field in found]


def written(number, value):
    """A field with bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


server = grpc.server(concurrent.futures.ThreadPoolExecutor(STREAMS))
handlers = {"Process": grpc.stream_stream_rpc_method_handler(process)}
handler = grpc.method_handlers_generic_handler("envoy.service.ext_proc.v3.ExternalProcessor", handlers)
server.add_generic_rpc_handlers([handler])
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
server.wait_for_termination()
