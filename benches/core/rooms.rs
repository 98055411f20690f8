//! The rooms of a decision, each of which can be entered alone.

use std::{
    cell::RefCell,
    hint::black_box,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use anyhow::{Context as _, anyhow, ensure};
use prost::Message as _;
use tollgate::{
    Basis, Batch, CounterStates, Deadline, Decision, Entry as RequestEntry, Hits, Identity, Joined,
    KeyFormat, LeaseBook, Limiter, Matcher, MemoryStore, Metrics, Modes, NearRatio, Plan, Request,
    Returns, Rule, RuleFiles, RuleOptions, RuleSet, RuleSource, Rules, Store as _, Timestamp,
    decide, decide_into, fast_path,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
    wire,
};

/// How a rule is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Exact,
    KeyOnly,
    Wildcard,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Exact, Self::KeyOnly, Self::Wildcard];

    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::KeyOnly => "key-only",
            Self::Wildcard => "wildcard",
        }
    }

    /// The number of rules of this kind in place of `count`: a level of wildcards has a bound.
    pub fn at_most(self, count: usize) -> usize {
        match self {
            Self::Exact | Self::KeyOnly => count,
            Self::Wildcard => count.min(2_000),
        }
    }

    /// Key and value of the rule with number `index`.
    fn rule(self, index: usize) -> (String, String) {
        match self {
            Self::Exact => ("plan".to_owned(), format!("plan-{index:06}")),
            Self::KeyOnly => (format!("plan-{index:06}"), String::new()),
            Self::Wildcard => ("path".to_owned(), format!("/shop-{index:06}/*")),
        }
    }

    /// Key and value of an entry that this rule matches.
    fn entry(self, index: usize) -> (String, String) {
        let (key, value) = self.rule(index);
        match self {
            Self::Exact => (key, value),
            Self::KeyOnly => (key, "gold".to_owned()),
            Self::Wildcard => (key, value.replace('*', "cart")),
        }
    }
}

/// A room and the function that enters it, whose name is `room_` and the room's.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub name: &'static str,
    pub enter: fn(&Rooms),
}

/// In the order of a decision. `check` is the whole decision without reading and writing messages; the last two rooms
/// are the path of unusual messages.
pub const ROOMS: [Room; 11] = [
    Room {
        name: "read",
        enter: room_read,
    },
    Room {
        name: "match",
        enter: room_match,
    },
    Room {
        name: "key",
        enter: room_key,
    },
    Room {
        name: "plan",
        enter: room_plan,
    },
    Room {
        name: "count",
        enter: room_count,
    },
    Room {
        name: "decide",
        enter: room_decide,
    },
    Room {
        name: "record",
        enter: room_record,
    },
    Room {
        name: "write",
        enter: room_write,
    },
    Room {
        name: "check",
        enter: room_check,
    },
    Room {
        name: "decode",
        enter: room_decode,
    },
    Room {
        name: "encode",
        enter: room_encode,
    },
];

/// A Saturday in November 2026.
const NOW: Timestamp = Timestamp::from_secs(1_795_230_000);

/// Inputs of the rooms: a request with one descriptor and two limits. They live as long as the program, so that a
/// room can be entered without those before it.
pub struct Rooms {
    message: &'static RateLimitRequest,
    encoded: Vec<u8>,
    rules: &'static RuleSet,
    request: &'static Request<'static>,
    /// The entries of the only descriptor.
    entries: &'static [RequestEntry<'static>],
    plan: Plan<'static>,
    counts: CounterStates,
    decision: Decision,
    limiter: Limiter<Arc<MemoryStore>>,
    /// When the request arrived.
    began: Instant,
    /// Reused output buffers of the rooms.
    scratch: RefCell<Scratch>,
}

#[derive(Default)]
struct Scratch {
    joined: Joined,
    reply: Vec<u8>,
}

impl Rooms {
    /// Rooms with `count` rules; the last one matches.
    pub fn new(kind: Kind, count: usize) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new(NearRatio::default(), 10));
        let rules = Rules::default();
        rules.swap(matcher(kind, count)?, &metrics);
        let store = Arc::new(MemoryStore::new(1000));
        let limiter = Limiter {
            decision_log: Default::default(),
            talkers: Default::default(),
            leases: LeaseBook::of_memory(),
            returns: Returns::new(Arc::default()),
            rules: rules.clone(),
            store,
            modes: Modes::default(),
            metrics: metrics.recorder(0),
        };
        let (key, value) = kind.entry(count - 1);
        let message = keep(RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry {
                    key: key.into_bytes().into(),
                    value: value.into_bytes().into(),
                }],
                ..RateLimitDescriptor::default()
            }],
            ..RateLimitRequest::default()
        });
        let rules: &RuleSet = keep(rules.current().context("rules were loaded")?).as_ref();
        let request: &Request<'_> = keep(wire::request(message)?);
        let descriptor = request.descriptors().next();
        let plan = Plan::new(&rules.matcher, request, Modes::default(), NOW);
        let counts = ready(limiter.store.add(&plan.batch, NOW))?;
        let decision = decide(&plan, &counts, Modes::default(), NOW);
        ensure!(plan.batch.len() == 2, "the last rule does not match");
        Ok(Self {
            encoded: message.encode_to_vec(),
            scratch: RefCell::default(),
            message,
            rules,
            request,
            entries: descriptor.context("one descriptor")?.entries,
            plan,
            counts,
            decision,
            limiter,
            began: Instant::now(),
        })
    }
}

