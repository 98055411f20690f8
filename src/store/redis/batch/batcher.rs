//! Sends the queued requests of one node whenever a connection to it is free.

use std::{
    collections::HashMap,
    hash::BuildHasher as _,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::redis::Value;
use foldhash::{fast, quality};
use tokio::time::{Instant, sleep_until};

use super::{
    owed::RecentExpiries,
    packed::PackedCommands,
    pipeline::{Commands, PipelineBuilder, ScriptForm},
    redirect::redirects,
    step::{load_step, push_with_text},
};
use crate::{
    foundation::{generations::Generations, log_throttle::LogThrottle},
    net::endpoint::Endpoint,
    store::{
        contract::StoreError,
        redis::{
            connection::Connection,
            health::{
                detector::{RunningTime, TICK},
                failure::{NodeFailure, advice, is_unserved_slot, words},
                running::{self, read_sockets, tick, within},
            },
            node::Node,
            options::Options,
            pool::{ConnectionFactory, ConnectionPool, PooledWorkerConnection, WorkerConnection},
            queue::{
                clock::LateReplyTimer,
                node_queue::{NodeQueue, QueuedBatch},
            },
            topology::servers::Servers,
        },
    },
};

/// How many redirects a command may follow: MOVED by an old map, ASK by the slot's owner, and one more
/// for a slot that moves meanwhile.
const MAX_REDIRECTS: usize = 3;

/// The most connections for redirected commands. No more servers than that give away slots at once.
const MAX_REDIRECT_CONNECTIONS: usize = 16;

/// After this long without a redirect the map is up to date, and the connections for redirected commands
/// are closed. The connection of a stand-in is closed after the same time without work.
const REDIRECT_IDLE: Duration = Duration::from_secs(5);

/// A connection that carried nothing for this long is asked whether it still works.
const IDLE: Duration = Duration::from_secs(1);

/// How long the answer to leased hits is followed. Networks send a lost segment again sooner.
const FOLLOWED: Duration = Duration::from_secs(10);

/// How long the stand-in follows it, beside which no other connection serves the queue.
const FOLLOWED_BY_STAND_IN: Duration = Duration::from_secs(1);

/// A connection that ends within this time has ended as it came up.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The task of a batcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It serves its queue.
    Regular,
    /// It serves its queue while all others wait for replies that are late although the node answers: a
    /// lost segment, for example, holds up one connection for 200 ms.
    StandIn,
}

/// The loop of one connection.
#[derive(Debug)]
pub(crate) struct Batcher {
    role: Role,
    queue: Arc<NodeQueue>,
    node: Arc<Node>,
    servers: Servers,
    options: Arc<Options>,
    known: KeysWithTtl,
    recent: RecentExpiries,
    /// Notices a batch that takes longer than usual.
    late_reply: LateReplyTimer,
    /// Connections to servers that commands were redirected to.
    redirected: HashMap<Endpoint, Connection>,
    redirected_at: Instant,
    /// Whether the last batch held more than one request, so that more are probably arriving.
    is_busy: bool,
    /// Throttles the line about commands that Redis refuses.
    refusals: LogThrottle,
    /// When the connection came up that carries scripts now.
    scripts_on: Option<Instant>,
}

impl Batcher {
    pub(crate) fn new(
        role: Role,
        queue: Arc<NodeQueue>,
        servers: Servers,
        options: Arc<Options>,
    ) -> Self {
        let node = queue.node.clone();
        Self {
            role,
            late_reply: LateReplyTimer::new(queue.clock.clone()),
            node,
            queue,
            servers,
            known: KeysWithTtl::new(Instant::now()),
            recent: RecentExpiries::new(Instant::now()),
            options,
            redirected: HashMap::new(),
            redirected_at: Instant::now(),
            is_busy: false,
            refusals: LogThrottle::new(),
            scripts_on: None,
        }
    }

    /// A pool of one connection to a node. It spawns tasks, so call it on the worker's own runtime.
    pub(crate) fn pool(servers: &Servers, node: &Arc<Node>) -> ConnectionPool {
        let factory = ConnectionFactory {
            connector: servers.0.connector.clone(),
            node: node.clone(),
            stats: servers.0.stats.clone(),
        };
        factory.pool()
    }

