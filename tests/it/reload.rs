//! Rules that change under a running server: a valid change is taken into use completely and an invalid one not at
//! all, however it is written.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use ::tollgate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::{sync::oneshot, task::JoinSet, time::timeout};

use crate::cli::{files, path, run, run_in};
use crate::support::{
    PATIENCE,
    ask::{Client, ask, connect, request, send, with_hits},
    eventually, finish,
    tollgate::{self, Builder, Tollgate},
    wait_until,
};

/// Rules that allow `requests` in 10,000 years.
fn rules(domain: &str, requests: u32) -> String {
    format!("domain: {domain}\ndescriptors: [{{key: k, rate_limits: [{requests}/10000years]}}]\n")
}

fn limit_of(response: &RateLimitResponse) -> Option<u32> {
    let limit = response.statuses[0].current_limit.as_ref();
    limit.map(|limit| limit.requests_per_unit)
}

/// The limit in force in `domain`, if there is one.
async fn limit(server: &Tollgate, domain: &str) -> Option<u32> {
    let look = with_hits(&[("k", "v")], 0);
    let mut client = connect(server.grpc).await;
    let response = send(&mut client, request(domain, vec![look])).await;
    limit_of(&response.unwrap())
}

/// The server reads its folder this often even without a notification. A change seen earlier came from a
/// notification.
const RECHECK: Duration = Duration::from_secs(10);

/// Waits until these are the limits in force in the domains `a` and `b`.
async fn await_limits(server: &Tollgate, expected: [Option<u32>; 2]) {
    eventually("the new rules are in use", async || {
        [limit(server, "a").await, limit(server, "b").await] == expected
    })
    .await;
}

/// Starts a server and makes a change, which takes effect with these limits in `a` and `b`.
async fn check(builder: Builder, change: impl FnOnce(&Path), expected: [Option<u32>; 2]) {
    let started = Instant::now();
    let server = builder.start();
    change(server.rules());
    await_limits(&server, expected).await;
    assert!(started.elapsed() < RECHECK, "the change was not noticed");
    assert_eq!(server.metric("ratelimit_service_config_load_error"), 0);
}

fn one_file() -> Builder {
    tollgate::builder().file("a.yaml", &rules("a", 1))
}

#[tokio::test]
async fn every_change_of_a_file_is_taken() {
    let write =
        |folder: &Path, name: &str, text: String| fs::write(folder.join(name), text).unwrap();
    let rename = |folder: &Path, from: &str, to: &str| {
        fs::rename(folder.join(from), folder.join(to)).unwrap();
    };
    let over = |folder: &Path| write(folder, "a.yaml", rules("a", 2));
    check(one_file(), over, [Some(2), None]).await;
    let swap = |folder: &Path| {
        write(folder, ".a.yaml.swp", rules("a", 2));
        rename(folder, ".a.yaml.swp", "a.yaml");
    };
    check(one_file(), swap, [Some(2), None]).await;
    let new_folder = |folder: &Path| {
        fs::create_dir(folder.join("more")).unwrap();
        write(folder, "more/b.yaml", rules("b", 2));
    };
    check(one_file(), new_folder, [Some(1), Some(2)]).await;
    let two = || {
        let builder = one_file();
        new_folder(builder.rules());
        builder
    };
    let over_below = |folder: &Path| write(folder, "more/b.yaml", rules("b", 3));
    check(two(), over_below, [Some(1), Some(3)]).await;
    let remove = |folder: &Path| fs::remove_file(folder.join("more/b.yaml")).unwrap();
    check(two(), remove, [Some(1), None]).await;
    let switch_off = |folder: &Path| rename(folder, "more/b.yaml", "more/b.off");
    check(two(), switch_off, [Some(1), None]).await;
}

