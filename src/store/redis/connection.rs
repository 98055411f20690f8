//! One connection to a server: commands out, replies in.
//!
//! It uses the parser of the `redis` crate for replies that are not counts, and not its connections: a decision took
//! a tenth more processor time with them (`docs/evidence/performance.md`).

use std::{io, mem};

use bb8_redis::redis::{Value, parse_redis_value};
use prost::bytes::{Buf as _, BytesMut};
use smallvec::SmallVec;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{batch::packed::PackedCommands, failure::NodeFailure};
use crate::net::connect::BoxedStream;

/// The bounds of one reply. A server that sends more is none that counts, and not read further.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyBounds {
    bytes: usize,
    /// Values, those in lists included: each takes far more memory than its bytes.
    values: usize,
}

impl ReplyBounds {
    /// Of a list of slots or of keys: those of the largest cluster are a tenth of it.
    pub(super) const LIST: Self = Self {
        bytes: 16 << 20,
        values: 500_000,
    };

    /// Of a reply to one of `commands`: a script returns less for each counter than it is sent.
    fn of(commands: &PackedCommands) -> Self {
        let sent = commands.bytes().len();
        Self {
            bytes: (64 << 10) + sent,
            values: (4 << 10) + sent / 8,
        }
    }
}

/// How deep replies may nest; those of Redis have three levels.
const MAX_DEPTH: usize = 8;

/// The least room for one read, in bytes.
const READ_BYTES: usize = 8 << 10;

