//! Packs lines into datagrams and sends them.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::net::UdpSocket;

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
