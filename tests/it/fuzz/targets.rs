//! Laws that hold for all inputs: the bodies of `make fuzz`. Each takes bytes from outside and panics if a law is
//! broken.
//!
//! This file is compiled into two programs: `fuzz/` searches for bytes that break a law, and `tests/it` replays the
//! interesting ones.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use loona_hpack::Decoder;
use prost::Message as _;
use tollgate::{
    Basis, Deadline, Decision, DecisionCode, Entry, Hits, Joined, LeaseBook, Limiter, Loaded,
    Mapper, Matcher, MemoryStore, MetricNames, Metrics, Modes, NearRatio, Plan, Problem, Push,
    Renderer, Request, Returns, Rule, RuleFiles, RuleOptions, Rules, Sample, SampleValue,
    Store as _, Timestamp, fast_path,
    proto::envoy::service::{discovery::v3::DiscoveryResponse, ratelimit::v3::RateLimitRequest},
    rewrite, slot_owners, wire,
};
use tonic::codegen::http::uri::Authority;

/// A law, and the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

pub const ALL: [Target; 10] = [
    ("message", message),
    ("headers", headers),
    ("rules", rules),
    ("json", json),
    ("names", names),
    ("xds", xds),
    ("wildcards", wildcards),
    ("slots", slots),
    ("mapping", mapping),
    ("tokens", tokens),
];

// --- message -------------------------------------------------------------------------------------

/// A request read in place equals the request read by prost.
pub fn message(bytes: &[u8]) {
    let message = RateLimitRequest::decode(bytes);
    let read = message.as_ref().map(wire::request);
    if let Some(quick) = fast_path::read(bytes) {
        assert_eq!(read, Ok(Ok(quick)));
        return;
    }
    // The fast path reads every plain request that prost writes.
    let (Ok(message), Ok(Ok(_))) = (&message, read) else {
        return;
    };
    let mut all = message.descriptors.iter();
    let is_plain =
        all.all(|one| one.limit.is_none() && one.hits_addend.is_none() && !one.is_negative_hits);
    let written = message.encode_to_vec();
    assert_eq!(fast_path::read(&written).is_some(), is_plain);
}

// --- headers -------------------------------------------------------------------------------------

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Splits bytes into header blocks, each after its length and a byte that says how to divide it into frames. Returns the
/// frames.
fn header_frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    while let [length, how, rest @ ..] = bytes {
        let (block, behind) = rest.split_at(usize::from(*length).min(rest.len()));
        push_block(&mut frames, block, *how);
        bytes = behind;
    }
    frames
}

fn push_block(frames: &mut Vec<u8>, block: &[u8], how: u8) {
    let pieces = usize::from(how & 3) + 1;
    let size = block.len().div_ceil(pieces).max(1);
    let mut parts: Vec<_> = block.chunks(size).collect();
    if parts.is_empty() {
        parts.push(block);
    }
    let count = parts.len();
    for (at, part) in parts.into_iter().enumerate() {
        let mut flags = if at + 1 == count { END_HEADERS } else { 0 };
        let (mut before, mut padding) = (Vec::new(), 0);
        if at == 0 && how & 4 != 0 {
            flags |= PADDED;
            padding = how >> 4;
            before.push(padding);
        }
        if at == 0 && how & 8 != 0 {
            flags |= PRIORITY;
            before.extend([0, 0, 0, 0, 16]);
        }
        let length = before.len() + part.len() + usize::from(padding);
        let length = u32::try_from(length).expect("frames are short");
        frames.extend(&length.to_be_bytes()[1..]);
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        frames.extend([kind, flags, 0, 0, 0, 1]);
        frames.extend(before);
        frames.extend(part);
        frames.extend(vec![0; padding.into()]);
    }
}

