//! The files that the command line names, or that are in the folders that it names.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::{
    config::position::{Lines, Position},
    foundation::printable::file_name,
};

/// Larger files are not read. The dump of an Envoy with ten thousand clusters has half this size.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// How deep nested folders are read.
const MAX_DEPTH: usize = 64;

/// Something to read.
#[derive(Debug)]
pub(crate) enum LintInput {
    StandardInput,
    File(PathBuf),
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("cannot be read: it is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    #[error("cannot be read: it is UTF-16 text; save it as UTF-8")]
    Utf16,
    #[error("cannot be read: it is not UTF-8 text; save it as UTF-8")]
    NotText(Position),
}

impl ReadError {
    pub(crate) fn position(&self) -> Option<Position> {
        match self {
            Self::NotText(position) => Some(*position),
            Self::Io(_) | Self::TooLarge | Self::Utf16 => None,
        }
    }
}

impl LintInput {
    /// The input that a path on the command line names, unless it is a folder.
    pub(crate) fn of(path: &Path) -> Self {
        if path == Path::new("-") {
            Self::StandardInput
        } else {
            Self::File(path.to_owned())
        }
    }

    /// The name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::StandardInput => "stdin".to_owned(),
            Self::File(path) => file_name(&path.to_string_lossy()),
        }
    }

    /// Reads the text.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is too large, or is not UTF-8.
    pub(crate) fn read(&self) -> Result<String, ReadError> {
        let from: Box<dyn Read> = match self {
            Self::StandardInput => Box::new(io::stdin()),
            Self::File(path) => Box::new(File::open(path)?),
        };
        let mut bytes = Vec::new();
        let read = from.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
        if read as u64 > MAX_FILE_BYTES {
            return Err(ReadError::TooLarge);
        }
        if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
            return Err(ReadError::Utf16);
        }
        String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
            ReadError::NotText(Lines::of(&text).position(&text, valid))
        })
    }
}

/// All files below a folder that end in `.yaml`, `.yml` or `.json`, ordered by name. Names that begin with a dot and
/// links to folders are skipped.
///
/// # Errors
///
/// If a folder cannot be read.
pub(crate) fn files_below(folder: &Path) -> io::Result<Vec<LintInput>> {
    let mut found = Vec::new();
    collect(folder, MAX_DEPTH, &mut found)?;
    found.sort();
    Ok(found.into_iter().map(LintInput::File).collect())
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            if depth > 0 {
                collect(&path, depth - 1, found)?;
            }
        } else if has_ending(&path) && path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

fn has_ending(path: &Path) -> bool {
    let endings = ["yaml", "yml", "json"];
    path.extension()
        .is_some_and(|end| endings.iter().any(|ending| end == *ending))
}
