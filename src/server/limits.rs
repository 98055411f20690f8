//! The limits of this process: memory by its control group (cgroups(7)), and open files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The mount point of control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// Limits from here on mean that there is none. cgroup v1 has no word for that, and shows the largest number of whole
/// pages.
const UNLIMITED: u64 = 1 << 62;

/// Most bytes of memory that the process may take: the lowest limit of its group and of the groups above it, or else
/// the memory of the machine.
pub(super) fn memory_limit() -> usize {
    let memberships = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = limit(Path::new(ROOT), &memberships).or_else(of_machine);
    limit
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(usize::MAX)
}

fn of_machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = total.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

fn limit(root: &Path, memberships: &str) -> Option<u64> {
    let v2 = candidates(root, memberships, "memory.max");
    let v1 = candidates(root, memberships, "memory.limit_in_bytes");
    let groups = v2.iter().chain(&v1).flat_map(|file| {
        let name = file.file_name().unwrap_or_default();
        let folders = file.ancestors().skip(1);
        let folders = folders.take_while(|folder| folder.starts_with(root));
        folders.map(|folder| folder.join(name)).collect::<Vec<_>>()
    });
    let limits = groups.filter_map(|file| {
        let text = fs::read_to_string(file).ok()?;
        text.trim().parse::<u64>().ok()
    });
    limits.filter(|limit| *limit < UNLIMITED).min()
}

/// The paths in cgroup v2, then in v1: below the process's own path, and at the root, as a container sees it.
/// `memberships` is the text of `/proc/self/cgroup`.
fn candidates(root: &Path, memberships: &str, name: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in memberships.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            files.push(root.join(path).join(name));
        } else if controllers.split(',').any(|one| one == "memory") {
            for folder in [controllers, "memory"] {
                files.push(root.join(folder).join(path).join(name));
                files.push(root.join(folder).join(name));
            }
        }
    }
    files.push(root.join(name));
    files
}

/// Files that the process itself needs: ports, gRPC connections that are closing, rules being read, exports, the log.
const OWN: u64 = 32 + 64;

/// Files that each worker needs: its runtime, and connections to each node of Redis.
const OWN_EACH: u64 = 32;

/// Each of the three HTTP ports gets one in this many files, and at most so many connections: each can hold a message.
const HTTP_SHARE: u64 = 16;
const MAX_HTTP: u64 = 64;

/// Raises the limit, and computes how many gRPC connections fit, and how many on each HTTP port. Logs a warning if the
/// former are fewer than `max_connections`.
pub(super) fn connection_limits(max_connections: usize, workers: usize) -> (usize, usize) {
    let files = raise();
    let (grpc, http) = share(files, max_connections, workers);
    if grpc < max_connections {
        tracing::warn!(
            "the process may open {files} files (ulimit -n): it accepts at most {grpc} gRPC connections, \
             not {max_connections}"
        );
    }
    (grpc, http)
}

/// Raises the soft limit to the hard one, and returns it.
fn raise() -> u64 {
    // If the limit cannot be read, it counts as infinite.
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files stays at {soft}");
            soft
        }
    }
}

fn share(files: u64, max_connections: usize, workers: usize) -> (usize, usize) {
    let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let workers = u64::try_from(workers).unwrap_or(u64::MAX);
    let http = (files / HTTP_SHARE).clamp(1, MAX_HTTP);
    let own = OWN.saturating_add(OWN_EACH.saturating_mul(workers)) + 3 * http;
    let rest = files.saturating_sub(own).max(1);
    (max_connections.min(number(rest)), number(http))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_looked_at_first() {
        let root = Path::new("/r");
        let shown = |memberships| {
            let files = candidates(root, memberships, "memory.max").into_iter();
            files
                .map(|file| file.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            shown("0::/pod/a\n"),
            ["/r/pod/a/memory.max", "/r/memory.max"]
        );
        assert_eq!(
            shown("4:cpu:/m\n3:memory,hugetlb:/pod\n")[..2],
            [
                "/r/memory,hugetlb/pod/memory.max",
                "/r/memory,hugetlb/memory.max"
            ]
        );
        assert_eq!(shown("nonsense"), ["/r/memory.max"]);
    }

    /// Checks the limit in a hierarchy of these files.
    #[track_caller]
    fn check(files: &[(&str, &str)], memberships: &str, expected: Option<u64>) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(limit(root.path(), memberships), expected, "{files:?}");
    }

    #[test]
    fn the_lowest_memory_limit_around_the_process_counts() {
        let of_pod = ("pod/memory.max", "1000\n");
        let of_container = ("pod/a/memory.max", "max\n");
        check(&[of_pod, of_container], "0::/pod/a\n", Some(1000));
        check(
            &[of_pod, ("pod/a/memory.max", "10\n")],
            "0::/pod/a\n",
            Some(10),
        );
        // A container sees its own group at the root.
        check(
            &[("memory.max", "268435456\n")],
            "0::/\n",
            Some(268_435_456),
        );
        check(&[("memory.max", "max\n")], "0::/\n", None);
        check(&[], "0::/\n", None);
        let v1 = "memory/docker/1/memory.limit_in_bytes";
        check(&[(v1, "500\n")], "5:memory:/docker/1\n", Some(500));
        check(
            &[(v1, "9223372036854771712\n")],
            "5:memory:/docker/1\n",
            None,
        );
    }

    #[test]
    fn connections_leave_files_for_everything_else() {
        for (files, workers, fit) in [
            (u64::MAX, 1024, (10_000, 64)),
            (1 << 20, 64, (10_000, 64)),
            (1024, 2, (672, 64)),
            (256, 2, (48, 16)),
            (0, 2, (1, 1)),
        ] {
            assert_eq!(share(files, 10_000, workers), fit);
        }
    }
}