    /// Serves the queue until its end.
    pub(crate) async fn run(mut self, mut pool: ConnectionPool) {
        while self.wait_for_work().await.is_some() {
            if let Some(mut worker_connection) = self.connect(&mut pool).await {
                let served = self.serve(&mut worker_connection).await;
                self.recent.leave_to(&self.servers.0.owed);
                if served.is_none() {
                    return;
                }
            }
            self.redirected.clear();
        }
    }

    /// Waits until a connection is needed: not while the node is lost, because until it is back only the
    /// probe connects. Returns `None` at the end of the queue.
    async fn wait_for_work(&mut self) -> Option<()> {
        loop {
            if self.role == Role::StandIn {
                self.queue.stand_in().await?;
            }
            if !self.node.breaker.is_open() {
                return Some(());
            }
            self.queue.fail_all(StoreError::Unsent);
            self.work().await?;
        }
    }

    /// Waits until there may be something to do. Returns `None` at the end of the queue.
    async fn work(&self) -> Option<()> {
        match self.role {
            Role::Regular => self.queue.work().await,
            Role::StandIn => self.queue.stand_in().await,
        }
    }

    /// A connection as soon as there is one, or `None` if none comes up.
    async fn connect(&mut self, pool: &mut ConnectionPool) -> Option<PooledWorkerConnection> {
        let connected = {
            let mut connecting = std::pin::pin!(pool.get());
            match within(self.options.lose_after, &mut connecting).await {
                Some(connected) => connected,
                None if self.role == Role::StandIn => Err(NodeFailure::Silent),
                None => {
                    let _stuck = self.queue.stuck();
                    self.queue.fail_all(StoreError::Unsent);
                    connecting.await
                }
            }
        };
        match connected {
            Ok(connection) => Some(connection),
            Err(failure) => {
                tracing::debug!(node = %self.node, %failure, "no connection");
                self.record_failure();
                if failure == NodeFailure::Silent {
                    // The probe decides whether it is silent to all.
                    self.node.suspect(Duration::ZERO);
                } else {
                    self.node.lose(failure);
                    self.queue.fail_all(StoreError::Unsent);
                }
                None
            }
        }
    }

    /// Sends batches for as long as the connection is good. Returns `None` at the end of the queue.
    async fn serve(&mut self, worker_connection: &mut WorkerConnection) -> Option<()> {
        let queue = self.queue.clone();
        let role = self.role;
        let mut used = Instant::now();
        // One timer, which is only looked at while there is nothing to send.
        let mut unused_for = pin!(sleep_until(used + IDLE));
        while self.is_of_use(worker_connection) {
            let idle = self.redirected_at + REDIRECT_IDLE;
            let unused = (role == Role::StandIn).then(|| Instant::now() + REDIRECT_IDLE);
            tokio::select! {
                biased;
                work = self.work() => work?,
                () = async { sleep_until(idle).await }, if !self.redirected.is_empty() => {
                    self.redirected.clear();
                    continue;
                }
                () = async { sleep_until(unused.unwrap_or(idle)).await }, if unused.is_some() => {
                    worker_connection.connection.abandon();
                    break;
                }
                () = unused_for.as_mut(), if role == Role::Regular => {
                    if used.elapsed() >= IDLE {
                        self.ping(&mut worker_connection.connection).await;
                        used = Instant::now();
                    }
                    unused_for.as_mut().reset(used + IDLE);
                    continue;
                }
                // Notices a broken connection before a request does.
                failure = worker_connection.connection.broken() => {
                    self.ended(worker_connection, failure);
                    break;
                }
            }
            if !self.is_of_use(worker_connection) {
                break;
            }
            if self.is_busy {
                read_sockets().await;
            }
            // The connection first: requests that arrive while it is busy join the batch.
            if let Some(taken) = queue.take() {
                self.is_busy = taken.batch.requests().nth(1).is_some();
                used = self.send(worker_connection, taken).await;
            }
        }
        Some(())
    }

