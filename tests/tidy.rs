//! Holds the layout of `src/`: floors, circles, libraries, words, columns, sizes, and the keys of rule files.
//!
//! It reads the sources as text and needs no tool but Python, so it takes a second. Each test lists what it found, with
//! the file and the line.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use regex::{Captures, Regex};

/// A path of modules, such as `store::redis::batch::queue`.
type Module = Vec<String>;

/// One file of `src/`.
struct File {
    /// Its path from `src/`.
    name: String,
    module: Module,
    text: String,
    /// The text with comments, strings and characters as spaces, byte for byte.
    code: String,
    /// Names that use statements bring in, and paths that begin with `crate`, `super` or `self`.
    paths: Vec<Found>,
    /// Modules within the file, by where they stand.
    inner: Vec<(usize, usize)>,
}

/// A path in a file.
struct Found {
    segments: Vec<String>,
    /// The name that a use statement gives to it.
    name: Option<String>,
    at: usize,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect(name)
}

/// The Rust files in a folder and those below.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let all = paths.into_iter().flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    all.filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

fn read_all() -> Vec<File> {
    let src = root().join("src");
    let files = sources(&src).into_iter().map(|path| {
        let name = path.strip_prefix(&src).unwrap().display().to_string();
        File::new(name, fs::read_to_string(&path).unwrap())
    });
    files.collect()
}

/// A test fails with all that it found.
#[track_caller]
fn none_of(found: &[String], about: &str) {
    assert!(found.is_empty(), "{about}\n{}", found.join("\n"));
}

impl File {
    fn new(name: String, text: String) -> Self {
        let stem = name.strip_suffix(".rs").unwrap();
        let module = match stem {
            "lib" | "main" => Vec::new(),
            stem => stem.split('/').map(str::to_owned).collect(),
        };
        let code = masked(&text);
        Self {
            inner: inner_modules(&code),
            paths: paths(&code),
            name,
            module,
            text,
            code,
        }
    }

    /// A place for a message.
    fn at(&self, at: usize) -> String {
        format!("{}:{}", self.name, self.line(at))
    }

    fn line(&self, at: usize) -> usize {
        self.text[..at].matches('\n').count() + 1
    }

    /// Whether a test is what stands there.
    fn is_test(&self, at: usize) -> bool {
        self.name.ends_with("/tests.rs") || self.depth(at) > 0
    }

    /// The number of modules within the file around this place.
    fn depth(&self, at: usize) -> usize {
        let is_around = |(from, to): &&(usize, usize)| (*from..*to).contains(&at);
        self.inner.iter().filter(is_around).count()
    }

    /// The path from the root of the crate, unless it is that of another crate.
    fn absolute(&self, found: &Found) -> Option<Module> {
        let mut segments = &found.segments[..];
        if segments[0] == "crate" {
            return Some(segments[1..].to_vec());
        }
        let mut module = self.module.clone();
        module.extend((0..self.depth(found.at)).map(|_| "(inner)".to_owned()));
        if segments[0] == "self" {
            segments = &segments[1..];
        } else if segments[0] == "super" {
            while segments.first().is_some_and(|first| first == "super") {
                module.pop();
                segments = &segments[1..];
            }
        } else {
            return None;
        }
        module.extend(segments.iter().cloned());
        module.retain(|segment| segment != "(inner)");
        Some(module)
    }
}

/// The text with comments, texts and characters as spaces. Lines stay where they are.
fn masked(text: &str) -> String {
    const COMMENT: &str = r"//[^\n]*|/\*.*?\*/";
    const RAW: &str = r###"\bb?r"[^"]*"|\bb?r#".*?"#|\bb?r##".*?"##"###;
    const QUOTED: &str = r#""(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^\\'])'"#;
    static NO_CODE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(&format!("(?s){COMMENT}|{RAW}|{QUOTED}")).unwrap());
    let blank = |found: &Captures<'_>| -> String {
        let blank = |byte| if byte == b'\n' { '\n' } else { ' ' };
        found[0].bytes().map(blank).collect()
    };
    NO_CODE.replace_all(text, blank).into_owned()
}

fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c| !is_word_char(c))
}

