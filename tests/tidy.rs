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
};

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

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

fn read_all() -> Vec<File> {
    let mut found = Vec::new();
    let src = root().join("src");
    sources(&src, &mut found);
    let files = found.iter().map(|path| {
        let name = path.strip_prefix(&src).unwrap().display().to_string();
        File::new(name, fs::read_to_string(path).unwrap())
    });
    files.collect()
}

impl File {
    fn new(name: String, text: String) -> Self {
        let stem = name.strip_suffix(".rs").unwrap();
        let module = match stem {
            "lib" | "main" => Vec::new(),
            stem => stem.split('/').map(str::to_owned).collect(),
        };
        let code = masked(&text);
        let inner = inner_modules(&code);
        let paths = paths(&code);
        Self {
            name,
            module,
            text,
            code,
            paths,
            inner,
        }
    }

    fn line(&self, at: usize) -> usize {
        self.text[..at].matches('\n').count() + 1
    }

    /// Whether a test is what stands there.
    fn is_test(&self, at: usize) -> bool {
        self.name.ends_with("/tests.rs")
            || self
                .inner
                .iter()
                .any(|(from, to)| (*from..*to).contains(&at))
    }

    /// The path from the root of the crate, unless it is that of another crate.
    fn absolute(&self, found: &Found) -> Option<Module> {
        let depth = self
            .inner
            .iter()
            .filter(|(from, to)| (*from..*to).contains(&found.at))
            .count();
        let mut segments = &found.segments[..];
        if segments[0] == "crate" {
            return Some(segments[1..].to_vec());
        }
        let mut module = self.module.clone();
        module.extend((0..depth).map(|_| "(inner)".to_owned()));
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

/// The text with all that is no code as spaces. Lines stay where they are.
fn masked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        let is_word_before = at > 0 && is_word(bytes[at - 1]);
        let end = if rest.starts_with(b"//") {
            at + rest
                .iter()
                .position(|byte| *byte == b'\n')
                .unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            at + text[at..].find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_string(rest).filter(|_| !is_word_before) {
            let close = format!("\"{}", "#".repeat(hashes));
            let open = rest.iter().position(|byte| *byte == b'"').unwrap() + 1;
            let length = find(&rest[open..], close.as_bytes()).unwrap();
            at + open + length + close.len()
        } else if rest[0] == b'"' {
            let mut end = at + 1;
            while bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            end + 1
        } else if rest[0] == b'\'' {
            at + character(&text[at..])
        } else {
            at += 1;
            continue;
        };
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // Other scripts stand in comments and texts only.
    String::from_utf8(code).expect("what is not ASCII was in a comment or a text")
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// The number of `#` of a raw string that begins here.
fn raw_string(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.strip_prefix(b"b").unwrap_or(bytes);
    let bytes = bytes.strip_prefix(b"r")?;
    let hashes = bytes.iter().take_while(|byte| **byte == b'#').count();
    (bytes.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// The length of a character between quotes, or 1 for a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    let Some((_, first)) = chars.next() else {
        return 1;
    };
    if first == '\\' {
        return text[2..]
            .find('\'')
            .map_or(1, |end| if end == 0 { 4 } else { end + 3 });
    }
    match chars.next() {
        Some((at, '\'')) => at + 1,
        _ => 1,
    }
}

/// Where modules with a body begin and end.
fn inner_modules(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = code[from..].find("mod ") {
        let at = from + at;
        from = at + 4;
        let name = code[from..].trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if (at == 0 || !is_word(code.as_bytes()[at - 1])) && name.starts_with(" {") {
            let open = code.len() - name.len() + 1;
            found.push((at, open + block(&code[open..])));
        }
    }
    found
}

/// The length of a block that begins with a brace.
fn block(code: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

fn paths(code: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        let begins = at == 0 || !is_word(code.as_bytes()[at - 1]);
        if begins && rest.starts_with("use ") {
            let end = rest.find(';').unwrap();
            use_tree(&rest[4..end], at, &mut found);
            at += end;
            continue;
        }
        let heads = ["crate::", "super::", "self::"];
        let is_path = heads.iter().any(|head| rest.starts_with(head));
        if begins && is_path && !code[..at].ends_with("::") && !code[..at].ends_with("in ") {
            let length = rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
                .unwrap_or(rest.len());
            let segments = rest[..length].trim_end_matches(':').split("::");
            found.push(Found {
                segments: segments.map(str::to_owned).collect(),
                name: None,
                at,
            });
            at += length;
            continue;
        }
        at += 1;
    }
    found
}

/// The leaves of a use tree.
fn use_tree(tree: &str, at: usize, found: &mut Vec<Found>) {
    fn walk(tree: &str, above: &[String], at: usize, found: &mut Vec<Found>) {
        let tree = tree.trim();
        if let Some(open) = tree.find('{') {
            let mut above = above.to_vec();
            let head = tree[..open].split("::").map(str::trim);
            above.extend(head.filter(|head| !head.is_empty()).map(str::to_owned));
            let inside = &tree[open + 1..tree.rfind('}').unwrap()];
            let (mut depth, mut from) = (0, 0);
            for (end, byte) in inside.bytes().chain([b',']).enumerate() {
                match byte {
                    b'{' => depth += 1,
                    b'}' => depth -= 1,
                    b',' if depth == 0 => {
                        if !inside[from..end].trim().is_empty() {
                            walk(&inside[from..end], &above, at, found);
                        }
                        from = end + 1;
                    }
                    _ => {}
                }
            }
            return;
        }
        let (path, alias) = match tree.split_once(" as ") {
            Some((path, alias)) => (path, Some(alias.trim())),
            None => (tree, None),
        };
        let mut segments = above.to_vec();
        let own = path.split("::").map(str::trim);
        segments.extend(own.filter(|own| !own.is_empty()).map(str::to_owned));
        if segments.last().is_some_and(|last| last == "self") {
            segments.pop();
        }
        let name = alias
            .or(segments.last().map(String::as_str))
            .map(str::to_owned);
        found.push(Found { segments, name, at });
    }
    walk(tree, &[], at, found);
}

/// All files, and what each of their modules defines.
struct Crate {
    files: Vec<File>,
    by_module: BTreeMap<Module, usize>,
    items: BTreeMap<Module, BTreeSet<String>>,
}

impl Crate {
    fn read() -> Self {
        let files: Vec<_> = read_all()
            .into_iter()
            .filter(|file| !matches!(&*file.name, "lib.rs" | "main.rs"))
            .collect();
        let by_module = files
            .iter()
            .enumerate()
            .map(|(index, file)| (file.module.clone(), index))
            .collect();
        let items = files
            .iter()
            .map(|file| (file.module.clone(), items(&file.code)))
            .collect();
        Self {
            files,
            by_module,
            items,
        }
    }

    /// The file that defines what `path` names.
    fn target(&self, path: &[String], hops: u8) -> Option<usize> {
        let length = (0..=path.len())
            .rev()
            .find(|length| self.by_module.contains_key(&path[..*length]))?;
        let file = self.by_module[&path[..length]];
        let Some(name) = path.get(length) else {
            return Some(file);
        };
        if hops == 0 || self.items[&path[..length]].contains(name) {
            return Some(file);
        }
        // It may be shown here and defined elsewhere.
        let file_of = &self.files[file];
        let shown = file_of
            .paths
            .iter()
            .find(|found| found.name.as_deref() == Some(name));
        let further = shown
            .and_then(|found| file_of.absolute(found))
            .filter(|further| further != path)
            .and_then(|further| self.target(&further, hops - 1));
        further.or(Some(file))
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
    const KINDS: [&str; 8] = [
        "struct", "enum", "trait", "type", "fn", "const", "static", "mod",
    ];
    let lines = code.lines().filter(|line| !line.starts_with([' ', '}']));
    let names = lines.filter_map(|line| {
        let mut words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        words.find(|word| KINDS.contains(word))?;
        words
            .find(|word| !word.is_empty() && *word != "fn")
            .map(str::to_owned)
    });
    names.collect()
}

/// The folders of `src/` in the order of `lib.rs`, the lowest first.
fn floors() -> Vec<String> {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let lines = text.lines();
    let names = lines.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(" {"));
    names.map(str::to_owned).collect()
}

#[test]
fn files_import_from_their_own_folder_and_from_those_below() {
    let floors = floors();
    assert!(
        floors.len() > 5,
        "lib.rs lists its folders otherwise: {floors:?}"
    );
    let floor = |file: &File| {
        let floor = floors.iter().position(|floor| *floor == file.module[0]);
        floor.unwrap_or_else(|| panic!("lib.rs does not list the folder of {}", file.name))
    };
    let all = Crate::read();
    let arrows = all.arrows(true);
    assert!(
        arrows.len() > 500,
        "few imports were found: {}",
        arrows.len()
    );
    let upward: Vec<_> = arrows
        .into_iter()
        .map(|(from, to, at)| (&all.files[from], &all.files[to], at))
        .filter(|(from, to, _)| floor(from) < floor(to))
        .map(|(from, to, at)| format!("{}:{} imports {}", from.name, from.line(at), to.name))
        .collect();
    assert!(
        upward.is_empty(),
        "imports run upwards:\n{}",
        upward.join("\n")
    );
}

#[test]
fn no_two_files_need_each_other() {
    let all = Crate::read();
    let mut next = vec![BTreeSet::new(); all.files.len()];
    for (from, to, _) in all.arrows(false) {
        next[from].insert(to);
    }
    // Removes files that need none of the others, until only circles are left, and the files that lead to them.
    let mut left: BTreeSet<usize> = (0..next.len()).collect();
    loop {
        let ends: Vec<usize> = left
            .iter()
            .copied()
            .filter(|file| next[*file].is_disjoint(&left))
            .collect();
        if ends.is_empty() {
            break;
        }
        left.retain(|file| !ends.contains(file));
    }
    // Removes the files that only lead to a circle.
    loop {
        let begins: Vec<usize> = left
            .iter()
            .copied()
            .filter(|file| !left.iter().any(|other| next[*other].contains(file)))
            .collect();
        if begins.is_empty() {
            break;
        }
        left.retain(|file| !begins.contains(file));
    }
    let names: Vec<_> = left.iter().map(|file| &*all.files[*file].name).collect();
    assert!(names.is_empty(), "files need each other: {names:?}");
}

/// Libraries that few folders may name, and those folders.
const LIBRARIES: [(&str, &[&str]); 35] = [
    ("arc_swap", &["service"]),
    ("axum", &["observe", "server", "service"]),
    ("base64", &["config"]),
    ("bb8_redis", &["store"]),
    ("clap", &["settings"]),
    ("clap_complete", &["settings"]),
    ("clap_mangen", &["settings"]),
    ("fastrand", &["foundation"]),
    ("foldhash", &["config", "core", "store"]),
    ("hashbrown", &["store"]),
    ("hyper", &["cli", "net", "server", "service"]),
    ("hyper_util", &["net", "server"]),
    ("itoa", &["store"]),
    ("jiff", &["config", "core", "observe"]),
    ("nix", &["config", "server"]),
    ("notify", &["control"]),
    ("opentelemetry", &["observe"]),
    ("opentelemetry_http", &["observe"]),
    ("opentelemetry_otlp", &["observe"]),
    ("opentelemetry_sdk", &["observe"]),
    ("percent_encoding", &["cli", "service", "settings", "store"]),
    ("prost", &["config", "service"]),
    ("prost_reflect", &["service"]),
    ("prost_types", &["config", "control", "service"]),
    ("regex", &["cli", "observe"]),
    (
        "serde_json",
        &["cli", "config", "foundation", "server", "service"],
    ),
    ("serde_yaml", &["cli", "config", "observe"]),
    ("sha2", &["config", "core"]),
    ("socket2", &["net"]),
    ("strsim", &["config", "core"]),
    ("tokio_rustls", &["net"]),
    (
        "tonic",
        &[
            "cli", "config", "control", "net", "observe", "server", "service",
        ],
    ),
    ("tracing_appender", &["server"]),
    ("tracing_subscriber", &["server"]),
    ("webpki_roots", &["net"]),
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
            let named = file.code.match_indices(&path).find(|(at, _)| {
                let before = &file.code[..*at];
                !before.ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
            });
            let Some((at, _)) = named else { continue };
            found.entry(library).or_default().insert(folder);
            if !folders.contains(&&**folder) && !file.is_test(at) {
                astray.push(format!("{}:{} names {library}", file.name, file.line(at)));
            }
        }
    }
    assert!(astray.is_empty(), "{}", astray.join("\n"));
    for (library, folders) in LIBRARIES {
        let none = BTreeSet::new();
        let found = found.get(library).unwrap_or(&none);
        let gone: Vec<_> = folders
            .iter()
            .filter(|folder| !found.contains(**folder))
            .collect();
        assert!(
            gone.is_empty(),
            "{gone:?} need not be listed for {library} any more"
        );
    }
}

/// Types and statics that hold a time of day, which can step, and whether they outlive the request.
const TIMES_OF_DAY: [(&str, &str, Lives); 26] = [
    (
        "core/counter/increment.rs",
        "IncrementSpec",
        Lives::InRequest,
    ),
    ("core/lease/token.rs", "LeaseToken", Lives::Longer),
    ("core/lease/order.rs", "DescriptorLease", Lives::InRequest),
    ("core/lease/settlement.rs", "ChargedHits", Lives::InRequest),
    ("service/leases/waiting.rs", "WaitingCost", Lives::Longer),
    ("service/leases.rs", "LatestLeases", Lives::Longer),
    ("service/limiter/leasing.rs", "Settler", Lives::InRequest),
    ("store/returns.rs", "SentLease", Lives::InRequest),
    (
        "service/explain/writer.rs",
        "AccountBasis",
        Lives::InRequest,
    ),
    ("core/plan.rs", "PlanBuilder", Lives::InRequest),
    ("core/window.rs", "Window", Lives::InRequest),
    ("observe/decision_log.rs", "RequestTimes", Lives::InRequest),
    (
        "observe/metrics/config_stats.rs",
        "RefusedLoad",
        Lives::Longer,
    ),
    (
        "observe/metrics/config_stats.rs",
        "TakenLoad",
        Lives::Longer,
    ),
    (
        "service/admin/counters/look.rs",
        "CounterAnswer",
        Lives::InRequest,
    ),
    ("service/explain.rs", "LookedAt", Lives::InRequest),
    ("store/memory.rs", "Locked", Lives::InRequest),
    ("store/memory/shard.rs", "Counter", Lives::Longer),
    ("store/memory/shard.rs", "Shard", Lives::Longer),
    ("store/per_second.rs", "BothStores", Lives::InRequest),
    ("store/redis/clock.rs", "ProcessClock", Lives::Longer),
    ("store/redis/batch/pipeline.rs", "Group", Lives::InRequest),
    (
        "store/redis/batch/pipeline.rs",
        "PipelineBuilder",
        Lives::InRequest,
    ),
    (
        "store/redis/batch/queue.rs",
        "QueuedRequest",
        Lives::InRequest,
    ),
    ("store/redis/store.rs", "ClusterNodes", Lives::InRequest),
    ("store/replicas.rs", "Replicas", Lives::Longer),
];

/// How long a time of day is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lives {
    /// No longer than the request that it dates, or than one look of a task.
    InRequest,
    /// Longer, for a reason that `ARCHITECTURE.md` gives beside the file.
    Longer,
}

