//! Asks one node, on a connection of its own, whether it is well and what time it is. All workers
//! share what it finds: while the breaker is open nobody else knocks.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::redis::{self, Value};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    clock::{Measurement, Skew},
    connection::Connector,
    link::Link,
    node::Node,
    packed::Packed,
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

/// A node that is lost again so soon after it was found well cannot bear the load: it is asked later
/// each time, so that fewer decisions find out the hard way. Doubled from one relapse to the next.
const RELAPSE: Duration = Duration::from_secs(1);
const FIRST_REST: Duration = Duration::from_millis(20);
const LAST_REST: Duration = Duration::from_millis(320);

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
    /// How long a decision may wait: who answers later is of no use.
    deadline: Duration,
    now: fn() -> Timestamp,
    trouble: watch::Receiver<Option<Trouble>>,
    attempt: u32,
    /// When the node was last found well after it had been lost, and how often it was lost again
    /// soon after that.
    found_well: Option<Instant>,
    relapses: u32,
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
        deadline: Duration,
        now: fn() -> Timestamp,
    ) -> Self {
        Self {
            trouble: node.breaker.watch(),
            node,
            connector,
            must_be_master,
            deadline,
            now,
            attempt: 0,
            found_well: None,
            relapses: 0,
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
                Ok(link) => self.follow(link).await,
                Err(trouble) => {
                    self.node.lose(trouble);
                    self.pause().await;
                }
            }
        }
    }

    /// Leaves a node alone for a while that was lost again soon after it had been found well.
    async fn rest(&mut self) {
        let Some(found_well) = self.found_well.take() else {
            return;
        };
        if found_well.elapsed() > RELAPSE {
            self.relapses = 0;
            return;
        }
        let rest = FIRST_REST.saturating_mul(1 << self.relapses.min(8));
        self.relapses = self.relapses.saturating_add(1);
        tokio::time::sleep(rest.min(LAST_REST)).await;
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
    async fn follow(&mut self, mut link: Link) {
        let mut is_new = true;
        loop {
            let before = self.trouble.borrow_and_update().clone();
            if before.is_some() {
                self.rest().await;
            }
            let asked = Instant::now();
            let answer = timeout(self.patience(), self.ask(&mut link, before.as_ref())).await;
            let is_late = asked.elapsed() > self.deadline;
            match answer.unwrap_or(Err(Trouble::Silent)) {
                // It answers, but no decision could wait for it.
                Ok(()) if is_late && before.is_some() => self.pause().await,
                Ok(()) => {
                    // If this very connection was silent and speaks again, others do so too.
                    let is_other = before.as_ref().is_some_and(|was| *was != Trouble::Silent);
                    let is_anew = is_new && (self.is_back || before.is_some());
                    self.node.regain(is_anew || is_other);
                    (is_new, self.is_back) = (false, true);
                    self.attempt = 0;
                    if before.is_some() {
                        self.found_well = Some(Instant::now());
                    }
                    if !self.read_clock(&mut link).await {
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
    async fn ask(&self, link: &mut Link, before: Option<&Trouble>) -> Result<(), Trouble> {
        let mut questions = Packed::one(&[b"PING"]);
        if self.must_be_master || before == Some(&Trouble::ReadOnly) {
            questions.push(&[b"ROLE"]);
        }
        if before == Some(&Trouble::ClusterDown) {
            questions.push(&[b"CLUSTER", b"INFO"]);
        }
        let replies = link.ask(&questions).await?;
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
    async fn read_clock(&mut self, link: &mut Link) -> bool {
        if self.time_failures >= MAX_TIME_FAILURES {
            return true;
        }
        let measurement = Measurement::begin((self.now)().millis());
        match timeout(self.patience(), time(link)).await {
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
async fn time(link: &mut Link) -> Result<Option<u64>, Trouble> {
    let replies = link.ask(&Packed::one(&[b"TIME"])).await?;
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
