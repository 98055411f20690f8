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
    envoy::{Envoy, with_upstream},
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
    let Output {
        status,
        stdout,
        stderr,
    } = finish(program().arg("lint-envoy").args(arguments));
    let said = [stdout, stderr].concat();
    (status.code(), String::from_utf8(said).unwrap())
}

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

/// tollgate with the rules of all cases, and Envoy with a listener for each.
fn start(
    listeners: &str,
    rules: impl IntoIterator<Item = (&'static str, String)>,
) -> (Tollgate, Envoy) {
    let builder = server::builder().args(["--log-decisions", "all"]);
    let builder = rules.into_iter().fold(builder, |builder, (name, text)| {
        builder.file(&format!("{name}.yaml"), &text)
    });
    let tollgate = builder.start();
    let bootstrap = with_upstream(&cases::bootstrap(listeners, tollgate.grpc.port()));
    let envoy = Envoy::start(|| bootstrap.clone());
    (tollgate, envoy)
}

/// The statuses of requests through the listener of a case, one after the other.
fn statuses(envoy: &Envoy, case: &Case) -> Vec<u16> {
    let front = envoy.listener(case.name);
    let ask = |_: &u16| {
        let reply = try_get(front, case.path, &[("x-user", b"a")]);
        // The calls at the end of the stream have been answered.
        wait_until("no call is under way", || {
            envoy.stat("cluster.tollgate.upstream_rq_active") == 0
        });
        reply.map_or(0, |reply| reply.status)
    };
    case.statuses.iter().map(ask).collect()
}

/// The dump of an Envoy with only the listener of this name.
fn dump_of(dump: &Value, name: &str) -> String {
    let mut dump = dump.clone();
    for part in dump["configs"].as_array_mut().unwrap() {
        if let Some(Value::Array(listeners)) = part.get_mut("static_listeners") {
            listeners.retain(|listener| listener["listener"]["name"] == name);
        }
    }
    dump.to_string()
}

#[test]
fn each_finding_has_the_effect_that_it_names_in_a_real_envoy_and_in_its_dump() {
    let listeners: String = CASES.iter().map(cases::listener).collect();
    let rules = CASES.iter().map(|case| (case.name, cases::rules(case)));
    let (_tollgate, envoy) = start(&listeners, rules);
    let dump: Value = serde_json::from_str(&get(envoy.admin, "/config_dump").body).unwrap();
    let mut wrong = Vec::new();
    for case in CASES {
        let rules = cases::rules(case);
        let bootstrap = cases::bootstrap(&cases::listener(case), 1);
        for input in [with_upstream(&bootstrap), dump_of(&dump, case.name)] {
            let (found, said) = Input::new(&input, &rules).finds();
            if found != case.finds {
                wrong.push(format!("{}: {found}\n{said}", case.name));
            }
        }
        let statuses = statuses(&envoy, case);
        if statuses != case.statuses {
            wrong.push(format!("{}: {statuses:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_finding_has_a_case_and_is_in_the_documents_and_in_the_help() {
    let page = fs::read_to_string(root("docs/envoy/lint-envoy.md")).unwrap();
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let rows: BTreeMap<_, _> = rows
        .map(|(name, rest)| (name, rest.split_once(" |").unwrap().0))
        .collect();
    let cli = Cli::command();
    let lint_envoy = cli.find_subcommand("lint-envoy").unwrap();
    let mut flags = lint_envoy.get_arguments();
    let allow = flags.find(|flag| flag.get_long() == Some("allow")).unwrap();
    let names = allow.get_possible_values();
    let names: Vec<_> = names.iter().map(|name| name.get_name()).collect();
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), names);
    let cases = CASES.iter().map(|case| case.finds);
    let patches = PATCHES.iter().map(|(.., finds)| *finds);
    let found: Vec<_> = cases
        .chain(patches)
        .flat_map(|finds| finds.split(", "))
        .collect();
    let (_, help) = run(&["--help"]);
    for (name, severities) in rows {
        assert!(help.contains(name), "{name}: {help}");
        // The whole file has this one, and a test of its own.
        let mut of_name = found
            .iter()
            .filter(|found| found.ends_with(&format!(" {name}")));
        assert!(
            name == "nothing-checked" || of_name.clone().count() > 0,
            "{name}"
        );
        assert!(
            of_name.all(|found| severities.contains(found.split(' ').next().unwrap())),
            "{name}"
        );
    }
}

/// EnvoyFilters: the object, the match, the value, and the findings.
const PATCHES: &[(&str, &str, &str, &str)] = &[
    (
        "VIRTUAL_HOST",
        "context: GATEWAY, routeConfiguration: { vhost: { name: 'shop.example.com:80' } }",
        "rate_limits: [$ITEM]",
        "",
    ),
    (
        "VIRTUAL_HOST",
        "context: GATEWAY, routeConfiguration: { vhost: { name: shop.example.com } }",
        "rate_limits: [$ITEM]",
        "warning no-match",
    ),
    (
        "VIRTUAL_HOST",
        "context: GATEWAY, routeConfiguration: { vhost: { name: 'inbound|http|8080' } }",
        "rate_limits: [$ITEM]",
        "warning no-match",
    ),
    (
        "VIRTUAL_HOST",
        "context: SIDECAR_INBOUND, routeConfiguration: { vhost: { name: 'inbound|http|8080' } }",
        "rate_limits: [$ITEM]",
        "",
    ),
    (
        "VIRTUAL_HOST",
        "context: SIDECAR_OUTBOUND, routeConfiguration: { vhost: { name: allow_any } }",
        "rate_limits: [$ITEM]",
        "",
    ),
    (
        "VIRTUAL_HOST",
        "context: SIDECAR_INBOUND, routeConfiguration: { vhost: { name: 'shop:80' } }",
        "rate_limits: [$ITEM]",
        "warning no-match",
    ),
    (
        "VIRTUAL_HOST",
        "context: GATEWAY, routeConfiguration: { vhost: { name: '{{ host }}' } }",
        "rate_limits: [$ITEM]",
        "",
    ),
    (
        "VIRTUAL_HOST",
        "context: GATEWAY",
        "route: { rate_limits: [$ITEM] }",
        "error misplaced-limits",
    ),
    (
        "HTTP_ROUTE",
        "context: GATEWAY",
        "route: { rate_limits: [$ITEM] }",
        "",
    ),
    (
        "HTTP_ROUTE",
        "context: GATEWAY",
        "rate_limits: [$ITEM]",
        "error misplaced-limits",
    ),
    (
        "HTTP_ROUTE",
        "context: GATEWAY",
        "route: { rate_limits: [$ITEM], typed_per_filter_config: {} }",
        "error misplaced-limits",
    ),
    (
        "ROUTE_CONFIGURATION",
        "context: GATEWAY",
        "rate_limits: [$ITEM]",
        "error misplaced-limits",
    ),
];

#[test]
fn patches_of_istio_that_change_nothing_are_found() {
    for (object, of, value, finds) in PATCHES {
        let value = value.replace("$ITEM", "{ actions: [{ remote_address: {} }] }");
        let text = format!(
            "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{ name: a }}\nspec:\n  \
             configPatches:\n  - \
             applyTo: {object}\n    match: {{ {of} }}\n    patch: {{ operation: MERGE, value: {{ {value} }} }}\n"
        );
        let rules = "domain: shop\ndescriptors: [{ key: remote_address, rate_limit: { unit: day, requests_per_unit: \
         1 } }]\n";
        let (found, said) = Input::new(&text, rules).finds();
        assert_eq!(found, *finds, "{text}\n{said}");
    }
}

#[test]
fn good_configurations_have_no_finding() {
    let files = ["deploy/envoy/envoy.yaml", "deploy/istio/envoyfilter.yaml"];
    for file in files.map(root) {
        let file = file.display().to_string();
        let rules = root("config").display().to_string();
        let (code, said) = run(&[&file, "--rules", &rules]);
        assert!(said.starts_with("ok: "), "{said}");
        assert_eq!(code, Some(0), "{said}");
    }
    // A dump leaves out this setting, which is the default: there, only `IGNORE` says it.
    let case = CASES.iter().find(|case| case.name == "own-of-route");
    let routes = "[{ name: a, domains: ['*'], rate_limits: [{ actions: [$PLAN] }], routes: [{ match: { prefix: / }, \
                  route: { cluster: service, rate_limits: [{ actions: [$USER] }] }, $CONFIG{ $PER_ROUTE, \
                  vh_rate_limits: OVERRIDE } } }] }]";
    let case = Case {
        routes,
        ..*case.unwrap()
    };
    let text = with_upstream(&cases::bootstrap(&cases::listener(&case), 1));
    let (found, said) = Input::new(&text, &cases::rules(&case)).finds();
    assert_eq!(found, "", "{said}");
}

/// Requests to the listener `zoo`: method, host and path, and headers.
const REQUESTS: [(&str, &[(&str, &str)]); 55] = [
    ("GET shop.example.com/", &[]),
    ("GET shop.example.com:8080/", &[]),
    ("GET SHOP.example.com/exact?a=b", &[]),
    ("GET shop.example.com/exactly", &[]),
    ("GET shop.example.com/included", &[]),
    ("GET shop.example.com/api?q=a%20b", &[]),
    ("GET shop.example.com/api/x?q=1&q=2", &[]),
    ("GET shop.example.com/api", &[]),
    ("GET shop.example.com/apis?q=1", &[]),
    ("GET shop.example.com/item/12", &[]),
    ("PUT shop.example.com/item/12?x=y", &[]),
    ("GET shop.example.com/item/12a", &[]),
    ("GET shop.example.com/headers", &[("x-plan", "gold")]),
    ("GET shop.example.com/headers", &[]),
    ("GET shop.example.com/headers", &[("x-plan", "tin")]),
    ("GET shop.example.com/headers", &[("x-plan", "silver")]),
    (
        "GET shop.example.com/headers",
        &[("x-plan", "silver"), ("x-more", "1")],
    ),
    (
        "GET shop.example.com/headers",
        &[("x-plan", "s"), ("x-plan", "r")],
    ),
    ("GET shop.example.com/missing", &[]),
    ("GET shop.example.com/missing", &[("x-plan", "s")]),
    ("GET shop.example.com/query?a=abc", &[]),
    ("GET shop.example.com/query?a=c", &[]),
    ("GET shop.example.com/query", &[]),
    (
        "GET shop.example.com/grpc",
        &[("content-type", "application/grpc+proto")],
    ),
    (
        "GET shop.example.com/grpc",
        &[("content-type", "application/grpc-web")],
    ),
    ("GET shop.example.com/matches", &[("user-agent", "curl/8")]),
    (
        "GET shop.example.com/matches?page=2",
        &[("user-agent", "firefox")],
    ),
    ("GET shop.example.com/matches", &[]),
    (
        "GET shop.example.com/own",
        &[("x-user", "a"), ("x-user", "b")],
    ),
    ("GET shop.example.com/own", &[]),
    ("GET shop.example.com/domain", &[]),
    ("GET shop.example.com/ignore", &[]),
    ("GET shop.example.com/disabled", &[]),
    ("GET shop.example.com/direct", &[]),
    ("GET shop.example.com/stage", &[]),
    ("GET shop.example.com/address", &[]),
    ("GET shop.example.com/expression", &[]),
    ("GET shop.example.com/metadata", &[]),
    ("GET shop.example.com/weighted", &[]),
    ("GET shop.example.com/proto", &[]),
    ("GET shop.example.com/scheme", &[]),
    ("GET shop.example.com/raw?a=x%20y", &[]),
    ("GET shop.example.com/raw?a=xy", &[]),
    ("GET shop.example.com/decoded?a%20b=x%20y", &[]),
    ("GET shop.example.com/decoded?a%20b=x%0Ay", &[]),
    ("GET shop.example.com//empty", &[]),
    ("GET shop.example.com/empty", &[]),
    ("GET shop.example.com/optional", &[]),
    ("GET include.test/", &[]),
    ("GET include.test/ignore", &[]),
    ("GET include.test/domain", &[]),
    ("GET www.example.com/", &[]),
    ("GET www.eu.example.com/", &[]),
    ("GET shop.test/", &[]),
    ("GET elsewhere.test:81/", &[]),
];

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

        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}"))
            .collect();
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
            .lines()
            .find_map(|line| line.split_once(", domain `")?.1.split_once('`'));
        let domain = domain.map_or("", |(domain, _)| domain);
        let sent_entries: Vec<_> = sent
            .iter()
            .flat_map(|(_, descriptors)| descriptors.clone())
            .collect();
        assert!(
            is_alike(&said_to_send, &sent_entries),
            "{listener}, {request}: {sent:?}\n{said}"
        );
        assert!(
            sent.iter().all(|(of, _)| of == domain),
            "{listener}, {request}: {sent:?}\n{said}"
        );
    }
}

