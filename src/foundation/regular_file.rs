//! Opens files that have to be regular ones.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use nix::fcntl::OFlag;

/// Opens the file at `path` as `options` say. Never waits, as the open of a pipe does for its other end.
///
/// # Errors
///
/// If it cannot be opened. `None` if it is no regular file.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<Option<File>> {
    // Without effect on regular files.
    options.custom_flags(OFlag::O_NONBLOCK.bits());
    match options.open(path) {
        Ok(file) => Ok(file.metadata()?.is_file().then_some(file)),
        // A socket, or a pipe without a reader that is opened for writing.
        Err(error) if error.raw_os_error() == Some(nix::libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}
