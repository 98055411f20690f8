//! `make demo`: tollgate, an Envoy and clients, all started by one script.

use std::{
    ffi::OsStr,
    fs::{self, File},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use super::{tool, wait_until};

#[derive(Debug)]
pub struct Demo {
    script: Child,
    folder: TempDir,
    pub page: String,
}

impl Demo {
    #[track_caller]
    pub fn start(program: &OsStr) -> Self {
        Self::with(program, &[])
    }

    #[track_caller]
    pub fn with(program: &OsStr, args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let output = File::create(folder.path().join("output")).unwrap();
        let mut command = Command::new(tool("python3"));
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/demo/demo.py"));
        command
            .arg("--tollgate")
            .arg(program)
            .arg("--envoy")
            .arg(tool("envoy"))
            .args(args);
        command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TMPDIR", folder.path());
        let both = (output.try_clone().unwrap(), output);
        command.stdin(Stdio::null()).stdout(both.0).stderr(both.1);
        let mut demo = Self {
            script: command.spawn().unwrap(),
            folder,
            page: String::new(),
        };
        wait_until("the demo prints the address of its page", || {
            let status = demo.script.try_wait().unwrap();
            assert_eq!(status, None, "{}", demo.said());
            let said = demo.said();
            let page = said.lines().find_map(|line| line.strip_prefix("the page:"));
            let is_whole = said.contains("Ctrl-C");
            demo.page = page.unwrap_or_default().trim().to_owned();
            is_whole
        });
        demo
    }

    pub fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("output")).unwrap()
    }

    #[track_caller]
    pub fn interrupt(&mut self) -> ExitStatus {
        self.signal(Signal::SIGINT);
        let mut status = None;
        wait_until("the demo has ended", || {
            status = self.script.try_wait().unwrap();
            status.is_some()
        });
        let left = fs::read_dir(self.folder.path()).unwrap();
        assert_eq!(left.count(), 1, "only its output is left");
        status.unwrap()
    }

    fn signal(&self, signal: Signal) {
        // It may already have ended.
        let _ = kill(Pid::from_raw(self.script.id().cast_signed()), signal);
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // It ends its programs by itself.
        if self.script.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::SIGTERM);
            let _ = self.script.wait();
        }
    }
}
