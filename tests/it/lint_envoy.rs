//! `tollgate lint-envoy`: names the settings that limit nothing in a real Envoy, is silent about the others, and shows
//! the descriptors that Envoy sends.

mod cases;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use clap::CommandFactory as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::Cli;

use self::cases::{CASES, Case};
use crate::support::{
    envoy::Envoy,
    finish,
    http::{get, send, try_get},
    tollgate::{self as server, Tollgate, program},
    wait_until,
};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The exit code, and everything that is printed.
#[track_caller]
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = finish(program().arg("lint-envoy").args(arguments));
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Checks the exit code, and what is printed: that it has this text, after a `^` at its beginning.
#[track_caller]
fn check(arguments: &[&str], code: i32, expected: &str) -> String {
    let (ended, said) = run(arguments);
    let is_said = match expected.strip_prefix('^') {
        Some(begin) => said.starts_with(begin),
        None => said.contains(expected),
    };
    assert!(is_said, "{expected}: {said}");
    assert_eq!(ended, Some(code), "{said}");
    said
}

/// Without `--request`, and with it.
const REQUESTED: [&[&str]; 2] = [&[], &["--request", "GET a.b/"]];

/// A folder with a file of this text, and with rules.
struct Input {
    _folder: TempDir,
    file: String,
    rules: String,
}

impl Input {
    fn new(text: &str, rules: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("envoy.yaml"), text).unwrap();
        fs::create_dir(path("rules")).unwrap();
        fs::write(path("rules/rules.yaml"), rules).unwrap();
        Self {
            file: path("envoy.yaml"),
            rules: path("rules"),
            _folder: folder,
        }
    }

    /// The findings as the cases write them, each once, and the report.
    fn finds(&self) -> (String, String) {
        let (_, said) = run(&[&self.file, "--rules", &self.rules, "--format", "json"]);
        let report: Value = serde_json::from_str(&said).expect(&said);
        let problems = report["problems"].as_array().unwrap().iter();
        let mut found: Vec<_> = problems
            .map(|problem| format!("{} {}", text(&problem["severity"]), text(&problem["code"])))
            .collect();
        found.sort();
        found.dedup();
        (found.join(", "), said)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The columns of a row of a table.
fn columns<const N: usize>(row: &str) -> [&str; N] {
    let columns: Vec<_> = row.split(';').map(str::trim).collect();
    columns.try_into().expect(row)
}

/// tollgate with the rules of all cases, and Envoy with a listener for each.
fn start(cases: &[Case]) -> (Tollgate, Envoy) {
    let builder = server::builder().args(["--log-decisions", "all"]);
    let tollgate = cases.iter().fold(builder, |builder, case| {
        builder.file(&format!("{}.yaml", case.name), &case.rules())
    });
    let tollgate = tollgate.start();
    let listeners: String = cases.iter().map(Case::listener).collect();
    let bootstrap = cases::bootstrap(&listeners, tollgate.grpc.port());
    let envoy = Envoy::start(|| bootstrap.clone());
    (tollgate, envoy)
}

/// The dump of an Envoy with only the listener of this name.
fn dump_of(dump: &Value, name: &str) -> String {
    let mut dump = dump.clone();
    for part in dump["configs"].as_array_mut().unwrap() {
        for path in ["/static_listeners", "/bootstrap/static_resources/listeners"] {
            if let Some(Value::Array(listeners)) = part.pointer_mut(path) {
                listeners.retain(|listener| {
                    [&listener["name"], &listener["listener"]["name"]].contains(&&json!(name))
                });
            }
        }
    }
    dump.to_string()
}

#[test]
fn each_finding_has_the_effect_that_it_names_and_each_request_the_descriptors_in_a_real_envoy() {
    let (tollgate, envoy) = start(&CASES);
    let dump: Value = serde_json::from_str(&get(envoy.admin, "/config_dump").body).unwrap();
    let mut compared = Compared::new(&envoy, &tollgate);
    // `--request` is about HTTP, the calls of another cluster reach nothing, and a `matcher` is not read.
    let is_other = |name: &str| name == "http2" || name == "matcher" || name.starts_with("tcp");
    for case in CASES.iter().filter(|case| !is_other(case.name)) {
        let input = Input::new(&case.file(), &case.rules());
        let input = [&*input.file, &input.rules];
        let headers = [("x-user", "b")];
        compared.check(case.name, input, "GET shop.example.com/", &headers);
    }
    let mut wrong = Vec::new();
    for case in CASES.iter() {
        for input in [case.file(), dump_of(&dump, case.name)] {
            let (found, said) = Input::new(&input, &case.rules()).finds();
            if found != case.finds {
                wrong.push(format!("{}: {found}\n{said}", case.name));
            }
        }
        let front = envoy.listener(case.name);
        let statuses = [0; 4].map(|_| {
            let reply = try_get(front, "/", &[("x-user", b"a")]);
            // The calls at the end of the stream have been answered.
            wait_until("no call is under way", || {
                envoy.stat("cluster.tollgate.upstream_rq_active") == 0
            });
            reply.map_or(0, |reply| reply.status)
        });
        // A TCP connection is closed.
        let mut expected = [if case.filter == "tcp" { 0 } else { 429_u16 }; 4];
        expected[..case.passing].fill(200);
        if statuses != expected {
            wrong.push(format!("{}: {statuses:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_finding_has_a_case_and_is_in_the_documents_and_in_the_help() {
    let page = fs::read_to_string(root("docs/envoy/lint-envoy.md")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name, rest.split_once(" |")?.0))
    });
    let rows: BTreeMap<_, _> = rows.collect();
    let cli = Cli::command();
    let lint_envoy = cli.find_subcommand("lint-envoy").unwrap();
    let mut flags = lint_envoy.get_arguments();
    let allow = flags.find(|flag| flag.get_long() == Some("allow")).unwrap();
    let names = allow.get_possible_values();
    let names: Vec<_> = names.iter().map(|name| name.get_name()).collect();
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), names);
    let cases = CASES.iter().map(|case| case.finds);
    let patches = PATCHES.lines().map(|row| columns::<5>(row)[4]);
    let found = cases.chain(patches).flat_map(|finds| finds.split(", "));
    let found: Vec<_> = found.collect();
    let (_, help) = run(&["--help"]);
    for (name, severities) in rows {
        assert!(help.contains(name), "{name}: {help}");
        // The whole file has this one, and a test of its own.
        let found = found.iter().filter_map(|found| found.split_once(' '));
        let mut found = found.filter(|(_, found)| *found == name).peekable();
        assert!(
            name == "nothing-checked" || found.peek().is_some(),
            "{name}"
        );
        assert!(
            found.all(|(severity, _)| severities.contains(severity)),
            "{name}"
        );
    }
}

