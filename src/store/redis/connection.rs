//! One connection to a server: commands out, replies in.
//!
//! The parser of the `redis` crate reads the replies. Its connections are not used: they know neither late replies nor
//! a server that says why it closes a connection.

use std::{
    future::poll_fn,
    io, mem,
    pin::Pin,
    task::{Context, Poll},
};

use bb8_redis::redis::{Parser, Value};
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};

use super::{
    batch::packed::PackedCommands,
    failure::{NodeFailure, is_unknown_command, role},
};
use crate::net::connect::BoxedStream;

/// The most bytes of a list of slots: those of the largest cluster are a tenth of it.
pub(super) const LIST_BYTES: usize = 4 << 20;

/// The most bytes of replies, besides those that were sent: a script returns less for each counter than it is sent. A
/// server that sends more is none that counts, and not read further.
const REPLY_BYTES: usize = 64 << 10;

/// A connection after its handshake.
pub(crate) struct Connection {
    stream: BoxedStream,
    /// A question for operators if the connection ends before the first reply.
    hint: Option<&'static str>,
    parser: Parser,
    /// Whether what was sent last was written, how many replies it has, how many more bytes they may have, and those
    /// that have come.
    written: io::Result<()>,
    missing: usize,
    bytes_left: usize,
    replies: Vec<Value>,
    /// The most bytes of replies besides those that were sent.
    pub(super) reply_bytes: usize,
    /// Whether it cannot be used any more.
    pub(super) is_broken: bool,
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
            parser: Parser::new(),
            written: Ok(()),
            missing: 0,
            bytes_left: 0,
            replies: Vec::new(),
            reply_bytes: REPLY_BYTES,
            is_broken: false,
        }
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

    /// Sends `commands`. [`receive`](Self::receive) tells whether that failed; until it has returned all replies the
    /// connection cannot be used for others.
    pub(super) async fn send(&mut self, commands: &PackedCommands) {
        self.written = match mem::replace(&mut self.is_broken, true) {
            true => Err(io::Error::other("the connection is broken")),
            false => self.write(commands).await,
        };
        self.missing = commands.len();
        self.bytes_left = self.reply_bytes + commands.bytes().len();
    }

    /// The replies to what was sent, in order. If it is dropped before, the next call goes on.
    ///
    /// # Errors
    ///
    /// As for [`ask`](Self::ask).
    pub(super) async fn receive(&mut self) -> Result<Vec<Value>, NodeFailure> {
        while self.replies.len() < self.missing {
            match poll_fn(|context| self.poll_reply(context)).await {
                Ok(reply) => {
                    self.hint = None;
                    self.replies.push(reply);
                }
                Err(error) => {
                    // A server that closes the connection may have said why.
                    let said = self.replies.last().and_then(NodeFailure::of_greeting);
                    let written = mem::replace(&mut self.written, Ok(()));
                    let cause = written.err().unwrap_or(error);
                    return Err(said.unwrap_or_else(|| self.failure(&cause)));
                }
            }
        }
        let replies = mem::take(&mut self.replies);
        mem::replace(&mut self.written, Ok(())).map_err(|error| self.failure(&error))?;
        let more = self.parser.parse_value(Nothing);
        if !more.is_err_and(|error| error.is_io_error()) {
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

    /// The next reply. The parser keeps a part of one.
    fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Value>> {
        let mut arrived = Arrived {
            stream: &mut self.stream,
            context,
            bytes_left: &mut self.bytes_left,
            ended: None,
        };
        let parsed = self.parser.parse_value(&mut arrived);
        match (parsed, arrived.ended) {
            (Ok(reply), _) => Poll::Ready(Ok(reply)),
            (Err(_), Some(ended)) => ended.map(Err),
            (Err(_), None) => {
                let why = "the data is not a reply of Redis";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)))
            }
        }
    }

    /// Asks for the role of a server that does not know a command of Redis, as its `reply` says. PING does not show it:
    /// a sentinel answers that as a Redis does.
    ///
    /// # Errors
    ///
    /// If it is a sentinel, or the connection breaks.
    pub(super) async fn refuse_sentinel(&mut self, reply: &Value) -> Result<(), NodeFailure> {
        if !matches!(reply, Value::ServerError(error) if is_unknown_command(error)) {
            return Ok(());
        }
        let replies = self.ask(&PackedCommands::one(&[b"ROLE"])).await?;
        match replies.first().and_then(role) {
            Some("sentinel") => Err(NodeFailure::Sentinel),
            _ => Ok(()),
        }
    }

    /// Waits until the connection can no longer be used, and returns the reason. A server that was asked nothing sends
    /// nothing, so both data and an end mean that.
    pub(super) async fn broken(&mut self) -> NodeFailure {
        if self.is_broken {
            return unreachable("the connection is broken");
        }
        self.bytes_left = self.reply_bytes;
        let said = poll_fn(|context| match self.poll_reply(context) {
            Poll::Pending if self.bytes_left == self.reply_bytes => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
            Poll::Ready(said) => Poll::Ready(Some(said)),
        });
        let said = said.await;
        self.is_broken = true;
        match said {
            None => unreachable("it sent data that was not asked for"),
            Some(Ok(reply)) => NodeFailure::of_greeting(&reply)
                .unwrap_or_else(|| unreachable("it sent a reply that was not asked for")),
            Some(Err(error)) => NodeFailure::of_failure(&error),
        }
    }
}

