//! Statistics of rule loads: their number, the last one and the hash of the rules in use. Also whether a control plane
//! is connected.

use std::{
    fmt,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    config::{fault::Problem, files::Loaded},
    core::{calendar::utc, window::Timestamp},
    foundation::{lock::lock, sample::SampleWriter},
};

/// Statistics of rule loads.
#[derive(Debug, Default)]
pub(crate) struct ConfigStats {
    loads_ok: AtomicU64,
    loads_failed: AtomicU64,
    history: Mutex<LoadHistory>,
    /// When the running load began.
    running: Mutex<Option<Instant>>,
    /// Whether the control plane is connected; unset if rules come from files.
    control_plane: OnceLock<AtomicBool>,
}

/// The last loads of the rules, as `/healthcheck?verbose` shows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadHistory {
    in_use: Option<TakenLoad>,
    /// The last load, if it was refused.
    refused: Option<RefusedLoad>,
    /// How long the running load has taken so far.
    running: Option<Duration>,
}

/// A load that takes longer than this is reported. 100,000 rules take less than a tenth of it.
pub(crate) const LONG_LOAD: Duration = Duration::from_secs(10);

/// A load whose rules are in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenLoad {
    pub(crate) at: Timestamp,
    pub(crate) hash: u64,
    pub(crate) rules: usize,
    pub(crate) files: usize,
}

impl TakenLoad {
    pub(crate) fn new(at: Timestamp, loaded: &Loaded) -> Self {
        Self {
            at,
            hash: hash(&loaded.digest),
            rules: loaded.matcher.rules().len(),
            files: loaded.files,
        }
    }
}

/// A load that changed nothing.
#[derive(Clone, Debug)]
pub(crate) struct RefusedLoad {
    pub(crate) at: Timestamp,
    /// The file of the first error, with line and column if they are known. `/healthcheck` shows no more than this,
    /// because the text of an error can quote the rules.
    place: String,
    /// The first errors, for those who may read the rules.
    pub(crate) errors: Box<[String]>,
    /// How many more there are.
    pub(crate) omitted: usize,
}

/// Most errors of one load that are kept; the log has all.
const MAX_ERRORS: usize = 20;

/// Most characters of an error that are kept.
const MAX_ERROR_CHARS: usize = 500;

impl RefusedLoad {
    fn new(at: Timestamp, problems: &[Problem]) -> Self {
        let errors = || problems.iter().filter(|found| !found.fault.is_warning());
        let shown = |problem: &Problem| problem.to_string().chars().take(MAX_ERROR_CHARS).collect();
        let first = errors().next();
        Self {
            at,
            place: first.map_or_else(|| "(push)".to_owned(), Problem::place),
            errors: errors().take(MAX_ERRORS).map(shown).collect(),
            omitted: errors()
                .map(Problem::count)
                .sum::<usize>()
                .saturating_sub(MAX_ERRORS),
        }
    }
}

impl ConfigStats {
    /// Records a load whose rules are now in use.
    pub(crate) fn record_taken_load(&self, taken: TakenLoad) {
        self.loads_ok.fetch_add(1, Relaxed);
        *lock(&self.history) = LoadHistory {
            in_use: Some(taken),
            refused: None,
            running: None,
        };
    }

    /// Records a load that changed nothing.
    pub(crate) fn record_refused_load(&self, at: Timestamp, problems: &[Problem]) {
        let refused = RefusedLoad::new(at, problems);
        self.loads_failed.fetch_add(1, Relaxed);
        lock(&self.history).refused = Some(refused);
    }

    /// Records that a load of files begins or has ended.
    pub(crate) fn record_running_load(&self, is_running: bool) {
        *lock(&self.running) = is_running.then(Instant::now);
    }

    /// The last loads.
    pub(crate) fn history(&self) -> LoadHistory {
        LoadHistory {
            running: lock(&self.running).map(|began| began.elapsed()),
            ..lock(&self.history).clone()
        }
    }

