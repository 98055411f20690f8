//! Logs once that the CPU quota pauses this process.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Interval between checks.
const LOOK: Duration = Duration::from_secs(1);

/// Pauses that add up to less than this in one interval are not reported.
const NOTEWORTHY: Duration = Duration::from_millis(10);

/// The mount point of control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// How often a CPU quota has stopped the processes of a control group, and for how long in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Throttled {
    times: u64,
    time: Duration,
}

/// Watches until the quota evidently causes pauses, whose sum `paused` returns. Ends then, or at once if the kernel
/// provides no numbers.
pub(super) async fn watch(paused: impl Fn() -> Duration) {
    let memberships = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some((file, mut before)) = candidates(Path::new(ROOT), &memberships)
        .into_iter()
        .find_map(|file| read(&file).map(|throttled| (file, throttled)))
    else {
        return;
    };
    let mut paused_before = paused();
    loop {
        tokio::time::sleep(LOOK).await;
        let paused_now = paused();
        if paused_now.saturating_sub(paused_before) >= NOTEWORTHY
            && let Some(now) = read(&file)
        {
            if now.times > before.times {
                let time = now.time.saturating_sub(before.time);
                tracing::warn!(
                    times = now.times - before.times,
                    stopped_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
                    "the CPU quota pauses this process: with a larger one (limits.cpu in Kubernetes) \
                     answers would be faster"
                );
                return;
            }
            before = now;
        }
        paused_before = paused_now;
    }
}

/// Files that may have the numbers, the likeliest first: of cgroup v2, then of v1, under the process's own path and,
/// in a container, at the root. `memberships` is the text of `/proc/self/cgroup` (cgroups(7)).
fn candidates(root: &Path, memberships: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in memberships.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            files.push(root.join(path).join("cpu.stat"));
        } else if controllers.split(',').any(|name| name == "cpu") {
            for folder in [controllers, "cpu"] {
                files.push(root.join(folder).join(path).join("cpu.stat"));
                files.push(root.join(folder).join("cpu.stat"));
            }
        }
    }
    files.push(root.join("cpu.stat"));
    files
}

/// `None` if the file does not contain the numbers.
fn read(file: &Path) -> Option<Throttled> {
    parse(&fs::read_to_string(file).ok()?)
}

fn parse(text: &str) -> Option<Throttled> {
    let value = |wanted: &str| {
        let mut words = text.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = words.find(|(name, _)| *name == wanted)?;
        value.trim().parse::<u64>().ok()
    };
    let time = value("throttled_usec")
        .map(Duration::from_micros)
        .or_else(|| value("throttled_time").map(Duration::from_nanos));
    Some(Throttled {
        times: value("nr_throttled")?,
        time: time.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let v2 = "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 4500\n";
        let v1 = "nr_periods 9\nnr_throttled 3\nthrottled_time 4500000\n";
        let expected = Throttled {
            times: 3,
            time: Duration::from_micros(4500),
        };
        assert_eq!(parse(v2), Some(expected));
        assert_eq!(parse(v1), Some(expected));
        // A group without a quota.
        assert_eq!(parse("usage_usec 5\n"), None);
    }

    #[test]
    fn the_own_group_is_looked_at_first() {
        let root = Path::new("/r");
        let shown = |memberships| {
            let files = candidates(root, memberships).into_iter();
            files
                .map(|file| file.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(shown("0::/pod/a\n"), ["/r/pod/a/cpu.stat", "/r/cpu.stat"]);
        assert_eq!(
            shown("4:memory:/m\n3:cpu,cpuacct:/pod\n")[..2],
            ["/r/cpu,cpuacct/pod/cpu.stat", "/r/cpu,cpuacct/cpu.stat"]
        );
        assert_eq!(shown("nonsense"), ["/r/cpu.stat"]);
    }
}
