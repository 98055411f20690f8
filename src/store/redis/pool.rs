//! Connections to Redis servers; those of the workers are pooled by bb8.
//!
//! bb8 bounds how many connections a worker has to a node, opens them in the background, and replaces broken
//! ones. Its other features are off, because each would cost a figure of `docs/evidence/chaos.md` or time of a
//! decision:
//!
//! - *A check-out for each batch.* A batcher keeps its connection until it breaks, and reads from it while there is
//!   nothing to send: so a killed server is noticed within milliseconds, before a request is sent to it. bb8 does not
//!   read from idle connections. As none is idle in the pool, an idle time-out and a test at check-out would do
//!   nothing.
//! - *Retries.* bb8 pauses for up to 400 ms before it connects again. Here a failure opens the circuit breaker, and the
//!   probe, which is shared by all workers, pauses for 250 ms at most.
//! - *Errors.* bb8 gives the failure of an attempt to its error sink, and lets callers wait for its time-out. The sink
//!   below notifies them at once.
//! - *Statistics.* Those of bb8 end with a pool, and pools end with nodes; our counters are never reset.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bb8_redis::bb8::{ErrorSink, ManageConnection, Pool, PooledConnection};
use tokio::{sync::watch, time::Instant};

use super::{connection::Connection, node::Node, stats::RedisStats};
use crate::{
    net::{
        connect::{BoxedStream, connect},
        endpoint::Endpoint,
        tls::{ServerName, client::ClientTls},
    },
    store::redis::{
        batch::packed::PackedCommands,
        failure::NodeFailure,
        topology::address::{BadUrl, Login, Secret},
        wait::within,
    },
};

/// The most connections of a worker to a node beside the one in use: each waits for a late answer to leased hits.
pub(super) const MAX_FOLLOWED: u32 = 16;

/// Opens connections to servers of one kind, at any endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    /// Of the URL.
    login: Login,
    /// Used if the URL has no password.
    auth: Option<Secret>,
    is_tls: bool,
    tls: ClientTls,
    /// How long a connection may take to come up, and a question on it to be answered. Decisions do not
    /// wait for that; they end at their own deadline.
    pub(super) timeout: Duration,
}

impl Connector {
    /// # Errors
    ///
    /// If a file cannot be used now.
    pub(super) fn new(
        login: Login,
        auth: Option<Secret>,
        is_tls: bool,
        tls: ClientTls,
        timeout: Duration,
    ) -> Result<Self, BadUrl> {
        let connector = Self {
            login,
            auth,
            is_tls,
            tls,
            timeout,
        };
        if let Some(auth) = &connector.auth {
            auth.read()?;
        }
        if is_tls {
            connector.tls.config().map_err(BadUrl::of_tls)?;
        }
        Ok(connector)
    }

    /// Opens a connection that is ready for commands.
    ///
    /// # Errors
    ///
    /// The node failure, as far as it can be seen from outside.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> Result<Connection, NodeFailure> {
        self.connect_in(self.timeout, endpoint).await
    }

    /// Opens a connection that is ready for commands, in less than `time`.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    pub(super) async fn connect_in(
        &self,
        time: Duration,
        endpoint: &Endpoint,
    ) -> Result<Connection, NodeFailure> {
        let is_in_handshake = AtomicBool::new(false);
        let connecting = async {
            let stream = self.stream(endpoint, &is_in_handshake).await?;
            let mut connection = Connection::new(stream, self.is_tls);
            let greeted = self.greet(&mut connection).await;
            greeted.map_err(NodeFailure::after_coming_up)?;
            Ok(connection)
        };
        let connected = within(time.min(self.timeout), connecting).await;
        connected.unwrap_or_else(|| {
            Err(if is_in_handshake.load(Relaxed) {
                let why = "no TLS handshake in time: does this port speak TLS?";
                NodeFailure::Unreachable(why.to_owned())
            } else {
                NodeFailure::Silent
            })
        })
    }

    async fn stream(
        &self,
        endpoint: &Endpoint,
        is_in_handshake: &AtomicBool,
    ) -> Result<BoxedStream, NodeFailure> {
        let failed = |error: io::Error| NodeFailure::of_failure(&error);
        let stream = connect(endpoint).await.map_err(failed)?;
        if !self.is_tls {
            return Ok(stream.boxed());
        }
        // Read again for each connection, because certificates change. They are small, and connections
        // are rare.
        let config = self.tls.config().map_err(BadUrl::of_tls);
        let config = config.map_err(|error| NodeFailure::Unreachable(error.reason))?;
        let name = ServerName::try_from(endpoint.host().to_owned())
            .map_err(|error| NodeFailure::Unreachable(error.to_string()))?;
        is_in_handshake.store(true, Relaxed);
        let stream = stream.with_tls(config, name).await.map_err(failed);
        is_in_handshake.store(false, Relaxed);
        stream
    }

    /// Sends the credentials and selects the database.
    async fn greet(&self, connection: &mut Connection) -> Result<(), NodeFailure> {
        let Login {
            mut user,
            mut password,
            database,
        } = self.login.clone();
        if let (Some(auth), None) = (&self.auth, &password) {
            let auth = auth.read();
            let auth = auth.map_err(|error| NodeFailure::Unreachable(error.reason))?;
            match auth.split_once(':') {
                Some((own, word)) => (user, password) = (Some(own.into()), Some(word.into())),
                None => password = Some(auth),
            }
        }
        if user.is_some() || password.is_some() {
            let mut words = vec![&b"AUTH"[..]];
            words.extend(user.as_deref().map(str::as_bytes));
            // A user without a password may be one that takes any.
            words.push(password.as_deref().unwrap_or_default().as_bytes());
            check(connection, &words).await?;
        }
        if database != 0 {
            let database = database.to_string();
            check(connection, &[b"SELECT", database.as_bytes()]).await?;
        }
        Ok(())
    }
}

