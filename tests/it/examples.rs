//! Checks the rules that operators copy: those in `config/` and in the documentation.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::support::{
    finish, json,
    tollgate::{program, with_rules},
};

#[test]
fn the_examples_load_without_a_warning() {
    check(&root().join("config"));
}

#[test]
fn every_rule_in_the_documents_loads_without_a_warning() {
    for paper in papers() {
        let text = fs::read_to_string(&paper).unwrap();
        for block in rules(&text) {
            let folder = TempDir::new().unwrap();
            let file = folder.path().join("rules.yaml");
            fs::write(&file, &block).unwrap();
            println!("{}:\n{block}", paper.display());
            check(&file);
        }
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
    check_within_one_second(|| {
        let server = with_rules(&rules).start();
        let post = |_| json::send(server.http, "POST", "/json", body.as_bytes()).status;
        expected.iter().map(post).collect::<Vec<_>>() == expected
    });
}

/// A second may end between two calls.
fn check_within_one_second(mut holds: impl FnMut() -> bool) {
    assert!((0..5).any(|_| holds()));
}

#[test]
fn rules_are_found_in_a_paper() {
    let paper = "\
Text.

```yaml
domain: a
descriptors: []
```

```yaml
admin: {}
```

- in a list:

  ```yaml
  # A comment first.
  domain: b
  ```
";
    assert_eq!(
        rules(paper),
        [
            "domain: a\ndescriptors: []\n",
            "# A comment first.\ndomain: b\n"
        ]
    );
}

/// The rules must be valid and cause no warning.
#[track_caller]
fn check(rules: &Path) {
    // Some of them count locally.
    let mut check = program();
    check.args(["check", "--replicas", "2"]).arg(rules);
    let output = finish(&mut check);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("ok: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
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
        let block: String = lines
            .by_ref()
            .take_while(|line| line.trim() != "```")
            .map(|line| line.strip_prefix(indent).unwrap_or(line).to_owned() + "\n")
            .collect();
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
