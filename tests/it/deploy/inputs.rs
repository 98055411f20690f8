//! Images, packages of PyPI and actions that come from elsewhere: each is listed or known by its hash.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::deploy;

fn root() -> PathBuf {
    deploy().with_file_name("")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect(name)
}

/// All files of a folder, or the one file, with their texts.
fn files(path: &Path) -> Vec<(PathBuf, String)> {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        let files = entries.flat_map(|entry| files(&entry.unwrap().path()));
        return files.collect();
    }
    let text = String::from_utf8(fs::read(path).unwrap());
    let files = text.into_iter().map(|text| (path.to_owned(), text));
    files.collect()
}

fn is_sha256(hash: &str) -> bool {
    hash.len() == 64 && hash.bytes().all(|c| c.is_ascii_hexdigit())
}

// --- images --------------------------------------------------------------------------------------

/// The names of `deploy/images.yaml` as they have to stand elsewhere.
fn listed() -> BTreeSet<String> {
    let list: Value = serde_yaml::from_str(&read("deploy/images.yaml")).unwrap();
    let images = list["images"].as_array().unwrap();
    let names = images.iter().map(|entry| {
        let image = entry["image"].as_str().unwrap();
        let chosen = entry["chosen"].as_str().unwrap();
        let form = chosen.replace(|c: char| c.is_ascii_digit(), "0");
        assert_eq!(form, "0000-00-00", "{image}");
        let source = entry["source"].as_str().unwrap_or_default();
        assert!(source.starts_with("https://"), "{image}: {source}");
        let Some(digest) = entry["digest"].as_str() else {
            assert!(entry.get("digest").is_none(), "{image}");
            return image.to_owned();
        };
        let hash = digest.strip_prefix("sha256:");
        assert!(hash.is_some_and(is_sha256), "{image}");
        format!("{image}@{digest}")
    });
    names.collect()
}

/// The images of others that a file names with a version, and those that it starts or builds on.
fn named(text: &str) -> BTreeSet<String> {
    const REGISTRIES: &str = "docker.io/ gcr.io/ ghcr.io/ quay.io/ registry.k8s.io/";
    let is_end = |c: char| c.is_whitespace() || "\"'`(),|".contains(c);
    let with_version = text.split(is_end).filter(|word| {
        let has =
            |registry: &str| word.starts_with(registry) || word.contains(&format!("={registry}"));
        REGISTRIES.split(' ').any(has) && word.rsplit('/').next().unwrap().contains(':')
    });
    let with_version = with_version.map(|word| word.rsplit('=').next().unwrap());
    let started = text.lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("- ");
        let from = line.strip_prefix("FROM ").map(|rest| {
            let mut words = rest.split(' ').filter(|word| !word.starts_with("--"));
            words.next().unwrap()
        });
        from.or_else(|| line.strip_prefix("image: ")?.split(' ').next())
    });
    let others = with_version.chain(started).filter(|name| !is_own(name));
    others.map(str::to_owned).collect()
}

/// Whether `name` is an image of this project or of its users, or no name but a reference to one.
fn is_own(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap();
    last.starts_with("tollgate:")
        || name.starts_with("registry.example.com/")
        || name.starts_with(['$', '*', '&', '{'])
        || name == "scratch"
}

#[test]
fn every_image_of_others_is_listed() {
    let listed = listed();
    let mut found = BTreeSet::new();
    for folder in ["deploy", "docs", "config", "README.md", ".github"] {
        for (path, text) in files(&root().join(folder)) {
            if path.ends_with("deploy/images.yaml") {
                continue;
            }
            for name in named(&text) {
                assert!(listed.contains(&name), "{}: {name}", path.display());
                found.insert(name);
            }
        }
    }
    assert_eq!(found, listed);
}

#[test]
fn images_are_found_wherever_they_stand() {
    for (text, expected) in [
        ("  - image: redis:7", Some("redis:7")),
        ("image: quay.io/a/b:1 # why", Some("quay.io/a/b:1")),
        ("FROM --platform=x rust:1 AS build", Some("rust:1")),
        ("ARG RUST=quay.io/rust:1", Some("quay.io/rust:1")),
        (
            "`run docker.io/a/b:1@sha256:00`",
            Some("docker.io/a/b:1@sha256:00"),
        ),
        ("image: registry.example.com/tollgate:1\nFROM $RUST", None),
        ("the default is `docker.io/a/b`", None),
    ] {
        let expected = expected.into_iter().map(str::to_owned);
        assert_eq!(named(text), expected.collect());
    }
}

// --- packages of PyPI ----------------------------------------------------------------------------

#[test]
fn packages_are_installed_by_hash() {
    for program in ["deploy/packaging/install", "tests/tools/install"] {
        let text = read(program).replace("\\\n", " ");
        let calls = text.lines().filter(|line| line.contains("-m pip "));
        let calls: Vec<_> = calls.collect();
        assert_eq!(calls.len(), 1, "{program}");
        for flag in [" --require-hashes ", " --only-binary=:all: "] {
            assert!(calls[0].contains(flag), "{program}: {calls:?}");
        }
    }
}