/// Writes a ConfigMap as the kubelet does: the files are links through `..data` into the folder of a version, and a
/// new version is one rename of a link.
fn write_version(folder: &Path, version: &str, text: &str) {
    let version = format!("..{version}");
    fs::create_dir(folder.join(&version)).unwrap();
    fs::write(folder.join(&version).join("a.yaml"), text).unwrap();
    symlink(&version, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
}

fn config_map() -> Builder {
    let builder = tollgate::builder();
    write_version(builder.rules(), "0", &rules("a", 1));
    symlink("..data/a.yaml", builder.rules().join("a.yaml")).unwrap();
    builder
}

#[tokio::test]
async fn a_config_map_is_reloaded() {
    let change = |folder: &Path| {
        write_version(folder, "1", &rules("a", 2));
        fs::remove_dir_all(folder.join("..0")).unwrap();
    };
    check(config_map(), change, [Some(2), None]).await;
}

/// The line of `/healthcheck?verbose` on rules.
fn rules_line(server: &Tollgate) -> String {
    let page = server.page("/healthcheck?verbose");
    let line = page.lines().find_map(|line| line.strip_prefix("rules: "));
    line.expect("a line on rules").to_owned()
}

#[test]
fn a_refused_change_shows_in_gauges_and_on_the_page_of_health_until_a_good_one() {
    const HASH: &str = "tollgate_rules_hash";
    const SUCCESSFUL: &str = "tollgate_rules_last_load_successful";
    const TRIED: &str = "tollgate_rules_last_load_timestamp_seconds";
    const TAKEN: &str = "tollgate_rules_last_load_success_timestamp_seconds";
    let server = one_file().start();
    let first = server.metric(HASH);
    let taken = server.metric(TAKEN);
    assert_eq!(server.metric(SUCCESSFUL), 1);
    assert_eq!(server.metric(TRIED), taken);
    let in_use = rules_line(&server);
    assert!(in_use.starts_with("ok, 1 in use, loaded at 20"), "{in_use}");
    assert!(in_use.ends_with(&format!("hash {first:012x}")), "{in_use}");

    let wrong = rules("a", 2).replace("10000years", "fortnight");
    fs::write(server.rules().join("a.yaml"), wrong).unwrap();
    wait_until("it is refused", || server.metric(SUCCESSFUL) == 0);
    assert_eq!([server.metric(HASH), server.metric(TAKEN)], [first, taken]);
    assert!(server.metric(TRIED) >= taken);
    let refused = rules_line(&server);
    assert!(refused.starts_with("refused at 20"), "{refused}");
    let place = ", first error at a.yaml:2:38; 1 in use, loaded at ";
    assert!(refused.contains(place), "{refused}");
    assert!(refused.ends_with(&in_use["ok, ".len()..]), "{refused}");
    assert!(!refused.contains("fortnight"), "{refused}");

    // The first version again is the first version.
    fs::write(server.rules().join("a.yaml"), rules("a", 1)).unwrap();
    wait_until("it is taken", || server.metric(SUCCESSFUL) == 1);
    assert_eq!(server.metric(HASH), first);
    fs::write(server.rules().join("a.yaml"), rules("a", 2)).unwrap();
    wait_until("other rules have another hash", || {
        server.metric(HASH) != first
    });
}

#[test]
fn replicas_with_equal_files_have_equal_hashes() {
    let [one, other] = [(); 2].map(|()| one_file().start());
    let hash = |server: &Tollgate| server.metric("tollgate_rules_hash");
    assert_ne!(one.rules(), other.rules());
    assert_eq!(hash(&one), hash(&other));
    let another = one_file().file("b.yaml", &rules("b", 1)).start();
    assert_ne!(hash(&one), hash(&another));
}

/// Each version of a ConfigMap removes the folder of the one before, which is no reason to say anything.
#[test]
fn a_config_map_that_changes_is_one_line_of_the_log_each_time() {
    let server = config_map().start();
    let lines = |text: &str| server.log().text().matches(text).count();
    for version in 1..=3 {
        let before = lines("rules loaded");
        let text = rules("a", version + 1);
        write_version(server.rules(), &version.to_string(), &text);
        fs::remove_dir_all(server.rules().join(format!("..{}", version - 1))).unwrap();
        wait_until("the version is loaded", || lines("rules loaded") > before);
    }
    assert_eq!(lines("inotify"), 0, "{}", server.log().text());
}

/// Makes an invalid change and waits for its refusal; the old limit must still apply.
async fn check_refused(change: impl FnOnce(&Path), said: &str) {
    let server = one_file().start();
    change(server.rules());
    wait_until("the change is refused", || {
        server.metric("ratelimit_service_config_load_error") == 1
    });
    let log = server.log().with("the last good ones stay in use");
    assert!(log.contains(said), "no {said:?} in\n{log}");
    assert_eq!(limit(&server, "a").await, Some(1));
    assert_eq!(server.metric("ratelimit_service_config_load_success"), 1);
    let failed = server.metric("ratelimit_service_config_load_error");
    assert_eq!(server.metric("runtime_load_attempts"), 1 + failed);
    assert_eq!(server.metric("runtime_load_failures"), failed);
    assert_eq!(server.metric("runtime_num_values"), 1);

    // The next valid one is accepted.
    fs::write(server.rules().join("a.yaml"), rules("a", 2)).unwrap();
    let _ = fs::remove_file(server.rules().join("b.yaml"));
    await_limits(&server, [Some(2), None]).await;
    assert_eq!(server.metric("ratelimit_service_config_load_success"), 2);
}

/// One beside a good file keeps both out. A domain that had rules and is there without any was probably cut off or
/// misspelt; the domain of a file that is gone was removed on purpose, unless it is the last.
#[tokio::test]
async fn a_bad_file_changes_nothing_and_the_log_says_where_and_what_would_be_right() {
    const LOST: &str = "a.yaml:1:9: domain 'a' has lost all its rules, so nothing in it would be limited; write a rule, \
                        remove the domain, or allow it (--empty-reload allow)";
    let fortnight = "domain: a\ndescriptors:\n  - key: k\n    rate_limits: [5/fortnight]\n";
    let unreadable = "a.yaml:4:19: a.k: cannot read the limit '5/fortnight'; write NUMBER/UNIT";
    let unknown = "b.yaml:2:1: b: unknown key 'what' (expected ";
    let second = "a.yaml:2:6: a second `: ` in one line";
    for (file, text, said) in [
        ("a.yaml", fortnight, unreadable),
        ("b.yaml", "domain: b\nwhat: 1\n", unknown),
        // The parser of YAML sees two lines in it, and all else sees one.
        ("a.yaml", "domain: d\r  key: e\r", second),
        ("a.yaml", "domain: a\n", LOST),
        ("a.yaml", "domain: a\ndescriptors: []\n", LOST),
        ("a.yaml", "domain: a\ndescriptors: [{key: k}]\n", LOST),
        ("a.yaml", "", "a.yaml: the file is empty"),
    ] {
        check_refused(|folder| fs::write(folder.join(file), text).unwrap(), said).await;
    }
}

#[tokio::test]
async fn a_domain_may_lose_its_rules_if_the_operator_says_so() {
    let builder = one_file().args(["--empty-reload", "allow"]);
    let empty = |folder: &Path| fs::write(folder.join("a.yaml"), "domain: a\n").unwrap();
    check(builder, empty, [None, None]).await;
}

/// Only rules that are in use can be lost, and another domain's rules are not this one's.
#[tokio::test]
async fn a_domain_that_had_no_rule_may_have_none() {
    let change = |folder: &Path| {
        fs::write(folder.join("a.yaml"), rules("a", 2)).unwrap();
        fs::write(folder.join("d.yaml"), "domain: d\n").unwrap();
    };
    let builder = one_file().file("c.yaml", "domain: a.k\n");
    check(builder, change, [Some(2), None]).await;
}

#[tokio::test]
async fn without_any_file_the_last_good_rules_hold() {
    let remove = |folder: &Path| fs::remove_file(folder.join("a.yaml")).unwrap();
    check_refused(remove, "no rule files found").await;
}

fn make_pipe(path: &Path) {
    let made = finish(Command::new("mkfifo").arg(path));
    assert!(made.status.success(), "{made:?}");
}

/// A read of it would wait for a writer.
#[tokio::test]
async fn a_pipe_among_the_rules_is_refused_and_holds_up_nothing() {
    const REFUSAL: &str = "b.yaml: is no regular file";
    check_refused(|folder| make_pipe(&folder.join("b.yaml")), REFUSAL).await;
    let folder = files(&[("a.yaml", &rules("a", 1))]);
    make_pipe(&folder.path().join("b.yaml"));
    for command in ["check --", "serve --config-dir"] {
        let line = format!("{command} {}", path(&folder));
        let (code, said, errors) = run_in(folder.path(), &line);
        assert_ne!(code, Some(0), "{command}");
        assert!((said + &errors).contains(REFUSAL), "{command}");
    }
}

/// Each would be entered from each, to any depth.
#[tokio::test]
async fn links_of_folders_to_one_another_are_entered_once() {
    let server = one_file().start();
    fs::create_dir(server.rules().join("below")).unwrap();
    for number in 0..9 {
        symlink(".", server.rules().join(format!("own{number}"))).unwrap();
        symlink("..", server.rules().join(format!("below/up{number}"))).unwrap();
    }
    fs::write(server.rules().join("below/b.yaml"), rules("b", 3)).unwrap();
    fs::write(server.rules().join("a.yaml"), rules("a", 2)).unwrap();
    await_limits(&server, [Some(2), Some(3)]).await;
    assert_eq!(server.metric("runtime_num_values"), 2);
    let (code, said) = run(&format!("check {}", server.rules().display()));
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test]
async fn a_file_full_of_mistakes_has_few_lines_in_the_log_and_says_how_many_more_there_are() {
    const MISTAKES: usize = 20_000;
    let text = format!("domain: c\ndescriptors: [{}]\n", "{},".repeat(MISTAKES));
    let server = one_file().start();
    fs::write(server.rules().join("b.yaml"), text).unwrap();
    let log = server.log().with("the last good ones stay in use");
    let lines = log.matches("descriptor has empty key").count();
    assert!((1..=100).contains(&lines), "{lines} lines");
    let more = format!("and {} more errors in this file", MISTAKES - 100);
    assert!(log.contains(&more), "{log}");
    let (_, said) = run(&format!("check {}", server.rules().display()));
    let all = format!("failed: {MISTAKES} errors");
    assert!(said.contains(&all), "{said}");
    assert_eq!(limit(&server, "a").await, Some(1));
}

#[tokio::test]
async fn what_was_counted_stays_counted() {
    let server = tollgate::builder().file("a.yaml", &rules("a", 10)).start();
    let mut client = connect(server.grpc).await;
    for _ in 0..3 {
        ask(&mut client, "a", &[("k", "v")]).await.unwrap();
    }
    fs::write(server.rules().join("a.yaml"), rules("a", 5)).unwrap();
    await_limits(&server, [Some(5), None]).await;
    let response = ask(&mut client, "a", &[("k", "v")]).await.unwrap();
    assert_eq!(response.statuses[0].limit_remaining, 1);
}

#[tokio::test]
async fn under_load_every_request_is_answered_by_the_old_rules_or_the_new() {
    const OLD: u32 = 1_000_000;
    const NEW: u32 = 2_000_000;
    let server = tollgate::builder().file("a.yaml", &rules("a", OLD)).start();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let client = connect(server.grpc).await;
        for _ in 0..4 {
            let mut client = client.clone();
            let stopped = stopped.clone();
            callers.spawn(async move {
                let mut seen = Vec::new();
                while !*stopped.borrow() {
                    let response = ask(&mut client, "a", &[("k", "v")]).await.unwrap();
                    seen.push(limit_of(&response).unwrap());
                }
                let last = ask(&mut client, "a", &[("k", "v")]).await.unwrap();
                (seen, limit_of(&last))
            });
        }
    }
    for (round, requests) in (1..).zip([NEW, OLD, NEW, OLD, NEW]) {
        let swap = server.rules().join("new");
        fs::write(&swap, rules("a", requests)).unwrap();
        fs::rename(&swap, server.rules().join("a.yaml")).unwrap();
        eventually("the change is taken", async || {
            server.metric("ratelimit_service_config_load_success") == 1 + round
        })
        .await;
        await_limits(&server, [Some(requests), None]).await;
    }
    stop.send(true).unwrap();
    for (seen, last) in callers.join_all().await {
        assert!(seen.contains(&OLD) && seen.contains(&NEW));
        assert!(seen.iter().all(|&limit| limit == OLD || limit == NEW));
        // No caller that had seen a change got an answer by older rules afterwards.
        let changes = seen.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes <= 5, "{changes} changes");
        assert_eq!(last, Some(NEW));
    }
    assert_eq!(server.metric("ratelimit_service_config_load_error"), 0);
}

