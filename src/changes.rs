//! Waits until something changes in folders of the file system.

use std::{path::PathBuf, time::Duration};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Changes within this time are one: editors and the kubelet make several of each.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A folder that never rests is read all the same, this long after its first change.
const LONGEST_DEBOUNCE: Duration = Duration::from_secs(1);

/// The folder is looked at this often even if no change was seen: a watch can be lost, for
/// example with the folder that it was on.
const RECHECK: Duration = Duration::from_secs(10);

/// Watched folders. Changes from its beginning on are not missed by [`Changes::next`].
#[derive(Debug)]
pub struct Changes {
    changes: mpsc::Receiver<()>,
    /// Kept for its drop, which ends the watch.
    _watcher: Option<RecommendedWatcher>,
}

impl Changes {
    /// Starts to watch folders, each with whether those below it count too. `what` is in them,
    /// for the log.
    pub fn in_folders(folders: Vec<(PathBuf, bool)>, what: &str) -> Self {
        // One place is enough: it says that something changed, not what.
        let (changed, changes) = mpsc::channel(1);
        let watcher = watcher(folders, changed)
            .inspect_err(|error| {
                tracing::warn!(%error, "changes of {what} are seen late: no file watch");
            })
            .ok();
        Self {
            changes,
            _watcher: watcher,
        }
    }

    /// Waits for a change and until it is complete, or for the time to look anyway.
    pub async fn next(&mut self) {
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

fn watcher(
    folders: Vec<(PathBuf, bool)>,
    changed: mpsc::Sender<()>,
) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // Reading the files is an event too, and no change.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            // A full channel already says what there is to say.
            let _ = changed.try_send(());
        }
    })?;
    for (folder, is_recursive) in folders {
        let mode = if is_recursive {
            RecursiveMode::Recursive
        } else {
            RecursiveMode::NonRecursive
        };
        watcher.watch(&folder, mode)?;
    }
    Ok(watcher)
}
