//! Certificates in a mounted Secret.

use super::{
    certificates::{Authority, Pair, Secret},
    tollgate::Builder,
};

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
