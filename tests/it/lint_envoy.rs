//! `tollgate lint-envoy`: finds every planted trap, and none in good configurations.

mod traffic;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use clap::CommandFactory as _;
use tempfile::TempDir;
use tollgate::Cli;

use crate::support::{envoy::Envoy, finish, http::get, tollgate::program, tool};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[track_caller]
fn lint(file: &Path, rules: Option<&Path>) -> (Option<i32>, String) {
    let file = file.display().to_string();
    match rules {
        Some(rules) => run(&[&file, "--rules", &rules.display().to_string()]),
        None => run(&[&file]),
    }
}

/// The exit code, and everything that is printed.
#[track_caller]
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = finish(program().arg("lint-envoy").args(arguments));
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

/// One line of the output: `FILE:LINE:COLUMN: severity: PATH: [trap] text; fix`
struct Line {
    line: String,
    severity: String,
    trap: String,
}

fn lines(said: &str, file: &Path) -> Vec<Line> {
    let file = file.display().to_string();
    let findings = said.lines().filter(|line| line.contains(": ["));
    findings
        .map(|line| {
            let rest = line.strip_prefix(&file).expect("each names its file");
            let mut parts = rest.splitn(4, ':');
            let (line, _column) = (parts.nth(1), parts.next());
            let (severity, rest) = parts.next().unwrap().split_once(": ").unwrap();
            let (_, rest) = rest.split_once(": [").expect("each has a trap");
            let (trap, text) = rest.split_once("] ").unwrap();
            assert!(text.contains("; "), "each has a fix: {text}");
            Line {
                line: line.expect("each has a line").to_owned(),
                severity: severity.trim().to_owned(),
                trap: trap.to_owned(),
            }
        })
        .collect()
}

fn found(said: &str, file: &Path) -> Vec<String> {
    let lines = lines(said, file);
    let mut found: Vec<_> = lines
        .iter()
        .map(|Line { line, trap, .. }| format!("{line} {trap}"))
        .collect();
    found.sort();
    found
}

/// The files of planted traps: those that Envoy takes, those of Istio, and those that Envoy refuses.
const PLANTED: [&str; 3] = [
    "tests/it/lint_envoy/planted.yaml",
    "tests/it/lint_envoy/planted-istio.yaml",
    "tests/it/lint_envoy/planted-refused.yaml",
];

#[test]
fn every_planted_trap_is_found_and_nothing_else() {
    for (file, at_least) in PLANTED.into_iter().zip([30, 4, 1]) {
        let file = root(file);
        let (code, said) = lint(&file, Some(&root("tests/it/lint_envoy/rules")));
        let expected = planted(&fs::read_to_string(&file).unwrap());
        assert!(expected.len() > at_least, "{expected:?}");
        assert_eq!(found(&said, &file), expected, "{said}");
        assert_eq!(code, Some(1));
        // Some traps need rules.
        let needs_no_rules = |trap: &&String| {
            let with_rules = [" domain", "descriptor", " no-release"];
            !with_rules.iter().any(|end| trap.ends_with(end))
        };
        let tcp = |trap: &&String| trap.ends_with("tcp-descriptor");
        let fewer: Vec<_> = expected
            .iter()
            .filter(|trap| needs_no_rules(trap) || tcp(trap))
            .cloned()
            .collect();
        let (_, said) = lint(&file, None);
        assert_eq!(found(&said, &file), fewer, "{said}");
    }
}

/// The trap of a file as a whole, which has no line.
const OF_THE_FILE: (&str, &str) = ("nothing-checked", "warning");

#[test]
fn every_trap_is_planted_and_in_the_documents_and_in_the_help() {
    let page = fs::read_to_string(root("docs/envoy/lint-envoy.md")).unwrap();
    let mut planted = BTreeMap::from([(OF_THE_FILE.0.to_owned(), vec![OF_THE_FILE.1.to_owned()])]);
    for file in PLANTED.map(root) {
        let (_, said) = lint(&file, Some(&root("tests/it/lint_envoy/rules")));
        for Line { severity, trap, .. } in lines(&said, &file) {
            planted.entry(trap).or_default().push(severity);
        }
    }
    let rows: BTreeMap<_, _> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(trap, rest)| (trap, rest.split_once(" |").unwrap().0))
        .collect();
    for (trap, severities) in &planted {
        let row = rows.get(trap.as_str()).expect("each has a row");
        for severity in severities {
            assert!(row.contains(severity.as_str()), "{trap}: {severity}");
        }
    }
    let cli = Cli::command();
    let lint_envoy = cli.find_subcommand("lint-envoy").unwrap();
    let allow = lint_envoy
        .get_arguments()
        .find(|flag| flag.get_long() == Some("allow"));
    let names = allow.unwrap().get_possible_values();
    let mut names: Vec<_> = names.iter().map(|name| name.get_name()).collect();
    names.sort_unstable();
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), names);
    assert_eq!(planted.keys().collect::<Vec<_>>(), names);
    let (_, help) = run(&["--help"]);
    for name in names {
        assert!(help.contains(name), "{name}: {help}");
    }
}

