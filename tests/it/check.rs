//! `tollgate check` in pipelines: what it reads, the forms of its report, and its exit codes.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde::Deserialize as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    cli::{files, path, run, run_in},
    lint_envoy::{IDLE_BYTES, peak_of},
    support::{
        finish,
        tollgate::{self, program},
        tool,
    },
};

const GOOD: &str = "\
domain: shop
descriptors:
  - key: remote_address
    rate_limits: [3/s, 20/m, 300/30m, 5000/day]
";

/// One warning.
const DOUBTFUL: &str = "\
domain: shop
descriptors:
  - key: k
    rate_limit: { unit: day }
";

/// One error.
const BAD: &str = "\
domain: shop
descriptors:
  - key: k
    rate_limit: { unit: fortnight, requests_per_unit: 1 }
";

/// The output of `tollgate check` in this folder.
fn check_in(folder: &Path, arguments: &str) -> (Option<i32>, String) {
    let (code, said, _) = run_in(folder, &format!("check {arguments}"));
    (code, said)
}

/// The output for standard input.
fn check_input(input: &str, arguments: &str) -> (Option<i32>, String) {
    let mut child = program()
        .arg("check")
        .args(arguments.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), text(&output))
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn deploy(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("deploy").join(name)
}

// --- what is read --------------------------------------------------------------------------------

/// The rule files in the ConfigMaps of manifests, as `yq -r '.data["shop.yaml"]'` prints them.
fn rules_in(manifests: &str) -> Vec<String> {
    let documents = serde_yaml::Deserializer::from_str(manifests);
    let resources = documents.map(|document| serde_yaml::Value::deserialize(document).unwrap());
    let config_maps = resources.filter(|resource| resource["kind"] == "ConfigMap");
    let files = config_maps.flat_map(|map| map["data"].as_mapping().unwrap().clone());
    let texts = files.map(|(_, text)| text.as_str().unwrap().to_owned());
    let is_rules = |text: &String| text.lines().any(|line| line.starts_with("domain:"));
    texts.filter(is_rules).collect()
}

const OF_GOOD: &str = "ok: 1 rule with 4 limits in 1 domain\n";

#[test]
fn the_rules_that_we_ship_are_good() {
    let said = check_in(&deploy("compose/rules"), "--deny-warnings .");
    assert_eq!(said, (Some(0), OF_GOOD.to_owned()));
}

/// Prints the manifests of the chart in the folder `argv[1]`, with its default values.
const RENDER_CHART: &str = "
import sys, helm_python
with helm_python.Chart.load(sys.argv[1]) as chart:
    files = chart.render({}, name='tollgate', namespace='tollgate')
    print('\\n---\\n'.join(text for path, text in files.items() if path.endswith('.yaml')))
";

#[test]
fn the_rules_are_good_as_kustomize_and_helm_print_them() {
    let mut printed = Vec::new();
    for overlay in ["istio", "memory", "redis", "redis-cluster", "sidecar"] {
        let folder = deploy("kustomize/overlays").join(overlay);
        let output = finish(Command::new(tool("kubectl")).arg("kustomize").arg(folder));
        printed.push((overlay, text(&output)));
    }
    let mut python = Command::new(tool("python3"));
    let python = python.args(["-c", RENDER_CHART]);
    printed.push((
        "the chart",
        text(&finish(python.arg(deploy("helm/tollgate")))),
    ));
    for (name, manifests) in printed {
        let rules = rules_in(&manifests);
        assert_eq!(rules.len(), 1, "{name}");
        let said = check_input(&rules[0], "--deny-warnings -");
        assert_eq!(said, (Some(0), OF_GOOD.to_owned()), "{name}");
    }
}

#[test]
fn a_folder_with_a_kustomization_is_refused_in_one_line_by_serve_and_by_check() {
    const REFUSAL: &str = "this is a Kubernetes Kustomization: no rule file";
    let kustomization = "resources: [deployment.yaml]\nconfigMapGenerator: []\n";
    let folder = files(&[("shop.yaml", GOOD), ("kustomization.yaml", kustomization)]);
    let (code, said) = check_in(folder.path(), ".");
    let refusal = format!("kustomization.yaml:1:1: {REFUSAL}");
    assert!(said.starts_with(&refusal), "{said}");
    assert_eq!(said.lines().last(), Some("failed: 1 error"), "{said}");
    assert_eq!(code, Some(1));
    let serve = tollgate::bare().args(["--config-dir", path(&folder)]);
    let (_, served) = serve.fail();
    assert_eq!(served.matches("kustomization.yaml").count(), 1, "{served}");
    assert!(served.contains(REFUSAL), "{served}");
}

