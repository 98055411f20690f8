//! `tollgate lint-envoy`: finds every planted trap, and none in good configurations.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::support::{envoy::Envoy, finish, http::get, tollgate::program, tool};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[track_caller]
fn lint(file: &Path, rules: Option<&Path>) -> (Option<i32>, String) {
    let mut command = program();
    command.arg("lint-envoy").arg(file);
    if let Some(rules) = rules {
        command.arg("--rules").arg(rules);
    }
    let Output {
        status,
        stdout,
        stderr,
    } = finish(&mut command);
    let said = [stdout, stderr].concat();
    (status.code(), String::from_utf8(said).unwrap())
}

/// The traps that the file's own comments name, as `line trap`.
fn planted(text: &str) -> Vec<String> {
    let mut planted = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some((_, traps)) = line.split_once("# trap: ") {
            let traps = traps.split(", ").map(|trap| format!("{} {trap}", at + 1));
            planted.extend(traps);
        }
    }
    planted.sort();
    planted
}

/// `FILE:LINE:COLUMN: severity: PATH: [trap] text`
fn found(said: &str, file: &Path) -> Vec<String> {
    let file = file.display().to_string();
    let mut found: Vec<_> = said
        .lines()
        .map(|line| {
            let rest = line.strip_prefix(&file).expect("each names its file");
            let line = rest.split(':').nth(1).expect("each has a line");
            let (_, rest) = rest.split_once(": [").expect("each has a trap");
            let (trap, text) = rest.split_once("] ").unwrap();
            assert!(text.contains("; "), "each says what to do: {text}");
            format!("{line} {trap}")
        })
        .collect();
    found.sort();
    found
}

#[test]
fn every_planted_trap_is_found_and_nothing_else() {
    let file = root("tests/it/lint_envoy/planted.yaml");
    let (code, said) = lint(&file, Some(&root("tests/it/lint_envoy/rules")));
    let expected = planted(&fs::read_to_string(&file).unwrap());
    assert!(expected.len() > 30, "{expected:?}");
    assert_eq!(found(&said, &file), expected, "{said}");
    assert_eq!(code, Some(1));
    // Some traps need rules.
    let needs_no_rules =
        |trap: &&String| !trap.ends_with(" domain") && !trap.ends_with("descriptor");
    let tcp = |trap: &&String| trap.ends_with("tcp-descriptor");
    let fewer: Vec<_> = expected
        .iter()
        .filter(|trap| needs_no_rules(trap) || tcp(trap))
        .cloned()
        .collect();
    let (_, said) = lint(&file, None);
    assert_eq!(found(&said, &file), fewer, "{said}");
}

#[test]
fn every_trap_has_its_line_in_the_documents() {
    let page = fs::read_to_string(root("docs/lint-envoy.md")).unwrap();
    let text = fs::read_to_string(root("tests/it/lint_envoy/planted.yaml")).unwrap();
    let traps = planted(&text);
    let planted: BTreeSet<_> = traps
        .iter()
        .map(|trap| trap.split_once(' ').unwrap().1)
        .collect();
    let reported: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(trap, _)| trap)
        .collect();
    assert_eq!(planted, reported);
}