    /// Records whether the control plane is connected.
    pub(crate) fn record_control_plane(&self, is_up: bool) {
        let control_plane = self.control_plane.get_or_init(AtomicBool::default);
        control_plane.store(is_up, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        list.total("ratelimit.service.config_load_success", &self.loads_ok);
        list.total("ratelimit.service.config_load_error", &self.loads_failed);
        let history = self.history();
        let running = history.running.unwrap_or_default().as_secs();
        list.gauge("tollgate.rules_load_running_seconds", &[], running);
        history.samples(list);
        let is_up = self.control_plane.get();
        match is_up.map(|is_up| is_up.load(Relaxed)) {
            Some(is_up) => list.gauge("tollgate.control_plane_up", &[], is_up.into()),
            None => self.runtime_samples(list),
        }
    }

    /// Statistics of file loads under the reference's names, which come from its library lyft/goruntime.
    fn runtime_samples(&self, list: &mut SampleWriter<'_>) {
        let (ok, failed) = (self.loads_ok.load(Relaxed), self.loads_failed.load(Relaxed));
        list.counter("runtime.load_attempts", &[], ok + failed);
        list.counter("runtime.load_failures", &[], failed);
        let files = self.history().in_use.map_or(0, |taken| taken.files);
        list.gauge("runtime.num_values", &[], files as u64);
    }
}

impl LoadHistory {
    /// The load whose rules are in use.
    pub(crate) fn in_use(&self) -> Option<&TakenLoad> {
        self.in_use.as_ref()
    }

    /// The last load, if it was refused.
    pub(crate) fn refused(&self) -> Option<&RefusedLoad> {
        self.refused.as_ref()
    }

    /// Gauges of loads; none before the first one.
    fn samples(&self, list: &mut SampleWriter<'_>) {
        let refused_at = self.refused.as_ref().map(|refused| refused.at);
        let Some(last_at) = refused_at.or(self.in_use.map(|taken| taken.at)) else {
            return;
        };
        let is_good = u64::from(self.refused.is_none());
        list.gauge("tollgate.rules_last_load_successful", &[], is_good);
        let name = "tollgate.rules_last_load_timestamp_seconds";
        list.gauge(name, &[], last_at.secs());
        if let Some(taken) = self.in_use {
            let name = "tollgate.rules_last_load_success_timestamp_seconds";
            list.gauge(name, &[], taken.at.secs());
            list.gauge("tollgate.rules_hash", &[], taken.hash);
        }
    }
}

impl fmt::Display for LoadHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(running) = self.running.filter(|running| *running >= LONG_LOAD) {
            write!(f, "a load has been running for {} s; ", running.as_secs())?;
        }
        if let Some(RefusedLoad { at, place, .. }) = &self.refused {
            let at = utc(*at);
            write!(f, "refused at {at}, first error at {}; ", place)?;
        } else if self.in_use.is_some() {
            f.write_str("ok, ")?;
        }
        match &self.in_use {
            Some(TakenLoad {
                at, hash, rules, ..
            }) => {
                write!(
                    f,
                    "{rules} in use, loaded at {}, hash {hash:012x}",
                    utc(*at)
                )
            }
            None => f.write_str("none are loaded"),
        }
    }
}

/// The first 48 bits of a digest. A Prometheus sample is a float, which holds 53 bits exactly.
fn hash(digest: &[u8; 32]) -> u64 {
    let bits = digest[..6].iter();
    bits.fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_a_whole_number_that_prometheus_holds() {
        let mut digest = [0xff; 32];
        let largest = hash(&digest);
        assert_eq!(largest, (1 << 48) - 1);
        assert!(largest < 1 << 53);
        digest[..6].copy_from_slice(&[0, 0, 0, 0, 1, 2]);
        assert_eq!(hash(&digest), 258);
    }

    #[test]
    fn the_page_names_the_rules_in_use_and_the_place_of_the_first_error() {
        let mut history = LoadHistory::default();
        assert_eq!(history.to_string(), "none are loaded");
        let at = Timestamp::from_secs(86_400);
        let (hash, rules) = (0xab, 2);
        history.in_use = Some(TakenLoad {
            at,
            hash,
            rules,
            files: 1,
        });
        let in_use = "2 in use, loaded at 1970-01-02T00:00:00Z, hash 0000000000ab";
        assert_eq!(history.to_string(), format!("ok, {in_use}"));
        let (at, place) = (Timestamp::from_secs(86_460), "a.yaml:4:7".to_owned());
        history.refused = Some(RefusedLoad {
            at,
            place,
            errors: Box::default(),
            omitted: 0,
        });
        let refused = "refused at 1970-01-02T00:01:00Z, first error at a.yaml:4:7; ";
        assert_eq!(history.to_string(), format!("{refused}{in_use}"));
    }
}
