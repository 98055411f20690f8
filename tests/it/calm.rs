//! Effects on callers while Redis or the network to it is broken: no call waits for a lost Redis, and counts are exact
//! afterwards. While only this machine is busy, Redis is not lost. `make chaos` runs the scenarios longer.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use crate::support::{
    Process,
    ask::*,
    busy::{Pauses, Turn},
    chaos::{self, Outcome, Plan, await_page},
    eventually,
    proxy::{Fault, Proxy},
    redis::Redis,
    storm::{PERIOD, Storm, TIMEOUT},
    tollgate::{self, Builder, Tollgate},
    tool, wait_until,
};

const DEADLINE: Duration = Duration::from_millis(100);

/// In every scenario no hit is admitted twice, and after the repair Redis decides again, exactly.
async fn run(name: &'static str) -> Outcome {
    assert!(chaos::SCENARIOS.contains(&name), "`make chaos` runs it too");
    let plan = Plan {
        deadline: DEADLINE,
        lasts: Duration::from_millis(800),
        period: PERIOD,
        args: Vec::new(),
    };
    let outcome = chaos::run(name, plan).await;
    assert!(outcome.answers > 100, "{outcome:#?}");
    assert_ne!(outcome.recovery, Duration::MAX, "{outcome:#?}");
    assert_eq!(outcome.off_afterwards, 0, "{outcome:#?}");
    let without = i64::try_from(outcome.errors + outcome.degraded).unwrap();
    assert!(outcome.under <= without, "{outcome:#?}");
    outcome
}

/// Calls to a lost Redis are refused and do not wait for it.
#[track_caller]
fn check_fails_at_once(outcome: &Outcome) {
    assert!(outcome.errors > 0, "{outcome:#?}");
    check_lost(outcome);
}

#[track_caller]
fn check_lost(outcome: &Outcome) {
    assert!(outcome.lost.is_some(), "{outcome:#?}");
    assert!(outcome.lacks_when_lost > 0, "{outcome:#?}");
    assert_eq!(outcome.waits_when_lost, 0, "{:#?}", outcome.slowest);
}

#[tokio::test]
async fn redis_is_killed_and_comes_back_empty() {
    let outcome = run(chaos::KILLED).await;
    check_fails_at_once(&outcome);
    assert!(outcome.over > 0, "what Redis forgot is forgotten");
}

async fn run_without_loss(name: &'static str) -> Outcome {
    let outcome = run(name).await;
    assert_eq!(outcome.over, 0, "{outcome:#?}");
    outcome
}

#[tokio::test]
async fn calls_to_a_redis_that_hangs_or_is_full_or_cannot_be_reached_fail_at_once() {
    use chaos::{CLIENTS, CUT, DENIED, HALF_OPEN, STOPPED};
    for name in [STOPPED, CUT, HALF_OPEN, CLIENTS, DENIED] {
        check_fails_at_once(&run_without_loss(name).await);
    }
}

#[tokio::test]
async fn the_password_changes_or_the_certificate_of_redis_expires() {
    for name in [chaos::PASSWORD, chaos::EXPIRED] {
        check_fails_at_once(&run_without_loss(name).await);
    }
}

#[tokio::test]
async fn a_proxy_before_two_servers_is_killed() {
    check_fails_at_once(&run_without_loss(chaos::TWEMPROXY).await);
}

#[tokio::test]
async fn the_network_is_slow_or_narrow_or_one_of_two_replicas_loses_redis() {
    for name in [chaos::LATENCY, chaos::NARROW, chaos::SPLIT] {
        let outcome = run_without_loss(name).await;
        assert!(outcome.errors > 0, "{outcome:#?}");
    }
}

#[tokio::test]
async fn redis_is_full_or_its_scripts_are_flushed_or_its_address_moves() {
    let outcome = run_without_loss(chaos::FULL).await;
    assert!(outcome.errors > 0, "{outcome:#?}");
    assert_eq!(outcome.lost, None, "{outcome:#?}");
    assert_eq!(run_without_loss(chaos::FLUSHED).await.errors, 0);
    run_without_loss(chaos::MOVED).await;
}

