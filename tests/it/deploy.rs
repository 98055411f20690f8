//! The files of `deploy/`, checked and run as they stand: only ports and folders are others.

mod alerts;
mod image;
mod inputs;
mod manifests;
mod packaging;
mod passwords;
mod running;
mod systemd;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::support::tool;

/// Runs the check.py of a folder. It may take longer than other programs on a busy machine.
#[track_caller]
fn check(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(tool("python3"));
    command.arg(folder.join("check.py")).args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

/// The output of the check.py of `deploy/`, which must succeed.
#[track_caller]
fn checked(arguments: &[&str]) -> String {
    let output = check(&deploy(), arguments);
    assert!(output.status.success(), "{}", text_of(&output));
    text(&output.stdout)
}

/// A file that the check.py of `deploy/` writes if it is asked so.
#[track_caller]
fn written(argument: &str) -> String {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    checked(&[argument, path(&file)]);
    fs::read_to_string(file).unwrap()
}

/// The rows of a table, with cells between ` => `, in which `\n` is a line break and `NOTHING` no text.
fn rows<const N: usize>(table: &str) -> Vec<[String; N]> {
    let row = |line: &str| -> [String; N] {
        let cells = line.split(" => ").map(|cell| cell.replace("\\n", "\n"));
        let cells = cells.map(|cell| cell.replace("NOTHING", ""));
        cells.collect::<Vec<_>>().try_into().expect(line)
    };
    table.trim().lines().map(row).collect()
}

/// A copy of `deploy/` with mistakes: rows of a file, what is right in it, and what is wrong instead.
#[track_caller]
fn planted(mistakes: &str) -> (TempDir, PathBuf) {
    let copy = TempDir::new().unwrap();
    let folder = copy.path().join("deploy");
    copy_all(&deploy(), &folder);
    for [file, right, wrong] in rows::<3>(mistakes) {
        let before = fs::read_to_string(folder.join(&file)).unwrap();
        assert!(before.contains(&right), "{right} in {file}");
        fs::write(folder.join(&file), before.replacen(&right, &wrong, 1)).unwrap();
    }
    (copy, folder)
}

/// Runs a program that must succeed.
#[track_caller]
fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_all(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn text_of(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}
