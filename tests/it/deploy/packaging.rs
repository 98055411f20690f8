//! The programs that write the image and check a release, with programs that are small and without a build.
//! `make image-test` and `make dist-test` start what they write.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::{copy_all, deploy, path, text, text_of};
use crate::support::tool;

/// e_machine of ELF, by the processor's name in images.
const MACHINES: [(&str, u8); 2] = [("amd64", 62), ("arm64", 183)];

/// A program for each processor that says no more than its own kind: the header of an ELF file without segments.
fn write_programs(folder: &Path) {
    for (architecture, machine) in MACHINES {
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = machine;
        let folder = folder.join(architecture);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("tollgate"), elf).unwrap();
    }
}

/// Runs a program of `packaging/` in a folder like `deploy/`.
fn run_in(deploy: &Path, program: &str, arguments: &[&str]) -> Output {
    command_in(deploy, program, arguments).output().unwrap()
}

fn command_in(deploy: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(tool("python3"));
    command
        .arg(deploy.join("packaging").join(program))
        .args(arguments)
        .env_remove("ADVISORIES_AS_OF")
        // The commit changes while a developer works.
        .env("TOLLGATE_COMMIT", "0123456789ab")
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .stdin(Stdio::null());
    command
}

/// Writes the image of the programs in a folder into another.
fn write_image(programs: &Path, to: &Path) -> Output {
    let (programs, to) = (path(programs), path(to));
    run_in(&deploy(), "image.py", &["--programs", programs, "--to", to])
}

/// All files of the image in `folder`, by their names.
fn image(programs: &Path, folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let output = write_image(programs, folder);
    assert!(output.status.success(), "{}", text_of(&output));
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    });
    files.collect()
}

/// Unpacks a tar archive into a new folder.
fn unpacked(archive: &Path) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(folder.path());
    super::run(&mut tar);
    folder
}

/// An unpacked image layout.
struct Layout(PathBuf);

impl Layout {
    /// The blob that a descriptor means, which must fit it.
    #[track_caller]
    fn blob(&self, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().unwrap();
        let hash = digest.strip_prefix("sha256:").unwrap();
        let data = fs::read(self.0.join("blobs/sha256").join(hash)).unwrap();
        let bytes = Sha256::digest(&data);
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hash);
        assert_eq!(descriptor["size"], data.len(), "{descriptor}");
        data
    }

    #[track_caller]
    fn json(&self, descriptor: &Value) -> Value {
        serde_json::from_slice(&self.blob(descriptor)).unwrap()
    }
}