/// Runs a scenario in which rules answer without Redis, so that no call gets an error.
async fn run_without_errors(name: &'static str) -> Outcome {
    let outcome = run(name).await;
    assert_eq!(outcome.errors, 0, "{outcome:#?}");
    assert!(outcome.degraded > 0, "{outcome:#?}");
    check_lost(&outcome);
    outcome
}

#[tokio::test]
async fn without_redis_everything_is_allowed_or_denied_if_that_is_wanted() {
    run_without_errors(chaos::KILLED_ALLOW).await;
    run_without_errors(chaos::KILLED_DENY).await;
}

#[tokio::test]
async fn nothing_is_missing_in_redis_but_what_was_counted_locally() {
    run_without_errors(chaos::KILLED_LOCAL).await;
    for name in [chaos::STOPPED_LOCAL, chaos::SPLIT_LOCAL] {
        let outcome = run_without_errors(name).await;
        let local = i64::try_from(outcome.degraded).unwrap();
        assert!(outcome.over <= local, "{outcome:#?}");
    }
}

/// Runs a scenario in which Redis always answers, and requires that `goes_well` holds. Repeats it if not and Redis
/// itself was late, because the machine had no time for it; after 20 repetitions that is no excuse.
async fn run_with_redis_there(name: &'static str, goes_well: fn(&Outcome) -> bool) -> Outcome {
    for _ in 0..20 {
        let outcome = run_without_loss(name).await;
        if goes_well(&outcome) {
            return outcome;
        }
        let took = outcome.redis_took.expect("a witness asked it");
        assert!(took > DEADLINE / 2, "{:?}: {outcome:#?}", outcome.texts);
        eprintln!("{name}: once more, for Redis took {took:?}");
    }
    panic!("{name}: Redis was late each time");
}

/// Redis is never lost, even if tollgate or a connection is delayed.
async fn run_without_losing(name: &'static str) -> Outcome {
    run_with_redis_there(name, |outcome| outcome.lost.is_none()).await
}

async fn run_without_lack(name: &'static str) {
    run_with_redis_there(name, |outcome| {
        outcome.lost.is_none() && outcome.errors + outcome.degraded == 0
    })
    .await;
}

#[tokio::test]
async fn a_process_that_is_stopped_in_turns_blames_nobody() {
    use chaos::{PAUSES_15, PAUSES_60, PAUSES_200, PAUSES_OF_BOTH, PAUSES_RANDOM};
    for name in [
        PAUSES_15,
        PAUSES_60,
        PAUSES_200,
        PAUSES_RANDOM,
        PAUSES_OF_BOTH,
    ] {
        run_without_lack(name).await;
    }
}

/// With default flags, and Envoy's `timeout: 1s`.
#[tokio::test]
async fn a_process_that_is_stopped_again_and_again_answers_all_calls() {
    for (stopped, runs) in [(60, 40), (15, 85), (150, 50)] {
        let redis = Redis::start();
        let server = tollgate::with_rules(RULES).redis_by_default(&redis.url());
        let (server, client) = serve(server).await;
        works(&client).await;
        let storm = Storm::with_timeout(&[server.grpc], &["a"], PERIOD, Some("1S"));
        let pauses = Pauses::of(server.process_id(), vec![Turn::millis(stopped, runs)]);
        let calls = || server.metric("tollgate_decisions_total{code=\"ok\"}");
        let before = calls();
        wait_until("stops lie between many calls", || calls() > before + 2_000);
        drop(pauses);
        let answers = storm.end().await;
        assert_eq!(answers.lacks(), 0, "{stopped}: {:?}", answers.errors());
        let page = server.page("/metrics");
        let without = page
            .lines()
            .filter(|line| line.contains("_without_store_total{"));
        let without: Vec<_> = without.filter(|line| !line.ends_with(" 0")).collect();
        assert!(without.is_empty(), "{stopped}: {without:?}");
    }
}