/// EnvoyFilters: the object, the context, the virtual host, the value, and the findings.
const PATCHES: &str = "\
VIRTUAL_HOST; GATEWAY; shop.example.com:80; rate_limits: [$ITEM];
VIRTUAL_HOST; GATEWAY; shop.example.com; rate_limits: [$ITEM]; warning no-match
VIRTUAL_HOST; GATEWAY; inbound|http|8080; rate_limits: [$ITEM]; warning no-match
VIRTUAL_HOST; SIDECAR_INBOUND; inbound|http|8080; rate_limits: [$ITEM];
VIRTUAL_HOST; SIDECAR_OUTBOUND; allow_any; rate_limits: [$ITEM];
VIRTUAL_HOST; SIDECAR_INBOUND; shop:80; rate_limits: [$ITEM]; warning no-match
VIRTUAL_HOST; GATEWAY; {{ host }}; rate_limits: [$ITEM];
VIRTUAL_HOST; GATEWAY; ; route: { rate_limits: [$ITEM] }; error misplaced-limits
HTTP_ROUTE; GATEWAY; ; route: { rate_limits: [$ITEM] };
HTTP_ROUTE; GATEWAY; ; rate_limits: [$ITEM]; error misplaced-limits
HTTP_ROUTE; GATEWAY; ; route: { rate_limits: [$ITEM], typed_per_filter_config: {} }; error misplaced-limits
ROUTE_CONFIGURATION; GATEWAY; ; rate_limits: [$ITEM]; error misplaced-limits
";

#[test]
fn patches_of_istio_that_change_nothing_are_found() {
    for [object, context, host, value, finds] in PATCHES.lines().map(columns::<5>) {
        let of = match host {
            "" => String::new(),
            _ => format!(", routeConfiguration: {{ vhost: {{ name: '{host}' }} }}"),
        };
        let value = value.replace("$ITEM", "{ actions: [{ remote_address: {} }] }");
        let text = format!(
            "apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {{ name: a }}
spec:
  configPatches:
  - applyTo: {object}
    match: {{ context: {context}{of} }}
    patch: {{ operation: MERGE, value: {{ {value} }} }}
"
        );
        let rules = "domain: shop\ndescriptors: [{ key: remote_address, rate_limits: [1/day] }]\n";
        let (found, said) = Input::new(&text, rules).finds();
        assert_eq!(found, finds, "{text}\n{said}");
    }
}