/// The header blocks in these frames.
fn blocks(mut frames: &[u8]) -> Vec<Vec<u8>> {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    while let [high, middle, low, kind, flags, _, _, _, _, rest @ ..] = frames {
        let length = u32::from_be_bytes([0, *high, *middle, *low]);
        let (mut payload, behind) = rest.split_at(length.try_into().expect("frames are short"));
        if flags & PADDED != 0 {
            payload = &payload[1..payload.len() - usize::from(payload[0])];
        }
        if flags & PRIORITY != 0 {
            payload = &payload[5..];
        }
        match (kind, blocks.last_mut()) {
            (&CONTINUATION, Some(block)) => block.extend_from_slice(payload),
            _ => blocks.push(payload.to_vec()),
        }
        frames = behind;
    }
    blocks
}

/// Invalid names become an authority, and everything else stays unchanged, compared with a decoder that knows all of
/// HPACK and keeps the state of a connection.
pub fn headers(bytes: &[u8]) {
    let frames = header_frames(bytes);
    let mut rewritten = frames.clone();
    let [replaced, refused] = rewrite(&mut rewritten);
    assert!(rewritten.len() <= frames.len());
    assert_eq!(rewritten != frames, replaced > 0);

    let (before, after) = (blocks(&frames), blocks(&rewritten));
    assert_eq!(before.len(), after.len());
    let (mut sender, mut receiver) = (Decoder::new(), Decoder::new());
    for (before, after) in before.iter().zip(&after) {
        let Ok(sent) = sender.decode(before) else {
            // The connection ends here.
            return;
        };
        let read = receiver.decode(after).expect("it still can be decoded");
        assert_eq!(sent.len(), read.len());
        for ((name, sent), (same, read)) in sent.iter().zip(&read) {
            assert_eq!(name, same);
            if name != b":authority" {
                assert_eq!(sent, read);
                continue;
            }
            assert_eq!(sent.len(), read.len());
            let is_authority = |text: &[u8]| Authority::try_from(text).is_ok();
            if is_authority(sent) {
                assert_eq!(sent, read);
            } else {
                assert!(is_authority(read) || sent.is_empty() && refused > 0);
            }
        }
    }
}

// --- rules and xds -------------------------------------------------------------------------------

/// Any text is valid rules or has problems, each reported in one line with a position in the text.
pub fn rules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for options in every_option() {
        let compile = || RuleFiles::of("fuzz.yaml", text).compile(options);
        let problems = check_loaded(&compile());
        assert_eq!(problems, check_loaded(&compile()), "it depends on chance");
    }
    // All line breaks of YAML. An unexpected end is reported on the line after the last.
    let breaks = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
    let lines = text.matches(breaks).count() + 2;
    for problem in problems(&RuleFiles::of("fuzz.yaml", text).compile(RuleOptions::default())) {
        if let Some(position) = &problem.position {
            assert!(position.line <= lines, "{problem}");
        }
    }
}

/// A file of JSON is the same rules, with the same problems in them, however its text is laid out.
pub fn json(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else {
        return;
    };
    let compile = |text: &str| {
        let compiled = RuleFiles::of("fuzz.json", text).compile(RuleOptions::default());
        let rules = compiled.as_ref().ok().map(|loaded| {
            let rules = loaded.matcher.rules().iter();
            rules.map(|rule| format!("{rule:?}")).collect::<Vec<_>>()
        });
        let problems = problems(&compiled);
        // A text that is no YAML, such as one with U+2028 in a key, is explained by its lines.
        let in_rules = problems.iter().filter(|problem| !problem.path.is_empty());
        let shown = in_rules.map(|problem| {
            let shown = format!("{}: {}", problem.path, problem.fault);
            // Some name the line of another place.
            shown.replace(|found: char| found.is_ascii_digit(), "")
        });
        (rules, shown.collect::<Vec<_>>())
    };
    let indented = serde_json::to_string_pretty(&value).expect("it was JSON");
    assert_eq!(compile(&value.to_string()), compile(&indented));
}

/// Whatever the name of a file, each of its problems is one line that shows nothing else than it is, and that no
/// pipeline takes for a command.
pub fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (name, text) = text.split_once('\0').unwrap_or((text, "{"));
    let compiled = RuleFiles::of(name, text).compile(RuleOptions::default());
    for problem in problems(&compiled) {
        let line = problem.to_string();
        let is_hidden = |found: char| {
            let is_bidirectional =
                matches!(found, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            found.is_control() || is_bidirectional
        };
        assert!(!line.contains(is_hidden), "{line:?}");
        let begins = |with: &str| line.trim_start().starts_with(with);
        assert!(!begins("::") && !begins("##"), "{line:?}");
    }
}

