//! One connection to a server: commands out, replies in.
//!
//! It uses the parser of the `redis` crate for replies that are not counts, and not its connections: a decision took
//! a tenth more processor time with them (`docs/performance.md`).

use std::io;

use bb8_redis::redis::{Value, parse_redis_value};
use prost::bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{failure::NodeFailure, packed::PackedCommands};
use crate::net::connect::BoxedStream;

/// The longest reply that is accepted, in bytes: the slots of the largest cluster are a tenth of it.
const MAX_REPLY_BYTES: usize = 16 << 20;

/// How deep replies may nest; those of Redis have three levels.
const MAX_DEPTH: usize = 8;

/// The least room for one read, in bytes.
const READ_BYTES: usize = 8 << 10;

/// A connection after its handshake. A caller has to wait for all replies. If it does not, the
/// connection is of no more use, because it is not known how far the server came.
pub(super) struct Connection {
    stream: BoxedStream,
    /// A question for operators if the connection ends before the first reply.
    hint: Option<&'static str>,
    inbox: BytesMut,
    is_broken: bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(stream: BoxedStream, is_tls: bool) -> Self {
        Self {
            stream,
            hint: (!is_tls).then_some("does this port want TLS?"),
            inbox: BytesMut::new(),
            is_broken: false,
        }
    }

    /// Whether the connection cannot be used any more.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Marks the connection as unusable.
    pub(super) fn abandon(&mut self) {
        self.is_broken = true;
    }

    /// Sends `commands` and returns a reply for each, in order; error replies are values.
    ///
    /// # Errors
    ///
    /// If the connection is broken; it is then unknown how many of the commands were carried out.
    pub(super) async fn ask(
        &mut self,
        commands: &PackedCommands,
    ) -> Result<Vec<Value>, NodeFailure> {
        if self.is_broken {
            return Err(unreachable("the connection is broken"));
        }
        self.is_broken = true;
        let replies = self.exchange(commands).await?;
        if !self.inbox.is_empty() {
            return Err(unreachable("it sent more replies than it was asked for"));
        }
        self.is_broken = false;
        Ok(replies)
    }

    async fn exchange(&mut self, commands: &PackedCommands) -> Result<Vec<Value>, NodeFailure> {
        // Writes all commands first: a server reads on while it answers.
        let written = self.write(commands).await;
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            // A server that closes the connection may have said why.
            let read = match next(&mut self.inbox) {
                Ok(Some(reply)) => {
                    self.hint = None;
                    replies.push(reply);
                    continue;
                }
                Ok(None) => self.read().await,
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                let said = replies.last().and_then(NodeFailure::of_greeting);
                let cause = written.err().unwrap_or(error);
                return Err(said.unwrap_or_else(|| self.failure(&cause)));
            }
        }
        match written {
            Ok(()) => Ok(replies),
            Err(error) => Err(self.failure(&error)),
        }
    }

    fn failure(&self, error: &io::Error) -> NodeFailure {
        match (NodeFailure::of_failure(error), self.hint) {
            (NodeFailure::Unreachable(why), Some(hint)) => {
                NodeFailure::Unreachable(format!("{why} before any reply: {hint}"))
            }
            (failure, _) => failure,
        }
    }

    async fn write(&mut self, commands: &PackedCommands) -> io::Result<()> {
        self.stream.write_all(commands.bytes()).await?;
        self.stream.flush().await
    }

    async fn read(&mut self) -> io::Result<()> {
        if self.inbox.len() > MAX_REPLY_BYTES {
            return Err(malformed());
        }
        self.inbox.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.inbox).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Waits until the connection is of no more use, and returns the reason. A server that was asked nothing sends
    /// nothing, so both data and an end mean that.
    pub(super) async fn broken(&mut self) -> NodeFailure {
        if self.is_broken {
            return unreachable("the connection is broken");
        }
        // Either it is closed, or the server sends data that was not asked for.
        let read = self.read().await;
        self.is_broken = true;
        match (read, next(&mut self.inbox)) {
            (Ok(()), Ok(Some(reply))) => NodeFailure::of_greeting(&reply)
                .unwrap_or_else(|| unreachable("it sent a reply that was not asked for")),
            (Err(error), _) | (Ok(()), Err(error)) => NodeFailure::of_failure(&error),
            (Ok(()), Ok(None)) => unreachable("it sent data that was not asked for"),
        }
    }
}

fn unreachable(why: &str) -> NodeFailure {
    NodeFailure::Unreachable(why.to_owned())
}

fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the data is not a reply of Redis",
    )
}

