//! All metric names and labels; records decisions.
//!
//! Names are the reference's where it has one (`ratelimit.…`); tollgate's own metrics are called `tollgate.…`. Sinks
//! read [`Metrics::samples`] and render them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    core::{
        counter::CounterState,
        decision::{Code, Decision, Tally, tally},
        limit::{NearRatio, Rule},
        plan::{Outcome, Plan, PlannedDescriptor},
        request::Request,
    },
    observe::traces,
    store::{contract::StoreError, loss, memory::MemoryStore, over_limit_cache, redis},
};

pub mod mapper;
pub mod mogrifier;
pub mod process;
pub mod prometheus;
pub mod sample;
pub mod statsd;

use sample::{Sample, SampleValue, Timer, TimerValues, sanitize};

/// All statistics of the process. All workers share one, and each writes through its own [`Recorder`].
#[derive(Debug, Default)]
pub struct Metrics {
    near_ratio: NearRatio,
    /// One for each recorder.
    cores: Box<[WorkerStats]>,
    loads_ok: AtomicU64,
    loads_failed: AtomicU64,
    /// Whether the control plane is connected; unset if rules come from files.
    control_plane: OnceLock<AtomicBool>,
    /// By path; one for each rule in use.
    rules: Mutex<BTreeMap<Arc<str>, Arc<RuleStats>>>,
    /// Statistics under names that requests create.
    dynamic_names: Mutex<DynamicNames>,
    pub redis: Arc<redis::stats::RedisStats>,
    pub redis_per_second: Arc<redis::stats::RedisStats>,
    pub over_limit_cache: over_limit_cache::CacheStats,
    pub loss: Arc<loss::LossStats>,
    pub authorities: Authorities,
    pub streams_reset: StreamsReset,
    pub held: HeldBytes,
    pub traces: Arc<traces::TraceStats>,
}

/// Counts of connections with an invalid `:authority`.
#[derive(Debug, Default)]
pub struct Authorities {
    /// The name was replaced, and the connection's calls were answered.
    pub replaced: AtomicU64,
    /// The name stayed, so HTTP/2 resets the connection's calls.
    pub refused: AtomicU64,
}

impl Authorities {
    pub fn count(which: &AtomicU64) {
        add(which, 1);
    }
}

/// Streams that our side reset, by the HTTP/2 error code sent to the client.
#[derive(Debug, Default)]
pub struct StreamsReset([AtomicU64; Self::CODES.len()]);

impl StreamsReset {
    /// Names of the codes, indexed by number (RFC 9113, 7).
    pub const CODES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];

    /// Counts a reset and returns the index of its code; an unknown code counts as an internal error.
    pub fn count(&self, code: u32) -> usize {
        const INTERNAL_ERROR: usize = 2;
        let known = usize::try_from(code)
            .ok()
            .filter(|code| *code < self.0.len());
        let code = known.unwrap_or(INTERNAL_ERROR);
        add(&self.0[code], 1);
        code
    }

    /// The count of each code.
    pub fn totals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::CODES.into_iter().zip(self.0.iter().map(get))
    }
}

/// Memory that clients make the process hold, beyond the fixed cost of a connection.
#[derive(Debug, Default)]
pub struct HeldBytes {
    pub bytes: AtomicU64,
    pub max: AtomicU64,
    pub cut_off: CutOff,
}

/// Refused or ended work that held too much memory or took too long, counted by reason.
#[derive(Debug, Default)]
pub struct CutOff([AtomicU64; Self::REASONS.len()]);

impl CutOff {
    pub const REASONS: [&str; 6] = [
        "connection_no_room",
        "json_late",
        "json_no_room",
        "message_late",
        "message_no_room",
        "connection_limit",
    ];
    pub const CONNECTION_NO_ROOM: usize = 0;
    pub const JSON_LATE: usize = 1;
    pub const JSON_NO_ROOM: usize = 2;
    pub const MESSAGE_LATE: usize = 3;
    pub const MESSAGE_NO_ROOM: usize = 4;
    pub const CONNECTION_LIMIT: usize = 5;