/// Any message of a control plane is valid rules or has problems, in every order of its resources.
pub fn xds(bytes: &[u8]) {
    let Ok(response) = DiscoveryResponse::decode(bytes) else {
        return;
    };
    let mut push = Push {
        type_url: response.type_url,
        resources: response.resources,
    };
    let digest = push.digest();
    let results = every_option().map(|options| check_loaded(&push.compile(options)).0);
    push.resources.reverse();
    assert_eq!(push.digest(), digest);
    let reversed = every_option().map(|options| push.compile(options).is_ok());
    assert_eq!(reversed, results);
}

fn every_option() -> [RuleOptions; 2] {
    let other = RuleOptions {
        merge_domains: true,
        strict_matching: true,
        ..RuleOptions::default()
    };
    [RuleOptions::default(), other]
}

fn problems(result: &Result<Loaded, Vec<Problem>>) -> &[Problem] {
    let (Ok(Loaded { warnings: all, .. }) | Err(all)) = result;
    all
}

/// Whether there are rules, and the problems as shown.
fn check_loaded(result: &Result<Loaded, Vec<Problem>>) -> (bool, Vec<String>) {
    let mut all = problems(result).iter();
    let has_errors = all.any(|problem| !problem.fault.is_warning());
    assert_eq!(has_errors, result.is_err());
    let shown: Vec<_> = problems(result).iter().map(Problem::to_string).collect();
    let mut lines = shown.iter();
    let odd = lines.find(|line| line.contains(char::is_control));
    assert_eq!(odd, None);
    (result.is_ok(), shown)
}

// --- wildcards -----------------------------------------------------------------------------------

/// The rule of a value is the one with this value, or the first wildcard that matches, or the one without a value; the
/// values of the rules are lines; that of the request follows a NUL.
pub fn wildcards(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else {
        return;
    };
    let (lines, value) = (&bytes[..end], &bytes[end + 1..]);
    let mut matcher = Matcher::default();
    let root = matcher.insert_domain(b"d");
    let mut rules: Vec<&[u8]> = Vec::new();
    for line in lines.split(|byte| *byte == b'\n') {
        if let Some(node) = matcher.insert(root, b"k", line) {
            let path = rules.len().to_string().into();
            matcher.set_rule(node, |id| Rule {
                id,
                path,
                ..any_rule().clone()
            });
            rules.push(line);
        }
    }
    let entry = [Entry { key: b"k", value }];
    let domain = matcher.domain(b"d").expect("it was inserted");
    let found = domain.find(&entry, &mut Joined::new());
    let found = found.ok().map(|found| &*found.rule.path);

    let exact = |rule: &&[u8]| !rule.is_empty() && *rule == value;
    let wildcard = |rule: &&[u8]| rule.contains(&b'*') && is_matched(rule, value);
    let expected = rules.iter().position(exact);
    let expected = expected.or_else(|| rules.iter().position(wildcard));
    let expected = expected.or_else(|| rules.iter().position(|rule| rule.is_empty()));
    assert_eq!(found, expected.map(|rule| rule.to_string()).as_deref());
}

fn any_rule() -> &'static Rule {
    static RULE: OnceLock<Rule> = OnceLock::new();
    RULE.get_or_init(|| {
        let text = "domain: d\ndescriptors: [{key: k, rate_limits: [1/day]}]";
        let loaded = RuleFiles::of("fuzz.yaml", text).compile(RuleOptions::default());
        loaded.expect("it is good").matcher.rules()[0].clone()
    })
}

