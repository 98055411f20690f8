//! Asks one node, on a connection of its own, whether it is well and what time it is. All workers
//! share what it finds: while the breaker is open nobody else knocks.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::redis::{self, Pipeline, RedisError, Value, aio::MultiplexedConnection};
use tokio::{sync::watch, time::timeout};

use super::{
    clock::{Measurement, Skew},
    connection::{Connector, send},
    node::Node,
    trouble::Trouble,
};
use crate::window::Timestamp;

/// Between two questions to a node that is well.
const CALM: Duration = Duration::from_secs(1);

/// Between two to one that is not: at first, and at most. Doubled from one to the other.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(160);

/// How long an answer may take. A path that swallows what is sent is left after that, so that the
/// next attempt finds it mended.
const PATIENCE: Duration = Duration::from_millis(250);

/// Every fourth attempt may take as long as the settings allow: a far node may need it.
const LONG_ATTEMPT: u32 = 4;

/// A proxy that knows no TIME closes the connection. After so many times it is not asked any more.
const MAX_TIME_FAILURES: u32 = 3;

#[derive(Debug)]
pub(super) struct Probe {
    node: Arc<Node>,
    connector: Arc<Connector>,
    /// Whether a replica can be told by its role: one server may be whatever it likes, as long as
    /// it counts.
    must_be_master: bool,
    now: fn() -> Timestamp,
    trouble: watch::Receiver<Option<Trouble>>,
    attempt: u32,
    /// Whether there was a connection before the present one. What broke that may have broken
    /// others too.
    is_back: bool,
    skew: Skew,
    time_failures: u32,
}

impl Probe {
    pub(super) fn new(
        node: Arc<Node>,
        connector: Arc<Connector>,
        must_be_master: bool,
        now: fn() -> Timestamp,
    ) -> Self {
        Self {
            trouble: node.breaker.watch(),
            node,
            connector,
            must_be_master,
            now,
            attempt: 0,
            is_back: false,
            skew: Skew::default(),
            time_failures: 0,
        }
    }

    /// Asks until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let connecting = self.connector.connect(&self.node.place);
            let connected = timeout(self.patience(), connecting).await;
            match connected.unwrap_or(Err(Trouble::Silent)) {
                Ok(connection) => self.follow(connection).await,
                Err(trouble) => {
                    self.node.lose(trouble);
                    self.pause().await;
                }
            }
        }
    }

    fn patience(&self) -> Duration {
        if self.attempt % LONG_ATTEMPT == LONG_ATTEMPT - 1 {
            self.connector.timeout
        } else {
            self.connector.timeout.min(PATIENCE)
        }
    }

    async fn pause(&mut self) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.attempt.min(8));
        self.attempt = self.attempt.saturating_add(1);
        tokio::time::sleep(pause.min(LAST_PAUSE)).await;
    }

    /// Asks on one connection until that breaks.
    async fn follow(&mut self, mut connection: MultiplexedConnection) {
        let mut is_new = true;
        loop {
            let before = self.trouble.borrow_and_update().clone();
            let asked = timeout(self.patience(), self.ask(&mut connection, before.as_ref())).await;
            match asked.unwrap_or(Err(Trouble::Silent)) {
                Ok(()) => {
                    // If this very connection was silent and speaks again, others do so too.
                    let is_other = before.as_ref().is_some_and(|was| *was != Trouble::Silent);
                    let is_anew = is_new && (self.is_back || before.is_some());
                    self.node.regain(is_anew || is_other);
                    (is_new, self.is_back) = (false, true);
                    self.attempt = 0;
                    if !self.read_clock(&mut connection).await {
                        return;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(CALM) => {}
                        // The node keeps the sender.
                        _ = self.trouble.changed() => {}
                    }
                }
                Err(trouble) => {
                    let is_broken = matches!(trouble, Trouble::Unreachable(_) | Trouble::Silent);
                    self.node.lose(trouble);
                    self.pause().await;
                    if is_broken {
                        return;
                    }
                }
            }
        }
    }

    /// Whether the node is well, as far as that can be asked; `before` is what was wrong with it.
    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        before: Option<&Trouble>,
    ) -> Result<(), Trouble> {
        let mut questions = Pipeline::with_capacity(3);
        questions.cmd("PING");
        if self.must_be_master || before == Some(&Trouble::ReadOnly) {
            questions.cmd("ROLE");
        }
        if before == Some(&Trouble::ClusterDown) {
            questions.cmd("CLUSTER").arg("INFO");
        }
        let replies = send(connection, &questions).await;
        let replies = replies.map_err(|error| Trouble::of_failure(&error))?;
        for reply in &replies {
            if let Some(trouble) = Trouble::of_reply(reply) {
                return Err(trouble);
            }
            // Who may not ask for the role gets an error, and the benefit of the doubt.
            if is_replica(reply) {
                return Err(Trouble::ReadOnly);
            }
            if let Value::BulkString(text) = reply
                && String::from_utf8_lossy(text).contains("cluster_state:fail")
            {
                return Err(Trouble::ClusterDown);
            }
        }
        Ok(())
    }

    /// Reads the clock of the node. Returns whether the connection is still of use.
    async fn read_clock(&mut self, connection: &mut MultiplexedConnection) -> bool {
        if self.time_failures >= MAX_TIME_FAILURES {
            return true;
        }
        let measurement = Measurement::begin((self.now)().millis());
        match timeout(self.patience(), time(connection)).await {
            Ok(Ok(Some(millis))) => {
                self.time_failures = 0;
                self.skew.record(measurement.end(millis));
                self.node.skew_millis.store(self.skew.median(), Relaxed);
                self.node.tell();
                true
            }
            // It may not be asked; the connection is as good as before.
            Ok(Ok(None)) => true,
            Ok(Err(_)) | Err(_) => {
                self.time_failures += 1;
                false
            }
        }
    }
}

/// The time of day of the server in milliseconds, if it tells.
async fn time(connection: &mut MultiplexedConnection) -> Result<Option<u64>, RedisError> {
    let mut question = Pipeline::with_capacity(1);
    question.cmd("TIME");
    let replies = send(connection, &question).await?;
    let time = replies.into_iter().next().and_then(|reply| {
        let (secs, micros): (u64, u64) = redis::from_redis_value(reply).ok()?;
        secs.checked_mul(1000)?.checked_add(micros / 1000)
    });
    Ok(time)
}

/// Whether a reply to ROLE says so.
pub(super) fn is_replica(reply: &Value) -> bool {
    role(reply).is_some_and(|role| matches!(role, b"slave" | b"replica"))
}

/// Whether a reply to ROLE says so.
pub(super) fn is_master(reply: &Value) -> bool {
    role(reply) == Some(b"master")
}

fn role(reply: &Value) -> Option<&[u8]> {
    match reply {
        Value::Array(parts) => match parts.first()? {
            Value::BulkString(role) => Some(role),
            Value::SimpleString(role) => Some(role.as_bytes()),
            _ => None,
        },
        _ => None,
    }
}