/// The caller's time is the deadline: after it the decision is abandoned, and Redis does not count as lost.
#[tokio::test]
async fn no_decision_takes_longer_than_its_caller_waits() {
    let redis = Redis::start();
    let (server, client) = serve(start(&redis, "1h")).await;
    works(&client).await;
    let storm = Storm::with_timeout(&[server.grpc], &["a"], PERIOD, Some("20m"));
    redis.freeze();
    let cause = r#"tollgate_decisions_without_store_total{cause="timeout"}"#;
    wait_until("they give up", || server.metric(cause) > 100);
    redis.thaw();
    let answers = storm.end().await;
    let errors = answers.errors();
    assert_eq!(errors.keys().collect::<Vec<_>>(), [&TIMEOUT]);
    assert!(!server.log().text().contains("Redis is lost"));
}

#[tokio::test]
async fn a_busy_machine_large_messages_and_late_answers_are_not_a_lost_redis() {
    use chaos::{BUSY, LATE_REPLIES, SAVES, SLEEPS, STARVED};
    for name in [BUSY, STARVED, LATE_REPLIES, SLEEPS, SAVES] {
        run_without_lack(name).await;
    }
}

/// Another connection takes over the requests queued after the batch on a stalled connection.
#[tokio::test]
async fn a_connection_that_stalls_costs_its_own_batch() {
    let outcome = run_without_losing(chaos::STALL).await;
    // Calls that were sent, or waited behind them, and every other call has an answer.
    assert!(50 * outcome.errors <= outcome.answers, "{outcome:#?}");
    // On a busy machine a wait of 20 ms may be in vain, and that is no loss either.
    run_without_losing(chaos::STALL_ENVOY).await;
    run_without_losing(chaos::LATE_REPLIES_ENVOY).await;
}

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limits: [1000000/10000years]}
  - {key: few, rate_limits: [100/10000years]}
";

fn start(redis: &Redis, deadline: &str) -> Builder {
    tollgate::with_rules(RULES).redis_at(&redis.url(), deadline)
}

async fn one(client: &mut Client) -> Result<(), Status> {
    ask(client, "d", &[("k", "v")]).await.map(|_| ())
}

async fn works(client: &Client) {
    let is_answered = async || one(&mut client.clone()).await.is_ok();
    eventually("calls are answered", is_answered).await;
}

/// `break_it` is reported, and decisions fail without a wait. After `mend` they are made again, exactly.
async fn check_reaction(
    redis: &mut Redis,
    reported: &str,
    break_it: impl FnOnce(&mut Redis),
    mend: impl FnOnce(&mut Redis),
) {
    let (server, mut client) = serve(start(redis, "100ms")).await;
    works(&client).await;
    break_it(redis);
    eventually("it is noticed", async || one(&mut client).await.is_err()).await;
    await_page(&server, "/healthcheck?verbose", reported);
    for _ in 0..21 {
        let error = one(&mut client).await.unwrap_err();
        // A request that waited would get the error for a timeout.
        assert_ne!(error.message(), TIMEOUT);
    }
    mend(redis);
    works(&client).await;
    let mut admitted = 0;
    for _ in 0..150 {
        admitted += usize::from(passes(&mut client, "d", &[("few", "v")]).await);
    }
    assert_eq!(admitted, 100);
}

#[tokio::test]
async fn readonly_and_masterdown_are_left_alone_until_it_is_a_master() {
    let stale = &["--replica-serve-stale-data", "no"][..];
    for (options, reported) in [(&[][..], "READONLY"), (stale, "MASTERDOWN")] {
        check_reaction(
            &mut Redis::with(options),
            reported,
            |redis| drop(redis.cli(&["REPLICAOF", "127.0.0.1", "1"])),
            |redis| drop(redis.cli(&["REPLICAOF", "NO", "ONE"])),
        )
        .await;
    }
}

