//! Opens files that have to be regular ones.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use nix::{
    fcntl::OFlag,
    libc::{ELOOP, ENXIO},
};

/// Whether a link may stand in the place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Followed,
    Refused,
}

/// Opens the file at `path` as `options` say. Never waits, as the open of a pipe does for its other end.
///
/// # Errors
///
/// If it cannot be opened. `None` if it is no regular file.
pub(crate) fn open_regular(
    path: &Path,
    options: &mut OpenOptions,
    links: Links,
) -> io::Result<Option<File>> {
    // Without effect on regular files.
    let mut flags = OFlag::O_NONBLOCK;
    flags.set(OFlag::O_NOFOLLOW, links == Links::Refused);
    options.custom_flags(flags.bits());
    match options.open(path) {
        Ok(file) => Ok(file.metadata()?.is_file().then_some(file)),
        // A link; a socket, or a pipe without a reader that is opened for writing.
        Err(error) if matches!(error.raw_os_error(), Some(ELOOP | ENXIO)) => Ok(None),
        Err(error) => Err(error),
    }
}