fn decisions(tollgate: &Tollgate) -> Vec<Value> {
    let log = tollgate.log().text();
    let lines = log
        .lines()
        .filter(|line| line.contains("tollgate::decision"));
    lines
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            serde_json::from_str(text(&line["@message"])).unwrap()
        })
        .collect()
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
    let zoo = include_str!("lint_envoy/zoo.yaml");
    let rules =
        "domain: zoo\ndescriptors: [{ key: generic_key, rate_limit: { unlimited: true } }]\n";
    let (tollgate, envoy) = start(zoo, [("zoo", rules.to_owned())]);
    let input = Input::new(&with_upstream(&cases::bootstrap(zoo, 1)), rules);
    let mut compared = Compared::new(&envoy, &tollgate);
    for (request, headers) in REQUESTS {
        compared.check("zoo", [&input.file, &input.rules], request, headers);
    }
}

#[test]
fn so_they_are_where_nothing_is_limited() {
    // `--request` is about HTTP, the calls of another cluster reach nothing, and a `matcher` is not read.
    let is_asked = |case: &&Case| {
        !["tcp", "$PLAIN"].contains(&case.filter) && !case.routes.contains("matcher: ")
    };
    let listeners: String = CASES.iter().map(cases::listener).collect();
    let rules = CASES.iter().map(|case| (case.name, cases::rules(case)));
    let (tollgate, envoy) = start(&listeners, rules);
    let mut compared = Compared::new(&envoy, &tollgate);
    for case in CASES.iter().filter(is_asked) {
        let bootstrap = cases::bootstrap(&cases::listener(case), 1);
        let input = Input::new(&with_upstream(&bootstrap), &cases::rules(case));
        let request = format!("GET shop.example.com{}", case.path);
        compared.check(
            case.name,
            [&input.file, &input.rules],
            &request,
            &[("x-user", "a")],
        );
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
        let rules = "domain: shop\n";
        let tollgate = server::builder()
            .args(["--log-decisions", "all"])
            .file("rules.yaml", rules)
            .start();
        let text = fs::read_to_string(&file).unwrap();
        let bootstrap = on_free_ports(serde_yaml::from_str(&text).unwrap(), &tollgate);
        let envoy = Envoy::start(|| bootstrap.to_string());
        let rules = tollgate.rules().display().to_string();
        let mut compared = Compared::new(&envoy, &tollgate);
        let file = file.display().to_string();
        for request in [
            "GET shop.example.com/cart",
            "POST a.test/v1/chat/completions?a=b",
        ] {
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
    let shown =
        |arguments: &[&str]| run(&[&[&*input.file, "--rules", &input.rules], arguments].concat());
    let (code, said) = shown(&["--request", "GET shop.example.com/cart"]);
    let expected = "GET shop.example.com/cart at `front`
  virtual host `shop` for `*` (line 28)
  route prefix `/` to the cluster `service` (line 31)
  filter `envoy.filters.http.ratelimit`, domain `shop`, stage 0
    descriptor (remote_address=<the address of the client>) (line 37)
      values in <> are not known here; without them it is not made
      for some values rule `shop.remote_address` (rules.yaml:3): 3/second, 10/minute
";
    assert_eq!((code, &*said), (Some(0), expected));
    let (code, said) = shown(&["--request", "/cart"]);
    assert!(
        said.contains("--request is a method, a host and a path"),
        "{said}"
    );
    assert_eq!(code, Some(2));
    let (code, said) = shown(&["--request", "a.b/", "-H", "x"]);
    assert!(said.contains("-H is a name and a value"), "{said}");
    assert_eq!(code, Some(2));
    let patches = root("deploy/istio/envoyfilter.yaml").display().to_string();
    let (code, said) = run(&[&patches, "--request", "GET a.b/"]);
    assert!(
        said.contains("no connection manager with routes is in it; name"),
        "{said}"
    );
    assert_eq!(code, Some(2));
}

#[test]
fn a_request_names_what_is_not_read() {
    let case = CASES.iter().find(|case| case.name == "good").unwrap();
    let listener = |manager: &str, table: &str, host: &str, filter: &str| {
        let text = cases::listener(case)
            .replace("use_remote_address: true", manager)
            .replace("route_config: { ", &format!("route_config: {{ {table}"))
            .replace("domains: ['*'], ", &format!("domains: ['*'], {host}"))
            .replace("timeout: 30s, ", &format!("timeout: 30s, {filter}"));
        with_upstream(&cases::bootstrap(&text, 1))
    };
    let skipped = "routes: [{ match: { prefix: /, runtime_fraction: {} }, route: {} }, { match: { prefix: /, \
                   tls_context: {} }, route: {} }, { match: { prefix: /, runtime_fraction: {} }, route: {} }, ";
    for (text, expected) in [
        (
            listener("strip_any_host_port: true", "", "", ""),
            "`strip_any_host_port` (line 4)",
        ),
        (
            listener("normalize_path: true", "", "", ""),
            "`normalize_path` (line 4)",
        ),
        (
            listener(
                "scheme: {}",
                "ignore_path_parameters_in_path_matching: true, ",
                "",
                "",
            ),
            "`ignore_path_parameters_in_path_matching` (line 4)",
        ),
        (listener("scheme: {}", "vhds: {}, ", "", ""), "`vhds` ("),
        (
            listener("scheme: {}", "", "require_tls: ALL, ", ""),
            "`require_tls` (line 4)",
        ),
        (
            listener("scheme: {}", "", "matcher: {}, ", ""),
            "`matcher` (",
        ),
        (
            listener("scheme: {}", "", "", "filter_enabled: {}, "),
            "`filter_enabled` (",
        ),
        (
            listener("scheme: {}", "", "", "request_type: external, "),
            "`request_type` (line 4)",
        ),
        (
            silent().replace(
                "http_filters: [",
                "http_filters: [{ name: a, config_discovery: {} }, ",
            ),
            "filters that the file does not show (line 4)",
        ),
        (
            listener("scheme: {}", "", "", "").replace("routes: [", skipped),
            "`runtime_fraction` of an earlier route (line 4)",
        ),
        (
            listener("scheme: {}", "", "", "").replace("routes: [", skipped),
            "`tls_context` of an earlier route (line 4)",
        ),
    ] {
        let input = Input::new(&text, "");
        let (code, said) = run(&[&input.file, "--request", "GET a.b/"]);
        assert_eq!(said.matches(expected).count(), 1, "{expected}: {said}");
        assert_eq!(code, Some(0), "{said}");
    }
    // Settings that say the default are not named, and a connection manager whose routes arrive later is.
    let given = cases::listener(case).replace("use_remote_address: true", "normalize_path: No");
    let later = given.replace("route_config: {", "rds: { route_config_name: a }, b: {");
    let input = Input::new(&with_upstream(&cases::bootstrap(&(given + &later), 1)), "");
    let (_, said) = run(&[&input.file, "--request", "GET a.b/"]);
    assert!(!said.contains("normalize_path"), "{said}");
    assert_eq!(
        said.matches("its routes are not in the file").count(),
        1,
        "{said}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_never_a_wait() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let check = |bytes: &[u8], expected: &str| {
        fs::write(path("envoy.yaml"), bytes).unwrap();
        for request in [&[][..], &["--request", "GET a.b/"]] {
            let (code, said) = run(&[&[&*path("envoy.yaml")], request].concat());
            let begin = format!("{}:{expected}", path("envoy.yaml"));
            assert!(said.contains(&begin), "{said}");
            assert_eq!(code, Some(2), "{said}");
        }
    };
    check(b"static_resources:\n  clusters: }", "2:13: ");
    check(b"domain: shop\n", " not an Envoy configuration");
    check(b"a: 1\nb: \xff", "2:4: the byte 0xFF is not UTF-8 text");
    check(b"\xff\xfea\0", " UTF-16 text; save it as UTF-8");
    symlink("nowhere", path("link.yaml")).unwrap();
    let made = Command::new("mkfifo")
        .arg(path("pipe.yaml"))
        .status()
        .unwrap();
    assert!(made.success());
    for (name, expected) in [
        (path("pipe.yaml"), "is no regular file"),
        ("/dev/zero".to_owned(), "is no regular file"),
        (path("link.yaml"), "cannot be read: No such file"),
        (
            "/nowhere/envoy.yaml".to_owned(),
            "cannot be read: No such file",
        ),
    ] {
        let (code, said) = run(&[&name]);
        assert!(said.starts_with(&format!("{name}: {expected}")), "{said}");
        assert_eq!(code, Some(2), "{said}");
    }
    let good = root("deploy/envoy/envoy.yaml").display().to_string();
    let (code, said) = run(&[&good, "--rules", "/nowhere/rules"]);
    assert!(said.contains("/nowhere/rules: cannot be read"), "{said}");
    assert_eq!(code, Some(2));
    // In a folder, too: a name that ends as a configuration does was meant as one.
    fs::copy(&good, path("envoy.yaml")).unwrap();
    let (code, said) = run(&[&path("")]);
    assert!(said.contains("pipe.yaml: is no regular file"), "{said}");
    assert!(said.contains("link.yaml: cannot be read"), "{said}");
    assert!(said.contains("ok: "), "the other one is checked: {said}");
    assert_eq!(code, Some(2), "{said}");
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

/// A rate limit filter beside a virtual host without items, and a Kubernetes resource without an Envoy in it.
const SILENT: &str = "no-item";

fn silent() -> String {
    let case = CASES.iter().find(|case| case.name == SILENT).unwrap();
    with_upstream(&cases::bootstrap(&cases::listener(case), 1))
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
    write(
        "all/b/good.yml",
        &fs::read_to_string(root("deploy/envoy/envoy.yaml")).unwrap(),
    );
    write("all/b/bad.yaml", &silent());
    write("all/.hidden/bad.yaml", &silent());
    write("all/rules.yaml", "domain: shop\n");
    write(
        "all/template.yaml",
        "{{- if .Values.static_resources }}\nkind: EnvoyFilter\n{{- end }}\n",
    );
    write("all/other.yaml", "a: }\n");
    write("all/notes.txt", "domain: }\n");
    write("other.yaml", &silent());
    let (code, said) = run(&[&path("all"), &path("other.yaml")]);
    let lines: Vec<_> = said
        .lines()
        .map(|line| line.replace(&path(""), ""))
        .collect();
    assert!(
        lines[0].starts_with("all/b/bad.yaml:4:") && lines[0].contains(": error: "),
        "{said}"
    );
    assert!(
        lines[1].starts_with("other.yaml:4:") && lines[1].contains("[stage] "),
        "{said}"
    );
    let rest = [
        "all/b/bad.yaml: 1 filter, 0 items of `rate_limits`: 1 finding",
        "ok: all/b/good.yml: 1 filter, 1 item of `rate_limits`, no finding",
        "other.yaml: 1 filter, 0 items of `rate_limits`: 1 finding",
        "passed over: 3 files without a rate limit filter",
    ];
    assert_eq!(lines[2..], rest);
    assert_eq!(code, Some(1));
    let shown = run(&[&path("all"), "--request", "GET a.b/"]);
    assert_eq!(shown.0, Some(0), "{}", shown.1);
    // A file that was probably meant to be a configuration is not passed over.
    write("all/broken.yaml", "static_resources: }\n");
    for request in [&[][..], &["--request", "GET a.b/"]] {
        let (code, said) = run(&[&[&*path("all")], request].concat());
        assert!(said.contains("all/broken.yaml:1:19: "), "{said}");
        assert_eq!(code, Some(2));
    }
    write(
        "clusters.yaml",
        "static_resources: { clusters: [{ name: a, lb_policy: RANDOM }] }\n",
    );
    for name in [path("clusters.yaml"), path("all/b/nothing")] {
        fs::create_dir_all(path("all/b/nothing")).unwrap();
        let (code, said) = run(&[&name]);
        assert!(
            said.starts_with(&format!("{name}: warning: the whole f")),
            "{said}"
        );
        assert!(
            said.contains(": [nothing-checked] no rate limit filter"),
            "{said}"
        );
        assert_eq!(code, Some(1));
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
    let items =
        "{ stage: 1, hits_addend: { number: 1 }, actions: [{ generic_key: { descriptor_value: \
                 some-long-value } }] }, "
            .repeat(3_000);
    let many = format!(
        "static_resources: [{{ '@type': a/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: d }}, {{ \
         domains: ['*'], routes: [], rate_limits: [{items}] }}]"
    );
    let many = Input::new(&many, "");
    for (flags, ends) in [
        (&[][..], ": 100 of 6000 findings\n"),
        (&["--allow", "stage"], ": 100 of 3000 findings\n"),
        (
            &["--allow", "stage", "--allow", "hits-addend"],
            "(6000 left out)\n",
        ),
    ] {
        let (_, said) = run(&[&[&*many.file], flags].concat());
        assert!(said.ends_with(ends), "{said}");
    }
    let (code, said) = run(&[&input.file, "--allow", "stag"]);
    assert!(
        said.contains("'stage'"),
        "the nearest name is suggested: {said}"
    );
    assert_eq!(code, Some(2));
}

#[test]
fn a_report_has_the_forms_of_check() {
    let input = Input::new(&silent(), "");
    let printed = |format| run(&[&input.file, "--format", format]).1;
    let report: Value = serde_json::from_str(&printed("json")).unwrap();
    let problem = report["problems"][0].clone();
    assert_eq!(
        report,
        json!({
            "version": 2, "ok": false, "errors": 1, "warnings": 0, "files": 1, "passed_over": 0, "problems": [problem],
        })
    );
    assert_eq!(
        [&problem["file"], &problem["severity"], &problem["code"]],
        [&*input.file, "error", "stage"]
    );
    let sarif: Value = serde_json::from_str(&printed("sarif")).unwrap();
    let run = &sarif["runs"][0];
    assert_eq!(run["tool"]["driver"]["name"], "tollgate lint-envoy");
    assert_eq!(run["results"][0]["ruleId"], "stage");
    assert_eq!(
        run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"],
        4
    );
    let commands = printed("github");
    assert!(
        commands.starts_with(&format!("::error file={},line=4,col=", input.file)),
        "{commands}"
    );
    assert!(
        commands.contains(",title=tollgate lint-envoy%3A stage::static_resources."),
        "{commands}"
    );
}

/// Texts of a megabyte, as a configuration and as rules: each is a report of at most a hundred findings, soon and in
/// little memory.
#[test]
fn a_megabyte_of_anything_is_reported_soon_and_in_little_memory() {
    const BYTES: usize = 1 << 20;
    let fill = |begin: &str, part: &str, end: &str| {
        let parts = (BYTES - begin.len() - end.len()) / part.len();
        begin.to_owned() + &part.repeat(parts) + end
    };
    let numbered = |begin: &str, part: &dyn Fn(usize) -> String, end: &str| {
        let mut text = begin.to_owned();
        for number in 0.. {
            let part = part(number);
            if text.len() + part.len() + end.len() > BYTES {
                break;
            }
            text += &part;
        }
        text + end
    };
    let item = |number: usize| {
        format!(
            "{{ stage: {number}, actions: [{{ generic_key: {{ descriptor_key: some-key, descriptor_value: \
             value-{number} }} }}] }}, "
        )
    };
    let manager = |number: usize| {
        format!(
            "{{ '@type': a/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, rds: \
             {{ \
             route_config_name: r }}, http_filters: [{{ name: f{number}, typed_config: {{ '@type': \
             a/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: d{number} }} }}] }}, "
        )
    };
    let half = |text: String| {
        text[..text.len() / 2]
            .rsplit_once(", {")
            .unwrap()
            .0
            .to_owned()
    };
    let both = half(numbered("static_resources: [", &manager, ""))
        + ", { name: r, virtual_hosts: [{ domains: ['*'], routes: [], rate_limits: ["
        + &half(numbered("", &item, ""))
        + "] }] }]";
    let filter = "'@type': a/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: shop-service-number-5";
    let routes = |routes: &str| {
        format!(
            "static_resources: [{{ '@type': \
             a/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, http_filters: [{{ \
             name: f, typed_config: {{ {filter} }} }}], route_config: {{ virtual_hosts: [{{ domains: ['*'], routes: [\
             {routes}"
        )
    };
    let nowhere = format!(
        "static_resources: [{{ {} }}, {{ domains: ['*'], routes: [], rate_limits: [",
        filter.replace("shop-service-number-5", "nowhere-near-anything")
    );
    let long = |number: usize| {
        let action = |key: usize| {
            let value = "x".repeat(400);
            format!(
                "{{ generic_key: {{ descriptor_key: k{key}, descriptor_value: v{number}{value} }} }}"
            )
        };
        format!("{{ actions: [{}] }}, ", [0, 1, 2, 3].map(action).join(", "))
    };
    let same = "{ generic_key: { descriptor_value: some-value } }, ";
    let shared = half(numbered("static_resources: [", &manager, ""))
        + &half(fill(
            ", ",
            "{ name: r, virtual_hosts: [{ domains: a, routes: b }] }, ",
            "",
        ))
        + ", { name: r }]";
    let texts = [
        shared,
        numbered(&nowhere, &long, "] }]"),
        fill(
            &nowhere,
            &format!("{{ actions: [{}] }}, ", same.repeat(4)),
            "] }]",
        ),
        fill(
            &format!(
                "static_resources: [{{ {filter} }}, {{ domains: ['*'], routes: [], rate_limits: ["
            ),
            &format!("{{ actions: [{same}] }}, "),
            "] }]",
        ),
        numbered(
            &routes("{ match: { prefix: / }, route: { cluster: a, rate_limits: ["),
            &item,
            "] } }] }] } }]",
        ),
        fill(
            &routes(""),
            "{ match: { safe_regex: { regex: '(?:\\w|a-long-enough-text){300}' } }, route: { cluster: service } }, ",
            "] }] } }]",
        ),
        fill("", "[", ""),
        fill("", "{", ""),
        fill("", "{\"a\":", ""),
        fill("static_resources: [", "1, ", "1]"),
        fill("{\"static_resources\": [", "\"a\", ", "1]}"),
        fill("{\"static_resources\": [", "1234, ", "1]}"),
        fill("static_resources: {", "ab: 1, ", "c: 1}"),
        fill("static_resources:\n", "- a: b\n", ""),
        numbered(
            "static_resources:\n",
            &|number| format!("  k{number}: {number}\n"),
            "",
        ),
        fill("", "---\na: 1\n", ""),
        fill("static_resources: \"", "x", "\""),
        format!(
            "static_resources: {{ {}: [{}] }}",
            "k".repeat(BYTES / 2),
            "a1234, ".repeat(BYTES / 16)
        ),
        numbered("static_resources: [", &manager, "]"),
        numbered(
            "virtual_hosts: [{ domains: ['*'], routes: [], rate_limits: [",
            &item,
            "] }]",
        ),
        numbered("rate_limits: [", &item, "]"),
        both,
        fill("configs: [", "{ configs: [], x: 12 }, ", "]"),
        fill(
            "static_resources: [",
            "{ applyTo: VIRTUAL_HOST, patch: { operation: MERGE, value: { rate_limits: [] } } }, ",
            "]",
        ),
        fill("", "- ", ""),
        fill("", "? ", ""),
        fill("domain: \"", "x", "\""),
        fill("", "{{ .Values.rules }}\n", ""),
        numbered(
            "{",
            &|number| format!("unknown-key-{number}: 1, "),
            "domain: d}",
        ),
        numbered("", &|number| format!("---\ndomain: d{number}\n"), ""),
        fill("domain: d\ndescriptors: [", "{key: a}, ", "]"),
        fill("domain: d\ndescriptors:\n", "- value: a\n", ""),
        fill(
            "domain: d\ndescriptors: [{ key: k, rate_limits: [",
            "1/s, ",
            "] }]",
        ),
        numbered(
            "domain: d\ndescriptors:\n",
            &|number| format!("- {{key: k, value: v{number}, rate_limits: [1/s]}}\n"),
            "",
        ),
    ];
    // An unoptimised program has more pages of its own, which count as memory: those of a short text.
    let idle = ["lint-envoy", "check", "lint-envoy"].map(|command| {
        let input = Input::new(&silent(), "");
        peak_of(&[command, &input.file]).0
    });
    for (number, text) in texts.iter().enumerate() {
        assert!(text.len() <= BYTES + 64, "{number}");
        let domains = (0..30).map(|number| format!("shop-service-number-{number}"));
        let rules = domains.chain(["d1".to_owned()]).map(|domain| {
            format!(
                "---\ndomain: {domain}\ndescriptors: [{{ key: generic_key, rate_limits: [1/day] }}]\n"
            )
        });
        let input = Input::new(text, &rules.collect::<String>());
        let rules = ["--rules", &input.rules];
        let commands = [
            &["lint-envoy", &input.file, rules[0], rules[1]][..],
            &["check", &input.file],
            &[
                "lint-envoy",
                &input.file,
                rules[0],
                rules[1],
                "--request",
                "GET a.b/",
            ],
        ];
        for (command, idle) in commands.into_iter().zip(idle) {
            let begin = Instant::now();
            let (peak, Output { stdout, stderr, .. }) = peak_of(command);
            let took = begin.elapsed();
            let said = String::from_utf8([stdout, stderr].concat()).unwrap();
            let name = format!("{number}, {}", command.join(" "));
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
                  print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\nsys.exit(code)";
    timed
        .args(["-c", script])
        .arg(program().get_program())
        .args(arguments);
    let mut output = finish(&mut timed);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let (before, peak) = errors
        .trim_end()
        .rsplit_once('\n')
        .unwrap_or(("", errors.trim_end()));
    let peak: u64 = peak.parse().expect(&errors);
    output.stderr = before.as_bytes().to_vec();
    (peak << 10, output)
}
