//! Where rule files are found.

use super::fault::{Fault, MAX_FILE_BYTES, MAX_FILES, Problem, unlocated};
use super::file::{BYTE_ORDER_MARK, File};
use super::position::{Lines, Position};

use std::{
    collections::HashSet,
    fmt, fs,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt as _,
    path::{Component, Path, PathBuf},
};

use nix::libc::{ENXIO, O_NONBLOCK};

/// The name of standard input among files.
pub(crate) const STDIN: &str = "stdin";

/// The location of rule files.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files by name, and folders. Of a folder, all files that end in `.yaml`, `.yml` or `.json` and do not begin
    /// with a dot, which skips the copies that editors and the kubelet keep there.
    Paths(Vec<PathBuf>),
    /// The folder of the reference's `RUNTIME_*` variables: every file, whatever its name.
    Runtime(RuntimeFolder),
}

/// A folder of rules as the reference reads it.
#[derive(Clone, Debug)]
pub struct RuntimeFolder {
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
                let own = [(runtime.folder(), true)];
                above.into_iter().chain(own).collect()
            }
        }
    }

    /// The files by name and path, sorted by name.
    pub(super) fn list(&self, problems: &mut Vec<Problem>) -> Vec<(String, PathBuf)> {
        let (mut found, mut entered) = (Vec::new(), HashSet::new());
        match self {
            Self::Paths(paths) => {
                for path in paths {
                    if !path.is_dir() {
                        found.push((path.display().to_string(), path.clone()));
                        continue;
                    }
                    // Files in several folders can have equal names, but each path is unique.
                    let is_alone = paths.len() == 1;
                    let root: &Path = if is_alone { path } else { "".as_ref() };
                    let mut walk = Walk {
                        root,
                        takes: &|path| !is_hidden(path) && (path.is_dir() || is_rules(path)),
                        follows_links: true,
                        entered: &mut entered,
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
        if found.len() > MAX_FILES {
            found.truncate(MAX_FILES);
            problems.push(unlocated(Path::new(&self.to_string()), Fault::TooManyFiles));
        }
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

impl RuntimeFolder {
    fn folder(&self) -> PathBuf {
        let mut parts = vec![&*self.root, &*self.subdirectory];
        if !self.watches_root {
            parts.push(&self.app_directory);
        }
        joined(&parts)
    }

    pub(super) fn list(&self, found: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
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
            entered: &mut HashSet::new(),
            found,
        };
        let walked = walk.enter(&folder, 0);
        // Also after an error, or each file of the root would be a problem.
        if self.watches_root {
            for (name, _) in &mut *found {
                *name = name.replace('/', ".");
            }
            let app_directory = joined(&[&self.app_directory]);
            let app_directory = app_directory.to_string_lossy().replace('/', ".");
            let prefix = match app_directory.trim_matches('.') {
                "" => String::new(),
                name => format!("{name}."),
            };
            found.retain(|(name, _)| name.starts_with(&prefix));
        }
        walked
    }
}

/// Reads the files of `source`.
pub(super) fn read(source: &Source, problems: &mut Vec<Problem>) -> Vec<File> {
    let mut files = Vec::new();
    let mut room = MAX_FILE_BYTES;
    for (name, path) in source.list(problems) {
        match read_text(&path, room) {
            Ok(text) => {
                room -= text.len() as u64;
                files.push(File::new(name, text));
            }
            Err((position, fault)) => problems.push(Problem {
                position,
                ..unlocated(Path::new(&name), *fault)
            }),
        }
    }
    files
}

/// The text of the file at `path`, of at most `room` bytes.
fn read_text(path: &Path, room: u64) -> Result<String, (Option<Position>, Box<Fault>)> {
    let bytes = read_bytes(path, room).map_err(|fault| (None, fault.into()))?;
    text_of(bytes)
}

/// Never waits for a writer: a pipe is opened without waiting, and not read.
fn read_bytes(path: &Path, room: u64) -> Result<Vec<u8>, Fault> {
    let mut options = fs::OpenOptions::new();
    // Without effect on regular files.
    let opened = options.read(true).custom_flags(O_NONBLOCK).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        // A socket.
        Some(ENXIO) => Fault::NotRegular,
        _ => Fault::Unreadable(error),
    })?;
    if !file.metadata().map_err(Fault::Unreadable)?.is_file() {
        return Err(Fault::NotRegular);
    }
    let mut bytes = Vec::new();
    let read = file.take(room + 1).read_to_end(&mut bytes);
    read.map_err(Fault::Unreadable)?;
    match bytes.len() as u64 {
        length if length <= room => Ok(bytes),
        _ if room == MAX_FILE_BYTES => Err(Fault::TooLarge),
        _ => Err(Fault::TooLargeTogether),
    }
}

/// Reads all of `input`, which has no more than the bytes of a file.
///
/// # Errors
///
/// If it cannot be read, is too large or is no text; then with the position of the first such byte.
pub(super) fn read_input(input: impl Read) -> Result<String, (Option<Position>, Box<Fault>)> {
    let mut bytes = Vec::new();
    let mut bounded = input.take(MAX_FILE_BYTES + 1);
    let read = bounded.read_to_end(&mut bytes);
    read.map_err(|error| (None, Fault::Unreadable(error).into()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err((None, Fault::TooLarge.into()));
    }
    text_of(bytes)
}

/// The text of a file.
///
/// # Errors
///
/// The first byte that is no text, and its position.
fn text_of(bytes: Vec<u8>) -> Result<String, (Option<Position>, Box<Fault>)> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err((None, Fault::Utf16.into()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let before = String::from_utf8_lossy(&bytes[..valid]);
        let before = before.trim_start_matches(BYTE_ORDER_MARK);
        let position = Lines::of(before).position(before, before.len());
        (Some(position), Fault::NotText(bytes[valid]).into())
    })
}

pub(super) fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// `..data` and the folder that it points to hold each file a second time.
pub(super) fn is_kubelets(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b".."))
}