#[test]
fn every_package_has_its_version_and_hashes() {
    for folder in ["deploy/packaging/python", "tests/tools/python"] {
        let mut count = 0;
        for (path, text) in files(&root().join(folder)) {
            let shown = path.display();
            if path.extension().is_none() {
                continue;
            }
            let text = text.replace("\\\n", " ");
            let lines = text.lines().map(str::trim_start);
            let lines: Vec<_> = lines.filter(|line| !line.starts_with('#')).collect();
            if path.extension().is_some_and(|end| end == "in") {
                let locked = fs::read_to_string(path.with_extension("txt")).unwrap();
                for line in lines {
                    let line = line.to_lowercase();
                    assert!(locked.contains(&format!("\n{line} ")), "{shown}: {line}");
                }
                continue;
            }
            for line in lines {
                let mut parts = line.split(" --hash=sha256:").map(str::trim);
                assert!(parts.next().unwrap().contains("=="), "{shown}: {line}");
                let hashes: Vec<_> = parts.collect();
                assert!(!hashes.is_empty(), "{shown}: {line}");
                assert!(hashes.into_iter().all(is_sha256), "{shown}: {line}");
                count += 1;
            }
        }
        assert!(count > 0, "{folder}");
    }
}

// --- actions -------------------------------------------------------------------------------------

/// The workflow of this name, without permissions of its own.
#[track_caller]
fn workflow(name: &str) -> Value {
    let text = read(&format!(".github/workflows/{name}.yml"));
    let workflow: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(workflow["permissions"], json!({}));
    workflow
}

/// The steps of a job; of each, the action or the commands.
fn steps(job: &Value) -> Vec<&str> {
    let steps = job["steps"].as_array().unwrap().iter();
    let steps = steps.map(|step| step["uses"].as_str().or(step["run"].as_str()));
    steps.map(Option::unwrap).collect()
}

/// A job that can only read, and begins with the actions that builds of releases have.
#[track_caller]
fn check_reads_only(job: &Value) {
    assert_eq!(job["permissions"], json!({ "contents": "read" }));
    let of_releases = workflow("release");
    assert_eq!(steps(job)[..2], steps(&of_releases["jobs"]["build"])[..2]);
}

#[test]
fn the_workflow_of_releases_runs_what_people_run() {
    let workflow = workflow("release");
    let jobs = workflow["jobs"].as_object().unwrap();
    let steps: Vec<_> = jobs.values().flat_map(steps).collect();
    let is_release = |step: &&str| step.starts_with("make release VERSION=");
    assert!(steps.iter().any(is_release), "{steps:?}");
    let actions = steps.iter().filter_map(|step| step.split_once('@'));
    let actions: Vec<_> = actions.collect();
    assert_eq!(actions.len(), 4, "{actions:?}");
    for (action, hash) in actions {
        // A tag may be moved.
        let is_hash = hash.len() == 40 && hash.bytes().all(|c| c.is_ascii_hexdigit());
        assert!(is_hash, "{action}@{hash}");
    }
    // Until it has run, readers have to know.
    assert!(read(".github/workflows/release.yml").contains("# Never run: "));
}

#[test]
fn the_workflow_of_pull_requests_runs_all_tests_and_can_write_nothing() {
    let workflow = workflow("test");
    let job = &workflow["jobs"]["test"];
    check_reads_only(job);
    // Of a fork nothing may be trusted.
    assert!(!job.to_string().contains("secrets."), "{job}");
    assert_eq!(steps(job)[2..], ["make test"]);
}

#[test]
fn the_workflow_of_each_night_runs_the_evidence_and_reports_a_failure() {
    let workflow = workflow("evidence");
    assert!(workflow["on"]["schedule"][0]["cron"].is_string());
    let [evidence, report] = ["evidence", "report"].map(|job| &workflow["jobs"][job]);
    check_reads_only(evidence);
    assert_eq!(steps(evidence).last(), Some(&"make evidence"));

    assert_eq!(report["permissions"], json!({ "issues": "write" }));
    assert_eq!(report["needs"], "evidence");
    assert_eq!(report["if"], "failure()");
    let steps = steps(report);
    assert_eq!(steps.len(), 1, "{steps:?}");
    assert!(steps[0].starts_with("gh issue create "), "{steps:?}");
}

#[test]
fn the_job_that_builds_a_release_can_write_nothing() {
    let workflow = workflow("release");
    let [build, publish] = ["build", "publish"].map(|job| &workflow["jobs"][job]);
    assert_eq!(workflow["jobs"].as_object().unwrap().len(), 2);
    assert_eq!(build["permissions"], json!({ "contents": "read" }));
    assert!(!build.to_string().contains("github.token"), "{build}");
    assert!(!build.to_string().contains("secrets."), "{build}");
    assert_eq!(build["steps"][0]["with"]["persist-credentials"], false);

    let permissions = json!({ "contents": "write", "id-token": "write", "attestations": "write" });
    assert_eq!(publish["permissions"], permissions);
    assert_eq!(publish["needs"], "build");
    let steps = steps(publish);
    let beginnings = [
        "actions/download-artifact@",
        "sha256sum --check --strict SHA256SUMS",
        "actions/attest-build-provenance@",
        "version=${GITHUB_REF_NAME#v}\ngh release create ",
    ];
    assert_eq!(steps.len(), beginnings.len(), "{steps:?}");
    for (step, beginning) in steps.iter().zip(beginnings) {
        assert!(step.starts_with(beginning), "{step}");
    }
    let attested = &publish["steps"][2]["with"];
    assert_eq!(attested, &json!({ "subject-checksums": "dist/SHA256SUMS" }));
    let [handed_over, taken] = [build, publish].map(|job| {
        let is_it = |step: &&str| step.contains("load-artifact@");
        let at = self::steps(job).iter().position(is_it).unwrap();
        &job["steps"][at]["with"]["name"]
    });
    assert_eq!(handed_over, taken);
}