#[test]
fn standard_input_is_a_file_called_stdin() {
    assert_eq!(check_input(GOOD, "-"), (Some(0), OF_GOOD.to_owned()));
    let (code, said) = check_input(BAD, "-");
    assert!(said.starts_with("stdin:4:19: shop.k: "), "{said}");
    assert_eq!(code, Some(1));
    // Beside other files it is one more.
    let folder = files(&[("shop.yaml", GOOD)]);
    let (code, said) = check_input(GOOD, &format!("- {}/shop.yaml", path(&folder)));
    assert!(said.contains("duplicate domain 'shop'"), "{said}");
    assert_eq!(code, Some(1));
}

// --- exit codes ----------------------------------------------------------------------------------

#[test]
fn the_exit_code_tells_good_rules_bad_rules_and_unread_ones_apart() {
    let folder = files(&[
        ("good.yaml", GOOD),
        ("doubtful.yaml", DOUBTFUL),
        ("bad.yaml", BAD),
    ]);
    let doubtful = "ok: 1 rule with 1 limit in 1 domain, 1 warning";
    let denied = "failed: 1 warning, and --deny-warnings is set";
    for (arguments, code, last) in [
        ("good.yaml", 0, OF_GOOD.trim_end()),
        ("--deny-warnings good.yaml", 0, OF_GOOD.trim_end()),
        ("doubtful.yaml", 0, doubtful),
        ("--deny-warnings doubtful.yaml", 1, denied),
        ("bad.yaml", 1, "failed: 1 error"),
        ("bad.yaml nowhere.yaml", 2, "failed: 2 errors"),
        ("--no-such-flag", 2, ""),
    ] {
        let (found, said) = check_in(folder.path(), arguments);
        assert_eq!(found, Some(code), "{arguments}: {said}");
        assert_eq!(said.lines().last().unwrap_or_default(), last);
    }
}

// --- warnings ------------------------------------------------------------------------------------

/// Rules that load in envoyproxy/ratelimit and here, and of which parts have no effect.
const DOUBTS: &str = "\
domain: shop
descriptors:
  - key: leaf
  - key: files
    value: a*
    rate_limits: [10/s, 5/m]
  - key: files
    value: ab*
    rate_limits: [10/s]
  - key: user
    rate_limits: [1/s]
  - key: user
    value: \"*\"
    rate_limits:
      - { unit: second, requests_per_unit: 010, name: n }
      - { unit: hour, requests_per_unit: 90, name: n }
";

#[test]
fn parts_of_rules_without_an_effect_are_warnings_of_check_and_of_serve() {
    let expected = [
        ":3:10: shop.leaf: warning: no limit",
        ":7:10: shop.files_ab*: warning: never reached: 'files_a*'",
        ":10:10: shop.user: warning: never reached: 'user_*'",
    ];
    let (code, said) = check_input(DOUBTS, "-");
    assert_eq!(code, Some(0), "{said}");
    let is_said =
        |text: &str, file: &str| expected.map(|one| text.contains(&format!("{file}{one}")));
    assert_eq!(is_said(&said, "stdin"), [true; 3], "{said}");
    let summary = "ok: 4 rules with 6 limits in 1 domain, 3 warnings";
    assert_eq!(said.lines().last(), Some(summary));
    assert_eq!(check_input(DOUBTS, "--deny-warnings -").0, Some(1));
    // Of one kind, ten are logged.
    let leaves = (0..12).map(|leaf| format!("  - key: leaf{leaf}\n"));
    let server = tollgate::with_rules(&(DOUBTS.to_owned() + &leaves.collect::<String>())).start();
    let log = server.log().with("rules loaded");
    assert_eq!(is_said(&log, "rules.yaml"), [true; 3], "{log}");
    assert_eq!(log.matches("warning: no limit").count(), 10, "{log}");
    let more = "3 more warnings of the kind no-limit";
    assert!(log.contains(more), "{log}");
}

