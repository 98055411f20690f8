//! Why TLS failed, from the error of a stream: to another server in words, and of a client's handshake as one of few
//! reasons for metrics and the log.

use std::io;

use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, Error, InvalidMessage, OtherError,
    pki_types::ServerName,
};

/// Why TLS failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TlsFailure {
    /// The peer does not accept our certificate, for this reason.
    CertificateRefused(&'static str),
    /// The peer does not go on without a certificate of ours.
    CertificateRequired,
    /// The peer sent another alert.
    Alert(String),
    /// No trusted authority has signed the certificate of the peer.
    Untrusted,
    /// The certificate of the peer is for other names.
    OtherName {
        /// Whether one of them is a wildcard that would fit, but has only one label after the star.
        has_short_wildcard: bool,
    },
    /// The certificate of the peer cannot be accepted, for this reason.
    Invalid(&'static str),
    /// The peer answers with something that is not TLS.
    NotTls,
}

/// The settings that decide on TLS to a server, as its operator knows them.
#[derive(Debug)]
pub(crate) struct TlsSettingNames {
    /// Those of this client's certificate and key.
    pub certificate: &'static str,
    /// That of the trusted authorities.
    pub authorities: &'static str,
    /// That of the name in the certificate.
    pub name: &'static str,
}

impl TlsFailure {
    /// The failure in words, with the setting that changes it.
    pub(crate) fn words(&self, settings: &TlsSettingNames) -> String {
        let TlsSettingNames {
            certificate,
            authorities,
            name,
        } = settings;
        match self {
            Self::CertificateRefused(reason) => {
                format!("it refuses our certificate: {reason}; see {certificate}")
            }
            Self::CertificateRequired => {
                format!("it requires a client certificate: set {certificate}")
            }
            Self::Alert(alert) => format!("its TLS ends with an alert: {alert}"),
            Self::Untrusted => {
                format!("its certificate is not signed by a trusted authority; see {authorities}")
            }
            Self::OtherName { has_short_wildcard } => {
                let rule = match has_short_wildcard {
                    true => ": a wildcard must have at least two labels after the star",
                    false => "",
                };
                format!("its certificate is for another host{rule}; see {name}")
            }
            Self::Invalid(reason) => format!("its certificate cannot be accepted: {reason}"),
            Self::NotTls => "its answer is not TLS: does this port speak TLS?".to_owned(),
        }
    }

    /// The failure behind `error`, if it is one of TLS that is listed here.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        match error.get_ref()?.downcast_ref()? {
            rustls::Error::AlertReceived(alert) => Some(received(*alert)),
            rustls::Error::InvalidCertificate(error) => unacceptable(error),
            rustls::Error::InvalidMessage(_) => Some(TlsFailure::NotTls),
            _ => None,
        }
    }
}

fn received(alert: AlertDescription) -> TlsFailure {
    let reason = match alert {
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            return TlsFailure::CertificateRequired;
        }
        AlertDescription::UnknownCA => "unknown CA",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::CertificateRevoked => "certificate revoked",
        AlertDescription::CertificateExpired => "certificate expired",
        AlertDescription::CertificateUnknown => "certificate unknown",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecryptError => "wrong signature",
        other => return TlsFailure::Alert(words(&format!("{other:?}"))),
    };
    TlsFailure::CertificateRefused(reason)
}

/// `HandshakeFailure` as `handshake failure`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for next in name.chars() {
        if next.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(next.to_lowercase());
    }
    words
}

fn unacceptable(error: &CertificateError) -> Option<TlsFailure> {
    match error {
        // A signature is bad if another authority of the same name made it.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            Some(TlsFailure::Untrusted)
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => Some(TlsFailure::OtherName {
            has_short_wildcard: presented
                .iter()
                .any(|name| is_short_wildcard(name, expected)),
        }),
        CertificateError::NotValidForName => Some(TlsFailure::OtherName {
            has_short_wildcard: false,
        }),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            Some(TlsFailure::Invalid("it has expired"))
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Some(TlsFailure::Invalid("it is not valid yet"))
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Some(TlsFailure::Invalid("it is not one for servers"))
        }
        CertificateError::Other(error) if is_of_authority(error) => Some(TlsFailure::Invalid(
            "it is one of an authority (CA:TRUE), which a server may show only if the file of trusted authorities \
             contains that very certificate; trust that file, or make one of a server, as by openssl req -x509 -addext \
             basicConstraints=critical,CA:FALSE",
        )),
        CertificateError::Other(error) if error.to_string() == "UnsupportedCertVersion" => {
            Some(TlsFailure::Invalid(
                "it has no extensions (X.509 version 1); issue it with them, as by openssl x509 -extfile",
            ))
        }
        _ => None,
    }
}

