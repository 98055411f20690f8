//! A bad network: a proxy between tollgate and a Redis.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

/// The effect of the network on all data, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fault {
    /// All data arrives this much later.
    pub latency: Duration,
    pub swallows: bool,
    pub cuts: bool,
    /// At most this many bytes a second, in each direction of each connection.
    pub bytes_per_sec: Option<u32>,
    /// A connection on which no data passes for so long is dead from then on; neither side is notified.
    pub forgets_after: Option<Duration>,
    pub ends_on: &'static [&'static str],
}

/// Runs on a thread of its own until the test program ends.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The server that new connections reach.
    behind: Mutex<String>,
    fault: watch::Sender<Fault>,
    /// Connections with lower numbers are dead; neither side is notified.
    alive_from: AtomicUsize,
    made: AtomicUsize,
    /// Delay of the next reply, and of all later data on its connection, in microseconds.
    holds_next_micros: AtomicU64,
    /// Connections with lower numbers hold all data for the server until this moment.
    held_requests: Mutex<Option<(usize, Instant)>>,
}

impl Proxy {
    pub fn to(behind: String) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            behind: Mutex::new(behind),
            fault: watch::Sender::default(),
            alive_from: AtomicUsize::default(),
            made: AtomicUsize::default(),
            holds_next_micros: AtomicU64::default(),
            held_requests: Mutex::default(),
        });
        let served = shared.clone();
        std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let mut passing = tokio::task::JoinSet::new();
                while let Ok((near, _)) = listener.accept().await {
                    let number = served.made.fetch_add(1, Relaxed);
                    let shared = served.clone();
                    passing.spawn(async move {
                        let mut faults = shared.fault.subscribe();
                        tokio::select! {
                            () = shared.pass(near, number) => {}
                            _ = faults.wait_for(|fault| fault.cuts) => {}
                        }
                    });
                }
            });
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    pub fn heal(&self) {
        self.set(Fault::default());
    }

    /// Delays the next reply by `time`, and with it all later data on its connection. Returns whether the previous
    /// delay has been used.
    pub fn hold_next_reply(&self, time: Duration) -> bool {
        let micros = u64::try_from(time.as_micros()).unwrap();
        self.shared.holds_next_micros.swap(micros, Relaxed) == 0
    }

    /// Holds what the present connections send to the server for `time`; new ones are not held.
    pub fn hold_requests(&self, time: Duration) {
        let held = (self.connections(), Instant::now() + time);
        *self.shared.held_requests.lock().unwrap() = Some(held);
    }

    /// Lets new connections reach another server; the others stay where they are.
    pub fn move_to(&self, behind: String) {
        *self.shared.behind.lock().unwrap() = behind;
    }

    pub fn connections(&self) -> usize {
        self.shared.made.load(Relaxed)
    }

    /// Silences all connections so far for ever; new ones work.
    pub fn forget(&self) {
        self.shared.alive_from.store(self.connections(), Relaxed);
    }
}

impl Shared {
    async fn pass(&self, near: TcpStream, number: usize) {
        let behind = self.behind.lock().unwrap().clone();
        let Ok(far) = TcpStream::connect(behind).await else {
            return;
        };
        for stream in [&near, &far] {
            stream.set_nodelay(true).unwrap();
        }
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        let held_requests = || match *self.held_requests.lock().unwrap() {
            Some((below, until)) if number < below => {
                until.saturating_duration_since(Instant::now())
            }
            _ => Duration::ZERO,
        };
        let held_replies = || Duration::from_micros(self.holds_next_micros.swap(0, Relaxed));
        let used = Mutex::new((Instant::now(), false));
        let is_dead = || {
            let (at, is_forgotten) = &mut *used.lock().unwrap();
            let forgets_after = self.fault.borrow().forgets_after;
            *is_forgotten |= forgets_after.is_some_and(|after| at.elapsed() >= after);
            *at = Instant::now();
            *is_forgotten || number < self.alive_from.load(Relaxed)
        };
        let faults = || self.fault.subscribe();
        tokio::select! {
            () = pump(near_read, far_write, faults(), &is_dead, held_requests) => {}
            () = pump(far_read, near_write, faults(), &is_dead, held_replies) => {}
        }
    }
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    faults: watch::Receiver<Fault>,
    is_dead: impl Fn() -> bool,
    held: impl Fn() -> Duration,
) {
    let (late, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let read = async move {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let fault = *faults.borrow();
            let is_there = |name: &&str| {
                let word = format!("\r\n{name}\r\n").into_bytes();
                buffer[..length]
                    .windows(word.len())
                    .any(|part| part == word)
            };
            if fault.ends_on.iter().any(is_there) {
                return true;
            }
            if fault.swallows || is_dead() {
                continue;
            }
            if let Some(bytes_per_sec) = fault.bytes_per_sec {
                let length = u32::try_from(length).unwrap();
                let takes = Duration::from_secs(1) * length / bytes_per_sec;
                let mut faults = faults.clone();
                tokio::select! {
                    () = sleep(takes) => {}
                    // The bandwidth became larger, or another fault began.
                    _ = faults.wait_for(|now| *now != fault) => {}
                }
            }
            let at = Instant::now() + fault.latency + held();
            if late.send((at, buffer[..length].to_vec())).await.is_err() {
                break;
            }
        }
        false
    };
    let write = async {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    let all_read = async {
        if !read.await {
            // All that was read is still written.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = all_read => {}
        () = write => {}
    }
}
