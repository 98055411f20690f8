//! Reads certificates and keys from PEM files, with errors that name the file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::{
    self, RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
};

/// Why a PEM file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    #[error("{}: cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    #[error("{}: contains no {what} in PEM", file.display())]
    Missing { file: PathBuf, what: &'static str },
    #[error("{}: not PEM", .0.display())]
    NotPem(PathBuf, #[source] pem::Error),
    #[error("{}: not a CA certificate", .0.display())]
    NoAuthority(PathBuf, #[source] rustls::Error),
}

/// Reads the whole of `file`.
///
/// # Errors
///
/// If `file` cannot be read.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, PemError> {
    fs::read(file).map_err(|error| PemError::Unreadable(file.to_owned(), error))
}

/// The certificates in the `text` of `file`, at least one.
///
/// # Errors
///
/// If there is none, or something that is not PEM.
pub(crate) fn certificates(
    file: &Path,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, PemError> {
    const WHAT: &str = "certificate";
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| not_pem(file, WHAT, error))?;
    if certificates.is_empty() {
        return Err(not_pem(file, WHAT, pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

/// The private key in the `text` of `file`: PKCS#1, PKCS#8 or SEC1.
///
/// # Errors
///
/// If there is none, or something that is not PEM.
pub(crate) fn key(file: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| not_pem(file, "key", error))
}

/// Those `certificates` of `file` as authorities; the system's own are not added.
///
/// # Errors
///
/// If one of them cannot be a certificate authority.
pub(crate) fn authorities(
    file: &Path,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = roots.add(certificate);
        added.map_err(|error| PemError::NoAuthority(file.to_owned(), error))?;
    }
    Ok(roots)
}

fn not_pem(file: &Path, what: &'static str, error: pem::Error) -> PemError {
    let file = file.to_owned();
    match error {
        pem::Error::NoItemsFound => PemError::Missing { file, what },
        error => PemError::NotPem(file, error),
    }
}
