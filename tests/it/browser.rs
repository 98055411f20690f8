//! The page of the debug port, in a real browser: `browser.js` drives a headless Chromium.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::cli::{files, path};
use crate::support::{
    Process,
    ask::{ask, connect},
    demo::Demo,
    envoy::Envoy,
    http::{get, get_with, try_get},
    redis::Redis,
    tollgate::{self, Tollgate},
    tool, wait_until,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: remote_address
    rate_limits: [3/second, 20/minute, 5000/day]
  - key: api_key
    rate_limits: [{ unit: hour, requests_per_unit: 1, algorithm: token_bucket, burst: 1 }]
  - key: plan
    value: free
    descriptors:
      - key: user
        shadow_mode: true
        rate_limits: [{ unit: minute, requests_per_unit: 10, name: fair }]
  - key: plan
    value: gold
    rate_limit: { unlimited: true }
";

/// A year does not end while the test runs.
const RULES_OF_A_YEAR: &str = "
domain: shop
descriptors:
  - key: remote_address
    rate_limits: [40/year]
  - key: api_key
    rate_limits: [3/second]
";

/// A run of a scenario of `browser.js`. Killed on drop.
struct Scenario(Process, TempDir);

/// Waits without a deadline: the steps of a scenario have deadlines of their own.
fn pause() {
    thread::sleep(Duration::from_millis(20));
}

impl Scenario {
    #[track_caller]
    fn start(name: &str, page: &str, args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let file = |name: &str| fs::File::create(folder.path().join(name)).unwrap();
        let mut command = Command::new(tool("node"));
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/browser.js"))
            .args([name, page])
            .args(args)
            .env("CHROMIUM", tool("chromium"))
            // Profiles of the browser are deleted with it.
            .env("TMPDIR", folder.path())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        Self(Process::start(&mut command), folder)
    }

    fn said(&self, stream: &str) -> String {
        fs::read_to_string(self.1.path().join(stream)).unwrap()
    }

    /// Waits for its end.
    #[track_caller]
    fn check(mut self) {
        while !self.0.has_ended() {
            pause();
        }
        let is_good = self.0.status().is_some_and(|status| status.success());
        assert!(is_good, "{}{}", self.said("stdout"), self.said("stderr"));
    }
}

/// The address of the page under a name that may change counters.
fn page(server: &Tollgate) -> String {
    format!("http://localhost:{}/", server.debug.port())
}

#[track_caller]
fn check(scenario: &str, server: &Tollgate, args: &[&str]) {
    Scenario::start(scenario, &page(server), args).check();
}

/// Clients that send requests until it is dropped.
struct Traffic {
    is_over: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Traffic {
    fn through(envoy: &Envoy) -> Self {
        let front = envoy.listener("front");
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let sender = thread::spawn(move || {
            let mut nth = 0_u32;
            while !over.load(Relaxed) {
                nth += 1;
                let client = format!("198.51.100.{}", nth % 7);
                let _ = try_get(front, "/", &[("x-forwarded-for", client.as_bytes())]);
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self {
            is_over,
            sender: Some(sender),
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let _ = self.sender.take().map(JoinHandle::join);
    }
}

#[test]
fn charts_move_explain_answers_and_a_reset_frees_a_client() {
    let server = tollgate::with_rules(RULES_OF_A_YEAR).start();
    let envoy = crate::envoy::front(server.grpc);
    let _traffic = Traffic::through(&envoy);
    let front = format!("http://{}/", envoy.listener("front"));
    check("traffic", &server, &[&front]);
}

/// A server with refused hits and counters.
async fn used() -> Tollgate {
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for nth in 0..12 {
        let address = format!("2001:db8::{}", nth % 2);
        for entries in [
            &[("remote_address", &*address)][..],
            &[("api_key", "k")],
            &[("plan", "free"), ("user", "u")],
        ] {
            ask(&mut client, "shop", entries).await.unwrap();
        }
    }
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_no_violation_in_both_themes_and_no_text_is_wider_than_the_window() {
    check("accessible", &used().await, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_is_done_by_keyboard() {
    check("keyboard", &used().await, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_clients_are_shown_as_text() {
    let long = "x".repeat(16 << 10);
    let texts = [
        "<img src=x onerror='window.counted++; document.title=1'>",
        "<script>window.counted++</script><b>",
        "\"><iframe src=javascript:alert(1)>",
        "two\nlines\r\nand\ttabs",
        "\u{1b}[31mred\u{7}\u{8}\u{1}\u{9f}",
        "\u{202e}gnp.exe\u{2066}",
        "a,b=c\\,d",
        "{{7*7}}${7*7}</textarea></style>",
        "é漢😀\u{301}",
        &long,
    ];
    let server = tollgate::with_rules(RULES).start();
    let mut client = connect(server.grpc).await;
    for (nth, text) in texts.iter().enumerate() {
        for _ in 0..=nth + 1 {
            let reply = ask(&mut client, "shop", &[("api_key", text)]).await;
            reply.unwrap();
        }
    }
    let folder = files(&[("texts.json", &serde_json::to_string(&texts).unwrap())]);
    let file = format!("{}/texts.json", path(&folder));
    check("hostile", &server, &[&file]);
}

/// Domains of one rule and of several, of which all decisions come over `/json`.
const RULES_OF_JSON: [&str; 2] = [
    "domain: one
descriptors: [{ key: only, reserve: { estimate: 9 }, rate_limit: { unit: hour, unit_multiplier: 2, requests_per_unit: 9 } }]",
    "domain: several
descriptors:
  - { key: tried, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: real, rate_limit: { unit: year, requests_per_unit: 1 } }",
];

#[test]
fn a_page_says_what_is_so() {
    for global in [false, true] {
        let mut builder = tollgate::with_rules(RULES_OF_JSON[0]).file("b.yaml", RULES_OF_JSON[1]);
        if global {
            builder = builder.args(["--shadow-mode"]);
        }
        let server = builder.start();
        let json = format!("http://{}/json", server.http);
        let mode = if global { "global" } else { "" };
        check("truths", &server, &[&json, mode]);
    }
}

#[test]
fn while_the_store_is_lost_the_page_says_what_clients_get() {
    let mut redis = Redis::start();
    let key = "key: api_key\n";
    let rules = RULES.replace(key, &format!("{key}    on_store_loss: deny\n"));
    let server = tollgate::with_rules(&rules).redis(&redis).start();
    redis.kill();
    check("lost", &server, &[]);
}

#[test]
fn a_refused_reload_a_good_one_and_the_end_are_shown() {
    let mut server = tollgate::with_rules(RULES).start();
    let folder = server.rules().to_str().unwrap().to_owned();
    let mut scenario = Scenario::start("reload", &page(&server), &[&folder]);
    // It ends if a step before misses its deadline.
    while !scenario.said("stdout").contains("reloaded") && !scenario.0.has_ended() {
        pause();
    }
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    scenario.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_needs_the_token_where_one_is_set() {
    let folder = files(&[("token", "sesame\n")]);
    let token = format!("{}/token", path(&folder));
    let builder = tollgate::with_rules(RULES);
    let server = builder.args(["--admin-token-file", &token]).start();
    let mut client = connect(server.grpc).await;
    let entries = [("remote_address", "192.0.2.1")];
    ask(&mut client, "shop", &entries).await.unwrap();
    check("token", &server, &[]);
}

#[test]
fn the_demo_serves_the_page_and_its_counts_move() {
    // Memory and latency in the pictures are those of a release.
    let release = env::var_os("UPDATE_PICTURES");
    let own = OsStr::new(env!("CARGO_BIN_EXE_tollgate"));
    let mut demo = Demo::start(release.as_deref().unwrap_or(own));
    Scenario::start("moves", &demo.page, &[]).check();
    if release.is_some() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/page");
        fs::create_dir_all(&folder).unwrap();
        Scenario::start("pictures", &demo.page, &[folder.to_str().unwrap()]).check();
    }
    let ended = demo.interrupt();
    assert!(ended.success(), "{}", demo.said());
    let address = demo
        .page
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let address = address.replace("localhost", "127.0.0.1").parse().unwrap();
    wait_until("the server of the demo is gone", || {
        try_get(address, "/", &[]).is_err()
    });
}

#[test]
fn curl_gets_the_list_and_browsers_the_page() {
    let server = tollgate::with_rules(RULES).start();
    let list = get(server.debug, "/");
    assert!(list.body.starts_with("/: "), "{list:?}");
    let accept: &[u8] = b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let page = get_with(server.debug, "/", &[("accept", accept)]);
    let html = "text/html; charset=utf-8";
    assert_eq!(page.header("content-type"), Some(html));
    for reply in [&list, &page] {
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("vary"), Some("accept"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    let policy = page.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'self';",
        "trusted-types 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    // Each file that the page names is there, with the headers of the page.
    let texts = page.body.split(['"', '\'']);
    let names: Vec<_> = texts.filter(|text| text.starts_with("page/")).collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let file = get(server.debug, &format!("/{name}"));
        assert_eq!(file.status, 200, "{name}");
        assert_eq!(file.header("content-security-policy"), Some(policy));
        assert_eq!(file.header("cache-control"), Some("no-store"));
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        assert!(!file.body.is_empty());
    }
    for unknown in ["/page/../Cargo.toml", "/page/none.js"] {
        assert_eq!(get(server.debug, unknown).status, 404, "{unknown}");
    }
}
