//! Asks one node, on a connection of its own, whether it is well and what time it is, and judges whether
//! it is lost. All workers share the result: while the breaker is open only the probe connects.
//!
//! A circuit breaker of a library counts failed calls. This one opens while calls still wait, and leaves out time in
//! which this process did not run.

use std::{
    future::pending,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::redis::{self, Value};
use tokio::{sync::watch, time::Instant};

use super::{
    clock::{Measurement, ProcessClock, Skew},
    detector::{Detector, NodeHealth, RunningTime, TICK},
    failure::{NodeFailure, SetbackPauses, is_unknown_command},
    running::{read_sockets, tick, within},
};
use crate::{
    core::window::Timestamp,
    foundation::backoff::{Backoff, BackoffWaits},
    store::redis::{
        batch::{owed::OwedExpiries, packed::PackedCommands},
        connection::Connection,
        node::Node,
        pool::Connector,
    },
};

/// The time between two questions to a node that is not suspected.
const CALM: Duration = Duration::from_secs(1);

/// The pauses between attempts to reach a lost node.
const PAUSES: Backoff = Backoff {
    initial: Duration::from_millis(10),
    max: Duration::from_millis(160),
    factor: 2.0,
    // The probe is the only one of this process.
    jitter: false,
};

/// The pauses between attempts to reach a node that answers, but only to say that it is of no use now. Each goes over a
/// new connection, which may reach another server.
const REFUSED: Backoff = Backoff {
    initial: Duration::from_millis(10),
    max: Duration::from_millis(500),
    factor: 2.0,
    jitter: false,
};

/// How long a server may end all connections before it is asked less often.
const RESTART: Duration = Duration::from_secs(10);

/// How long an attempt to reach a node may take. A path that swallows packets is given up after that, so
/// that the next attempt finds it repaired.
const PATIENCE: Duration = Duration::from_millis(250);

/// Every fourth attempt may take as long as the settings allow: a far node may need it.
const LONG_ATTEMPT: u32 = 4;

/// A proxy without TIME closes the connection. After this many times the probe no longer asks.
const MAX_TIME_FAILURES: u32 = 3;

/// The most readings of the clock in a row: one that contradicts what was believed, two that agree, and one that was
/// delayed.
const MAX_READINGS: u32 = 4;

/// The most EXPIRE commands that are sent together: decisions wait behind them.
const OWED_AT_ONCE: usize = 256;

/// How long requests wait for a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits {
    /// How long a decision may wait: a lost node that answers later is of no use.
    pub(crate) deadline: Duration,
    /// How long a node may be silent.
    pub(crate) lose_after: Duration,
}

#[derive(Debug)]
pub(crate) struct Probe {
    node: Arc<Node>,
    connector: Arc<Connector>,
    owed: Arc<OwedExpiries>,
    /// Whether a replica is a failure: a single server may have any role, as long as it counts.
    must_be_master: bool,
    patience: WaitLimits,
    /// This machine's clock, and one that cannot be set.
    now: fn() -> Timestamp,
    process: ProcessClock,
    failure: watch::Receiver<Option<NodeFailure>>,
    /// Whether the node was ever found well.
    is_back: bool,
    /// Whether the present connection replaced one that was silent or broke: the workers' connections
    /// may have failed too.
    is_replaced: bool,
    /// The replies to workers when the node came back last; `None` if it failed a question since.
    replies_at_return: Option<u64>,
    skew: Skew,
    time_failures: u32,
}

/// The pauses of one loss.
struct ProbePauses {
    began: Instant,
    unreachable: BackoffWaits,
    refused: BackoffWaits,
    setbacks: SetbackPauses,
}