#[tokio::test]
async fn busy_is_left_alone_until_the_script_is_over() {
    let mut redis = Redis::with(&["--busy-reply-threshold", "50"]);
    let mut command = Command::new(tool("redis-cli"));
    let script = ["EVAL", "while true do end", "0"];
    command.args(["-p", &redis.port().to_string()]).args(script);
    let mut endless = None;
    check_reaction(
        &mut redis,
        "BUSY",
        |_| endless = Some(Process::start(command.stdout(Stdio::null()))),
        |redis| drop(redis.cli(&["SCRIPT", "KILL"])),
    )
    .await;
}

#[tokio::test]
async fn loading_is_left_alone_until_it_has_loaded() {
    const FILL: &str = "for i = 1, 1000 do \
                        redis.call('SET', 'filler' .. i, string.rep('x', 100)) end";
    let delay = ["--key-load-delay", "2000"];
    let step = ["--loading-process-events-interval-bytes", "1024"];
    let mut redis = Redis::with(&[delay, step].concat());
    redis.cli(&["EVAL", FILL, "0"]);
    redis.cli(&["SAVE"]);
    let has_loaded = |redis: &Redis| redis.cli(&["INFO", "persistence"]).contains("\nloading:0");
    check_reaction(
        &mut redis,
        "LOADING",
        |redis| {
            redis.kill();
            redis.restart();
        },
        |redis| wait_until("it has loaded", || has_loaded(redis)),
    )
    .await;
}

fn number(server: &Tollgate, end: &str) -> u64 {
    let stats = server.page("/stats");
    let (_, behind) = stats.split_once(end).unwrap();
    behind.lines().next().unwrap().parse().unwrap()
}

/// Connections that died while idle are replaced before their next use.
#[tokio::test]
async fn a_path_that_died_while_idle_is_found_by_the_probe() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let server = tollgate::with_rules(RULES).redis_at(&proxy.url(), "100ms");
    let (server, mut client) = serve(server).await;
    works(&client).await;
    let connections = || number(&server, ".connections_total: ");
    // Two workers and the HTTP port.
    const STORES: u64 = 3;
    wait_until("all are connected", || connections() >= STORES);
    let before = connections();
    proxy.forget();
    let are_new = || connections() >= before + STORES;
    wait_until("all are connected anew", are_new);
    one(&mut client).await.unwrap();
}

#[tokio::test]
async fn no_connection_is_left_behind() {
    let redis = Redis::start();
    let (server, mut client) = serve(start(&redis, "100ms")).await;
    works(&client).await;
    let open_files = || {
        let folder = format!("/proc/{}/fd", server.process_id());
        std::fs::read_dir(folder).unwrap().count()
    };
    let before = open_files();
    for _ in 0..20 {
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        // A call on a dead connection gets an error, and the next call a new connection.
        let _ = one(&mut client).await;
        works(&client).await;
    }
    wait_until("old connections are closed", || open_files() <= before + 2);
}

#[tokio::test]
async fn a_process_without_redis_answers_and_is_not_ready_until_redis_has_answered_once() {
    let mut redis = Redis::start();
    redis.kill();
    let (server, mut client) = serve(start(&redis, "100ms")).await;
    let await_health = |text: &str| await_page(&server, "/healthcheck?verbose", text);
    one(&mut client).await.unwrap_err();
    await_health("health: bad");
    let reason = "not ready: this Redis has not answered since the start";
    server.log().with(reason);
    let lost = format!("redis {}: not reachable (", redis.address());
    await_health(&lost);
    redis.restart();
    works(&client).await;
    await_health("health: good");
    redis.kill();
    await_health(&lost);
    await_health("health: good");
    redis.restart();
    works(&client).await;
    await_health(&format!("redis {}: ok", redis.address()));
    let node = format!("127_0_0_1_{}", redis.port());
    for (name, expected) in [("is_open", 0), ("times_opened_total", 2)] {
        let name = format!("tollgate.redis_node.{node}.{name}");
        assert_eq!(stat(&server, &name), Some(expected), "{name}");
    }
    let is_open = format!("tollgate_redis_node_is_open{{node=\"{node}\"}}");
    assert_eq!(server.metric(&is_open), 0);
}

