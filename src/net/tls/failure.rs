//! Why TLS failed, from the error of a stream.

use std::io;

use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, OtherError, pki_types::ServerName,
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

impl TlsFailure {
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

#[cfg(test)]
mod tests {
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
}
