//! Reads the flags for the address of a Redis, which both Redis have.

use std::path::PathBuf;

use clap::ValueEnum;

use super::values::Hidden;
use crate::store::redis;

/// The value of a flag, or else the file that another flag names. An empty variable counts as unset.
pub(super) fn secret(
    text: &Option<Hidden>,
    path: &Option<PathBuf>,
) -> Option<redis::topology::address::Secret> {
    let text = text.as_ref().filter(|text| !text.is_empty());
    file(path)
        .or_else(|| text.map(|text| redis::topology::address::Secret::Text((**text).to_owned())))
}

/// The file that a flag names. An empty path counts as unset.
pub(super) fn file(path: &Option<PathBuf>) -> Option<redis::topology::address::Secret> {
    let path = path.as_ref().filter(|path| !path.as_os_str().is_empty());
    path.map(|path| redis::topology::address::Secret::File(path.clone()))
}

/// Turns a bare address into a URL if `socket_type` declares it to be a socket path. Other addresses are returned
/// unchanged.
pub(super) fn with_socket_type(url: &str, socket_type: Option<SocketType>) -> String {
    match socket_type {
        Some(SocketType::Unix) if !url.contains("://") => format!("unix://{url}"),
        _ => url.to_owned(),
    }
}

/// The only backend that can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendFlag {
    Redis,
}

/// As in the reference, an empty name means Redis.
pub(super) fn backend(text: &str) -> Result<BackendFlag, String> {
    match text {
        "" | "redis" => Ok(BackendFlag::Redis),
        "memcache" => {
            Err("expected redis: there is no memcached store, which could not count exactly".into())
        }
        _ => Err("expected redis".into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SocketType {
    Tcp,
    Unix,
}
