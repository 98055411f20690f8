//! tollgate

pub mod admin;
pub mod ask;
pub mod config;
pub mod counter;
pub mod decision;
pub mod grpc;
pub mod limit;
pub mod limiter;
pub mod log;
pub mod matcher;
pub mod metadata;
pub mod metrics;
pub mod plan;
pub mod reload;
pub mod request;
pub mod server;
pub mod settings;
pub mod store;
pub mod window;
