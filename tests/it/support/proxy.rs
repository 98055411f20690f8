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
    /// No data arrives, and neither side is notified.
    pub swallows: bool,
    /// Connections break, and new ones break at once.
    pub cuts: bool,
    /// At most this many bytes a second, in each direction of each connection.
    pub bytes_per_sec: Option<u32>,
    /// A connection on which no data passes for so long is dead from then on; neither side is notified.
    pub forgets_after: Option<Duration>,
    /// A connection ends when one of these commands comes.
    pub ends_on: &'static [&'static str],
}

/// Runs on a thread of its own until the test program ends.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    /// The server that new connections reach.
    behind: Arc<Mutex<String>>,
    fault: watch::Sender<Fault>,
    /// Connections with lower numbers are dead; neither side is notified.
    alive_from: Arc<AtomicUsize>,
    made: Arc<AtomicUsize>,
    /// Delay of the next reply, and of all later data on its connection, in microseconds.
    holds_next_micros: Arc<AtomicU64>,
    /// Connections with lower numbers hold all data for the server until this moment.
    held_requests: Arc<Mutex<Option<(usize, Instant)>>>,
}

impl Proxy {
    pub fn to(behind: String) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            behind: Arc::new(Mutex::new(behind)),
            fault: watch::Sender::default(),
            alive_from: Arc::default(),
            made: Arc::default(),
            holds_next_micros: Arc::default(),
            held_requests: Arc::default(),
        };
        let held_requests = proxy.held_requests.clone();
        let holds_next_micros = proxy.holds_next_micros.clone();
        let faults = proxy.fault.subscribe();
        let (alive_from, made) = (proxy.alive_from.clone(), proxy.made.clone());
        let behind = proxy.behind.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let mut passing = tokio::task::JoinSet::new();
                while let Ok((near, _)) = listener.accept().await {
                    let number = made.fetch_add(1, Relaxed);
                    let faults = faults.clone();
                    let (alive_from, behind) = (alive_from.clone(), behind.lock().unwrap().clone());
                    let holds_next_micros = holds_next_micros.clone();
                    let held_requests = held_requests.clone();
                    passing.spawn(async move {
                        let is_dead = move || number < alive_from.load(Relaxed);
                        let held = move || match *held_requests.lock().unwrap() {
                            Some((below, until)) if number < below => {
                                until.saturating_duration_since(Instant::now())
                            }
                            _ => Duration::ZERO,
                        };
                        let mut ends = faults.clone();
                        tokio::select! {
                            () = pass(near, behind, faults, is_dead, (held, &holds_next_micros)) => {}
                            _ = ends.wait_for(|fault| fault.cuts) => {}
                        }
                    });
                }
            });
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    pub fn heal(&self) {
        self.set(Fault::default());
    }

    /// Delays the next reply by `time`, and with it all later data on its connection. Returns whether the previous
    /// delay has been used.
    pub fn hold_next_reply(&self, time: Duration) -> bool {
        let micros = u64::try_from(time.as_micros()).unwrap();
        self.holds_next_micros.swap(micros, Relaxed) == 0
    }

    /// Holds what the present connections send to the server for `time`; new ones are not held.
    pub fn hold_requests(&self, time: Duration) {
        *self.held_requests.lock().unwrap() = Some((self.connections(), Instant::now() + time));
    }

    /// Lets new connections reach another server; the others stay where they are.
    pub fn move_to(&self, behind: String) {
        *self.behind.lock().unwrap() = behind;
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.made.load(Relaxed)
    }

    /// Silences all connections so far for ever; new ones work.
    pub fn forget(&self) {
        self.alive_from.store(self.made.load(Relaxed), Relaxed);
    }
}

async fn pass(
    near: TcpStream,
    behind: String,
    faults: watch::Receiver<Fault>,
    is_dead: impl Fn() -> bool + Clone,
    (held_requests, holds_next_micros): (impl Fn() -> Duration, &AtomicU64),
) {
    let Ok(far) = TcpStream::connect(behind).await else {
        return;
    };
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
    }
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let held_replies = || Duration::from_micros(holds_next_micros.swap(0, Relaxed));
    let used = Mutex::new((Instant::now(), false));
    let forgets_after = faults.clone();
    let is_dead = || {
        let (at, is_forgotten) = &mut *used.lock().unwrap();
        let forgets_after = forgets_after.borrow().forgets_after;
        *is_forgotten |= forgets_after.is_some_and(|after| at.elapsed() >= after);
        *at = Instant::now();
        *is_forgotten || is_dead()
    };
    tokio::select! {
        () = pump(near_read, far_write, faults.clone(), &is_dead, held_requests) => {}
        () = pump(far_read, near_write, faults, &is_dead, held_replies) => {}
    }
}

/// Forwards bytes with the delay of the fault.
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
