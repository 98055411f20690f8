//! Watches the rule files; takes good ones into use, keeps the old ones otherwise and says why.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::{
    changes::Changes,
    config::{Files, Loaded, Options, Problem, Source},
    limiter::{RuleSet, Rules},
    metrics::Metrics,
};

/// How long a load waits for requests that still hold the rules before it. Most are answered within a
/// millisecond; one that waits for a store that is lost may take as long as its timeout.
const REQUESTS_END_WITHIN: Duration = Duration::from_secs(1);

/// How often it looks whether they still do: a count of references wakes nobody.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Takes loaded rules into use, wherever they come from.
#[derive(Clone, Debug)]
pub struct Intake {
    rules: Rules,
    metrics: Arc<Metrics>,
    /// Whether there are rules at all.
    has_rules: watch::Sender<bool>,
    /// Whether the rules in use have any domain.
    has_domains: watch::Sender<bool>,
    retired: Retired,
}

impl Intake {
    pub fn new(rules: Rules, metrics: Arc<Metrics>) -> Self {
        Self {
            rules,
            metrics,
            retired: Retired {
                rules: Arc::default(),
                patience: REQUESTS_END_WITHIN,
            },
            has_rules: watch::Sender::new(false),
            has_domains: watch::Sender::new(false),
        }
    }

    /// Takes good rules into use, and frees those that were. That blocks its thread, which must be none
    /// that answers requests.
    ///
    /// # Errors
    ///
    /// Those of the load; the rules in use are the old ones then.
    pub fn take(&self, loaded: Result<Loaded, Vec<Problem>>) -> Result<(), Vec<Problem>> {
        self.metrics.record_load(loaded.is_ok());
        let loaded = loaded?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!(
            rules = loaded.matcher.rules().len(),
            domains = loaded.matcher.domain_count(),
            files = loaded.files,
            "rules loaded"
        );
        let has_domains = loaded.matcher.domain_count() > 0;
        let before = self.rules.current();
        self.rules.swap(loaded.matcher, &self.metrics);
        self.has_rules.send_replace(true);
        self.has_domains.send_replace(has_domains);
        self.retired.lock().extend(before);
        self.retired.free();
        Ok(())
    }

    /// Whether there are rules in use, now and later.
    pub fn follow_rules(&self) -> watch::Receiver<bool> {
        self.has_rules.subscribe()
    }

    /// Whether the rules in use have any domain, now and later.
    pub fn follow_domains(&self) -> watch::Receiver<bool> {
        self.has_domains.subscribe()
    }

    /// Whether the rules in use have any domain.
    pub fn has_domains(&self) -> bool {
        *self.has_domains.borrow()
    }
}

/// Rules that are not in use any more, but for requests that began with them.
///
/// Whoever holds rules last frees them, and to free 100,000 takes tens of milliseconds. A worker would
/// spend them in the middle of a decision, with all others on its thread behind it. So rules are held
/// here from before they are swapped out until nobody else holds them. Who has none then cannot get
/// them any more, for only the rules in use are handed out.
#[derive(Clone, Debug)]
struct Retired {
    rules: Arc<Mutex<Vec<Arc<RuleSet>>>>,
    /// How long to wait for requests to end.
    patience: Duration,
}

