//! Waits for changes in folders of the file system.

use std::{path::PathBuf, time::Duration};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Changes within this time count as one: editors and the kubelet make several at a time.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A folder that never comes to rest is read this long after its first change.
const LONGEST_DEBOUNCE: Duration = Duration::from_secs(1);

/// The folder is checked this often even without a notification: a watch can get lost, for example together with the
/// folder that it was on.
const RECHECK: Duration = Duration::from_secs(10);

/// Watched folders. [`Changes::next`] misses no change after this value was made.
#[derive(Debug)]
pub(crate) struct Changes {
    changes: mpsc::Receiver<()>,
    /// Held because its drop ends the watch.
    _watcher: Option<RecommendedWatcher>,
}

impl Changes {
    /// Starts to watch folders; the flag of each says whether its sub-folders count too. `what` names their content
    /// in the log.
    pub(crate) fn in_folders(folders: Vec<(PathBuf, bool)>, what: &str) -> Self {
        // Room for one is enough: a message says that something changed, not what.
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

    /// Waits until a change is complete, or until it is time for a check without one.
    pub(crate) async fn next(&mut self) {
        match tokio::time::timeout(RECHECK, self.changes.recv()).await {
            Ok(Some(())) => {
                let settle = async {
                    while let Ok(Some(())) =
                        tokio::time::timeout(DEBOUNCE, self.changes.recv()).await
                    {
                    }
                };
                // Settled or not, read now.
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
        // Reading the files also makes events, and they are no change.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            // A full channel already holds the notification.
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
