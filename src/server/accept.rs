//! Accepts gRPC connections, passes them to the workers in turn, and closes those that make no use of their place.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, time::interval};

use crate::{
    observe::metrics::CutOff,
    server::ports::{Detached, GrpcListener},
    service::held::{HeldBytes, OpenConnection},
};

/// The longest time until the first call of a connection, TLS handshake and HTTP/2 preface included.
const FIRST_CALL: Duration = Duration::from_secs(10);

/// The longest time until the end of its TLS handshake, less than that: a handshake that is given up is counted.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(9);

/// Time between two searches for connections without a call.
const SEARCH: Duration = Duration::from_secs(1);

/// Most connections that were closed and are not gone, because their workers have not noticed. Each has an open file.
const CLOSING: usize = 32;

/// How long a new connection then waits at a time.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a connection keeps its place from its beginning and from each call, unless all had a call as late: a new
/// one can then call in a crowd.
pub(super) const LEAST_TIME: Duration = Duration::from_millis(20);

/// An accepted connection on its way to a worker.
pub(super) struct Arrival {
    pub(super) stream: Detached,
    pub(super) connection: Arc<OpenConnection>,
}

/// The connections that were accepted, in order.
struct AcceptedConnections {
    most: usize,
    all: Vec<Weak<OpenConnection>>,
}

/// Accepts connections until it is dropped. An Envoy opens one for each of its threads; if the kernel chose the worker,
/// all of them could end up on one core.
pub(super) async fn accept(
    listener: GrpcListener,
    workers: Vec<mpsc::Sender<Arrival>>,
    most: usize,
    held: Arc<HeldBytes>,
) {
    let mut connections = AcceptedConnections {
        most,
        all: Vec::new(),
    };
    let mut turns = workers.iter().cycle();
    let mut searches = interval(SEARCH);
    loop {
        let stream = tokio::select! {
            stream = listener.accept_next() => stream,
            _ = searches.tick() => {
                connections.close_unused();
                continue;
            }
            () = held.is_over.notified() => {
                connections.close_largest(held.excess());
                continue;
            }
        };
        let (Ok(stream), Some(worker)) = (stream.detach(), turns.next()) else {
            continue;
        };
        connections.make_room().await;
        let connection = held.open();
        connections.all.push(Arc::downgrade(&connection));
        // The end of a worker ends the process anyway.
        let _ = worker.send(Arrival { stream, connection }).await;
    }
}

impl AcceptedConnections {
    /// The connections that are neither closed nor about to be.
    fn open(&self) -> impl Iterator<Item = Arc<OpenConnection>> {
        let all = self.all.iter().filter_map(Weak::upgrade);
        all.filter(|connection| !connection.closed.is_cancelled())
    }

    /// If all places are taken, closes the oldest of the connections that never had a call, or else the one without a
    /// call for the longest.
    async fn make_room(&mut self) {
        if self.all.len() < self.most {
            return;
        }
        self.forget_ended();
        while self.all.len() >= self.most + CLOSING {
            tokio::time::sleep(PAUSE).await;
            self.forget_ended();
        }
        if self.open().count() < self.most {
            return;
        }
        let last_resort = Instant::now() + LEAST_TIME;
        loop {
            let now = Instant::now();
            let had_its_time = |connection: &Arc<OpenConnection>| {
                let used = connection.last_call().unwrap_or(connection.opened);
                used + LEAST_TIME <= now || last_resort <= now
            };
            let idlest = self.open().filter(had_its_time).min_by_key(|connection| {
                // One without a call is less than all that had one.
                (connection.last_call(), connection.opened)
            });
            if let Some(connection) = idlest {
                return connection.close(CutOff::ConnectionLimit);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn forget_ended(&mut self) {
        self.all.retain(|connection| connection.strong_count() > 0);
    }

    /// Closes the connections whose first call does not come.
    fn close_unused(&mut self) {
        self.forget_ended();
        let is_late = |connection: &Arc<OpenConnection>| {
            connection.last_call().is_none() && connection.opened.elapsed() >= FIRST_CALL
        };
        for connection in self.open().filter(is_late) {
            connection.closed.cancel();
        }
    }

    /// Closes the connections that hold the most, until the others hold `excess` bytes less.
    fn close_largest(&self, excess: u64) {
        let all = self.all.iter().filter_map(Weak::upgrade);
        let (closed, mut open): (Vec<_>, Vec<_>) = all.partition(|one| one.closed.is_cancelled());
        let leaving: u64 = closed.iter().map(|connection| connection.held()).sum();
        let mut left = excess.saturating_sub(leaving);
        // Each is asked once: the numbers change meanwhile.
        open.sort_by_cached_key(|connection| connection.held());
        while left > 0
            && let Some(largest) = open.pop()
        {
            left = left.saturating_sub(largest.held());
            largest.close(CutOff::ConnectionNoRoom);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::Metrics;

    #[tokio::test]
    async fn the_place_of_a_new_connection_is_that_of_one_without_a_call_or_of_the_idlest() {
        let held = HeldBytes::new(Arc::<Metrics>::default());
        let [idle, busy, silent, new] = [(); 4].map(|()| held.open());
        idle.called();
        while busy.last_call() <= idle.last_call() {
            busy.called();
        }
        let mut connections = AcceptedConnections {
            most: 4,
            all: [&idle, &busy, &silent, &new].map(Arc::downgrade).to_vec(),
        };
        for closed in [&silent, &new, &idle] {
            connections.make_room().await;
            assert!(closed.closed.is_cancelled());
            assert!(!busy.closed.is_cancelled());
            connections.most -= 1;
        }
        // There is room.
        connections.most = 2;
        connections.make_room().await;
        assert!(!busy.closed.is_cancelled());
    }
}