/// The names of structs, enums and statics of a file that hold a time of day outside of tests.
fn holders_of_time(file: &File) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for kind in ["struct ", "enum ", "static "] {
        for (at, _) in file.code.match_indices(kind) {
            if at > 0 && is_word(file.code.as_bytes()[at - 1]) || file.is_test(at) {
                continue;
            }
            let item = &file.code[at + kind.len()..];
            let is_lifetime = file.code[..at].trim_end().ends_with('&');
            if is_lifetime || !item.starts_with(|c: char| c.is_ascii_uppercase()) {
                continue;
            }
            let end = item.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let (name, item) = item.split_at(end.unwrap_or(item.len()));
            let open = item.find(['{', ';']).unwrap_or(item.len());
            let item = match item[open..].starts_with('{') {
                true => &item[..open + block(&item[open..])],
                false => &item[..open],
            };
            let types = match kind {
                // A variant may be named so.
                "enum " => &["Timestamp"][..],
                _ => &["Timestamp", "Window"],
            };
            // A function that reads a clock holds no time.
            let item = item.replace("fn() -> Timestamp", "");
            let mut words = item.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            if words.any(|word| types.contains(&word)) {
                found.insert(name);
            }
        }
    }
    found
}

/// A time of day that outlives a request is wrong after a step of the clock: what is remembered for a while is
/// remembered by `SteadyTime`.
#[test]
fn no_time_of_day_outlives_a_request_but_where_the_list_says_why() {
    let files = read_all();
    let found: BTreeSet<_> = files
        .iter()
        .flat_map(|file| {
            holders_of_time(file)
                .into_iter()
                .map(|name| (&*file.name, name))
        })
        .collect();
    let listed: BTreeSet<_> = TIMES_OF_DAY
        .iter()
        .map(|(file, name, _)| (*file, *name))
        .collect();
    let unlisted: Vec<_> = found.difference(&listed).collect();
    assert!(unlisted.is_empty(), "not listed: {unlisted:#?}");
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "listed in vain: {gone:#?}");
    let paper = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for (file, name, lives) in TIMES_OF_DAY {
        assert!(
            lives == Lives::InRequest || paper.contains(&format!("`{file}`")),
            "{name} in {file} outlives requests, and ARCHITECTURE.md does not say why"
        );
    }
}

