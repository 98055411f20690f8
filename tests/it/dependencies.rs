//! Checks the dependencies and the images of others: no advisory is open against them, and the licences of dependencies
//! permit redistribution. Like `make deny`, without a network.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use semver::{Version, VersionReq};
use serde::Deserialize;
use tempfile::TempDir;

use crate::support::tool;

/// `advisories.yaml`.
#[derive(Deserialize)]
struct Snapshot {
    as_of: String,
    advisories: Vec<Advisory>,
    looked_up: HashSet<String>,
    images_as_of: String,
    /// By name, without a version.
    images: BTreeMap<String, Vec<Advisory>>,
}

#[derive(Deserialize)]
struct Advisory {
    id: String,
    /// Empty if the image has it.
    #[serde(default, rename = "crate")]
    name: String,
    patched: Vec<VersionReq>,
    unaffected: Vec<VersionReq>,
    about: String,
    /// Of an image: the text that names the versions.
    source: Option<String>,
}

impl Advisory {
    fn is_against(&self, name: &str, version: &Version) -> bool {
        let mut good = self.patched.iter().chain(&self.unaffected);
        self.name == name && !good.any(|good| good.matches(version))
    }
}

/// A crate as `cargo tree` shows it.
struct Package {
    name: String,
    version: Version,
    license: String,
    /// Whether it comes from the only registry; another source appears after the version.
    is_from_registry: bool,
}

impl Package {
    fn parse(line: &str) -> Self {
        let (package, license) = line.split_once('|').unwrap();
        let words: Vec<_> = package.split(' ').collect();
        Self {
            name: words[0].to_owned(),
            version: words[1].strip_prefix('v').unwrap().parse().unwrap(),
            license: license.trim_end_matches(" (*)").to_owned(),
            is_from_registry: matches!(words[2..], [] | ["(proc-macro)"]),
        }
    }
}

fn file(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(path).unwrap()
}

fn read(text: &str) -> Snapshot {
    serde_yaml::from_str(text).unwrap()
}

/// The advisories against crates and those against images.
fn snapshot() -> Snapshot {
    let mut all = read(&file("advisories.yaml"));
    for (image, advisories) in std::mem::take(&mut all.images) {
        for advisory in advisories {
            let source = advisory.source.as_deref();
            let has_source = source.is_some_and(|source| source.starts_with("https://"));
            assert!(has_source, "{}", advisory.id);
            let name = image.clone();
            all.advisories.push(Advisory { name, ..advisory });
        }
        all.looked_up.insert(image);
    }
    all
}

/// The images of `deploy/images.yaml`, with the versions in their tags.
fn images() -> Vec<(String, Version)> {
    let list: serde_json::Value = serde_yaml::from_str(&file("deploy/images.yaml")).unwrap();
    let images = list["images"].as_array().unwrap().iter();
    let images = images.map(|image| {
        let image = image["image"].as_str().unwrap();
        let (name, tag) = image.rsplit_once(':').unwrap();
        let version = tag.trim_start_matches(|c: char| !c.is_ascii_digit());
        let (version, _) = version.split_once('-').unwrap_or((version, ""));
        let version = version.parse();
        (name.to_owned(), version.expect("an exact version"))
    });
    images.collect()
}

/// The texts of a list in `deny.toml`, such as `allow`.
fn listed(name: &str) -> Vec<String> {
    let text = file("deny.toml");
    let (_, list) = text.split_once(&format!("\n{name} = [")).unwrap();
    let (list, _) = list.split_once("\n]").unwrap();
    let lines = list.lines().map(str::trim);
    let quoted = lines.filter_map(|line| line.strip_prefix('"')?.strip_suffix("\","));
    quoted.map(str::to_owned).collect()
}

