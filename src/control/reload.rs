//! Watches the rule files and takes valid ones into use; otherwise keeps the old rules and logs why.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{collections::BTreeMap, convert::Infallible, pin::pin, sync::Arc};

use tokio::sync::watch;

use crate::{
    config::{
        fault::{Fault, FaultLevel, Problem},
        files::{Files, Loaded, problem_of},
        problems::listed,
        rule_defaults::Options,
        source::Source,
    },
    control::changes::Changes,
    foundation::{
        lock::blocking,
        log_throttle::{BurstThrottle, Omitted},
        printable::Megabytes,
    },
    observe::metrics::{LONG_LOAD, Metrics, TakenLoad, process},
    service::{grpc::now, limiter::Rules},
};

/// The memory that rules may take: a share of their own, and beyond it as much as nothing else takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleMemory {
    /// The most bytes of the process.
    pub(crate) total: usize,
    /// The bytes that a load may always take.
    pub(crate) share: usize,
}

impl RuleMemory {
    /// Whether there is room for a load that takes about `load_bytes`.
    ///
    /// # Errors
    ///
    /// If it does not fit in the share, and not in what the process leaves of its limit either.
    pub(crate) fn check(&self, load_bytes: usize) -> Result<(), Fault> {
        let total = self.total;
        // Without the figure of the kernel the share is all that is certain.
        let taken = process::resident_bytes()
            .map_or(total, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        if load_bytes <= self.share || load_bytes <= total.saturating_sub(taken) {
            return Ok(());
        }
        Err(Fault::NoMemory {
            needed: Megabytes(load_bytes),
            taken: Megabytes(taken),
            total: Megabytes(total),
        })
    }
}

/// Takes loaded rules into use, from files or from a control plane.
#[derive(Clone, Debug)]
pub(crate) struct Intake {
    rules: Rules,
    metrics: Arc<Metrics>,
    memory: RuleMemory,
    /// Whether any rules have been loaded.
    has_rules: watch::Sender<bool>,
    /// Whether the rules in use have at least one domain.
    has_domains: watch::Sender<bool>,
}

impl Intake {
    pub(crate) fn new(rules: Rules, metrics: Arc<Metrics>, memory: RuleMemory) -> Self {
        Self {
            rules,
            metrics,
            memory,
            has_rules: watch::Sender::new(false),
            has_domains: watch::Sender::new(false),
        }
    }

    /// Whether there is memory for a load that takes about `load_bytes`.
    ///
    /// # Errors
    ///
    /// The reason why there is not.
    pub(crate) fn check_room(&self, load_bytes: usize) -> Result<(), Fault> {
        self.memory.check(load_bytes)
    }

    /// Takes valid rules into use.
    ///
    /// # Errors
    ///
    /// The errors of the load; the rules in use then stay.
    pub(crate) fn take(&self, loaded: Result<Loaded, Vec<Problem>>) -> Result<(), Vec<Problem>> {
        let refused =
            |problems: &Vec<Problem>| self.metrics.config.record_refused_load(now(), problems);
        let loaded = loaded.inspect_err(refused)?;
        let taken = TakenLoad::new(now(), &loaded);
        let domains = loaded.matcher.domain_count();
        self.metrics.loss.change_rules(loaded.matcher.rules());
        self.rules.swap(loaded.matcher, &self.metrics);
        // Only now: no status names rules that are not in use.
        self.metrics.config.record_taken_load(taken);
        self.has_rules.send_replace(true);
        self.has_domains.send_replace(domains > 0);
        if let Some(omitted) = TAKEN.may_log() {
            log_findings(&loaded.warnings);
            tracing::info!(
                rules = taken.rules,
                domains,
                files = taken.files,
                "rules loaded{}",
                Omitted(omitted, "loads")
            );
        }
        Ok(())
    }

    /// The domains that have rules in use and would have none.
    fn emptied(&self, loaded: &Loaded) -> Vec<Problem> {
        let Some(current) = self.rules.current() else {
            return Vec::new();
        };
        let (before, after) = (&current.matcher, &loaded.matcher);
        let names = after.domain_names().iter();
        let emptied = names.filter(|name| before.has_rules_in(name) && !after.has_rules_in(name));
        let problems = emptied.map(|name| {
            let domain = String::from_utf8_lossy(name).into_owned();
            let is_its =
                |of: &&Problem| matches!(&of.fault, Fault::NoRules(named) if *named == domain);
            // Not all warnings are kept.
            let place = loaded.warnings.iter().find(is_its);
            Problem {
                file: place.map_or_else(|| "the rules".to_owned(), |place| place.file.clone()),
                position: place.and_then(|place| place.position),
                path: String::new(),
                fault: Fault::RulesLost(domain),
            }
        });
        problems.collect()
    }