    /// Counts one for the reason with this index.
    pub fn count(&self, reason: usize) {
        add(&self.0[reason], 1);
    }

    pub fn total(&self, reason: usize) -> u64 {
        get(&self.0[reason])
    }
}

/// The counters of one worker, written by that worker only. Counters that several cores write to would cost more than
/// all other recording, so workers share no cache line; most processors fetch lines in pairs of 64 bytes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerStats {
    decisions_ok: AtomicU64,
    decisions_over_limit: AtomicU64,
    bad_requests: AtomicU64,
    store_failures: AtomicU64,
    calls: AtomicU64,
    late_calls: AtomicU64,
    global_shadow_mode: AtomicU64,
    response_time: Timer,
}

/// A worker's handle for recording.
#[derive(Clone, Debug)]
pub struct Recorder {
    metrics: Arc<Metrics>,
    core: usize,
}

/// Longest name that requests can create, in bytes. Values can be whole headers, and ten thousand of them are more
/// than a process should keep.
const MAX_DYNAMIC_NAME_BYTES: usize = 512;

/// Bound on their average length in bytes: a page for a scrape contains each name several times, in more than one
/// form.
const MEAN_DYNAMIC_NAME_BYTES: usize = 128;

/// Total length that is always allowed, in bytes.
const SMALL_DYNAMIC_NAMES_BYTES: usize = 64 << 10;

/// Statistics whose names come from requests: values of `detailed_metric` and `value_to_metric`, limit overrides,
/// unknown domains. Bounded, because clients could otherwise fill the memory.
#[derive(Debug, Default)]
struct DynamicNames {
    max: usize,
    /// Length of all names together.
    bytes: usize,
    values: ByName<Arc<RuleStats>>,
    unknown_domains: ByName<u64>,
    /// Events counted without a name of their own, because no more names were allowed.
    overflow: u64,
}

/// Values by name, in order of insertion. None is ever removed.
#[derive(Debug)]
struct ByName<T> {
    list: Vec<(Arc<str>, T)>,
    indexes: HashMap<Arc<str>, usize>,
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            indexes: HashMap::new(),
        }
    }
}

impl<T> ByName<T> {
    fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        let index = *self.indexes.get(name)?;
        Some(&mut self.list[index].1)
    }

    fn insert(&mut self, name: &str, thing: T) {
        let name: Arc<str> = name.into();
        self.indexes.insert(name.clone(), self.list.len());
        self.list.push((name, thing));
    }
}