/// Replicas with clocks up to a day apart share their counters. Beyond that the counters are dropped.
#[tokio::test]
async fn a_clock_that_is_days_ahead_is_counted_and_said() {
    const LOG: &str = "
domain: d
descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}}]
";
    let forgotten = "tollgate_redis_reset_counters_total";
    let said = "the clock of a replica or of Redis is wrong";
    for (offset, is_too_far) in [("+80000s", false), ("+200000s", true)] {
        let redis = Redis::start();
        let start = || {
            let builder = tollgate::with_rules(LOG).redis(&redis);
            builder.args(["--clock", "local", "--local-cache-bytes", "0"])
        };
        let (right, ahead) = (start().start(), start().with_clock(offset).start());
        let mut clients = [connect(right.grpc).await, connect(ahead.grpc).await];
        let mut admitted = 0;
        for turn in 0..20 {
            let client = &mut clients[(turn + 1) % 2];
            admitted += usize::from(passes(client, "d", &[("k", "v")]).await);
        }
        assert_eq!(admitted, if is_too_far { 20 } else { 5 });
        // By the replica that is behind, each time that it comes after the other.
        assert_eq!(ahead.metric(forgotten), 0);
        assert_eq!(right.metric(forgotten), if is_too_far { 10 } else { 0 });
        if is_too_far {
            assert_eq!(right.log().with(said).matches(said).count(), 1);
        } else {
            assert!(!right.log().text().contains(said));
        }
    }
}

#[tokio::test]
async fn windows_go_by_the_clock_of_redis() {
    const DAILY: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [10/day]}]";
    let redis = Redis::start();
    let start = |clock: &str| {
        let builder = tollgate::with_rules(DAILY).redis(&redis);
        builder.args(["--clock", clock])
    };
    let (_right, right) = serve(start("redis")).await;
    let (server, behind) = serve(start("redis").with_clock("-90000s")).await;
    let mut clients = [right, behind];
    let skew = || number(&server, ".clock_ahead_ms: ");
    wait_until("the clock was read", || skew() >= 86_400_000);
    let mut admitted = 0;
    for turn in 0..30 {
        let client = &mut clients[turn % 2];
        admitted += usize::from(passes(client, "d", &[("k", "v")]).await);
    }
    assert_eq!((admitted, redis.keys().len()), (10, 1));
    // By its own clock it is another day.
    let (_alone, mut client) = serve(start("local").with_clock("-90000s")).await;
    assert!(passes(&mut client, "d", &[("k", "v")]).await);
    assert_eq!(redis.keys().len(), 2);
}

/// A Redis 75 ms away in each direction is not lost, and operators are told which setting to change.
#[tokio::test]
async fn a_far_redis_is_slow_and_not_lost() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address());
    let (server, client) = serve(tollgate::with_rules(RULES).redis_by_default(&proxy.url())).await;
    works(&client).await;
    proxy.set(Fault {
        latency: Duration::from_millis(75),
        ..Fault::default()
    });
    let storm = Storm::with_timeout(&[server.grpc], &["a"], PERIOD, Some("1S"));
    await_page(&server, "/healthcheck?verbose", "slow: decisions give up");
    await_page(&server, "/healthcheck?verbose", "health: good");
    let reported = "Redis is slow: decisions give up before it answers";
    let log = server.log().with(reported);
    assert!(log.contains("--redis-timeout"), "{log}");
    assert!(!log.contains("Redis is lost"), "{log}");
    drop(storm.end().await);
    let (patient, client) = serve(tollgate::with_rules(RULES).redis_at(&proxy.url(), "1s")).await;
    works(&client).await;
    let storm = Storm::with_timeout(&[patient.grpc], &["b"], PERIOD, Some("2S"));
    let decided = || patient.metric("tollgate_decisions_total{code=\"ok\"}");
    let before = decided();
    wait_until("many are decided", || decided() > before + 1_000);
    let answers = storm.end().await;
    assert_eq!(answers.lacks(), 0, "{:?}", answers.errors());
}