/// Whether `rule`, in which `*` stands for any bytes, matches all of `value`.
fn is_matched(rule: &[u8], value: &[u8]) -> bool {
    // Whether the rule so far matches so many bytes of the value.
    let mut matches = vec![false; value.len() + 1];
    matches[0] = true;
    for byte in rule {
        if *byte == b'*' {
            let first = matches.iter().position(|matches| *matches);
            matches[first.unwrap_or(value.len() + 1)..].fill(true);
            continue;
        }
        matches.rotate_right(1);
        matches[0] = false;
        for (at, matches) in matches.iter_mut().enumerate().skip(1) {
            *matches &= value[at - 1] == *byte;
        }
    }
    matches[value.len()]
}

// --- slots ---------------------------------------------------------------------------------------

/// The owner of a slot is the last master whose range has it; entries of another form are left out. Six bytes are a range:
/// its first and its last slot, its master, and the form of its entry.
pub fn slots(bytes: &[u8]) {
    const SLOTS: usize = 16_384;
    // Any reply; without a panic.
    let _ = slot_owners(bytes);

    let entries = bytes.chunks_exact(6);
    let mut reply = format!("*{}\r\n", entries.len());
    let mut owners = vec![None; SLOTS];
    for entry in entries {
        let number = |at: usize| usize::from(u16::from_be_bytes([entry[at], entry[at + 1]]));
        let (first, last, master) = (number(0), number(2), 1 + u32::from(entry[4]));
        let host =
            ["$5\r\nasked\r\n", "$0\r\n\r\n", "$1\r\n?\r\n", "$-1\r\n"][usize::from(entry[5] % 4)];
        let node = format!("*2\r\n{host}:{master}\r\n");
        let is_range = entry[5] < 128;
        reply += &match entry[5] {
            0..64 => format!("*3\r\n:{first}\r\n:{last}\r\n{node}"),
            // The first node of an answer that can be read is the master.
            64..128 => format!("*5\r\n:{first}\r\n:{last}\r\n:7\r\n{node}{node}"),
            128..160 => format!(":{first}\r\n"),
            160..192 => format!("*2\r\n:{first}\r\n:{last}\r\n"),
            192..224 => format!("*3\r\n:{first}\r\n$1\r\nx\r\n{node}"),
            224.. => format!("*3\r\n:{first}\r\n:-1\r\n{node}"),
        };
        if is_range && first <= last {
            let slots = owners.iter_mut().take(last + 1).skip(first);
            slots.for_each(|owner| *owner = Some(format!("asked:{master}")));
        }
    }
    assert_eq!(slot_owners(reply.as_bytes()), Some(owners));
}

// --- mapping -------------------------------------------------------------------------------------

/// With any mapping, put before names that it matches, the statistics form a page that Prometheus can read.
pub fn mapping(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut parts = text.split('\0');
    let mapping = parts.next().expect("even nothing has a first part");
    let mapper = match Mapper::parse(mapping) {
        Ok(loaded) => loaded.mapper,
        Err(errors) => return assert!(!errors.is_empty()),
    };
    let values = [SampleValue::Counter(7), SampleValue::Gauge(5)];
    let samples = parts.flat_map(|name| {
        values.clone().map(|value| Sample {
            name,
            labels: &[("label", "value")],
            statsd: Some(name),
            value,
        })
    });
    let samples: Vec<_> = samples.collect();
    let own = MetricNames::Own {
        in_milliseconds: false,
    };
    for names in [MetricNames::Mapped(mapper), own] {
        let renderer = Renderer::new(names, &[]);
        let mut page = renderer.page(|take| samples.iter().for_each(take));
        let mut text = String::new();
        while page.write_some(&mut text, usize::MAX) {}
        check_page(&text);
    }
}

/// Every line is a comment or a series, and no series and no type appears twice.
fn check_page(page: &str) {
    let mut known = HashSet::new();
    assert!(page.is_empty() || page.ends_with('\n'));
    for line in page.strip_suffix('\n').unwrap_or_default().split('\n') {
        let what = match line.strip_prefix("# ") {
            Some(comment) => {
                let words: Vec<_> = comment.splitn(3, ' ').collect();
                let is_known = matches!(words[..], ["HELP" | "TYPE", name, _] if is_name(name));
                assert!(is_known, "{line:?}");
                &line[..line.len() - words[2].len()]
            }
            None => series(line).unwrap_or_else(|| panic!("{line:?}")),
        };
        assert!(line.is_empty() || known.insert(what), "twice: {line:?}");
    }
}