#[track_caller]
fn json_in(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

#[test]
fn the_image_is_a_layout_for_both_processors() {
    let folder = TempDir::new().unwrap();
    let (programs, to) = (folder.path().join("programs"), folder.path().join("to"));
    write_programs(&programs);
    let files = image(&programs, &to);
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("tollgate-{version}-image");
    let names = ["", "-amd64", "-arm64"].map(|end| format!("{name}{end}.tar"));
    for name in &names {
        assert!(files.contains_key(name), "{name}: {:?}", files.keys());
    }
    let layout = unpacked(&to.join(&names[0]));
    let layout = Layout(layout.path().to_owned());
    let index = json_in(&layout.0, "index.json");
    let entry = &index["manifests"][0];
    let annotations = &entry["annotations"];
    assert_eq!(annotations["org.opencontainers.image.ref.name"], version);
    let all = layout.json(entry);
    for (number, (architecture, machine)) in MACHINES.into_iter().enumerate() {
        let descriptor = &all["manifests"][number];
        assert_eq!(descriptor["platform"]["architecture"], architecture);
        let manifest = layout.json(descriptor);
        let config = layout.json(&manifest["config"]);
        assert_eq!(config["architecture"], architecture);
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        let run = &config["config"];
        assert_eq!(run["User"], "65532:65532");
        assert_eq!(run["Entrypoint"], json!(["/bin/tollgate"]));
        let revision = &run["Labels"]["org.opencontainers.image.revision"];
        assert_eq!(revision, "0123456789ab");
        let layer = folder.path().join(architecture);
        fs::write(&layer, layout.blob(&manifest["layers"][0])).unwrap();
        let root = unpacked(&layer);
        let program = fs::read(root.path().join("bin/tollgate")).unwrap();
        assert_eq!(program[18], machine);
        let link = fs::read_link(root.path().join("bin/ratelimit")).unwrap();
        assert_eq!(link, Path::new("tollgate"));
        // The archive that an engine loads has the same image.
        let archive = unpacked(&to.join(&names[number + 1]));
        let listed = json_in(archive.path(), "manifest.json");
        let tags = json!([format!("tollgate:{version}")]);
        assert_eq!(listed[0]["RepoTags"], tags);
        let digest = manifest["config"]["digest"].as_str().unwrap();
        let config = format!("blobs/{}", digest.replace(':', "/"));
        assert_eq!(listed[0]["Config"], config);
    }
}

#[test]
fn two_images_of_one_program_are_equal() {
    let folder = TempDir::new().unwrap();
    let [one, other] = ["one", "other/longer"].map(|name| {
        let programs = folder.path().join(name).join("programs");
        write_programs(&programs);
        image(&programs, &folder.path().join(name).join("to"))
    });
    assert_eq!(one.len(), 4, "{:?}", one.keys());
    assert!(one == other);
    let sums = text(&one["SHA256SUMS"]);
    assert_eq!(sums.lines().count(), 3, "{sums}");
}

#[test]
fn programs_that_an_empty_image_cannot_start_are_refused() {
    let folder = TempDir::new().unwrap();
    let check = |problem: &str| {
        let output = write_image(folder.path(), folder.path());
        assert_eq!(output.status.code(), Some(1), "{problem}");
        let printed = text(&output.stderr);
        assert!(printed.contains(problem), "{printed}");
    };
    check("is not there: run deploy/packaging/build.py amd64");
    write_programs(folder.path());
    let [amd64, arm64] = MACHINES.map(|(name, _)| folder.path().join(name).join("tollgate"));
    // For the machine of the tests, and with a loader.
    fs::copy(env!("CARGO_BIN_EXE_tollgate"), &amd64).unwrap();
    check("is not static");
    fs::copy(&arm64, &amd64).unwrap();
    check("is not for amd64: its ELF machine is 183");
    fs::write(&amd64, "#!/bin/sh\n").unwrap();
    check("is no 64-bit ELF program");
}

/// A repository that can be released, but for what a test changes.
struct Repository {
    folder: TempDir,
}

const CHANGELOG: &str =
    "# Changelog\n\n## [Unreleased]\n\n## [VERSION] - 2026-01-31\n\n### Added\n\n- A thing.\n";
const ADVISORIES: &str = "# Known.\n\nas_of: 2026-01-01\n\nadvisories:\n";
/// The last day on which `ADVISORIES` may be released.
const TODAY: &str = "2026-01-31";

impl Repository {
    fn new() -> Self {
        let repository = Self {
            folder: TempDir::new().unwrap(),
        };
        let source = deploy().with_file_name("");
        for name in ["Cargo.toml", "Cargo.lock", "Makefile"] {
            fs::copy(source.join(name), repository.path(name)).unwrap();
        }
        copy_all(&deploy(), &repository.path("deploy"));
        let version = env!("CARGO_PKG_VERSION");
        repository.write("CHANGELOG.md", &CHANGELOG.replace("VERSION", version));
        repository.write("advisories.yaml", ADVISORIES);
        repository.write(".gitignore", "/bin/\n");
        repository.git(&["init", "--quiet"]);
        repository.commit();
        repository
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new(tool("git"));
        git.current_dir(self.folder.path())
            .args(["-c", "user.name=t", "-c", "user.email=t@example.com"])
            .args(arguments);
        super::run(&mut git);
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "x"]);
    }

    /// Whether `version` may be released, with the reasons against it.
    fn check(&self, version: &str) -> (bool, String) {
        outcome(&mut self.release(&["--check", "--today", TODAY, version]))
    }

    fn release(&self, arguments: &[&str]) -> Command {
        command_in(&self.path("deploy"), "release.py", arguments)
    }

    #[track_caller]
    fn check_refused(&self, version: &str, reason: &str) {
        let (is_released, printed) = self.check(version);
        assert!(!is_released, "{reason}: {printed}");
        assert!(printed.contains(reason), "{reason}: {printed}");
    }
}

#[test]
fn a_release_needs_its_version_its_changes_and_a_clean_tree() {
    let version = env!("CARGO_PKG_VERSION");
    let repository = Repository::new();
    let (is_released, printed) = repository.check(version);
    assert!(is_released, "{printed}");

    repository.check_refused("99.0.0", "Cargo.toml has version");
    repository.check_refused("99.0.0", "Chart.yaml does not name version 99.0.0");
    repository.check_refused("v1", "is no version of the form 1.2.3");

    let changelog = fs::read_to_string(repository.path("CHANGELOG.md")).unwrap();
    for (right, wrong, reason) in [
        (" - 2026-01-31", " - soon", "no date of the form"),
        ("- A thing.", "", "lists no change"),
        (
            "[Unreleased]",
            "[Unreleased]\n\n- More.",
            "still under [Unreleased]",
        ),
        (version, "0.0.9", "has 0 sections"),
    ] {
        repository.write("CHANGELOG.md", &changelog.replacen(right, wrong, 1));
        repository.commit();
        repository.check_refused(version, reason);
    }
    repository.write("CHANGELOG.md", &changelog);
    repository.commit();

    repository.write("new", "");
    repository.check_refused(version, "the tree is not clean:\n?? new");
    fs::remove_file(repository.path("new")).unwrap();

    let tag = format!("v{version}");
    repository.git(&["tag", &tag]);
    assert!(repository.check(version).0, "the tag is on this commit");
    repository.commit();
    repository.check_refused(version, "is on another commit");
}