fn is_rules(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| end == "yaml" || end == "yml" || end == "json")
}

/// A recursive walk through a folder.
pub(super) struct Walk<'a> {
    pub(super) root: &'a Path,
    /// Accepts files to read and folders to enter.
    takes: &'a dyn Fn(&Path) -> bool,
    /// Whether links to folders are entered.
    follows_links: bool,
    /// The folders that were entered, without links in their paths: each is entered once, whatever links lead to it.
    entered: &'a mut HashSet<PathBuf>,
    /// The files found, by their path from the root; at most one more than [`MAX_FILES`].
    pub(super) found: &'a mut Vec<(String, PathBuf)>,
}

impl Walk<'_> {
    /// Folders deeper than this are not entered.
    const MAX_DEPTH: usize = 8;

    fn enter(&mut self, folder: &Path, depth: usize) -> io::Result<()> {
        if !self.entered.insert(folder.canonicalize()?) {
            return Ok(());
        }
        let entries = fs::read_dir(folder)?.map(|entry| {
            let path = entry?.path();
            Ok((path.is_symlink(), path))
        });
        let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
        // A folder has its own name, and not that of a link to it.
        entries.sort();
        for (is_link, path) in entries {
            if self.found.len() > MAX_FILES {
                break;
            }
            if !(self.takes)(&path) {
                continue;
            }
            if path.is_dir() {
                if (self.follows_links || !is_link) && depth < Self::MAX_DEPTH {
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

/// The parts as one path, as Go's `filepath.Join` makes it: a slash at the start of a later part adds nothing, and `..`
/// leaves the part before it. Only the first part says whether the path is absolute.
fn joined(parts: &[&Path]) -> PathBuf {
    let is_absolute = parts
        .iter()
        .find(|part| !part.as_os_str().is_empty())
        .is_some_and(|first| first.is_absolute());
    let mut path = PathBuf::from(if is_absolute { "/" } else { "" });
    let mut depth = 0_usize;
    for part in parts.iter().flat_map(|part| part.components()) {
        match part {
            Component::Normal(name) => {
                path.push(name);
                depth += 1;
            }
            Component::ParentDir if depth > 0 => {
                path.pop();
                depth -= 1;
            }
            Component::ParentDir if !is_absolute => path.push(".."),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_bound_alone_and_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "12345678").unwrap();
        assert_eq!(read_bytes(&path, 8).unwrap(), b"12345678");
        assert!(matches!(read_bytes(&path, 7), Err(Fault::TooLargeTogether)));
        let large = fs::File::create(&path).unwrap();
        large.set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(matches!(
            read_bytes(&path, MAX_FILE_BYTES),
            Err(Fault::TooLarge)
        ));
        assert!(matches!(
            read_bytes(folder.path(), 8),
            Err(Fault::NotRegular)
        ));
        assert!(matches!(
            read_bytes(Path::new("/dev/zero"), 8),
            Err(Fault::NotRegular)
        ));
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("s")).unwrap();
        assert!(matches!(
            read_bytes(&folder.path().join("s"), 8),
            Err(Fault::NotRegular)
        ));
    }

    #[test]
    fn a_folder_has_its_own_name_however_many_links_lead_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("z")).unwrap();
        fs::write(path("z/rules.yaml"), "").unwrap();
        std::os::unix::fs::symlink("z", path("a")).unwrap();
        std::os::unix::fs::symlink("..", path("z/up")).unwrap();
        let mut problems = Vec::new();
        let source = Source::Paths(vec![folder.path().into()]);
        let names = source.list(&mut problems).into_iter().map(|(name, _)| name);
        assert_eq!(names.collect::<Vec<_>>(), ["z/rules.yaml"]);
    }

    #[test]
    fn runtime_paths_are_joined_as_the_reference_joins_them() {
        for (root, subdirectory, app_directory, expected) in [
            ("/data", "sub", "config", "/data/sub/config"),
            ("/data", "/", "config", "/data/config"),
            ("/data", "", "config", "/data/config"),
            ("/data", "/sub", "/config", "/data/sub/config"),
            ("/data/", "sub/", "config/", "/data/sub/config"),
            ("//data//", "//a//b", "./config/.", "/data/a/b/config"),
            ("/data", "a/../b", "config", "/data/b/config"),
            ("/data", "../../x", "config", "/x/config"),
            ("data", "/sub", "config", "data/sub/config"),
            ("../data", "..", "config", "../config"),
            ("/", "/", "/", "/"),
        ] {
            let runtime = RuntimeFolder {
                root: root.into(),
                subdirectory: subdirectory.into(),
                app_directory: app_directory.into(),
                ignores_dot_files: true,
                watches_root: false,
            };
            assert_eq!(
                runtime.folder(),
                Path::new(expected),
                "{root} {subdirectory}"
            );
            let watched = RuntimeFolder {
                watches_root: true,
                app_directory: "ignored".into(),
                ..runtime
            };
            let above = joined(&[Path::new(root), Path::new(subdirectory)]);
            assert_eq!(watched.folder(), above);
        }
    }
}