/// A rule file whose writer is notified when the server has read all of it.
struct ReadFile(PathBuf);

impl ReadFile {
    /// Replaces the file at once. The receiver is notified when a reader closes the new one.
    fn write(&self, text: String) -> oneshot::Receiver<()> {
        let written = self.0.with_file_name(".written");
        fs::write(&written, text).unwrap();
        let closes = Inotify::init(InitFlags::empty()).unwrap();
        let event = AddWatchFlags::IN_CLOSE_NOWRITE;
        closes.add_watch(&written, event).unwrap();
        // The watch is on the file, whatever its name.
        fs::rename(&written, &self.0).unwrap();
        let (done, is_done) = oneshot::channel();
        // A detached thread: it would never end if the server did not read.
        thread::spawn(move || {
            closes.read_events().unwrap();
            let _ = done.send(());
        });
        is_done
    }
}

/// Rules that take hundreds of times as long to compile as a call takes, plus one that allows `requests`.
fn many_rules(requests: u32) -> String {
    let text = rules("a", requests).replace("[{", "\n- {");
    let mut text = text.replace("}]", "}");
    for number in 0..12_000 {
        text += &format!("- {{key: plan, value: p{number}, rate_limits: [5/day]}}\n");
    }
    text
}

/// Observations of one connection's calls while new rules were loaded.
#[derive(Debug, Default)]
struct Seen {
    /// Calls that began after the server had read the rules and got an answer by the old ones.
    meanwhile: AtomicU64,
    /// The most answers of the clock server during one of these calls.
    longest: AtomicU64,
    /// The limit in the last answer.
    last: AtomicU32,
}