#[test]
fn good_configurations_have_no_finding() {
    let files = ["deploy/envoy/envoy.yaml", "deploy/istio/envoyfilter.yaml"];
    for file in files.map(root) {
        let file = file.display().to_string();
        let rules = root("config").display().to_string();
        check(&[&file, "--rules", &rules], 0, "^ok: ");
    }
    // A dump leaves out this setting, which is the default: there, only `IGNORE` says it.
    let case = Case {
        routes: "[{ name: a, domains: ['*'], rate_limits: [{ actions: [$PLAN] }], routes: [{ $ANY, \
                 $ITEMS [{ actions: [$USER] }] }, $CONFIG { $PER_ROUTE, vh_rate_limits: OVERRIDE } } }] }]",
        ..Case::of("own-of-route")
    };
    let (found, said) = Input::new(&case.file(), &case.rules()).finds();
    assert_eq!(found, "", "{said}");
}

/// Requests to the listener `zoo`: a path of `GET shop.example.com` or method, host and path; and headers.
const REQUESTS: &str = "/, GET shop.example.com:8080/, GET SHOP.example.com/exact?a=b, /exactly, /included,
    /api?q=a%20b, /api/x?q=1&q=2, /api, /apis?q=1, /item/12, PUT shop.example.com/item/12?x=y, /item/12a,
    /headers; x-plan:gold, /headers, /headers; x-plan:tin, /headers; x-plan:silver, /headers; x-plan:silver; x-more:1,
    /headers; x-plan:s; x-plan:r, /missing, /missing; x-plan:s, /query?a=abc, /query?a=c, /query,
    /grpc; content-type:application/grpc+proto, /grpc; content-type:application/grpc-web,
    /matches; user-agent:curl/8, /matches?page=2; user-agent:firefox, /matches,
    /own; x-user:a; x-user:b, /own, /domain, /ignore, /disabled, /direct, /stage, /address, /expression, /metadata,
    /weighted, /proto, /scheme, /raw?a=x%20y, /raw?a=xy, /decoded?a%20b=x%20y, /decoded?a%20b=x%0Ay, //empty, /empty,
    /optional, GET include.test/, GET include.test/ignore, GET include.test/domain, GET www.example.com/,
    GET www.eu.example.com/, GET shop.test/, GET elsewhere.test:81/";

/// Compares what `--request` shows with the calls of a real Envoy, of which each is in the log of decisions.
pub struct Compared<'a> {
    envoy: &'a Envoy,
    tollgate: &'a Tollgate,
    /// The decisions of earlier requests.
    seen: usize,
}

impl<'a> Compared<'a> {
    /// The server logs all decisions, and only this Envoy calls it.
    pub fn new(envoy: &'a Envoy, tollgate: &'a Tollgate) -> Self {
        Self {
            envoy,
            tollgate,
            seen: 0,
        }
    }

