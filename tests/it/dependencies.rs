//! Checks the dependencies: no advisory is open against them, and their licences permit redistribution. Like
//! `make deny`, without a network.

use std::{collections::HashSet, path::PathBuf, process::Command};

use semver::{Version, VersionReq};
use serde::Deserialize;

/// `advisories.yaml`.
#[derive(Deserialize)]
struct Snapshot {
    advisories: Vec<Advisory>,
    looked_up: HashSet<String>,
}

#[derive(Deserialize)]
struct Advisory {
    id: String,
    #[serde(rename = "crate")]
    name: String,
    patched: Vec<VersionReq>,
    unaffected: Vec<VersionReq>,
    about: String,
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

fn snapshot() -> Snapshot {
    serde_yaml::from_str(&file("advisories.yaml")).unwrap()
}

/// The packages in Cargo.lock that the built and tested target needs.
fn dependencies() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--all-features",
            "--edges",
            "normal,build,dev",
        ])
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .args(["--prefix", "none", "--format", "{p}|{l}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let packages = said.lines().map(Package::parse);
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
fn weak_versions_and_unknown_crates_are_found() {
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
    let text = file("deny.toml");
    let (_, list) = text.split_once("\nallow = [").unwrap();
    let (list, _) = list.split_once("\n]").unwrap();
    let lines = list.lines().map(str::trim);
    let quoted = lines.filter_map(|line| line.strip_prefix('"')?.strip_suffix("\","));
    quoted.map(str::to_owned).collect()
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
