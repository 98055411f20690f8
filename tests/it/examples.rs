//! Checks the rules that operators copy: those in `config/` and in the documentation.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::cli::{files, run, url};
use crate::support::{
    finish, json,
    redis::Redis,
    tollgate::{Tollgate, bare, program, with_rules},
};

#[test]
fn the_examples_load_without_a_warning() {
    check(&root().join("config"));
}

#[test]
fn every_rule_in_the_documents_loads_without_a_warning() {
    for (paper, block) in document_rules() {
        let folder = files(&[("rules.yaml", &block)]);
        println!("{paper}:\n{block}");
        check(&folder.path().join("rules.yaml"));
    }
}

#[test]
fn the_front_page_shows_rules() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(!rules(&text).is_empty());
}

/// The front page's first 429: the body of its call, posted as often as it says, with the rules that `make run` serves.
#[test]
fn the_front_page_s_first_calls_are_answered_as_it_says() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, rest) = text.split_once("/json -d \\\n    '").unwrap();
    let (body, rest) = rest.split_once("'; done\n").unwrap();
    let expected: Vec<u16> = rest.lines().map_while(|line| line.parse().ok()).collect();
    assert_eq!(expected.last(), Some(&429));
    let rules = fs::read_to_string(root().join("config/small.yaml")).unwrap();
    let (_, rest) = rest.split_once("$ target/local/tollgate ").unwrap();
    let (command, printed) = rest.split_once('\n').unwrap();
    let printed: Vec<_> = printed.lines().take_while(|line| *line != "```").collect();
    assert!(printed.len() >= 2, "{printed:?}");
    // A second may end between two calls.
    let is_answered = || {
        let server = with_rules(&rules).start();
        let post = |_| json::send(server.http, "POST", "/json", body.as_bytes()).status;
        expected.iter().map(post).collect::<Vec<_>>() == expected
    };
    assert!((0..5).any(|_| is_answered()));
    let is_printed = || {
        let server = with_rules(&rules).start();
        let (_, said) = run(&format!("{command} --server {}", url(server.grpc)));
        said.lines().take(printed.len()).collect::<Vec<_>>() == printed
    };
    assert!((0..5).any(|_| is_printed()));
}