    /// One request, such as `GET shop.example.com/cart`, to a listener whose name is the prefix of its statistics.
    /// `input` is the file, and what `--rules` names.
    #[track_caller]
    pub fn check(
        &mut self,
        listener: &str,
        input: [&str; 2],
        request: &str,
        headers: &[(&str, &str)],
    ) {
        let (method, url) = request.split_once(' ').unwrap();
        let (host, path) = url.split_at(url.find('/').unwrap());
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        send(self.envoy.listener(listener), &head);
        let active = format!("http.{listener}.downstream_rq_active");
        // The calls at the end of a request begin before it has ended here.
        wait_until("the request has ended, and its calls", || {
            self.envoy.stat(&active) == 0
                && self.envoy.stat("cluster.tollgate.upstream_rq_active") == 0
        });
        let calls = self.envoy.stat("cluster.tollgate.upstream_rq_total");
        wait_until("the log has all calls", || {
            decisions(self.tollgate).len() as u64 >= calls
        });
        let lines = decisions(self.tollgate);
        let sent: Vec<_> = lines[self.seen..].iter().map(shown).collect();
        self.seen = lines.len();

        let headers = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}"));
        let headers: Vec<_> = headers.collect();
        let mut arguments = vec![input[0], "--rules", input[1], "--request", request];
        arguments.extend(headers.iter().flat_map(|header| ["-H", header]));
        let (code, said) = run(&arguments);
        assert_eq!(code, Some(0), "{said}");
        // Those at the end of the stream are sent last.
        let (end, begin) = ("at the end of the stream: descriptor (", "descriptor (");
        let descriptors = [begin, end].into_iter().flat_map(|begin| {
            let lines = said.lines().map(str::trim);
            lines.filter_map(move |line| line.strip_prefix(begin))
        });
        let said_to_send: Vec<_> = descriptors
            .map(|line| match line.split_once(") if `") {
                Some((entries, _)) => (entries, true),
                None => {
                    let (entries, _) = line.rsplit_once(") (").unwrap();
                    (entries, entries.contains("=<"))
                }
            })
            .collect();
        let domain = said
            .split_once(", domain `")
            .and_then(|(_, rest)| rest.split_once('`'));
        let domain = domain.map_or("", |(domain, _)| domain);
        let entries: Vec<_> = sent
            .iter()
            .flat_map(|(_, entries)| entries.clone())
            .collect();
        let is_right = sent.iter().all(|(of, _)| of == domain) && is_alike(&said_to_send, &entries);
        assert!(is_right, "{listener}, {request}: {sent:?}\n{said}");
    }
}

fn decisions(tollgate: &Tollgate) -> Vec<Value> {
    let log = tollgate.log().text();
    let lines = log
        .lines()
        .filter(|line| line.contains("tollgate::decision"));
    let decision = |line| {
        let line: Value = serde_json::from_str(line).unwrap();
        serde_json::from_str(text(&line["@message"])).unwrap()
    };
    lines.map(decision).collect()
}

/// The domain of a call, and its descriptors as `key=value, key=value`.
fn shown(line: &Value) -> (String, Vec<String>) {
    let descriptors = line["descriptors"].as_array().unwrap().iter();
    let entries = descriptors.map(|descriptor| {
        let entries = descriptor["entries"].as_array().into_iter().flatten();
        let entries =
            entries.map(|entry| format!("{}={}", text(&entry["key"]), text(&entry["value"])));
        entries.collect::<Vec<_>>().join(", ").replace('\n', "\\n")
    });
    (text(&line["domain"]).to_owned(), entries.collect())
}

/// Whether descriptors are equal, in their order. One whose value is shown as `<…>` can have any, and some need not be
/// made.
fn is_alike(shown: &[(&str, bool)], sent: &[String]) -> bool {
    let mut sent = sent.iter().peekable();
    let made = shown.iter().all(|(shown, is_optional)| {
        let is_same = |sent: &&String| match shown.split_once("=<") {
            Some((key, _)) => sent.starts_with(&format!("{key}=")),
            None => shown == sent,
        };
        let is_same = |sent: &&String| {
            let without = shown.split_once(", or no entry>, ");
            is_same(sent) || without.is_some_and(|(_, rest)| rest == **sent)
        };
        sent.next_if(is_same).is_some() || *is_optional
    });
    made && sent.next().is_none()
}

#[test]
fn the_descriptors_that_are_shown_are_those_that_a_real_envoy_sends() {
    let zoo = Case {
        name: "zoo",
        rules: "{ key: generic_key, rate_limit: { unlimited: true } }",
        routes: include_str!("lint_envoy/zoo.txt"),
        ..Case::of("good")
    };
    let (tollgate, envoy) = start(&[zoo]);
    let input = Input::new(&zoo.file(), &zoo.rules());
    let mut compared = Compared::new(&envoy, &tollgate);
    for row in REQUESTS.split(',') {
        let mut parts = row.trim().split("; ");
        let request = match parts.next().unwrap() {
            path if path.starts_with('/') => format!("GET shop.example.com{path}"),
            request => request.to_owned(),
        };
        let headers: Vec<_> = parts.filter_map(|part| part.split_once(':')).collect();
        compared.check("zoo", [&input.file, &input.rules], &request, &headers);
    }
}