/// Whether a certificate was refused because it is one of an authority. webpki, whose error this is, cannot be named
/// through rustls.
pub(super) fn is_of_authority(error: &OtherError) -> bool {
    error.to_string() == "CaUsedAsEndEntity"
}

/// Whether `presented`, such as `DnsName("*.internal")`, would be a wildcard for `expected` with one label enough.
fn is_short_wildcard(presented: &str, expected: &ServerName<'_>) -> bool {
    let name = presented.split('"').nth(1).unwrap_or(presented);
    let expected = expected.to_str();
    match (name.strip_prefix("*."), expected.split_once('.')) {
        (Some(rest), Some((_, parent))) => !rest.contains('.') && rest.eq_ignore_ascii_case(parent),
        _ => false,
    }
}

/// Why a handshake with a client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeFailure {
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
    pub(crate) const ALL: [Self; 9] = [
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
    fn check(error: rustls::Error, expected: Option<TlsFailure>) {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        assert_eq!(TlsFailure::of(&error), expected, "{error}");
    }

    fn other_name(expected: &str, presented: &str) -> rustls::Error {
        let expected = ServerName::try_from(expected.to_owned()).unwrap();
        let presented = vec![format!("DnsName({presented:?})")];
        rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected,
            presented,
        })
    }

    #[test]
    fn alerts_are_in_words() {
        let alert = rustls::Error::AlertReceived;
        let refused = |reason| Some(TlsFailure::CertificateRefused(reason));
        check(alert(AlertDescription::UnknownCA), refused("unknown CA"));
        check(
            alert(AlertDescription::CertificateExpired),
            refused("certificate expired"),
        );
        check(
            alert(AlertDescription::CertificateRequired),
            Some(TlsFailure::CertificateRequired),
        );
        check(
            alert(AlertDescription::HandshakeFailure),
            Some(TlsFailure::Alert("handshake failure".to_owned())),
        );
    }

    #[test]
    fn a_wildcard_with_one_label_is_recognised() {
        let name = |has_short_wildcard| Some(TlsFailure::OtherName { has_short_wildcard });
        check(other_name("gw.internal", "*.internal"), name(true));
        check(other_name("gw.other", "*.internal"), name(false));
        check(other_name("a.gw.internal", "*.internal"), name(false));
        check(other_name("gw.b.internal", "*.a.internal"), name(false));
        check(other_name("localhost", "*.internal"), name(false));
    }

    #[test]
    fn other_errors_have_no_failure_of_tls() {
        assert_eq!(TlsFailure::of(&io::ErrorKind::UnexpectedEof.into()), None);
        check(rustls::Error::HandshakeNotComplete, None);
    }

    #[track_caller]
    fn check_handshake(error: rustls::Error, expected: HandshakeFailure) {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        assert_eq!(HandshakeFailure::of(&error), expected, "{error}");
    }

    #[test]
    fn errors_of_a_handshake_have_few_reasons() {
        use HandshakeFailure as Failure;
        let certificate = Error::InvalidCertificate;
        check_handshake(Error::NoCertificatesPresented, Failure::NoCertificate);
        check_handshake(
            certificate(CertificateError::UnknownIssuer),
            Failure::UnknownCa,
        );
        check_handshake(
            certificate(CertificateError::BadSignature),
            Failure::UnknownCa,
        );
        check_handshake(certificate(CertificateError::NotValidYet), Failure::Expired);
        check_handshake(
            certificate(CertificateError::NotValidForName),
            Failure::WrongName,
        );
        check_handshake(certificate(CertificateError::Revoked), Failure::Other);
        let alert = Error::AlertReceived(AlertDescription::UnknownCA);
        check_handshake(alert, Failure::RefusedByClient);
        let content = Error::InvalidMessage(InvalidMessage::InvalidContentType);
        check_handshake(content, Failure::NotTls);
        check_handshake(Error::DecryptError, Failure::Other);
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
