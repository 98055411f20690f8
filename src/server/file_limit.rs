//! Raises the limit of open files to what the system allows and divides it, so that client connections never use the
//! files that probes, reloads and the store need.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files that the process itself needs: ports, rules being read, statistics, the log.
const OWN: u64 = 64;

/// Files that each worker needs: its runtime, and connections to each node of Redis.
const OWN_EACH: u64 = 32;

/// Each HTTP port gets one in this many files.
const HTTP_SHARE: u64 = 16;

/// Largest number of HTTP ports.
const HTTP_PORTS: u64 = 3;

/// Most connections of one HTTP port.
const MAX_HTTP_CONNECTIONS: u64 = 1_000;

/// Connections that one HTTP port always gets, however few files there are.
const MIN_HTTP_CONNECTIONS: u64 = 8;

/// How many connections fit the limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimits {
    pub(super) grpc: usize,
    /// Connections on each HTTP port.
    pub(super) http: usize,
}

/// Raises the limit, and computes how many connections fit. Logs a warning if these are fewer than `max_connections`.
pub(super) fn connection_limits(max_connections: usize, workers: usize) -> ConnectionLimits {
    let files = raise();
    let connection_limits = share(files, max_connections, workers);
    if connection_limits.grpc < max_connections {
        tracing::warn!(
            "the process may open {files} files (ulimit -n): it accepts at most {} gRPC connections, \
             not {max_connections}",
            connection_limits.grpc
        );
    }
    connection_limits
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

fn share(files: u64, max_connections: usize, workers: usize) -> ConnectionLimits {
    let workers = u64::try_from(workers).unwrap_or(u64::MAX);
    let own = OWN.saturating_add(OWN_EACH.saturating_mul(workers));
    let http = (files / HTTP_SHARE).clamp(MIN_HTTP_CONNECTIONS, MAX_HTTP_CONNECTIONS);
    let rest = files.saturating_sub(own + HTTP_PORTS * http).max(1);
    ConnectionLimits {
        grpc: max_connections.min(usize::try_from(rest).unwrap_or(usize::MAX)),
        http: usize::try_from(http).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: u64, workers: usize, grpc: usize, http: usize) {
        assert_eq!(
            share(files, 10_000, workers),
            ConnectionLimits { grpc, http }
        );
    }

    #[test]
    fn connections_leave_files_for_everything_else() {
        check(u64::MAX, 1024, 10_000, 1_000);
        check(1 << 20, 64, 10_000, 1_000);
        check(1024, 2, 704, 64);
        check(256, 2, 80, 16);
        check(0, 2, 1, 8);
    }
}
