//! tollgate as its users see it: real processes, real Redis, real Envoy. `evidence.txt` names the tests that only `make
//! evidence` runs. In the order of a tour:
//!
//! - `cli`: the command line: `serve`, `check`, `ask` and their settings
//! - `check`: rule files and manifests in pipelines: forms of the report and exit codes
//! - `ask_command`: `tollgate ask`: its exit codes, leases, and servers that do not answer
//! - `healthcheck`: `tollgate healthcheck`, which probes run
//! - `explain`: `tollgate explain`: its account and the decision agree, and its page
//! - `environment`: variables that are wrong, unknown or set by Kubernetes, and errors before the log begins
//! - `refusals`: bodies of refused responses
//! - `bad_input`: inputs that the server refuses, at its start and on the wire
//! - `store`: laws that every store keeps, in memory and in Redis
//! - `algorithms`: every algorithm against a naive model of it
//! - `allocations`: how often a decision allocates memory
//! - `cost`: how many instructions a request takes
//! - `many`: every algorithm under load from many clients of many replicas
//! - `redis`: few commands, exact counts for many clients, and Redis gone or stuck
//! - `on_loss`: the answers of rules while Redis does not answer
//! - `sentinel`: a Redis with sentinels, and failovers
//! - `cluster`: a Redis Cluster: one batch per node, slots that move, masters that die
//! - `clocks`: clocks that step while clients ask
//! - `seams`: one request on two stores, and each worker's knowledge of exceeded limits
//! - `calm`: effects on callers while Redis or the network to it is broken
//! - `unhelpful_servers`: servers that are full, closed, moved or of another kind, and proxies that know few commands
//! - `secrets`: passwords never appear in output, whatever goes wrong
//! - `redis_tls`: TLS between tollgate and Redis
//! - `reload`: rules that change under a running server
//! - `schema`: the JSON Schema of rule files against the program's own reading of them
//! - `shell`: completions and manual pages
//! - `second_reader`: rule files as an independent YAML reader sees them
//! - `xds`: rules that a control plane pushes
//! - `xds_caches`: the same with each cache of go-control-plane
//! - `xds_errors`: reports on the control plane, in the log and as a metric
//! - `drain`: the end of the server
//! - `unwritable_log`: a log, and output of commands, that cannot be written
//! - `golden`: cases of requests and rules, one file each
//! - `drop_in`: started as platforms start envoyproxy/ratelimit, and next to it on one Redis
//! - `envoy_gateway`: as the rate limit service of Envoy Gateway
//! - `prometheus`: a real Prometheus and promtool read the page
//! - `statistics`: statsd, DogStatsD, Prometheus and `/stats`
//! - `counters`: the hits of counters, shown and changed through the debug port
//! - `decision_log`: a line for each decision
//! - `hostile`: values of requests that are HTML, line breaks or long, wherever they are shown
//! - `observe`: snapshots of decisions and top talkers, on the debug port
//! - `browser`: the page of the debug port, in a real browser
//! - `traces`: spans, read with OpenTelemetry's own messages
//! - `grpcurl`: reflection and health, seen with grpcurl
//! - `transport`: sockets, ports, and connections of clients that are malicious, slow or gone
//! - `fuzz`: replays the inputs that fuzzing found worth keeping
//! - `clients`: the gRPC libraries of callers, over sockets, ports and TLS, compressed or not, under any name
//! - `held`: the memory that clients together can make the process hold
//! - `attack`: attacks on the ports, and their effects on other clients
//! - `flood`: new values without end, in memory
//! - `tls`: TLS on the gRPC port: verified clients, and certificates that change
//! - `openapi`: the document of the HTTP ports, and their replies, also to requests that schemathesis makes of it
//! - `http`: health, metrics and the rules in use over HTTP
//! - `papers`: pages that the program itself can write
//! - `documents`: links, the index and the length of the documents
//! - `envoy`: a real Envoy calls, and obeys
//! - `lint_envoy`: findings in Envoy configurations, and what one request makes of them
//! - `upgrade`: counters, flags and metrics of earlier versions
//! - `deploy`: the files in `deploy/`, run unchanged, and the programs that make packages of them
//! - `examples`: the rules in `config/` and in the documentation
//! - `first_limit`: the newcomer's page, followed word by word
//! - `recipes`: each recipe of its page, run by a real Envoy
//! - `evidence`: `evidence.txt` names tests that are there
//! - `dependencies`: advisories against the dependencies and the images of others, and licences
//! - `support`: starts and stops everything else

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, also in what it calls"
)]

mod algorithms;
mod ask_command;
mod attack;
mod bad_input;
mod browser;
mod calm;
mod check;
mod cli;
mod clients;
mod clocks;
mod cluster;
mod cost;
mod counters;
mod decision_log;
mod dependencies;
mod deploy;
mod documents;
mod drain;
mod drop_in;
mod environment;
mod envoy;
mod envoy_gateway;
mod evidence;
mod examples;
mod explain;
mod first_limit;
mod flood;
mod fuzz;
mod golden;
mod grpcurl;
mod healthcheck;
mod held;
mod histories;
mod hostile;
mod http;
mod lint_envoy;
mod many;
mod observe;
mod on_loss;
mod openapi;
mod papers;
mod prometheus;
mod recipes;
mod redis;
mod redis_tls;
mod refusals;
mod reload;
mod reservations;
mod schema;
mod seams;
mod second_reader;
mod secrets;
mod sentinel;
mod shell;
mod slices;
mod slots;
mod statistics;
mod store;
mod support;
mod tls;
mod traces;
mod transport;
mod unhelpful_servers;
mod unused_answers;
mod unwritable_log;
mod upgrade;
mod xds;
mod xds_caches;
mod xds_errors;
