//! Finds out why a server does not answer a call: opens one more connection, sends the first bytes of HTTP/2 and looks
//! at the first bytes of the answer.

use std::{fmt, io, time::Duration};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError};

use super::{Dial, DialError};

/// The preface of HTTP/2 and an empty SETTINGS frame (RFC 9113, 3.4).
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A request that every server of HTTP/1 answers.
const HTTP_1: &[u8] = b"GET / HTTP/1.1\r\nhost: tollgate\r\nconnection: close\r\n\r\n";

/// The type of a SETTINGS frame, and where it stands in the frame.
const SETTINGS: (usize, u8) = (3, 4);

/// The first bytes of a TLS alert of every version.
const TLS_ALERT: &[u8] = &[0x15, 3];

/// How a server behaves that does not answer a call. Its text says what to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symptom {
    Refused,
    WantsTls,
    LacksTls,
    WantsCertificate,
    RefusesCertificate,
    UnknownAuthority,
    OtherName,
    Http1,
    Closed,
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => {
                "no server listens there; the gRPC port of tollgate is 8081 unless GRPC_PORT sets it"
            }
            Self::WantsTls => {
                "the server seems to expect TLS; try https://HOST:PORT with --ca FILE"
            }
            Self::LacksTls => "the server seems not to use TLS; try http://HOST:PORT",
            Self::WantsCertificate => {
                "the server ended the TLS connection and seems to want a client certificate; try --cert FILE and \
                 --key FILE"
            }
            Self::RefusesCertificate => {
                "the server ended the TLS connection and seems to refuse the client certificate in --cert"
            }
            Self::UnknownAuthority => {
                "the certificate of the server is not of the authority in --ca"
            }
            Self::OtherName => {
                "the certificate of the server is for another name; see --authority"
            }
            Self::Http1 => {
                "the server speaks HTTP/1 at this port, not gRPC; the gRPC port of tollgate is 8081 unless GRPC_PORT \
                 sets it"
            }
            Self::Closed => "the server closes connections without an answer",
        })
    }
}

impl Dial {
    /// The symptom of a server that did not answer a call, if it has a known one. Takes at most `timeout`.
    pub(crate) async fn diagnose(&self, timeout: Duration) -> Option<Symptom> {
        let symptom = tokio::time::timeout(timeout, async {
            match self.first_bytes(HTTP_2).await {
                Ok(bytes) if bytes.starts_with(TLS_ALERT) => Some(Symptom::WantsTls),
                Ok(bytes) if bytes.starts_with(b"HTTP/1") => Some(Symptom::Http1),
                Ok(bytes) if bytes.get(SETTINGS.0) == Some(&SETTINGS.1) => None,
                Ok(_) => Some(self.symptom_of_silence().await),
                Err(error) => self.symptom(&error),
            }
        });
        symptom.await.ok().flatten()
    }

    /// The symptom of a server that ends a connection in HTTP/2 without a word, as servers of HTTP/1 do, too.
    async fn symptom_of_silence(&self) -> Symptom {
        let first = self.first_bytes(HTTP_1).await.unwrap_or_default();
        if first.starts_with(b"HTTP/1") {
            Symptom::Http1
        } else if first.starts_with(TLS_ALERT) {
            Symptom::WantsTls
        } else {
            Symptom::Closed
        }
    }

    /// The first bytes that a server sends after `greeting`; none if it closes the connection.
    async fn first_bytes(&self, greeting: &[u8]) -> Result<Vec<u8>, DialError> {
        const ENOUGH: usize = 9;
        let mut stream = self.stream().await?;
        // The server may have closed the connection already, and yet have sent why.
        let sent = match stream.write_all(greeting).await {
            Ok(()) => stream.flush().await,
            error => error,
        };
        let mut bytes = Vec::new();
        while bytes.len() < ENOUGH {
            match stream.read_buf(&mut bytes).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => return Err(DialError::Stream(error)),
            }
        }
        match sent {
            Err(error) if bytes.is_empty() && tls_error(&error).is_some() => {
                Err(DialError::Stream(error))
            }
            _ => Ok(bytes),
        }
    }

    /// The symptom that an error of the connection shows.
    pub(crate) fn symptom(&self, error: &DialError) -> Option<Symptom> {
        let DialError::Stream(error) = error else {
            return None;
        };
        if error.kind() == io::ErrorKind::ConnectionRefused {
            return Some(Symptom::Refused);
        }
        let has_certificate = self.has_certificate;
        let refusal = if has_certificate {
            Symptom::RefusesCertificate
        } else {
            Symptom::WantsCertificate
        };
        match tls_error(error) {
            Some(rustls::Error::AlertReceived(
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError
                | AlertDescription::HandshakeFailure,
            )) => Some(refusal),
            Some(rustls::Error::InvalidCertificate(invalid)) => match invalid {
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => Some(Symptom::OtherName),
                CertificateError::UnknownIssuer => Some(Symptom::UnknownAuthority),
                _ => None,
            },
            Some(rustls::Error::InvalidMessage(_)) => Some(Symptom::LacksTls),
            None if self.tls.is_some() && error.kind() == io::ErrorKind::UnexpectedEof => {
                Some(Symptom::LacksTls)
            }
            _ => None,
        }
    }
}

/// The error of TLS in an error of a stream.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    inner
        .downcast_ref()
        .or_else(|| inner.source()?.downcast_ref())
}
