//! Histories of reservations: clients reserve, settle, release, repeat and give up, operators reset, rules are
//! reloaded, windows end, tollgate restarts or is killed, and Redis is frozen, late, killed or emptied. After each
//! round all counters are read from Redis past tollgate, and hold exactly as much as a model says. So:
//!
//! - a request is admitted if and only if its hits fit beside all that is charged (the cover);
//! - no hit is charged, given back or settled twice, and none is forgotten;
//! - a cost is charged whatever happens to its token or the store, unless an answer is unknown;
//! - no ended window changes, because its counter is compared too.
//!
//! tollgate's own clock is set by the history, and always is hours away from the end of a window.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fs,
    time::{Duration, Instant},
};

use ::tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor,
    service::ratelimit::v3::RateLimitResponse,
};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::{error::Elapsed, sleep, timeout},
};
use tonic::Status;

use super::{
    model::{
        Asking, Changes, DAY, ESTIMATE, EndKind, HitChange, Lease, LeaseModel, RulesInUse, VARIANTS,
    },
    stores::{Place, Stores},
};
use crate::it::support::{
    PATIENCE, Random,
    ask::{Client, connect, descriptor, is_ok, request, send, token, with_hits},
    eventually, http,
    tollgate::{self, Tollgate},
    wait_until,
    wall_clock::{WallClock, true_time},
};

/// The tenants at a time. A round asks for each at most once.
const TENANTS: usize = 6;

const KEPT: usize = 60;

/// tollgate waits so long for Redis, also on a busy machine, or for one that is late.
const PATIENT: &str = "10s";
const IMPATIENT: &str = "300ms";

/// Costs that wait for Redis are sent within a second of its return.
const SENT_WITHIN: Duration = Duration::from_millis(1500);

/// A caller that gives up waits so long for a frozen Redis.
const GIVES_UP_AFTER: Duration = Duration::from_millis(100);

/// One of so many rounds has an event; the others have only calls.
const ROUNDS_PER_EVENT: usize = 6;

/// A Redis that is late does not answer in time; one that is lost was killed, and comes back as it was.
const EVENTS: [&str; 23] = [
    "burst", "frozen", "clock", "reset", "give up", "reload", "burst", "killed", "clock", "frozen",
    "lost", "burst", "reset", "clock", "reload", "late", "give up", "burst", "restart", "frozen",
    "clock", "reload", "emptied",
];

/// These happen in every history as well, unless it is too small. Others depend on time.
const STEPS: &str = "cancelled, failed, refused, released, repeated, reserved, settled, settled elsewhere too, \
    unknown, unreserved";

pub type LeaseSteps = BTreeMap<&'static str, usize>;

/// # Panics
///
/// If a counter or an answer is not as in the model, or a step never happened.
pub async fn run(place: Place, calls: usize, seed: u64) -> LeaseSteps {
    let mut history = History::start(place, seed).await;
    let mut round = 0;
    while history.calls < calls {
        history.say(format!("round {round}"));
        history.round(round).await;
        history.check().await;
        round += 1;
        let old = history.leases.len().saturating_sub(KEPT);
        history.leases.drain(..old);
        let old = history.said.len().saturating_sub(60);
        history.said.drain(..old);
    }
    let done = std::mem::take(&mut history.done);
    for step in STEPS.split(", ").chain(EVENTS) {
        assert!(done.contains_key(step), "no {step}: {done:?}");
    }
    done
}

struct Replica {
    server: Tollgate,
    clients: Vec<Client>,
    /// How many processes were started before it.
    process: usize,
}

/// A tenant, and its hits.
type Sent = (String, Option<u64>);

#[derive(Clone, Debug)]
enum Message {
    Reserve(Vec<Sent>),
    End {
        /// The index of the lease, and of each of its parts, with a cost.
        lease: usize,
        parts: Vec<(usize, Option<u64>)>,
        kind: EndKind,
    },
    Unreserved(String, u64),
}

#[derive(Debug)]
struct Call {
    /// How many calls were sent before it.
    number: usize,
    message: Message,
    asking: Asking,
    reply: Answer,
}

