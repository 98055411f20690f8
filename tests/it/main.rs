//! tollgate as its users meet it: real processes, real Redis, real Envoy. In the order of a tour:
//!
//! - `rls`: requests and replies over gRPC
//! - `support`: starts and stops everything else

mod rls;
mod support;