impl ProbePauses {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            unreachable: BackoffWaits::new(PAUSES),
            refused: BackoffWaits::new(REFUSED),
            setbacks: SetbackPauses::new(),
        }
    }

    /// The pause after `failure`.
    fn after(&mut self, failure: &NodeFailure) -> Duration {
        match failure {
            NodeFailure::Refuses(_) => self.setbacks.next_pause(),
            // A proxy whose server restarts does so for a while.
            NodeFailure::HangsUp(_) if self.began.elapsed() >= RESTART => {
                self.setbacks.next_pause()
            }
            NodeFailure::HangsUp(_) => self.unreachable.next_wait(),
            NodeFailure::Unreachable(_) | NodeFailure::Silent => self.unreachable.next_wait(),
            _ => self.refused.next_wait(),
        }
    }
}

/// The answer to a question.
struct ProbeReply {
    /// The connection that brought it, if it is not the one that was asked first.
    new: Option<Connection>,
    /// The time it took, as far as this process ran.
    took: Duration,
    /// Whether connections of workers got replies meanwhile.
    others_work: bool,
}

impl Probe {
    pub(crate) fn new(
        node: Arc<Node>,
        connector: Arc<Connector>,
        owed: Arc<OwedExpiries>,
        must_be_master: bool,
        patience: WaitLimits,
        now: fn() -> Timestamp,
        process: ProcessClock,
    ) -> Self {
        Self {
            failure: node.breaker.watch(),
            node,
            connector,
            owed,
            must_be_master,
            patience,
            now,
            process,
            is_back: false,
            is_replaced: false,
            replies_at_return: None,
            skew: Skew::default(),
            time_failures: 0,
        }
    }