#[test]
fn so_they_are_in_the_configurations_that_come_along() {
    for file in [
        "deploy/envoy/envoy.yaml",
        "deploy/compose/envoy.yaml",
        "deploy/kustomize/overlays/sidecar/envoy.yaml",
        "docs/concurrency.yaml",
        "docs/token-budgets.yaml",
    ] {
        let file = root(file);
        let tollgate = server::builder().args(["--log-decisions", "all"]);
        let tollgate = tollgate.file("rules.yaml", "domain: shop\n").start();
        let text = fs::read_to_string(&file).unwrap();
        let bootstrap = on_free_ports(serde_yaml::from_str(&text).unwrap(), &tollgate);
        let envoy = Envoy::start(|| bootstrap.to_string());
        let rules = tollgate.rules().display().to_string();
        let mut compared = Compared::new(&envoy, &tollgate);
        let file = file.display().to_string();
        let chat = "POST a.test/v1/chat/completions?a=b";
        for request in ["GET shop.example.com/cart", chat] {
            for headers in [&[("x-user", "a"), ("x-tenant", "b")][..], &[]] {
                compared.check("front", [&file, &rules], request, headers);
            }
        }
    }
}

/// The bootstrap with the server in the place of tollgate, and its HTTP port as the service.
fn on_free_ports(mut bootstrap: Value, tollgate: &Tollgate) -> Value {
    let address =
        |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    bootstrap["admin"] = json!({ "address": address(0) });
    let parts = &mut bootstrap["static_resources"];
    for listener in parts["listeners"].as_array_mut().unwrap() {
        listener["address"] = address(0);
    }
    for cluster in parts["clusters"].as_array_mut().unwrap() {
        let port = match text(&cluster["name"]) {
            "tollgate" => tollgate.grpc.port(),
            _ => tollgate.http.port(),
        };
        cluster["type"] = json!("STATIC");
        let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint";
        cluster.pointer_mut(endpoint).unwrap()["address"] = address(port);
    }
    bootstrap
}

#[test]
fn a_request_shows_its_way_to_the_limits() {
    let text = fs::read_to_string(root("deploy/envoy/envoy.yaml")).unwrap();
    let rules = "domain: shop\ndescriptors:\n  - key: remote_address\n    rate_limits: [3/second, 10/minute]\n";
    let input = Input::new(&text, rules);
    let request = ["--request", "GET shop.example.com/cart"];
    let (code, said) = run(&[&[&*input.file, "--rules", &input.rules], &request[..]].concat());
    let expected = "GET shop.example.com/cart at `front`
  virtual host `shop` for `*` (line 28)
  route prefix `/` to the cluster `service` (line 31)
  filter `envoy.filters.http.ratelimit`, domain `shop`, stage 0
    descriptor (remote_address=<the address of the client>) (line 37)
      values in <> are not known here; without them it is not made
      for some values rule `shop.remote_address` (rules.yaml:3): 3/second, 10/minute
";
    assert_eq!((code, &*said), (Some(0), expected));
    check(
        &[&input.file, "--request", "/cart"],
        2,
        "--request is a method, a host and a path",
    );
    check(
        &[&input.file, "--request", "a.b/", "-H", "x"],
        2,
        "-H is a name and a value",
    );
    let patches = root("deploy/istio/envoyfilter.yaml").display().to_string();
    let expected = "no connection manager with routes is in it; name";
    check(&[&patches, "--request", "GET a.b/"], 2, expected);
}

