//! Connections to one Redis, pooled by bb8.

use std::{
    convert::Infallible,
    fmt, fs, mem,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::{
    bb8::{ErrorSink, ManageConnection, Pool, PooledConnection},
    redis::{
        self, AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionInfo,
        IntoConnectionInfo as _, Pipeline, RedisError, TlsCertificates, Value,
        aio::{ConnectionLike as _, MultiplexedConnection},
    },
};

use tokio::sync::watch;

use super::{Meters, Options, pipeline::load_step};

/// The text is not the address of a Redis. Says what is wrong without repeating it: addresses
/// hold passwords.
#[derive(Debug, thiserror::Error)]
#[error(
    "not a Redis address ({reason}); expected redis://[user:password@]host:port[/database], host:port or a socket path"
)]
pub struct BadUrl {
    reason: String,
}

/// How long to wait between two questions whether Redis is there.
const PROBE: Duration = Duration::from_millis(500);

/// Where a Redis is, and how to get in.
#[derive(Clone)]
pub struct Address {
    /// `redis://…`, `host:port` or the path of a socket.
    pub url: String,
    /// A password or `user:password`, used where the URL has none.
    pub auth: Option<String>,
    /// How long a connection may take to come up.
    pub timeout: Duration,
    /// How to speak TLS; a `rediss://` URL does even without.
    pub tls: Option<Tls>,
}

/// TLS to Redis.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Trusted instead of the public roots.
    pub ca: Option<PathBuf>,
    /// Certificate chain and key to show to the server.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Take a certificate that is good but for another host.
    pub any_host: bool,
}

impl fmt::Debug for Address {
    /// Leaves out what may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

/// Makes connections to the Redis at one address.
#[derive(Clone, Debug)]
pub struct Connections {
    client: Arc<Client>,
    /// How long a connection may take to come up. Decisions do not wait for it, they end at their
    /// own deadline.
    timeout: Duration,
    meters: Arc<Meters>,
}

/// Tells whoever waits for a connection that one did not come up. The pool itself would let them
/// wait for its timeout.
#[derive(Clone, Debug)]
struct Failures(watch::Sender<String>);

impl ErrorSink<RedisError> for Failures {
    fn sink(&self, error: RedisError) {
        self.0.send_replace(error.to_string());
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}

impl Connections {
    /// # Errors
    ///
    /// If `address` cannot be read; whether somebody answers there is not asked.
    pub fn new(address: &Address, meters: Arc<Meters>) -> Result<Self, BadUrl> {
        let Address {
            url,
            auth,
            timeout,
            tls,
        } = address;
        let bad = |error: RedisError| BadUrl {
            reason: error.to_string().to_lowercase(),
        };
        let url = with_scheme(url, tls.is_some());
        let info: ConnectionInfo = url.into_connection_info().map_err(bad)?;
        // The library would name itself with two more commands on every connection.
        let mut redis_settings = info.redis_settings().clone().set_skip_set_lib_name();
        if let (Some(auth), None) = (auth, redis_settings.password()) {
            redis_settings = match auth.split_once(':') {
                Some((user, password)) => redis_settings.set_username(user).set_password(password),
                None => redis_settings.set_password(auth),
            };
        }
        let tcp_settings = info.tcp_settings().clone().set_nodelay(true);
        let info = info
            .set_redis_settings(redis_settings)
            .set_tcp_settings(tcp_settings);
        let client = match tls {
            None => Client::open(info),
            Some(tls) => Client::build_with_tls(info, tls.read()?).and_then(|client| {
                // The library forgets this one when it reads the certificates, so it comes last.
                let mut info = client.get_connection_info().clone();
                let mut address = info.addr().clone();
                address.set_danger_accept_invalid_hostnames(tls.any_host);
                info = info.set_addr(address);
                Client::open(info)
            }),
        };
        let client = client.map_err(bad)?;
        Ok(Self {
            client: Arc::new(client),
            timeout: *timeout,
            meters,
        })
    }

    /// Tells whether Redis answers, from a connection of its own, until dropped.
    pub async fn probe(self, answers: watch::Sender<bool>) -> Infallible {
        let tell = |is_so: bool| {
            answers.send_if_modified(|was_so| mem::replace(was_so, is_so) != is_so);
        };
        loop {
            if let Ok(mut connection) = self.connect().await {
                let mut ask = async || {
                    let asked = tokio::time::timeout(self.timeout, self.is_valid(&mut connection));
                    matches!(asked.await, Ok(Ok(())))
                };
                while ask().await {
                    tell(true);
                    tokio::time::sleep(PROBE).await;
                }
            }
            tell(false);
            tokio::time::sleep(PROBE).await;
        }
    }

