// Sends a request, in hex, to a method repeatedly on one channel, as services in JavaScript do. Prints a line for
// each call: OK and the reply in hex, or the error.

"use strict";

const fs = require("node:fs");
const { parseArgs } = require("node:util");
const grpc = require("@grpc/grpc-js");

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    authority: { type: "string" },
    ca: { type: "string" },
    "server-name": { type: "string" },
    gzip: { type: "boolean", default: false },
  },
});
const [method, target, request, calls] = positionals;

// The test must not use a proxy from the environment.
const options = { "grpc.enable_http_proxy": 0 };
if (values.authority) options["grpc.default_authority"] = values.authority;
if (values["server-name"]) options["grpc.ssl_target_name_override"] = values["server-name"];
if (values.gzip) options["grpc.default_compression_algorithm"] = grpc.compressionAlgorithms.gzip;
const credentials = values.ca
  ? grpc.credentials.createSsl(fs.readFileSync(values.ca))
  : grpc.credentials.createInsecure();
const client = new grpc.Client(target, credentials, options);

const asItIs = (bytes) => bytes;
const ask = () =>
  new Promise((resolve) => {
    // Every call has a bound, and a generous one: a busy machine is slow.
    const deadline = Date.now() + 20_000;
    client.makeUnaryRequest(method, asItIs, asItIs, Buffer.from(request, "hex"), { deadline }, (error, reply) =>
      resolve(error ? `${grpc.status[error.code]} ${error.details}` : `OK ${reply.toString("hex")}`),
    );
  });

(async () => {
  for (let call = 0; call < Number(calls); call += 1) console.log(await ask());
  client.close();
})();
