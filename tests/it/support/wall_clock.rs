//! A time of day for servers of a test, which the test can set while they run. Their monotonic clock stays true.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::LazyLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tempfile::TempDir;

use super::{finish, tool};

/// The wall clock of one or several servers: a file that libfaketime reads whenever one of them asks for the time.
#[derive(Debug)]
pub struct WallClock {
    folder: TempDir,
}

/// The value of `LD_PRELOAD`, as faketime itself sets it: only faketime knows where its library is.
static LIBRARY: LazyLock<String> = LazyLock::new(|| {
    let mut faketime = Command::new(tool("faketime"));
    let output = finish(faketime.args(["-m", "-f", "+0", "/usr/bin/env"]));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    let library = lines.find_map(|line| line.strip_prefix("LD_PRELOAD="));
    library.expect("faketime loads its library").to_owned()
});

/// libfaketime names a semaphore and a piece of memory after its process, and does not start if one of that name is
/// left of a process that was killed.
pub(super) const START: &str =
    "rm -f /dev/shm/sem.faketime_sem_$$ /dev/shm/faketime_shm_$$ && exec env \"$@\"";

impl WallClock {
    /// The true time, until it is set.
    pub fn start() -> Self {
        let clock = Self {
            folder: TempDir::new().unwrap(),
        };
        clock.set(0);
        clock
    }

    /// Sets it to so many seconds after the true time, or before it.
    pub fn set(&self, ahead_secs: i64) {
        // A server never reads half a file.
        let new = self.folder.path().join("new");
        fs::write(&new, format!("{ahead_secs:+}\n")).unwrap();
        fs::rename(&new, self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ahead")
    }

    /// A command that takes another one as its arguments, and starts it in its place with this clock.
    pub fn starter(&self) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", START, "sh"])
            .arg(format!("LD_PRELOAD={}", *LIBRARY))
            .arg(format!("FAKETIME_TIMESTAMP_FILE={}", self.file().display()))
            .args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]);
        command
    }
}

/// Removes the files that libfaketime leaves of a process that was killed, if it had any.
pub fn remove_rests_of(process: u32) {
    for name in ["sem.faketime_sem_", "faketime_shm_"] {
        let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the true time, which no server is given"
)]
pub fn true_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