/// An error if its caller gave up.
type Answer = Result<Result<RateLimitResponse, Status>, Elapsed>;

/// After which time the caller of a message gives up.
type Patience = fn(&mut History) -> Option<Duration>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unanswered {
    /// Each call is answered, unless its caller gives up: then it may have come or not.
    MayCount,
    /// Hits that are reserved for a caller that has gone are given back, and its orders are carried out.
    GivenBack,
    /// The store is known to be lost. Costs wait for it, and nothing else happens.
    Lost,
    Unknown,
}

struct History {
    random: Random,
    clock: WallClock,
    /// How far it is ahead, in seconds.
    ahead: i64,
    stores: Stores,
    replicas: Vec<Replica>,
    started: usize,
    rules: RulesInUse,
    /// Then there are other tenants, because each process may know for a second that the old ones are over their limit.
    losses: usize,
    leases: Vec<Lease>,
    model: LeaseModel,
    calls: usize,
    done: LeaseSteps,
    said: VecDeque<String>,
}

impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said: Vec<_> = self.said.drain(..).collect();
            eprintln!("{}", said.join("\n"));
        }
    }
}

impl History {
    async fn start(place: Place, seed: u64) -> Self {
        let mut history = Self {
            random: Random::new(seed),
            clock: WallClock::start(),
            ahead: 0,
            stores: Stores::start(place),
            replicas: Vec::new(),
            started: 0,
            rules: RulesInUse::default(),
            losses: 0,
            leases: Vec::new(),
            model: LeaseModel::default(),
            calls: 0,
            done: LeaseSteps::new(),
            said: VecDeque::new(),
        };
        history.set_clock(0).await;
        history.start_replicas(PATIENT).await;
        history
    }

    /// One process with a cache of full counters, or two without: it does not know of the other's settlements.
    async fn start_replicas(&mut self, patience: &str) {
        self.replicas.clear();
        let count = 1 + self.below(2);
        let args = self.stores.args();
        for _ in 0..count {
            let mut builder = tollgate::with_rules(&self.rules.text());
            builder = builder.args(args.iter().map(String::as_str));
            builder = builder.args(["--redis-timeout", patience, "--clock", "local"]);
            if count > 1 {
                builder = builder.args(["--local-cache-bytes", "0"]);
            }
            let server = builder.with_wall_clock(&self.clock).start();
            let clients = [connect(server.grpc).await, connect(server.grpc).await].into();
            self.replicas.push(Replica {
                server,
                clients,
                process: self.started,
            });
            self.started += 1;
        }
        self.await_health().await;
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("it fits");
        usize::try_from(self.random.below(bound)).expect("it is below")
    }

    fn say(&mut self, said: String) {
        self.said.push_back(said);
    }

    fn tenant(&self, number: usize) -> String {
        format!("{}-{number}", self.losses)
    }

    fn any_tenant(&mut self) -> String {
        let number = self.below(TENANTS);
        self.tenant(number)
    }

    fn note(&mut self, step: &'static str) {
        *self.done.entry(step).or_default() += 1;
    }

    fn now(&self) -> u64 {
        let millis = u64::try_from(true_time().as_millis()).expect("it fits");
        millis.saturating_add_signed(self.ahead * 1000)
    }

    /// Sets the clock to an hour around noon, so many days from now.
    async fn set_clock(&mut self, days: i64) {
        const AROUND: usize = 3 * 3600;
        let day = (self.now() / 1000 / DAY).saturating_add_signed(days);
        let target = day * DAY + DAY / 2 + u64::try_from(self.below(2 * AROUND)).expect("it fits");
        let target = target.cast_signed() - AROUND as i64;
        self.ahead = target - true_time().as_secs().cast_signed();
        self.clock.set(self.ahead);
        // A worker uses a reading for a millisecond.
        sleep(Duration::from_millis(2)).await;
    }

