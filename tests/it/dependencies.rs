//! Checks the dependencies and the images of others: no advisory is open against them, and the licences of dependencies
//! permit redistribution. Like `make deny`, without a network.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
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
        .args([
            "tree",
            "--locked",
            "--all-features",
            "--edges",
            "normal,build,dev",
        ])
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
fn complaints(snapshot: &Snapshot, packages: &[(&str, Version)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, version) in packages {
        if !snapshot.looked_up.contains(*name) {
            complaints.push(format!("{name}: not looked up"));
        }
        for advisory in &snapshot.advisories {
            if advisory.is_against(name, version) {
                let Advisory { id, about, .. } = advisory;
                complaints.push(format!("{name} {version}: {id}, {about}"));
            }
        }
    }
    complaints
}

#[test]
fn nothing_is_known_against_any_dependency() {
    let dependencies = dependencies();
    let versions: Vec<_> = dependencies
        .iter()
        .map(|package| (&*package.name, package.version.clone()))
        .collect();
    let complaints = complaints(&snapshot(), &versions);
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn nothing_is_known_against_any_image_of_others() {
    let images = images();
    let versions: Vec<_> = images
        .iter()
        .map(|(name, version)| (&**name, version.clone()))
        .collect();
    let complaints = complaints(&snapshot(), &versions);
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn weak_versions_and_unknown_names_are_found() {
    #[track_caller]
    fn check(name: &str, version: &str, expected: &[&str]) {
        let found = complaints(&snapshot(), &[(name, version.parse().unwrap())]);
        assert_eq!(found, expected);
    }
    check("h2", "0.4.16", &[]);
    let empty = "h2 0.4.15: RUSTSEC-2026-0258, memory under a flood of empty DATA";
    check("h2", "0.4.15", &[empty]);
    check("tokio", "1.43.1", &[]);
    let broadcast = "tokio 1.43.0: RUSTSEC-2025-0023, broadcast channels clone on several threads";
    check("tokio", "1.43.0", &[broadcast]);
    check("left-pad", "1.0.0", &["left-pad: not looked up"]);
    const REDIS: &str = "docker.io/library/redis";
    check(REDIS, "7.2.16", &[]);
    let tls = format!("{REDIS} 7.2.15: CVE-2026-81934, a use after free in TLS connections");
    check(REDIS, "7.2.15", &[&tls]);
    let old = complaints(&snapshot(), &[(REDIS, Version::new(7, 2, 5))]);
    for id in ["CVE-2024-31228", "CVE-2025-49844", "CVE-2026-23479"] {
        assert!(old.iter().any(|line| line.contains(id)), "{id}: {old:#?}");
    }
    check(
        "docker.io/prom/prometheus",
        "2.55.1",
        &[
            "docker.io/prom/prometheus 2.55.1: CVE-2026-40179, names of metrics that run as scripts in the web page",
            "docker.io/prom/prometheus 2.55.1: CVE-2026-42154, memory for a small remote read",
        ],
    );
    let unknown = "docker.io/library/left-pad";
    check(unknown, "1.0.0", &[&format!("{unknown}: not looked up")]);
}

#[test]
fn advisories_are_looked_up_for_every_target_that_is_shipped() {
    let looked_at = listed("targets");
    let project = file("deploy/packaging/project.py");
    let line = project.lines().find(|line| line.starts_with("TARGETS = "));
    let shipped: Vec<_> = line
        .unwrap()
        .split('"')
        .filter(|word| word.contains("-linux-"))
        .collect();
    assert_eq!(shipped.len(), 2, "{line:?}");
    for target in shipped {
        assert!(looked_at.iter().any(|one| one == target), "{target}");
    }
}

/// A clone of the advisory database with one advisory, which is older than the last commit.
fn database() -> TempDir {
    const ADVISORY: &str = r#"```toml
[advisory]
id = "RUSTSEC-2026-9999"
package = "h2"
date = "2026-09-01"

[versions]
patched = [">= 99.0.0"]
```

# A title
"#;
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
    let names: BTreeSet<_> = dependencies().into_iter().map(|one| one.name).collect();
    assert_eq!(
        snapshot.looked_up.into_iter().collect::<BTreeSet<_>>(),
        names
    );
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

/// A branch of a repository or another registry could change or vanish.
#[test]
fn all_dependencies_come_from_one_registry() {
    for package in dependencies() {
        assert!(package.is_from_registry, "{}", package.name);
    }
    let path = Package::parse("a v1.0.0 (/home/a)|MIT");
    assert!(!path.is_from_registry);
}

// --- licences ------------------------------------------------------------------------------------

/// The licences that `deny.toml` allows.
fn allowed() -> HashSet<String> {
    listed("allow").into_iter().collect()
}

/// Whether `allowed` covers the licence `expression` (SPDX).
fn is_allowed(expression: &str, allowed: &HashSet<String>) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        // The notation before SPDX expressions.
        .replace('/', " OR ");
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

#[test]
fn every_dependency_may_be_passed_on() {
    let allowed = allowed();
    for Package { name, license, .. } in dependencies() {
        assert!(is_allowed(&license, &allowed), "{name}: {license}");
    }
}

#[test]
fn licences_are_weighed_as_they_are_written() {
    let allowed = allowed();
    for good in [
        "MIT",
        "MIT OR GPL-3.0",
        "GPL-3.0/Apache-2.0",
        "(MIT OR GPL-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT AND GPL-2.0) OR GPL-3.0",
        "GPL-2.0 WITH Classpath-exception-2.0",
    ] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}