    /// Asks on a connection that carried nothing for some time, so that no path on the way forgets it. It is replaced
    /// if there is no answer within the deadline of decisions.
    async fn ping(&mut self, connection: &mut Connection) {
        let question = PackedCommands::one(&[b"PING"]);
        // An unanswered question has made the connection unusable.
        if let Some(Ok(replies)) = within(self.options.deadline, connection.ask(&question)).await {
            self.judge(connection, &question, &replies);
        }
    }

    /// Handles the end of a connection. A server that closes connections as they come up is of no use, and says so to
    /// operators; one that closes a connection later may only have found it idle.
    fn ended(&self, worker_connection: &WorkerConnection, failure: NodeFailure) {
        if worker_connection.batches == 0 && worker_connection.came_up.elapsed() < AT_ONCE {
            self.record_failure();
            // Where a stand-in connects, the other connections work.
            if self.role == Role::Regular {
                self.node.lose(failure);
            }
        }
    }

    fn is_of_use(&self, worker_connection: &WorkerConnection) -> bool {
        let breaker = &self.node.breaker;
        !worker_connection.connection.is_broken()
            && worker_connection.era == breaker.era()
            && !breaker.is_open()
    }

    /// Sends one batch, and returns when it began to. Whatever happens, no command that may have counted is sent again.
    async fn send(
        &mut self,
        worker_connection: &mut WorkerConnection,
        taken: QueuedBatch<'_>,
    ) -> Instant {
        let connection = &mut worker_connection.connection;
        let options = self.options.clone();
        let began = Instant::now();
        self.known.forget_old(began);
        let script = match worker_connection.knows_script {
            _ if self.node.scripts.holds(began) => ScriptForm::None,
            true => ScriptForm::Digest,
            false => ScriptForm::Text,
        };
        let commands = self.commands(&options, &taken, script);
        self.scripts_on = commands.has_script.then_some(worker_connection.came_up);
        let longest = self.longest(&taken);
        let asked = self.round_trip(connection, &commands.packed, began, longest);
        let asked = asked.await;
        match asked {
            Ok(mut replies) => {
                self.follow_redirects(&commands.packed, &mut replies).await;
                self.run_unknown(connection, &commands, &mut replies).await;
                if taken.leases() {
                    self.run_refused(connection, &commands, &mut replies).await;
                }
                self.scripts_on = None;
                if commands.has_script && !connection.is_broken() {
                    self.node.scripts.record_answer();
                }
                self.judge(connection, &commands.packed, &replies);
                for command in commands.expire_commands() {
                    self.recent.add(&commands.packed, command, began);
                }
                for hash in commands.expiring(&replies) {
                    self.known.insert(hash);
                }
                taken.answer(commands.counts(&replies));
                worker_connection.batches += 1;
                worker_connection.knows_script |= commands.has_script;
                let reset_counters = Commands::reset_counters(&replies);
                if reset_counters > 0 {
                    self.servers.0.stats.record_reset_counters(reset_counters);
                }
                let lifts = commands.lifts(&replies);
                if !lifts.is_empty() {
                    self.lift(connection, &lifts).await;
                }
                let repairs = commands.repairs(&replies);
                if !repairs.is_empty() {
                    self.repair(connection, &repairs).await;
                }
            }
            Err(error) => {
                self.scripts_on = None;
                self.servers.0.owed.add(&commands.owed());
                taken.fail(error);
            }
        }
        taken.recycle();
        began
    }

    /// Lifts counts that were below zero. If that fails, the next hits try again. No request waits for this.
    async fn lift(&mut self, connection: &mut Connection, lifts: &PackedCommands) {
        let longest = self.options.deadline;
        let lifted = self.round_trip(connection, lifts, Instant::now(), longest);
        if let Ok(mut replies) = lifted.await {
            self.follow_redirects(lifts, &mut replies).await;
        }
    }

    /// Gives times to live to keys that lack one. No request waits for this.
    async fn repair(&mut self, connection: &mut Connection, repairs: &PackedCommands) {
        let longest = self.options.deadline;
        let repaired = self.round_trip(connection, repairs, Instant::now(), longest);
        match repaired.await {
            Ok(mut replies) => {
                self.follow_redirects(repairs, &mut replies).await;
                self.servers.0.owed.keep_undone(repairs, &replies);
            }
            Err(_) => self.servers.0.owed.add(repairs),
        }
    }

