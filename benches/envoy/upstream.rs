//! The upstream of every Envoy: it answers at once, with a constant reply.
//!
//! A `direct_response` of Envoy's own would be cheaper still, but the rate limit filter makes no call for a route
//! without a cluster. One thread serves all connections here, over a Unix socket, so the processor time of the
//! upstream belongs to the benchmark and not to Envoy.

use std::{
    os::unix::net::UnixListener as StdListener,
    path::{Path, PathBuf},
    thread,
};

use anyhow::Context as _;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    runtime,
    task::JoinSet,
};

const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// It answers until the program ends.
#[derive(Debug)]
pub struct Upstream(TempDir);

impl Upstream {
    pub fn start() -> anyhow::Result<Self> {
        let upstream = Self(TempDir::new()?);
        let listener = StdListener::bind(upstream.path())?;
        listener.set_nonblocking(true)?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::spawn(move || runtime.block_on(serve(listener)));
        Ok(upstream)
    }

    /// The path of its socket.
    pub fn path(&self) -> PathBuf {
        Path::new(self.0.path()).join("upstream.sock")
    }
}

async fn serve(listener: StdListener) -> anyhow::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            arrival = listener.accept() => {
                connections.spawn(answer(arrival?.0));
            }
            // Envoy may close a connection at any time.
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Answers one request after the other; none has a body.
async fn answer(mut stream: UnixStream) -> anyhow::Result<()> {
    let mut bytes = [0; 4 << 10];
    let mut filled = 0;
    loop {
        let free = bytes.get_mut(filled..).filter(|free| !free.is_empty());
        let count = stream.read(free.context("a huge request")?).await?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        if bytes[..filled].ends_with(b"\r\n\r\n") {
            stream.write_all(REPLY).await?;
            filled = 0;
        }
    }
}
