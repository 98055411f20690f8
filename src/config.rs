//! Rules: from files to a [`Matcher`], or every reason why they are refused.

use std::{
    fmt::{self, Write as _},
    fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use sha2::{Digest as _, Sha256};

use crate::{
    counter::KeyFormat,
    limit::{Algorithm, OnStoreLoss},
    matcher::Matcher,
};

mod algorithm;
mod compile;
pub mod message;
pub(crate) mod node;
mod yaml;

use node::Lines;
pub use node::Position;

/// A file larger than this is not read: 100,000 rules take about a tenth of it.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// How rules are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Several files may name one domain; their top-level descriptors are merged.
    pub merge_domains: bool,
    /// Keep keys and values apart: the entry (`a`, `b`) is not the bare key `a_b`.
    pub strict_matching: bool,
    /// How counters are named; the reference's format cannot name every counter.
    pub key_format: KeyFormat,
    /// Answer of rules that set no `on_store_loss`, while the store is lost.
    pub on_store_loss: OnStoreLoss,
    /// The number of replicas is unknown, so no rule can count locally.
    pub lacks_replicas: bool,
}

/// Valid rules.
#[derive(Debug)]
pub struct Loaded {
    pub matcher: Matcher,
    /// Settings that are accepted, as in the reference, but are probably mistakes.
    pub warnings: Vec<Problem>,
    pub files: usize,
}

/// Rule files as they were at one moment.
#[derive(Debug)]
pub struct Files {
    files: Vec<File>,
    problems: Vec<Problem>,
}

impl Files {
    /// Reads all rule files of `source`.
    pub fn read(source: &Source) -> Self {
        let mut problems = Vec::new();
        let files = read(source, &mut problems);
        if files.is_empty() && problems.is_empty() {
            let place = source.to_string();
            problems.push(unlocated(Path::new(&place), Fault::NoFiles));
        }
        Self { files, problems }
    }

    /// One file held in memory, with its name in messages.
    pub fn of(name: &str, text: &str) -> Self {
        Self {
            files: vec![File::new(name.to_owned(), text.to_owned())],
            problems: Vec::new(),
        }
    }

    /// A digest of the names, texts and read errors; it changes when the files do.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        let mut add = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        };
        for file in &self.files {
            add(&file.name);
            add(&file.text);
        }
        for problem in &self.problems {
            add(&problem.to_string());
        }
        digest.finalize().into()
    }

    /// Compiles the files, in the order of their names.
    ///
    /// # Errors
    ///
    /// All problems of all files, in the order of their names.
    pub fn compile(self, options: Options) -> Result<Loaded, Vec<Problem>> {
        let Self {
            files,
            mut problems,
        } = self;
        let sources: Vec<_> = files
            .iter()
            .filter_map(|file| {
                let rules = yaml::read(file, &mut problems)?;
                Some(compile::Source { file, rules })
            })
            .collect();
        finish(&sources, files.len(), options, problems)
    }
}

/// Compiles the rules read from `files` files; `problems` are the problems found so far.
fn finish(
    sources: &[compile::Source<'_>],
    files: usize,
    options: Options,
    mut problems: Vec<Problem>,
) -> Result<Loaded, Vec<Problem>> {
    let matcher = compile::compile(sources, options, &mut problems);
    problems.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
    if problems.iter().any(|problem| !problem.fault.is_warning()) {
        return Err(problems);
    }
    Ok(Loaded {
        matcher,
        warnings: problems,
        files,
    })
}

/// A rule file: its name in messages, and its text.
#[derive(Debug)]
struct File {
    name: String,
    text: String,
    lines: OnceLock<Lines>,
}

impl File {
    fn new(name: String, text: String) -> Self {
        Self {
            name,
            text,
            lines: OnceLock::new(),
        }
    }

    fn position(&self, offset: usize) -> Position {
        let lines = self.lines.get_or_init(|| Lines::of(&self.text));
        lines.position(&self.text, offset)
    }

    fn problem(&self, offset: Option<usize>, path: &str, fault: Fault) -> Problem {
        Problem {
            file: self.name.clone(),
            position: offset.map(|offset| self.position(offset)),
            path: path.to_owned(),
            fault,
        }
    }
}

/// A problem with the rules, and its position.
#[derive(Debug)]
pub struct Problem {
    pub file: String,
    /// `None` for a problem without a position, such as a file that cannot be read.
    pub position: Option<Position>,
    /// The domain and the joined texts of the nodes on the path; empty outside of a domain.
    pub path: String,
    pub fault: Fault,
}

impl fmt::Display for Problem {
    /// `shop.yaml:4:13: shop.remote_address: invalid rate limit unit 'fortnight' (…)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(Position { line, column }) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path.escape_debug())?;
        }
        if self.fault.is_warning() {
            f.write_str(": warning")?;
        }
        f.write_str(": ")?;
        // One line, even if texts of the rules hold line breaks.
        for found in self.fault.to_string().chars() {
            if found.is_control() {
                write!(f, "{}", found.escape_debug())?;
            } else {
                f.write_char(found)?;
            }
        }
        Ok(())
    }
}