#[test]
fn a_request_names_what_is_not_read() {
    let good = Case::of("good");
    let skipped = "{ match: { prefix: /, runtime_fraction: {} }, route: {} }, { match: { prefix: /, tls_context: {} }, \
                   route: {} }, { match: { prefix: /, runtime_fraction: {} }, route: {} },";
    for row in [
        "use_remote_address: true,; strip_any_host_port: true,; `strip_any_host_port` (line 4)",
        "use_remote_address: true,; normalize_path: true,; `normalize_path` (line 4)",
        "route_config: {; ignore_path_parameters_in_path_matching: true,; \
         `ignore_path_parameters_in_path_matching` (line 4)",
        "route_config: {; vhds: {},; `vhds` (",
        "domains: ['*'],; require_tls: ALL,; `require_tls` (line 4)",
        "domains: ['*'],; matcher: {},; `matcher` (",
        "timeout: 30s,; filter_enabled: {},; `filter_enabled` (",
        "timeout: 30s,; request_type: external,; `request_type` (line 4)",
        "http_filters: [; { name: a, config_discovery: {} },; filters that the file does not show (line 4)",
        "routes: [; $SKIPPED; `runtime_fraction` of an earlier route (line 4)",
        "routes: [; $SKIPPED; `tls_context` of an earlier route (line 4)",
    ] {
        let row = row.replace("$SKIPPED", skipped);
        let [before, more, expected] = columns(&row);
        let listener = good.listener().replace(before, &format!("{before} {more}"));
        let input = Input::new(&cases::bootstrap(&listener, 1), "");
        let said = check(&[&input.file, "--request", "GET a.b/"], 0, expected);
        assert_eq!(said.matches(expected).count(), 1, "{expected}: {said}");
    }
    // Settings that say the default are not named, and a connection manager whose routes arrive later is.
    let given = good
        .listener()
        .replace("use_remote_address: true", "normalize_path: No");
    let later = given.replace("route_config: {", "rds: { route_config_name: a }, b: {");
    let input = Input::new(&cases::bootstrap(&(given + &later), 1), "");
    let (_, said) = run(&[&input.file, "--request", "GET a.b/"]);
    assert!(!said.contains("normalize_path"), "{said}");
    let later = said.matches("its routes are not in the file");
    assert_eq!(later.count(), 1, "{said}");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_never_a_wait() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let texts: [(&[u8], &str); 4] = [
        (b"static_resources:\n  clusters: }", "2:13: "),
        (b"domain: shop\n", " not an Envoy configuration"),
        (b"a: 1\nb: \xff", "2:4: the byte 0xFF is not UTF-8 text"),
        (b"\xff\xfea\0", " UTF-16 text; save it as UTF-8"),
    ];
    let file = path("envoy.yaml");
    for (bytes, expected) in texts {
        fs::write(&file, bytes).unwrap();
        for request in REQUESTED {
            check(
                &[&[&*file], request].concat(),
                2,
                &format!("{file}:{expected}"),
            );
        }
    }
    symlink("nowhere", path("link.yaml")).unwrap();
    let made = Command::new("mkfifo").arg(path("pipe.yaml")).status();
    assert!(made.unwrap().success());
    for (name, expected) in [
        (&*path("pipe.yaml"), "is no regular file"),
        ("/dev/zero", "is no regular file"),
        (&*path("link.yaml"), "cannot be read: No such file"),
        ("/nowhere/a.yaml", "cannot be read: No such file"),
    ] {
        check(&[name], 2, &format!("^{name}: {expected}"));
    }
    let good = root("deploy/envoy/envoy.yaml").display().to_string();
    check(
        &[&good, "--rules", "/nowhere/rules"],
        2,
        "/nowhere/rules: cannot be read",
    );
    // In a folder, too: a name that ends as a configuration does was meant as one.
    fs::copy(&good, file).unwrap();
    for expected in [
        "pipe.yaml: is no regular file",
        "link.yaml: cannot be read",
        "ok: ",
    ] {
        check(&[&path("")], 2, expected);
    }
}

/// As in `curl …/config_dump | tollgate lint-envoy -`.
#[test]
fn a_dash_is_standard_input() {
    let file = fs::File::open(root("deploy/envoy/envoy.yaml")).unwrap();
    let mut lint = program();
    let lint = lint.args(["lint-envoy", "-"]).stdin(Stdio::from(file));
    let Output { status, stdout, .. } = lint.output().unwrap();
    let said = String::from_utf8(stdout).unwrap();
    assert_eq!(
        said,
        "ok: stdin: 1 filter, 1 item of `rate_limits`, no finding\n"
    );
    assert_eq!(status.code(), Some(0));
}

/// In a dump it stands beside the one that takes its place.
#[test]
fn a_listener_that_serves_no_more_requests_is_not_read() {
    let listener = Case::of("stage").listener();
    let listener = listener.trim_start_matches([' ', '-']).trim_end();
    let drained = format!(", draining_state: {{ listener: {listener} }}");
    for drained in ["", &drained] {
        let dump = format!(
            "configs:\n- '@type': type.googleapis.com/envoy.admin.v3.ListenersConfigDump\n  dynamic_listeners: \
             [{{ name: a, active_state: {{ listener: {listener} }}{drained} }}]\n"
        );
        let input = Input::new(&dump, "");
        let expected = ": 1 filter, 1 item of `rate_limits`: 1 finding\n";
        check(&[&input.file], 1, expected);
    }
}

/// A rate limit filter beside a virtual host without items.
fn silent() -> String {
    Case::of("no-item").file()
}