    pub(super) fn meters(&self) -> Arc<Meters> {
        self.meters.clone()
    }

    /// A pool for one worker. It connects in the background and never fails to be made.
    pub(super) fn pool(&self, options: &Options) -> ConnectionPool {
        let failures = Failures(watch::Sender::default());
        let failed = failures.0.subscribe();
        let pool = Pool::builder()
            .max_size(options.connections)
            .min_idle(options.connections)
            .connection_timeout(self.timeout)
            // The next batch will try again; until then failures are told as they come.
            .retry_connection(false)
            .error_sink(Box::new(failures))
            // A connection knows whether it broke: asking it again would cost a round trip.
            .test_on_check_out(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .build_unchecked(self.clone());
        ConnectionPool { pool, failed }
    }
}

/// The connections of one worker.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPool {
    pool: Pool<Connections>,
    failed: watch::Receiver<String>,
}

impl ConnectionPool {
    /// A connection that nobody else uses, as soon as there is one.
    ///
    /// # Errors
    ///
    /// What went wrong, as soon as it is known that none comes up.
    pub(super) async fn get(&mut self) -> Result<PooledConnection<'_, Connections>, String> {
        self.failed.mark_unchanged();
        tokio::select! {
            connection = self.pool.get() => connection.map_err(|error| error.to_string()),
            // The pool lives as long as this, and the sender with it.
            _ = self.failed.changed() => Err(self.failed.borrow_and_update().clone()),
        }
    }
}

impl Tls {
    fn read(&self) -> Result<TlsCertificates, BadUrl> {
        let client_tls = match &self.client {
            Some((certificate, key)) => Some(ClientTlsConfig {
                client_cert: read(certificate)?,
                client_key: read(key)?,
            }),
            None => None,
        };
        Ok(TlsCertificates {
            client_tls,
            root_cert: self.ca.as_deref().map(read).transpose()?,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BadUrl> {
    fs::read(path).map_err(|error| BadUrl {
        reason: format!("{} cannot be read: {error}", path.display()),
    })
}

/// The reference takes a bare `host:port` or a socket path where Redis' own tools want a URL.
fn with_scheme(url: &str, is_tls: bool) -> String {
    match (url.split_once("://"), is_tls) {
        (Some(("redis", rest)), true) => format!("rediss://{rest}"),
        (Some(_), _) => url.to_owned(),
        (None, _) if url.starts_with('/') => format!("unix://{url}"),
        (None, true) => format!("rediss://{url}"),
        (None, false) => format!("redis://{url}"),
    }
}

impl ManageConnection for Connections {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // The batcher has its own deadline; a second timer a batch would be waste.
            .set_response_timeout(None);
        let mut inner = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        // So that no request has to find out that the server does not know it. One that will not
        // take it says so again when it is asked to run it.
        match load_step().exec_async(&mut inner).await {
            Err(error) if error.is_unrecoverable_error() => return Err(error),
            _ => {}
        }
        self.meters.connections_opened.fetch_add(1, Relaxed);
        Ok(Connection {
            inner,
            is_broken: false,
            meters: self.meters.clone(),
        })
    }

    /// Not asked on checkout, but by [`Connections::probe`].
    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        redis::cmd("PING").exec_async(&mut connection.inner).await
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_broken
    }
}

/// A connection that remembers whether it can still be used.
#[derive(Debug)]
pub struct Connection {
    inner: MultiplexedConnection,
    is_broken: bool,
    meters: Arc<Meters>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.meters.connections_closed.fetch_add(1, Relaxed);
    }
}

impl Connection {
    /// Sends `pipeline` and returns one reply for each command; error replies are values.
    ///
    /// If the future is dropped before it ends the connection counts as broken, for nobody knows
    /// how far the server came.
    pub(super) async fn send(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.is_broken = true;
        let replies = self
            .inner
            .req_packed_commands(pipeline, 0, pipeline.len())
            .await?;
        self.is_broken = replies.iter().any(is_wrong_server);
        Ok(replies)
    }
}

/// Whether the reply says that this server will not do what is asked for some time, as after a
/// failover: a new connection may find the right one.
fn is_wrong_server(reply: &Value) -> bool {
    const CODES: [&str; 5] = ["READONLY", "LOADING", "NOAUTH", "MASTERDOWN", "CLUSTERDOWN"];
    matches!(reply, Value::ServerError(error) if CODES.contains(&error.code()))
}