/// The kind of problem. Texts begin as the reference's do and then name the fix.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    #[error("no rule files found")]
    NoFiles,
    #[error("is larger than {MAX_FILE_BYTES} bytes; split it and turn on merging of domains")]
    TooLarge,
    #[error("is a resource of type '{0}'; rules are ratelimit.config.ratelimit.v3.RateLimitConfig")]
    OtherType(String),
    #[error("is not a readable RateLimitConfig: {0}")]
    Undecodable(#[source] prost::DecodeError),
    #[error("a push without rules is refused (--xds-empty-push keep)")]
    EmptyPush,
    #[error("error loading config file: not UTF-8 text")]
    NotText,
    #[error("error loading config file: yaml: {0}")]
    Syntax(String),
    #[error("error loading config file: yaml: `{key}` must be {expected}, not {found}")]
    WrongType {
        key: String,
        expected: &'static str,
        found: &'static str,
    },
    #[error("error loading config file: yaml: tags such as `!include` are not supported")]
    Tag,
    #[error("config error, key is not of type string: {0}; put it in quotes")]
    KeyNotText(String),
    #[error("config error, unknown key '{key}' (expected {expected})")]
    UnknownKey { key: String, expected: String },
    #[error("config error, yaml file contains list of type other than map: {0}")]
    ListOfScalars(String),
    #[error(
        "error checking config: {0} is not a string, a whole number, a boolean or null; put it in quotes if it is a text"
    )]
    OddScalar(String),
    #[error("config file cannot have empty domain; write `domain: NAME` at the top")]
    EmptyDomain,
    #[error(
        "duplicate domain '{domain}' in config file, already defined in {first}; put both in one file or turn on merging of domains"
    )]
    DuplicateDomain { domain: String, first: String },
    #[error("descriptor has empty key; write `key: NAME`")]
    EmptyKey,
    #[error("duplicate descriptor composite key '{path}', already defined at {first}")]
    Duplicate { path: String, first: String },
    #[error("invalid rate limit unit '{0}' (second, minute, hour, day, week, month or year)")]
    InvalidUnit(String),
    #[error("should not specify rate limit unit when unlimited; remove one of them")]
    UnlimitedUnit,
    #[error("should not have an empty replaces entry; write `- name: NAME`")]
    EmptyReplaces,
    #[error("replaces should not contain name of same descriptor")]
    ReplacesItself,
    #[error(
        "share_threshold can only be used with wildcard values (containing '*'), but found key '{0}'"
    )]
    ShareWithoutWildcard(String),
    #[error("`rate_limit` and `rate_limits` on one descriptor; put all limits into `rate_limits`")]
    BothForms,
    #[error(
        "`rate_limits` is empty; list at least one limit, or write `rate_limit: {{unlimited: true}}`"
    )]
    NoLimits,
    #[error("`unlimited` is not for a list of limits; write `rate_limit: {{unlimited: true}}`")]
    UnlimitedInList,
    #[error("`unit_multiplier` must be a whole number from 1 to 4294967295, not {0}")]
    InvalidMultiplier(String),
    #[error("a period of {multiplier} {unit}s is longer than 10,000 years")]
    PeriodTooLong { unit: &'static str, multiplier: u32 },
    #[error("{0} does not fit the reference's key format; use the native one")]
    NoReferenceKey(&'static str),
    #[error("two limits with a period of {0} and the same algorithm; keep the lower one")]
    SamePeriod(String),
    #[error("unknown {key} '{text}' ({expected})")]
    UnknownWord {
        key: &'static str,
        text: String,
        expected: &'static str,
    },
    #[error(
        "`local` shares each limit among the replicas, and Redis reports their number too late; set --replicas, --replicas-until-known or --state-file"
    )]
    UnknownReplicas,
    #[error("`{key}` does not go with {with}; {fix}")]
    DoesNotGo {
        key: &'static str,
        with: &'static str,
        fix: &'static str,
    },
    #[error("`{key}` must be a whole number from {low} to {high}, not {text}")]
    OutOfRange {
        key: &'static str,
        low: u64,
        high: u64,
        text: String,
    },
    #[error(
        "`sliding_log` remembers every hit, {max} at most, and this limit admits {0}; use `sliding_window`",
        max = Algorithm::MAX_LOGGED
    )]
    LogTooLong(u32),
    #[error("unknown time_zone '{0}' (an IANA name, such as Europe/Madrid or UTC)")]
    UnknownZone(String),
    #[error("`calendar` needs a `time_zone`, such as Europe/Madrid or UTC")]
    NoZone,
    #[error(
        "cannot read the limit '{0}'; write NUMBER/UNIT or NUMBER/COUNTunit, such as 5000/day or 300/30m (s, m, h, d, w, mo, y)"
    )]
    ShortForm(String),

    // From here on warnings: the reference accepts these silently.
    #[error("`{key}` means nothing here and is ignored; it belongs {belongs}")]
    Misplaced { key: String, belongs: &'static str },
    #[error("`{0}` is given twice; the last one counts")]
    Repeated(String),
    #[error("`requests_per_unit` is missing, so every request is refused; write it, 0 included")]
    NoRequestsPerUnit,
    #[error("`replaces` names '{0}', but no limit has that name")]
    ReplacesUnknown(String),
    #[error(
        "'{0}' and '{1}' replace each other: a request that matches both is not limited by either"
    )]
    ReplaceEachOther(String, String),
}