#[test]
fn several_files_and_folders_are_checked_together() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let good = fs::read_to_string(root("deploy/envoy/envoy.yaml")).unwrap();
    write("all/b/good.yml", &good);
    write("all/b/bad.yaml", &silent());
    write("all/.hidden/bad.yaml", &silent());
    write("all/rules.yaml", "domain: shop\n");
    let template = "{{- if .Values.static_resources }}\nkind: EnvoyFilter\n{{- end }}\n";
    write("all/template.yaml", template);
    write("all/other.yaml", "a: }\n");
    write("all/notes.txt", "domain: }\n");
    write("other.yaml", &silent());
    let (code, said) = run(&[&path("all"), &path("other.yaml")]);
    let said = said.replace(&path(""), "");
    let lines: Vec<_> = said.lines().collect();
    for (line, begin, part) in [
        (0, "all/b/bad.yaml:4:", ": error: "),
        (1, "other.yaml:4:", "[stage] "),
    ] {
        assert!(
            lines[line].starts_with(begin) && lines[line].contains(part),
            "{said}"
        );
    }
    let rest = [
        "all/b/bad.yaml: 1 filter, 0 items of `rate_limits`: 1 finding",
        "ok: all/b/good.yml: 1 filter, 1 item of `rate_limits`, no finding",
        "other.yaml: 1 filter, 0 items of `rate_limits`: 1 finding",
        "passed over: 3 files without a rate limit filter",
    ];
    assert_eq!(lines[2..], rest);
    assert_eq!(code, Some(1));
    check(&[&path("all"), "--request", "GET a.b/"], 0, "");
    // A file that was probably meant to be a configuration is not passed over.
    write("all/broken.yaml", "static_resources: }\n");
    for request in REQUESTED {
        check(
            &[&[&*path("all")], request].concat(),
            2,
            "all/broken.yaml:1:19: ",
        );
    }
    let clusters = "static_resources: { clusters: [{ name: a, lb_policy: RANDOM }] }\n";
    write("clusters.yaml", clusters);
    for name in [path("clusters.yaml"), path("all/b/nothing")] {
        fs::create_dir_all(path("all/b/nothing")).unwrap();
        check(&[&name], 1, &format!("^{name}: warning: the whole f"));
        check(&[&name], 1, ": [nothing-checked] no rate limit filter");
    }
}

#[test]
fn findings_are_left_out_by_severity_and_by_name() {
    let input = Input::new(&silent(), "");
    for (flags, code, ends) in [
        (&[][..], 1, ": 1 finding\n"),
        (&["--min-severity", "error"], 1, ": 1 finding\n"),
        (&["--allow", "domain"], 1, ": 1 finding\n"),
        (&["--allow", "stage"], 0, ", no finding (1 left out)\n"),
    ] {
        let (ended, said) = run(&[&[&*input.file], flags].concat());
        assert!(said.ends_with(ends), "{said}");
        assert_eq!(ended, Some(code));
    }
    // Of many findings some are not kept, but all are counted.
    let item = "{ stage: 1, hits_addend: { number: 1 }, \
                actions: [{ generic_key: { descriptor_value: some-long-value } }] }, ";
    let filter = "'@type': a/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: d";
    let items = item.repeat(3_000);
    let host = format!("domains: ['*'], routes: [], rate_limits: [{items}]");
    let many = format!("static_resources: [{{ {filter} }}, {{ {host} }}]");
    let many = Input::new(&many, "");
    let both = ["--allow", "stage", "--allow", "hits-addend"];
    for (flags, ends) in [
        (&both[..0], ": 100 of 6000 findings\n"),
        (&both[..2], ": 100 of 3000 findings\n"),
        (&both[..], "(6000 left out)\n"),
    ] {
        let (_, said) = run(&[&[&*many.file], flags].concat());
        assert!(said.ends_with(ends), "{said}");
    }
    // The nearest name is suggested.
    check(&[&input.file, "--allow", "stag"], 2, "'stage'");
}

#[test]
fn a_report_has_the_forms_of_check() {
    let input = Input::new(&silent(), "");
    let printed = |format| run(&[&input.file, "--format", format]).1;
    let report: Value = serde_json::from_str(&printed("json")).unwrap();
    let problem = report["problems"][0].clone();
    let expected = json!({
        "version": 2, "ok": false, "errors": 1, "warnings": 0, "files": 1, "passed_over": 0, "problems": [problem],
    });
    assert_eq!(report, expected);
    let parts = ["file", "severity", "code"].map(|part| text(&problem[part]));
    assert_eq!(parts, [&*input.file, "error", "stage"]);
    let sarif: Value = serde_json::from_str(&printed("sarif")).unwrap();
    let run = &sarif["runs"][0];
    assert_eq!(run["tool"]["driver"]["name"], "tollgate lint-envoy");
    let result = &run["results"][0];
    assert_eq!(result["ruleId"], "stage");
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["region"]["startLine"], 4);
    let commands = printed("github");
    let begin = format!("::error file={},line=4,col=", input.file);
    assert!(commands.starts_with(&begin), "{commands}");
    let title = ",title=tollgate lint-envoy%3A stage::static_resources.";
    assert!(commands.contains(title), "{commands}");
}