// --- forms of the report -------------------------------------------------------------------------

/// The report on files with an error, a warning and a note, in a folder whose name needs escapes.
fn of_mixed(format: &str) -> (Option<i32>, String) {
    const FOLDER: &str = "my rules, 100%";
    let note = GOOD.replace("domain: shop", "name: n\ndomain: third");
    let folder = TempDir::new().unwrap();
    let rules = folder.path().join(FOLDER);
    fs::create_dir(&rules).unwrap();
    for (name, text) in [
        ("a", &*DOUBTFUL.replace("shop", "other")),
        ("b", BAD),
        ("c", &*note),
    ] {
        fs::write(rules.join(format!("{name}.yaml")), text).unwrap();
    }
    let mut check = program();
    check.args(["check", "--format", format, FOLDER]);
    let output = finish(check.current_dir(&folder));
    (output.status.code(), text(&output))
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn json_has_every_part_of_a_problem() {
    let (code, said) = of_mixed("json");
    assert_eq!(code, Some(1));
    let mut report = json_of(&said);
    let problems = report["problems"].take();
    let expected = json!({
        "version": 2, "ok": false, "errors": 1, "warnings": 1,
        "files": 0, "domains": 0, "rules": 0, "limits": 0, "problems": null,
    });
    assert_eq!(report, expected);
    assert_eq!(problems.as_array().unwrap().len(), 3);
    let message = problems[1]["message"].as_str().unwrap();
    assert!(message.contains("'fortnight'"), "{message}");
    for (at, name, value) in [
        (0_usize, "file", json!("my rules, 100%/a.yaml")),
        (0, "severity", json!("warning")),
        (0, "code", json!("no-requests-per-unit")),
        (1, "file", json!("my rules, 100%/b.yaml")),
        (1, "line", json!(4)),
        (1, "column", json!(19)),
        (1, "path", json!("shop.k")),
        (1, "severity", json!("error")),
        (1, "code", json!("unknown-unit")),
        (2, "severity", json!("note")),
    ] {
        assert_eq!(problems[at][name], value, "{problems:#}");
    }
    let (_, said) = run("check --format json nowhere.yaml");
    assert_eq!(json_of(&said)["problems"][0]["line"], Value::Null);
    let (code, said) = check_input(GOOD, "--format json -");
    let expected = json!({
        "version": 2, "ok": true, "errors": 0, "warnings": 0,
        "files": 1, "domains": 1, "rules": 1, "limits": 4, "problems": [],
    });
    assert_eq!((code, json_of(&said)), (Some(0), expected));
}

#[test]
fn sarif_has_the_members_that_its_schema_requires() {
    let (code, said) = of_mixed("sarif");
    assert_eq!(code, Some(1));
    let log = json_of(&said);
    assert_eq!(log["version"], "2.1.0");
    let own = &log["runs"][0];
    let driver = &own["tool"]["driver"];
    assert_eq!(driver["name"], "tollgate check");
    let rules = driver["rules"].as_array().unwrap().iter();
    let ids: Vec<_> = rules.map(|rule| &rule["id"]).collect();
    let results = own["results"].as_array().unwrap();
    let levels: Vec<_> = results.iter().map(|result| &result["level"]).collect();
    assert_eq!(levels, ["warning", "error", "note"]);
    for result in results {
        assert!(ids.contains(&&result["ruleId"]), "{result}");
        assert!(result["message"]["text"].is_string(), "{result}");
    }
    let location = &results[1]["locations"][0]["physicalLocation"];
    let uri = &location["artifactLocation"]["uri"];
    assert_eq!(uri, "my%20rules%2C%20100%25/b.yaml");
    let region = json!({ "startLine": 4, "startColumn": 19 });
    assert_eq!(location["region"], region);
    let log = json_of(&run("check --format sarif nowhere.yaml").1);
    let location = &log["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert!(location["region"].is_null());
    // A run without problems is one too.
    let (code, said) = check_input(GOOD, "--format sarif -");
    assert_eq!(code, Some(0));
    assert_eq!(json_of(&said)["runs"][0]["results"], json!([]));
}

#[test]
fn github_gets_a_command_for_each_problem() {
    let (code, said) = of_mixed("github");
    assert_eq!(code, Some(1));
    let lines: Vec<_> = said.lines().collect();
    let file = "file=my rules%2C 100%25";
    for (line, start) in lines.iter().zip([
        format!("::warning {file}/a.yaml,line=4,col=19,title=tollgate check%3A no-requests-per-unit::other.k: "),
        format!("::error {file}/b.yaml,line=4,col=19,title=tollgate check%3A unknown-unit::shop.k: "),
        format!("::notice {file}/c.yaml,line=1,col=1,title=tollgate check%3A resource-name::"),
        "failed: 1 error, 1 warning".to_owned(),
    ]) {
        assert!(line.starts_with(&start), "{start}: {line}");
    }
    assert_eq!(lines.len(), 4, "{said}");
}

/// Rules of a megabyte that repeat what is long, or are dense: a short report soon and in little memory, as other texts
/// are in `a_megabyte_of_anything_is_reported_soon_and_in_little_memory`.
#[test]
fn a_megabyte_of_rules_is_reported_soon_and_in_little_memory() {
    const BYTES: usize = 1 << 20;
    let fill = |begin: &str, part: &dyn Fn(usize) -> String, end: &str| {
        let (mut text, bytes) = (begin.to_owned(), BYTES - end.len());
        let parts = (0..).map(part);
        for part in parts {
            if text.len() + part.len() > bytes {
                break;
            }
            text += &part;
        }
        text + end
    };
    let rules = "domain: d\ndescriptors:\n";
    let long = "k".repeat(BYTES / 2);
    let same = |part: &'static str| move |_: usize| part.to_owned();
    let limit = |n: u32| {
        format!("  - {{unit: day, unit_multiplier: {n}, requests_per_unit: 1, name: n{n}}}\n")
    };
    let limits: String = (1..1_000).map(limit).collect();
    let named = format!("{rules}- key: k\n  rate_limits:\n{limits}");
    let replaces = format!("{named}  - {{unit: year, requests_per_unit: 1, replaces: [");
    let dense = |n: usize| format!("- {{key: u, value: a{n}}}\n");
    let pairs = |n: usize| {
        format!("- key: k{n}\n  metadata: {{a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8}}\n")
    };
    let wildcards = |n: usize| match n {
        0..4_000 => format!("- key: z{n:04}*\n"),
        _ => format!("- key: a{n}\n"),
    };
    let domain = format!("domain: {long}\ndescriptors:\n");
    let anchor = format!("{rules}- key: &k {long}\n");
    let metadata = format!("{rules}- key: k\n  metadata:\n    ? {long}\n    : [");
    let broken = "- {key: [\n";
    let names = |n: usize| format!("{{name: z{n}}}, ");
    let binary = "domain: d # !!binary\nx: ";
    let cases = [
        ("lines", fill("", &same("a: b\n"), "")),
        ("keys", fill(rules, &same("key: a\n"), "")),
        ("merges", fill("domain: d\n", &same("<<: 1\n"), "")),
        ("items", fill(rules, &same("- a\n"), "")),
        ("dense", fill(rules, &dense, broken)),
        ("pairs", fill(rules, &pairs, "")),
        ("pairs and an error", fill(rules, &pairs, broken)),
        ("a domain", fill(&domain, &dense, "")),
        ("aliases", fill(&anchor, &same("- key: *k\n"), "")),
        ("names", fill(&replaces, &names, "]}\n")),
        ("binary", fill(binary, &same("[aaaaaaa, "), "")),
        ("numbers", fill(&metadata, &same("1, "), "]\n")),
        ("wildcards", fill(rules, &wildcards, "")),
    ];
    let file = |text: &str| files(&[("a.yaml", text)]);
    let check = |folder: &TempDir| peak_of(&["check", &format!("{}/a.yaml", path(folder))]);
    let idle = check(&file(GOOD)).0;
    for (name, text) in &cases {
        let folder = file(text);
        let began = Instant::now();
        let (peak, output) = check(&folder);
        let took = began.elapsed();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.lines().count() <= 206, "{name}: {said}");
        // A busy machine and a build without optimisation take longer.
        let bound = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 1 });
        assert!(took < bound, "{name}: {took:?}");
        let bound = (64 << 20) + idle.saturating_sub(IDLE_BYTES);
        assert!(peak <= bound, "{name}: {peak} bytes of {bound}");
    }
}