impl Fault {
    /// Whether the rules can be used despite this problem.
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::Misplaced { .. }
                | Self::Repeated(_)
                | Self::NoRequestsPerUnit
                | Self::ReplacesUnknown(_)
                | Self::ReplaceEachOther(..)
        )
    }
}

/// The location of rule files.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files by name, and folders. Of a folder, all files that end in `.yaml`, `.yml` or `.json` and do not begin
    /// with a dot, which skips the copies that editors and the kubelet keep there.
    Paths(Vec<PathBuf>),
    /// The folder of the reference's `RUNTIME_*` variables: every file, whatever its name.
    Runtime(Runtime),
}

/// A folder of rules as the reference reads it.
#[derive(Clone, Debug)]
pub struct Runtime {
    pub root: PathBuf,
    pub subdirectory: PathBuf,
    pub app_directory: PathBuf,
    /// Skip names that begin with a dot.
    pub ignores_dot_files: bool,
    /// Read all of root and subdirectory, and keep the files whose path, with dots for slashes, begins with the name
    /// of the app directory.
    pub watches_root: bool,
}

impl Source {
    /// The folders in which a change can affect the rules, each with whether its sub-folders count too.
    pub fn watched(&self) -> Vec<(PathBuf, bool)> {
        match self {
            Self::Paths(paths) => paths.iter().map(|path| (path.clone(), true)).collect(),
            Self::Runtime(runtime) => {
                // The root itself may be a link that gets replaced.
                let above = runtime.root.parent();
                let above = above.map(|parent| (parent.to_owned(), false));
                above
                    .into_iter()
                    .chain([(runtime.folder(), true)])
                    .collect()
            }
        }
    }

