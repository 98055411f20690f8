//! Lines on their way: the queue for a TCP stream, of which collectors get whole lines only, and datagrams.

use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Mutex, MutexGuard},
};

use tokio::{
    io::Interest,
    net::{TcpStream, UdpSocket},
    sync::Notify,
};

use crate::foundation::lock::lock;

/// Bound on the lines queued for a slow or absent collector, as in the reference. Metrics beyond it keep counting, and
/// become lines when the queue is empty.
pub(crate) const MAX_QUEUED_BYTES: usize = 4 << 20;

/// Lines waiting for a stream.
#[derive(Debug, Default)]
pub(super) struct LineQueue {
    bytes: Mutex<QueuedBytes>,
    has_more: Notify,
    is_empty: Notify,
}

#[derive(Debug, Default)]
pub(super) struct QueuedBytes {
    pub(super) waiting: VecDeque<u8>,
    /// Whether a part of the first line has been sent.
    is_in_line: bool,
}

impl LineQueue {
    pub(super) fn lock(&self) -> MutexGuard<'_, QueuedBytes> {
        lock(&self.bytes)
    }

    /// Queues all of the lines or none, and returns whether they fit.
    pub(super) fn push(&self, lines: &str) -> bool {
        let mut bytes = self.lock();
        if bytes.waiting.len() + lines.len() > MAX_QUEUED_BYTES {
            return false;
        }
        bytes.waiting.extend(lines.as_bytes());
        self.has_more.notify_one();
        true
    }

    /// Waits until no line is left.
    pub(super) async fn emptied(&self) {
        while !self.lock().waiting.is_empty() {
            self.is_empty.notified().await;
        }
    }

    /// Sends until the stream breaks; returns the error.
    pub(super) async fn send(&self, stream: &TcpStream) -> io::Error {
        loop {
            match self.send_some(stream).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return error,
            }
        }
    }

    async fn send_some(&self, stream: &TcpStream) -> io::Result<()> {
        let is_idle = self.lock().waiting.is_empty();
        let interest = if is_idle {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        let ready = tokio::select! {
            ready = stream.ready(interest) => ready?,
            () = self.has_more.notified(), if is_idle => return Ok(()),
        };
        // Collectors send nothing. Reading notices a closed connection before a flush is lost.
        if ready.is_readable() {
            match stream.try_read(&mut [0; 256]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if ready.is_writable() {
            let mut bytes = self.lock();
            let sent = stream.try_write(bytes.waiting.as_slices().0)?;
            bytes.forget(sent);
            if bytes.waiting.is_empty() {
                self.is_empty.notify_one();
            }
        }
        Ok(())
    }

    /// Drops the rest of a line of which a part has been sent, because on a new connection it would be a line of its
    /// own. Returns whether there was one.
    pub(super) fn drop_rest_of_line(&self) -> bool {
        let mut bytes = self.lock();
        let was_in_line = bytes.is_in_line;
        if was_in_line {
            let rest = bytes.waiting.iter().position(|&byte| byte == b'\n');
            let rest = rest.map_or(bytes.waiting.len(), |end| end + 1);
            bytes.forget(rest);
            if bytes.waiting.is_empty() {
                self.is_empty.notify_one();
            }
        }
        was_in_line
    }
}

impl QueuedBytes {
    pub(super) fn forget(&mut self, count: usize) {
        if let Some(last) = self.waiting.drain(..count).next_back() {
            self.is_in_line = last != b'\n';
        }
        // Frees the memory that an outage took.
        if self.waiting.is_empty() {
            self.waiting.shrink_to(MAX_DATAGRAM_BYTES);
        }
    }
}

/// A size that fits into one Ethernet frame with the headers of IPv6, UDP and a tunnel. Other statsd clients use it
/// too.
pub(crate) const MAX_DATAGRAM_BYTES: usize = 1432;

/// Whole lines, packed into as few datagrams as possible.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    pub(super) full: Vec<String>,
    /// How many lines were longer than a datagram.
    pub(super) overlong: u64,
}

impl Datagrams {
    pub(super) fn push(&mut self, lines: &str) {
        for line in lines.split_inclusive('\n') {
            match self.full.last_mut() {
                _ if line.len() > MAX_DATAGRAM_BYTES => self.overlong += 1,
                Some(last) if last.len() + line.len() <= MAX_DATAGRAM_BYTES => last.push_str(line),
                _ => self.full.push(line.to_owned()),
            }
        }
    }
}

/// A socket that sends to `target`.
pub(super) async fn connect_udp(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if target.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// Sends a datagram. An error about an earlier datagram is returned too, but only after this one is sent.
pub(super) async fn send_datagram(socket: &UdpSocket, datagram: &str) -> io::Result<()> {
    match socket.send(datagram.as_bytes()).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            socket.send(datagram.as_bytes()).await?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}