/// A connection after its handshake.
pub(crate) struct Connection {
    stream: BoxedStream,
    /// A question for operators if the connection ends before the first reply.
    hint: Option<&'static str>,
    inbox: Inbox,
    /// Whether what was sent last was written, how many replies it has, their bounds, and those that have come.
    written: io::Result<()>,
    missing: usize,
    bounds: ReplyBounds,
    replies: Vec<Value>,
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
            inbox: Inbox::default(),
            written: Ok(()),
            missing: 0,
            bounds: ReplyBounds::LIST,
            replies: Vec::new(),
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
        self.send(commands).await;
        self.receive().await
    }

    /// Like [`ask`](Self::ask), for replies of other lengths.
    ///
    /// # Errors
    ///
    /// As for `ask`.
    pub(super) async fn ask_within(
        &mut self,
        commands: &PackedCommands,
        bounds: ReplyBounds,
    ) -> Result<Vec<Value>, NodeFailure> {
        self.send(commands).await;
        self.bounds = bounds;
        self.receive().await
    }

    /// Sends `commands`. [`receive`](Self::receive) tells whether that failed; until it has returned all replies the
    /// connection cannot be used for others.
    pub(super) async fn send(&mut self, commands: &PackedCommands) {
        self.written = match mem::replace(&mut self.is_broken, true) {
            true => Err(io::Error::other("the connection is broken")),
            false => self.write(commands).await,
        };
        self.missing = commands.len();
        self.bounds = ReplyBounds::of(commands);
    }

    /// The replies to what was sent, in order. If it is dropped before, the next call goes on.
    ///
    /// # Errors
    ///
    /// As for [`ask`](Self::ask).
    pub(super) async fn receive(&mut self) -> Result<Vec<Value>, NodeFailure> {
        while self.replies.len() < self.missing {
            // A server that closes the connection may have said why.
            let read = match self.inbox.next(self.bounds) {
                Ok(Some(reply)) => {
                    self.hint = None;
                    self.replies.push(reply);
                    continue;
                }
                Ok(None) => self.read().await,
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                let said = self.replies.last().and_then(NodeFailure::of_greeting);
                let written = mem::replace(&mut self.written, Ok(()));
                let cause = written.err().unwrap_or(error);
                return Err(said.unwrap_or_else(|| self.failure(&cause)));
            }
        }
        let replies = mem::take(&mut self.replies);
        mem::replace(&mut self.written, Ok(())).map_err(|error| self.failure(&error))?;
        if !self.inbox.bytes.is_empty() {
            return Err(unreachable("it sent more replies than it was asked for"));
        }
        self.is_broken = false;
        Ok(replies)
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
        let inbox = &mut self.inbox.bytes;
        inbox.reserve(READ_BYTES);
        match self.stream.read_buf(inbox).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Waits until the connection can no longer be used, and returns the reason. A server that was asked nothing sends
    /// nothing, so both data and an end mean that.
    pub(super) async fn broken(&mut self) -> NodeFailure {
        if self.is_broken {
            return unreachable("the connection is broken");
        }
        // Either it is closed, or the server sends data that was not asked for.
        let read = self.read().await;
        self.is_broken = true;
        let unasked = PackedCommands::default();
        match (read, self.inbox.next(ReplyBounds::of(&unasked))) {
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

fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the reply is longer than what was asked for",
    )
}

/// Bytes that were received, and how far the walk over their first reply came: it goes on where it was, however little
/// arrives at a time.
#[derive(Debug, Default)]
struct Inbox {
    bytes: BytesMut,
    /// Where the next value begins, or the rest of a line.
    at: usize,
    /// The bytes after `at` that have no line break.
    seen: usize,
    /// How many values are missing from each list that has begun, the outermost first.
    missing: SmallVec<[usize; MAX_DEPTH]>,
    values: usize,
}

impl Inbox {
    /// Takes the first reply, if it is complete.
    fn next(&mut self, bounds: ReplyBounds) -> io::Result<Option<Value>> {
        // Almost every reply is a count.
        if self.at == 0
            && let Some((number, length)) = number(&self.bytes)
        {
            self.bytes.advance(length);
            self.seen = 0;
            return Ok(Some(Value::Int(number)));
        }
        let is_whole = self.walk(bounds)?;
        let length = if is_whole { self.at } else { self.bytes.len() };
        if length > bounds.bytes {
            return Err(too_long());
        }
        if !is_whole {
            return Ok(None);
        }
        let reply = parse_redis_value(&self.bytes[..self.at]).map_err(|_| malformed())?;
        self.bytes.advance(self.at);
        (self.at, self.seen, self.values) = (0, 0, 0);
        Ok(Some(reply))
    }

    /// Walks on over the first reply (RESP2, <https://redis.io/docs/latest/develop/reference/protocol-spec>). Returns
    /// whether it is complete; it then ends at `at`.
    fn walk(&mut self, bounds: ReplyBounds) -> io::Result<bool> {
        loop {
            let rest = &self.bytes[self.at..];
            let from = self.seen.saturating_sub(1);
            let Some(line) = rest[from..].windows(2).position(|pair| pair == b"\r\n") else {
                self.seen = rest.len();
                return Ok(false);
            };
            let line = from + line;
            let body = line + 2;
            let count = || -> io::Result<Option<usize>> {
                let count = std::str::from_utf8(&rest[1..line]).ok();
                let count: i64 = count
                    .and_then(|count| count.parse().ok())
                    .ok_or_else(malformed)?;
                // -1 is a null reply.
                Ok(usize::try_from(count).ok())
            };
            let mut items = 0;
            let length = match rest.first() {
                Some(b'+' | b'-' | b':') => body,
                Some(b'$') => match count()? {
                    None => body,
                    Some(length) if length > bounds.bytes => return Err(too_long()),
                    Some(length) if body + length + 2 > rest.len() => return Ok(false),
                    Some(length) => body + length + 2,
                },
                Some(b'*') if self.missing.len() < MAX_DEPTH => {
                    items = count()?.unwrap_or(0);
                    body
                }
                _ => return Err(malformed()),
            };
            self.values += 1;
            let missing = self
                .missing
                .iter()
                .fold(items, |all, more| all.saturating_add(*more));
            if self.values.saturating_add(missing) > bounds.values {
                return Err(too_long());
            }
            (self.at, self.seen) = (self.at + length, 0);
            if items > 0 {
                self.missing.push(items);
                continue;
            }
            // This value may be the last one of its list, and that of the list around it.
            loop {
                match self.missing.last_mut() {
                    None => return Ok(true),
                    Some(1) => {
                        self.missing.pop();
                    }
                    Some(missing) => {
                        *missing -= 1;
                        break;
                    }
                }
            }
        }
    }
}

/// The reply that `bytes` begin with.
pub(super) fn first_reply(bytes: &[u8]) -> Option<Value> {
    let mut inbox = Inbox::default();
    inbox.bytes.extend_from_slice(bytes);
    inbox.next(ReplyBounds::LIST).ok().flatten()
}

/// Reads replies as a server sends them, `at_a_time` bytes at a time, for fuzzing. Returns them as texts, and whether
/// an error ended them.
#[doc(hidden)]
pub fn read_replies(bytes: &[u8], at_a_time: usize) -> (Vec<String>, bool) {
    const BOUNDS: ReplyBounds = ReplyBounds {
        bytes: 200,
        values: 20,
    };
    let (mut inbox, mut replies) = (Inbox::default(), Vec::new());
    for some in bytes.chunks(at_a_time) {
        inbox.bytes.extend_from_slice(some);
        loop {
            match inbox.next(BOUNDS) {
                Ok(Some(reply)) => replies.push(format!("{reply:?}")),
                Ok(None) => break,
                Err(_) => return (replies, true),
            }
        }
    }
    (replies, false)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(bytes: &[u8]) -> Inbox {
        Inbox {
            bytes: BytesMut::from(bytes),
            ..Inbox::default()
        }
    }

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
                let mut part = inbox(&bytes[..cut]);
                let read = part.next(ReplyBounds::LIST);
                assert!(matches!(read, Ok(None)), "{expected:?}, cut at {cut}");
                assert_eq!(part.bytes.len(), cut);
                part.bytes.extend_from_slice(&bytes[cut..]);
                let read = part.next(ReplyBounds::LIST);
                assert_eq!(read.unwrap(), Some(expected.clone()), "cut at {cut}");
            }
            all.extend_from_slice(bytes);
        }
        let mut whole = inbox(&all);
        let mut slow = inbox(b"");
        let mut read = Vec::new();
        for byte in &all {
            slow.bytes.extend_from_slice(&[*byte]);
            read.extend(slow.next(ReplyBounds::LIST).unwrap());
        }
        assert_eq!(read.len(), replies().len());
        for ((_, expected), read) in replies().into_iter().zip(read) {
            assert_eq!(read, expected);
            assert_eq!(whole.next(ReplyBounds::LIST).unwrap(), Some(expected));
        }
        assert!(whole.bytes.is_empty() && slow.bytes.is_empty());
    }

    #[test]
    fn a_reply_is_bounded_by_what_was_asked() {
        let bounds = ReplyBounds {
            bytes: 100,
            values: 10,
        };
        let text = |bytes: usize| format!("${bytes}\r\n{}\r\n", "x".repeat(bytes));
        assert!(inbox(text(90).as_bytes()).next(bounds).is_ok());
        let line = format!("+{}\r\n", "x".repeat(99));
        for long in [
            &*text(99),
            "$101\r\n",
            &line,
            &line[..101],
            "*10\r\n",
            "*5\r\n*5\r\n",
            "*9223372036854775807\r\n",
            &format!("*3\r\n{}{}{}", text(30), text(30), text(30)),
        ] {
            let read = inbox(long.as_bytes()).next(bounds);
            assert!(read.is_err(), "{long:?}: {read:?}");
        }
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
            let read = inbox(bytes).next(ReplyBounds::LIST);
            assert!(read.is_err(), "{bytes:?}");
        }
    }
}