fn unreachable(why: &str) -> NodeFailure {
    NodeFailure::Unreachable(why.to_owned())
}

/// The bytes of a stream that have arrived, for a parser that does not wait.
struct Arrived<'c, 'w> {
    stream: &'c mut BoxedStream,
    context: &'c mut Context<'w>,
    bytes_left: &'c mut usize,
    /// Why no more bytes come now: they have not arrived, or never will.
    ended: Option<Poll<io::Error>>,
}

impl io::Read for Arrived<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut read = ReadBuf::new(into);
        let polled = Pin::new(&mut *self.stream).poll_read(self.context, &mut read);
        let bytes = read.filled().len();
        self.ended = Some(match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(error),
            Poll::Ready(Ok(())) if bytes == 0 => Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Ok(())) if bytes > *self.bytes_left => Poll::Ready(io::Error::new(
                io::ErrorKind::InvalidData,
                "the reply is longer than what was asked for",
            )),
            Poll::Ready(Ok(())) => {
                *self.bytes_left -= bytes;
                return Ok(bytes);
            }
        });
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// No bytes, and no end: after an end a parser reads no more.
struct Nothing;

impl io::Read for Nothing {
    fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bb8_redis::redis::parse_redis_value;
    use tokio::{io::AsyncReadExt as _, net::UnixStream};

    use super::*;

    /// The replies that a client reads out of `sent`, which it gets so many bytes at a time.
    async fn asked(
        sent: &[u8],
        at_a_time: usize,
        replies: usize,
    ) -> Result<Vec<Value>, NodeFailure> {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(Box::new(near), true);
        let mut commands = PackedCommands::default();
        for _ in 0..replies {
            commands.push(&[b"GET"]);
        }
        let send = async {
            let mut question = vec![0; commands.bytes().len()];
            far.read_exact(&mut question).await.unwrap();
            for part in sent.chunks(at_a_time) {
                if far.write_all(part).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            drop(far);
        };
        let (answer, ()) = tokio::join!(connection.ask(&commands), send);
        answer
    }

    #[tokio::test]
    async fn a_connection_is_asked_again_and_again() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(Box::new(near), true);
        let commands = PackedCommands::one(&[b"GET"]);
        for number in 0..3 {
            let answer = format!(":{number}\r\n");
            far.write_all(answer.as_bytes()).await.unwrap();
            let replies = connection.ask(&commands).await.unwrap();
            assert_eq!(replies, [Value::Int(number)]);
        }
    }

    fn bytes(length: usize) -> String {
        format!("${length}\r\n{}\r\n", "x".repeat(length))
    }

    #[tokio::test]
    async fn replies_are_the_same_however_they_are_cut() {
        let sent = [
            ":12\r\n",
            ":-3\r\n",
            "+OK\r\n",
            "-MOVED 5 h:1\r\n",
            "$-1\r\n",
            "$4\r\n\r\n\r\n\r\n",
            "*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        ];
        let parsed = sent.map(|reply| parse_redis_value(reply.as_bytes()).unwrap());
        let all = sent.concat();
        for at_a_time in [1, 2, 7, all.len()] {
            let replies = asked(all.as_bytes(), at_a_time, sent.len()).await;
            assert_eq!(replies.unwrap(), parsed, "{at_a_time}");
        }
    }

    #[tokio::test]
    async fn a_reply_is_bounded_by_what_was_asked() {
        assert!(asked(bytes(60 << 10).as_bytes(), 4096, 1).await.is_ok());
        for (sent, replies) in [(bytes(65 << 10), 1), (bytes(30 << 10).repeat(3), 3)] {
            let error = asked(sent.as_bytes(), 4096, replies).await.unwrap_err();
            assert!(error.to_string().contains("longer"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_is_no_reply_is_an_error_and_no_panic() {
        let deep = "*1\r\n".repeat(200) + ":1\r\n";
        for sent in [
            "HTTP/1.1 400 Bad Request\r\n",
            "$x\r\n",
            ":99999999999999999999\r\n",
            "*9223372036854775807\r\n:1\r\n",
            "$9223372036854775807\r\n",
            ":1\r\n:1\r\n",
            &deep,
            "",
        ] {
            let answer = asked(sent.as_bytes(), 64, 1).await;
            assert!(answer.is_err(), "{sent:?}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn data_that_was_not_asked_for_ends_a_connection() {
        for (sent, why) in [
            ("-DENIED protected\r\n", "DENIED"),
            (":1\r\n", "a reply that was not asked for"),
            (":", "data that was not asked for"),
        ] {
            let (near, mut far) = UnixStream::pair().unwrap();
            let mut connection = Connection::new(Box::new(near), true);
            let waited = tokio::time::timeout(Duration::from_millis(10), connection.broken());
            assert!(waited.await.is_err());
            far.write_all(sent.as_bytes()).await.unwrap();
            let failure = connection.broken().await.to_string();
            assert!(failure.contains(why), "{failure}");
            assert!(connection.is_broken);
        }
    }
}
