//! A file of lines that rotates when it is full: `FILE` becomes `FILE.1`, `FILE.1` becomes `FILE.2`, and the oldest is
//! removed. Only a regular file is accepted, not a link, so that nothing else is written to or moved.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::foundation::regular_file::{Links, open_regular};

/// Lines can contain personal data, so other users of the machine cannot read them.
const MODE: u32 = 0o640;

/// A file of bounded size.
#[derive(Debug)]
pub(crate) struct RotatingFile {
    options: FileOptions,
    file: File,
    bytes: u64,
}

/// The path of a file, and its bounds.
#[derive(Clone, Debug)]
pub(crate) struct FileOptions {
    pub(crate) path: PathBuf,
    /// Size of a full file. Only a file of one longer line exceeds it.
    pub(crate) max_bytes: u64,
    /// Earlier files that are kept.
    pub(crate) kept: u32,
}

impl RotatingFile {
    /// Opens the file and keeps the lines that it has.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub(crate) fn open(options: FileOptions) -> io::Result<Self> {
        let (file, bytes) = open(&options.path)?;
        Ok(Self {
            options,
            file,
            bytes,
        })
    }

    /// How many bytes fit before the file has to be replaced.
    pub(super) fn room(&self) -> u64 {
        self.options.max_bytes.saturating_sub(self.bytes)
    }

    /// Appends lines.
    ///
    /// # Errors
    ///
    /// If not all of them can be written.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all(lines)?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    /// Moves the file away and opens an empty one, unless it is empty already.
    ///
    /// # Errors
    ///
    /// If a file cannot be renamed or opened. The next attempt moves no file a second time.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let FileOptions { path, kept, .. } = &self.options;
        // The path can name another file by now: another program has put one there, or the last attempt has moved ours.
        let own = self.file.metadata()?;
        let found = fs::symlink_metadata(path).ok();
        if found.is_some_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())) {
            make_way(path, *kept)?;
        }
        (self.file, self.bytes) = open(path)?;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(MODE);
    let no_file = || {
        io::Error::other(
            "it is a link or no regular file, which could not be replaced when it is full",
        )
    };
    let file = open_regular(path, &mut options, Links::Refused)?.ok_or_else(no_file)?;
    let found = file.metadata()?;
    if found.mode() & 0o777 & !MODE != 0 {
        // An existing file keeps its old mode.
        file.set_permissions(fs::Permissions::from_mode(MODE))?;
    }
    Ok((file, found.len()))
}

/// `FILE.1` for number 1.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

/// Moves `FILE` to `FILE.1`, after moving each earlier file to the next number.
fn make_way(path: &Path, kept: u32) -> io::Result<()> {
    if kept == 0 {
        return fs::remove_file(path);
    }
    for number in (1..kept).rev() {
        match fs::rename(numbered(path, number), numbered(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, numbered(path, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &Path) -> [Option<String>; 4] {
        let text = |path: PathBuf| fs::read_to_string(path).ok();
        [
            text(path.to_owned()),
            text(numbered(path, 1)),
            text(numbered(path, 2)),
            text(numbered(path, 3)),
        ]
    }

    #[track_caller]
    fn check(kept: u32, expected: [Option<&str>; 4]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let options = FileOptions {
            path: path.clone(),
            max_bytes: 4,
            kept,
        };
        for lines in ["a\n", "b\n", "c\n", "d\n", "e\n", "f\n", "g\n"] {
            // Each time as after a new start: the lines stay.
            let mut file = RotatingFile::open(options.clone()).unwrap();
            if file.room() < lines.len() as u64 {
                file.rotate().unwrap();
            }
            file.write(lines.as_bytes()).unwrap();
        }
        assert_eq!(texts(&path), expected.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn as_many_earlier_files_are_kept_as_wanted() {
        check(0, [Some("g\n"), None, None, None]);
        check(1, [Some("g\n"), Some("e\nf\n"), None, None]);
        check(2, [Some("g\n"), Some("e\nf\n"), Some("c\nd\n"), None]);
        check(
            3,
            [Some("g\n"), Some("e\nf\n"), Some("c\nd\n"), Some("a\nb\n")],
        );
    }

    #[test]
    fn a_file_that_was_taken_away_is_made_again_at_the_next_turn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let options = FileOptions {
            path: path.clone(),
            max_bytes: 4,
            kept: 1,
        };
        let mut file = RotatingFile::open(options).unwrap();
        file.write(b"a\n").unwrap();
        fs::remove_file(&path).unwrap();
        file.rotate().unwrap();
        file.write(b"b\n").unwrap();
        assert_eq!(texts(&path)[0].as_deref(), Some("b\n"));
    }

    #[test]
    fn only_a_regular_file_is_written_to_and_only_the_own_one_is_moved() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let options = |name: &str| FileOptions {
            path: path(name),
            max_bytes: 4,
            kept: 1,
        };
        fs::write(path("target"), "").unwrap();
        std::os::unix::fs::symlink("target", path("link")).unwrap();
        std::os::unix::fs::symlink("/dev/null", path("device")).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for name in ["link", "device", "socket"] {
            assert!(RotatingFile::open(options(name)).is_err(), "{name}");
        }
        drop(socket);
        let device = FileOptions {
            path: "/dev/null".into(),
            ..options("")
        };
        assert!(RotatingFile::open(device).is_err());

        let mut file = RotatingFile::open(options("own")).unwrap();
        file.write(b"a\n").unwrap();
        fs::rename(path("own"), path("moved")).unwrap();
        fs::write(path("own"), "of another\n").unwrap();
        file.rotate().unwrap();
        file.write(b"b\n").unwrap();
        assert_eq!(fs::read_to_string(path("own")).unwrap(), "of another\nb\n");
        assert!(!path("own.1").exists());
        fs::remove_file(path("own")).unwrap();
        std::os::unix::fs::symlink("target", path("own")).unwrap();
        assert!(file.rotate().is_err());
        assert_eq!(fs::read_to_string(path("target")).unwrap(), "");
    }

    #[test]
    fn a_file_that_is_there_already_is_not_open_to_all_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let options = FileOptions {
            path: path.clone(),
            max_bytes: 4,
            kept: 1,
        };
        let _file = RotatingFile::open(options).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, MODE);
    }
}