/// Whether a program succeeds, and its output.
fn outcome(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    (output.status.success(), text_of(&output))
}

#[test]
fn advisories_of_more_than_thirty_days_need_a_reason() {
    let version = env!("CARGO_PKG_VERSION");
    let repository = Repository::new();
    let check = |today: &str, exception: &str, is_released: bool, line: &str| {
        let mut command = repository.release(&["--check", "--today", today, version]);
        let (found, printed) = outcome(command.env("ADVISORIES_AS_OF", exception));
        assert_eq!(found, is_released, "{today} {exception}: {printed}");
        assert!(printed.contains(line), "{today} {exception}: {printed}");
    };
    check(TODAY, "", true, "can be released");
    let stale = "advisories.yaml is of 2026-01-01, 31 days old, more than 30";
    check("2026-02-01", "", false, stale);
    let excepted = "advisories of 2026-01-01 only, 31 days old: no network";
    check("2026-02-01", "2026-01-01: no network", true, excepted);
    for wrong in [
        "2026-01-01",
        "2026-01-01: ",
        "2025-12-01: no network",
        "no network",
        "2026-01-01: no\nnetwork",
    ] {
        check("2026-02-01", wrong, false, "and not \"2026-01-01: REASON\"");
    }
    for exception in ["", "2026-01-01: no network"] {
        check("2025-12-31", exception, false, "which is yet to come");
    }
    let deploy = repository.path("deploy");
    let output = run_in(&deploy, "advisories.py", &["--today", "2026-03-14"]);
    let age = "advisories.yaml: of 2026-01-01, 72 days old; a release refuses more than 30\n";
    assert_eq!(text_of(&output), age);
    // The older part counts.
    let images = format!("{ADVISORIES}\nimages_as_of: 2025-12-30\n");
    repository.write("advisories.yaml", &images);
    repository.commit();
    let stale = "advisories.yaml is of 2025-12-30, 32 days old, more than 30";
    check(TODAY, "", false, stale);
    let makefile = fs::read_to_string(repository.path("Makefile")).unwrap();
    let (_, ci) = makefile.split_once("\ntest: components ").unwrap();
    let (ci, _) = ci.split_once("\n\n").unwrap();
    assert!(ci.contains("/advisories.py\n"), "{ci}");
}

/// A cargo that finds an advisory, however it is asked.
const CARGO: &str =
    "#!/bin/sh\n[ \"$*\" = 'deny --version' ] && exit\necho \"asked: $*\"\nexit 1\n";

#[test]
fn nothing_is_built_for_a_release_with_an_advisory_against_it() {
    let version = env!("CARGO_PKG_VERSION");
    let repository = Repository::new();
    fs::create_dir(repository.path("bin")).unwrap();
    repository.write("bin/cargo", CARGO);
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(repository.path("bin/cargo"), mode).unwrap();
    let check = |today: &str, exception: &str, asked: &str| {
        let mut command = repository.release(&["--today", today, version]);
        let mut programs = repository.path("bin").into_os_string();
        programs.push(":");
        programs.push(std::env::var_os("PATH").unwrap_or_default());
        command
            .env("PATH", programs)
            .env("ADVISORIES_AS_OF", exception)
            // Cargo and make name themselves to the programs that they run.
            .env_remove("CARGO")
            .env_remove("MAKEFLAGS");
        let (is_released, printed) = outcome(&mut command);
        assert!(!is_released, "{printed}");
        assert!(printed.contains(asked), "{asked}: {printed}");
        assert!(printed.contains("ERROR make deny failed"), "{printed}");
        assert!(!repository.path("target").exists(), "{printed}");
    };
    check(TODAY, "", "asked: deny --locked check");
    let asked = "asked: test --locked --test it dependencies";
    check("2026-02-01", "2026-01-01: no network", asked);
}

#[test]
fn the_notes_of_a_release_name_the_exception() {
    let program = "import release; print(release.release_notes('1.2.3', '- A thing.', 'sums', 'Old: R.'), \
                   release.release_notes('1.2.3', '- A thing.', 'sums', None))";
    let mut command = Command::new(tool("python3"));
    command.args(["-B", "-c", program]);
    command.env("PYTHONPATH", deploy().join("packaging"));
    let (is_made, printed) = outcome(command.stdin(Stdio::null()));
    assert!(is_made, "{printed}");
    let beginning = "- A thing.\n\n### Advisories\n\nOld: R.\n\n### Files\n";
    assert!(printed.starts_with(beginning), "{printed}");
    assert_eq!(printed.matches("### Advisories").count(), 1, "{printed}");
    assert_eq!(printed.matches("### Files").count(), 2, "{printed}");
}
