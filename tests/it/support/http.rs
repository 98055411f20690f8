//! Raw HTTP/1.1: the value of a header may contain any byte.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use super::PATIENCE;

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    /// The value of the first header with this name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        Some(value)
    }
}

#[track_caller]
pub fn get(address: SocketAddr, path: &str) -> Reply {
    get_with(address, path, &[])
}

/// Requests `path` with further headers, whose values are sent unchanged.
#[track_caller]
pub fn get_with(address: SocketAddr, path: &str, headers: &[(&str, &[u8])]) -> Reply {
    let reply = try_get(address, path, headers);
    reply.unwrap_or_else(|error| panic!("no reply from {address} to {path}: {error}"))
}

/// Sends JSON to `path`.
///
/// # Errors
///
/// If there is no reply.
pub fn post_json(address: SocketAddr, path: &str, body: &str) -> io::Result<Reply> {
    post_json_with(address, path, &[], body)
}

/// Like [`post_json`], with further headers.
pub fn post_json_with(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Reply> {
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    exchange(address, &[head.as_bytes(), body.as_bytes()].concat())
}

/// Like [`get_with`], for servers that may not be running.
pub fn try_get(address: SocketAddr, path: &str, headers: &[(&str, &[u8])]) -> io::Result<Reply> {
    let mut request = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n").into_bytes();
    if !headers.iter().any(|(name, _)| *name == "host") {
        request.extend(format!("host: {address}\r\n").into_bytes());
    }
    for (name, value) in headers {
        request.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    request.extend(b"\r\n");
    exchange(address, &request)
}

/// Sends a request of which `head` is the beginning: its first line and some headers.
#[track_caller]
pub fn send(address: SocketAddr, head: &str) -> Reply {
    let request = format!("{head}connection: close\r\n\r\n");
    let reply = exchange(address, request.as_bytes());
    reply.unwrap_or_else(|error| panic!("no reply from {address} to {head}: {error}"))
}

fn exchange(address: SocketAddr, request: &[u8]) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse(&String::from_utf8_lossy(&bytes))
        .ok_or_else(|| io::Error::other(format!("not a reply: {bytes:?}")))
}

pub fn parse(text: &str) -> Option<Reply> {
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let mut reply = Reply {
        status,
        headers: lines.map(header).collect::<Option<_>>()?,
        body: rest.to_owned(),
    };
    if reply.header("transfer-encoding") == Some("chunked") {
        reply.body = join_chunks(rest)?;
    }
    Some(reply)
}

fn join_chunks(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, behind) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.push_str(behind.get(..length)?);
        rest = behind.get(length..)?.strip_prefix("\r\n")?;
    }
}
