//! Bounds on what clients can send, and on what they can make the process hold.

use std::time::Duration;

use clap::Args;

use super::shapes::ArgShape as _;
use super::values::{number, some_time};

/// Most descriptors in a request. Envoy sends one for each of its actions.
pub(crate) const MAX_DESCRIPTORS: usize = 1000;

/// Most entries in a descriptor.
pub(crate) const MAX_ENTRIES: usize = 100;

/// Bounds on requests and connections.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Bounds on requests")]
pub(crate) struct Bounds {
    /// Largest message in bytes; by default four times the headers that Envoy accepts
    #[arg(long, env = "TOLLGATE_MAX_MESSAGE_BYTES", text = ("N", "262144"), value_parser = number::<usize>(1..))]
    pub max_message_bytes: usize,

    /// How long a message, or a body at /json, may take to arrive
    #[arg(long, env = "TOLLGATE_MESSAGE_TIMEOUT", value_parser = some_time, time = "10s")]
    pub message_timeout: Duration,

    /// Memory budget for all clients together, in bytes: incoming messages, unread replies, unfinished headers, pages.
    /// Above it, the connection that has held the most for the longest is closed, or new input is refused
    /// (RESOURCE_EXHAUSTED; 503 over HTTP) [default: 32 MiB, or the share of --max-memory-bytes: a tenth or more]
    #[arg(long, env = "TOLLGATE_MAX_HELD_BYTES", value_parser = number::<usize>(1 << 20..), value_name = "N")]
    pub max_held_bytes: Option<usize>,

    /// Longest domain, key or value in bytes; Envoy's own bound on all headers is 60 KiB
    #[arg(long, env = "TOLLGATE_MAX_TEXT_BYTES", text = ("N", "65536"), value_parser = number::<usize>(1..))]
    pub max_text_bytes: usize,

    /// Most gRPC connections, unless the limit of open files allows fewer. To make room for new ones, the oldest
    /// without a call in their first 100 ms are closed, or else the one without a call for the longest, at least a
    /// second; if there is none, new ones wait [default: 10000, or as many as fit in the share of --max-memory-bytes: a
    /// tenth or more]
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS", value_parser = number::<usize>(1..=1_000_000), value_name = "N")]
    pub max_connections: Option<usize>,

    /// Most concurrent calls on one connection
    #[arg(long, env = "TOLLGATE_MAX_STREAMS", text = ("N", "1024"), value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub max_streams: u32,
}
