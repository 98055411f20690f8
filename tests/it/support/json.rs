//! Requests to `/json`, with any method and any body.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use super::{PATIENCE, http};

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

impl Reply {
    /// The body, which must be JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.content_type, "application/json", "{self:?}");
        serde_json::from_str(&self.body).expect("JSON")
    }
}

#[track_caller]
pub fn send(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Reply {
    let headers = "content-type: application/json\r\n";
    send_with(address, method, path, headers, body)
}

/// Sends `body` with further headers, each ending with a line break.
#[track_caller]
pub fn send_with(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Reply {
    let host = match headers.contains("host: ") {
        true => String::new(),
        false => format!("host: {address}\r\n"),
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{host}connection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    // The server may answer before the end and stop reading.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let reply = http::parse(&String::from_utf8(bytes).expect("text")).expect("a reply");
    Reply {
        status: reply.status,
        content_type: reply.header("content-type").unwrap_or_default().to_owned(),
        body: reply.body,
    }
}
