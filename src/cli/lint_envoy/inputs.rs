//! The files that the command line names, or that are in the folders that it names, and their parts: the text of a
//! file, and the files in the ConfigMaps that it contains.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::{
    cli::lint_envoy::{
        Linted,
        document::Unreadable,
        finding::{Finding, SeenParts},
        lint,
    },
    config::{
        manifest::{ConfigMapFile, config_map_files},
        position::{Lines, Position},
    },
    core::matcher::Matcher,
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

/// The traps in a file, or in a file inside it.
#[derive(Debug)]
pub(super) struct ConfigPart {
    /// The name of the file inside a ConfigMap.
    pub(super) inside: Option<String>,
    pub(super) seen: SeenParts,
    /// Their positions refer to the outer file.
    pub(super) findings: Vec<Finding>,
}

/// Checks all parts of a file that are Envoy configurations. If there is no such part, returns the error of the file
/// itself.
pub(super) fn parts_of(text: &str, rules: Option<&Matcher>) -> Vec<Result<ConfigPart, Unreadable>> {
    let mut parts = in_config_maps(text, rules);
    match lint(text, rules) {
        Err(error) if parts.is_empty() => parts.push(Err(error)),
        // A file of ConfigMaps is not a configuration itself.
        Err(_) => {}
        Ok(Linted { findings, seen }) => parts.insert(
            0,
            Ok(ConfigPart {
                inside: None,
                seen,
                findings,
            }),
        ),
    }
    parts
}

fn in_config_maps(text: &str, rules: Option<&Matcher>) -> Vec<Result<ConfigPart, Unreadable>> {
    // An Envoy dump can be large, and should not be parsed twice.
    if !text.contains("ConfigMap") {
        return Vec::new();
    }
    let mut parts = Vec::new();
    for file in config_map_files(text) {
        match lint(&file.text, rules) {
            Ok(Linted { mut findings, seen }) => {
                for finding in &mut findings {
                    relocate(finding, &file);
                }
                parts.push(Ok(ConfigPart {
                    inside: Some(file.name),
                    seen,
                    findings,
                }));
            }
            Err(error @ Unreadable::Syntax { .. }) if mentions_envoy(&file.text) => {
                parts.push(Err(error.moved(|at| file.place.position(at))));
            }
            // A ConfigMap can contain anything.
            Err(_) => {}
        }
    }
    parts
}

/// Moves a finding to its position in the manifest. If the file's lines are not lines of the manifest, its line becomes
/// part of the path.
fn relocate(finding: &mut Finding, file: &ConfigMapFile) {
    if let Some(Position { line, .. }) = finding.position
        && !file.place.is_exact()
    {
        finding.path = format!("line {line}: {}", finding.path);
    }
    let place = finding.position.map(|at| file.place.position(at));
    finding.position = Some(place.unwrap_or(file.key_position));
}

/// Whether an unparsable text was probably meant to be an Envoy configuration.
pub(super) fn mentions_envoy(text: &str) -> bool {
    const WORDS: [&str; 4] = [
        "type.googleapis.com/envoy.",
        "static_resources",
        "staticResources",
        "EnvoyFilter",
    ];
    WORDS.iter().any(|word| text.contains(word))
}