/// The packages in Cargo.lock that the targets in `deny.toml` need.
fn dependencies() -> Vec<Package> {
    let targets = listed("targets");
    let output = Command::new(env!("CARGO"))
        .args("tree --locked --all-features --edges normal,build,dev".split(' '))
        .args(targets.iter().flat_map(|target| ["--target", target]))
        .args(["--prefix", "none", "--format", "{p}|{l}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    // An empty line stands between targets.
    let lines = said.lines().filter(|line| !line.is_empty());
    let packages = lines.map(Package::parse);
    let others = packages.filter(|package| package.name != env!("CARGO_PKG_NAME"));
    let found: Vec<_> = others.collect();
    assert!(found.len() > 100, "{said}");
    found
}

/// Every advisory against one of `packages`, and every package without a look-up.
fn complaints<'p>(packages: impl IntoIterator<Item = (&'p str, Version)>) -> Vec<String> {
    let snapshot = snapshot();
    let mut complaints = Vec::new();
    for (name, version) in packages {
        if !snapshot.looked_up.contains(name) {
            complaints.push(format!("{name}: not looked up"));
        }
        let advisories = snapshot.advisories.iter();
        for Advisory { id, about, .. } in advisories.filter(|one| one.is_against(name, &version)) {
            complaints.push(format!("{name} {version}: {id}, {about}"));
        }
    }
    complaints
}

#[test]
fn nothing_is_known_against_any_dependency_and_any_image_of_others() {
    let (dependencies, images) = (dependencies(), images());
    let dependencies = dependencies.iter().map(|one| (&one.name, &one.version));
    let images = images.iter().map(|(name, version)| (name, version));
    let all = dependencies.chain(images);
    let complaints = complaints(all.map(|(name, version)| (&**name, version.clone())));
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn weak_versions_and_unknown_names_are_found() {
    const REDIS: &str = "docker.io/library/redis";
    const FLOOD: &str = "RUSTSEC-2026-0258, memory under a flood of empty DATA";
    const CLONES: &str = "RUSTSEC-2025-0023, broadcast channels clone on several threads";
    const TLS: &str = "CVE-2026-81934, a use after free in TLS connections";
    const PAGES: [&str; 2] = [
        "CVE-2026-40179, names of metrics that run as scripts in the web page",
        "CVE-2026-42154, memory for a small remote read",
    ];
    const PROMETHEUS: &str = "docker.io/prom/prometheus";
    for (name, version, expected) in [
        ("h2", "0.4.16", &[][..]),
        ("h2", "0.4.15", &[FLOOD]),
        ("tokio", "1.43.1", &[]),
        ("tokio", "1.43.0", &[CLONES]),
        (REDIS, "7.2.16", &[]),
        (REDIS, "7.2.15", &[TLS]),
        (PROMETHEUS, "2.55.1", &PAGES),
    ] {
        let found = complaints([(name, version.parse().unwrap())]);
        let complaint = |one| format!("{name} {version}: {one}");
        assert_eq!(found, expected.iter().map(complaint).collect::<Vec<_>>());
    }
    for unknown in ["left-pad", "docker.io/library/left-pad"] {
        let found = complaints([(unknown, Version::new(1, 0, 0))]);
        assert_eq!(found, [format!("{unknown}: not looked up")]);
    }
    let old = complaints([(REDIS, Version::new(7, 2, 5))]);
    for id in ["CVE-2024-31228", "CVE-2025-49844", "CVE-2026-23479"] {
        assert!(old.iter().any(|line| line.contains(id)), "{id}: {old:#?}");
    }
}

#[test]
fn advisories_are_looked_up_for_every_target_that_is_shipped() {
    let looked_at = listed("targets");
    let project = file("deploy/packaging/project.py");
    let line = project.lines().find(|line| line.starts_with("TARGETS = "));
    let words = line.unwrap().split('"');
    let shipped: Vec<_> = words.filter(|word| word.contains("-linux-")).collect();
    assert_eq!(shipped.len(), 2, "{line:?}");
    for target in shipped {
        assert!(looked_at.iter().any(|one| one == target), "{target}");
    }
}

/// A clone of the advisory database with one advisory, which is older than the last commit.
fn database() -> TempDir {
    const ADVISORY: &str = "```toml\n[advisory]\nid = \"RUSTSEC-2026-9999\"\npackage = \"h2\"\n\
        date = \"2026-09-01\"\n\n[versions]\npatched = [\">= 99.0.0\"]\n```\n\n# A title\n";
    let clone = TempDir::new().unwrap();
    let folder = clone.path().join("crates/h2");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("RUSTSEC-2026-9999.md"), ADVISORY).unwrap();
    let git = |arguments: &[&str]| {
        let mut git = Command::new(tool("git"));
        git.current_dir(clone.path())
            .args(["-c", "user.name=t", "-c", "user.email=t@example.com"])
            .args(arguments)
            .env("GIT_COMMITTER_DATE", "2026-10-05T12:00:00Z")
            .stdin(Stdio::null());
        let output = git.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    git(&["init", "--quiet"]);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "x"]);
    clone
}