    /// The files by name and path, sorted by name.
    fn list(&self, problems: &mut Vec<Problem>) -> Vec<(String, PathBuf)> {
        let mut found = Vec::new();
        match self {
            Self::Paths(paths) => {
                for path in paths {
                    if !path.is_dir() {
                        found.push((path.display().to_string(), path.clone()));
                        continue;
                    }
                    // Files in several folders may have equal names, but each path is unique.
                    let root = if paths.len() == 1 {
                        path
                    } else {
                        Path::new("")
                    };
                    let mut walk = Walk {
                        root,
                        takes: &|path| !is_hidden(path) && (path.is_dir() || is_rules(path)),
                        follows_links: true,
                        found: &mut found,
                    };
                    if let Err(error) = walk.enter(path, 0) {
                        problems.push(unlocated(path, Fault::Unreadable(error)));
                    }
                }
            }
            Self::Runtime(runtime) => {
                if let Err(error) = runtime.list(&mut found) {
                    problems.push(unlocated(&runtime.folder(), Fault::Unreadable(error)));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paths(paths) => {
                let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
                f.write_str(&paths.join(", "))
            }
            Self::Runtime(runtime) => write!(f, "{}", runtime.folder().display()),
        }
    }
}

impl Runtime {
    fn folder(&self) -> PathBuf {
        let folder = self.root.join(&self.subdirectory);
        if self.watches_root {
            folder
        } else {
            folder.join(&self.app_directory)
        }
    }

    fn list(&self, found: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
        let folder = self.folder();
        // The kubelet's own folders are always skipped, whatever the setting says.
        let takes = |path: &Path| {
            let is_hidden = is_hidden(path);
            !(is_hidden && (self.ignores_dot_files || is_kubelets(path)))
        };
        let mut walk = Walk {
            root: &folder,
            takes: &takes,
            follows_links: false,
            found,
        };
        walk.enter(&folder, 0)?;
        if self.watches_root {
            for (name, _) in &mut *found {
                *name = name.replace('/', ".");
            }
            let prefix = format!("{}.", self.app_directory.display());
            found.retain(|(name, _)| name.starts_with(&prefix));
        }
        Ok(())
    }
}

/// Reads the files of `source`.
fn read(source: &Source, problems: &mut Vec<Problem>) -> Vec<File> {
    let mut files = Vec::new();
    for (name, path) in source.list(problems) {
        match read_text(&path) {
            Ok(text) => files.push(File::new(name, text)),
            Err(fault) => problems.push(unlocated(Path::new(&name), fault)),
        }
    }
    files
}

fn unlocated(path: &Path, fault: Fault) -> Problem {
    Problem {
        file: path.display().to_string(),
        position: None,
        path: String::new(),
        fault,
    }
}

fn read_text(path: &Path) -> Result<String, Fault> {
    let length = fs::metadata(path).map_err(Fault::Unreadable)?.len();
    if length > MAX_FILE_BYTES {
        return Err(Fault::TooLarge);
    }
    let bytes = fs::read(path).map_err(Fault::Unreadable)?;
    String::from_utf8(bytes).map_err(|_| Fault::NotText)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// `..data` and the folder that it points to hold each file a second time.
fn is_kubelets(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b".."))
}

fn is_rules(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| end == "yaml" || end == "yml" || end == "json")
}

/// A recursive walk through a folder.
struct Walk<'a> {
    root: &'a Path,
    /// Accepts files to read and folders to enter.
    takes: &'a dyn Fn(&Path) -> bool,
    /// Whether links to folders are entered.
    follows_links: bool,
    /// The files found, by their path from the root.
    found: &'a mut Vec<(String, PathBuf)>,
}

impl Walk<'_> {
    /// Folders deeper than this are not entered, because a link can form a cycle.
    const MAX_DEPTH: usize = 8;

    fn enter(&mut self, folder: &Path, depth: usize) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if !(self.takes)(&path) {
                continue;
            }
            if path.is_dir() {
                let is_entered = self.follows_links || !path.is_symlink();
                if is_entered && depth < Self::MAX_DEPTH {
                    self.enter(&path, depth + 1)?;
                }
            } else {
                let name = path.strip_prefix(self.root).unwrap_or(&path);
                self.found.push((name.display().to_string(), path));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