    /// Follows whether there are rules in use.
    pub(crate) fn follow_rules(&self) -> watch::Receiver<bool> {
        self.has_rules.subscribe()
    }

    /// Follows whether the rules in use have at least one domain.
    pub(crate) fn follow_domains(&self) -> watch::Receiver<bool> {
        self.has_domains.subscribe()
    }

    /// Whether the rules in use have at least one domain.
    pub(crate) fn has_domains(&self) -> bool {
        *self.has_domains.borrow()
    }
}

/// A control plane can push as often as it likes.
static TAKEN: BurstThrottle = BurstThrottle::new(60);

/// Warnings of one kind that are logged: a generated file can have thousands, at every reload.
const MAX_WARNINGS: usize = 10;

/// Logs warnings, and one note of each kind: nothing has to change because of them.
fn log_findings(findings: &[Problem]) {
    let mut kinds: BTreeMap<(&str, FaultLevel), usize> = BTreeMap::new();
    for finding in findings {
        let level = finding.fault.level();
        let seen = kinds.entry((finding.fault.code(), level)).or_default();
        *seen += finding.count();
        match level {
            FaultLevel::Note if *seen == 1 => tracing::info!("{finding}"),
            FaultLevel::Warning if *seen <= MAX_WARNINGS => tracing::warn!("{finding}"),
            _ => {}
        }
    }
    for ((kind, level), count) in kinds {
        if level == FaultLevel::Warning && count > MAX_WARNINGS {
            let more = count - MAX_WARNINGS;
            tracing::warn!(
                "{more} more warnings of the kind {kind}; `tollgate check` reports them"
            );
        }
    }
}

/// The effect of a reload that leaves a domain without any rule, where there were some. A file that is gone takes its
/// domain with it on purpose; one that has lost its rules was probably cut off or misspelt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnEmptyReload {
    /// It is accepted like any other: then nothing in that domain is limited.
    Allow,
    /// It is refused.
    Keep,
}

impl crate::foundation::named::Named for OnEmptyReload {
    const NAMES: &'static [(&'static str, Self)] = &[("allow", Self::Allow), ("keep", Self::Keep)];
}

/// Reads the rules of one source repeatedly.
#[derive(Debug)]
pub(crate) struct Reloader {
    source: Source,
    options: Options,
    empty: OnEmptyReload,
    intake: Intake,
    /// Digest of the files of the last load, whether it succeeded or not.
    seen: Option<[u8; 32]>,
}

impl Reloader {
    pub(crate) fn new(
        source: Source,
        options: Options,
        empty: OnEmptyReload,
        intake: Intake,
    ) -> Self {
        Self {
            source,
            options,
            empty,
            intake,
            seen: None,
        }
    }

    /// Loads the rules if the files have changed since the last load.
    ///
    /// # Errors
    ///
    /// Every problem with the new files; the rules in use then stay.
    pub(crate) fn load(&mut self) -> Result<(), Vec<Problem>> {
        let files = Files::read(&self.source);
        let digest = files.digest();
        if self.seen == Some(digest) {
            return Ok(());
        }
        self.seen = Some(digest);
        let room = self.intake.check_room(files.load_bytes());
        let room = room.map_err(|fault| vec![problem_of(&self.source, fault)]);
        let read = || files.compile(self.options);
        let loaded = room.and_then(|()| unless_it_panics(&self.source, read));
        let loaded = loaded.and_then(|loaded| {
            let emptied = match self.empty {
                OnEmptyReload::Allow => Vec::new(),
                OnEmptyReload::Keep => self.intake.emptied(&loaded),
            };
            if emptied.is_empty() {
                Ok(loaded)
            } else {
                Err(emptied)
            }
        });
        self.intake.take(loaded)
    }

    /// Starts to watch the folder: [`RulesWatch::run`] misses no change from now on.
    pub(crate) fn watch(self) -> RulesWatch {
        let changes = Changes::in_folders(self.source.watched(), "the rules");
        RulesWatch {
            reloader: self,
            changes,
        }
    }
}