/// Its age would otherwise be that of the newest advisory, and grow although it was looked up again.
#[test]
fn the_snapshot_is_of_the_day_of_the_database() {
    let clone = database();
    let written = clone.path().join("advisories.yaml");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/advisories");
    let mut command = Command::new(tool("python3"));
    command.arg(program).arg(clone.path()).arg(&written);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let written = fs::read_to_string(written).unwrap();
    let snapshot = read(&written);
    assert_eq!(snapshot.as_of, "2026-10-05");
    let names: HashSet<_> = dependencies().into_iter().map(|one| one.name).collect();
    assert_eq!(snapshot.looked_up, names);
    let [advisory] = &snapshot.advisories[..] else {
        panic!("{written}");
    };
    assert_eq!(advisory.id, "RUSTSEC-2026-9999");
    assert!(advisory.is_against("h2", &Version::new(0, 4, 16)));
    // The part that is written by hand stays.
    let before = read(&file("advisories.yaml"));
    assert_eq!(snapshot.images_as_of, before.images_as_of);
    assert!(snapshot.images.keys().eq(before.images.keys()));
}

// --- licences ------------------------------------------------------------------------------------

/// The licences that `deny.toml` allows.
fn allowed() -> HashSet<String> {
    listed("allow").into_iter().collect()
}

/// Whether `allowed` covers the licence `expression` (SPDX).
fn is_allowed(expression: &str, allowed: &HashSet<String>) -> bool {
    // A slash is the notation before SPDX expressions.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let spaced = spaced.replace('/', " OR ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut words = &words[..];
    let is_so = any(&mut words, allowed);
    assert!(words.is_empty(), "{expression}");
    is_so
}

fn any(words: &mut &[&str], allowed: &HashSet<String>) -> bool {
    let mut is_so = all(words, allowed);
    while let ["OR", rest @ ..] = words {
        *words = rest;
        is_so |= all(words, allowed);
    }
    is_so
}

fn all(words: &mut &[&str], allowed: &HashSet<String>) -> bool {
    let mut is_so = one(words, allowed);
    while let ["AND", rest @ ..] = words {
        *words = rest;
        is_so &= one(words, allowed);
    }
    is_so
}

fn one(words: &mut &[&str], allowed: &HashSet<String>) -> bool {
    match words {
        ["(", rest @ ..] => {
            *words = rest;
            let is_so = any(words, allowed);
            *words = words.strip_prefix(&[")"]).unwrap();
            is_so
        }
        [name, "WITH", exception, rest @ ..] => {
            let name = format!("{name} WITH {exception}");
            *words = rest;
            allowed.contains(&name)
        }
        [name, rest @ ..] => {
            let is_so = allowed.contains(*name);
            *words = rest;
            is_so
        }
        [] => panic!("it ends too soon"),
    }
}

/// A branch of a repository or another registry could change or vanish.
#[test]
fn every_dependency_comes_from_one_registry_and_may_be_passed_on() {
    let allowed = allowed();
    for package in dependencies() {
        let Package { name, license, .. } = &package;
        assert!(package.is_from_registry, "{name}");
        assert!(is_allowed(license, &allowed), "{name}: {license}");
    }
    let path = Package::parse("a v1.0.0 (/home/a)|MIT");
    assert!(!path.is_from_registry);
}

#[test]
fn licences_are_weighed_as_they_are_written() {
    let allowed = allowed();
    for (license, is_good) in [
        ("MIT", true),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/Apache-2.0", true),
        ("(MIT OR GPL-2.0) AND Unicode-3.0", true),
        ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
        ("GPL-3.0", false),
        ("MIT AND GPL-3.0", false),
        ("(MIT AND GPL-2.0) OR GPL-3.0", false),
        ("GPL-2.0 WITH Classpath-exception-2.0", false),
    ] {
        assert_eq!(is_allowed(license, &allowed), is_good, "{license}");
    }
}