impl Retired {
    /// Frees what nobody else holds. What is held for longer is left for the next load.
    fn free(&self) {
        let began = Instant::now();
        loop {
            let is_alone = |rules: &mut Arc<RuleSet>| Arc::strong_count(rules) == 1;
            let alone: Vec<_> = self.lock().extract_if(.., is_alone).collect();
            drop(alone);
            if self.lock().is_empty() || began.elapsed() >= self.patience {
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<RuleSet>>> {
        // Whatever panicked left a list of rules.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the rules of one source again and again.
#[derive(Debug)]
pub struct Reloader {
    source: Source,
    options: Options,
    intake: Intake,
    /// The files of the last load, good or bad.
    seen: Option<[u8; 32]>,
}

impl Reloader {
    pub fn new(source: Source, options: Options, intake: Intake) -> Self {
        Self {
            source,
            options,
            intake,
            seen: None,
        }
    }

    /// Loads the rules if the files are not those of the last time.
    ///
    /// # Errors
    ///
    /// Every problem with the new files; the rules in use are the old ones then.
    pub fn load(&mut self) -> Result<(), Vec<Problem>> {
        let files = Files::read(&self.source);
        let digest = files.digest();
        if self.seen == Some(digest) {
            return Ok(());
        }
        self.seen = Some(digest);
        self.intake.take(files.compile(self.options))
    }

    /// Starts to watch the folder: changes from now on are not missed by [`Watch::run`].
    pub fn watch(self) -> Watch {
        let changes = Changes::in_folders(self.source.watched(), "the rules");
        Watch {
            reloader: self,
            changes,
        }
    }
}

/// A watched folder.
#[derive(Debug)]
pub struct Watch {
    reloader: Reloader,
    changes: Changes,
}

impl Watch {
    /// Reloads on every change, until dropped.
    pub async fn run(mut self) {
        loop {
            self.changes.next().await;
            let Self {
                mut reloader,
                changes,
            } = self;
            // Thousands of rules take a while; the door has other things to do meanwhile.
            let reload = tokio::task::spawn_blocking(move || {
                if let Err(problems) = reloader.load() {
                    report(&problems);
                }
                reloader
            });
            let Ok(reloader) = reload.await else {
                tracing::error!("reading the rules panicked; they are not watched any more");
                return std::future::pending().await;
            };
            self = Self { reloader, changes };
        }
    }
}

/// Says every reason why the new rules were not taken.
pub fn report(problems: &[Problem]) {
    for problem in problems {
        tracing::error!("{problem}");
    }
    tracing::error!("the rules were not reloaded; the last good ones stay in use");
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::{limit::NearRatio, matcher::Matcher};

    fn intake() -> Intake {
        let metrics = Arc::new(Metrics::new(NearRatio(0.8), 0));
        let intake = Intake::new(Rules::default(), metrics);
        load(&intake);
        intake
    }

    fn load(intake: &Intake) {
        let loaded = Loaded {
            matcher: Matcher::default(),
            warnings: Vec::new(),
            files: 0,
        };
        intake.take(Ok(loaded)).unwrap();
    }

    /// The rules in use, and a way to know when they are freed.
    fn hold(intake: &Intake) -> (Arc<RuleSet>, Weak<RuleSet>) {
        let rules = intake.rules.current().unwrap();
        let freed = Arc::downgrade(&rules);
        (rules, freed)
    }

    #[test]
    fn a_load_frees_the_rules_before_it() {
        let intake = intake();
        let (rules, freed) = hold(&intake);
        drop(rules);
        load(&intake);
        assert_eq!(freed.strong_count(), 0);
    }

    #[test]
    fn a_load_waits_for_requests_that_hold_the_rules_before_it() {
        let mut intake = intake();
        intake.retired.patience = Duration::from_secs(60);
        let (rules, freed) = hold(&intake);
        thread::scope(|scope| {
            let loading = scope.spawn(|| load(&intake));
            while Arc::ptr_eq(&rules, &intake.rules.current().unwrap()) {
                thread::yield_now();
            }
            drop(rules);
            loading.join().unwrap();
        });
        assert_eq!(freed.strong_count(), 0);
    }

    #[test]
    fn who_holds_rules_longer_than_anybody_waits_does_not_free_them() {
        let mut intake = intake();
        intake.retired.patience = Duration::ZERO;
        let (rules, freed) = hold(&intake);
        load(&intake);
        drop(rules);
        assert_eq!(freed.strong_count(), 1, "the holder would have freed them");
        load(&intake);
        assert_eq!(freed.strong_count(), 0);
    }
}
