//! The loop between one worker and one node: takes the requests that wait, sends them as a pipeline, and answers them.

use std::{
    mem,
    pin::pin,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use bb8_redis::redis::Value;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use super::{
    packed::PackedCommands,
    pipeline::{Commands, PipelineBuilder, ScriptForm},
    queue::QueuedRequest,
    redirect::Redirects,
    step::push_with_text,
};
use crate::{
    foundation::{lock::lock, log_throttle::LogThrottle},
    store::{
        contract::StoreError,
        known::Known,
        redis::{
            connection::Connection,
            failure::{NodeFailure, Reaction, SetbackPauses, advice, words},
            node::Node,
            options::Options,
            pool::{ConnectionPool, MAX_FOLLOWED, PooledWorkerConnection, WorkerConnection},
            topology::servers::Servers,
            wait::{at_once, by, read_sockets, within},
        },
    },
};

/// The most increments of one pipeline, unless a single request has more. More would keep Redis busy for longer than a
/// decision may wait, and then no decision would ever be in time.
const MAX_INCREMENTS: usize = 1024;

/// The least time that a batch has after it is written: its requests may have waited for this process until then.
const LEAST_WAIT: Duration = Duration::from_millis(20);

/// A connection that carried nothing for this long is asked whether it still works, and those for redirected commands
/// are closed if none was redirected.
const IDLE: Duration = Duration::from_secs(1);

/// How long the answer to leased hits is followed after their connection was replaced. Networks send a lost segment
/// again sooner.
const FOLLOWED: Duration = Duration::from_secs(10);

/// A connection that ends within this time has ended as it came up.
const AT_ONCE: Duration = Duration::from_secs(1);

/// EXPIRE commands of batches that failed, of all nodes of one worker: it is not known which of their keys were
/// created, and they count nothing. Commands beyond [`MAX_OWED_BYTES`] are dropped; these keys have an end with their
/// next hit.
pub(crate) type OwedExpiries = Arc<Mutex<PackedCommands>>;

/// The EXPIRE commands of a few full batches.
const MAX_OWED_BYTES: usize = 1 << 20;

/// The loop of one worker and node, with one connection.
#[derive(Debug)]
pub(crate) struct Batcher {
    pub(super) node: Arc<Node>,
    requests: mpsc::Receiver<QueuedRequest>,
    /// A request that was received and is in no batch yet.
    next: Option<QueuedRequest>,
    servers: Arc<Servers>,
    options: Arc<Options>,
    known: Arc<Known>,
    /// Where keys are known to have a time to live: on the connection of now.
    place: u64,
    owed: OwedExpiries,
    redirects: Redirects,
    /// Whether the last batch held more than one request, so that more are probably arriving.
    is_busy: bool,
    /// Whether the server refused the last connection, and the pauses after such connections in a row.
    is_unwelcome: bool,
    setbacks: SetbackPauses,
    /// Batches with leased hits whose answer is late.
    followed: JoinSet<()>,
    /// Throttles the line about commands that Redis refuses.
    refusals: LogThrottle,
}

/// Requests that were sent together.
struct SentBatch {
    requests: Vec<QueuedRequest>,
    commands: Commands,
}

impl Batcher {
    pub(crate) fn new(
        node: Arc<Node>,
        requests: mpsc::Receiver<QueuedRequest>,
        servers: Arc<Servers>,
        options: Arc<Options>,
        known: Arc<Known>,
        owed: OwedExpiries,
    ) -> Self {
        Self {
            redirects: Redirects::new(node.clone(), servers.clone(), options.deadline),
            node,
            requests,
            next: None,
            servers,
            options,
            place: known.new_place(),
            known,
            owed,
            is_busy: false,
            is_unwelcome: false,
            setbacks: SetbackPauses::new(),
            followed: JoinSet::new(),
            refusals: LogThrottle::new(),
        }
    }

    /// Serves the queue until its end. While the node is lost only the probe connects to it.
    pub(crate) async fn run(mut self, mut pool: ConnectionPool) {
        let mut failure = self.node.failure_watch();
        while self.until_found(&mut failure).await {
            if let Some(connection) = self.connect(&mut pool, &failure).await
                && self.serve(connection, &mut failure).await.is_none()
            {
                return;
            }
            if mem::take(&mut self.is_unwelcome) {
                self.pause().await;
            }
            // Another server may have taken the node's place, without its last seconds.
            self.place = self.known.new_place();
            self.redirects.close();
        }
    }

    /// Waits until the node is not lost, and refuses requests meanwhile. Returns whether the queue goes on.
    async fn until_found(&mut self, failure: &mut watch::Receiver<Option<NodeFailure>>) -> bool {
        loop {
            if failure.borrow_and_update().is_none() {
                return true;
            }
            tokio::select! {
                // A request that came after its return is sent.
                biased;
                // The node keeps the sender.
                _ = failure.changed() => {}
                request = Self::receive(&mut self.next, &mut self.requests) => match request {
                    Some(mut request) => _ = request.answer(Err(StoreError::Unsent)),
                    None => return false,
                }
            }
        }
    }

    /// The next request, or `None` at the end of the queue.
    async fn receive(
        next: &mut Option<QueuedRequest>,
        requests: &mut mpsc::Receiver<QueuedRequest>,
    ) -> Option<QueuedRequest> {
        match next.take() {
            Some(next) => Some(next),
            None => requests.recv().await,
        }
    }

    /// Fails the request that waits longest once its time is over. Nothing is lost if it is dropped before.
    async fn fail_next(&mut self) {
        if self.next.is_none() {
            self.next = self.requests.recv().await;
        }
        match &self.next {
            Some(next) => sleep_until(next.ends).await,
            None => std::future::pending().await,
        }
        if let Some(mut late) = self.next.take() {
            late.answer(Err(StoreError::TimedOutUnsent));
        }
    }

    /// Waits before the next connection, because the server refused the last one though it may have answered the probe.
    async fn pause(&mut self) {
        let pause = self.setbacks.next_pause();
        let fail_late = async {
            loop {
                self.fail_next().await;
            }
        };
        let _: Result<(), _> = timeout(pause, fail_late).await;
    }

    fn fail_all(&mut self) {
        while let Some(mut request) = self.next.take().or_else(|| self.requests.try_recv().ok()) {
            request.answer(Err(StoreError::Unsent));
        }
    }

    /// A connection as soon as there is one, or `None` if none comes up.
    async fn connect(
        &mut self,
        pool: &mut ConnectionPool,
        known: &watch::Receiver<Option<NodeFailure>>,
    ) -> Option<PooledWorkerConnection> {
        let mut connecting = pin!(pool.get());
        let connected = loop {
            tokio::select! {
                biased;
                connected = &mut connecting => break connected,
                () = self.fail_next() => {}
            }
        };
        match connected {
            Ok(connection) => return Some(connection),
            // The node was lost meanwhile, and may be back.
            Err(_) if known.has_changed().is_ok_and(|has_changed| has_changed) => {}
            // The probe judges whether the node is silent.
            Err(NodeFailure::Silent) => self.node.wake_probe(),
            Err(failure) => self.node.lose(failure),
        }
        self.record_failure();
        None
    }

    /// Sends batches for as long as the connection is good. Returns `None` at the end of the queue.
    async fn serve(
        &mut self,
        mut connection: PooledWorkerConnection,
        failure: &mut watch::Receiver<Option<NodeFailure>>,
    ) -> Option<()> {
        let owed = mem::take(&mut *lock(&self.owed));
        if !owed.is_empty() {
            let batch = SentBatch {
                requests: Vec::new(),
                commands: Commands::expiries(owed),
            };
            connection = match self.exchange(connection, batch, failure).await {
                Some(good) => good,
                None => return Some(()),
            };
        }
        let mut idle = interval(IDLE);
        idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_unused = false;
        while !connection.connection.is_broken {
            if self.node.is_lost() {
                // A server that refuses further connections answers on those that it has.
                if !matches!(self.node.failure(), Some(NodeFailure::Refuses(_))) {
                    // It may lead to a server that is gone. The pool would keep it.
                    connection.connection.is_broken = true;
                    break;
                }
                if !self.until_found(failure).await {
                    return None;
                }
            }
            let first = tokio::select! {
                biased;
                request = Self::receive(&mut self.next, &mut self.requests) => Some(request?),
                _ = failure.changed() => continue,
                // Notices a broken connection before a request does.
                failure = connection.connection.broken() => {
                    self.ended(&connection, failure);
                    break;
                }
                _ = idle.tick() => None,
            };
            let requests = match first {
                Some(first) => {
                    let requests = self.gather(first).await;
                    if requests.is_empty() {
                        continue;
                    }
                    requests
                }
                None => {
                    self.redirects.close();
                    if !mem::replace(&mut is_unused, true) {
                        continue;
                    }
                    Vec::new()
                }
            };
            is_unused &= requests.is_empty();
            let batch = SentBatch {
                commands: self.commands(&requests, &connection),
                requests,
            };
            match self.exchange(connection, batch, failure).await {
                Some(good) => connection = good,
                None => break,
            }
        }
        Some(())
    }

    /// The requests of one pipeline: those that wait, without those whose callers have left or whose time is over. What
    /// is not sent is not counted.
    async fn gather(&mut self, first: QueuedRequest) -> Vec<QueuedRequest> {
        if self.is_busy {
            read_sockets().await;
        }
        let now = Instant::now();
        let (mut requests, mut increments) = (Vec::new(), 0);
        let mut next = Some(first);
        while let Some(mut request) = next.take().or_else(|| self.requests.try_recv().ok()) {
            if request.is_deserted() {
                continue;
            }
            if request.is_timed && request.ends <= now {
                request.answer(Err(StoreError::TimedOutUnsent));
                continue;
            }
            increments += request.batch.len();
            if increments > MAX_INCREMENTS && !requests.is_empty() {
                self.next = Some(request);
                break;
            }
            requests.push(request);
        }
        self.is_busy = requests.len() > 1;
        requests
    }

    /// Handles the end of a connection. A server that closes connections as they come up is of no use, and says so to
    /// operators; one that closes a connection later may only have found it idle.
    fn ended(&mut self, connection: &WorkerConnection, failure: NodeFailure) {
        if connection.batches == 0 && connection.came_up.elapsed() < AT_ONCE {
            self.is_unwelcome = matches!(failure, NodeFailure::Refuses(_));
            self.record_failure();
            self.node.lose(failure);
        }
    }

    /// Sends one batch and answers it. Whatever happens, no command that may have counted is sent again. Returns the
    /// connection if it can be used again.
    async fn exchange(
        &mut self,
        mut connection: PooledWorkerConnection,
        mut batch: SentBatch,
        failure: &mut watch::Receiver<Option<NodeFailure>>,
    ) -> Option<PooledWorkerConnection> {
        let began = Instant::now();
        let first = batch.requests.iter().map(|request| request.began).min();
        self.record_pipeline(batch.commands.packed.len());
        let lost_at = began + self.options.lose_after;
        let sending = connection.connection.send(&batch.commands.packed);
        if by(lost_at, pin!(sending)).await.is_none() {
            self.late(batch, None);
            return None;
        }
        let end = (first.unwrap_or(began) + self.options.deadline).max(Instant::now() + LEAST_WAIT);
        let mut replied = self.replies(&mut connection, end, failure, true).await;
        if replied.is_none() {
            // The batch is late, but for its leases. The connection can be used again once it has read the replies.
            let mut late = 0;
            for request in batch.requests.iter_mut().filter(|one| !one.is_lease) {
                request.answer(Err(StoreError::Timeout));
                late += 1;
            }
            self.node.stats.late.fetch_add(late, Relaxed);
            self.record_failure();
            replied = self
                .replies(&mut connection, lost_at.max(end), failure, false)
                .await;
        }
        match replied {
            Some(Ok(replies)) => {
                self.answer(batch, &mut connection, replies).await;
                Some(connection)
            }
            Some(Err(failure)) => {
                self.broke(&batch, &connection, failure);
                None
            }
            None => {
                self.late(batch, Some(connection));
                None
            }
        }
    }

    /// The replies, or `None` if they are not there at `end`, or, unless they are `in_time`, once the node is lost or
    /// has answered the probe promptly: then this connection alone stands still. Requests that wait meanwhile are
    /// answered when the node is lost, and when their own time is over unless the replies are in time.
    async fn replies(
        &mut self,
        connection: &mut WorkerConnection,
        end: Instant,
        failure: &mut watch::Receiver<Option<NodeFailure>>,
        in_time: bool,
    ) -> Option<Result<Vec<Value>, NodeFailure>> {
        let node = self.node.clone();
        let mut prompt_answer = pin!(node.prompt_answer.notified());
        if !in_time {
            prompt_answer.as_mut().enable();
            node.wake_probe();
        }
        let mut receiving = pin!(connection.connection.receive());
        loop {
            tokio::select! {
                biased;
                replied = &mut receiving => return Some(replied),
                () = &mut prompt_answer, if !in_time => return at_once(receiving).await,
                _ = failure.changed() => if self.node.is_lost() {
                    self.fail_all();
                    if !in_time {
                        return None;
                    }
                },
                () = self.fail_next(), if !in_time => {}
                () = sleep_until(end) => return at_once(receiving).await,
            }
        }
    }

    /// Gives up the connection of a batch. The answer to leased hits is followed on it, if there are some.
    fn late(&mut self, mut batch: SentBatch, connection: Option<PooledWorkerConnection>) {
        tracing::debug!(node = %self.node.endpoint, "a silent connection is replaced");
        self.node.wake_probe();
        self.owe(&batch.commands.owed());
        while self.followed.try_join_next().is_some() {}
        let is_awaited = batch.requests.iter().any(|request| !request.is_deserted());
        if let Some(mut connection) = connection
            && is_awaited
            && self.followed.len() < MAX_FOLLOWED as usize
        {
            self.followed.spawn(async move {
                let replied = timeout(FOLLOWED, connection.connection.receive()).await;
                if let Ok(Ok(replies)) = replied {
                    batch.commands.answer(&replies, &mut batch.requests);
                }
                connection.connection.is_broken = true;
            });
        }
    }

    /// Handles a connection that broke before it brought all replies.
    fn broke(&self, batch: &SentBatch, connection: &WorkerConnection, failure: NodeFailure) {
        tracing::debug!(node = %self.node.endpoint, %failure, "a batch failed");
        self.record_failure();
        self.owe(&batch.commands.owed());
        let scripts = &self.node.scripts;
        if batch.commands.has_script && scripts.record_end(connection.came_up, Instant::now()) {
            if scripts.may_log() {
                tracing::warn!(
                    node = %self.node.endpoint, %failure,
                    "Redis ends connections for EVAL: limits that need a script answer as their on_store_loss says"
                );
            }
        } else {
            self.node.lose(failure);
        }
    }

    /// Answers the requests of a batch.
    async fn answer(
        &mut self,
        mut batch: SentBatch,
        connection: &mut WorkerConnection,
        mut replies: Vec<Value>,
    ) {
        let commands = &batch.commands;
        let is_count = |reply: &Value| matches!(reply, Value::Int(_));
        if commands.has_script || !replies.iter().all(is_count) {
            self.complete(connection, commands, &mut replies).await;
        }
        self.known.set_ends(self.place, commands.expiring(&replies));
        let [answered, late] = commands.answer(&replies, &mut batch.requests);
        let stats = &self.node.stats;
        stats.answered.fetch_add(answered, Relaxed);
        stats.late.fetch_add(late, Relaxed);
        stats.was_used.store(true, Relaxed);
        connection.batches += 1;
        self.setbacks = SetbackPauses::new();
        // No request waits for these. Without them, the next hits try again.
        self.ask(&mut connection.connection, &commands.lifts(&replies))
            .await;
        let repairs = commands.repairs(&replies);
        if self
            .ask(&mut connection.connection, &repairs)
            .await
            .is_none()
        {
            self.owe(&repairs);
        }
    }

    /// Carries out what error replies and scripts need: redirected commands and unknown scripts are sent again, and
    /// `replies` gets their replies.
    async fn complete(
        &mut self,
        connection: &mut WorkerConnection,
        commands: &Commands,
        replies: &mut [Value],
    ) {
        self.redirects.follow(&commands.packed, replies).await;
        self.run_again(&mut connection.connection, commands, replies)
            .await;
        if commands.has_script && !connection.connection.is_broken {
            self.node.scripts.record_answer();
        }
        connection.knows_script |= commands.has_script;
        self.judge(&mut connection.connection, &commands.packed, replies);
        self.owe(&commands.undone(replies));
        let reset_counters = Commands::reset_counters(replies);
        if reset_counters > 0 {
            self.servers.stats.record_reset_counters(reset_counters);
        }
    }

    fn owe(&self, commands: &PackedCommands) {
        let mut owed = lock(&self.owed);
        for command in 0..commands.len() {
            if owed.bytes().len() >= MAX_OWED_BYTES {
                return;
            }
            owed.copy(commands, command);
        }
    }

    /// Sends again the scripts that did not run: those that the server does not know, as after SCRIPT FLUSH, the first
    /// one with the text, which the server then knows. Behind one address can be several servers: what is still unknown
    /// goes with the text, too. And leases that the server refused for their time although their callers wait.
    async fn run_again(
        &mut self,
        connection: &mut Connection,
        commands: &Commands,
        replies: &mut [Value],
    ) {
        for with_text in [1, usize::MAX] {
            let unknown = commands.unknown(replies);
            let mut again = PackedCommands::default();
            for (number, &command) in unknown.iter().enumerate() {
                if number < with_text {
                    push_with_text(&mut again, &commands.packed, command);
                } else {
                    again.copy(&commands.packed, command);
                }
            }
            self.replace(connection, &again, &unknown, replies).await;
        }
        let (mut again, mut refused) = (PackedCommands::default(), Vec::new());
        for (command, ends) in commands.refused(replies, Instant::now()) {
            again.copy_with_last(&commands.packed, command, ends.millis());
            refused.push(command);
        }
        self.replace(connection, &again, &refused, replies).await;
    }

    /// Replaces the replies at `places` by those to `commands`. If there are none the first stay, which are errors.
    async fn replace(
        &mut self,
        connection: &mut Connection,
        commands: &PackedCommands,
        places: &[usize],
        replies: &mut [Value],
    ) {
        let late = self.ask(connection, commands).await.unwrap_or_default();
        for (place, reply) in places.iter().zip(late) {
            replies[*place] = reply;
        }
    }

    /// The replies to further commands, redirects followed; `None` if the connection cannot be used any more.
    async fn ask(
        &mut self,
        connection: &mut Connection,
        commands: &PackedCommands,
    ) -> Option<Vec<Value>> {
        if commands.is_empty() {
            return Some(Vec::new());
        }
        self.record_pipeline(commands.len());
        // A question without all of its replies has made the connection unusable.
        let asked = within(self.options.lose_after, connection.ask(commands)).await;
        let mut replies = asked?.ok()?;
        self.redirects.follow(commands, &mut replies).await;
        Some(replies)
    }

    /// Looks at error replies: some mean that the whole server is of no use for now.
    fn judge(&mut self, connection: &mut Connection, commands: &PackedCommands, replies: &[Value]) {
        let mut refusal = None;
        for (command, reply) in replies.iter().enumerate() {
            let Value::ServerError(error) = reply else {
                continue;
            };
            self.node.stats.refusals.fetch_add(1, Relaxed);
            match Reaction::to(reply) {
                Some(Reaction::Lose(failure)) => {
                    // A new connection may reach another server at the same endpoint.
                    connection.is_broken = true;
                    self.record_failure();
                    return self.node.lose(failure);
                }
                Some(Reaction::AskForSlots) => self.servers.refresh_requested.notify_one(),
                _ => {}
            }
            refusal = Some((commands.name(command), error));
        }
        if let Some((command, error)) = refusal
            && self.refusals.may_log()
        {
            let said = words(error);
            let advice = advice(error).map_or(String::new(), |advice| format!("; {advice}"));
            tracing::warn!(node = %self.node.endpoint, command, said, "Redis refuses commands{advice}");
        }
    }

    fn record_pipeline(&self, commands: usize) {
        self.servers.stats.record_pipeline(commands);
        self.node.stats.batches.fetch_add(1, Relaxed);
    }

    /// Counts a batch that failed, or a connection that did not come up.
    fn record_failure(&self) {
        self.servers.stats.failures.fetch_add(1, Relaxed);
        self.node.stats.failures.fetch_add(1, Relaxed);
    }

    /// The commands of some requests; without any, a PING.
    fn commands(&mut self, requests: &[QueuedRequest], connection: &WorkerConnection) -> Commands {
        let Some(last) = requests.last() else {
            return Commands::ping();
        };
        let began = Instant::now();
        let ends = self.known.ends(began.into());
        let script = match connection.knows_script {
            _ if self.node.scripts.holds(began) => ScriptForm::None,
            true => ScriptForm::Digest,
            false => ScriptForm::Text,
        };
        let process = self.servers.clock.process;
        let mut builder = PipelineBuilder::new(
            &self.options,
            last.now,
            requests.iter().map(|request| request.batch.len()).sum(),
            script,
            |key| self.known.hash(key),
            |hash| ends.contains(self.place, hash),
        );
        for request in requests {
            let leaves = request.is_lease.then_some(request.ends).and_then(|ends| {
                let of_node = self.node.time_at(process, ends.into_std().into())?;
                Some((of_node, ends))
            });
            builder.request(request.batch.iter(), leaves);
        }
        builder.finish()
    }
}