    /// Sends again the commands that could not run because the server did not know their script, as after SCRIPT
    /// FLUSH: the first one with the text of the script, which the server then knows. Behind one address can be several
    /// servers: what is still unknown goes with the text, too.
    async fn run_unknown(
        &mut self,
        connection: &mut Connection,
        commands: &Commands<'_>,
        replies: &mut [Value],
    ) {
        for with_text in [1, usize::MAX] {
            let unknown = commands.unknown(replies);
            if unknown.is_empty() {
                return;
            }
            let mut again = PackedCommands::default();
            for (number, &command) in unknown.iter().enumerate() {
                if number < with_text {
                    push_with_text(&mut again, &commands.packed, command);
                } else {
                    again.copy(&commands.packed, command);
                }
            }
            // If it fails the first replies stay, and they are errors.
            let longest = self.options.deadline;
            let asked = self.round_trip(connection, &again, Instant::now(), longest);
            let Ok(mut late) = asked.await else {
                return;
            };
            self.follow_redirects(&again, &mut late).await;
            for (command, reply) in unknown.into_iter().zip(late) {
                replies[command] = reply;
            }
        }
    }

    /// Sends leases again that the server refused for their time although their callers wait.
    async fn run_refused(
        &mut self,
        connection: &mut Connection,
        commands: &Commands<'_>,
        replies: &mut [Value],
    ) {
        let refused = commands.refused(replies, Instant::now());
        let mut again = PackedCommands::default();
        for (command, ends) in &refused {
            again.copy_with_last(&commands.packed, *command, ends.millis());
        }
        let longest = self.options.deadline;
        let asked = self.round_trip(connection, &again, Instant::now(), longest);
        let Ok(mut late) = asked.await else { return };
        self.follow_redirects(&again, &mut late).await;
        for ((command, _), reply) in refused.into_iter().zip(late) {
            replies[command] = reply;
        }
    }

    /// How long the answer to a batch is waited for while the node answers others. That to leased hits is followed
    /// after their callers have left.
    fn longest(&self, taken: &QueuedBatch<'_>) -> Duration {
        let followed = match self.role {
            _ if !taken.leases() => Duration::ZERO,
            Role::Regular => FOLLOWED,
            Role::StandIn => FOLLOWED_BY_STAND_IN,
        };
        self.options.deadline.max(followed)
    }

    /// Sends `commands`, which is what began at `began`, and returns one reply for each. Waits at most for `longest`
    /// while the node answers others.
    async fn round_trip(
        &mut self,
        connection: &mut Connection,
        commands: &PackedCommands,
        began: Instant,
        longest: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.servers.0.stats.record_pipeline(commands.len());
        self.node.stats.batches.fetch_add(1, Relaxed);
        let usual = self.node.suspect_after();
        let mut asked = pin!(connection.ask(commands));
        let replied = match self.late_reply.limit(began + usual, asked.as_mut()).await {
            Some(replied) => Some(replied),
            None => self.wait_on(usual, longest, asked).await,
        };
        match replied {
            Some(Ok(replies)) => Ok(replies),
            Some(Err(failure)) => {
                tracing::debug!(node = %self.node, %failure, "a batch failed");
                self.record_failure();
                let scripts = &self.node.scripts;
                let is_for_scripts = self
                    .scripts_on
                    .is_some_and(|came_up| scripts.record_end(came_up, Instant::now()));
                if !is_for_scripts {
                    self.node.lose(failure);
                } else if scripts.may_log() {
                    tracing::warn!(
                        node = %self.node, %failure,
                        "Redis ends connections for EVAL: limits that need a script answer as their on_store_loss says"
                    );
                }
                Err(StoreError::Unreachable)
            }
            None => {
                self.record_failure();
                Err(StoreError::Timeout)
            }
        }
    }

