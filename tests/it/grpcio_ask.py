"""Sends a request, in hex, to a method over and over on one channel, as gRPC's C-core does for Python, Ruby, PHP and
C++. Prints a line for each call: OK and the reply in hex, or what went wrong."""

import argparse

import grpc

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("method")
parser.add_argument("target")
parser.add_argument("request", type=bytes.fromhex)
parser.add_argument("calls", type=int)
parser.add_argument("--authority", help="sent instead of the one that is made of the target")
parser.add_argument("--ca", type=argparse.FileType("rb"), help="connects over TLS and believes this one")
parser.add_argument("--server-name", help="what the server's certificate is for")
parser.add_argument("--gzip", action="store_true", help="compresses what it sends")
args = parser.parse_args()

# The test must not use a proxy from the environment.
options = [("grpc.enable_http_proxy", 0)]
if args.authority:
    options.append(("grpc.default_authority", args.authority))
if args.server_name:
    options.append(("grpc.ssl_target_name_override", args.server_name))
compression = grpc.Compression.Gzip if args.gzip else None
if args.ca:
    credentials = grpc.ssl_channel_credentials(args.ca.read())
    channel = grpc.secure_channel(args.target, credentials, options, compression)
else:
    channel = grpc.insecure_channel(args.target, options, compression)
ask = channel.unary_unary(args.method)
for _ in range(args.calls):
    try:
        # Every call has a bound, and a generous one: a busy machine is slow.
        print("OK", ask(args.request, timeout=20).hex())
    except grpc.RpcError as error:
        print(error.code().name, error.details())