/// Where modules with a body begin and end.
fn inner_modules(code: &str) -> Vec<(usize, usize)> {
    static MODULE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\bmod \w+ \{").unwrap());
    let found = MODULE.find_iter(code);
    let blocks = found.map(|found| (found.start(), found.end() + block(&code[found.end()..])));
    blocks.collect()
}

/// The length of the rest of a block.
fn block(code: &str) -> usize {
    let mut depth = 1;
    let end = code.bytes().position(|byte| {
        depth += i32::from(byte == b'{') - i32::from(byte == b'}');
        depth == 0
    });
    end.map_or(code.len(), |end| end + 1)
}

fn paths(code: &str) -> Vec<Found> {
    static PATH: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\buse ([^;]*);|\b(?:crate|super|self)::[\w:]*").unwrap());
    let mut found = Vec::new();
    for captures in PATH.captures_iter(code) {
        let path = captures.get(0).unwrap();
        let (at, before) = (path.start(), &code[..path.start()]);
        if let Some(tree) = captures.get(1) {
            use_tree(tree.as_str(), &[], at, &mut found);
        } else if !before.ends_with("::") && !before.ends_with("in ") {
            let segments = path.as_str().trim_end_matches(':').split("::");
            let segments = segments.map(str::to_owned).collect();
            found.push(Found {
                segments,
                name: None,
                at,
            });
        }
    }
    found
}

/// The leaves of a use tree below a path.
fn use_tree(tree: &str, above: &[String], at: usize, found: &mut Vec<Found>) {
    let tree = tree.trim();
    let below = |path: &str| -> Vec<String> {
        let own = path.split("::").map(|own| own.trim().to_owned());
        let own = own.filter(|own| !own.is_empty());
        above.iter().cloned().chain(own).collect()
    };
    if let Some(open) = tree.find('{') {
        let above = below(&tree[..open]);
        let inside = &tree[open + 1..tree.rfind('}').unwrap()];
        let (mut depth, mut from) = (0, 0);
        for (end, byte) in inside.bytes().chain([b',']).enumerate() {
            depth += i32::from(byte == b'{') - i32::from(byte == b'}');
            if byte == b',' && depth == 0 {
                if !inside[from..end].trim().is_empty() {
                    use_tree(&inside[from..end], &above, at, found);
                }
                from = end + 1;
            }
        }
        return;
    }
    let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
    let mut segments = below(path);
    if segments.last().is_some_and(|last| last == "self") {
        segments.pop();
    }
    let own = segments.last().map(String::as_str);
    let name = Some(alias.trim()).filter(|alias| !alias.is_empty()).or(own);
    let name = name.map(str::to_owned);
    found.push(Found { segments, name, at });
}

/// All files, and what each of their modules defines.
struct Crate {
    files: Vec<File>,
    by_module: BTreeMap<Module, usize>,
    items: BTreeMap<Module, BTreeSet<String>>,
}

impl Crate {
    fn read() -> Self {
        let mut files = read_all();
        files.retain(|file| !matches!(&*file.name, "lib.rs" | "main.rs"));
        let modules = || files.iter().map(|file| file.module.clone());
        let items = files.iter().map(|file| items(&file.code));
        Self {
            by_module: modules().zip(0..).collect(),
            items: modules().zip(items).collect(),
            files,
        }
    }

    /// The file that defines what `path` names.
    fn target(&self, path: &[String], hops: u8) -> Option<usize> {
        let mut lengths = (0..=path.len()).rev();
        let length = lengths.find(|length| self.by_module.contains_key(&path[..*length]))?;
        let file = self.by_module[&path[..length]];
        let Some(name) = path.get(length) else {
            return Some(file);
        };
        if hops == 0 || self.items[&path[..length]].contains(name) {
            return Some(file);
        }
        // It may be shown here and defined elsewhere.
        let file_of = &self.files[file];
        let mut paths = file_of.paths.iter();
        let shown = paths.find(|found| found.name.as_deref() == Some(name));
        let further = shown.and_then(|found| file_of.absolute(found));
        let further = further.filter(|further| further != path);
        further.map_or(Some(file), |further| {
            self.target(&further, hops - 1).or(Some(file))
        })
    }

    /// Imports between files: from, to, and the position. `with_tests` includes those of tests.
    fn arrows(&self, with_tests: bool) -> Vec<(usize, usize, usize)> {
        let mut arrows = Vec::new();
        for (from, file) in self.files.iter().enumerate() {
            for found in &file.paths {
                if file.is_test(found.at) && !with_tests {
                    continue;
                }
                let is_shown = file.code[..found.at].ends_with("pub ");
                let target = file.absolute(found).and_then(|path| self.target(&path, 8));
                if let Some(to) = target.filter(|to| *to != from && !is_shown) {
                    arrows.push((from, to, found.at));
                }
            }
        }
        arrows
    }
}

/// Names that are defined at the top of a file.
fn items(code: &str) -> BTreeSet<String> {
    const KINDS: &str = " struct enum trait type fn const static mod ";
    let lines = code.lines().filter(|line| !line.starts_with([' ', '}']));
    let names = lines.filter_map(|line| {
        let mut words = words(line);
        words.find(|word| KINDS.contains(&format!(" {word} ")))?;
        let name = words.find(|word| !word.is_empty() && *word != "fn")?;
        Some(name.to_owned())
    });
    names.collect()
}

/// The folders of `src/` in the order of `lib.rs`, the lowest first.
fn floors() -> Vec<String> {
    let text = read("src/lib.rs");
    let modules = text.lines().filter_map(|line| line.strip_prefix("mod "));
    let floors = modules.filter_map(|line| line.strip_suffix(" {"));
    floors.map(str::to_owned).collect()
}

#[test]
fn files_import_from_their_own_folder_and_from_those_below() {
    let floors = floors();
    assert!(floors.len() > 5, "lib.rs has others: {floors:?}");
    let floor = |file: &File| {
        let floor = floors.iter().position(|floor| *floor == file.module[0]);
        floor.unwrap_or_else(|| panic!("lib.rs does not list the folder of {}", file.name))
    };
    let all = Crate::read();
    let arrows = all.arrows(true);
    assert!(arrows.len() > 500, "{} imports", arrows.len());
    let mut upward = Vec::new();
    for (from, to, at) in arrows {
        let (from, to) = (&all.files[from], &all.files[to]);
        if floor(from) < floor(to) {
            upward.push(format!("{} imports {}", from.at(at), to.name));
        }
    }
    none_of(&upward, "imports run upwards:");
}

#[test]
fn no_two_files_need_each_other() {
    let all = Crate::read();
    let mut next = vec![BTreeSet::new(); all.files.len()];
    for (from, to, _) in all.arrows(false) {
        next[from].insert(to);
    }
    // Leaves out files that need none of the others or that none needs, until only circles are left.
    let mut left: BTreeSet<usize> = (0..next.len()).collect();
    loop {
        let is_within = |file: &usize| {
            let is_needed = left.iter().any(|other| next[*other].contains(file));
            is_needed && !next[*file].is_disjoint(&left)
        };
        let within: BTreeSet<_> = left.iter().copied().filter(is_within).collect();
        if within.len() == left.len() {
            break;
        }
        left = within;
    }
    let names: Vec<_> = left.iter().map(|file| &*all.files[*file].name).collect();
    assert!(names.is_empty(), "files need each other: {names:?}");
}

/// Libraries that few folders may name, and those folders.
const LIBRARIES: [(&str, &str); 35] = [
    ("arc_swap", "service"),
    ("axum", "observe server service"),
    ("base64", "config"),
    ("bb8_redis", "store"),
    ("clap", "settings"),
    ("clap_complete", "settings"),
    ("clap_mangen", "settings"),
    ("fastrand", "foundation"),
    ("foldhash", "config core store"),
    ("hashbrown", "store"),
    ("hyper", "cli net server service"),
    ("hyper_util", "net server"),
    ("itoa", "store"),
    ("jiff", "config core observe"),
    ("nix", "config server"),
    ("notify", "control"),
    ("opentelemetry", "observe"),
    ("opentelemetry_http", "observe"),
    ("opentelemetry_otlp", "observe"),
    ("opentelemetry_sdk", "observe"),
    ("percent_encoding", "cli service settings store"),
    ("prost", "config service"),
    ("prost_reflect", "service"),
    ("prost_types", "config control service"),
    ("regex", "cli observe"),
    ("serde_json", "cli config foundation server service"),
    ("serde_yaml", "cli config observe"),
    ("sha2", "config core"),
    ("socket2", "net"),
    ("strsim", "config core"),
    ("tokio_rustls", "net"),
    ("tonic", "cli config control net observe server service"),
    ("tracing_appender", "server"),
    ("tracing_subscriber", "server"),
    ("webpki_roots", "net"),
];

#[test]
fn libraries_are_named_in_their_folders_only() {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut astray = Vec::new();
    let files = read_all();
    for file in &files {
        let Some(folder) = file.module.first() else {
            continue;
        };
        for (library, folders) in LIBRARIES {
            let path = format!("{library}::");
            let mut named = file.code.match_indices(&path);
            let is_whole = |at: usize| !file.code[..at].ends_with(|c| is_word_char(c) || c == ':');
            let Some((at, _)) = named.find(|(at, _)| is_whole(*at)) else {
                continue;
            };
            found.entry(library).or_default().insert(folder);
            if !folders.split(' ').any(|one| one == folder) && !file.is_test(at) {
                astray.push(format!("{} names {library}", file.at(at)));
            }
        }
    }
    none_of(&astray, "");
    for (library, folders) in LIBRARIES {
        let found = found.get(library).cloned().unwrap_or_default();
        for folder in folders.split(' ') {
            assert!(
                found.contains(folder),
                "{library} is not in {folder} any more"
            );
        }
    }
}

/// The files that write to standard error and standard output: both can fail, and the macros of the standard library panic
/// then.
const STREAM_FILES: [&str; 2] = ["cli/print.rs", "observe/log_lines.rs"];

#[test]
fn standard_streams_are_written_where_their_failure_is_expected() {
    const NAMES: &str = "stderr() stdout() print! println! eprint! eprintln! dbg!";
    let mut found = BTreeSet::new();
    let mut astray = Vec::new();
    for file in read_all() {
        for name in NAMES.split(' ') {
            for (at, _) in file.code.match_indices(name) {
                let is_part = file.code[..at].ends_with(is_word_char);
                if is_part || file.is_test(at) {
                    continue;
                }
                if STREAM_FILES.contains(&&*file.name) {
                    found.insert(file.name.clone());
                } else {
                    astray.push(format!("{} has {name}", file.at(at)));
                }
            }
        }
    }
    none_of(&astray, "");
    assert_eq!(found.len(), STREAM_FILES.len(), "{found:?}");
}

/// Words of our own that `docs/glossary.md` has a word of the field for, as parts of identifiers.
const OWN_WORDS: &str = "arrivals desk detour door doors guess guide handed_back house lane lanes lendable lent made_up \
    manner mended meter meters news noted partings quick rare refused_fast seat seats somebody terms told trouble \
    under_way verdict voice went";

/// Words that comments and texts do not use either.
const NOT_SAID: &str = "desk detour door doors everybody guide house lane lanes lent manner mended meters news nobody \
    seat seats somebody told trouble verdict voice";

#[test]
fn identifiers_comments_and_texts_are_in_words_of_the_field() {
    let own_words = OWN_WORDS.split_whitespace();
    let own_words: Vec<_> = own_words.map(|own| format!("_{own}_")).collect();
    let not_said: Vec<_> = NOT_SAID.split_whitespace().collect();
    let mut found = Vec::new();
    for file in read_all() {
        let mut from = 0;
        for (at, c) in file.text.char_indices().chain([(file.text.len(), ' ')]) {
            if c.is_alphanumeric() || c == '_' {
                continue;
            }
            let word = &file.text[from..at];
            // A comment or a text is spaces in the masked code, and names of tests are sentences.
            let is_found = match file.code.as_bytes().get(from) {
                Some(b' ') => not_said.contains(&&*word.to_ascii_lowercase()),
                _ if word.matches('_').count() > 3 => false,
                _ => {
                    let snake = format!("_{}_", snake(word));
                    own_words.iter().any(|own| snake.contains(own))
                }
            };
            if is_found {
                found.push(format!("{} says `{word}`", file.at(from)));
            }
            from = at + c.len_utf8();
        }
    }
    none_of(&found, "");
}

#[test]
fn sentences_of_comments_have_a_subject() {
    let mut found = Vec::new();
    let folders = ["src", "tests", "benches", "fuzz/targets"];
    let files = folders.map(|folder| sources(&root().join(folder)));
    for file in files.concat() {
        let text = fs::read_to_string(&file).unwrap();
        for (line, text) in (1..).zip(text.lines()) {
            let Some(comment) = text.trim_start().strip_prefix("//") else {
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!', ' ']);
            let heads = ["What ", "Who ", "Whoever ", "The same "];
            if heads.iter().any(|head| comment.starts_with(head)) && !comment.contains('?') {
                found.push(format!("{}:{line} begins with {comment}", file.display()));
            }
        }
    }
    none_of(&found, "");
}

/// `PendingReply` → `pending_reply`.
fn snake(word: &str) -> String {
    let mut text = String::new();
    let mut was_lower = false;
    for c in word.chars() {
        if c.is_ascii_uppercase() && was_lower {
            text.push('_');
        }
        was_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        text.push(c.to_ascii_lowercase());
    }
    text
}

#[test]
fn type_names_mean_one_thing() {
    // Each part of the program has some of its own.
    const SHARED: [&str; 1] = ["Options"];
    let mut homes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in read_all() {
        let mut next = 0;
        for line in file.code.lines() {
            let at = next;
            next += line.len() + 1;
            if file.is_test(at) || line.starts_with(' ') {
                continue;
            }
            let mut words = words(line);
            words.find(|word| matches!(*word, "struct" | "enum" | "trait" | "type"));
            if let Some(name) = words.next() {
                let homes = homes.entry(name.to_owned()).or_default();
                homes.push(file.name.clone());
            }
        }
    }
    homes.retain(|name, files| files.len() > 1 && !SHARED.contains(&&**name));
    assert!(homes.is_empty(), "{homes:#?}");
}

/// The most of some figures that `make sizes` prints, so that what has gone does not come back. A commit that takes out
/// lowers them.
const CEILINGS: [(&str, usize); 4] = [
    ("lines of code in src", 37_949),
    ("files in src", 265),
    ("flags of serve", 114),
    ("files in tests and fuzz", 218),
];

#[test]
fn nothing_grows_above_its_ceiling() {
    let script = root().join("tests/tools/sizes");
    let output = Command::new("python3").arg(script).output();
    let output = output.expect("python3 is installed");
    assert!(output.status.success(), "{output:?}");
    let figures = String::from_utf8(output.stdout).unwrap();
    let lines = figures.lines().map(str::trim);
    let figures = lines.map(|line| line.split_once(' ').unwrap());
    let figures = figures.map(|(figure, name)| (name, figure.replace(',', "").parse().unwrap()));
    let figures: BTreeMap<&str, usize> = figures.collect();
    let above = CEILINGS.iter().filter(|(name, most)| figures[name] > *most);
    let above =
        above.map(|(name, most)| format!("{} {name}, and the ceiling is {most}", figures[name]));
    let about = "Take something out. A ceiling rises only in a commit of its own that says which user asked.";
    none_of(&above.collect::<Vec<_>>(), about);
}

/// Characters in a line. What is wider is cut off beside another file.
const COLUMNS: usize = 120;

#[test]
fn lines_fit_beside_each_other() {
    let mut wide = Vec::new();
    for file in read_all() {
        let mut at = 0;
        for (line, text) in file.text.lines().enumerate() {
            let columns = text.chars().count();
            // The texts that tests read are as they would be sent.
            if columns > COLUMNS && !file.is_test(at) {
                wide.push(format!("{}:{} has {columns} columns", file.name, line + 1));
            }
            at += text.len() + 1;
        }
    }
    none_of(&wide, "");
}

/// The compiler finds names that are `pub` without being exported: `unreachable_pub`.
#[test]
fn every_exported_name_has_a_user() {
    let text = read("src/lib.rs");
    let mut exported = Vec::new();
    for tree in masked(&text).split("\npub use ").skip(1) {
        use_tree(&tree[..tree.find(';').unwrap()], &[], 0, &mut exported);
    }
    assert!(exported.len() > 50, "{} names", exported.len());

    let mut paths = vec![root().join("src/main.rs")];
    for folder in ["benches", "tests/load", "tests/it"] {
        paths.extend(sources(&root().join(folder)));
    }
    let texts = paths.iter().map(|path| fs::read_to_string(path).unwrap());
    let users: Vec<_> = texts.map(|text| masked(&text)).collect();
    let used: BTreeSet<_> = users.iter().flat_map(|code| words(code)).collect();
    let names = exported.iter().filter_map(|found| found.name.as_deref());
    let unused: Vec<_> = names.filter(|name| !used.contains(name)).collect();
    assert!(unused.is_empty(), "nothing uses {unused:?}");
}

#[test]
fn every_key_of_rules_is_read_and_in_the_example_and_in_the_schema() {
    let [table, example, schema, reader] = [
        "src/config/keys.rs",
        "config/full.yaml",
        "proto/ratelimit/config/ratelimit/v3/rls_conf.proto",
        "src/config/yaml.rs",
    ]
    .map(read);
    let (_, rows) = table.split_once("const KEYS").expect("a table");
    let (rows, _) = rows.split_once("\n];").unwrap();
    // Each row begins with the name of the key and its levels.
    let rows = rows.split("key(\"").skip(1).map(|row| {
        let (name, row) = row.split_once("\", &[").unwrap();
        (name, row.split_once(']').unwrap().0)
    });
    let rows: Vec<_> = rows.collect();
    let keys: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).collect();
    assert!(keys.len() > 20, "few keys were found: {keys:?}");
    let is_shown = |key: &str, behind: &str| {
        example.match_indices(key).any(|(at, _)| {
            let after = &example[at + key.len()..];
            !example[..at].ends_with(is_word_char) && after.starts_with(behind)
        })
    };
    // Not all days and types of bodies have to be shown, and the first word of a list is the default.
    let has_few = |list: &&str| !list.contains("monday") && !list.contains("text/plain");
    let lists = table.split(".words(&[").skip(1).filter(has_few);
    let words = lists.flat_map(|list| list.split("])").next().unwrap().split(", ").skip(1));
    let words = words.map(|word| (word.trim_matches('"'), ""));
    let all = keys.iter().map(|key| (*key, ":")).chain(words);
    for (word, behind) in all {
        assert!(
            is_shown(word, behind),
            "config/full.yaml does not show {word}"
        );
    }
    for key in &keys {
        let is_read = reader.contains(&format!("\"{key}\""));
        assert!(is_read, "src/config/yaml.rs does not read {key}");
    }
    // The fields of each message are the keys of one level.
    for (level, message) in [
        ("File", "RateLimitConfig"),
        ("Descriptor", "RateLimitDescriptor"),
        ("RateLimit", "RateLimitPolicy"),
        ("Replaces", "RateLimitReplace"),
        ("Starts", "Starts"),
        ("Refusal", "Refusal"),
    ] {
        let start = format!("message {message} {{");
        let (_, body) = schema.split_once(&start).expect(message);
        let (body, _) = body.split_once('}').unwrap();
        // A message within is no field.
        let body = body.split("message ").next().unwrap();
        let lines = body.lines().map(str::trim_start);
        let lines = lines.filter(|line| !line.starts_with("//"));
        let fields = lines.filter_map(|line| line.split_once(" = ")?.0.split_whitespace().last());
        // The name of a resource stands for the name of a file.
        let is_key = |field: &&str| (message, *field) != ("RateLimitConfig", "name");
        let fields: BTreeSet<_> = fields.filter(is_key).collect();
        let has_it = |levels: &str| levels.split(", ").any(|of| of == level);
        let keys = rows.iter().filter(|(_, levels)| has_it(levels));
        let keys: BTreeSet<_> = keys.map(|(name, _)| *name).collect();
        assert_eq!(keys, fields, "keys.rs and {message} of rls_conf.proto");
    }
}

/// The tests above look at nothing if this reads nothing.
#[test]
fn sources_are_read_as_the_compiler_reads_them() {
    let text = "use crate::{a::{B, c::{self, D as E}}, f};\n// crate::no::No\nlet x = (\"crate::no\", 'x', '\\'', r#\"\"crate::no\"#);\nfn f<'a>(_: &'a super::G) {}\n";
    let file = File::new("one/two.rs".to_owned(), text.to_owned());
    let paths = file.paths.iter().map(|path| path.segments.join("::"));
    let found: BTreeSet<_> = paths.collect();
    let found = found.into_iter().collect::<Vec<_>>().join(" ");
    let all = "crate::a::B crate::a::c crate::a::c::D crate::f super::G";
    assert_eq!(found, all);
    let mut paths = file.paths.iter();
    let super_path = paths.find(|path| path.segments[0] == "super").unwrap();
    assert_eq!(file.absolute(super_path).unwrap(), ["one", "G"]);
    assert_eq!(snake("PendingReply"), "pending_reply");
}