/// The files that write to standard error and standard output: both can fail, and the macros of the standard library panic
/// then.
const STREAM_FILES: [&str; 2] = ["cli/print.rs", "observe/log_lines.rs"];

#[test]
fn standard_streams_are_written_where_their_failure_is_expected() {
    const NAMES: [&str; 7] = [
        "stderr()",
        "stdout()",
        "print!",
        "println!",
        "eprint!",
        "eprintln!",
        "dbg!",
    ];
    let mut found = BTreeSet::new();
    let mut astray = Vec::new();
    for file in read_all() {
        for name in NAMES {
            for (at, _) in file.code.match_indices(name) {
                let is_whole = at == 0 || !is_word(file.code.as_bytes()[at - 1]);
                if !is_whole || file.is_test(at) {
                    continue;
                }
                if STREAM_FILES.contains(&&*file.name) {
                    found.insert(file.name.clone());
                } else {
                    astray.push(format!("{}:{} has {name}", file.name, file.line(at)));
                }
            }
        }
    }
    assert!(astray.is_empty(), "{}", astray.join("\n"));
    assert_eq!(found.len(), STREAM_FILES.len(), "{found:?}");
}

/// Words of our own that `docs/glossary.md` has a word of the field for, as parts of identifiers.
const OWN_WORDS: [&str; 34] = [
    "arrivals",
    "desk",
    "detour",
    "door",
    "doors",
    "guess",
    "guide",
    "handed_back",
    "house",
    "lane",
    "lanes",
    "lendable",
    "lent",
    "made_up",
    "manner",
    "mended",
    "meter",
    "meters",
    "news",
    "noted",
    "partings",
    "quick",
    "rare",
    "refused_fast",
    "seat",
    "seats",
    "somebody",
    "terms",
    "told",
    "trouble",
    "under_way",
    "verdict",
    "voice",
    "went",
];