    async fn round(&mut self, round: usize) {
        if round % ROUNDS_PER_EVENT != ROUNDS_PER_EVENT - 1 {
            let messages = self.messages();
            return self.call(messages, |_| None, Unanswered::MayCount).await;
        }
        let event = EVENTS[round / ROUNDS_PER_EVENT % EVENTS.len()];
        self.say(event.to_owned());
        match event {
            "burst" => self.burst().await,
            "frozen" => self.freeze().await,
            "give up" => {
                let messages = self.messages();
                let patience: Patience =
                    |history| Some(Duration::from_micros(history.random.below(3_000)));
                self.call(messages, patience, Unanswered::MayCount).await;
                self.pass_through().await;
            }
            "killed" => self.kill_tollgate().await,
            "restart" => self.restart_tollgate().await,
            "late" => self.be_late().await,
            "lost" => self.lose(true).await,
            "emptied" => self.lose(false).await,
            "clock" => {
                let days = [0, 1, 1, 2, 3, 7, -1][self.below(7)];
                self.set_clock(days).await;
            }
            "reload" => self.reload().await,
            "reset" => self.reset_between().await,
            other => unreachable!("{other} is no event"),
        }
        self.note(event);
    }

    fn messages(&mut self) -> Vec<Message> {
        let mut used = HashSet::new();
        let mut messages = Vec::new();
        for _ in 0..TENANTS {
            let message = match self.below(20) {
                0..8 => self.reserve(),
                8..14 => self.end(EndKind::Settle),
                14..16 => self.end(EndKind::All),
                16..18 => self.end(EndKind::Release),
                _ => {
                    let tenant = self.any_tenant();
                    Some(Message::Unreserved(tenant, self.random.below(50)))
                }
            };
            let Some(message) = message else { continue };
            let tenants = self.tenants(&message);
            if tenants.iter().all(|tenant| !used.contains(tenant)) {
                used.extend(tenants);
                messages.push(message);
            }
        }
        messages
    }

    fn tenants(&self, message: &Message) -> Vec<String> {
        match message {
            Message::Reserve(hits) => hits.iter().map(|(tenant, _)| tenant.clone()).collect(),
            Message::End { lease, .. } => {
                let parts = &self.leases[*lease].parts;
                parts.iter().map(|part| part.tenant.clone()).collect()
            }
            Message::Unreserved(tenant, _) => vec![tenant.clone()],
        }
    }

    fn reserve(&mut self) -> Option<Message> {
        let first = self.below(TENANTS);
        let mut numbers = vec![first];
        if self.below(4) == 0 {
            numbers.push((first + 1 + self.below(TENANTS - 1)) % TENANTS);
        }
        let mut hits = Vec::new();
        for number in numbers {
            let sent = match self.below(8) {
                0..4 => None,
                4..7 => Some(1 + self.random.below(400)),
                // More than the lowest limit.
                _ => Some(500 + self.random.below(300)),
            };
            hits.push((self.tenant(number), sent));
        }
        Some(Message::Reserve(hits))
    }

    fn end(&mut self, kind: EndKind) -> Option<Message> {
        let count = self.leases.len();
        if count == 0 {
            return None;
        }
        let lease = match self.below(4) {
            0 => self.below(count),
            _ => count - 1 - self.below(count.min(10)),
        };
        let is_unclear = self.leases[lease].parts.is_empty();
        if is_unclear || self.leases[lease].is_on_an_edge(self.now()) {
            return None;
        }
        let mut parts = Vec::new();
        for index in 0..self.leases[lease].parts.len() {
            if index == 0 || self.below(2) == 0 {
                let cost = (self.below(8) > 0).then(|| self.random.below(300));
                parts.push((index, cost));
            }
        }
        Some(Message::End { lease, parts, kind })
    }

