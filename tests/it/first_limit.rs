//! `docs/start/first-limit.md`, followed word by word: its files are written, its commands run, and what it says
//! they print is what they print. Only ports are others.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use ::tollgate::now;
use tempfile::TempDir;

use crate::support::{Process, finish, free_port, wait_until};

/// The ports of the page: gRPC, Envoy's admin page, Envoy, and the service behind it.
const PORTS: [&str; 4] = ["8081", "9901", "10000", "10001"];

/// Each of them, and the one in its place.
type Ports = [(&'static str, String); 4];

#[test]
fn a_newcomer_who_follows_the_page_gets_a_429_from_a_rule_of_their_own() {
    let mut attempts = 0;
    loop {
        let day = now().secs() / 86400;
        let Err(problem) = follow(&steps(&page())) else {
            return;
        };
        attempts += 1;
        // Another process may take a port between its choice and its use, and limits of a day begin anew at midnight.
        let is_bad_luck = problem.contains("in use") || now().secs() / 86400 != day;
        assert!(is_bad_luck && attempts < 5, "{problem}");
    }
}

#[test]
fn the_page_ends_with_a_refusal() {
    let steps = steps(&page());
    let last = steps.iter().rev().find_map(|step| match step {
        Step::Run(_, printed) => printed.last(),
        Step::Write(..) => None,
    });
    assert_eq!(last.map(String::as_str), Some("429"));
    let rules = |step: &&Step| matches!(step, Step::Write(file, _) if file.contains("rules/"));
    // One rule, then the reader's own.
    assert_eq!(steps.iter().filter(rules).count(), 2);
}

#[derive(Debug)]
enum Step {
    /// Writes a file with this text.
    Write(String, String),
    /// Runs a command, which prints these lines.
    Run(String, Vec<String>),
}

/// The steps of a page in their order. A block of YAML belongs to the file that was named last before it; in a
/// block of the console each `$ ` begins a command, and the lines behind it are what it prints.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut file = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            let names = line.split('`').skip(1).step_by(2);
            file = names.filter(|name| name.ends_with(".yaml")).last().or(file);
            continue;
        };
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        match kind {
            "yaml" => {
                let file = file.expect("a file is named before its text");
                steps.push(Step::Write(file.to_owned(), block.join("\n") + "\n"));
            }
            "console" => {
                for line in block {
                    match (line.strip_prefix("$ "), steps.last_mut()) {
                        (Some(command), _) => steps.push(Step::Run(command.to_owned(), vec![])),
                        (None, Some(Step::Run(_, printed))) => printed.push(line.to_owned()),
                        (None, _) => panic!("printed by no command: {line}"),
                    }
                }
            }
            _ => {}
        }
    }
    steps
}

/// Does what the page says, in a folder like a clone in which `make run` has run. Fails if a command or its output
/// differs from the page.
fn follow(steps: &[Step]) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clone = TempDir::new().unwrap();
    let target = clone.path().join("target");
    fs::create_dir_all(target.join("local")).unwrap();
    let program = env!("CARGO_BIN_EXE_tollgate");
    symlink(program, target.join("local/tollgate")).unwrap();
    symlink(root.join("target/try"), target.join("try")).unwrap();
    let ports = PORTS.map(|port| (port, free_port().to_string()));
    let with_ports = |text: &str| with_ports(text, &ports);
    let mut servers: Vec<(Process, PathBuf)> = Vec::new();
    for step in steps {
        match step {
            Step::Write(file, text) => {
                let path = clone.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let log = |server: &(Process, PathBuf)| fs::read_to_string(&server.1).unwrap();
                let logs = || servers.iter().map(log).collect::<String>();
                let loads = || logs().matches("rules loaded").count();
                let before = loads();
                fs::write(path, with_ports(text)).unwrap();
                if before > 0 && file.contains("rules/") {
                    wait_until("changed rules are loaded", || loads() > before);
                }
            }
            Step::Run(command, _) if command.starts_with("make ") => {
                let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
                let target = format!("\n{}:", &command["make ".len()..]);
                assert!(makefile.contains(&target), "{command}");
                if command == "make try" {
                    // `make test` has fetched it; otherwise a download takes as long as it takes.
                    let tried = Command::new("make").arg("try").current_dir(root).output();
                    let tried = tried.unwrap();
                    assert!(tried.status.success(), "{tried:?}");
                }
            }
            Step::Run(command, printed) if is_server(command) => {
                assert!(printed.is_empty(), "a server prints nothing: {command}");
                servers.push(start(clone.path(), &with_ports(command), &ports)?);
            }
            Step::Run(command, printed) => {
                let output = finish(&mut shell(clone.path(), &with_ports(command)));
                let said = [output.stdout, output.stderr].concat();
                let said = String::from_utf8(said).unwrap();
                if !is_as_printed(&said, printed) {
                    return Err(format!("{command}\nprinted:\n{said}\nnot:\n{printed:#?}"));
                }
            }
        }
    }
    Ok(())
}

/// Replaces the ports of the page by others, in two steps, because a port may contain the digits of another one.
fn with_ports(text: &str, ports: &Ports) -> String {
    let mut text = text.to_owned();
    for (index, (there, _)) in ports.iter().enumerate() {
        text = text.replace(there, &format!("<port {index}>"));
    }
    for (index, (_, here)) in ports.iter().enumerate() {
        text = text.replace(&format!("<port {index}>"), here);
    }
    text
}

/// Whether a line is that of the page; one with `…` at its end only has to begin so. A command of which the page
/// shows the first lines may print more.
fn is_as_printed(said: &str, printed: &[String]) -> bool {
    let lines = said.lines().chain(std::iter::repeat(""));
    let mut both = printed.iter().zip(lines);
    both.all(|(expected, line)| match expected.strip_suffix('…') {
        Some(begin) => line.starts_with(begin),
        None => line == expected,
    })
}

fn is_server(command: &str) -> bool {
    command.contains("tollgate serve ") || command.contains("bin/envoy ")
}

fn shell(folder: &Path, command: &str) -> Command {
    let mut shell = Command::new("bash");
    shell
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(folder)
        .args(["-c", command]);
    shell
}

/// Starts a server that the reader keeps running in a terminal, and waits until it listens. Returns it and its log.
fn start(folder: &Path, command: &str, ports: &Ports) -> Result<(Process, PathBuf), String> {
    let (_, port) = &ports[if command.contains("bin/envoy ") { 2 } else { 0 }];
    let log = folder.join(format!("{port}.log"));
    let mut shell = shell(folder, &format!("exec {command}"));
    // The ports that the page leaves at their defaults.
    shell
        .env("GRPC_PORT", &ports[0].1)
        .envs([("PORT", "0"), ("DEBUG_PORT", "0")])
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    let mut process = Process::start(&mut shell);
    let address = format!("127.0.0.1:{port}");
    let mut has_ended = false;
    wait_until("the server listens", || {
        has_ended = process.has_ended();
        has_ended || TcpStream::connect(&address).is_ok()
    });
    match has_ended {
        true => Err(fs::read_to_string(&log).unwrap()),
        false => Ok((process, log)),
    }
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/start/first-limit.md");
    fs::read_to_string(path).unwrap()
}
