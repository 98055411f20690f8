//! Certificates, the folder in which they are mounted, and clients that use TLS.

use std::{
    fs,
    future::{Ready, ready},
    io,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::PathBuf,
    process::Command,
    sync::Arc,
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};
use tonic::{
    codegen::Service,
    transport::{Endpoint, Uri},
};

use super::{ask::Client, finish, tollgate::Builder, tool};

#[derive(Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate in PEM.
    pub certificate: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        Self::with_key(name, KeyPair::generate().unwrap())
    }

    /// An authority like Envoy Gateway's, with an RSA key.
    pub fn rsa(name: &str) -> Self {
        Self::with_key(name, KeyPair::from_pem(&RsaKey::new().pkcs8).unwrap())
    }

    fn with_key(name: &str, key: KeyPair) -> Self {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    /// A certificate like Envoy Gateway's, except for its EC key: for `*`, valid for `name`, without key usages.
    pub fn issue(&self, name: &str) -> Pair {
        self.signed(params("*", &[name]))
    }

    /// A certificate like Envoy Gateway's: an RSA key of 2048 bits in PKCS#1, for `*`, valid for `names`, without key
    /// usages.
    pub fn issue_rsa(&self, names: &[&str]) -> Pair {
        let RsaKey { pkcs8, pkcs1 } = RsaKey::new();
        let key = KeyPair::from_pem(&pkcs8).unwrap();
        let certificate = params("*", names).signed_by(&key, &self.issuer);
        Pair {
            certificate: certificate.unwrap().pem(),
            key: pkcs1,
        }
    }

    /// The certificate of an authority below this one, which is also for `name`.
    pub fn issue_authority(&self, name: &str) -> Pair {
        let mut params = params("*", &[name]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.signed(params)
    }

    /// A certificate that expired long ago.
    pub fn issue_expired(&self, name: &str) -> Pair {
        self.signed(expired(params("*", &[name])))
    }

    fn signed(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        Pair {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    pub fn client(&self, version: &'static SupportedProtocolVersion, pair: Option<&Pair>) -> Tls {
        let mut roots = RootCertStore::empty();
        roots.add(der(&self.certificate)).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match pair {
            Some(Pair { certificate, key }) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                let chain = vec![der(certificate)];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Tls(TlsConnector::from(Arc::new(config)))
    }
}

/// A certificate for `names` that is its own authority, as `openssl req -x509` makes it.
pub fn self_signed(names: &[&str], is_expired: bool) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = params("Redis", names);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    if is_expired {
        params = expired(params);
    }
    Pair {
        certificate: params.self_signed(&key).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

/// An RSA key in the formats of newer and of older tools, in PEM.
struct RsaKey {
    pkcs8: String,
    pkcs1: String,
}

impl RsaKey {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let run = |args: &str| {
            let mut openssl = Command::new(tool("openssl"));
            let output = finish(openssl.args(args.split(' ')).current_dir(folder.path()));
            assert!(output.status.success(), "{args}: {output:?}");
        };
        run("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out pkcs8");
        run("rsa -in pkcs8 -traditional -out pkcs1");
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let (pkcs8, pkcs1) = (read("pkcs8"), read("pkcs1"));
        let is_pkcs1 = pkcs1.starts_with("-----BEGIN RSA PRIVATE KEY-----");
        assert!(is_pkcs1, "{pkcs1}");
        Self { pkcs8, pkcs1 }
    }
}

fn expired(mut params: CertificateParams) -> CertificateParams {
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    params
}

fn params(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    params
}

pub fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[derive(Clone)]
pub struct Tls(TlsConnector);

impl Tls {
    /// A client on its own connection, and the server's certificate. With TLS 1.3 the server may refuse the client
    /// only later.
    pub async fn connect(
        &self,
        address: SocketAddr,
        name: &str,
    ) -> io::Result<(Client, CertificateDer<'static>)> {
        let stream = TcpStream::connect(address).await?;
        let name = name.to_owned().try_into().unwrap();
        let stream = self.0.connect(name, stream).await?;
        let (_, session) = stream.get_ref();
        assert_eq!(session.alpn_protocol(), Some(b"h2".as_slice()));
        let shown = session.peer_certificates().unwrap()[0].clone().into_owned();
        let channel = Endpoint::from_static("http://tollgate")
            .connect_with_connector(Once(Some(stream)))
            .await
            .map_err(io::Error::other)?;
        Ok((Client::new(channel), shown))
    }
}

struct Once(Option<TlsStream<TcpStream>>);

impl Service<Uri> for Once {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let stream = self.0.take().map(TokioIo::new);
        ready(stream.ok_or_else(|| io::Error::other("the connection is gone")))
    }
}

/// A folder as the kubelet mounts a Secret or a ConfigMap: links, through a link that it replaces.
#[derive(Debug)]
pub struct Secret {
    folder: PathBuf,
    version: u32,
    /// The folder, if it is not in that of another.
    _own: Option<TempDir>,
}

impl Secret {
    pub fn mount(files: &[(&str, &str)]) -> Self {
        let own = TempDir::new().unwrap();
        let mut secret = Self::at_folder(own.path().to_owned());
        secret._own = Some(own);
        secret.update(files);
        secret
    }

    /// An empty one at this place.
    pub fn at_folder(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        Self {
            folder,
            version: 0,
            _own: None,
        }
    }

    /// Replaces all files at once.
    pub fn update(&mut self, files: &[(&str, &str)]) {
        let name = |version| format!("..2026_11_21_{version}");
        let (old, new) = (name(self.version), name(self.version + 1));
        self.version += 1;
        fs::create_dir(self.path(&new)).unwrap();
        for (name, text) in files {
            fs::write(self.path(&new).join(name), text).unwrap();
        }
        symlink(&new, self.path("..data_tmp")).unwrap();
        fs::rename(self.path("..data_tmp"), self.path("..data")).unwrap();
        for (name, _) in files {
            if !self.path(name).is_symlink() {
                symlink(format!("..data/{name}"), self.path(name)).unwrap();
            }
        }
        // At the first update there is none.
        let _ = fs::remove_dir_all(self.path(&old));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn at(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

/// The files of a certificate, and of the authority of the other side.
pub fn files<'a>(pair: &'a Pair, ca: &'a Authority) -> [(&'static str, &'a str); 3] {
    let Pair { certificate, key } = pair;
    [
        ("tls.crt", certificate),
        ("tls.key", key),
        ("ca.crt", &ca.certificate),
    ]
}

/// A Secret with [`files`].
pub fn mount(pair: &Pair, ca: &Authority) -> Secret {
    Secret::mount(&files(pair, ca))
}

/// The paths of [`files`], as arguments.
pub fn paths(secret: &Secret) -> [String; 3] {
    ["tls.crt", "tls.key", "ca.crt"].map(|name| secret.at(name))
}

/// A server whose gRPC port has this certificate.
pub fn serving(builder: Builder, secret: &Secret) -> Builder {
    let [certificate, key, _] = paths(secret);
    let builder = builder.args(["--grpc-tls", "--grpc-tls-cert", &certificate]);
    builder.args(["--grpc-tls-key", &key])
}

/// Like [`serving`], for clients with a certificate of the Secret's authority.
pub fn serving_known(builder: Builder, secret: &Secret) -> Builder {
    serving(builder, secret).args(["--grpc-client-ca", &secret.at("ca.crt")])
}
