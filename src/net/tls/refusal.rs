//! Why a TLS handshake failed, in few words: errors of rustls → reasons for metrics and the log.

use std::io;

use tokio_rustls::rustls::{CertificateError, Error, InvalidMessage};

use super::failure::is_of_authority;

/// Why a handshake with a client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The client has to show a certificate and showed none.
    NoCertificate,
    /// Another authority signed the client's certificate.
    UnknownCa,
    /// The client shows the certificate of an authority.
    AuthorityCertificate,
    /// The client's certificate is expired, or not yet valid.
    Expired,
    /// The client's certificate is for another name.
    WrongName,
    /// The client refused the certificate of this server, or broke off for another reason that it named.
    RefusedByClient,
    /// The client does not speak TLS.
    NotTls,
    /// The handshake took too long.
    Timeout,
    Other,
}

impl HandshakeFailure {
    pub const ALL: [Self; 9] = [
        Self::NoCertificate,
        Self::UnknownCa,
        Self::AuthorityCertificate,
        Self::Expired,
        Self::WrongName,
        Self::RefusedByClient,
        Self::NotTls,
        Self::Timeout,
        Self::Other,
    ];

    /// The failure that an error of a handshake means.
    pub(crate) fn of(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut {
            return Self::Timeout;
        }
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        match inner {
            Some(Error::NoCertificatesPresented) => Self::NoCertificate,
            Some(Error::InvalidCertificate(error)) => Self::of_certificate(error),
            Some(Error::AlertReceived(_)) => Self::RefusedByClient,
            Some(Error::InvalidMessage(error)) => Self::of_message(error),
            _ => Self::Other,
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            // An authority of an equal name with another key is another authority.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownCa,
            CertificateError::Other(error) if is_of_authority(error) => Self::AuthorityCertificate,
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::Expired,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName
            }
            _ => Self::Other,
        }
    }

    /// The first bytes of another protocol look like a record of an unknown type, version or length.
    fn of_message(error: &InvalidMessage) -> Self {
        match error {
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge
            | InvalidMessage::InvalidEmptyPayload => Self::NotTls,
            _ => Self::Other,
        }
    }

    /// Its name in metrics and in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::UnknownCa => "unknown_ca",
            Self::AuthorityCertificate => "authority_certificate",
            Self::Expired => "expired",
            Self::WrongName => "wrong_name",
            Self::RefusedByClient => "refused_by_client",
            Self::NotTls => "not_tls",
            Self::Timeout => "timeout",
            Self::Other => "other",
        }
    }

    /// Its cause in a sentence, with the setting that decides it.
    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Self::NoCertificate => {
                "the client showed no certificate, which GRPC_CLIENT_TLS_CACERT (--grpc-client-ca) requires"
            }
            Self::UnknownCa => {
                "the client's certificate is not signed by an authority of GRPC_CLIENT_TLS_CACERT (--grpc-client-ca)"
            }
            Self::AuthorityCertificate => {
                "the client's certificate is one of an authority (CA:TRUE), as openssl req -x509 makes them; make one \
                 with -addext basicConstraints=critical,CA:FALSE"
            }
            Self::Expired => "the client's certificate is expired or not yet valid",
            Self::WrongName => {
                "the client's certificate is not for the name in GRPC_CLIENT_TLS_SAN (--grpc-client-san)"
            }
            Self::RefusedByClient => {
                "the client refused the certificate of this server; check the name, the authority and the dates"
            }
            Self::NotTls => "the client does not speak TLS, which this port requires",
            Self::Timeout => "the client did not finish the handshake in time",
            Self::Other => "the handshake broke off",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio_rustls::rustls::AlertDescription;

    use super::*;

    #[track_caller]
    fn check(error: Error, expected: HandshakeFailure) {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        assert_eq!(HandshakeFailure::of(&error), expected, "{error}");
    }

    #[test]
    fn errors_of_a_handshake_have_few_reasons() {
        use HandshakeFailure as Failure;
        let certificate = Error::InvalidCertificate;
        check(Error::NoCertificatesPresented, Failure::NoCertificate);
        check(
            certificate(CertificateError::UnknownIssuer),
            Failure::UnknownCa,
        );
        check(
            certificate(CertificateError::BadSignature),
            Failure::UnknownCa,
        );
        check(certificate(CertificateError::NotValidYet), Failure::Expired);
        check(
            certificate(CertificateError::NotValidForName),
            Failure::WrongName,
        );
        check(certificate(CertificateError::Revoked), Failure::Other);
        let alert = Error::AlertReceived(AlertDescription::UnknownCA);
        check(alert, Failure::RefusedByClient);
        let content = Error::InvalidMessage(InvalidMessage::InvalidContentType);
        check(content, Failure::NotTls);
        check(Error::DecryptError, Failure::Other);
        let error = io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(Failure::of(&error), Failure::Timeout);
        let error = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(Failure::of(&error), Failure::Other);
    }

    #[test]
    fn each_reason_has_a_name_of_its_own() {
        let names: BTreeSet<_> = HandshakeFailure::ALL.map(HandshakeFailure::name).into();
        assert_eq!(names.len(), HandshakeFailure::ALL.len());
    }
}
