//! Performs TLS handshakes with clients, counts those that fail, and logs them now and then.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{net::TcpStream, time::Instant};

use crate::{
    foundation::log_throttle::LogThrottle,
    net::tls::{
        listener::{ListenerTls, TlsSession},
        refusal::HandshakeFailure,
    },
    observe::metrics::Metrics,
};

/// Counts and logs failed handshakes, for all workers.
#[derive(Debug)]
pub(super) struct HandshakeLog {
    metrics: Arc<Metrics>,
    /// A throttle for each kind of failure, so that a port scanner does not hide an expired certificate.
    throttles: [LogThrottle; HandshakeFailure::ALL.len()],
}

impl HandshakeLog {
    pub(super) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            throttles: Default::default(),
        })
    }

    /// Performs the handshake until `deadline`. Returns `None` if the client closes the connection without a byte, as
    /// health checks over TCP do.
    ///
    /// # Errors
    ///
    /// If the client is refused, or breaks off the handshake.
    pub(super) async fn accept(
        &self,
        tls: ListenerTls,
        stream: TcpStream,
        deadline: Instant,
    ) -> io::Result<Option<TlsSession>> {
        let peer = stream.peer_addr();
        if stream.peek(&mut [0]).await? == 0 {
            return Ok(None);
        }
        let accepted = tokio::time::timeout_at(deadline, tls.accept(stream)).await;
        let accepted = accepted.unwrap_or_else(|late| Err(late.into()));
        accepted.map(Some).inspect_err(|error| {
            self.record(peer.ok(), error);
        })
    }

    fn record(&self, peer: Option<SocketAddr>, error: &io::Error) {
        let failure = HandshakeFailure::of(error);
        self.metrics.handshakes.count(failure);
        if self.throttles[failure as usize].may_log() {
            let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
            tracing::warn!(
                peer,
                reason = failure.name(),
                %error,
                "a TLS handshake failed: {}; Envoy lets requests pass meanwhile unless failure_mode_deny is set",
                failure.explanation()
            );
        }
    }
}
