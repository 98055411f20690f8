//! Watches the rule files; takes good ones into use, keeps the old ones otherwise and says why.

use std::{sync::Arc, time::Duration};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{mpsc, watch};

use crate::{
    config::{Files, Options, Problem, Source},
    limiter::Rules,
    metrics::Metrics,
};

/// Reads the rules of one source again and again.
#[derive(Debug)]
pub struct Reloader {
    pub source: Source,
    pub options: Options,
    pub rules: Rules,
    pub metrics: Arc<Metrics>,
    /// The files of the last load, good or bad.
    seen: Option<[u8; 32]>,
    /// Whether the rules in use have any domain.
    has_domains: watch::Sender<bool>,
}

/// Changes within this time are one: editors and the kubelet make several of each.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A folder that never rests is read all the same, this long after its first change.
const LONGEST_DEBOUNCE: Duration = Duration::from_secs(1);

/// The folder is looked at this often even if no change was seen: a watch can be lost, for
/// example with the folder that it was on.
const RECHECK: Duration = Duration::from_secs(10);

impl Reloader {
    pub fn new(source: Source, options: Options, rules: Rules, metrics: Arc<Metrics>) -> Self {
        Self {
            source,
            options,
            rules,
            metrics,
            seen: None,
            has_domains: watch::Sender::new(false),
        }
    }

    /// Whether the rules in use have any domain, now and later.
    pub fn has_domains(&self) -> watch::Receiver<bool> {
        self.has_domains.subscribe()
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
        let loaded = files.compile(self.options);
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
        self.rules.swap(loaded.matcher, &self.metrics);
        self.has_domains.send_replace(has_domains);
        Ok(())
    }

    /// Starts to watch the folder: changes from now on are not missed by [`Watch::run`].
    pub fn watch(self) -> Watch {
        // One place is enough: it says that something changed, not what.
        let (changed, changes) = mpsc::channel(1);
        let watcher = watcher(&self.source, changed)
            .inspect_err(|error| {
                tracing::warn!(%error, "changes of the rules are seen late: no file watch");
            })
            .ok();
        Watch {
            reloader: self,
            changes,
            watcher,
        }
    }
}

fn watcher(source: &Source, changed: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // Reading the files is an event too, and no change.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            // A full channel already says what there is to say.
            let _ = changed.try_send(());
        }
    })?;
    for (folder, is_recursive) in source.watched() {
        let mode = if is_recursive {
            RecursiveMode::Recursive
        } else {
            RecursiveMode::NonRecursive
        };
        watcher.watch(&folder, mode)?;
    }
    Ok(watcher)
}

/// A watched folder.
#[derive(Debug)]
pub struct Watch {
    reloader: Reloader,
    changes: mpsc::Receiver<()>,
    /// Kept for its drop, which ends the watch.
    watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Reloads on every change, until dropped.
    pub async fn run(mut self) {
        loop {
            self.next_change().await;
            let Self {
                mut reloader,
                changes,
                watcher,
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
            self = Self {
                reloader,
                changes,
                watcher,
            };
        }
    }

    /// Waits for a change and until it is complete, or for the time to look anyway.
    async fn next_change(&mut self) {
        match tokio::time::timeout(RECHECK, self.changes.recv()).await {
            Ok(Some(())) => {
                let settle = async {
                    while let Ok(Some(())) =
                        tokio::time::timeout(DEBOUNCE, self.changes.recv()).await
                    {
                    }
                };
                // Settled or not, it is time to read.
                let _ = tokio::time::timeout(LONGEST_DEBOUNCE, settle).await;
            }
            // There is no watch.
            Ok(None) => tokio::time::sleep(RECHECK).await,
            Err(_elapsed) => {}
        }
    }
}

/// Says every reason why the new rules were not taken.
fn report(problems: &[Problem]) {
    for problem in problems {
        tracing::error!("{problem}");
    }
    tracing::error!("the rules were not reloaded; the last good ones stay in use");
}