/// Envoy accepts the traps of the first file, so it must be valid for it. It refuses each of the last one.
#[test]
fn a_real_envoy_takes_the_planted_traps_but_those_that_it_refuses() {
    let folder = TempDir::new().unwrap();
    let validate = |text: &str| {
        let file = folder.path().join("envoy.yaml");
        fs::write(&file, text).unwrap();
        let mut envoy = Command::new(tool("envoy"));
        envoy
            .args(["--mode", "validate", "--config-path"])
            .arg(&file);
        let output = finish(&mut envoy);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let [taken, refused] = [0, 2].map(|at| fs::read_to_string(root(PLANTED[at])).unwrap());
    let (is_taken, said) = validate(&taken);
    assert!(is_taken, "{said}");
    let (is_taken, said) = validate(&refused);
    assert!(!is_taken && said.contains("remote_adress"), "{said}");
    let (is_taken, said) = validate(&refused.replace("remote_adress", "remote_address"));
    assert!(
        !is_taken && said.contains("must be the last filter"),
        "{said}"
    );
}

#[test]
fn good_configurations_have_no_trap() {
    for file in ["deploy/envoy/envoy.yaml", "deploy/istio/envoyfilter.yaml"] {
        let (code, said) = lint(&root(file), Some(&root("config")));
        assert!(said.starts_with("ok: "), "{said}");
        assert_eq!(code, Some(0), "{said}");
    }
    // The bootstrap of the sidecar is in a ConfigMap.
    let bootstrap = root("deploy/kustomize/overlays/sidecar/envoy.yaml");
    let bootstrap = fs::read_to_string(bootstrap).unwrap();
    let lines: Vec<_> = bootstrap
        .lines()
        .map(|line| format!("    {line}"))
        .collect();
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: envoy}\ndata:\n  envoy.yaml: |\n";
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("manifest.yaml");
    fs::write(&file, head.to_owned() + &lines.join("\n")).unwrap();
    let (code, said) = lint(&file, None);
    let ok = "/envoy.yaml: 1 filter, 1 route, 2 clusters, no known trap\n";
    assert!(said.starts_with("ok: ") && said.ends_with(ok), "{said}");
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
    // The dump has the version of this Envoy, which its bootstrap has not.
    let late = good.replace(
        "domain: shop\n",
        "domain: shop\n                      rate_limits: [{ actions: [{ remote_address: {} }], hits_addend: { format: \
         \"%RESP(x-tokens)%\" }, apply_on_stream_done: true }]\n",
    );
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("late.yaml");
    fs::write(&file, &late).unwrap();
    let (_, said) = lint(&file, None);
    assert!(said.contains(": [late-header] "), "{said}");
    let rules = root("config");
    for (bootstrap, expected) in [
        (good, &[][..]),
        (bad, &["authority", "hits-addend", "http2", "timeout"]),
        (late, &["hidden-limits", "stream-done"]),
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
fn a_file_that_cannot_be_read_is_an_error_with_its_place() {
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
    check(
        b"a: 1\nb: \xff",
        "2:4: cannot be read: it is not UTF-8 text",
    );
    check(
        b"\xff\xfea\0",
        " cannot be read: it is UTF-16 text; save it as UTF-8",
    );
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
    let from = |file: &Path, flags: &str| {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("\"$0\" lint-envoy {flags} - < \"$1\""))
            .arg(env!("CARGO_BIN_EXE_tollgate"))
            .arg(file);
        let output = finish(&mut shell);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    let good = from(&root("deploy/envoy/envoy.yaml"), "");
    let expected = "ok: stdin: 1 filter, 2 routes, 2 clusters, no known trap\n";
    assert_eq!(good, (Some(0), expected.to_owned()));
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.json");
    fs::write(
        &file,
        r#"{"static_resources": {"listeners": [1], "clusters": [{"name": "a"}]}}"#,
    )
    .unwrap();
    let (code, said) = from(&file, "");
    assert!(
        said.starts_with("stdin: warning: the whole file: [nothing-checked] no rate"),
        "{said}"
    );
    assert_eq!(code, Some(1));
    fs::write(&file, "domain: shop").unwrap();
    let (code, said) = from(&file, "");
    assert!(
        said.starts_with("stdin: not an Envoy configuration"),
        "{said}"
    );
    assert_eq!(code, Some(2));
}

/// A rate limit filter without another trap than these of `more`, in a file of its own.
const FILTER: &str = "
name: envoy.filters.http.ratelimit
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
  domain: shop
  failure_mode_deny: false
  enable_x_ratelimit_headers: DRAFT_VERSION_03
";

#[test]
fn several_files_and_folders_are_checked_together() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("all/b/good.yml", &format!("{FILTER}  timeout: 1s\n"));
    write("all/b/bad.yaml", FILTER);
    write("all/.hidden/bad.yaml", FILTER);
    write(
        "all/clusters.json",
        r#"{"static_resources": {"clusters": [{"name": "a"}]}}"#,
    );
    write("all/rules.yaml", "domain: shop\n");
    write(
        "all/template.yaml",
        "{{- if .Values.static_resources }}\nkind: EnvoyFilter\n{{- end }}\n",
    );
    write("all/other.yaml", "a: }\n");
    write("all/notes.txt", "domain: }\n");
    write("other.yaml", FILTER);
    let (code, said) = run(&[&path("all"), &path("other.yaml")]);
    let parts: Vec<_> = said
        .lines()
        .map(|line| line.replace(&path(""), ""))
        .collect();
    let timeout =
        |file: &str| format!("{file}:4:4: warning: typed_config: [timeout] no timeout is set");
    assert_eq!(parts.len(), 6, "{said}");
    assert!(parts[0].starts_with(&timeout("all/b/bad.yaml")), "{said}");
    assert_eq!(
        parts[1],
        "all/b/bad.yaml: 1 filter, 0 routes, 0 clusters: 1 finding"
    );
    assert_eq!(
        parts[2],
        "ok: all/b/good.yml: 1 filter, 0 routes, 0 clusters, no known trap"
    );
    assert!(parts[3].starts_with(&timeout("other.yaml")), "{said}");
    assert_eq!(
        parts[4],
        "other.yaml: 1 filter, 0 routes, 0 clusters: 1 finding"
    );
    let summary = "3 files checked, 2 findings; passed over: 1 file without a rate limit filter, 1 template, \
                   2 files that are not Envoy configurations";
    assert_eq!(parts[5], summary);
    assert_eq!(code, Some(1));
    // A file that was probably meant to be a configuration is not passed over.
    write("all/broken.yaml", "static_resources: }\n");
    let (code, said) = run(&[&path("all")]);
    assert!(said.contains("all/broken.yaml:1:19: "), "{said}");
    assert_eq!(code, Some(2));
    let (code, said) = run(&[&path("all/rules.yaml"), &path("all/b/good.yml")]);
    assert!(
        said.contains("rules.yaml: not an Envoy configuration"),
        "{said}"
    );
    assert!(said.contains("ok: "), "the other one is checked: {said}");
    assert_eq!(code, Some(2));
}

#[test]
fn a_file_or_folder_without_a_filter_is_a_finding() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().display().to_string();
    let file = format!("{path}/clusters.yaml");
    fs::write(&file, "static_resources: { clusters: [{ name: a }] }\n").unwrap();
    let (code, said) = run(&[&file]);
    let expected = "warning: the whole file: [nothing-checked] no rate limit filter in it: nothing was checked; ";
    assert!(said.starts_with(&format!("{file}: {expected}")), "{said}");
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    for flags in [["--allow", "nothing-checked"], ["--min-severity", "error"]] {
        let (code, said) = run(&[&file, flags[0], flags[1]]);
        let expected = format!("{file}: no rate limit filter in it: nothing was checked\n");
        assert_eq!((code, said), (Some(0), expected));
    }
    let (code, said) = run(&[&path]);
    let expected =
        "warning: the whole folder: [nothing-checked] no file in it has a rate limit filter: ";
    assert!(said.starts_with(&format!("{path}: {expected}")), "{said}");
    assert_eq!(code, Some(1));
}

