//! tollgate as its users see it: real processes, real Redis, real Envoy. `evidence.txt` names the tests that only `make
//! evidence` runs.

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, also in what it calls"
)]

mod algorithms; // every algorithm against a naive model of it
mod ask_command; // `tollgate ask`: its exit codes, leases, and servers that do not answer
mod bad_input; // inputs that the server refuses, at its start and on the wire
mod browser; // the page of the debug port, in a real browser
mod calm; // effects on callers while Redis or the network to it is broken
mod check; // rule files and manifests in pipelines: forms of the report and exit codes
mod cli; // the command line: `serve`, `check`, `ask` and their settings
mod clients; // the gRPC libraries of callers, over sockets, ports and TLS, compressed or not, under any name
mod clocks; // clocks that step while clients ask
mod cluster; // a Redis Cluster: one batch per node, slots that move, masters that die
mod cost; // how many instructions a request takes
mod counters; // the hits of counters, shown and changed through the debug port
mod decision_log; // a line for each decision
mod dependencies; // advisories against the dependencies and the images of others, and licences
mod deploy; // the files in `deploy/`, run unchanged, and the programs that make packages of them
mod documents; // links, the index and the length of the documents
mod drain; // the end of the server
mod drop_in; // started as platforms start envoyproxy/ratelimit, and next to it on one Redis
mod environment; // variables that are wrong, unknown or set by Kubernetes, and errors before the log begins
mod envoy; // a real Envoy calls, and obeys
mod envoy_gateway; // as the rate limit service of Envoy Gateway
mod evidence; // `evidence.txt` names tests that are there
mod examples; // the rules in `config/` and in the documentation
mod explain; // `tollgate explain`: its account and the decision agree, and its page
mod first_limit; // the newcomer's page, followed word by word
mod fuzz; // replays the inputs that fuzzing found worth keeping
mod golden; // cases of requests and rules, one file each
mod grpcurl; // reflection and health, seen with grpcurl
mod healthcheck; // `tollgate healthcheck`, which probes run
mod held; // the memory that clients together can make the process hold
mod hostile; // values of requests that are HTML, line breaks or long, wherever they are shown
mod http; // health, metrics and the rules in use over HTTP
mod lint_envoy; // findings in Envoy configurations, and what one request makes of them
mod many; // every algorithm under load from many clients of many replicas
mod observe; // snapshots of decisions and top talkers, on the debug port
mod on_loss; // the answers of rules while Redis does not answer
mod openapi; // the document of the HTTP ports, and their replies, also to requests that schemathesis makes of it
mod papers; // pages that the program itself can write
mod prometheus; // a real Prometheus and promtool read the page
mod recipes; // each recipe of its page, run by a real Envoy
mod redis; // few commands, exact counts for many clients, and Redis gone or stuck
mod redis_tls; // TLS between tollgate and Redis
mod refusals; // bodies of refused responses
mod reload; // rules that change under a running server
mod reservations; // token budgets: reserved before a request, settled after it
mod schema; // the JSON Schema of rule files against the program's own reading of them
mod seams; // one request on two stores, and each worker's knowledge of exceeded limits
mod second_reader; // rule files as an independent YAML reader sees them
mod secrets; // passwords never appear in output, whatever goes wrong
mod sentinel; // a Redis with sentinels, and failovers
mod shell; // completions and manual pages
mod slices; // limits that each process takes in slices
mod slots; // requests in flight
mod statistics; // statsd, DogStatsD, Prometheus and `/stats`
mod store; // laws that every store keeps, in memory and in Redis
mod support; // starts and stops everything else
mod tls; // TLS on the gRPC port: verified clients, and certificates that change
mod traces; // spans, read with OpenTelemetry's own messages
mod transport; // sockets, ports, and connections of clients that are malicious, slow or gone
mod unhelpful_servers; // servers that are full, closed, moved or of another kind, and proxies that know few commands
mod unused_answers; // callers that leave, and what is given back for them
mod unwritable_log; // a log, and output of commands, that cannot be written
mod upgrade; // counters, flags and metrics of earlier versions
mod xds; // rules that a control plane pushes
mod xds_caches; // the same with each cache of go-control-plane
mod xds_errors; // reports on the control plane, in the log and as a metric
