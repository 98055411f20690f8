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

fn files(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// The output of `tollgate check` in this folder.
fn check_in(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = finish(program().current_dir(folder).arg("check").args(arguments));
    (output.status.code(), text(&output))
}

/// The output for standard input.
fn check_input(input: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = program()
        .arg("check")
        .args(arguments)
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
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("deploy")
        .join(name)
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

/// Checks that `manifests` have one rule file, and that it has nothing to warn of.
#[track_caller]
fn has_good_rules(name: &str, manifests: &str) {
    let rules = rules_in(manifests);
    assert_eq!(rules.len(), 1, "{name}");
    let (code, said) = check_input(&rules[0], &["--deny-warnings", "-"]);
    let summary = "ok: 1 rule with 4 limits in 1 domain\n";
    assert_eq!((code, said.as_str()), (Some(0), summary), "{name}");
}

#[test]
fn the_rules_that_we_ship_are_good() {
    let (code, said) = check_in(&deploy("compose/rules"), &["--deny-warnings", "."]);
    let summary = "ok: 1 rule with 4 limits in 1 domain\n";
    assert_eq!((code, said.as_str()), (Some(0), summary));
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
    python
        .args(["-c", RENDER_CHART])
        .arg(deploy("helm/tollgate"));
    printed.push(("the chart", text(&finish(&mut python))));
    for (name, manifests) in printed {
        has_good_rules(name, &manifests);
    }
}

#[test]
fn a_folder_with_a_kustomization_is_refused_in_one_line_by_serve_and_by_check() {
    const REFUSAL: &str = "this is a Kubernetes Kustomization: no rule file";
    let kustomization = "resources: [deployment.yaml]\nconfigMapGenerator: []\n";
    let folder = files(&[("shop.yaml", GOOD), ("kustomization.yaml", kustomization)]);
    let (code, said) = check_in(folder.path(), &["."]);
    let refusal = format!("kustomization.yaml:1:1: {REFUSAL}");
    assert!(said.starts_with(&refusal), "{said}");
    assert_eq!(said.lines().last(), Some("failed: 1 error"), "{said}");
    assert_eq!(code, Some(1));
    let (_, served) = tollgate::bare()
        .args(["--config-dir", folder.path().to_str().unwrap()])
        .fail();
    assert_eq!(served.matches("kustomization.yaml").count(), 1, "{served}");
    assert!(served.contains(REFUSAL), "{served}");
}

#[test]
fn standard_input_is_a_file_called_stdin() {
    let (code, said) = check_input(GOOD, &["-"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "ok: 1 rule with 4 limits in 1 domain\n")
    );
    let (code, said) = check_input(BAD, &["-"]);
    assert!(said.starts_with("stdin:4:19: shop.k: "), "{said}");
    assert_eq!(code, Some(1));
    // Beside other files it is one more.
    let folder = files(&[("shop.yaml", GOOD)]);
    let path = folder.path().join("shop.yaml");
    let (code, said) = check_input(GOOD, &["-", path.to_str().unwrap()]);
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
    let code = |arguments: &[&str]| {
        let (code, said) = check_in(folder.path(), arguments);
        (code, said.lines().last().unwrap_or_default().to_owned())
    };
    let ok = "ok: 1 rule with 4 limits in 1 domain".to_owned();
    assert_eq!(code(&["good.yaml"]), (Some(0), ok.clone()));
    assert_eq!(code(&["--deny-warnings", "good.yaml"]), (Some(0), ok));
    let ok = "ok: 1 rule with 1 limit in 1 domain, 1 warning".to_owned();
    assert_eq!(code(&["doubtful.yaml"]), (Some(0), ok));
    let denied = "failed: 1 warning, and --deny-warnings is set".to_owned();
    assert_eq!(
        code(&["--deny-warnings", "doubtful.yaml"]),
        (Some(1), denied)
    );
    assert_eq!(code(&["bad.yaml"]), (Some(1), "failed: 1 error".to_owned()));
    assert_eq!(
        code(&["bad.yaml", "nowhere.yaml"]),
        (Some(2), "failed: 2 errors".to_owned())
    );
    assert_eq!(code(&["--no-such-flag"]).0, Some(2));
    let empty = TempDir::new().unwrap();
    assert_eq!(check_in(empty.path(), &["."]).0, Some(2));
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
    let (code, said) = check_input(DOUBTS, &["-"]);
    assert_eq!(code, Some(0), "{said}");
    for expected in expected {
        assert!(
            said.contains(&format!("stdin{expected}")),
            "{expected}: {said}"
        );
    }
    let summary = "ok: 4 rules with 6 limits in 1 domain, 3 warnings";
    assert_eq!(said.lines().last(), Some(summary));
    assert_eq!(check_input(DOUBTS, &["--deny-warnings", "-"]).0, Some(1));
    // Of one kind, ten are logged.
    let leaves = (0..12).map(|leaf| format!("  - key: leaf{leaf}\n"));
    let server = tollgate::with_rules(&(DOUBTS.to_owned() + &leaves.collect::<String>())).start();
    let log = server.log().with("rules loaded");
    for expected in expected {
        assert!(
            log.contains(&format!("rules.yaml{expected}")),
            "{expected}: {log}"
        );
    }
    assert_eq!(log.matches("warning: no limit").count(), 10, "{log}");
    assert!(
        log.contains("3 more warnings of the kind no-limit"),
        "{log}"
    );
}

// --- forms of the report -------------------------------------------------------------------------

/// Files with an error, a warning and a note, in a folder `rules` and with names that need escapes.
fn mixed() -> TempDir {
    let folder = TempDir::new().unwrap();
    let rules = folder.path().join("my rules, 100%");
    fs::create_dir(&rules).unwrap();
    fs::write(rules.join("a.yaml"), DOUBTFUL.replace("shop", "other")).unwrap();
    fs::write(rules.join("b.yaml"), BAD).unwrap();
    fs::write(
        rules.join("c.yaml"),
        GOOD.replace("domain: shop", "name: n\ndomain: third"),
    )
    .unwrap();
    folder
}

#[test]
fn json_has_every_part_of_a_problem() {
    let folder = mixed();
    let (code, said) = check_in(folder.path(), &["--format", "json", "my rules, 100%"]);
    assert_eq!(code, Some(1));
    let mut report: Value = serde_json::from_str(&said).unwrap();
    let problems = report["problems"].take();
    assert_eq!(
        report,
        json!({
            "version": 2, "ok": false, "errors": 1, "warnings": 1,
            "files": 0, "domains": 0, "rules": 0, "limits": 0, "problems": null,
        })
    );
    let problem = |at: usize, key: &str| problems[at][key].clone();
    assert_eq!(problems.as_array().unwrap().len(), 3);
    assert_eq!(problem(0, "file"), "my rules, 100%/a.yaml");
    assert_eq!(problem(0, "severity"), "warning");
    assert_eq!(problem(0, "code"), "no-requests-per-unit");
    assert_eq!(problem(1, "file"), "my rules, 100%/b.yaml");
    assert_eq!([problem(1, "line"), problem(1, "column")], [4, 19]);
    assert_eq!(problem(1, "path"), "shop.k");
    assert_eq!(problem(1, "severity"), "error");
    assert_eq!(problem(1, "code"), "unknown-unit");
    assert!(
        problem(1, "message")
            .as_str()
            .unwrap()
            .contains("'fortnight'")
    );
    assert_eq!(problem(2, "severity"), "note");
    let (_, said) = check_in(folder.path(), &["--format", "json", "nowhere.yaml"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["problems"][0]["line"], Value::Null);
    let (code, said) = check_input(GOOD, &["--format", "json", "-"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    let expected = json!({
        "version": 2, "ok": true, "errors": 0, "warnings": 0,
        "files": 1, "domains": 1, "rules": 1, "limits": 4, "problems": [],
    });
    assert_eq!((code, report), (Some(0), expected));
}

#[test]
fn sarif_has_the_members_that_its_schema_requires() {
    let folder = mixed();
    let (code, said) = check_in(folder.path(), &["--format", "sarif", "my rules, 100%"]);
    assert_eq!(code, Some(1));
    let log: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "tollgate check");
    let ids: Vec<_> = driver["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| &rule["id"])
        .collect();
    let results = run["results"].as_array().unwrap();
    let levels: Vec<_> = results.iter().map(|result| &result["level"]).collect();
    assert_eq!(levels, ["warning", "error", "note"]);
    for result in results {
        assert!(ids.contains(&&result["ruleId"]), "{result}");
        assert!(result["message"]["text"].is_string(), "{result}");
    }
    let location = &results[1]["locations"][0]["physicalLocation"];
    assert_eq!(
        location["artifactLocation"]["uri"],
        "my%20rules%2C%20100%25/b.yaml"
    );
    assert_eq!(
        location["region"],
        json!({ "startLine": 4, "startColumn": 19 })
    );
    let (_, said) = check_in(folder.path(), &["--format", "sarif", "nowhere.yaml"]);
    let log: Value = serde_json::from_str(&said).unwrap();
    let location = &log["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert!(location["region"].is_null());
    // A run without problems is one too.
    let (code, said) = check_input(GOOD, &["--format", "sarif", "-"]);
    let log: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(code, Some(0));
    assert_eq!(log["runs"][0]["results"], json!([]));
}

#[test]
fn github_gets_a_command_for_each_problem() {
    let folder = mixed();
    let (code, said) = check_in(folder.path(), &["--format", "github", "my rules, 100%"]);
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
    let limits: String = (1..1_000)
        .map(|number| format!("  - {{unit: day, unit_multiplier: {number}, requests_per_unit: 1, name: n{number}}}\n"))
        .collect();
    let dense = |number: usize| format!("- {{key: u, value: a{number}}}\n");
    let pairs = |number: usize| {
        format!(
            "- key: k{number}\n  metadata: {{a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8}}\n"
        )
    };
    let cases = [
        ("lines", fill("", &same("a: b\n"), "")),
        ("keys", fill(rules, &same("key: a\n"), "")),
        ("merges", fill("domain: d\n", &same("<<: 1\n"), "")),
        ("items", fill(rules, &same("- a\n"), "")),
        ("dense", fill(rules, &dense, "- {key: [\n")),
        ("pairs", fill(rules, &pairs, "")),
        ("pairs and an error", fill(rules, &pairs, "- {key: [\n")),
        (
            "a domain",
            fill(&format!("domain: {long}\ndescriptors:\n"), &dense, ""),
        ),
        (
            "aliases",
            fill(
                &format!("{rules}- key: &k {long}\n"),
                &same("- key: *k\n"),
                "",
            ),
        ),
        (
            "names",
            fill(
                &format!(
                    "{rules}- key: k\n  rate_limits:\n{limits}  - {{unit: year, requests_per_unit: 1, replaces: ["
                ),
                &|number| format!("{{name: z{number}}}, "),
                "]}\n",
            ),
        ),
        (
            "binary",
            fill("domain: d # !!binary\nx: ", &same("[aaaaaaa, "), ""),
        ),
        (
            "numbers",
            fill(
                &format!("{rules}- key: k\n  metadata:\n    ? {long}\n    : ["),
                &same("1, "),
                "]\n",
            ),
        ),
        (
            "wildcards",
            fill(
                rules,
                &|number| match number {
                    0..4_000 => format!("- key: z{number:04}*\n"),
                    _ => format!("- key: a{number}\n"),
                },
                "",
            ),
        ),
    ];
    let file = |text: &str| files(&[("a.yaml", text)]);
    let check =
        |folder: &TempDir| peak_of(&["check", folder.path().join("a.yaml").to_str().unwrap()]);
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
