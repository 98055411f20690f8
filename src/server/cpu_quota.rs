//! Logs once if the CPU quota pauses this process.

use std::{fs, path::Path, time::Duration};

use super::control_group::files;

/// Interval between checks.
const LOOK: Duration = Duration::from_secs(1);

/// Pauses that add up to less than this in one interval are not reported.
const NOTEWORTHY: Duration = Duration::from_millis(10);

/// How often a CPU quota has stopped the processes of a control group, and for how long in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Throttled {
    times: u64,
    time: Duration,
}

/// Watches until the quota evidently causes pauses, and ends then; or at once, if the kernel provides no numbers.
pub(super) async fn watch() {
    let Some((file, mut before)) = files("cpu", "cpu.stat")
        .into_iter()
        .find_map(|file| read(&file).map(|throttled| (file, throttled)))
    else {
        return;
    };
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(now) = read(&file) else { continue };
        let time = now.time.saturating_sub(before.time);
        if now.times > before.times && time >= NOTEWORTHY {
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
}

/// Reads the numbers in a file; `None` if it does not contain them.
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
        // This is a group without a quota.
        assert_eq!(parse("usage_usec 5\n"), None);
    }
}
