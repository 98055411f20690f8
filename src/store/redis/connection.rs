//! Connections to Redis servers; those of the workers are pooled by bb8.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::{
    bb8::{ErrorSink, ManageConnection, Pool, PooledConnection},
    redis::{
        AsyncConnectionConfig, Client, IntoConnectionInfo as _, Pipeline, RedisConnectionInfo,
        RedisError, Value,
        aio::{ConnectionLike as _, MultiplexedConnection},
    },
};
use tokio::sync::watch;

use super::{
    Meters,
    address::{BadUrl, Place, Secret, Tls},
    node::Node,
    pipeline::load_step,
    trouble::Trouble,
};

/// Opens connections to servers of one kind, wherever they are.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    /// Credentials of the URL, and the database.
    settings: RedisConnectionInfo,
    /// Used where the URL has no password.
    auth: Option<Secret>,
    is_tls: bool,
    tls: Tls,
    /// How long a connection may take to come up, and a question on it to be answered. Decisions
    /// do not wait for it, they end at their own deadline.
    pub(super) timeout: Duration,
}

impl Connector {
    /// # Errors
    ///
    /// If a file cannot be read now.
    pub(super) fn new(
        settings: RedisConnectionInfo,
        auth: Option<Secret>,
        is_tls: bool,
        tls: Tls,
        timeout: Duration,
    ) -> Result<Self, BadUrl> {
        let connector = Self {
            settings,
            auth,
            is_tls,
            tls,
            timeout,
        };
        if let Some(auth) = &connector.auth {
            auth.read()?;
        }
        if is_tls {
            connector.tls.read()?;
        }
        Ok(connector)
    }

    /// Reads what has to be read from files anew: passwords and certificates change. They are
    /// small, and connections are rare.
    fn client(&self, place: &Place) -> Result<Client, Trouble> {
        let unreadable = |error: BadUrl| Trouble::Unreachable(error.reason);
        let unusable = |error: RedisError| Trouble::Unreachable(error.to_string());
        let mut settings = self.settings.clone();
        if let (Some(auth), None) = (&self.auth, settings.password()) {
            let auth = auth.read().map_err(unreadable)?;
            settings = match auth.split_once(':') {
                Some((user, password)) => settings.set_username(user).set_password(password),
                None => settings.set_password(auth),
            };
        }
        let info = place.address(self.is_tls).into_connection_info();
        let info = info.map_err(unusable)?.set_redis_settings(settings);
        let tcp_settings = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp_settings);
        if !self.is_tls {
            return Client::open(info).map_err(unusable);
        }
        let certificates = self.tls.read().map_err(unreadable)?;
        let client = Client::build_with_tls(info, certificates).map_err(unusable)?;
        // The library forgets this one when it reads the certificates, so it comes last.
        let mut info = client.get_connection_info().clone();
        let mut address = info.addr().clone();
        address.set_danger_accept_invalid_hostnames(self.tls.any_host);
        info = info.set_addr(address);
        Client::open(info).map_err(unusable)
    }

    /// A connection of its own.
    ///
    /// # Errors
    ///
    /// What is wrong with the server, as far as can be told from outside.
    pub(super) async fn connect(&self, place: &Place) -> Result<MultiplexedConnection, Trouble> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            // Whoever asks has a deadline; a second timer a batch would be waste.
            .set_response_timeout(None);
        let client = self.client(place)?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(Trouble::of_failure(&error)),
            Err(_elapsed) => Err(Trouble::Silent),
        }
    }
}

/// Makes a worker's connections to one node.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) connector: Arc<Connector>,
    pub(super) node: Arc<Node>,
    pub(super) meters: Arc<Meters>,
}

/// Tells whoever waits for a connection that one did not come up. The pool itself would let them
/// wait for its timeout.
#[derive(Clone, Debug)]
struct Failures(watch::Sender<Option<Trouble>>);