    fn descriptors(&self, message: &Message) -> Vec<RateLimitDescriptor> {
        let one = |tenant: &str, order: Option<(&str, &str)>, hits_addend: Option<u64>| {
            let mut entries = vec![("tenant", tenant)];
            entries.extend(order);
            RateLimitDescriptor {
                hits_addend,
                ..descriptor(&entries)
            }
        };
        let unreserved = ("tollgate.unreserved", "1");
        match message {
            Message::Reserve(hits) => {
                let each = hits.iter().map(|(tenant, hits)| one(tenant, None, *hits));
                each.collect()
            }
            Message::Unreserved(tenant, cost) => {
                vec![one(tenant, Some(unreserved), Some(*cost))]
            }
            Message::End { lease, parts, kind } => {
                let lease = &self.leases[*lease];
                let settle = ("tollgate.reservation", &*lease.token);
                let release = ("tollgate.release", &*lease.token);
                let orders = |(index, cost): &(usize, Option<u64>)| {
                    let tenant = &lease.parts[*index].tenant;
                    match kind {
                        EndKind::Settle => vec![one(tenant, Some(settle), *cost)],
                        EndKind::Release => vec![one(tenant, Some(release), None)],
                        EndKind::All => vec![
                            one(tenant, Some(settle), *cost),
                            one(tenant, Some(unreserved), *cost),
                            one(tenant, Some(release), None),
                        ],
                    }
                };
                parts.iter().flat_map(orders).collect()
            }
        }
    }

    fn asking(&self, process: usize) -> Asking {
        Asking {
            process,
            now: self.now(),
            rules: self.rules,
        }
    }

    /// Sends all messages at once, each through any connection. Callers with a patience give up after it.
    fn send(&mut self, messages: Vec<Message>, patience: Patience) -> JoinSet<Call> {
        let mut calls = JoinSet::new();
        for message in messages {
            let number = self.below(self.replicas.len());
            let replica = &self.replicas[number];
            let asking = self.asking(replica.process);
            let connections = replica.clients.len();
            let connection = self.below(connections);
            let mut client = self.replicas[number].clients[connection].clone();
            let sent = request("llm", self.descriptors(&message));
            let patience = patience(self);
            self.say(format!("to {}: {message:?}, {patience:?}", asking.process));
            let number = self.calls;
            self.calls += 1;
            calls.spawn(async move {
                let reply = timeout(patience.unwrap_or(PATIENCE), send(&mut client, sent)).await;
                Call {
                    number,
                    message,
                    asking,
                    reply,
                }
            });
        }
        calls
    }

    async fn call(&mut self, messages: Vec<Message>, patience: Patience, unanswered: Unanswered) {
        let calls = self.send(messages, patience);
        for call in answers(calls).await {
            self.judge(call, unanswered);
        }
    }

    /// Compares an answer with the model, which then has the effect of the call.
    fn judge(&mut self, call: Call, unanswered: Unanswered) {
        let (asking, reply) = (call.asking, call.reply);
        self.say(format!("{:?}: {reply:?}", call.message));
        match call.message {
            Message::Reserve(hits) => self.reserved(&hits, asking, reply, unanswered),
            Message::End { lease, parts, kind } => {
                let mut changes = Changes::new();
                for (index, cost) in parts {
                    let end = (kind, cost);
                    let ended = self.model.end(&mut self.leases[lease], index, end, asking);
                    self.note(ended.0);
                    changes.extend(ended.1);
                }
                if reply.is_err() && unanswered == Unanswered::MayCount {
                    // Whether it is settled is unknown, so it is not used again.
                    self.leases[lease].parts.clear();
                }
                self.order(&changes, reply, unanswered);
            }
            Message::Unreserved(tenant, cost) => {
                self.note("unreserved");
                let changes = LeaseModel::charged(&tenant, cost, asking);
                self.order(&changes, reply, unanswered);
            }
        }
    }

    fn reserved(&mut self, sent: &[Sent], asking: Asking, reply: Answer, unanswered: Unanswered) {
        let (now, limits) = (asking.now, asking.rules.limits());
        let charged = |(tenant, hits): &Sent| (tenant.clone(), hits.unwrap_or(ESTIMATE));
        let hits: Vec<_> = sent.iter().map(charged).collect();
        let fit = |(tenant, hits): &(String, u64)| self.model.room(tenant, limits, now, *hits) > 0;
        let fits = hits.iter().all(fit);
        let changes = LeaseModel::reserved(&hits, limits, now);
        match (reply, unanswered) {
            (Ok(Ok(reply)), _) => {
                let token = token(&reply);
                let seen = (is_ok(&Ok(reply)), token.is_some());
                assert_eq!(seen, (fits, fits), "{hits:?}: admitted, and a token");
                if let Some(token) = token {
                    self.leases.push(Lease::new(token, limits, &hits));
                    self.model.apply(&changes);
                    self.note("reserved");
                } else {
                    self.note("refused");
                }
            }
            (Ok(Err(_)), Unanswered::Lost) => self.note("failed"),
            (Err(_), Unanswered::GivenBack) => self.note("cancelled"),
            (Err(_), Unanswered::MayCount) | (Ok(Err(_)), Unanswered::Unknown) => {
                self.note("perhaps reserved");
                if fits {
                    self.model.perhaps(&changes);
                }
            }
            (reply, _) => panic!("{hits:?}: {reply:?}"),
        }
    }

