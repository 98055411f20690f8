//! The command line: the output and the exit code of each command, and the sources of settings.

use std::{
    any::TypeId,
    ffi::OsStr,
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use ::tollgate::{Cli, Hidden};
use clap::{Arg, CommandFactory as _};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::{
    ask::{ask, connect, is_ok},
    certificates::{Authority, Secret},
    finish, free_port,
    http::get,
    redis::Redis,
    tollgate::{self, Builder, program},
};

const RULES: &str = "
domain: d
descriptors:
  - key: one
    rate_limits: [2/year, 100/3y]
";

// --- check ---------------------------------------------------------------------------------------

#[test]
fn check_accepts_good_rules() {
    let rules = files(&[("a.yaml", RULES), ("sub/b.yml", "domain: e")]);
    let expected = "sub/b.yml:1:9: warning: 0 rules: nothing in domain 'e' is limited\n\
                    ok: 1 rule with 2 limits in 2 domains, 1 warning\n";
    let said = run(&format!("check {}", path(&rules)));
    assert_eq!(said, (Some(0), expected.to_owned()));
}

#[test]
fn check_merges_domains_only_if_told() {
    let other = RULES.replace("one", "other");
    let rules = files(&[("a.yaml", RULES), ("b.yaml", &other)]);
    let (code, said) = run(&format!("check {}", path(&rules)));
    assert!(said.contains("duplicate domain 'd'"), "{said}");
    assert_eq!(code, Some(1));
    let merged = run(&format!("check --merge-domains {}", path(&rules)));
    let expected = "ok: 2 rules with 4 limits in 1 domain\n";
    assert_eq!(merged, (Some(0), expected.to_owned()));
}

#[test]
fn check_warns_where_rules_count_locally_without_a_number_of_replicas() {
    let local = RULES.replace("  - key: one", "  - key: one\n    on_store_loss: local");
    let rules = files(&[("a.yaml", &local)]);
    let rules = path(&rules);
    let (code, said) = run(&format!("check {rules}"));
    let place = "a.yaml:5:20: ";
    let way_out = "set --replicas N, the number of replicas that run";
    assert!(said.contains(place) && said.contains(way_out), "{said}");
    assert_eq!(code, Some(0));
    let (code, said) = run(&format!("check --replicas 3 {rules}"));
    assert_eq!(code, Some(0));
    assert!(!said.contains(way_out), "{said}");
    let mut check = program();
    check.env("TOLLGATE_REPLICAS", "3");
    let output = finish(check.args(["check", "--deny-warnings", rules]));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn check_finds_what_is_not_there() {
    let empty = TempDir::new().unwrap();
    let (code, said) = run(&format!("check {}", path(&empty)));
    assert!(said.contains("no rule files"), "{said}");
    assert_eq!(code, Some(2));
    let (code, said) = run("check /nowhere/at/all.yaml");
    let expected = "/nowhere/at/all.yaml: cannot be read: No such file";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(code, Some(2));
}

#[test]
fn check_tells_files_of_several_folders_apart() {
    let first = files(&[("rules.yaml", RULES)]);
    let second = files(&[("rules.yaml", &RULES.replace("one", "other"))]);
    let (first, second) = (path(&first), path(&second));
    let (code, said) = run(&format!("check {first} {second}"));
    let duplicate = "duplicate domain 'd' in config file, already defined in ";
    for expected in [duplicate, first, second] {
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(code, Some(1));
}

// --- ask -----------------------------------------------------------------------------------------

#[test]
fn ask_prints_a_decision_that_can_be_read() {
    let server = tollgate::with_rules(RULES).start();
    let ask = |hits: u32| {
        let what = "--domain d -d one=v -d k=v,k2=v2";
        let (code, said) = run(&format!(
            "ask --server {} --hits {hits} {what}",
            url(server.grpc)
        ));
        // Everything except times, such as `364d 3h`.
        let lines = said
            .lines()
            .map(|line| match line.split_once("resets in ") {
                Some((before, time)) => {
                    assert!(time.ends_with(['d', 'h', 'm', 's']), "{said}");
                    format!("{before}resets in T\n")
                }
                None => format!("{line}\n"),
            });
        (code, lines.collect::<String>())
    };
    let expected = "\
OK
  one=v: OK, 1 of 2 per year left, resets in T
  k=v,k2=v2: OK, no limit (--why says why)
";
    assert_eq!(ask(1), (Some(0), expected.to_owned()));
    let expected = "\
OVER_LIMIT
  one=v: OVER_LIMIT, 0 of 2 per year left, resets in T
  k=v,k2=v2: OK, no limit (--why says why)
";
    assert_eq!(ask(2), (Some(3), expected.to_owned()));
}

#[test]
fn ask_prints_proto3_json() {
    let server = tollgate::with_rules(RULES).start();
    let what = "--domain d -d one=v -d other=v --hits 2";
    let (code, said) = run(&format!("ask --json --server {} {what}", url(server.grpc)));
    assert_eq!(code, Some(0));
    let mut answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    let reset = answer["statuses"][0]["durationUntilReset"].take();
    assert!(reset.as_str().unwrap().ends_with('s'), "{reset}");
    let limit = serde_json::json!({ "requestsPerUnit": 2, "unit": "YEAR", "name": "" });
    let expected = serde_json::json!({
        "overallCode": "OK", "requestHeadersToAdd": [], "responseHeadersToAdd": [], "rawBody": "", "statuses": [
            { "code": "OK", "currentLimit": limit, "limitRemaining": 0, "durationUntilReset": null },
            { "code": "OK", "limitRemaining": 0 },
        ],
    });
    assert_eq!(answer, expected);
}

#[test]
fn ask_says_what_is_wrong_and_fails() {
    let server = tollgate::with_rules(RULES).start();
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let grpc = url(server.grpc);
    for (server, domain, expected) in [
        (&*nowhere, "d", &*format!("cannot reach {nowhere}")),
        ("not a URL", "d", "cannot reach not a URL"),
        (
            &grpc,
            "",
            "the server answered InvalidArgument: rate limit domain must not be empty\n",
        ),
    ] {
        let what = ["ask", "--server", server, "--domain", domain, "-d", "k=v"];
        let output = finish(program().args(what));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert!(error(&output).starts_with(expected), "{output:?}");
    }
}

// --- settings ------------------------------------------------------------------------------------

#[tokio::test]
async fn the_environment_alone_is_enough() {
    const ENV: &str = "LOG_FORMAT=json LOG_LEVEL=INFO GRPC_HOST=127.0.0.1 GRPC_PORT=0 HOST=127.0.0.1 PORT=0 \
        DEBUG_HOST=127.0.0.1 DEBUG_PORT=0 TOLLGATE_REDIS_TIMEOUT=10s CACHE_KEY_PREFIX=here: NEAR_LIMIT_RATIO=0.5 \
        SHADOW_MODE=true TOLLGATE_MAX_TEXT_BYTES=100";
    let redis = Redis::start();
    let builder = tollgate::bare().file("rules.yaml", RULES);
    let folder = builder.rules().display().to_string();
    let places = format!("TOLLGATE_CONFIG_DIR={folder} REDIS_URL={}", redis.url());
    let server = with_variables(builder, &format!("{ENV} {places}")).start();
    assert_eq!(get(server.http, "/healthcheck").status, 200);
    let mut client = connect(server.grpc).await;
    let mut codes = Vec::new();
    for _ in 0..3 {
        codes.push(is_ok(&ask(&mut client, "d", &[("one", "v")]).await));
    }
    assert_eq!(codes, [true; 3], "in shadow mode");
    let keys = redis.keys();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(keys.iter().all(|key| key.starts_with("here:")), "{keys:?}");
    let page = get(server.debug, "/metrics").body;
    for line in [
        "ratelimit_service_global_shadow_mode 1\n",
        "ratelimit_service_rate_limit_near_limit{domain=\"d\",key1=\"one\"} 1\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
}

/// A folder may contain files with names that are not text.
#[test]
fn arguments_may_be_any_bytes() {
    let odd = OsStr::from_bytes(b"/nowhere/\xff.yaml");
    let output = finish(program().arg("check").arg(odd));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("cannot be read"), "{said}");
    for arguments in [&[odd][..], &[OsStr::new("serve"), odd]] {
        let output = finish(program().args(arguments));
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn a_bad_value_is_refused_by_the_name_of_its_flag_or_variable() {
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").unwrap();
    // The command line itself must accept every text; the code that uses it may reject it.
    let is_text = |flag: &Arg| {
        let kind = flag.get_value_parser().type_id();
        kind == TypeId::of::<String>()
            || kind == TypeId::of::<PathBuf>()
            || kind == TypeId::of::<Hidden>()
    };
    for flag in serve.get_arguments().filter(|flag| !is_text(flag)) {
        let Some(variable) = flag.get_env().and_then(OsStr::to_str) else {
            continue;
        };
        let long = flag.get_long().unwrap();
        let by_flag = finish(nowhere().arg(format!("--{long}=nonsense")));
        let by_variable = finish(nowhere().env(variable, "nonsense"));
        let said = error(&by_flag);
        assert_eq!(by_flag.status.code(), Some(2), "{long}: {said}");
        assert!(said.contains("'nonsense'"), "{said}");
        assert!(said.contains(&format!("--{long}")), "{said}");
        let said = error(&by_variable);
        assert_eq!(by_variable.status.code(), Some(2), "{long}: {said}");
        let blamed = format!("invalid value 'nonsense' for '{variable}'");
        assert!(said.contains(&blamed), "{said}");
    }
}

/// Settings with which the server would start and then answer no call, or crash.
#[test]
fn a_number_that_makes_no_sense_is_refused() {
    for flag in [
        "--max-counters=0",
        "--max-connections=0",
        "--max-connections=18446744073709551615",
        "--max-counter-bytes=0",
        "--workers=100000",
    ] {
        let output = finish(nowhere().arg(flag));
        let said = error(&output);
        assert_eq!(output.status.code(), Some(2), "{flag}: {said}");
        let (name, value) = flag.split_once('=').unwrap();
        assert!(said.contains(name), "{said}");
        assert!(said.contains(value), "{said}");
    }
}

#[test]
fn a_bad_redis_address_is_refused_without_showing_its_password() {
    let builder = tollgate::with_rules(RULES);
    let (status, said) = builder.redis_by_default("bogus://user:secret@host").fail();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("redis://[user:password@]host:port"), "{said}");
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn a_terminal_gets_the_page_a_command_to_try_and_the_open_ports() {
    let start = |hosts: &str| {
        let builder = tollgate::bare().file("rules.yaml", RULES);
        let folder = builder.rules().to_str().unwrap().to_owned();
        let ports = "--grpc-port 0 --port 0 --debug-port 0";
        let serve = format!("serve --log-format json --config-dir {folder} {ports} {hosts}");
        let builder = builder.args(serve.split_whitespace());
        let server = builder.on_a_terminal().start();
        let log = server.log().with("Envoy:  ");
        let page = format!("page:   http://{}/", server.debug);
        assert!(log.contains(&page), "{log}");
        server
    };
    let line = |log: &str, begin: &str| {
        let mut lines = log.lines().map(|line| line.trim_matches('\r'));
        let line = lines.find_map(|line| line.strip_prefix(begin));
        line.map(str::to_owned)
    };
    let server = start("");
    let log = server.log().with("open to every host");
    let open = format!(
        "gRPC without TLS ({}), /json ({})",
        server.grpc, server.http
    );
    assert!(log.contains(&open), "{log}");
    let command = line(&log, "try:    ").unwrap();
    let program = Path::new(command.split(' ').next().unwrap());
    assert!(program.exists(), "{command}");
    let tried = finish(Command::new("/bin/sh").args(["-c", &command]));
    let printed = String::from_utf8(tried.stdout).unwrap();
    let is_ok = printed.starts_with("OK\n") && printed.contains(" left");
    assert!(is_ok, "{printed}");
    let log = start("--host 127.0.0.1 --grpc-host 127.0.0.1").log().text();
    assert_eq!(line(&log, "open to every host"), None, "{log}");
}

#[test]
fn no_pipe_gets_the_lines_for_people() {
    let mut server = tollgate::with_rules(RULES).start();
    server.signal(Signal::SIGTERM);
    server.wait();
    let log = server.log().with("stopped");
    assert!(!log.contains("page:   "), "{log}");
}

#[test]
fn the_ready_line_names_version_ports_store_tls_and_modes() {
    let check = |args: &str, expected: &str| {
        let builder = tollgate::with_rules(RULES);
        let server = builder.args(args.split_whitespace()).start();
        let log = server.log().text();
        let line = log.lines().find(|line| line.contains("tollgate is ready"));
        let line: serde_json::Value = serde_json::from_str(line.unwrap()).unwrap();
        let version = line["version"].as_str().unwrap();
        assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{line}");
        for (field, value) in expected.split(' ').map(|one| one.split_once('=').unwrap()) {
            assert_eq!(line[field], value, "{line}");
        }
    };
    let plain = "tls=off modes=none prometheus=none store=memory json=on";
    check("", plain);
    check("--http-json false", "json=off");
    let modes = "modes=shadow-mode,strict-matching";
    check("--shadow-mode --strict-matching", modes);
    let ours = Authority::new("ours");
    let pair = ours.issue("tollgate");
    let secret = Secret::mount(&[
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &ours.certificate),
    ]);
    let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| secret.at(name));
    let tls = format!("--grpc-tls --grpc-tls-cert {certificate} --grpc-tls-key {key}");
    check(&tls, "tls=server");
    check(&format!("{tls} --grpc-client-ca {ca}"), "tls=mutual");
}

#[test]
fn a_port_that_cannot_be_had_is_fatal_and_named_with_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let prometheus = "Prometheus (--prometheus-address, PROMETHEUS_ADDR)";
    for (port, name) in [
        ("--grpc-port", "gRPC (--grpc-port, GRPC_PORT)"),
        ("--port", "HTTP (--port, PORT)"),
        ("--debug-port", "debug (--debug-port, DEBUG_PORT)"),
        ("--prometheus-address", prometheus),
    ] {
        let builder = tollgate::bare().file("rules.yaml", RULES);
        let folder = builder.rules().display();
        let number = |flag: &str| if flag == port { address.port() } else { 0 };
        let [grpc, http] = ["--grpc-port", "--port"].map(number);
        let [debug, prometheus] = ["--debug-port", "--prometheus-address"].map(number);
        let line = format!(
            "--config-dir {folder} --log-format json --grpc-host 127.0.0.1 --host 127.0.0.1 --grpc-port {grpc} \
             --port {http} --debug-port {debug} --prometheus --prometheus-address 127.0.0.1:{prometheus}"
        );
        let (status, said) = builder.args(line.split(' ')).fail();
        assert_eq!(status.code(), Some(1), "{said}");
        let expected = format!("cannot listen on {address} for {name}: Address already in use");
        assert!(said.contains(&expected), "{said}");
    }
    // An address of no machine, from RFC 5737.
    for (flag, name) in [
        ("--grpc-host", "gRPC (--grpc-host, GRPC_HOST)"),
        ("--host", "HTTP (--host, HOST)"),
        ("--debug-host", "debug (--debug-host, DEBUG_HOST)"),
    ] {
        let rules = files(&[("a.yaml", RULES)]);
        let ports = "--grpc-port=0 --port=0 --debug-port=0";
        let line = format!("{ports} --config-dir {} {flag} 192.0.2.1", path(&rules));
        let (_, stdout, stderr) = run_in(rules.path(), &line);
        let said = stdout + &stderr;
        let expected = format!("for {name}: Cannot assign");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn rules_that_cannot_be_found_are_told_with_the_setting_of_their_folder() {
    let empty = TempDir::new().unwrap();
    let check = |line: &str, expected: &str| {
        let (code, said, errors) = run_in(empty.path(), line);
        assert_eq!(code, Some(1), "{said}{errors}");
        assert!(errors.contains(expected), "{errors}");
    };
    let setting = "(see --config-dir, TOLLGATE_CONFIG_DIR) cannot be used:";
    let unread = format!("the rules in config {setting}\n  config: cannot be read: No such");
    check("", &unread);
    check(&format!("serve --config-dir {}", path(&empty)), setting);
    let nowhere = "the rules in nowhere (see --runtime-root, RUNTIME_ROOT) cannot be used:";
    check("--runtime-root nowhere", nowhere);
}

#[tokio::test]
async fn hits_below_zero_are_given_back_and_refused_elsewhere() {
    let server = tollgate::with_rules(RULES).start();
    let what = "--domain d -d one=v --hits";
    let asked = |hits: i32| run(&format!("ask --server {} {what} {hits}", url(server.grpc))).1;
    assert!(asked(2).contains("0 of 2 per year left"));
    let (_, said) = run(&format!("explain --server {} {what} -2", url(server.debug)));
    assert!(said.starts_with("would pass"), "{said}");
    assert!(asked(-2).starts_with("OK"));
    assert!(asked(0).contains("2 of 2 per year left"));
    let counters = "'--max-counters <N>': expected a whole number";
    for (line, expected) in [
        ("--max-counters -1", counters),
        ("--port -1", "'--port <PORT>'"),
    ] {
        let (code, _, errors) = run_in(Path::new("."), line);
        assert_eq!(code, Some(2), "{errors}");
        let expected = format!("invalid value '-1' for {expected}");
        assert!(errors.contains(&expected), "{errors}");
    }
}

// --- in short ------------------------------------------------------------------------------------

/// Runs a command in a folder; returns its exit code, its output and its errors. No word of it has a blank.
#[track_caller]
pub(crate) fn run_in(folder: &Path, line: &str) -> (Option<i32>, String, String) {
    let output = finish(program().current_dir(folder).args(line.split_whitespace()));
    let [said, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), said, errors)
}

/// Runs a command; returns its exit code and its output.
#[track_caller]
pub(crate) fn run(line: &str) -> (Option<i32>, String) {
    let (code, said, _) = run_in(Path::new("."), line);
    (code, said)
}

/// A builder with variables, which are written as `NAME=value NAME=value`.
pub(crate) fn with_variables(builder: Builder, variables: &str) -> Builder {
    let pairs = variables
        .split_whitespace()
        .map(|one| one.split_once('=').unwrap());
    pairs.fold(builder, |builder, (name, value)| builder.env(name, value))
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// A server that does not start, because it has no rules.
fn nowhere() -> Command {
    let mut command = program();
    command.arg("--config-dir=/nowhere/at/all");
    command
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn files(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

pub(crate) fn path(folder: &TempDir) -> &str {
    Path::to_str(folder.path()).unwrap()
}
