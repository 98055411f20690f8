//! A connection that remembers how it began and how it ended. The library above it hides both: it reports an open
//! connection before the peer has said anything, and an end without its cause.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

use crate::{foundation::lock::lock, net::connect::BoxedStream};

/// A connection that remembers how it began and how it ended.
pub(super) struct WatchedStream {
    stream: BoxedStream,
    /// Notified by the first bytes of the peer; dropped if there are none.
    first: Option<oneshot::Sender<()>>,
    end: ConnectionEnd,
}

/// The cause of the end of a connection; a peer that closed it is an unexpected end of file.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionEnd(Arc<Mutex<Option<io::Error>>>);

impl ConnectionEnd {
    /// The cause, if the connection has ended.
    pub(super) fn take(&self) -> Option<io::Error> {
        lock(&self.0).take()
    }
}

impl WatchedStream {
    /// The stream, a receiver that its first bytes notify, and its end.
    pub(super) fn new(stream: BoxedStream) -> (Self, oneshot::Receiver<()>, ConnectionEnd) {
        let (notify, first) = oneshot::channel();
        let end = ConnectionEnd::default();
        let watched = Self {
            stream,
            first: Some(notify),
            end: end.clone(),
        };
        (watched, first, end)
    }

    /// Remembers the first error, and returns a copy of its kind.
    fn fail(&mut self, error: io::Error) -> io::Error {
        let kind = error.kind();
        lock(&self.end.0).get_or_insert(error);
        self.first = None;
        kind.into()
    }

    /// As [`fail`](Self::fail), but the peer may have sent a better reason, such as an alert of TLS, before it closed.
    fn fail_to_write(&mut self, error: io::Error, context: &mut Context<'_>) -> io::Error {
        let mut bytes = [0; 1024];
        let mut unread = ReadBuf::new(&mut bytes);
        let read = Pin::new(&mut self.stream).poll_read(context, &mut unread);
        match read {
            Poll::Ready(Err(reason)) => self.fail(reason),
            Poll::Ready(Ok(())) | Poll::Pending => self.fail(error),
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (room, before) = (buffer.remaining(), buffer.filled().len());
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        Poll::Ready(match read {
            Err(error) => Err(self.fail(error)),
            Ok(()) if room > 0 && buffer.filled().len() == before => {
                self.fail(io::ErrorKind::UnexpectedEof.into());
                Ok(())
            }
            Ok(()) => {
                if let Some(first) = self.first.take() {
                    // The receiver may have given up.
                    let _ = first.send(());
                }
                Ok(())
            }
        })
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.fail_to_write(error, context)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        Poll::Ready(flushed.map_err(|error| self.fail_to_write(error, context)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