    /// Waits on for a reply that has already taken `usual`, which is longer than usual. Returns `None`
    /// if the connection is given up: the node answers others and `longest` is over, or it is lost and so is the wait
    /// of a request.
    async fn wait_on<F: Future>(
        &mut self,
        usual: Duration,
        longest: Duration,
        mut asked: Pin<&mut F>,
    ) -> Option<F::Output> {
        // This thread may have been held up while the reply arrived.
        read_sockets().await;
        if let Some(replied) = running::now(asked.as_mut()).await {
            return Some(replied);
        }
        let mut suspicion = self.node.suspect(usual);
        let mut ran = RunningTime::since(Instant::now());
        let mut is_cleared = false;
        let mut stalled = None;
        loop {
            tokio::select! {
                biased;
                replied = asked.as_mut() => return Some(replied),
                () = suspicion.cleared(), if !is_cleared => {
                    is_cleared = true;
                    stalled = (self.role == Role::Regular).then(|| self.queue.stalled());
                }
                _ = tick(&mut ran, TICK) => {}
            }
            let waited = usual + ran.total();
            let is_over = is_cleared && waited >= longest;
            let is_lost = self.node.breaker.is_open() && waited >= self.options.deadline;
            if is_over || is_lost {
                if is_cleared {
                    tracing::debug!(node = %self.node, "a silent connection is replaced");
                    self.node.stats.stalls.fetch_add(1, Relaxed);
                }
                drop(stalled);
                return None;
            }
        }
    }

    /// Follows redirects: sends the commands to the servers that the replies name, and replaces these
    /// replies. Only commands that were not carried out are sent again.
    async fn follow_redirects(&mut self, commands: &PackedCommands, replies: &mut [Value]) {
        let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
        if !replies.iter().any(is_error) {
            return;
        }
        let deadline = self.options.deadline;
        if within(deadline, self.send_on(commands, replies))
            .await
            .is_none()
        {
            // One of the servers is silent, and may answer these commands at any time.
            self.redirected.clear();
        }
    }

    async fn send_on(&mut self, commands: &PackedCommands, replies: &mut [Value]) {
        for _ in 0..MAX_REDIRECTS {
            let redirects = redirects(replies, &self.node.endpoint);
            if redirects.is_empty() {
                return;
            }
            self.redirected_at = Instant::now();
            if redirects.iter().any(|redirect| !redirect.is_ask) {
                self.servers.redirected();
            }
            for redirect in redirects {
                let count = redirect.commands.len() as u64;
                self.node.stats.redirects.fetch_add(count, Relaxed);
                let commands = redirect.commands(commands);
                let late = match self.redirect_connection(&redirect.target, &commands).await {
                    Ok(late) => late,
                    Err(failure) => {
                        tracing::debug!(node = %redirect.target, %failure, "following a redirect failed");
                        self.redirected.remove(&redirect.target);
                        return;
                    }
                };
                redirect.fill_in(replies, late);
            }
        }
    }

    /// One round trip to a server that need not be on the map.
    async fn redirect_connection(
        &mut self,
        target: &Endpoint,
        commands: &PackedCommands,
    ) -> Result<Vec<Value>, NodeFailure> {
        if !self.redirected.contains_key(target) {
            if self.redirected.len() >= MAX_REDIRECT_CONNECTIONS {
                self.redirected.clear();
            }
            let mut connection = self.servers.0.connector.connect(target).await?;
            // A server that refuses it is sent the text when it has to run it.
            connection.ask(&load_step()).await?;
            self.redirected.insert(target.clone(), connection);
        }
        let connection = self.redirected.get_mut(target);
        let connection = connection.expect("it was put there a line above");
        self.servers.0.stats.record_pipeline(commands.len());
        connection.ask(commands).await
    }

    /// Looks at error replies: some mean that the whole server is of no use for now.
    fn judge(&mut self, connection: &mut Connection, commands: &PackedCommands, replies: &[Value]) {
        let mut refusal = None;
        for (command, reply) in replies.iter().enumerate() {
            let Value::ServerError(error) = reply else {
                continue;
            };
            self.node.stats.refusals.fetch_add(1, Relaxed);
            if let Some(failure) = NodeFailure::of_reply(reply) {
                // A new connection may reach another server at the same endpoint.
                connection.abandon();
                self.record_failure();
                self.node.lose(failure);
                return;
            }
            if is_unserved_slot(reply) {
                self.servers.refresh();
            }
            refusal = Some((commands.name(command), error));
        }
        if let Some((command, error)) = refusal
            && self.refusals.may_log()
        {
            let said = words(error);
            let advice = advice(error).map(|advice| format!("; {advice}"));
            let advice = advice.unwrap_or_default();
            tracing::warn!(node = %self.node, command, said, "Redis refuses commands{advice}");
        }
    }