    /// Has the effect of an order, whose message was for these changes.
    fn order(&mut self, changes: &Changes, reply: Answer, unanswered: Unanswered) {
        use Unanswered::{GivenBack, Lost, MayCount, Unknown};
        if let Ok(answer @ Ok(_)) = &reply {
            assert!(is_ok(answer), "an order has no limit");
        }
        match (reply, unanswered) {
            (Ok(Ok(_)), Lost) => {
                let mut added = changes.clone();
                added.retain(|(_, change)| matches!(change, HitChange::Add(_)));
                self.model.apply(&added);
            }
            (Ok(Ok(_)), MayCount | GivenBack) | (Err(_), GivenBack) => self.model.apply(changes),
            (Ok(_), Unknown) | (Err(_), MayCount) => self.model.perhaps(changes),
            (reply, _) => panic!("{changes:?}: {reply:?}"),
        }
    }

    /// Many requests for one tenant at once: as many are admitted as fit.
    async fn burst(&mut self) {
        let tenant = self.any_tenant();
        let hits = 1 + self.random.below(300);
        let count = 2 + self.below(10);
        let message = Message::Reserve(vec![(tenant.clone(), Some(hits))]);
        let limits = self.rules.limits();
        let room = self.model.room(&tenant, limits, self.now(), hits);
        let calls = self.send(vec![message; count], |_| None);
        let mut admitted = 0;
        for call in answers(calls).await {
            let reply = call.reply.expect("nobody gave up").expect("an answer");
            let token = token(&reply);
            assert_eq!(is_ok(&Ok(reply)), token.is_some());
            if let Some(token) = token {
                admitted += 1;
                let hits = [(tenant.clone(), hits)];
                self.leases.push(Lease::new(token, limits, &hits));
                let changes = LeaseModel::reserved(&hits, limits, call.asking.now);
                self.model.apply(&changes);
            }
        }
        let fit = room.min(u64::try_from(count).expect("it is small"));
        assert_eq!(admitted, fit, "admitted of a burst");
    }

    /// Callers give up while Redis does not answer, but it answers before tollgate gives up.
    async fn freeze(&mut self) {
        self.reserve_anew().await;
        let count = self.stores.servers().len();
        let (all, one) = (self.below(2) == 0, self.below(count));
        let servers = if all { 0..count } else { one..one + 1 };
        let mut hasty = self.latest_ends();
        let patient = hasty.split_off(TENANTS / 2 + 1);
        // An end, and reservations.
        for message in &mut hasty[1..] {
            let tenants = self.tenants(message).into_iter();
            let hits = tenants.map(|tenant| (tenant, None)).collect();
            *message = Message::Reserve(hits);
        }
        let before = self.late_calls();
        for redis in &self.stores.servers()[servers.clone()] {
            redis.freeze();
        }
        let waiting = self.send(patient, |_| None);
        let given_up = self.send(hasty, |_| Some(GIVES_UP_AFTER));
        let given_up = answers(given_up).await;
        let dropped = given_up.iter().filter(|call| call.reply.is_err()).count() as u64;
        wait_until("tollgate knows who has gone", || {
            self.late_calls() == before + dropped
        });
        for redis in &self.stores.servers()[servers] {
            redis.thaw();
        }
        for call in answers(waiting).await.into_iter().chain(given_up) {
            self.judge(call, Unanswered::GivenBack);
        }
        self.pass_through().await;
    }

