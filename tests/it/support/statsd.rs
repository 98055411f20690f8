//! A collector for statsd and DogStatsD lines.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::{Arc, Mutex},
    thread,
};

use super::wait_until;

/// The data that a collector has received so far. It listens until the test process ends.
#[derive(Clone, Debug)]
pub struct Collector {
    pub address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Collector {
    /// A collector that accepts connections and reads one at a time.
    pub fn tcp() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let collector = Self::at(listener.local_addr().unwrap());
        let heard = collector.heard.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    heard.lock().unwrap().extend(&buffer[..length]);
                }
            }
        });
        collector
    }

    pub fn udp() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let collector = Self::at(socket.local_addr().unwrap());
        let heard = collector.heard.clone();
        thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok(length) = socket.recv(&mut buffer) {
                heard.lock().unwrap().extend(&buffer[..length]);
            }
        });
        collector
    }

    fn at(address: SocketAddr) -> Self {
        Self {
            address,
            heard: Arc::default(),
        }
    }

    pub fn env(&self) -> [(&'static str, String); 2] {
        [
            ("STATSD_HOST", self.address.ip().to_string()),
            ("STATSD_PORT", self.address.port().to_string()),
        ]
    }

    pub fn lines(&self) -> Vec<String> {
        let heard = self.heard.lock().unwrap();
        let text = String::from_utf8(heard.clone()).expect("lines are UTF-8");
        let mut lines: Vec<_> = text.split('\n').map(str::to_owned).collect();
        // The text after the last newline is not complete yet.
        lines.pop();
        lines
    }

    /// The sum of a counter over all flushes; its line has `tags` after the type.
    pub fn sum(&self, name: &str, tags: &str) -> u64 {
        let lines = self.lines();
        let amounts = lines.iter().filter_map(|line| {
            let amount = line.strip_prefix(name)?.strip_prefix(':')?;
            let amount = amount.strip_suffix(tags)?.strip_suffix("|c")?;
            amount.parse::<u64>().ok()
        });
        amounts.sum()
    }

    /// Waits until a counter has reached `expected`.
    #[track_caller]
    pub fn expect(&self, name: &str, tags: &str, expected: u64) {
        let what = format!("{name}{tags} is {expected}");
        wait_until(&what, || self.sum(name, tags) == expected);
    }
}
