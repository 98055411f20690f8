//! Counts of TLS handshakes that failed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{foundation::sample::SampleWriter, net::tls::refusal::HandshakeFailure};

/// Handshakes with clients that failed, by reason.
#[derive(Debug, Default)]
pub struct Handshakes([AtomicU64; HandshakeFailure::ALL.len()]);

impl Handshakes {
    /// Counts one handshake that failed.
    pub fn count(&self, failure: HandshakeFailure) {
        self.0[failure as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        for failure in HandshakeFailure::ALL {
            let name = format!("tollgate.tls_handshakes_failed_total.{}", failure.name());
            list.counter(name, self.0[failure as usize].load(Relaxed));
        }
    }
}