fn keep<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A matcher with rules of one kind, built directly: loading files is measured elsewhere.
fn matcher(kind: Kind, count: usize) -> anyhow::Result<Matcher> {
    let pattern = pattern()?;
    let mut matcher = Matcher::default();
    let root = matcher.insert_domain(b"shop");
    for index in 0..count {
        let (key, value) = kind.rule(index);
        let node = matcher.insert(root, key.as_bytes(), value.as_bytes());
        matcher.set_rule(node.context("no rule is there twice")?, |id| Rule {
            id,
            path: format!("shop.{key}_{value}").into(),
            ..pattern.clone()
        });
    }
    Ok(matcher)
}

/// A rule with two limits, read from a file.
fn pattern() -> anyhow::Result<Rule> {
    let folder = tempfile::TempDir::new()?;
    let file = folder.path().join("rules.yaml");
    let text =
        "domain: shop\ndescriptors: [{key: a, rate_limits: [4000000000/day, 4000000000/week]}]";
    std::fs::write(&file, text)?;
    let loaded = RuleFiles::read(&RuleSource::Paths(vec![file])).compile(RuleOptions::default());
    let loaded = loaded.map_err(|problems| anyhow!("{problems:?}"))?;
    let rule = loaded.matcher.rules().first();
    rule.cloned().context("one rule")
}

/// The result of a future that never waits.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a store in memory never waits"),
    }
}

#[inline(never)]
fn room_read(rooms: &Rooms) {
    let mut request = Request::default();
    let read = fast_path::read_into(&mut request, black_box(&rooms.encoded));
    black_box(read.is_some());
}

#[inline(never)]
fn room_decode(rooms: &Rooms) {
    let message = RateLimitRequest::decode(black_box(&*rooms.encoded)).expect("it was encoded");
    black_box(wire::request(&message).is_ok());
}

#[inline(never)]
fn room_match(rooms: &Rooms) {
    let joined = &mut rooms.scratch.borrow_mut().joined;
    let domain = rooms.rules.matcher.domain(rooms.request.domain);
    let entries = black_box(rooms.entries);
    let found = domain.and_then(|domain| domain.find(entries, joined).ok());
    black_box(found.is_some());
}

#[inline(never)]
fn room_key(rooms: &Rooms) {
    let mut identity = Identity::new(KeyFormat::Native);
    identity.set(rooms.request.domain, black_box(rooms.entries), &[]);
    let mut batch = Batch::default();
    for limit in &rooms.plan.limits {
        batch.push(&identity, limit, NOW, Hits::ONE);
    }
    black_box(batch.len());
}

#[inline(never)]
fn room_plan(rooms: &Rooms) {
    let mut plan = Plan::default();
    plan.fill(
        &rooms.rules.matcher,
        black_box(rooms.request),
        Modes::default(),
        NOW,
    );
    black_box(plan.limits.len());
}

#[inline(never)]
fn room_count(rooms: &Rooms) {
    let mut counts = CounterStates::new();
    let batch = black_box(&rooms.plan.batch);
    rooms.limiter.store.apply_into(&mut counts, batch, NOW);
    black_box(counts.len());
}

#[inline(never)]
fn room_decide(rooms: &Rooms) {
    let mut decision = Decision::default();
    let counts = black_box(&rooms.counts);
    decide_into(&mut decision, &rooms.plan, counts, Modes::default(), NOW);
    black_box(decision.overall);
}

#[inline(never)]
fn room_record(rooms: &Rooms) {
    rooms.limiter.metrics.record(
        &rooms.rules.stats,
        rooms.request,
        &rooms.plan,
        black_box(&rooms.counts),
        &rooms.decision,
    );
}

#[inline(never)]
fn room_write(rooms: &Rooms) {
    let decision = black_box(&rooms.decision);
    black_box(fast_path::reply(decision).len());
}

#[inline(never)]
fn room_encode(rooms: &Rooms) {
    let reply = &mut rooms.scratch.borrow_mut().reply;
    reply.clear();
    let mut decision = black_box(&rooms.decision).clone();
    let message = wire::response(&mut decision, rooms.message, &wire::Extras::default());
    black_box(message.encode(reply).is_ok());
}

#[inline(never)]
fn room_check(rooms: &Rooms) {
    let request = black_box(rooms.request);
    let limiter = &rooms.limiter;
    let render = |decision: &mut Decision, _: &Basis<'_, '_>| decision.overall;
    let deadline = Deadline::of_call(rooms.began, None);
    let mut checking = pin!(limiter.check(request, NOW, &deadline, render));
    let checked = checking
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    black_box(checked.is_ready());
}