/// A row of the table, with `\n` for a new line.
fn megabyte(row: &str) -> String {
    const BYTES: usize = 1 << 20;
    let row = row.replace("\\n", "\n").replace("$XS", &"x".repeat(400));
    let parts: Vec<_> = row.split("||").collect();
    let fixed: usize = parts.iter().step_by(2).map(|part| part.len()).sum();
    let share = (BYTES - fixed) / (parts.len() / 2);
    let filled = |part: &str| {
        if !part.contains('#') {
            return part.repeat(share / part.len());
        }
        let mut text = String::new();
        for number in 0.. {
            let next = part.replace('#', &number.to_string());
            if text.len() + next.len() > share {
                break;
            }
            text += &next;
        }
        text
    };
    let parts = parts.iter().enumerate();
    let parts = parts.map(|(at, part)| match at % 2 {
        0 => (*part).to_owned(),
        _ => filled(part),
    });
    parts.collect()
}

/// Texts of a megabyte, as a configuration and as rules: each is a report of at most a hundred findings, soon and in
/// little memory.
#[test]
fn a_megabyte_of_anything_is_reported_soon_and_in_little_memory() {
    let table = include_str!("lint_envoy/megabyte.txt");
    let rows = table.lines().filter(|row| !row.starts_with(['#', '$']));
    let domains = (0..30).map(|number| format!("shop-service-number-{number}"));
    let rules = domains.chain(["d1".to_owned()]).map(|domain| {
        format!(
            "---\ndomain: {domain}\ndescriptors: [{{ key: generic_key, rate_limits: [1/day] }}]\n"
        )
    });
    let rules: String = rules.collect();
    // An unoptimised program has more pages of its own, which count as memory: those of a short text.
    let idle = ["lint-envoy", "check", "lint-envoy"].map(|command| {
        let input = Input::new(&silent(), "");
        peak_of(&[command, &input.file]).0
    });
    for row in rows {
        let input = Input::new(&megabyte(&cases::written(table, row)), &rules);
        let lint = ["lint-envoy", &input.file, "--rules", &input.rules];
        let request = [&lint[..], &["--request", "GET a.b/"]].concat();
        let commands = [&lint[..], &["check", &input.file], &request];
        for (command, idle) in commands.into_iter().zip(idle) {
            let begin = Instant::now();
            let (peak, Output { stdout, stderr, .. }) = peak_of(command);
            let took = begin.elapsed();
            let said = String::from_utf8([stdout, stderr].concat()).unwrap();
            let name = format!("{row}, {}", command.join(" "));
            // The last lines have the numbers of all.
            assert!(said.lines().count() <= 104, "{name}: {said}");
            assert!(said.lines().all(|line| line.len() < 10_000), "{name}");
            // A busy machine and a build without optimisation take longer.
            let bound = if cfg!(debug_assertions) { 20 } else { 1 };
            assert!(took < Duration::from_secs(bound), "{name}: {took:?}");
            let bound = (64 << 20) + idle.saturating_sub(IDLE_BYTES);
            assert!(peak <= bound, "{name}: {peak} bytes of {bound}");
        }
    }
}

/// The memory of an optimised program that reads a short text.
pub const IDLE_BYTES: u64 = 13 << 20;

/// The most memory that a command had, and its output.
pub fn peak_of(arguments: &[&str]) -> (u64, Output) {
    let mut timed = Command::new("python3");
    let script = "import resource, subprocess, sys\ncode = subprocess.run(sys.argv[1:]).returncode\n\
                  peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n\
                  print(f'\\n{peak}', file=sys.stderr)\nsys.exit(code)";
    timed.args(["-c", script]).arg(program().get_program());
    let mut output = finish(timed.args(arguments));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let (before, peak) = errors.trim_end().rsplit_once('\n').unwrap();
    let peak: u64 = peak.parse().expect(&errors);
    output.stderr = before.as_bytes().to_vec();
    (peak << 10, output)
}
