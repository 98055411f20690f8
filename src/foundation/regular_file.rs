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

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        symlink(path("file"), path("link")).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        let opens = |name, links| {
            let opened = open_regular(&path(name), OpenOptions::new().read(true), links);
            opened
                .map(|file| file.is_some())
                .map_err(|error| error.kind())
        };
        for links in [Links::Followed, Links::Refused] {
            assert_eq!(opens("file", links), Ok(true));
            assert_eq!(opens("socket", links), Ok(false));
            assert_eq!(opens("", links), Ok(false));
            assert_eq!(opens("missing", links), Err(io::ErrorKind::NotFound));
        }
        assert_eq!(opens("link", Links::Followed), Ok(true));
        assert_eq!(opens("link", Links::Refused), Ok(false));
    }
}