    /// Asks until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut connection: Option<Connection> = None;
        let mut pauses = ProbePauses::new();
        let mut has_waited = false;
        loop {
            let before = self.failure.borrow_and_update().clone();
            if before
                .as_ref()
                .is_some_and(|was| *was != NodeFailure::Silent)
            {
                // A connection that failed is not asked again: a new one may reach another server.
                connection = None;
            }
            match self.ask_once(&mut connection, before.as_ref()).await {
                Ok(_) if before.is_some() && !has_waited && self.is_setback() => {
                    tokio::time::sleep(pauses.setbacks.next_pause()).await;
                    has_waited = true;
                }
                Ok(answered) => {
                    if before.is_some() {
                        self.replies_at_return = Some(self.node.replies());
                    }
                    if !has_waited {
                        pauses = ProbePauses::new();
                    }
                    has_waited = false;
                    self.follow(&mut connection, answered, before.as_ref())
                        .await;
                }
                Err(failure) => {
                    self.replies_at_return = None;
                    // The connection may only have been closed: the next attempt shows it.
                    if connection.take().is_some() && before.is_none() {
                        continue;
                    }
                    let pause = pauses.after(&failure);
                    self.node.lose(failure);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Whether the node was lost again before it had answered any worker, so that no question shows its failure.
    fn is_setback(&self) -> bool {
        self.replies_at_return == Some(self.node.replies())
    }

    /// Handles an answer, and waits until the next question is due.
    async fn follow(
        &mut self,
        connection: &mut Option<Connection>,
        answered: ProbeReply,
        before: Option<&NodeFailure>,
    ) {
        let ProbeReply {
            new,
            took,
            others_work,
        } = answered;
        if new.is_some() {
            *connection = new;
            self.node.record_answer(None);
            self.is_replaced |= self.is_back && !others_work;
        } else {
            self.node.record_answer(Some(took));
        }
        if self.node.breaker.is_open() && took > self.patience.deadline {
            // The node lives, but no decision could wait for it: the next answer may come sooner.
            return;
        }
        // Before the node is asked for decisions: another server may have taken its place, with another time.
        let clock = match connection {
            Some(known) => self.read_clock(known).await,
            None => Ok(true),
        };
        let is_usable = match clock {
            Ok(is_usable) => is_usable,
            Err(failure) => return self.node.lose(failure),
        };
        // If this connection was silent and answers again, others do so too.
        let is_other = before.is_some_and(|was| *was != NodeFailure::Silent);
        self.node.regain(self.is_replaced || is_other);
        (self.is_back, self.is_replaced) = (true, false);
        let is_usable = match connection {
            Some(known) => is_usable && self.send_owed(known).await,
            None => is_usable,
        };
        if !is_usable {
            *connection = None;
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(CALM) => {}
            () = self.node.suspected() => {}
            // The node keeps the sender.
            _ = self.failure.changed() => {}
        }
    }

    /// Asks on `connection`, and also on a new connection if there is none or the answer takes longer than
    /// usual, until there is an answer, however long that takes. Meanwhile the node becomes lost if it
    /// is silent for too long, to this task and to all workers.
    async fn ask_once(
        &self,
        connection: &mut Option<Connection>,
        before: Option<&NodeFailure>,
    ) -> Result<ProbeReply, NodeFailure> {
        let bounds = self.node.bounds(self.patience.lose_after);
        let asked = Instant::now();
        let replies = self.node.replies();
        let has_connection = connection.is_some();
        let on_old = async {
            match connection {
                Some(connection) => self.ask(connection, before).await,
                None => pending().await,
            }
        };
        let on_new = async {
            if has_connection {
                within(bounds.suspect_after, pending::<()>()).await;
            }
            self.reach(before).await
        };
        let mut silent = ProbeSilence {
            detector: Detector::asked(bounds, asked).already(self.node.take_silence()),
            ran: RunningTime::since(asked),
            replies,
        };
        let new = tokio::select! {
            biased;
            answer = on_old => answer.map(|()| None)?,
            answer = on_new => answer.map(Some)?,
            () = self.watch(&mut silent) => None,
        };
        Ok(ProbeReply {
            new,
            took: silent.ran.total() + silent.ran.last().elapsed().min(TICK),
            others_work: self.node.replies() != replies,
        })
    }

    /// Counts the time in which this process ran and the node was silent. Never ends.
    async fn watch(&self, silence: &mut ProbeSilence) {
        loop {
            let (due, now) = tick(&mut silence.ran, TICK).await;
            // An answer that has arrived already still counts.
            read_sockets().await;
            let replies = self.node.replies();
            if replies != silence.replies {
                silence.replies = replies;
                silence.detector.record_answer(now);
            }
            if silence.detector.woke(due, now) == NodeHealth::Lost {
                self.node.lose(NodeFailure::Silent);
            }
        }
    }

    /// A new connection on which the node was found well.
    async fn reach(&self, before: Option<&NodeFailure>) -> Result<Connection, NodeFailure> {
        let mut pauses = BackoffWaits::new(PAUSES);
        for attempt in 0_u32.. {
            let patience = if attempt % LONG_ATTEMPT == LONG_ATTEMPT - 1 {
                // A little more, so that the attempt itself says how far it came.
                self.connector.timeout + TICK
            } else {
                self.connector.timeout.min(PATIENCE)
            };
            let reached = async {
                let mut connection = self.connector.connect(&self.node.endpoint).await?;
                let asked = self.ask(&mut connection, before).await;
                asked.map_err(NodeFailure::after_coming_up)?;
                Ok(connection)
            };
            match within(patience, reached).await {
                Some(Err(NodeFailure::Silent)) | None => {}
                Some(reached) => return reached,
            }
            tokio::time::sleep(pauses.next_wait()).await;
        }
        Err(NodeFailure::Silent)
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
            if is_replica(reply) {
                return Err(NodeFailure::ReadOnly);
            }
            if role(reply) == Some(SENTINEL) {
                return Err(NodeFailure::Sentinel);
            }
            if let Value::BulkString(text) = reply
                && String::from_utf8_lossy(text).contains("cluster_state:fail")
            {
                return Err(NodeFailure::ClusterDown);
            }
        }
        Ok(())
    }

    /// Sends the EXPIRE commands that workers have left. Returns whether the connection is still usable.
    async fn send_owed(&self, connection: &mut Connection) -> bool {
        let mut owed = self.owed.take();
        while !owed.is_empty() {
            let later = owed.split_off(OWED_AT_ONCE);
            match within(self.connector.timeout, connection.ask(&owed)).await {
                Some(Ok(replies)) => self.owed.keep_undone(&owed, &replies),
                Some(Err(_)) | None => {
                    self.owed.add(&owed);
                    self.owed.add(&later);
                    return false;
                }
            }
            owed = later;
        }
        true
    }

    /// Reads the clock of the node, and again at once if it contradicts what was believed. Returns whether the
    /// connection is still usable.
    ///
    /// # Errors
    ///
    /// If the node has no clock because it is no Redis.
    async fn read_clock(&mut self, connection: &mut Connection) -> Result<bool, NodeFailure> {
        if self.time_failures >= MAX_TIME_FAILURES {
            return Ok(true);
        }
        for _ in 0..MAX_READINGS {
            let measurement = Measurement::begin();
            match within(self.connector.timeout.min(PATIENCE), time(connection)).await {
                Some(Ok(Some(theirs))) => {
                    self.time_failures = 0;
                    if self.skew.record(measurement.end(&self.process, theirs)) {
                        break;
                    }
                }
                // The server may forbid TIME; the connection stays usable.
                Some(Ok(None)) => return Ok(true),
                Some(Err(NodeFailure::Sentinel)) => return Err(NodeFailure::Sentinel),
                Some(Err(_)) | None => {
                    self.time_failures += 1;
                    return Ok(false);
                }
            }
        }
        if let Some(ahead) = self.skew.believed() {
            self.node.ahead_millis.store(ahead, Relaxed);
            let of_machine = self.process.ahead_of((self.now)());
            let skew = ahead.saturating_add(of_machine);
            self.node.skew_millis.store(skew, Relaxed);
            self.node.notify_topology();
        }
        Ok(true)
    }
}

/// A silence of the node.
struct ProbeSilence {
    detector: Detector,
    /// How long the answer takes.
    ran: RunningTime,
    /// The replies to all workers at the last look.
    replies: u64,
}

/// The time of day of the server, if it returns one.
async fn time(connection: &mut Connection) -> Result<Option<Timestamp>, NodeFailure> {
    let replies = connection.ask(&PackedCommands::one(&[b"TIME"])).await?;
    if let Some(reply) = replies.first() {
        refuse_sentinel(connection, reply).await?;
    }
    let time = replies.into_iter().next().and_then(|reply| {
        let (secs, micros): (u64, u64) = redis::from_redis_value(reply).ok()?;
        let millis = secs.checked_mul(1000)?.checked_add(micros / 1000)?;
        Some(Timestamp::from_millis(millis))
    });
    Ok(time)
}

/// Asks for the role of a server that does not know a command of Redis, as its `reply` says. PING does not show it: a
/// sentinel answers that as a Redis does.
///
/// # Errors
///
/// If it is a sentinel, or the connection breaks.
pub(crate) async fn refuse_sentinel(
    connection: &mut Connection,
    reply: &Value,
) -> Result<(), NodeFailure> {
    if !matches!(reply, Value::ServerError(error) if is_unknown_command(error)) {
        return Ok(());
    }
    let replies = connection.ask(&PackedCommands::one(&[b"ROLE"])).await?;
    match replies.first().and_then(role) {
        Some(SENTINEL) => Err(NodeFailure::Sentinel),
        _ => Ok(()),
    }
}

/// The role of a sentinel.
const SENTINEL: &[u8] = b"sentinel";

/// Whether a reply to ROLE names a replica.
pub(crate) fn is_replica(reply: &Value) -> bool {
    role(reply).is_some_and(|role| matches!(role, b"slave" | b"replica"))
}

/// Whether a reply to ROLE names a master.
pub(crate) fn is_master(reply: &Value) -> bool {
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
