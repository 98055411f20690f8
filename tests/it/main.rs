//! tollgate as its users meet it: real processes, real Redis, real Envoy. In the order of a tour:
//!
//! - `cli`: the command line: `serve`, `check`, `ask` and their settings
//! - `rls`: requests and replies over gRPC
//! - `bad_input`: what the server refuses, at its start and on the wire
//! - `store`: what every store keeps to, in memory and in Redis
//! - `algorithms`: every way of counting against a naive model of it
//! - `allocations`: how often a decision asks for memory
//! - `many`: every way of counting under load from many clients of many replicas
//! - `redis`: few commands, exact counts for many clients, and Redis gone or stuck
//! - `on_loss`: what rules answer while Redis does not
//! - `sentinel`: a Redis that sentinels watch over, and failovers
//! - `cluster`: a Redis Cluster: one batch a node, slots that move, masters that die
//! - `seams`: one request over two places, and what each worker knows to be over
//! - `calm`: what callers see while Redis or the way to it is broken
//! - `secrets`: passwords are told nobody, whatever goes wrong
//! - `redis_tls`: TLS between tollgate and Redis
//! - `reload`: rules that change under a running server
//! - `xds`: rules that a control plane pushes
//! - `drain`: how the server ends
//! - `golden`: statements on requests and rules, a file each
//! - `drop_in`: started as platforms start envoyproxy/ratelimit, and beside it on one Redis
//! - `envoy_gateway`: in the place that Envoy Gateway has for a rate limit service
//! - `prometheus`: a real Prometheus and promtool read the page
//! - `statistics`: statsd, DogStatsD, Prometheus and `/stats`
//! - `traces`: spans, read with OpenTelemetry's own messages
//! - `grpcurl`: what a stranger finds out by reflection, and health
//! - `transport`: sockets, ports, and connections of clients that mean harm, or are gone
//! - `h2spec`: what the RFCs of HTTP/2 allow and forbid, frame by frame, beside a server of stock tonic
//! - `fuzz`: bytes that fuzzing has found worth keeping, tried again
//! - `clients`: what callers are written with asks, over sockets, ports and TLS, compressed or not
//! - `held`: how much clients can make the process hold, in sum
//! - `attack`: attacks on the doors, and what others notice of them
//! - `c_core`: Python's grpcio asks, over sockets and ports and under any name
//! - `tls`: TLS on the gRPC port: who is let in, and certificates that change
//! - `http`: health, metrics and the rules in use over HTTP
//! - `papers`: pages that the program itself can write
//! - `envoy`: a real Envoy asks, and obeys
//! - `lint_envoy`: the traps of Envoy configurations
//! - `deploy`: what is in `deploy/`, run as it stands
//! - `examples`: the rules in `config/` and in the papers
//! - `first_limit`: the newcomer's page, followed word by word
//! - `dependencies`: what tollgate is built with, against what is known of it
//! - `support`: starts and stops everything else

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, also in what it calls"
)]

mod algorithms;
mod allocations;
mod attack;
mod bad_input;
mod c_core;
mod calm;
mod cli;
mod clients;
mod cluster;
mod dependencies;
mod deploy;
mod drain;
mod drop_in;
mod envoy;
mod envoy_gateway;
mod examples;
mod first_limit;
mod fuzz;
mod golden;
mod grpcurl;
mod h2spec;
mod held;
mod histories;
mod http;
mod lint_envoy;
mod many;
mod on_loss;
mod papers;
mod prometheus;
mod redis;
mod redis_tls;
mod reload;
mod rls;
mod seams;
mod secrets;
mod sentinel;
mod statistics;
mod store;
mod support;
mod tls;
mod traces;
mod transport;
mod xds;