/// Takes the first reply from `inbox`, if it is complete.
fn next(inbox: &mut BytesMut) -> io::Result<Option<Value>> {
    // Almost every reply is a count.
    if let Some((number, length)) = number(inbox) {
        inbox.advance(length);
        return Ok(Some(Value::Int(number)));
    }
    let Some(end) = end(inbox, MAX_DEPTH)? else {
        return Ok(None);
    };
    let reply = parse_redis_value(&inbox[..end]).map_err(|_| malformed())?;
    inbox.advance(end);
    Ok(Some(reply))
}

/// A whole number and its length in bytes, if `bytes` begin with a complete one.
fn number(bytes: &[u8]) -> Option<(i64, usize)> {
    let digits = bytes.strip_prefix(b":")?;
    let mut number: i64 = 0;
    for (count, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                number = number.checked_mul(10)?.checked_add((byte - b'0').into())?;
            }
            b'\r' if count > 0 && digits.get(count + 1) == Some(&b'\n') => {
                return Some((number, count + 3));
            }
            // Signs are rare; the library reads them.
            _ => return None,
        }
    }
    None
}

/// Where the first reply of `bytes` ends, if it is complete (RESP2,
/// <https://redis.io/docs/latest/develop/reference/protocol-spec>).
fn end(bytes: &[u8], depth: usize) -> io::Result<Option<usize>> {
    let Some(line) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let body = line + 2;
    let count = || -> io::Result<Option<usize>> {
        let count = std::str::from_utf8(&bytes[1..line]).ok();
        let count: i64 = count
            .and_then(|count| count.parse().ok())
            .ok_or_else(malformed)?;
        // -1 is a null reply.
        Ok(usize::try_from(count).ok())
    };
    match bytes[0] {
        b'+' | b'-' | b':' => Ok(Some(body)),
        b'$' => {
            let Some(length) = count()? else {
                return Ok(Some(body));
            };
            let end = length.checked_add(body + 2).ok_or_else(malformed)?;
            Ok((end <= bytes.len()).then_some(end))
        }
        b'*' if depth > 0 => {
            let mut at = body;
            for _ in 0..count()?.unwrap_or(0) {
                match end(&bytes[at..], depth - 1)? {
                    Some(length) => at += length,
                    None => return Ok(None),
                }
            }
            Ok(Some(at))
        }
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies as a server sends them, and the values they stand for.
    fn replies() -> Vec<(&'static [u8], Value)> {
        let error = parse_redis_value(b"-MOVED 5 h:1\r\n").unwrap();
        let text = |text: &[u8]| Value::BulkString(text.to_vec());
        vec![
            (b":0\r\n", Value::Int(0)),
            (b":12\r\n", Value::Int(12)),
            (b":-3\r\n", Value::Int(-3)),
            (b":9223372036854775807\r\n", Value::Int(i64::MAX)),
            (b"+OK\r\n", Value::Okay),
            (b"-MOVED 5 h:1\r\n", error),
            (b"$-1\r\n", Value::Nil),
            (b"$0\r\n\r\n", text(b"")),
            (b"$4\r\n\r\n\r\n\r\n", text(b"\r\n\r\n")),
            (b"*0\r\n", Value::Array(vec![])),
            (
                b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
                Value::Array(vec![Value::Array(vec![Value::Int(1)]), text(b"x")]),
            ),
        ]
    }

    #[test]
    fn replies_are_read_one_by_one_and_only_when_they_are_whole() {
        let mut all = Vec::new();
        for (bytes, expected) in replies() {
            for cut in 0..bytes.len() {
                let mut part = BytesMut::from(&bytes[..cut]);
                let read = next(&mut part);
                assert!(matches!(read, Ok(None)), "{expected:?}, cut at {cut}");
                assert_eq!(part.len(), cut);
            }
            all.extend_from_slice(bytes);
        }
        let mut inbox = BytesMut::from(&all[..]);
        for (_, expected) in replies() {
            assert_eq!(next(&mut inbox).unwrap(), Some(expected));
        }
        assert!(inbox.is_empty());
    }

    #[test]
    fn what_is_no_reply_is_an_error_and_no_panic() {
        let deep = [b"*1\r\n".repeat(MAX_DEPTH + 2), b":1\r\n".to_vec()].concat();
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"$x\r\n",
            b"\r\n",
            b"*1\r\n\r\n",
            b":99999999999999999999\r\n",
            b"$18446744073709551615\r\n",
            &deep,
        ] {
            let read = next(&mut BytesMut::from(bytes));
            assert!(read.is_err(), "{bytes:?}");
        }
        // A length for which no memory is reserved before the data arrives.
        let mut long = BytesMut::from(&b"$9223372036854775806\r\n"[..]);
        assert!(next(&mut long).is_ok_and(|read| read.is_none()));
    }
}