/// Sends one command of a greeting, which has to succeed.
async fn check(connection: &mut Connection, words: &[&[u8]]) -> Result<(), NodeFailure> {
    let replies = connection.ask(&PackedCommands::one(words)).await?;
    let refused = replies.first().and_then(NodeFailure::of_greeting);
    refused.map_or(Ok(()), Err)
}

/// Opens a worker's connections to one node.
#[derive(Clone, Debug)]
pub(super) struct ConnectionFactory {
    pub(super) connector: Arc<Connector>,
    pub(super) node: Arc<Node>,
    pub(super) stats: Arc<RedisStats>,
}

/// Notifies callers that wait for a connection when one did not come up. The pool itself would let them
/// wait for its timeout.
#[derive(Clone, Debug)]
struct FailureSink(watch::Sender<Option<NodeFailure>>);

impl ErrorSink<NodeFailure> for FailureSink {
    fn sink(&self, failure: NodeFailure) {
        self.0.send_replace(Some(failure));
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<NodeFailure>> {
        Box::new(self.clone())
    }
}

impl ConnectionFactory {
    /// A pool of one connection in use, beside those that are kept for late answers. It connects in the background and
    /// never fails to be made.
    pub(super) fn pool(self) -> ConnectionPool {
        let failures = FailureSink(watch::Sender::default());
        let failed = failures.0.subscribe();
        let timeout = self.connector.timeout;
        let pool = Pool::builder()
            .max_size(1 + MAX_FOLLOWED)
            // Failures are reported as they come, after less than this.
            .connection_timeout(2 * timeout)
            // A caller that needs a connection asks again; until then failures are reported as they
            // come.
            .retry_connection(false)
            .error_sink(Box::new(failures))
            // A connection knows whether it is broken: testing it would cost a round trip.
            .test_on_check_out(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .build_unchecked(self);
        ConnectionPool { pool, failed }
    }
}

impl ManageConnection for ConnectionFactory {
    type Connection = WorkerConnection;
    type Error = NodeFailure;

    async fn connect(&self) -> Result<WorkerConnection, NodeFailure> {
        let connection = self.connector.connect(&self.node.endpoint).await?;
        self.stats.connections_opened.fetch_add(1, Relaxed);
        self.node.stats.connections.fetch_add(1, Relaxed);
        Ok(WorkerConnection {
            connection,
            came_up: Instant::now(),
            knows_script: false,
            batches: 0,
            stats: self.stats.clone(),
        })
    }

    /// Not used: see [`Pool::builder`] above.
    async fn is_valid(&self, _connection: &mut WorkerConnection) -> Result<(), NodeFailure> {
        Ok(())
    }

    fn has_broken(&self, worker_connection: &mut WorkerConnection) -> bool {
        worker_connection.connection.is_broken
    }
}

/// The connections of one worker to one node.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPool {
    pool: Pool<ConnectionFactory>,
    failed: watch::Receiver<Option<NodeFailure>>,
}

pub(super) type PooledWorkerConnection = PooledConnection<'static, ConnectionFactory>;

impl ConnectionPool {
    /// A connection for exclusive use, as soon as there is one.
    ///
    /// # Errors
    ///
    /// The failure, as soon as it is known that no connection comes up.
    pub(super) async fn get(&mut self) -> Result<PooledWorkerConnection, NodeFailure> {
        self.failed.mark_unchanged();
        tokio::select! {
            connection = self.pool.get_owned() => connection.map_err(|error| match error {
                bb8_redis::bb8::RunError::User(failure) => failure,
                bb8_redis::bb8::RunError::TimedOut => NodeFailure::Silent,
            }),
            // The pool lives as long as this value, and the sender as long as the pool.
            _ = self.failed.changed() => {
                let failure = self.failed.borrow_and_update().clone();
                Err(failure.unwrap_or(NodeFailure::Silent))
            }
        }
    }
}

/// A connection of a worker.
#[derive(Debug)]
pub(super) struct WorkerConnection {
    pub(super) connection: Connection,
    pub(super) came_up: Instant,
    /// Whether its server was sent the text of the script.
    pub(super) knows_script: bool,
    /// How many batches it has carried.
    pub(super) batches: u64,
    stats: Arc<RedisStats>,
}

impl Drop for WorkerConnection {
    fn drop(&mut self) {
        self.stats.connections_closed.fetch_add(1, Relaxed);
    }
}
