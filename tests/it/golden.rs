//! Cases of answering requests and reading rules, against real processes: a file for each section of the reference's
//! description, in which each case is a document of YAML with a name. Lines before the first one are those of all cases
//! without such a key.
//!
//! ```yaml
//! --- # hits-of-a-descriptor: a descriptor's own hits win over those of the request
//! rules: |            # one rule file, or a map of names and texts
//!   domain: ${domain} # a name that only this case uses; one that begins with `descriptors` gets this line
//!   descriptors: [{ key: k, rate_limits: [10/year] }]
//! env: {}             # the server's environment
//! stores: [memory]    # memory or redis, by default both
//! steps:
//!   - ask:            # the descriptors: maps of entries, or `entries` with options
//!       - k: v
//!       - { entries: { k: v }, hits: 2, limit: 5/hour, is_negative: true }
//!       - { entries: [[k, v], [k, w]], limit: { requests_per_unit: 5, unit: 9 } }
//!     hits: 7         # of the request
//!     says: [OK 3 of 10/year, OK unlimited, OK]  # one per status: remaining and limit
//!     overall: OK     # by default OVER_LIMIT if a status is
//! ```
//!
//! The reset of each status must be that of the unit's window since the epoch, unless `resets` gives another one for
//! each status: seconds, `next` for the end of the following window, or `any`. A step may also contain `domain`,
//! `error` (instead of `says`), `headers` (with the unit in place of a reset or a `t`), `metadata` and `redis` (keys and their
//! values afterwards; `${year}` is the start of the current window). A step `next: second` waits for the next second. One
//! with `each` instead of `says` is taken once for each of its texts, which is the only status.
//! Instead of steps a case can have `rejected`, texts that `tollgate check` prints when it refuses the rules, or
//! `warns`, texts of its warnings but those of rules without an effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use ::tollgate::{
    now,
    proto::envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{DescriptorStatus, rate_limit},
        },
    },
};
use prost_types::value::Kind;
use serde::Deserialize;
use serde_yaml::{Mapping, Value};
use tempfile::TempDir;

use crate::explain::Explained;
use crate::support::{
    ask::{Client, connect, send},
    finish,
    redis::Redis,
    tollgate,
};

/// A case that met the end of a window is repeated, under another domain.
const ATTEMPTS: usize = 5;

/// The seconds in which a reply was made.
type Clock = std::ops::RangeInclusive<u64>;

type Reply = Result<RateLimitResponse, tonic::Status>;