    fn clients(&mut self) -> impl Iterator<Item = &mut Client> {
        let replicas = self.replicas.iter_mut();
        replicas.flat_map(|replica| &mut replica.clients)
    }

    /// Calls that tollgate has stopped because their callers had gone.
    fn late_calls(&self) -> u64 {
        let late = |replica: &Replica| replica.server.metric("tollgate_late_calls_total");
        self.replicas.iter().map(late).sum()
    }

    /// Waits until every worker has given back what callers had that have gone: each asks all servers several times.
    async fn pass_through(&mut self) {
        const TIMES: usize = 6;
        // No cache knows the last one.
        let mut tenants: Vec<_> = (0..TENANTS).map(|number| self.tenant(number)).collect();
        tenants.extend(probes());
        for client in self.clients() {
            for _ in 0..TIMES {
                look(client, &tenants).await.expect("Redis is there");
            }
        }
    }

    async fn await_health(&mut self) {
        let tenants: Vec<_> = probes().collect();
        for client in self.clients() {
            eventually("Redis is there", async || {
                look(client, &tenants).await.is_ok()
            })
            .await;
        }
    }

    async fn kill_tollgate(&mut self) {
        let messages = self.messages();
        let calls = self.send(messages, |_| None);
        let micros = self.random.below(2_000);
        sleep(Duration::from_micros(micros)).await;
        self.replicas.clear();
        for call in answers(calls).await {
            self.judge(call, Unanswered::Unknown);
        }
        self.check().await;
        self.start_replicas(PATIENT).await;
    }

    async fn restart_tollgate(&mut self) {
        for Replica { server, .. } in &mut self.replicas {
            server.signal(Signal::SIGTERM);
            eventually("tollgate has ended", async || server.try_wait().is_some()).await;
        }
        self.start_replicas(PATIENT).await;
    }

    /// A Redis answers later than tollgate waits.
    async fn be_late(&mut self) {
        self.start_replicas(IMPATIENT).await;
        self.reserve_anew().await;
        let server = self.below(self.stores.servers().len());
        let messages = self.latest_ends();
        self.stores.servers()[server].freeze();
        let calls = answers(self.send(messages, |_| None)).await;
        self.stores.servers()[server].thaw();
        for call in calls {
            self.judge(call, Unanswered::Unknown);
        }
        self.await_return().await;
        self.check().await;
        self.start_replicas(PATIENT).await;
    }

    /// Waits until Redis answers, and costs that waited for it are sent, at a moment that nothing else shows.
    async fn await_return(&mut self) {
        self.await_health().await;
        let (mut found, mut since) = (self.stores.look(), Instant::now());
        while since.elapsed() < SENT_WITHIN {
            sleep(SENT_WITHIN / 20).await;
            let again = self.stores.look();
            if again != found {
                (found, since) = (again, Instant::now());
            }
        }
    }

    /// A Redis is killed, and comes back as it was, or empty. Costs wait for it, and nothing is reserved.
    async fn lose(&mut self, keeps: bool) {
        self.reserve_anew().await;
        let server = self.stores.home(&self.tenant(0));
        let mut lost: Vec<_> = (0..TENANTS).map(|number| self.tenant(number)).collect();
        lost.retain(|tenant| self.stores.home(tenant) == server);
        if !keeps {
            self.stores.servers()[server].cli(&["FLUSHALL"]);
            self.model.settle_on(&self.stores.look());
        }
        self.stores.kill(server);
        for client in self.clients() {
            let mut failures = 0;
            eventually("the loss is known", async || {
                let is_lost = look(client, &lost).await.is_err();
                failures = if is_lost { failures + 1 } else { 0 };
                failures == 3
            })
            .await;
        }
        let mut ends = self.latest_ends();
        ends.retain(|end| self.tenants(end).iter().all(|tenant| lost.contains(tenant)));
        let cost = 1 + self.random.below(50);
        let mut costs = Vec::new();
        let mut reservations = Vec::new();
        for tenant in lost {
            costs.push(Message::Unreserved(tenant.clone(), cost));
            reservations.push(Message::Reserve(vec![(tenant, None)]));
        }
        for messages in [ends, costs, reservations] {
            self.call(messages, |_| None, Unanswered::Lost).await;
        }
        self.stores.restart(server);
        self.await_return().await;
        self.losses += 1;
    }