/// Counts of one rule's hits, by their binding limit, per core. The counters of a core are created on first use,
/// because most rules are rarely matched.
#[derive(Debug)]
pub struct RuleStats(Box<[OnceLock<Box<RuleCounts>>]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct RuleCounts {
    total_hits: AtomicU64,
    within_limit: AtomicU64,
    near_limit: AtomicU64,
    over_limit: AtomicU64,
    over_limit_with_local_cache: AtomicU64,
    shadow_mode: AtomicU64,
}

/// Totals of [`RuleStats`] over all cores and all rules with one name.
#[derive(Debug, Default)]
struct RuleTotals {
    total_hits: u64,
    within_limit: u64,
    near_limit: u64,
    over_limit: u64,
    over_limit_with_local_cache: u64,
    shadow_mode: u64,
}

impl Metrics {
    /// At most `max_dynamic_names` names may come from requests.
    pub fn new(near_ratio: NearRatio, max_dynamic_names: usize) -> Self {
        let dynamic_names = DynamicNames {
            max: max_dynamic_names,
            ..DynamicNames::default()
        };
        Self {
            near_ratio,
            dynamic_names: Mutex::new(dynamic_names),
            ..Self::default()
        }
        .for_cores(1)
    }

    /// Makes room for `count` recorders, at least one. Must be called before anything is recorded.
    #[must_use]
    pub fn for_cores(mut self, count: usize) -> Self {
        self.cores = (0..count.max(1)).map(|_| WorkerStats::default()).collect();
        self
    }

    /// The recorder number `core`; beyond the room they share counters. Recorders that share must stay on one thread,
    /// or counts get lost.
    pub fn recorder(self: Arc<Self>, core: usize) -> Recorder {
        Recorder {
            core: core % self.cores.len(),
            metrics: self,
        }
    }

    /// The counters of `rules`, in their order. A rule that existed before keeps its counts and a removed rule's
    /// counts are dropped, so there are as many entries as rules.
    pub fn rules(&self, rules: &[Rule]) -> Vec<Arc<RuleStats>> {
        let mut known = lock(&self.rules);
        let stats: BTreeMap<_, _> = rules
            .iter()
            .map(|rule| {
                let stats = known.get(&rule.path).cloned();
                let new = || Arc::new(RuleStats::for_cores(self.cores.len()));
                (rule.path.clone(), stats.unwrap_or_else(new))
            })
            .collect();
        let in_order = rules.iter().map(|rule| stats[&rule.path].clone()).collect();
        *known = stats;
        in_order
    }

    pub fn record_load(&self, is_ok: bool) {
        let loads = if is_ok {
            &self.loads_ok
        } else {
            &self.loads_failed
        };
        add(loads, 1);
    }

    /// Pauses of this process while requests waited for Redis.
    pub fn own_pauses(&self) -> redis::running::Pauses {
        let per_second = self.redis_per_second.lateness.pauses();
        self.redis.lateness.pauses().and(per_second)
    }

    /// The sum over all cores.
    fn sum(&self, pick: impl Fn(&WorkerStats) -> &AtomicU64) -> u64 {
        self.cores.iter().map(|core| get(pick(core))).sum()
    }

    pub fn record_control_plane(&self, is_up: bool) {
        let control_plane = self.control_plane.get_or_init(AtomicBool::default);
        control_plane.store(is_up, Relaxed);
    }

    /// All statistics at this moment.
    pub fn samples(&self, memory: Option<&MemoryStore>) -> Vec<Sample> {
        let mut samples = Vec::new();
        self.each_sample(memory, &mut |sample| samples.push(sample));
        samples
    }

    /// All statistics at this moment, one by one; those of one rule are adjacent.
    pub fn each_sample(&self, memory: Option<&MemoryStore>, take: &mut dyn FnMut(Sample)) {
        let mut list = SampleWriter(take);
        self.rule_samples(&mut list);
        for (domain, count) in
            self.dynamic_names(|dynamic_names| &dynamic_names.unknown_domains.list)
        {
            let name = format!("ratelimit.service.rate_limit.{domain}.domain_not_found");
            list.push(name, SampleValue::Counter(count));
        }
        let overflow = lock(&self.dynamic_names).overflow;
        list.counter("tollgate.metric_names_overflow_total", overflow);

        let call = "ratelimit.service.call.should_rate_limit";
        list.counter(
            format!("{call}.redis_error"),
            self.sum(|core| &core.store_failures),
        );
        list.counter(
            format!("{call}.service_error"),
            self.sum(|core| &core.bad_requests),
        );
        let service = "ratelimit.service";
        list.counter(
            format!("{service}.config_load_success"),
            get(&self.loads_ok),
        );
        list.counter(
            format!("{service}.config_load_error"),
            get(&self.loads_failed),
        );
        if let Some(is_up) = self.control_plane.get() {
            list.gauge("tollgate.control_plane_up", is_up.load(Relaxed).into());
        }
        list.counter(
            format!("{service}.global_shadow_mode"),
            self.sum(|core| &core.global_shadow_mode),
        );
        list.counter(
            "ratelimit_server.ShouldRateLimit.total_requests",
            self.sum(|core| &core.calls),
        );
        let mut response_time = TimerValues::default();
        for core in &self.cores {
            response_time.add(&core.response_time.values());
        }
        list.push(
            "ratelimit_server.ShouldRateLimit.response_time".to_owned(),
            SampleValue::Timer(Box::new(response_time)),
        );
        list.counter(
            "tollgate.decisions_total.ok",
            self.sum(|core| &core.decisions_ok),
        );
        list.counter(
            "tollgate.decisions_total.over_limit",
            self.sum(|core| &core.decisions_over_limit),
        );
        list.counter(
            "tollgate.late_calls_total",
            self.sum(|core| &core.late_calls),
        );
        let Authorities { replaced, refused } = &self.authorities;
        list.counter("tollgate.authorities_replaced_total", get(replaced));
        list.counter("tollgate.authorities_refused_total", get(refused));
        for (code, total) in self.streams_reset.totals() {
            let code = code.to_ascii_lowercase();
            list.counter(format!("tollgate.streams_reset_total.{code}"), total);
        }
        for (reason, total) in CutOff::REASONS.iter().zip(&self.held.cut_off.0) {
            list.counter(format!("tollgate.cut_off_total.{reason}"), get(total));
        }
        list.gauge("tollgate.held_bytes", get(&self.held.bytes));
        list.gauge("tollgate.held_bytes_max", get(&self.held.max));
        list.counter("tollgate.spans_exported_total", get(&self.traces.exported));
        list.counter("tollgate.spans_dropped_total", get(&self.traces.dropped));
        self.store_samples(memory, &mut list);
    }

    /// A copy of a list of request-made names. Deciding needs this lock too, so it is taken for short parts only.
    fn dynamic_names<T: Clone>(&self, pick: fn(&DynamicNames) -> &Vec<T>) -> Vec<T> {
        const AT_A_TIME: usize = 256;
        let mut copy = Vec::new();
        loop {
            let dynamic_names = lock(&self.dynamic_names);
            let list = pick(&dynamic_names);
            let end = list.len().min(copy.len() + AT_A_TIME);
            copy.extend_from_slice(&list[copy.len()..end]);
            if end == list.len() {
                return copy;
            }
        }
    }

    /// Adds up keys that read alike: a limit override is named after the rule that it replaces, and values under
    /// `detailed_metric` may equal the name of a neighbouring rule.
    fn rule_samples(&self, list: &mut SampleWriter<'_>) {
        let rules = lock(&self.rules).clone();
        let values = self.dynamic_names(|dynamic_names| &dynamic_names.values.list);
        let mut by_key: BTreeMap<Cow<'_, str>, RuleTotals> = BTreeMap::new();
        for (path, stats) in &rules {
            by_key.entry(sanitize(path)).or_default().absorb(stats);
        }
        for (key, stats) in &values {
            let key = Cow::Borrowed(&**key);
            by_key.entry(key).or_default().absorb(stats);
        }
        for (key, stats) in &by_key {
            stats.samples(key, list);
        }
    }

    fn lateness_samples(&self, list: &mut SampleWriter<'_>) {
        let mut lateness = self.redis.lateness.values();
        lateness.add(&self.redis_per_second.lateness.values());
        list.push(
            "tollgate.timer_lateness".to_owned(),
            SampleValue::Timer(Box::new(lateness)),
        );
        list.counter("tollgate.own_pauses_total", self.own_pauses().count);
    }

    fn store_samples(&self, memory: Option<&MemoryStore>, list: &mut SampleWriter<'_>) {
        for (pool, redis) in [
            ("redis_pool", &self.redis),
            ("redis_per_second_pool", &self.redis_per_second),
        ] {
            let opened = get(&redis.connections_opened);
            let closed = get(&redis.connections_closed);
            let active = opened.saturating_sub(closed);
            list.gauge(&format!("ratelimit.{pool}.cx_active"), active);
            list.counter(format!("ratelimit.{pool}.cx_total"), opened);
            list.counter(format!("ratelimit.{pool}.cx_local_close"), closed);
        }
        let both = |pick: fn(&redis::stats::RedisStats) -> &AtomicU64| {
            get(pick(&self.redis)) + get(pick(&self.redis_per_second))
        };
        let pipelines = both(|stats| &stats.pipelines);
        list.counter("tollgate.redis_pipelines_total", pipelines);
        list.counter(
            "tollgate.redis_commands_total",
            both(|stats| &stats.commands),
        );
        list.counter(
            "tollgate.redis_failures_total",
            both(|stats| &stats.failures),
        );
        list.counter(
            "tollgate.redis_reset_counters_total",
            both(|stats| &stats.reset_counters),
        );

        if memory.is_none() {
            self.lateness_samples(list);
        }
        let loss = &self.loss;
        for (cause, count) in loss.causes() {
            list.counter(
                format!("tollgate.decisions_without_store_total.{cause}"),
                count,
            );
        }
        list.gauge("tollgate.stores_lost", get(&loss.lost));
        list.gauge("tollgate.replicas", get(&loss.replicas));
        list.counter("tollgate.degraded_total", get(&loss.degraded));
        list.counter("tollgate.reconciled_hits_total", get(&loss.reconciled));
        list.counter("tollgate.lost_hits_total", get(&loss.lost_hits));
        self.node_samples(list);

        let cache = self.over_limit_cache.totals();
        let over_limit_cache::Totals { hits, misses, .. } = cache;
        list.gauge("ratelimit.localcache.hitCount", hits);
        list.gauge("ratelimit.localcache.missCount", misses);
        list.gauge("ratelimit.localcache.lookupCount", hits + misses);
        list.gauge("ratelimit.localcache.expiredCount", cache.expired);
        list.gauge("ratelimit.localcache.evacuateCount", cache.evicted);
        if let Some(store) = memory {
            list.gauge("tollgate.memory_counters", store.live_counters() as u64);
            list.gauge("tollgate.memory_counters_max", store.max_counters() as u64);
        }
    }
}

impl Recorder {
    fn core(&self) -> &WorkerStats {
        &self.metrics.cores[self.core]
    }

    pub fn record(
        &self,
        rules: &[Arc<RuleStats>],
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
    ) {
        let core = self.core();
        add_alone(&core.global_shadow_mode, u64::from(decision.is_shadowed));
        match decision.overall {
            Code::Ok => add_alone(&core.decisions_ok, 1),
            Code::OverLimit => add_alone(&core.decisions_over_limit, 1),
        }
        for (outcome, status) in plan.outcomes.iter().zip(&decision.statuses) {
            match (outcome, &status.binding) {
                (Outcome::Counted(counted), Some(binding)) => {
                    let count = counts[binding.counter];
                    let fell = tally(&binding.limit, self.metrics.near_ratio, counted.hits, count);
                    let is_shadowed = counted.rule.is_some_and(|rule| rule.shadow_mode);
                    let hits = counted.hits.added();
                    self.with_stats(rules, counted, |stats| {
                        let counts = stats.of(self.core);
                        counts.record(hits, fell, count.is_cached, is_shadowed);
                    });
                }
                (Outcome::Unmatched { is_domain_known }, _) if !is_domain_known => {
                    lock(&self.metrics.dynamic_names).unknown_domain(request.domain);
                }
                _ => {}
            }
        }
    }

    fn with_stats(
        &self,
        rules: &[Arc<RuleStats>],
        counted: &PlannedDescriptor<'_>,
        record: impl FnOnce(&RuleStats),
    ) {
        if let Some(key) = &counted.metric_key {
            // Stays locked while recording, because all cores share these counters.
            let mut dynamic_names = lock(&self.metrics.dynamic_names);
            if let Some(stats) = dynamic_names.stats(key) {
                return record(&stats);
            }
        }
        // Without room for a name of its own, the hit counts for its rule.
        if let Some(rule) = counted.rule {
            record(&rules[rule.id.0]);
        }
    }

    /// Records a gRPC call, with any result.
    pub fn record_call(&self, took: Duration) {
        add_alone(&self.core().calls, 1);
        self.core().response_time.record(took);
    }

    /// Records a request without an answer, because it was invalid or there are no rules.
    pub fn record_bad_request(&self) {
        add_alone(&self.core().bad_requests, 1);
    }

    /// Records a request without an answer, because the store did not return counts.
    pub fn record_store_failure(&self, error: StoreError) {
        add_alone(&self.core().store_failures, 1);
        if error == StoreError::Full {
            self.metrics.loss.record(error);
        }
    }

    /// Records a call that was answered after its deadline, or whose caller gave up.
    pub fn record_late_call(&self) {
        add_alone(&self.core().late_calls, 1);
    }
}

impl Metrics {
    /// Samples of each Redis server, by its address, whose dots would split the name.
    fn node_samples(&self, list: &mut SampleWriter<'_>) {
        for (store, redis) in [
            ("redis", &self.redis),
            ("redis_per_second", &self.redis_per_second),
        ] {
            for node in redis.nodes() {
                let name = sanitize(&node.name).replace('.', "_");
                let gauges = [
                    ("is_open", u64::from(node.failure.is_some())),
                    ("is_suspected", u64::from(node.is_suspected)),
                    ("queued", node.queued),
                    ("in_flight", node.in_flight),
                    ("clock_ahead_ms", node.skew_millis.max(0).unsigned_abs()),
                    ("clock_behind_ms", node.skew_millis.min(0).unsigned_abs()),
                ];
                for (stat, value) in gauges {
                    list.gauge(&format!("tollgate.{store}_node.{name}.{stat}"), value);
                }
                let counters = [
                    ("times_opened_total", node.times_opened),
                    ("suspicions_total", node.suspicions),
                    ("stalls_total", node.stalls),
                    ("batches_total", node.batches),
                    ("failures_total", node.failures),
                    ("refusals_total", node.refusals),
                    ("redirects_total", node.redirects),
                    ("connections_total", node.connections),
                    ("rejected_while_open_total", node.rejected_while_open),
                ];
                for (stat, total) in counters {
                    list.counter(format!("tollgate.{store}_node.{name}.{stat}"), total);
                }
            }
        }
    }
}

impl DynamicNames {
    fn stats(&mut self, key: &str) -> Option<Arc<RuleStats>> {
        let key = sanitize(key);
        if let Some(stats) = self.values.get_mut(&key) {
            return Some(stats.clone());
        }
        if !self.takes_room_for(&key) {
            return None;
        }
        // Always behind a lock, so one set for all cores.
        let stats = Arc::new(RuleStats::for_cores(1));
        self.values.insert(&key, stats.clone());
        Some(stats)
    }

    fn unknown_domain(&mut self, domain: &[u8]) {
        let domain = String::from_utf8_lossy(domain);
        let domain = sanitize(&domain);
        if let Some(count) = self.unknown_domains.get_mut(&domain) {
            *count += 1;
        } else if self.takes_room_for(&domain) {
            self.unknown_domains.insert(&domain, 1);
        }
    }

    /// Reserves room for another name if there is some; otherwise counts the overflow.
    fn takes_room_for(&mut self, name: &str) -> bool {
        let max_bytes = self.max.saturating_mul(MEAN_DYNAMIC_NAME_BYTES);
        let bytes = self.bytes + name.len();
        let has_room = self.values.list.len() + self.unknown_domains.list.len() < self.max
            && name.len() <= MAX_DYNAMIC_NAME_BYTES
            && bytes <= max_bytes.max(SMALL_DYNAMIC_NAMES_BYTES);
        if has_room {
            self.bytes = bytes;
        } else {
            self.overflow += 1;
        }
        has_room
    }
}

impl RuleStats {
    fn for_cores(count: usize) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// The counters of one core; shared statistics have only the first.
    fn of(&self, core: usize) -> &RuleCounts {
        let counts = self.0.get(core).unwrap_or(&self.0[0]);
        counts.get_or_init(Box::default)
    }
}

impl RuleCounts {
    fn record(&self, hits: u64, fell: Tally, is_cached: bool, is_shadowed: bool) {
        add_alone(&self.total_hits, hits);
        add_alone(&self.within_limit, fell.within);
        add_alone(&self.near_limit, fell.near);
        add_alone(&self.over_limit, fell.over);
        if is_cached {
            add_alone(&self.over_limit_with_local_cache, fell.over);
        }
        if is_shadowed {
            add_alone(&self.shadow_mode, fell.over);
        }
    }
}

impl RuleTotals {
    /// Adds the counts of `stats`.
    fn absorb(&mut self, stats: &RuleStats) {
        for counts in stats.0.iter().filter_map(OnceLock::get) {
            self.total_hits += get(&counts.total_hits);
            self.within_limit += get(&counts.within_limit);
            self.near_limit += get(&counts.near_limit);
            self.over_limit += get(&counts.over_limit);
            self.over_limit_with_local_cache += get(&counts.over_limit_with_local_cache);
            self.shadow_mode += get(&counts.shadow_mode);
        }
    }

    fn samples(&self, key: &str, list: &mut SampleWriter<'_>) {
        let mut push = |stat: &str, total: u64| {
            let name = format!("ratelimit.service.rate_limit.{key}.{stat}");
            list.push(name, SampleValue::Counter(total));
        };
        push("total_hits", self.total_hits);
        push("within_limit", self.within_limit);
        push("near_limit", self.near_limit);
        push("over_limit", self.over_limit);
        // Few rules ever have these.
        for (stat, total) in [
            (
                "over_limit_with_local_cache",
                self.over_limit_with_local_cache,
            ),
            ("shadow_mode", self.shadow_mode),
        ] {
            if total > 0 {
                push(stat, total);
            }
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Relaxed);
    }
}

/// [`add`] for a single writer: a plain load and store.
fn add_alone(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.store(get(counter).wrapping_add(count), Relaxed);
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// Ignores poisoning: a panic elsewhere cannot leave the data behind these locks half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes samples on one by one.
struct SampleWriter<'a>(&'a mut dyn FnMut(Sample));

impl SampleWriter<'_> {
    fn push(&mut self, name: String, value: SampleValue) {
        (self.0)(Sample { name, value });
    }

    fn counter(&mut self, name: impl Into<String>, total: u64) {
        self.push(name.into(), SampleValue::Counter(total));
    }

    fn gauge(&mut self, name: &str, value: u64) {
        self.push(name.to_owned(), SampleValue::Gauge(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limit::{Allows, RuleId};

    fn rule(path: &str) -> Rule {
        Rule {
            id: RuleId(0),
            path: path.into(),
            allows: Allows::Unlimited,
            replaces: Box::default(),
            shadow_mode: false,
            quota_mode: false,
            counts: Default::default(),
            on_store_loss: Default::default(),
            metric: crate::core::limit::Metric::Path,
            metadata: crate::core::metadata::Metadata::new(),
        }
    }

    fn value(metrics: &Metrics, name: &str) -> Option<u64> {
        let samples = metrics.samples(None);
        let sample = samples.into_iter().find(|sample| sample.name == name)?;
        match sample.value {
            SampleValue::Counter(value) | SampleValue::Gauge(value) => Some(value),
            SampleValue::Timer(_) => None,
        }
    }

    #[test]
    fn a_rule_that_stays_keeps_its_counts_and_one_that_goes_is_forgotten() {
        let metrics = Metrics::new(NearRatio::default(), 10);
        let fell = Tally {
            within: 3,
            ..Tally::default()
        };
        metrics.rules(&[rule("d.a"), rule("d.b")])[0]
            .of(0)
            .record(3, fell, false, false);
        metrics.rules(&[rule("d.c"), rule("d.a")]);
        let within = |key: &str| {
            value(
                &metrics,
                &format!("ratelimit.service.rate_limit.{key}.within_limit"),
            )
        };
        assert_eq!(within("d.a"), Some(3));
        assert_eq!(within("d.c"), Some(0));
        assert_eq!(within("d.b"), None);
    }

    #[test]
    fn what_each_core_counts_is_told_as_one_number() {
        let metrics = Arc::new(Metrics::new(NearRatio::default(), 10).for_cores(2));
        let fell = Tally {
            over: 3,
            ..Tally::default()
        };
        let stats = &metrics.rules(&[rule("d.a")])[0];
        for core in 0..3 {
            stats.of(core).record(3, fell, true, false);
            let recorder = metrics.clone().recorder(core);
            recorder.record_call(Duration::from_micros(10));
        }
        let name = |stat| format!("ratelimit.service.rate_limit.d.a.{stat}");
        assert_eq!(value(&metrics, &name("total_hits")), Some(9));
        assert_eq!(
            value(&metrics, &name("over_limit_with_local_cache")),
            Some(9)
        );
        let calls = "ratelimit_server.ShouldRateLimit.total_requests";
        assert_eq!(value(&metrics, calls), Some(3));
        let times = metrics
            .samples(None)
            .into_iter()
            .find_map(|sample| match sample.value {
                SampleValue::Timer(times) => Some(times.count()),
                SampleValue::Counter(_) | SampleValue::Gauge(_) => None,
            });
        assert_eq!(times, Some(3));
    }

    #[test]
    fn what_a_request_calls_like_a_rule_is_counted_with_it() {
        let metrics = Metrics::new(NearRatio::default(), 10);
        let fell = Tally {
            within: 3,
            ..Tally::default()
        };
        metrics.rules(&[rule("d.a")])[0]
            .of(0)
            .record(3, fell, false, false);
        let dynamic_names = lock(&metrics.dynamic_names).stats("d.a").unwrap();
        dynamic_names.of(0).record(3, fell, false, false);
        let name = "ratelimit.service.rate_limit.d.a.within_limit";
        let samples = metrics.samples(None);
        let found: Vec<_> = samples
            .iter()
            .filter(|sample| sample.name == name)
            .collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].value, SampleValue::Counter(6));
    }

    #[test]
    fn names_that_requests_make_up_are_bounded() {
        let metrics = Metrics::new(NearRatio::default(), 3);
        let mut dynamic_names = lock(&metrics.dynamic_names);
        dynamic_names.unknown_domain(b"x|y");
        dynamic_names.unknown_domain(b"x|y");
        assert!(dynamic_names.stats("d.a").is_some());
        assert!(dynamic_names.stats("d.1.2.3.4").is_some());
        assert!(dynamic_names.stats("d.c").is_none());
        assert!(dynamic_names.stats("d.a").is_some());
        dynamic_names.unknown_domain(b"z");
        drop(dynamic_names);
        let unknown = "ratelimit.service.rate_limit.x_y.domain_not_found";
        assert_eq!(value(&metrics, unknown), Some(2));
        assert_eq!(
            value(&metrics, "tollgate.metric_names_overflow_total"),
            Some(2)
        );
    }

    /// A page contains each name several times, and a scrape holds the page twice.
    #[test]
    fn many_long_names_are_fewer_than_short_ones() {
        let metrics = Metrics::new(NearRatio::default(), 10_000);
        let mut dynamic_names = lock(&metrics.dynamic_names);
        let mut kept = 0;
        for number in 0..10_000 {
            let name = format!("d.{number:0>400}");
            if number % 2 == 0 {
                kept += usize::from(dynamic_names.stats(&name).is_some());
            } else {
                dynamic_names.unknown_domain(name.as_bytes());
            }
        }
        kept += dynamic_names.unknown_domains.list.len();
        assert_eq!(kept, 10_000 * MEAN_DYNAMIC_NAME_BYTES / 402);
        assert_eq!(dynamic_names.overflow, 10_000 - kept as u64);
    }

    #[test]
    fn a_name_that_is_as_long_as_a_header_is_not_kept() {
        let metrics = Metrics::new(NearRatio::default(), 3);
        let long = "x".repeat(60_000);
        let mut dynamic_names = lock(&metrics.dynamic_names);
        assert!(dynamic_names.stats(&long).is_none());
        dynamic_names.unknown_domain(long.as_bytes());
        assert!(dynamic_names.unknown_domains.list.is_empty());
        assert!(
            dynamic_names
                .stats(&long[..MAX_DYNAMIC_NAME_BYTES])
                .is_some()
        );
    }
}