#[test]
fn findings_are_left_out_by_severity_and_by_name() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.yaml");
    let file = file.display().to_string();
    let text = FILTER.replace("DRAFT_VERSION_03", "\"OFF\"");
    fs::write(&file, &text).unwrap();
    let traps = |flags: &[&str]| {
        let (code, said) = run(&[&[file.as_str()], flags].concat());
        let traps: Vec<_> = said
            .lines()
            .filter_map(|line| Some(line.split_once(": [")?.1.split_once(']')?.0))
            .collect();
        (code, traps.join(" "), said.clone())
    };
    let (code, found, _) = traps(&[]);
    assert_eq!((code, &*found), (Some(1), "timeout headers"));
    let (code, found, _) = traps(&["--min-severity", "warning"]);
    assert_eq!((code, &*found), (Some(1), "timeout"));
    let (code, found, _) = traps(&["--allow", "timeout"]);
    assert_eq!((code, &*found), (Some(1), "headers"));
    let expected = format!(
        "ok: {file}: 1 filter, 0 routes, 0 clusters, no known trap (2 findings left out)\n"
    );
    let nothing = (Some(0), String::new(), expected);
    assert_eq!(
        traps(&["--allow", "timeout", "--allow", "headers"]),
        nothing
    );
    assert_eq!(traps(&["--min-severity", "error"]), nothing);
    let (code, said) = run(&[&file, "--allow", "time-out"]);
    assert!(
        said.contains("'timeout'"),
        "the nearest name is suggested: {said}"
    );
    assert_eq!(code, Some(2));
}