/// The name and the labels at the beginning of a line, if they are valid.
fn series(line: &str) -> Option<&str> {
    if line.is_empty() {
        return Some(line);
    }
    let (series, value) = line.rsplit_once(' ')?;
    value.parse::<f64>().ok()?;
    let Some((name, labels)) = series.split_once('{') else {
        return is_name(series).then_some(series);
    };
    let mut rest = labels.strip_suffix('}')?;
    let mut names = HashSet::new();
    while !rest.is_empty() {
        let (label, behind) = rest.split_once("=\"")?;
        if !is_label(label) || !names.insert(label) {
            return None;
        }
        let mut is_escaped = false;
        let end = behind.find(|found| {
            let is_end = found == '"' && !is_escaped;
            is_escaped = found == '\\' && !is_escaped;
            is_end
        })?;
        rest = &behind[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    is_name(name).then_some(series)
}

fn is_name(text: &str) -> bool {
    is_label(&text.replace(':', "_"))
}

fn is_label(text: &str) -> bool {
    let is_word = |found: char| found.is_ascii_alphanumeric() || found == '_';
    text.chars().all(is_word) && !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit())
}

// --- tokens --------------------------------------------------------------------------------------

const LEASE_RULES: &str = "
domain: d
descriptors:
  - { key: tenant, reserve: { estimate: 200, missing: zero }, rate_limits: [1000/hour, 100000/day] }
";

/// The mark of the counters of tenant `a` in a token of version 1.
const MARK_OF_VERSION_1: &str = "3ut8rou";

/// The beginning of a day, in which hits are charged.
const CHARGED_AT: Timestamp = Timestamp::from_secs(20_700 * 86_400);

pub const ORDERS: [&str; 3] = [
    "tollgate.reservation",
    "tollgate.release",
    "tollgate.unreserved",
];

/// Counters in memory whose tokens are as those of a store that is shared, so that any process can have made them.
struct LeaseWorld {
    limiter: Limiter<Arc<MemoryStore>>,
    now: Timestamp,
}

impl LeaseWorld {
    /// Two tenants have 50,000 hits in the day, and 900 in the hour.
    fn new() -> Self {
        static RULES: OnceLock<(Rules, Arc<Metrics>)> = OnceLock::new();
        let (rules, metrics) = RULES.get_or_init(|| {
            let loaded = RuleFiles::of("fuzz.yaml", LEASE_RULES).compile(RuleOptions::default());
            let metrics = Arc::new(Metrics::new(NearRatio::default(), 0));
            let rules = Rules::default();
            rules.swap(loaded.expect("it is good").matcher, &metrics);
            (rules, metrics)
        });
        let store = Arc::new(MemoryStore::new(100));
        let limiter = Limiter {
            rules: rules.clone(),
            store,
            modes: Modes::default(),
            metrics: metrics.clone().recorder(0),
            decision_log: Default::default(),
            talkers: Default::default(),
            leases: LeaseBook::of_shared_store(),
            returns: Returns::new(Arc::default()),
        };
        let mut world = Self {
            limiter,
            now: CHARGED_AT,
        };
        for tenant in [b"a", b"b"] {
            let entry = (&b"tenant"[..], &tenant[..]);
            let unreserved = [entry, (b"tollgate.unreserved", b"1")];
            world.send(&unreserved, Some(49_100));
            world.now = CHARGED_AT.plus(Duration::from_secs(3600));
            world.send(&unreserved, Some(900));
            world.now = CHARGED_AT;
        }
        world.now = CHARGED_AT.plus(Duration::from_secs(3600));
        world
    }

    fn request<'a>(entries: &[(&'a [u8], &'a [u8])], hits: Option<u64>) -> Request<'a> {
        let mut request = Request::new(b"d");
        for (key, value) in entries {
            request.push_entry(Entry { key, value });
        }
        request.push_descriptor(hits.map(Hits::add), None);
        request
    }

    /// Sends a request, which passes, and returns the marks of what it leased.
    fn send(&self, entries: &[(&[u8], &[u8])], hits: Option<u64>) -> Vec<u32> {
        let request = Self::request(entries, hits);
        let began = Instant::now();
        let deadline = Deadline::of_call(began, None);
        let render = |decision: &mut Decision, _: &Basis<'_, '_>| {
            assert_eq!(decision.overall, DecisionCode::Ok);
            let leased = decision.leased.iter();
            let reserved = leased.flat_map(|leased| &leased.reserved);
            let counters = reserved.flat_map(|(_, part)| &part.counters);
            counters.map(|counter| counter.mark).collect()
        };
        let checked = at_once(self.limiter.check(&request, self.now, &deadline, render));
        checked.expect("memory answers")
    }

    /// The hits of a tenant in the hour and in the day of `at`.
    fn held(&self, tenant: &[u8], at: Timestamp) -> [i64; 2] {
        let rules = self.limiter.rules.current().expect("they were loaded");
        let request = Self::request(&[(b"tenant", tenant)], Some(0));
        let plan = Plan::new(&rules.matcher, &request, Modes::default(), at);
        let counts = at_once(self.limiter.store.add(&plan.batch, at)).expect("memory answers");
        [counts[0].after, counts[1].after].map(u64::cast_signed)
    }
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    let Poll::Ready(output) = pin!(future).poll(&mut Context::from_waker(Waker::noop())) else {
        unreachable!("memory never waits")
    };
    output
}

/// Any bytes, after a cost and the time since some hits were charged, are a token or unknown in each order. None takes
/// more off than a counter holds, and none does so twice, of another tenant, or without the mark of its counters.
pub fn tokens(bytes: &[u8]) {
    for order in ORDERS {
        is_known(order, bytes);
    }
}

/// Checks one order. Returns whether the counters know the token.
pub fn is_known(order: &str, bytes: &[u8]) -> bool {
    let [cost, later, token @ ..] = bytes else {
        return false;
    };
    let cost = i64::from(*cost);
    let marks = LeaseWorld::new().send(&[(b"tenant", b"a")], Some(1));
    let mut world = LeaseWorld::new();
    let later = Duration::from_secs(u64::from(*later) * 1000);
    world.now = world.now.plus(later);
    let other = world.held(b"b", world.now);
    let mut is_known = false;
    for is_repeated in [false, true] {
        let before = world.held(b"a", world.now);
        let entries = [(&b"tenant"[..], &b"a"[..]), (order.as_bytes(), token)];
        world.send(&entries, Some(cost.unsigned_abs()));
        let after = world.held(b"a", world.now);
        for (before, after) in before.into_iter().zip(after) {
            let change = after - before;
            assert!((0..=before + cost).contains(&after), "{before}, {after}");
            match (order, is_repeated) {
                ("tollgate.unreserved", _) => assert_eq!(change, cost),
                // It is repeated, or unknown.
                ("tollgate.reservation", true) => assert!([0, cost].contains(&change)),
                ("tollgate.reservation", false) => {}
                (_, true) => assert_eq!(change, 0),
                (_, false) => assert!(change <= 0),
            }
            let if_unknown = if order == "tollgate.release" { 0 } else { cost };
            is_known |= change != if_unknown;
        }
    }
    assert_eq!(world.held(b"b", world.now), other);
    if is_known {
        let text = std::str::from_utf8(token).expect("a token is text");
        let names = |mark: &u32| text.contains(&format!("-{}", base_32(*mark)));
        let is_named = match text.split_once('.') {
            Some(("1", rest)) => rest.contains(&format!(".{MARK_OF_VERSION_1}-")),
            Some(("2", _)) => marks.iter().any(names),
            _ => false,
        };
        assert!(is_named, "{text}");
    }
    is_known
}

fn base_32(mut number: u32) -> String {
    let mut digits = Vec::new();
    while number > 0 || digits.is_empty() {
        digits.push(char::from_digit(number % 32, 32).expect("it is a digit"));
        number /= 32;
    }
    digits.into_iter().rev().collect()
}