/// The result of `read`. A panic is a problem with `source`: the last good rules stay, as those of a control plane do.
fn unless_it_panics<T>(
    source: &Source,
    read: impl FnOnce() -> Result<T, Vec<Problem>>,
) -> Result<T, Vec<Problem>> {
    let read = catch_unwind(AssertUnwindSafe(read));
    read.unwrap_or_else(|_| Err(vec![problem_of(source, Fault::Panicked)]))
}

/// A watched folder and its reloader.
#[derive(Debug)]
pub(crate) struct RulesWatch {
    reloader: Reloader,
    changes: Changes,
}

impl RulesWatch {
    /// Reloads on every change, until dropped.
    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            self.changes.next().await;
            let Self {
                mut reloader,
                changes,
            } = self;
            let metrics = reloader.intake.metrics.clone();
            // Thousands of rules take a while to compile; the dispatcher has other work meanwhile.
            let reload = move || {
                if let Err(problems) = reloader.load() {
                    report(&problems);
                }
                reloader
            };
            metrics.config.record_running_load(true);
            let mut loading = pin!(blocking(reload));
            let mut patience = LONG_LOAD;
            let reloader = loop {
                match tokio::time::timeout(patience, &mut loading).await {
                    Ok(reloader) => break reloader,
                    Err(_elapsed) => {
                        tracing::warn!(
                            "a load of the rules takes long; until it ends no change is seen"
                        );
                        patience = LONG_LOAD * 6;
                    }
                }
            };
            metrics.config.record_running_load(false);
            self = Self { reloader, changes };
        }
    }
}

/// Logs the reasons why rules were refused.
pub(crate) fn log_errors(problems: &[Problem]) {
    let (logged, more) = listed(problems);
    for problem in logged {
        tracing::error!("{problem}");
    }
    if more > 0 {
        tracing::error!("{more} more problems; `tollgate check` lists them");
    }
}

/// Logs why the new rules were refused.
fn report(problems: &[Problem]) {
    log_errors(problems);
    tracing::error!("the rules were not reloaded; the last good ones stay in use");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_whose_reading_panics_are_refused() {
        let source = Source::Paths(vec!["rules".into()]);
        assert_eq!(unless_it_panics(&source, || Ok(7)).unwrap(), 7);
        let refused: Result<(), _> = unless_it_panics(&source, || panic!("broken"));
        let problems = refused.unwrap_err();
        assert!(
            problems[0]
                .to_string()
                .starts_with("rules: reading it ended in a panic")
        );
    }
    use crate::core::limit::NearRatio;

    const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limits: [1/day]}
  - {key: b, on_store_loss: local, rate_limits: [1/day]}
";

    fn loaded(text: &str) -> Result<Loaded, Vec<Problem>> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), text).unwrap();
        Files::read(&Source::Paths(vec![folder.path().into()])).compile(Options::default())
    }

    /// A subscriber that cannot log.
    struct Broken;

    impl tracing::Subscriber for Broken {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            panic!("the log is broken");
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn the_status_names_the_rules_in_use_even_if_the_load_breaks_off() {
        let metrics = Arc::new(Metrics::new(NearRatio::default(), 0));
        let rules = Rules::default();
        let intake = Intake::new(
            rules.clone(),
            metrics.clone(),
            RuleMemory { total: 0, share: 0 },
        );
        intake.take(loaded(RULES)).unwrap();
        let next = loaded(&format!("{RULES}  - {{key: c, rate_limits: [1/day]}}"));
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            tracing::subscriber::with_default(Broken, || intake.take(next))
        }));
        assert!(taken.is_err());
        let in_use = rules.current().unwrap().matcher.rules().len();
        assert_eq!(metrics.config.history().in_use().unwrap().rules, in_use);
    }

    #[test]
    fn rules_always_have_their_share_and_more_only_where_the_process_leaves_it() {
        let taken = usize::try_from(process::resident_bytes().unwrap()).unwrap();
        let memory = |total| RuleMemory { total, share: 1000 };
        let full = memory(taken / 2);
        full.check(1000).unwrap();
        let refused = full.check(1001).unwrap_err().to_string();
        assert!(refused.contains("raise its memory limit"), "{refused}");
        // Tests beside this one take memory meanwhile.
        memory(taken + (1 << 30)).check(1 << 20).unwrap();
    }
}
