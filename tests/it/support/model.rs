//! A service that answers like a language model: each answer costs tokens, which a header and the body tell.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// A running service; its threads end with the process.
#[derive(Debug)]
pub struct Model {
    pub address: SocketAddr,
    state: Arc<ModelState>,
}

#[derive(Debug)]
struct ModelState {
    /// The tokens of each answer.
    cost: AtomicU64,
    arrived: AtomicUsize,
    spent: AtomicU64,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Model {
    /// Starts one whose answers cost so many tokens each. It answers nothing before it is opened.
    #[track_caller]
    pub fn start(cost: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ModelState {
            cost: cost.into(),
            arrived: AtomicUsize::new(0),
            spent: AtomicU64::new(0),
            is_open: Mutex::new(false),
            opened: Condvar::new(),
        });
        let served = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = served.clone();
                thread::spawn(move || while state.answer(&stream).is_some() {});
            }
        });
        Self { address, state }
    }

    pub fn arrived(&self) -> usize {
        self.state.arrived.load(SeqCst)
    }

    pub fn spent(&self) -> u64 {
        self.state.spent.load(SeqCst)
    }

    /// Answers the requests that wait, and all further ones at once.
    pub fn open(&self) {
        *self.state.is_open.lock().unwrap() = true;
        self.state.opened.notify_all();
    }
}

impl ModelState {
    /// Answers one request. `None` at the end of the connection.
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        let mut path = String::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let line = line.trim_end().to_ascii_lowercase();
            if path.is_empty() {
                path = line;
            } else if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().ok()?;
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let is_streamed = String::from_utf8_lossy(&body).contains(r#""stream":true"#);
        self.arrived.fetch_add(1, SeqCst);
        let is_open = self.is_open.lock().unwrap();
        let opened = self.opened.wait_while(is_open, |is_open| !*is_open);
        drop(opened.unwrap());
        let cost = self.cost.load(SeqCst);
        self.spent.fetch_add(cost, SeqCst);
        let reply = match (path.contains("/fails"), is_streamed) {
            (true, _) => {
                "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_owned()
            }
            (false, true) => streamed(cost),
            (false, false) => whole(cost),
        };
        let mut stream = stream;
        stream.write_all(reply.as_bytes()).ok()
    }
}

fn usage(cost: u64) -> String {
    let prompt = cost / 2;
    let completion = cost - prompt;
    format!(
        r#""usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{cost}}}"#
    )
}

fn whole(cost: u64) -> String {
    let body = format!(
        r#"{{"id":"c","object":"chat.completion","model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":"hi"}},"finish_reason":"stop"}}],{}}}"#,
        usage(cost)
    );
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-tokens: {cost}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Server-sent events, the last of which has the usage.
fn streamed(cost: u64) -> String {
    let head = r#""id":"c","object":"chat.completion.chunk","model":"m""#;
    let events = [
        format!(r#"{{{head},"choices":[{{"index":0,"delta":{{"content":"hi"}}}}]}}"#),
        format!(r#"{{{head},"choices":[],{}}}"#, usage(cost)),
        "[DONE]".to_owned(),
    ];
    let mut reply = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-tokens: {cost}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    for event in events {
        let event = format!("data: {event}\n\n");
        reply.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
    }
    reply.push_str("0\r\n\r\n");
    reply
}
