//! Asks one node, on a connection of its own, whether it is well and what time it is. It alone judges whether a node is
//! silent, for all workers, and while the node is lost only it connects.
//!
//! A circuit breaker of a library counts failed calls. This one asks while calls still wait, and once data is read that
//! has arrived, so that a stop of this process is no silence.

use std::{
    future::pending,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::redis::{self, Value};
use tokio::time::{Instant, sleep};

use super::{
    clock::{ProcessClock, Skew, SkewReading},
    failure::{NodeFailure, SetbackPauses, role},
    wait::{by, within},
};
use crate::{
    core::window::Timestamp,
    foundation::{
        backoff::{Backoff, BackoffWaits},
        log_throttle::LogThrottle,
    },
    store::redis::{
        batch::packed::PackedCommands,
        connection::Connection,
        node::Node,
        options::Options,
        pool::Connector,
        topology::{address::TopologyKind, servers::Servers},
    },
};

/// The time between two questions to a node that no batch doubts.
const CALM: Duration = Duration::from_secs(1);

/// The pauses between attempts to reach a lost node that may come back at any moment. Each goes over a new connection,
/// which may reach another server.
const PAUSES: Backoff = Backoff {
    initial: Duration::from_millis(10),
    max: Duration::from_millis(250),
    factor: 2.0,
    // The probe is the only one of this process.
    jitter: false,
};

/// How long a sentinel, a node of a cluster that names the owners of slots, and most attempts to reach a node may take.
/// A slower sentinel has no vote this time, and after a slower node the next one is asked; a path that swallows packets
/// is given up, so that the next attempt finds it repaired, or the server elsewhere. Every fourth attempt may take as
/// long as the settings allow: a far node may need it.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);

/// A little more, so that the attempt itself says how far it came.
pub(super) const MARGIN: Duration = Duration::from_millis(3);

/// A proxy without TIME closes the connection. After this many times the probe no longer asks.
const MAX_TIME_FAILURES: u32 = 3;

/// The most readings of the clock in a row: one that contradicts what was believed, two that agree, and one that was
/// delayed.
const MAX_READINGS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Probe {
    node: Arc<Node>,
    connector: Arc<Connector>,
    /// Whether a replica is a failure: a single server may have any role, as long as it counts.
    must_be_master: bool,
    deadline: Duration,
    lose_after: Duration,
    /// This machine's clock, and one that cannot be set.
    now: fn() -> Timestamp,
    process: ProcessClock,
    connection: Option<Connection>,
    skew: Skew,
    time_failures: u32,
    slowness: Slowness,
}

/// The decisions of the last ten seconds that were answered, and those that gave up waiting.
#[derive(Debug)]
struct Slowness {
    totals: [(u64, u64); 10],
    looked: Instant,
    log: LogThrottle,
}

impl Slowness {
    /// Looks at a node that has just answered the probe, in `took`.
    fn judge(&mut self, node: &Node, took: Duration, deadline: Duration) {
        if self.looked.elapsed() < CALM {
            return;
        }
        self.looked = Instant::now();
        let stats = &node.stats;
        let (answered, late) = (stats.answered.load(Relaxed), stats.late.load(Relaxed));
        let before = std::mem::replace(&mut self.totals[0], (answered, late));
        self.totals.rotate_left(1);
        let (answered, late) = (answered - before.0, late - before.1);
        let is_slow = is_slow(answered, late);
        node.is_slow.store(is_slow, Relaxed);
        if is_slow && self.log.may_log() {
            let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(
                node = %node.endpoint, late, answered, wait_ms = millis(deadline), redis_ms = millis(took),
                "Redis is slow: decisions give up before it answers; see --redis-timeout (TOLLGATE_REDIS_TIMEOUT) and \
                 the deadline of the caller (Envoy's `timeout`)"
            );
        }
    }
}

/// Whether more than a tenth of the decisions gave up.
fn is_slow(answered: u64, late: u64) -> bool {
    10 * late > answered + late
}

impl Probe {
    pub(crate) fn new(node: Arc<Node>, servers: &Servers, options: &Options) -> Self {
        Self {
            node,
            connector: servers.connector.clone(),
            must_be_master: servers.address.kind != TopologyKind::Single,
            deadline: options.deadline,
            lose_after: options.lose_after,
            now: servers.now,
            process: servers.clock.process,
            connection: None,
            skew: Skew::default(),
            time_failures: 0,
            slowness: Slowness {
                totals: [(0, 0); 10],
                looked: Instant::now(),
                log: LogThrottle::new(),
            },
        }
    }

    /// Asks until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut pauses = BackoffWaits::new(PAUSES);
        let mut setbacks = SetbackPauses::new();
        // Whether the node was lost again before it answered any worker, so that no question shows its failure.
        let mut is_setback = false;
        loop {
            let before = self.node.failure();
            if matches!(&before, Some(was) if *was != NodeFailure::Silent) {
                // A connection that failed is not asked again: a new one may reach another server.
                self.connection = None;
            }
            if is_setback {
                sleep(setbacks.next_pause()).await;
            }
            let had_connection = self.connection.is_some();
            match self.ask_once(before.as_ref()).await {
                Ok(took) => {
                    pauses = BackoffWaits::new(PAUSES);
                    if !is_setback {
                        setbacks = SetbackPauses::new();
                    }
                    self.well(took, before.is_some()).await;
                    is_setback = self.node.is_lost()
                        && before.is_some()
                        && !self.node.stats.was_used.load(Relaxed);
                }
                // It may only have been closed: the next attempt shows it.
                Err(_) if had_connection && before.is_none() => {}
                Err(failure) => {
                    let pause = match failure {
                        NodeFailure::Refuses(_)
                        | NodeFailure::HangsUp(_)
                        | NodeFailure::NoAuth
                        | NodeFailure::WrongPassword
                        | NodeFailure::Sentinel => setbacks.next_pause(),
                        _ => pauses.next_wait(),
                    };
                    is_setback = false;
                    self.node.lose(failure);
                    sleep(pause).await;
                }
            }
        }
    }

    /// Handles an answer that came in `took`, and waits until the next question is due.
    async fn well(&mut self, took: Duration, was_lost: bool) {
        if was_lost && took > self.deadline {
            // The node lives, but no decision could wait for it: the next answer may come sooner.
            return;
        }
        if took <= self.deadline {
            self.node.prompt_answer.notify_waiters();
        }
        // Before the node is asked for decisions: another server may have taken its place, with another time.
        if let Err(failure) = self.read_clock().await {
            return self.node.lose(failure);
        }
        let lost = self.node.failure();
        if !was_lost && lost.is_some_and(|failure| failure != NodeFailure::Silent) {
            // A worker lost it meanwhile: the answer may be older than the loss.
            return;
        }
        self.node.regain();
        self.slowness.judge(&self.node, took, self.deadline);
        // A batch that was late asks at once, and not again and again.
        sleep(MARGIN).await;
        tokio::select! {
            () = sleep(CALM) => {}
            () = self.node.doubt.notified() => {}
        }
    }

    /// Asks on the connection, and also on a new one if there is none or the answer takes long, until there is an
    /// answer, however long that takes: one connection may stand still. Meanwhile the node becomes lost if it is silent
    /// for too long. Returns how long the answer took.
    async fn ask_once(&mut self, before: Option<&NodeFailure>) -> Result<Duration, NodeFailure> {
        let asked = Instant::now();
        let old = self.connection.take();
        let is_new = old.is_none();
        let on_old = async {
            match old {
                Some(mut connection) => {
                    self.ask(&mut connection, before).await.map(|()| connection)
                }
                None => pending().await,
            }
        };
        let on_new = async {
            if !is_new {
                sleep(self.lose_after / 2).await;
            }
            self.reach(before).await
        };
        let connection = {
            let mut answer = pin!(async {
                tokio::select! {
                    biased;
                    answer = on_old => answer,
                    answer = on_new => answer,
                }
            });
            match by(asked + self.lose_after, answer.as_mut()).await {
                Some(answer) => answer,
                None => {
                    self.node.lose(NodeFailure::Silent);
                    answer.await
                }
            }
        }?;
        self.connection = Some(connection);
        Ok(asked.elapsed())
    }

    /// A new connection on which the node was found well.
    async fn reach(&self, before: Option<&NodeFailure>) -> Result<Connection, NodeFailure> {
        let mut pauses = BackoffWaits::new(PAUSES);
        let longest = self.connector.timeout + MARGIN;
        let mut patiences = [PATIENCE, PATIENCE, PATIENCE, longest].into_iter().cycle();
        loop {
            let patience = patiences.next().unwrap_or(longest);
            let reached = async {
                let mut connection = self.connector.connect(&self.node.endpoint).await?;
                let asked = self.ask(&mut connection, before).await;
                asked.map_err(NodeFailure::after_coming_up)?;
                Ok(connection)
            };
            match within(patience.min(longest), reached).await {
                Some(Err(NodeFailure::Silent)) | None => {}
                Some(reached) => return reached,
            }
            sleep(pauses.next_wait()).await;
        }
    }

    /// Checks whether the node is well, as far as that can be asked; `before` is its last failure.
    async fn ask(
        &self,
        connection: &mut Connection,
        before: Option<&NodeFailure>,
    ) -> Result<(), NodeFailure> {
        let mut questions = PackedCommands::one(&[b"PING"]);
        let is_of_role = matches!(before, Some(NodeFailure::ReadOnly | NodeFailure::Sentinel));
        if self.must_be_master || is_of_role {
            questions.push(&[b"ROLE"]);
        }
        // A node of a cluster that was restarted answers PING for a while before it takes commands.
        if before == Some(&NodeFailure::ClusterDown) || before.is_some() && self.must_be_master {
            questions.push(&[b"CLUSTER", b"INFO"]);
        }
        let replies = connection.ask(&questions).await?;
        if let Some(failure) = replies.first().and_then(NodeFailure::of_greeting) {
            return Err(failure);
        }
        for reply in &replies {
            if let Some(failure) = NodeFailure::of_reply(reply) {
                return Err(failure);
            }
            // A user who may not run ROLE gets an error, and the node the benefit of the doubt.
            match role(reply) {
                Some("slave" | "replica") => return Err(NodeFailure::ReadOnly),
                Some("sentinel") => return Err(NodeFailure::Sentinel),
                _ => {}
            }
            if let Value::BulkString(text) = reply
                && String::from_utf8_lossy(text).contains("cluster_state:fail")
            {
                return Err(NodeFailure::ClusterDown);
            }
        }
        Ok(())
    }

    /// Reads the clock of the node, and again at once if it contradicts what was believed.
    ///
    /// # Errors
    ///
    /// If the node has no clock because it is no Redis.
    async fn read_clock(&mut self) -> Result<(), NodeFailure> {
        if self.time_failures >= MAX_TIME_FAILURES {
            return Ok(());
        }
        for _ in 0..MAX_READINGS {
            let Some(connection) = &mut self.connection else {
                return Ok(());
            };
            let asked = Instant::now();
            // A node that takes longer is silent, as the next question shows.
            match within(self.lose_after, time(connection)).await {
                Some(Ok(Some(theirs))) => {
                    self.time_failures = 0;
                    let ours = self.process.at(asked.into_std().into());
                    let reading = SkewReading::new(ours, asked.elapsed(), theirs);
                    if self.skew.record(reading) {
                        break;
                    }
                }
                // The server may forbid TIME; the connection stays usable.
                Some(Ok(None)) => return Ok(()),
                Some(Err(NodeFailure::Sentinel)) => return Err(NodeFailure::Sentinel),
                Some(Err(_)) | None => {
                    self.time_failures += 1;
                    self.connection = None;
                    return Ok(());
                }
            }
        }
        if let Some(ahead) = self.skew.believed() {
            self.node.ahead_millis.store(ahead, Relaxed);
            let of_machine = self.process.ahead_of((self.now)());
            let skew = ahead.saturating_add(of_machine);
            self.node.skew_millis.store(skew, Relaxed);
            self.node.events.notify_one();
        }
        Ok(())
    }
}

/// The time of day of the server, if it returns one.
async fn time(connection: &mut Connection) -> Result<Option<Timestamp>, NodeFailure> {
    let replies = connection.ask(&PackedCommands::one(&[b"TIME"])).await?;
    if let Some(reply) = replies.first() {
        connection.refuse_sentinel(reply).await?;
    }
    let time = replies.into_iter().next().and_then(|reply| {
        let (secs, micros): (u64, u64) = redis::from_redis_value(reply).ok()?;
        let millis = secs.checked_mul(1000)?.checked_add(micros / 1000)?;
        Some(Timestamp::from_millis(millis))
    });
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_slow_if_more_than_a_tenth_of_the_decisions_gave_up() {
        for (answered, late, expected) in [
            (0, 0, false),
            (0, 1, true),
            (9, 1, false),
            (8, 1, true),
            (14, 1, false),
            (90, 10, false),
            (89, 10, true),
        ] {
            assert_eq!(is_slow(answered, late), expected, "{answered} {late}");
        }
    }
}
