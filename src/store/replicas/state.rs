//! The file in which the number of replicas outlives a process.
//!
//! It has one line, `replicas: 3`.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    num::NonZeroU32,
    path::{Path, PathBuf},
};

/// A larger file was not written by tollgate.
const MAX_BYTES: u64 = 64;

/// The file that keeps the number.
#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
}

/// Why a number cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("{} cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    #[error("{} holds no number of replicas (one line, such as `replicas: 3`)", .0.display())]
    Broken(PathBuf),
    #[error("{} cannot be written", .0.display())]
    Unwritable(PathBuf, #[source] io::Error),
}

impl StateFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// The number that an earlier process kept; `None` if there is no file yet.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or holds something else.
    pub(crate) fn read(&self) -> Result<Option<NonZeroU32>, StateError> {
        let mut bytes = Vec::new();
        let read = File::open(&self.path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StateError::Unreadable(self.path.clone(), error)),
        }
        let number = parse(&bytes);
        number
            .map(Some)
            .ok_or_else(|| StateError::Broken(self.path.clone()))
    }

    /// Keeps `number`. A reader at the same time, or after a power failure, finds either the old file or
    /// the new one.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; the old one remains.
    pub(crate) fn write(&self, number: NonZeroU32) -> Result<(), StateError> {
        // Two processes may have the same file by mistake: each has its own draft.
        let mut draft = self.path.clone().into_os_string();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        let written = replace(&self.path, &draft, &format!("replicas: {number}\n"));
        written.map_err(|error| {
            let _ = fs::remove_file(&draft);
            StateError::Unwritable(self.path.clone(), error)
        })
    }
}

fn replace(path: &Path, draft: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(draft, path)
}

fn parse(bytes: &[u8]) -> Option<NonZeroU32> {
    if bytes.len() as u64 > MAX_BYTES {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    text.trim().strip_prefix("replicas:")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Option<u32>) {
        assert_eq!(parse(bytes).map(NonZeroU32::get), expected);
    }

    #[test]
    fn only_a_number_above_zero_is_one() {
        check(b"replicas: 3\n", Some(3));
        check(b"replicas:4294967295", Some(u32::MAX));
        for broken in [
            &b""[..],
            b"3",
            b"replicas: 0",
            b"replicas: -1",
            b"replicas: 4294967296",
            b"replicas: 3\nreplicas: 4\n",
            b"replicas: \xff",
            b"\0\0\0\0\0\0\0\0\0\0\0\0",
        ] {
            check(broken, None);
        }
        let long = [b"replicas: 3".as_slice(), &[b' '; 100]].concat();
        check(&long, None);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFile::at(folder.path().join("state"));
        assert_eq!(state.read().unwrap(), None);
        for number in [7, 1] {
            let number = NonZeroU32::new(number).unwrap();
            state.write(number).unwrap();
            assert_eq!(state.read().unwrap(), Some(number));
        }
        // No draft is left beside it.
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_read_or_written_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let missing = StateFile::at(folder.path().join("none/state"));
        let error = missing.write(NonZeroU32::MIN).unwrap_err();
        assert!(error.to_string().ends_with("none/state cannot be written"));
        let folder_instead = StateFile::at(folder.path().into());
        assert!(matches!(
            folder_instead.read(),
            Err(StateError::Unreadable(..))
        ));
    }
}