/// A server does not report when it compiles. But between reading new rules and using them it compiles most of the
/// time. A second server, which loads nothing, is the clock: its answers in that time are counted, and no call to the
/// first may last as long as a quarter of them. A busy machine can hold up all threads of one server, so that is
/// allowed in one of three loads. Workers get connections in turn, so each worker has some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_rules_are_compiled_no_connection_waits_for_that() {
    let builder = tollgate::builder();
    let file = ReadFile(builder.rules().join("rules.yaml"));
    drop(file.write(many_rules(1)));
    let server = builder.start();
    let clock = tollgate::builder().file("a.yaml", &rules("a", 1)).start();

    // Each limit is the number of its load; this is the number of the last load that was read.
    let read = Arc::new(AtomicU32::new(1));
    let ticks = Arc::new(AtomicU64::new(0));
    let mut connections = JoinSet::new();
    let mut client = connect(clock.grpc).await;
    let tick = ticks.clone();
    connections.spawn(async move {
        loop {
            ask(&mut client, "a", &[("k", "v")]).await.unwrap();
            tick.fetch_add(1, SeqCst);
        }
    });
    let call = async |client: &mut Client,
                      (read, ticks): &(Arc<AtomicU32>, Arc<AtomicU64>),
                      seen: &Seen| {
        let (before, began) = (read.load(SeqCst), ticks.load(SeqCst));
        let response = ask(client, "a", &[("k", "v")]).await.unwrap();
        let limit = limit_of(&response).unwrap();
        if limit < before {
            seen.meanwhile.fetch_add(1, SeqCst);
        }
        if seen.last.swap(limit, SeqCst) < before {
            seen.longest.fetch_max(ticks.load(SeqCst) - began, SeqCst);
        }
    };
    let mut all = Vec::new();
    // The last of them opens a new connection for each call: the dispatcher must not wait either.
    for is_lasting in [true, true, true, true, false] {
        let seen = Arc::new(Seen::default());
        all.push(seen.clone());
        let shared = (read.clone(), ticks.clone());
        let address = server.grpc;
        connections.spawn(async move {
            let mut client = connect(address).await;
            loop {
                call(&mut client, &shared, &seen).await;
                if !is_lasting {
                    client = connect(address).await;
                }
            }
        });
    }

    let mut waited = Vec::new();
    for load in 2..=4 {
        let is_read = file.write(many_rules(load));
        timeout(PATIENCE, is_read).await.unwrap().unwrap();
        let began = ticks.load(SeqCst);
        read.store(load, SeqCst);
        eventually("the new rules are in use", async || {
            all.iter().all(|seen| seen.last.load(SeqCst) == load)
        })
        .await;
        let ticks = ticks.load(SeqCst) - began;
        for seen in &all {
            let meanwhile = seen.meanwhile.swap(0, SeqCst);
            assert!(meanwhile > 0, "in load {load} of {ticks}: {all:#?}");
        }
        let longest = all.iter().map(|seen| seen.longest.swap(0, SeqCst));
        waited.push((longest.max().unwrap(), ticks));
    }
    let is_short = |(longest, ticks): &&(u64, u64)| *longest < ticks / 4;
    assert!(waited.iter().filter(is_short).count() >= 2, "{waited:?}");
    connections.abort_all();
    assert_eq!(server.metric("ratelimit_service_config_load_success"), 4);
    assert_eq!(server.metric("ratelimit_service_config_load_error"), 0);
}