const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3600),
    ("day", 86_400),
    ("week", 604_800),
    ("month", 2_592_000),
    ("year", 31_536_000),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    rules: Rules,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default = "both")]
    stores: BTreeSet<Store>,
    #[serde(default)]
    steps: Vec<Step>,
    rejected: Option<Vec<String>>,
    warns: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Rules {
    One(String),
    Several(BTreeMap<String, String>),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
enum Store {
    Memory,
    Redis,
}

fn both() -> BTreeSet<Store> {
    BTreeSet::from([Store::Memory, Store::Redis])
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(default)]
    ask: Vec<Descriptor>,
    domain: Option<String>,
    #[serde(default)]
    hits: u32,
    #[serde(default)]
    says: Vec<String>,
    #[serde(default)]
    each: Vec<String>,
    #[serde(default)]
    resets: Vec<Value>,
    overall: Option<String>,
    error: Option<String>,
    headers: Option<Vec<String>>,
    metadata: Option<serde_json::Value>,
    #[serde(default)]
    redis: BTreeMap<String, Option<String>>,
    next: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Descriptor {
    WithOptions(WithOptions),
    Plain(Mapping),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WithOptions {
    entries: Entries,
    hits: Option<u64>,
    limit: Option<Limit>,
    #[serde(default)]
    is_negative: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Entries {
    Map(Mapping),
    Pairs(Vec<(String, String)>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Limit {
    /// `5/hour`
    Short(String),
    Whole {
        requests_per_unit: u32,
        unit: i32,
        unit_multiplier: Option<u32>,
    },
}

/// The cases of the suite: the name of each and its text, with placeholders.
pub fn cases() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let mut cases = BTreeMap::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let section = path.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let mut parts = text.split("--- # ");
        let shared = parts.next().unwrap();
        for case in parts {
            let (title, own) = case.split_once('\n').unwrap();
            let (name, _) = title.split_once(": ").expect("a name and its claim");
            let has = |key| own.lines().any(|line| line.split(':').next() == key);
            let missing = shared.lines().filter(|line| !has(line.split(':').next()));
            let text: String = missing.map(|line| format!("{line}\n")).collect();
            let before = cases.insert(format!("{section}-{name}"), text + own);
            assert!(before.is_none(), "{section} has two cases {name}");
        }
    }
    cases
}

/// The rule files of all cases: the name of the case, and the text.
pub fn rule_texts() -> Vec<(String, String)> {
    let cases = cases();
    let texts = cases.iter().flat_map(|(name, text)| {
        let case = case(name, text, 0);
        let files = case.files();
        let texts: Vec<_> = files.iter().map(|(_, text)| (*text).to_owned()).collect();
        texts.into_iter().map(|text| (name.clone(), text))
    });
    texts.collect()
}

/// A case for the `attempt`th attempt.
fn case(name: &str, text: &str, attempt: usize) -> Case {
    let domain = domain(name, attempt);
    let text = text.replace("${domain}", &domain);
    let parsed = serde_yaml::from_str(&text);
    let mut case: Case = parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
    if let Rules::One(rules) = &mut case.rules
        && rules.starts_with("descriptors")
    {
        *rules = format!("domain: {domain}\n{}\n", rules.trim_end());
    }
    case.steps = case.steps.iter().flat_map(Step::all).collect();
    let shows = !case.steps.is_empty() || case.rejected.is_some() || case.warns.is_some();
    assert!(shows, "{name} shows nothing");
    let asks = case.rejected.is_some() && !case.steps.is_empty();
    assert!(!asks, "{name} asks by rules that cannot be used");
    case
}

fn domain(name: &str, attempt: usize) -> String {
    format!("{}-{attempt}", name.replace('.', "-"))
}

impl Case {
    fn files(&self) -> Vec<(&str, &str)> {
        match &self.rules {
            Rules::One(text) => vec![("rules.yaml", text)],
            Rules::Several(files) => {
                let files = files.iter();
                files.map(|(name, text)| (&**name, &**text)).collect()
            }
        }
    }
}

#[tokio::test]
async fn every_case_is_answered_as_written() {
    let redis = Redis::start();
    let all = cases();
    // One process serves all cases with equal settings.
    let mut groups: BTreeMap<_, Vec<(&str, &str)>> = BTreeMap::new();
    for (name, text) in &all {
        let case = case(name, text, 0);
        if !case.steps.is_empty() {
            for store in case.stores {
                let group = groups.entry((store, case.env.clone())).or_default();
                group.push((name, text));
            }
        }
    }
    let mut failures = Vec::new();
    for ((store, env), cases) in groups {
        let mut server = tollgate::builder();
        for (name, value) in &env {
            server = server.env(name, value);
        }
        if store == Store::Redis {
            server = server.redis(&redis);
        }
        for (name, text) in &cases {
            for attempt in 0..ATTEMPTS {
                for (file, rules) in case(name, text, attempt).files() {
                    server = server.file(&format!("{name}-{attempt}-{file}"), rules);
                }
            }
        }
        let server = server.start();
        let mut client = connect(server.grpc).await;
        for (name, text) in cases {
            if let Err(failure) = run(name, text, (&mut client, server.debug), &redis).await {
                failures.push(format!("{name} on {store:?}: {failure}"));
            }
        }
    }
    none_of(&failures);
}

async fn run(
    name: &str,
    text: &str,
    (client, debug): (&mut Client, SocketAddr),
    redis: &Redis,
) -> Result<(), String> {
    for attempt in 0..ATTEMPTS {
        let began = now().secs();
        let case = case(name, text, attempt);
        let result = run_once(&case, domain(name, attempt), (client, debug), redis).await;
        let ended = now().secs();
        let lower = text.to_lowercase();
        let mut units = UNITS.iter().filter(|(unit, _)| lower.contains(unit));
        let was_caught = units.any(|(_, secs)| began / secs != ended / secs);
        if result.is_ok() || !was_caught || attempt + 1 == ATTEMPTS {
            return result;
        }
    }
    unreachable!("the last attempt returns")
}

async fn run_once(
    case: &Case,
    domain: String,
    (client, debug): (&mut Client, SocketAddr),
    redis: &Redis,
) -> Result<(), String> {
    for (number, step) in case.steps.iter().enumerate() {
        let in_step = |failure| format!("step {}: {failure}", number + 1);
        if let Some(unit) = &step.next {
            wait_for_next(unit).await;
            continue;
        }
        let began = now().secs();
        let request = step.request(domain.clone());
        let explained = Explained::of(debug, &request);
        let reply = send(client, request).await;
        let clock = began..=now().secs();
        explained.agrees(&reply).map_err(in_step)?;
        step.compare(reply, clock).map_err(in_step)?;
        step.compare_redis(redis).map_err(in_step)?;
    }
    Ok(())
}

/// Waits for the beginning of the next window of `unit`.
async fn wait_for_next(unit: &str) {
    let window = || now().secs() / secs_of(unit);
    let before = window();
    while window() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn secs_of(unit: &str) -> u64 {
    let found = UNITS.iter().find(|(name, _)| *name == unit);
    found.unwrap_or_else(|| panic!("{unit} is no unit")).1
}

impl Step {
    /// Itself, or one for each text of `each`.
    fn all(&self) -> Vec<Self> {
        let one = |text: &String| Self {
            says: vec![text.clone()],
            each: Vec::new(),
            ..self.clone()
        };
        match self.each.is_empty() {
            true => vec![self.clone()],
            false => self.each.iter().map(one).collect(),
        }
    }

    fn request(&self, domain: String) -> RateLimitRequest {
        RateLimitRequest {
            domain: self.domain.clone().unwrap_or(domain),
            descriptors: self.ask.iter().map(Descriptor::message).collect(),
            hits_addend: self.hits,
        }
    }

    fn compare(&self, reply: Reply, clock: Clock) -> Result<(), String> {
        let reply = match (reply, &self.error) {
            (Ok(reply), None) => reply,
            (Ok(reply), Some(error)) => return Err(format!("wants {error}, has {reply:?}")),
            (Err(status), error) => {
                let shown = format!("{:?}: {}", status.code(), status.message());
                return same("error", error.as_deref().unwrap_or("none"), &shown);
            }
        };
        let resets = self.resets.iter().map(Some);
        let resets = resets.chain(std::iter::repeat(None));
        let statuses = reply.statuses.iter().zip(resets);
        let shown = statuses.map(|(status, reset)| show_status(status, reset, clock.clone()));
        let statuses: Vec<_> = shown.collect();
        same("statuses", &self.says.join("\n"), &statuses.join("\n"))?;
        let is_over = self.says.iter().any(|said| said.starts_with("OVER_LIMIT"));
        let overall = if is_over { "OVER_LIMIT" } else { "OK" };
        let overall = self.overall.as_deref().unwrap_or(overall);
        same("overall code", overall, reply.overall_code().as_str_name())?;
        if let Some(headers) = &self.headers {
            let shown = show_headers(&reply, clock, headers);
            same("headers", &headers.join("\n"), &shown.join("\n"))?;
        }
        if let Some(metadata) = &self.metadata {
            let found = reply.dynamic_metadata.map(Kind::StructValue);
            let found = found.map_or_else(|| "none".into(), json);
            same("metadata", &metadata.to_string(), &found.to_string())?;
        }
        Ok(())
    }

    fn compare_redis(&self, redis: &Redis) -> Result<(), String> {
        for (key, value) in &self.redis {
            let mut key = key.clone();
            for (unit, secs) in UNITS {
                let start = now().secs() / secs * secs;
                key = key.replace(&format!("${{{unit}}}"), &start.to_string());
            }
            let found = redis.cli(&["GET", &key]);
            same(&key, value.as_deref().unwrap_or(""), found.trim_end())?;
        }
        Ok(())
    }
}

fn same(what: &str, expected: &str, found: &str) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    Err(format!(
        "{what}\n    wants {expected:?}\n    has   {found:?}"
    ))
}

impl Descriptor {
    fn message(&self) -> RateLimitDescriptor {
        let pairs = |map: &Mapping| {
            let text = |value: &Value| value.as_str().expect("texts, in quotes").to_owned();
            let pair = |(key, value)| (text(key), text(value));
            map.iter().map(pair).collect::<Vec<_>>()
        };
        let (entries, options) = match self {
            Self::Plain(entries) => (pairs(entries), None),
            Self::WithOptions(options) => match &options.entries {
                Entries::Map(entries) => (pairs(entries), Some(options)),
                Entries::Pairs(pairs) => (pairs.clone(), Some(options)),
            },
        };
        let entry = |(key, value): (String, String)| Entry {
            key: key.into(),
            value: value.into(),
        };
        RateLimitDescriptor {
            entries: entries.into_iter().map(entry).collect(),
            limit: options.and_then(|options| options.limit.as_ref().map(Limit::message)),
            hits_addend: options.and_then(|options| options.hits),
            is_negative_hits: options.is_some_and(|options| options.is_negative),
        }
    }
}

impl Limit {
    fn message(&self) -> RateLimitOverride {
        match self {
            Self::Short(text) => {
                let (requests, unit) = text.split_once('/').expect("NUMBER/UNIT");
                let unit = rate_limit::Unit::from_str_name(&unit.to_uppercase());
                RateLimitOverride {
                    requests_per_unit: requests.parse().unwrap(),
                    unit: unit.expect("a unit").into(),
                    unit_multiplier: None,
                }
            }
            Self::Whole {
                requests_per_unit,
                unit,
                unit_multiplier,
            } => RateLimitOverride {
                requests_per_unit: *requests_per_unit,
                unit: *unit,
                unit_multiplier: *unit_multiplier,
            },
        }
    }
}

/// `OK 3 of 10/year named x`, with anything unexpected appended.
fn show_status(status: &DescriptorStatus, expected: Option<&Value>, clock: Clock) -> String {
    let mut shown = status.code().as_str_name().to_owned();
    let remaining = status.limit_remaining;
    let reset = status.duration_until_reset.as_ref();
    let Some(limit) = &status.current_limit else {
        match remaining {
            0 => {}
            u32::MAX => shown += " unlimited",
            remaining => write!(shown, " with {remaining} remaining").unwrap(),
        }
        if let Some(reset) = reset {
            write!(shown, " with the reset {reset:?}").unwrap();
        }
        return shown;
    };
    let unit = limit.unit().as_str_name().to_lowercase();
    let multiplier = limit.unit_multiplier.unwrap_or(1);
    write!(shown, " {remaining} of {}/", limit.requests_per_unit).unwrap();
    if multiplier != 1 {
        write!(shown, "{multiplier}").unwrap();
    }
    shown += &unit;
    if !limit.name.is_empty() {
        write!(shown, " named {}", limit.name).unwrap();
    }
    let period = u64::from(multiplier) * secs_of(&unit);
    /// Time that a busy machine may need for the steps of a case, in seconds.
    const SLACK: u64 = 60;
    let is_right = reset.is_some_and(|reset| {
        let secs = u64::try_from(reset.seconds).unwrap_or(u64::MAX);
        reset.nanos == 0
            && match expected.map(|expected| (expected.as_u64(), expected.as_str())) {
                None => ends(reset.seconds, period, clock),
                Some((Some(most), _)) => (most.saturating_sub(SLACK)..=most).contains(&secs),
                Some((_, Some("next"))) => {
                    secs >= period && ends((secs - period).cast_signed(), period, clock)
                }
                Some((_, Some("any"))) => secs > 0,
                Some(_) => panic!("{expected:?} is no reset"),
            }
    });
    if !is_right {
        write!(shown, " with the reset {reset:?}").unwrap();
    }
    shown
}

/// Whether a window of `period` ends in `reset` seconds, at some time within `clock`.
fn ends(reset: i64, period: u64, clock: Clock) -> bool {
    let mut rests = clock.map(|now| period - now % period);
    rests.any(|rest| i64::try_from(rest) == Ok(reset))
}

/// `Name: value`; a value that is a status's reset, and a parameter `t`, are replaced by the unit of the limit. Windows
/// of two units can end together: of these the one that is `wanted` counts.
fn show_headers(reply: &RateLimitResponse, clock: Clock, wanted: &[String]) -> Vec<String> {
    let mut units: BTreeMap<u64, &str> = BTreeMap::new();
    let statuses = reply.statuses.iter();
    for limit in statuses.filter_map(|status| status.current_limit.as_ref()) {
        let unit = limit.unit().as_str_name().to_lowercase();
        let (unit, secs) = UNITS.iter().find(|(name, _)| *name == unit).unwrap();
        units.insert(*secs, unit);
    }
    let headers = reply.response_headers_to_add.iter().enumerate();
    let unit = |place: usize, reset: &str| {
        let reset = reset.parse().unwrap_or(-1);
        let units = units.iter();
        let found = units.filter(|(secs, _)| ends(reset, **secs, clock.clone()));
        let found: Vec<_> = found.map(|(_, unit)| *unit).collect();
        let line = wanted.get(place).map_or("", String::as_str);
        let meant = found.iter().find(|unit| line.contains(**unit));
        meant.or(found.first()).copied()
    };
    headers
        .map(|(place, header)| match unit(place, &header.value) {
            Some(unit) if place == 2 => format!("{}: {unit}", header.key),
            _ => {
                let parts = header.value.split(';');
                let parts = parts.map(|part| show_effective(part, |secs| unit(place, secs)));
                format!("{}: {}", header.key, parts.collect::<Vec<_>>().join(";"))
            }
        })
        .collect()
}

/// A part of a structured field, with `t` as a unit.
fn show_effective<'u>(part: &str, unit: impl Fn(&str) -> Option<&'u str>) -> String {
    let Some(rest) = part.strip_prefix("t=") else {
        return part.to_owned();
    };
    let end = rest.find(',').unwrap_or(rest.len());
    let (secs, behind) = rest.split_at(end);
    format!("t={}{behind}", unit(secs).unwrap_or(secs))
}

/// A part of a `Struct` as JSON.
fn json(kind: Kind) -> serde_json::Value {
    let value = |value: prost_types::Value| value.kind.map_or(serde_json::Value::Null, json);
    match kind {
        Kind::NullValue(_) => serde_json::Value::Null,
        // Whole ones are as in YAML.
        Kind::NumberValue(number) => serde_json::from_str(&number.to_string()).unwrap(),
        Kind::StringValue(text) => text.into(),
        Kind::BoolValue(is_true) => is_true.into(),
        Kind::StructValue(fields) => {
            let fields = fields.fields.into_iter();
            fields.map(|(key, field)| (key, value(field))).collect()
        }
        Kind::ListValue(list) => list.values.into_iter().map(value).collect(),
    }
}

#[track_caller]
fn none_of(failures: &[String]) {
    let count = failures.len();
    assert!(count == 0, "{count} failed:\n\n{}", failures.join("\n\n"));
}

#[test]
fn every_case_is_checked_as_written() {
    let mut failures = Vec::new();
    let cases = cases();
    assert!(cases.len() >= 120, "only {}", cases.len());
    for (name, text) in cases {
        let case = case(&name, &text, 0);
        if let Err(failure) = check(&case) {
            failures.push(format!("{name}: {failure}"));
        }
    }
    none_of(&failures);
}

/// Compares the output of `tollgate check` for the rules.
fn check(case: &Case) -> Result<(), String> {
    let (wanted, exit_code) = match (&case.rejected, &case.warns) {
        (Some(texts), _) => (texts, 1),
        (None, Some(texts)) => (texts, 0),
        (None, None) => return Ok(()),
    };
    let folder = TempDir::new().unwrap();
    for (name, text) in case.files() {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut command = tollgate::program();
    let output = finish(command.envs(&case.env).arg("check").arg(folder.path()));
    let output_text = String::from_utf8(output.stdout).unwrap();
    if output.status.code() != Some(exit_code) {
        return Err(format!("ends with {}: {output_text}", output.status));
    }
    let is_told = |text: &String| {
        let mut lines = output_text.lines();
        lines.any(|line| line.contains(text) && line.contains(": warning: ") == (exit_code == 0))
    };
    if let Some(text) = wanted.iter().find(|text| !is_told(text)) {
        return Err(format!("does not say {text:?}: {output_text}"));
    }
    // Cases may have rules without an effect, which are meant here. `check` and `config/doubts` test those warnings.
    let doubts = [": warning: no limit, and", ": warning: never reached: "];
    let is_doubt = |line: &&str| doubts.iter().any(|doubt| line.contains(doubt));
    let lines = output_text.lines().filter(|line| !is_doubt(line));
    let warnings = lines.filter(|line| line.contains(": warning: ")).count();
    if exit_code == 0 && warnings != wanted.len() {
        return Err(format!("warns of something else: {output_text}"));
    }
    Ok(())
}
