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

use crate::support::tool;

/// Runs the check.py of a folder. It may take longer than other programs on a busy machine.
#[track_caller]
fn check(folder: &Path, arguments: &[&str]) -> Output {
    let program = folder.join("check.py");
    let mut command = Command::new(tool("python3"));
    command.arg(program).args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
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