impl ErrorSink<Trouble> for Failures {
    fn sink(&self, trouble: Trouble) {
        self.0.send_replace(Some(trouble));
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<Trouble>> {
        Box::new(self.clone())
    }
}

impl Door {
    /// A pool of at most `connections`. It connects in the background and never fails to be made.
    pub(super) fn pool(self, connections: u32) -> ConnectionPool {
        let failures = Failures(watch::Sender::default());
        let failed = failures.0.subscribe();
        let timeout = self.connector.timeout;
        let pool = Pool::builder()
            .max_size(connections)
            .connection_timeout(timeout)
            // Whoever needs a connection asks again; until then failures are told as they come.
            .retry_connection(false)
            .error_sink(Box::new(failures))
            // A connection knows whether it broke: asking it again would cost a round trip.
            .test_on_check_out(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .build_unchecked(self);
        ConnectionPool { pool, failed }
    }
}

impl ManageConnection for Door {
    type Connection = Connection;
    type Error = Trouble;

    async fn connect(&self) -> Result<Connection, Trouble> {
        // Read first: what changes while it comes up makes it one of before.
        let era = self.node.breaker.era();
        let mut inner = self.connector.connect(&self.node.place).await?;
        let loading = tokio::time::timeout(self.connector.timeout, load(&mut inner));
        loading.await.unwrap_or(Err(Trouble::Silent))?;
        self.meters.connections_opened.fetch_add(1, Relaxed);
        self.node.meters.connections.fetch_add(1, Relaxed);
        Ok(Connection {
            inner,
            era,
            is_broken: false,
            meters: self.meters.clone(),
        })
    }

    /// Not asked: see [`Pool::builder`] above.
    async fn is_valid(&self, _connection: &mut Connection) -> Result<(), Trouble> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_broken || connection.era != self.node.breaker.era()
    }
}

/// The connections of one worker to one node.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPool {
    pool: Pool<Door>,
    failed: watch::Receiver<Option<Trouble>>,
}

pub(super) type Pooled = PooledConnection<'static, Door>;

impl ConnectionPool {
    /// A connection that nobody else uses, as soon as there is one.
    ///
    /// # Errors
    ///
    /// What went wrong, as soon as it is known that none comes up.
    pub(super) async fn get(&mut self) -> Result<Pooled, Trouble> {
        self.failed.mark_unchanged();
        tokio::select! {
            connection = self.pool.get_owned() => connection.map_err(|error| match error {
                bb8_redis::bb8::RunError::User(trouble) => trouble,
                bb8_redis::bb8::RunError::TimedOut => Trouble::Silent,
            }),
            // The pool lives as long as this, and the sender with it.
            _ = self.failed.changed() => {
                let trouble = self.failed.borrow_and_update().clone();
                Err(trouble.unwrap_or(Trouble::Silent))
            }
        }
    }
}

/// A connection that remembers whether it can still be used.
#[derive(Debug)]
pub(super) struct Connection {
    inner: MultiplexedConnection,
    /// The breaker's when it was made.
    pub(super) era: u64,
    is_broken: bool,
    meters: Arc<Meters>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.meters.connections_closed.fetch_add(1, Relaxed);
    }
}

impl Connection {
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// It must not be used again.
    pub(super) fn abandon(&mut self) {
        self.is_broken = true;
    }

    /// Sends `pipeline` and returns one reply for each command; error replies are values.
    ///
    /// If the future is dropped before it ends the connection counts as broken, for nobody knows
    /// how far the server came.
    pub(super) async fn send(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.is_broken = true;
        let replies = send(&mut self.inner, pipeline).await?;
        self.is_broken = false;
        Ok(replies)
    }
}

/// Makes the script known, so that no request has to find out that it is not. A server that will not
/// take it says so again when it is asked to run it.
pub(super) async fn load(connection: &mut MultiplexedConnection) -> Result<(), Trouble> {
    let mut pipeline = Pipeline::with_capacity(1);
    pipeline.add_command(load_step());
    let sent = send(connection, &pipeline).await;
    sent.map(|_| ())
        .map_err(|error| Trouble::of_failure(&error))
}

/// Sends `pipeline` on any connection; error replies are values.
pub(super) async fn send(
    connection: &mut MultiplexedConnection,
    pipeline: &Pipeline,
) -> Result<Vec<Value>, RedisError> {
    connection
        .req_packed_commands(pipeline, 0, pipeline.len())
        .await
}