#[test]
fn findings_are_printed_as_json() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let bad = file("bad.yaml", FILTER);
    let broken = file("broken.yaml", "a: }\n");
    let output = finish(program().args(["lint-envoy", "--format", "json", &bad, &broken]));
    assert_eq!(output.status.code(), Some(2));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!([{
        "file": bad, "inside": null, "line": 4, "column": 4, "path": "typed_config",
        "severity": "warning", "trap": "timeout",
        "message": "no timeout is set, so Envoy discards answers after 20 ms, its default",
        "fix": "write `timeout: 0.25s`; fast answers are not delayed",
    }]);
    assert_eq!(json["findings"], expected);
    let expected = serde_json::json!([{
        "file": bad, "inside": null, "filters": 1, "routes": 0, "clusters": 0, "rate_limits": 0,
        "findings": 1, "left_out": 0,
    }]);
    assert_eq!(json["files"], expected);
    let error = &json["errors"][0];
    assert_eq!(
        (&error["file"], &error["line"]),
        (&broken.into(), &1.into())
    );
    assert_eq!(json["passed_over"]["not_envoy"], 0);
    assert_eq!(json["version"], 1);
}

#[test]
fn configurations_in_config_maps_are_checked_at_their_lines() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("m.yaml");
    let path = file.display().to_string();
    let write = |data: &str| {
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: proxy\ndata:\n  other.yaml: 'domain: shop'\n";
        let more = "---\napiVersion: v1\nkind: Service\nmetadata: {}\n";
        fs::write(&file, format!("{map}  {data}\n{more}")).unwrap();
        run(&[&path])
    };
    let block = FILTER.replace('\n', "\n    ");
    let (code, said) = write(&format!("envoy.yaml: |{block}"));
    let place = format!("{path}:10:8: proxy/envoy.yaml: warning: typed_config: [timeout] ");
    assert!(said.starts_with(&place), "{said}");
    assert!(
        said.contains(&format!("{path}: proxy/envoy.yaml: 1 filter, ")),
        "{said}"
    );
    assert_eq!(code, Some(1));
    let (_, said) = write(&format!("envoy.yaml: {FILTER:?}"));
    let place = format!("{path}:7:3: proxy/envoy.yaml: warning: line 4: typed_config: [timeout] ");
    assert!(said.starts_with(&place), "{said}");
    let (code, said) = write("envoy.yaml: |\n    static_resources:\n      listeners: }");
    assert!(said.starts_with(&format!("{path}:9:18: ")), "{said}");
    assert_eq!(code, Some(2));
    let (code, said) = write("some.yaml: 'a: 1'");
    assert!(
        said.starts_with(&format!("{path}: not an Envoy configuration")),
        "{said}"
    );
    assert_eq!(code, Some(2));
}