/// Envoy accepts the traps, so the planted file must be valid for it.
#[test]
fn a_real_envoy_takes_the_planted_traps() {
    let mut envoy = Command::new(tool("envoy"));
    envoy
        .args(["--mode", "validate", "--config-path"])
        .arg(root("tests/it/lint_envoy/planted.yaml"));
    let output = finish(&mut envoy);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn good_configurations_have_no_trap() {
    for file in ["deploy/envoy/envoy.yaml", "deploy/istio/envoyfilter.yaml"] {
        let (code, said) = lint(&root(file), Some(&root("config")));
        assert!(said.starts_with("ok: "), "{said}");
        assert_eq!(code, Some(0), "{said}");
    }
    // The bootstrap of the sidecar is in a ConfigMap.
    let manifest = fs::read_to_string(root("deploy/kubernetes/sidecar.yaml")).unwrap();
    let (_, behind) = manifest.split_once("  envoy.yaml: |\n").unwrap();
    let (bootstrap, _) = behind.split_once("\n---\n").unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("envoy.yaml");
    fs::write(&file, bootstrap).unwrap();
    let (code, said) = lint(&file, None);
    assert_eq!(code, Some(0), "{said}");
}

/// The dump of a running Envoy has the traps of its bootstrap, each once, although the dump repeats most messages.
#[test]
fn a_dump_of_a_real_envoy_has_the_traps_of_its_bootstrap() {
    let good = fs::read_to_string(root("deploy/envoy/envoy.yaml")).unwrap();
    let good = good
        .replace("port_value: 9901", "port_value: 0")
        .replace("port_value: 10000", "port_value: 0")
        .replace(
            "port_value: 10001 } }\n      filter",
            "port_value: 0 } }\n      filter",
        );
    let bad = good
        .replace("timeout: 0.25s\n                      # With", "# With")
        .replace("authority: tollgate", "authority: \"\"")
        .replace(
            "- actions:\n",
            "- hits_addend: { number: 2 }\n                                actions:\n",
        )
        .replace("cluster_name: tollgate\n", "cluster_name: a|b\n")
        .replace("- name: tollgate\n", "- name: a|b\n")
        .replace(
            "explicit_http_config: { http2_protocol_options: {} }",
            "explicit_http_config: { http_protocol_options: {} }",
        );
    let rules = root("config");
    for (bootstrap, expected) in [
        (good, &[][..]),
        (bad, &["authority", "hits-addend", "http2", "timeout"]),
    ] {
        let envoy = Envoy::start(|| bootstrap.clone());
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("dump.json");
        fs::write(&file, get(envoy.admin, "/config_dump").body).unwrap();
        let (code, said) = lint(&file, Some(&rules));
        let mut traps: Vec<_> = said
            .lines()
            .filter_map(|line| Some(line.split_once(": [")?.1.split_once(']')?.0))
            .collect();
        traps.sort_unstable();
        assert_eq!(traps, expected, "{said}");
        assert_eq!(code, Some(i32::from(!expected.is_empty())), "{said}");
    }
}

#[test]
fn what_cannot_be_read_is_told_with_its_place() {
    let folder = TempDir::new().unwrap();
    let check = |text: &[u8], expected: &str| {
        let file = folder.path().join("envoy.yaml");
        fs::write(&file, text).unwrap();
        let (code, said) = lint(&file, None);
        assert!(
            said.contains(&format!("{}:{expected}", file.display())),
            "{said}"
        );
        assert_eq!(code, Some(2), "{said}");
    };
    check(b"static_resources:\n  clusters: }", "2:");
    check(b"domain: shop\n", " not an Envoy configuration");
    check(b"\xff", " cannot be read");
    let (code, said) = lint(Path::new("/nowhere/envoy.yaml"), None);
    assert!(
        said.contains("/nowhere/envoy.yaml: cannot be read: No such file"),
        "{said}"
    );
    assert_eq!(code, Some(2));
    let good = root("deploy/envoy/envoy.yaml");
    let (code, said) = lint(&good, Some(Path::new("/nowhere/rules")));
    assert!(said.contains("/nowhere/rules: cannot be read"), "{said}");
    assert_eq!(code, Some(2));
}

/// As in `curl …/config_dump | tollgate lint-envoy -`.
#[test]
fn a_dash_is_standard_input() {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("\"$0\" lint-envoy - < \"$1\"")
        .arg(env!("CARGO_BIN_EXE_tollgate"))
        .arg(root("deploy/envoy/envoy.yaml"));
    let output = finish(&mut shell);
    assert!(output.status.success(), "{output:?}");
}
