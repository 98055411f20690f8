//! What the tests run against. Everything picks its own ports and folders and dies with its
//! owner.

use std::{
    future::Future,
    path::PathBuf,
    time::{Duration, Instant},
};

pub mod ask;
pub mod redis;
pub mod tollgate;

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An installed program. `make tools` puts it there; a test without it fails.
pub fn tool(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("target/tools/bin").join(name);
    assert!(
        path.exists(),
        "{} is missing: run `make tools`",
        path.display()
    );
    path
}

/// Waits until `is_so` says yes.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `is_so` says yes, without holding up other tasks.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not so in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A port that was free a moment ago. Whoever takes it must be ready to lose the race and ask
/// again.
pub fn free_port() -> u16 {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    probe.local_addr().expect("a bound port").port()
}