    /// Reservations, a reset by an operator, more reservations, and then the ends of the first ones.
    async fn reset_between(&mut self) {
        self.reserve_anew().await;
        let ends = self.latest_ends();
        self.reset().await;
        // A lease of the same millisecond could be one of before, and a call's clock can be a millisecond old.
        let reset_at = true_time();
        while true_time() < reset_at + Duration::from_millis(3) {
            tokio::task::yield_now().await;
        }
        self.reserve_for_all().await;
        self.call(ends, |_| None, Unanswered::MayCount).await;
    }

    /// New windows, in which each tenant reserves hits.
    async fn reserve_anew(&mut self) {
        self.set_clock(7).await;
        self.reserve_for_all().await;
    }

    async fn reserve_for_all(&mut self) {
        let hits = (0..TENANTS).map(|number| vec![(self.tenant(number), None)]);
        let messages = hits.map(Message::Reserve).collect();
        self.call(messages, |_| None, Unanswered::MayCount).await;
        self.check().await;
    }

    /// The ends of the latest leases, of which no two are for the same tenant.
    fn latest_ends(&mut self) -> Vec<Message> {
        let mut ends = Vec::new();
        for lease in self.leases.len() - TENANTS..self.leases.len() {
            let cost = Some(self.random.below(2 * ESTIMATE));
            ends.push(Message::End {
                lease,
                parts: vec![(0, cost)],
                kind: EndKind::Settle,
            });
        }
        ends
    }

    async fn reset(&mut self) {
        let tenant = self.any_tenant();
        let replica = self.below(self.replicas.len());
        let replica = &self.replicas[replica];
        let (asking, port) = (self.asking(replica.process), replica.server.debug);
        let entry = json!({ "key": "tenant", "value": tenant });
        let body = json!({ "domain": "llm", "descriptors": [{ "entries": [entry] }] });
        let post = move || http::post_json(port, "/counters/reset", &body.to_string());
        let reply = spawn_blocking(post).await.unwrap().unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let changes = self.model.reset(&tenant, asking);
        self.say(format!("reset {tenant} by {}", asking.process));
        self.model.apply(&changes);
    }

    async fn reload(&mut self) {
        self.rules = RulesInUse {
            variant: self.below(VARIANTS.len()),
            gives_back: !self.rules.gives_back,
            number: self.rules.number + 1,
        };
        let rate = format!(r#""rate":"{}/year""#, self.rules.number);
        for Replica { server, .. } in &self.replicas {
            fs::write(server.rules().join("rules.yaml"), self.rules.text()).unwrap();
        }
        let servers = self.replicas.iter().map(|replica| &replica.server);
        let is_new = |server: &Tollgate| server.page("/rules").contains(&rate);
        eventually("the new rules are in force", async || {
            servers.clone().all(is_new)
        })
        .await;
        self.say(format!("{:?}", self.rules));
    }

    /// Waits until Redis holds as much as the model says, and takes what it holds for known.
    async fn check(&mut self) {
        let deadline = Instant::now() + PATIENCE / 3;
        loop {
            let found = self.stores.look();
            let wrong = self.model.differences(&found);
            if wrong.is_empty() {
                return self.model.settle_on(&found);
            }
            assert!(Instant::now() < deadline, "{}", wrong.join("\n"));
            sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn answers(calls: JoinSet<Call>) -> Vec<Call> {
    let mut calls = calls.join_all().await;
    calls.sort_unstable_by_key(|call| call.number);
    calls
}

/// Tenants without hits, some on each server.
fn probes() -> impl Iterator<Item = String> {
    (0..16).map(|number| format!("probe-{number}"))
}

async fn look(client: &mut Client, tenants: &[String]) -> Result<RateLimitResponse, Status> {
    let one = |tenant: &String| with_hits(&[("tenant", tenant)], 0);
    send(client, request("llm", tenants.iter().map(one).collect())).await
}