#[test]
fn identifiers_are_words_of_the_field() {
    let own_words = OWN_WORDS.map(|own| format!("_{own}_"));
    let mut found = Vec::new();
    for file in read_all() {
        let mut from = 0;
        for (at, byte) in file.code.bytes().chain([b' ']).enumerate() {
            if is_word(byte) {
                continue;
            }
            let word = &file.code[from..at];
            // Names of tests are sentences.
            if !word.is_empty() && word.matches('_').count() <= 3 {
                let snake = format!("_{}_", snake(word));
                if own_words.iter().any(|own| snake.contains(own)) {
                    found.push(format!("{}:{} `{word}`", file.name, file.line(from)));
                }
            }
            from = at + 1;
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Words that comments and texts do not use either.
const NOT_SAID: [&str; 22] = [
    "desk",
    "detour",
    "door",
    "doors",
    "everybody",
    "guide",
    "house",
    "lane",
    "lanes",
    "lent",
    "manner",
    "mended",
    "meters",
    "news",
    "nobody",
    "seat",
    "seats",
    "somebody",
    "told",
    "trouble",
    "verdict",
    "voice",
];

#[test]
fn comments_and_texts_are_in_words_of_the_field() {
    let mut found = Vec::new();
    for file in read_all() {
        let mut from = 0;
        for (at, c) in file.text.char_indices().chain([(file.text.len(), ' ')]) {
            if c.is_alphanumeric() || c == '_' {
                continue;
            }
            let word = file.text[from..at].to_ascii_lowercase();
            // A comment or a text is spaces in the masked code.
            let is_text = file.code.as_bytes().get(from) == Some(&b' ');
            if is_text && NOT_SAID.contains(&&*word) {
                found.push(format!("{}:{} says `{word}`", file.name, file.line(from)));
            }
            from = at + c.len_utf8();
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn sentences_of_comments_have_a_subject() {
    let mut found = Vec::new();
    let mut files = Vec::new();
    for folder in ["src", "tests", "benches", "fuzz/targets"] {
        sources(&root().join(folder), &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (line, text) in text.lines().enumerate() {
            let Some(comment) = text.trim_start().strip_prefix("//") else {
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!', ' ']);
            let heads = ["What ", "Who ", "Whoever ", "The same "];
            if heads.iter().any(|head| comment.starts_with(head)) && !comment.contains('?') {
                found.push(format!(
                    "{}:{} begins with {comment}",
                    file.display(),
                    line + 1
                ));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
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
            let words: Vec<_> = line
                .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                .collect();
            let kind = words
                .iter()
                .position(|word| matches!(*word, "struct" | "enum" | "trait" | "type"));
            if let Some(name) = kind.and_then(|kind| words.get(kind + 1)) {
                homes
                    .entry((*name).to_owned())
                    .or_default()
                    .push(file.name.clone());
            }
        }
    }
    let twice: Vec<_> = homes
        .iter()
        .filter(|(name, files)| files.len() > 1 && !SHARED.contains(&&***name))
        .collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

/// The most of some figures that `make sizes` prints, so that what has gone does not come back. A commit that takes out
/// lowers them.
const CEILINGS: [(&str, usize); 4] = [
    ("lines of code in src", 37_949),
    ("files in src", 265),
    ("flags of serve", 114),
    ("files in tests and fuzz", 233),
];

#[test]
fn nothing_grows_above_its_ceiling() {
    let script = root().join("tests/tools/sizes");
    let output = Command::new("python3").arg(script).output();
    let output = output.expect("python3 is installed");
    assert!(output.status.success(), "{output:?}");
    let figures = String::from_utf8(output.stdout).unwrap();
    let figures: BTreeMap<_, usize> = figures
        .lines()
        .map(|line| line.trim().split_once(' ').unwrap())
        .map(|(figure, name)| (name, figure.replace(',', "").parse().unwrap()))
        .collect();
    let above: Vec<_> = CEILINGS
        .iter()
        .filter(|(name, ceiling)| figures[name] > *ceiling)
        .map(|(name, ceiling)| format!("{} {name}, and the ceiling is {ceiling}", figures[name]))
        .collect();
    assert!(
        above.is_empty(),
        "{}\nTake something out. A ceiling rises only in a commit of its own that says which user asked.",
        above.join("\n")
    );
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
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// The compiler finds names that are `pub` without being exported: `unreachable_pub`.
#[test]
fn every_exported_name_has_a_user() {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let mut exported = Vec::new();
    for tree in masked(&text).split("\npub use ").skip(1) {
        use_tree(&tree[..tree.find(';').unwrap()], 0, &mut exported);
    }
    assert!(exported.len() > 50, "{} names", exported.len());

    let mut paths = vec![root().join("src/main.rs")];
    sources(&root().join("benches"), &mut paths);
    for folder in ["attack", "chaos", "histories", "it"] {
        sources(&root().join("tests").join(folder), &mut paths);
    }
    let users = paths
        .iter()
        .map(|path| masked(&fs::read_to_string(path).unwrap()));
    let words: BTreeSet<_> = users
        .flat_map(|code| {
            let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            words.map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let unused: Vec<_> = exported
        .iter()
        .filter_map(|found| found.name.as_ref())
        .filter(|name| !words.contains(*name))
        .collect();
    assert!(
        unused.is_empty(),
        "src/lib.rs exports, and nothing uses, {unused:?}"
    );
}

#[test]
fn every_key_of_rules_is_read_and_in_the_example_and_in_the_schema() {
    let table = fs::read_to_string(root().join("src/config/keys.rs")).unwrap();
    let example = fs::read_to_string(root().join("config/full.yaml")).unwrap();
    let schema = root().join("proto/ratelimit/config/ratelimit/v3/rls_conf.proto");
    let schema = fs::read_to_string(schema).unwrap();
    let (_, rows) = table
        .split_once("const KEYS")
        .expect("keys.rs has no table");
    let (rows, _) = rows.split_once("\n];").unwrap();
    // Each row begins with the name of the key and its levels.
    let rows: Vec<(&str, &str)> = rows
        .split("key(\"")
        .skip(1)
        .map(|row| {
            let (name, row) = row.split_once("\", &[").unwrap();
            (name, row.split_once(']').unwrap().0)
        })
        .collect();
    let keys: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).collect();
    assert!(keys.len() > 20, "few keys were found: {keys:?}");
    let is_word = |text: &str, key: &str, behind: &str| {
        text.match_indices(key).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let after = &text[at + key.len()..];
            before.is_none_or(|c| !(c.is_ascii_alphanumeric() || c == '_'))
                && after.starts_with(behind)
        })
    };
    let not_shown: Vec<_> = keys
        .iter()
        .filter(|key| !is_word(&example, key, ":"))
        .collect();
    assert!(
        not_shown.is_empty(),
        "config/full.yaml does not show {not_shown:?}"
    );
    let reader = fs::read_to_string(root().join("src/config/yaml.rs")).unwrap();
    let not_read: Vec<_> = keys
        .iter()
        .filter(|key| !reader.contains(&format!("\"{key}\"")))
        .collect();
    assert!(
        not_read.is_empty(),
        "src/config/yaml.rs does not read {not_read:?}"
    );
    // Not all days and types of bodies have to be shown.
    let has_few = |list: &&str| !list.contains("monday") && !list.contains("text/plain");
    for list in table.split(".words(&[").skip(1).filter(has_few) {
        let words = list.split("])").next().unwrap();
        // The first one is the default.
        let words = words.split(", ").skip(1).map(|word| word.trim_matches('"'));
        let not_shown: Vec<_> = words.filter(|word| !is_word(&example, word, "")).collect();
        assert!(
            not_shown.is_empty(),
            "config/full.yaml does not show {not_shown:?}"
        );
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
        let (_, body) = schema
            .split_once(&format!("message {message} {{"))
            .unwrap_or_else(|| panic!("rls_conf.proto has no {message}"));
        let (body, _) = body.split_once('}').unwrap();
        // A message within is no field.
        let body = body.split("message ").next().unwrap();
        let fields: BTreeSet<&str> = body
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .filter_map(|line| line.split_once(" = ")?.0.split_whitespace().last())
            // The name of a resource, which stands for the name of a file.
            .filter(|field| (message, *field) != ("RateLimitConfig", "name"))
            .collect();
        let keys: BTreeSet<&str> = rows
            .iter()
            .filter(|(_, levels)| levels.split(", ").any(|of| of == level))
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(keys, fields, "keys.rs and {message} of rls_conf.proto");
    }
}

/// The tests above look at nothing if this reads nothing.
#[test]
fn sources_are_read_as_the_compiler_reads_them() {
    let text = "use crate::{a::{B, c::{self, D as E}}, f};\n// crate::no::No\nlet x = (\"crate::no\", 'x', '\\'', r#\"\"crate::no\"#);\nfn f<'a>(_: &'a super::G) {}\n";
    let file = File::new("one/two.rs".to_owned(), text.to_owned());
    let mut found: Vec<_> = file
        .paths
        .iter()
        .map(|path| path.segments.join("::"))
        .collect();
    found.sort();
    let expected = [
        "crate::a::B",
        "crate::a::c",
        "crate::a::c::D",
        "crate::f",
        "super::G",
    ];
    assert_eq!(found, expected);
    let super_path = file
        .paths
        .iter()
        .find(|path| path.segments[0] == "super")
        .unwrap();
    assert_eq!(file.absolute(super_path).unwrap(), ["one", "G"]);
    assert_eq!(snake("PendingReply"), "pending_reply");
}