    fn record_failure(&self) {
        self.servers.0.stats.record_failure();
        self.node.stats.failures.fetch_add(1, Relaxed);
    }

    /// The commands of one batch.
    fn commands<'a>(
        &self,
        options: &'a Options,
        taken: &'a QueuedBatch<'_>,
        script: ScriptForm,
    ) -> Commands<'a> {
        let process = self.servers.clock().process;
        let batch = &taken.batch;
        let mut builder = PipelineBuilder::new(
            options,
            taken.now,
            batch.len(),
            script,
            |key| self.known.hasher.hash_one(key),
            |hash| self.known.contains(hash),
        );
        for (request, leaves) in taken.requests() {
            let leaves = leaves.and_then(|leaves| {
                let ends = self.node.time_at(process, leaves.into_std().into())?;
                Some((ends, leaves))
            });
            builder.request(batch.range(request), leaves);
        }
        builder.finish()
    }
}

/// Hashes of keys that are known to have a time to live. A key that is forgotten although it is still in
/// use costs one more EXPIRE. Each is forgotten after a while: another worker, or a failover, may have taken the time
/// to live without notice.
#[derive(Debug)]
struct KeysWithTtl {
    /// Random for each process, because values come from outside.
    hasher: quality::RandomState,
    hashes: Generations<u64, (), fast::RandomState>,
    /// When the young generation began.
    since: Instant,
}

impl KeysWithTtl {
    /// About 5 MB per generation at most, for 130,000 descriptors with two windows.
    const GENERATION: usize = 1 << 18;

    /// A key is trusted for once to twice as long.
    const TRUSTED: Duration = Duration::from_secs(15);

    fn new(now: Instant) -> Self {
        Self {
            hasher: quality::RandomState::default(),
            hashes: Generations::new(Self::GENERATION),
            since: now,
        }
    }

    fn forget_old(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed < Self::TRUSTED {
            return;
        }
        self.hashes.age();
        if passed >= 2 * Self::TRUSTED {
            self.hashes.age();
        }
        self.since = now;
    }

    fn contains(&self, hash: u64) -> bool {
        self.hashes.get(&hash).is_some()
    }

    fn insert(&mut self, hash: u64) {
        self.hashes.insert(&hash, (), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_are_bounded_and_the_recent_ones_kept() {
        let mut known = KeysWithTtl::new(Instant::now());
        for hash in 0..3 * KeysWithTtl::GENERATION as u64 + 5 {
            known.insert(hash);
        }
        assert!(known.hashes.len() <= 2 * KeysWithTtl::GENERATION);
        assert!(known.contains(3 * KeysWithTtl::GENERATION as u64 + 4));
        assert!(known.contains(2 * KeysWithTtl::GENERATION as u64));
        assert!(!known.contains(0));
    }

    #[test]
    fn no_key_is_trusted_for_longer_than_half_a_minute() {
        let start = Instant::now();
        for first in [0, 14, 16, 44] {
            let mut known = KeysWithTtl::new(start);
            let mut trusted_for = None;
            for second in 0..200 {
                let now = start + Duration::from_secs(second);
                known.forget_old(now);
                if second == first {
                    known.insert(7);
                }
                if second >= first && known.contains(7) {
                    trusted_for = Some(second - first);
                }
            }
            let range = 14..30;
            assert!(
                range.contains(&trusted_for.unwrap()),
                "{first}: {trusted_for:?}"
            );
        }
        // After a pause too.
        let mut known = KeysWithTtl::new(start);
        known.insert(7);
        known.forget_old(start + 2 * KeysWithTtl::TRUSTED);
        assert!(!known.contains(7));
    }
}
