//! A service that knows how many of its requests are in flight, and ends them in all ways.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// A running service; its threads end with the process.
///
/// The path of a request says how it ends: `/answer/MILLIS` after so long, `/fail/MILLIS` with 503, and `/reset/MILLIS`
/// without an answer. Those that bring no `x-slot` passed without a decision, and are counted apart.
#[derive(Debug)]
pub struct InFlight {
    pub address: SocketAddr,
    requests: Arc<Mutex<Requests>>,
}

#[derive(Debug, Default)]
struct Requests {
    open: HashMap<u64, TcpStream>,
    most: u32,
    arrived: u64,
    without_slot: u64,
}

impl InFlight {
    #[track_caller]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Requests>> = Arc::default();
        let served = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let requests = served.clone();
                thread::spawn(move || while answer(&stream, &requests).is_some() {});
            }
        });
        Self { address, requests }
    }

    /// The most requests that were in flight at a time.
    pub fn most(&self) -> u32 {
        self.requests.lock().unwrap().most
    }

    /// All requests, and those without a slot.
    pub fn arrived(&self) -> (u64, u64) {
        let requests = self.requests.lock().unwrap();
        (requests.arrived, requests.without_slot)
    }
}

impl Requests {
    fn drop_ended(&mut self) {
        self.open.retain(|_, stream| {
            stream.set_nonblocking(true).unwrap();
            let peeked = stream.peek(&mut [0]);
            stream.set_nonblocking(false).unwrap();
            peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
    }

    fn begin(&mut self, stream: &TcpStream, has_slot: bool) -> Option<u64> {
        self.arrived += 1;
        if !has_slot {
            self.without_slot += 1;
            return None;
        }
        self.open.insert(self.arrived, stream.try_clone().ok()?);
        // Also this one, if Envoy has given it up before it was read here.
        self.drop_ended();
        self.most = self.most.max(u32::try_from(self.open.len()).unwrap());
        Some(self.arrived)
    }
}

/// Answers one request. `None` at the end of the connection.
fn answer(mut stream: &TcpStream, requests: &Mutex<Requests>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut path, mut has_slot) = (String::new(), false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim_end();
        if path.is_empty() {
            line.split(' ').nth(1)?.clone_into(&mut path);
        } else if let Some(value) = line.strip_prefix("x-slot: ") {
            has_slot = value.starts_with("2.");
        } else if line.is_empty() {
            break;
        }
    }
    let request = requests.lock().unwrap().begin(stream, has_slot);
    let (end, millis) = path[1..].split_once('/')?;
    thread::sleep(Duration::from_millis(millis.parse().ok()?));
    // Before the answer: Envoy frees the slot as soon as it has that.
    if let Some(request) = request {
        requests.lock().unwrap().open.remove(&request);
    }
    let status = match end {
        "answer" => "200 OK",
        "fail" => "503 Service Unavailable",
        _ => return None,
    };
    let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(reply.as_bytes()).ok()
}