/// As they stand but for ports, and those that a reader tries next. `first_limit.rs` runs those of its page.
#[test]
fn every_command_of_the_documents_runs_on_the_shipped_rules() {
    let server = shipped(&[]);
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["first", "istio", "rules"] {
        fs::create_dir(at(name)).unwrap();
    }
    for (name, target) in [
        ("config", "config"),
        ("rules/shop.yaml", "config/small.yaml"),
        ("your-rules", "config"),
        ("DIR", "config"),
        ("first/rules", "config"),
        ("shop.yaml", "config/small.yaml"),
        ("envoy.yaml", "deploy/envoy/envoy.yaml"),
        ("first/envoy.yaml", "deploy/envoy/envoy.yaml"),
        ("deploy", "deploy/envoy"),
        ("istio/ratelimit.yaml", "deploy/istio/envoyfilter.yaml"),
    ] {
        symlink(root().join(target), at(name)).unwrap();
    }
    let documented: BTreeSet<_> = papers().iter().flat_map(|paper| commands(paper)).collect();
    assert!(documented.len() > 15, "{documented:?}");
    let neighbours = [
        "check config/full.yaml config/small.yaml",
        "check config --format json",
        "check config --replicas 2 --deny-warnings",
        "explain --domain shop -d remote_address=192.0.2.1 --json",
        "explain --domain full -d plan=free --hits 0",
        "explain --rules config/full.yaml --domain full -d sign_up=x",
        "ask --domain shop -d remote_address=192.0.2.1 --hits 0 --json",
        "counters get --domain shop -d remote_address=192.0.2.1",
        "counters reset --domain shop -d remote_address=192.0.2.1",
        "lint-envoy envoy.yaml",
        "completions bash",
        "man",
    ];
    let mut failed = Vec::new();
    let documented = documented.iter().map(String::as_str);
    for command in documented.chain(neighbours) {
        // As in a shell, quotes hold words together.
        let parts = command.split('"').zip([false, true].into_iter().cycle());
        let words = parts.flat_map(|(text, is_quoted)| match is_quoted {
            true => vec![text.to_owned()],
            false => text.split_whitespace().map(str::to_owned).collect(),
        });
        let mut words: Vec<_> = words.collect();
        let (debug, grpc) = (url(server.debug), url(server.grpc));
        let rest: &[&str] = match &*words[0] {
            "ask" if words.iter().any(|word| word == "--server") => {
                let at = words.iter().position(|word| word == "--server").unwrap() + 1;
                words[at] = grpc;
                &[]
            }
            "ask" => &["--server", &grpc, "--debug-server", &debug],
            "explain" if words.iter().any(|word| word == "--rules") => &[],
            "explain" | "counters" => &["--server", &debug],
            _ => &[],
        };
        let output = finish(program().args(&words).args(rest).current_dir(&folder));
        let said = String::from_utf8_lossy(&output.stderr);
        // A newcomer's second call of a second may be over its limit.
        let is_over = words[0] == "ask" && output.status.code() == Some(3);
        if !output.status.success() && !is_over {
            failed.push(format!("{command}:\n{said}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// With Redis, whose rules may count locally, as without it: no other flag is needed.
#[test]
fn the_shipped_rules_are_served_with_redis() {
    let redis = Redis::start();
    let server = shipped(&["--redis-url", &redis.url()]);
    let log = server.log().text();
    // A busy Redis may be reached a moment later.
    assert!(log.contains("\"store\":\"redis"), "{log}");
}

/// A server with default settings but for ports.
fn shipped(args: &[&str]) -> Tollgate {
    let config = root().join("config").display().to_string();
    let builder = bare().args(["serve", "--log-format", "json", "--config-dir", &config]);
    let builder = builder.args("--grpc-port 0 --port 0 --debug-port 0".split(' '));
    builder.args(args.iter().copied()).start()
}

/// The commands of a page that have arguments: lines of its consoles, and code within its sentences.
fn commands(paper: &Path) -> Vec<String> {
    let text = fs::read_to_string(paper).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("$ "));
    let lines = lines.map(|line| line.split(" #").next().unwrap().split(" >").next().unwrap());
    let prose = text.lines().filter(|line| !line.starts_with("$ "));
    let spans = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
    let all = lines.chain(spans).filter_map(|command| {
        let command = command.strip_prefix("target/local/").unwrap_or(command);
        let command = command.strip_prefix("tollgate ")?.trim();
        let (name, _) = command.split_once(' ').unwrap_or((command, ""));
        let runs = match name {
            "lint-envoy" => command.contains(".yaml"),
            "ask" | "check" | "counters" | "explain" => command != name,
            _ => name == "schema",
        };
        (runs && !command.contains("unix://")).then(|| command.to_owned())
    });
    all.collect()
}

#[test]
fn rules_are_found_in_a_paper() {
    let paper = "Text.\n\n```yaml\ndomain: a\ndescriptors: []\n```\n\n```yaml\nadmin: {}\n```\n\n- in a list:\n\n  \
                 ```yaml\n  # A comment first.\n  domain: b\n  ```\n";
    let found = [
        "domain: a\ndescriptors: []\n",
        "# A comment first.\ndomain: b\n",
    ];
    assert_eq!(rules(paper), found);
}

/// The rules must be valid and cause no warning.
#[track_caller]
fn check(rules: &Path) {
    // Some of them count locally.
    let (_, said) = run(&format!("check --replicas 2 {}", rules.display()));
    assert!(said.starts_with("ok: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// The rules in all papers, each with the path of its paper.
pub fn document_rules() -> Vec<(String, String)> {
    let papers = papers().into_iter().flat_map(|paper| {
        let text = fs::read_to_string(&paper).unwrap();
        let name = paper.display().to_string();
        let blocks = rules(&text).into_iter();
        blocks.map(move |block| (name.clone(), block))
    });
    papers.collect()
}

/// README.md, docs/ and its folders.
fn papers() -> Vec<PathBuf> {
    let mut papers = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                papers.push(path);
            }
        }
    }
    assert!(papers.len() > 30, "{papers:?}");
    papers
}

/// The fenced blocks of YAML whose first line, comments aside, names a domain.
fn rules(paper: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = paper.lines();
    while let Some(line) = lines.next() {
        let Some((indent, "yaml" | "yml")) = line.split_once("```") else {
            continue;
        };
        let inside = lines.by_ref().take_while(|line| line.trim() != "```");
        let inside = inside.map(|line| line.strip_prefix(indent).unwrap_or(line).to_owned() + "\n");
        let block: String = inside.collect();
        let first = block
            .lines()
            .find(|line| !line.is_empty() && !line.starts_with('#'));
        if first.is_some_and(|line| line.starts_with("domain:")) {
            blocks.push(block);
        }
    }
    blocks
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
