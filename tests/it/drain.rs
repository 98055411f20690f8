//! The end of the server: health fails first, no running call is lost, and the exit code is 0.

use std::{
    io::Write as _,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use tokio::task::JoinSet;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::support::{
    ask::{Client, ask, connect},
    eventually,
    frames::{beginnings, headers},
    http,
    redis::Redis,
    tollgate::{self, Tollgate},
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limits: [4000000000/10000years]}]";

/// Longer than any test waits.
const FOR_EVER: &str = "1h";

async fn one(client: &mut Client) -> Result<(), Status> {
    ask(client, "d", &[("k", "v")]).await.map(|_| ())
}

/// Waits for the end, without blocking other tasks.
async fn ended(server: &mut Tollgate) -> Option<i32> {
    let mut status = None;
    eventually("tollgate ended", async || {
        status = server.try_wait();
        status.is_some()
    })
    .await;
    status.unwrap().code()
}

/// Calls repeatedly on one connection until a call fails: the number of answers, and the failure.
async fn ask_to_the_end(mut client: Client, answers: Arc<AtomicU64>) -> (u64, Status) {
    let mut own = 0;
    loop {
        match one(&mut client).await {
            Ok(()) => own += 1,
            Err(end) => return (own, end),
        }
        answers.fetch_add(1, Relaxed);
    }
}

/// Whether the client reports that a call was not sent: it could not connect, or the connection got a GOAWAY or was
/// closed while the call waited.
fn never_left(end: &Status) -> bool {
    let causes = format!("{end:?}");
    let known = [
        "ConnectionRefused",
        "GoAway(b\"\", NO_ERROR, Remote)",
        "Canceled, \"connection closed\"",
    ];
    known.iter().any(|cause| causes.contains(cause))
}

/// Stops the server under load with `signals`, each after the load has continued for a while. Redis remembers the
/// counts: if a call had begun without an answer, there would be more hits than answers. Returns the time from the last
/// signal to the end.
async fn check_nothing_is_lost(signals: &[Signal], drain_delay: &str) -> Duration {
    let redis = Redis::start();
    let mut server = tollgate::with_rules(RULES)
        .redis(&redis)
        .args(["--drain-delay", drain_delay])
        .start();
    let answers = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let client = connect(server.grpc).await;
        for _ in 0..4 {
            callers.spawn(ask_to_the_end(client.clone(), answers.clone()));
        }
    }
    let mut signalled = Instant::now();
    for &signal in signals {
        let before = answers.load(Relaxed);
        eventually("calls are answered", async || {
            answers.load(Relaxed) > before + 200
        })
        .await;
        signalled = Instant::now();
        server.signal(signal);
        eventually("health turns, or the port is closed", async || {
            !http::try_get(server.http, "/healthcheck", &[]).is_ok_and(|page| page.status == 200)
        })
        .await;
    }
    let reported = callers.join_all().await;
    assert_eq!(ended(&mut server).await, Some(0), "{}", server.log().text());
    let took = signalled.elapsed();
    let answered: u64 = reported.iter().map(|(answers, _)| answers).sum();
    let counted = redis.number(&["GET", &redis.keys()[0]]);
    assert_eq!(u64::try_from(counted).unwrap(), answered);
    for (_, end) in &reported {
        assert!(never_left(end), "{end:?}");
    }
    took
}

#[tokio::test]
async fn calls_go_on_during_the_delay_and_none_is_lost_after_it() {
    // The second signal ends the delay.
    check_nothing_is_lost(&[Signal::SIGTERM, Signal::SIGTERM], FOR_EVER).await;
}

#[tokio::test]
async fn a_signal_under_load_loses_no_answer_and_the_delay_is_waited_for() {
    for (signal, delay) in [
        (Signal::SIGTERM, 300),
        (Signal::SIGINT, 0),
        (Signal::SIGHUP, 50),
    ] {
        let took = check_nothing_is_lost(&[signal], &format!("{delay}ms")).await;
        assert!(took >= Duration::from_millis(delay), "{took:?}");
    }
}

async fn channel(server: &Tollgate) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc));
    endpoint.unwrap().connect().await.unwrap()
}

async fn health(server: &Tollgate, name: &str) -> ServingStatus {
    let channel = channel(server).await;
    let service = name.to_owned();
    let request = HealthCheckRequest { service };
    let reply = HealthClient::new(channel).check(request).await.unwrap();
    reply.into_inner().status()
}

async fn check_health(server: &Tollgate, page: u16, status: ServingStatus) {
    assert_eq!(http::get(server.http, "/healthcheck").status, page);
    for name in ["", "ratelimit"] {
        assert_eq!(health(server, name).await, status, "of {name:?}");
    }
}

#[tokio::test]
async fn health_turns_at_once_and_calls_are_answered_until_the_delay_is_over() {
    let mut server = tollgate::with_rules(RULES)
        .args(["--drain-delay", FOR_EVER, "--drain-timeout", "20s"])
        .start();
    let mut old = connect(server.grpc).await;
    one(&mut old).await.unwrap();
    check_health(&server, 200, ServingStatus::Serving).await;

    server.signal(Signal::SIGTERM);
    eventually("health turns", async || {
        http::get(server.http, "/healthcheck").status == 500
            && health(&server, "ratelimit").await == ServingStatus::NotServing
    })
    .await;
    check_health(&server, 500, ServingStatus::NotServing).await;
    one(&mut old).await.unwrap();
    one(&mut connect(server.grpc).await).await.unwrap();
    assert!(server.try_wait().is_none());
    server.log().with(
        "stopping: calls are answered for 3600s more, and running ones may then take 20s; a second signal ends the \
         first wait at once",
    );

    // The second signal ends the wait.
    server.signal(Signal::SIGTERM);
    assert_eq!(ended(&mut server).await, Some(0));
}

/// A server without a delay that nothing holds up after a signal.
async fn check_stops(server: &mut Tollgate) {
    server.signal(Signal::SIGTERM);
    assert_eq!(ended(server).await, Some(0));
    let log = server
        .log()
        .with("stopping: running calls may take 3600s more");
    assert!(!log.contains("still running"), "{log}");
}

/// An idle or silent connection, a partial handshake, a partial call, an unread reply and a health watch are no running
/// calls.
#[tokio::test]
async fn who_is_not_waiting_for_a_decision_holds_nothing_up() {
    let mut server = tollgate::with_rules(RULES)
        .args(["--workers", "1", "--drain-timeout", FOR_EVER])
        .start();
    let mut watcher = HealthClient::new(channel(&server).await);
    let request = HealthCheckRequest::default();
    let mut watch = watcher.watch(request).await.unwrap().into_inner();
    let status = watch.message().await.unwrap().unwrap().status();
    assert_eq!(status, ServingStatus::Serving);
    let call_without_a_message = [&beginnings()[4][..], &headers(1)].concat();
    let begin = |bytes: Vec<u8>| {
        let mut stream = TcpStream::connect(server.grpc).unwrap();
        stream.write_all(&bytes).unwrap();
        stream
    };
    let begun = beginnings().into_iter().chain([call_without_a_message]);
    let _begun: Vec<_> = begun.map(begin).collect();
    // Once this call is answered, the connections before it have arrived too.
    let mut idle = connect(server.grpc).await;
    one(&mut idle).await.unwrap();
    check_stops(&mut server).await;
    one(&mut idle).await.unwrap_err();
    // The watch got the current health, and then its end.
    let status = watch.message().await.unwrap().unwrap().status();
    assert_eq!(status, ServingStatus::NotServing);
    assert_eq!(watch.message().await.unwrap(), None);
}

/// The C library reads the file of aliases first for a name without a dot, and a pipe without a writer holds it up.
#[tokio::test]
async fn a_name_that_is_looked_up_holds_nothing_up() {
    let folder = tempfile::TempDir::new().unwrap();
    let aliases = folder.path().join("aliases");
    mkfifo(&aliases, Mode::S_IRWXU).unwrap();
    let mut server = tollgate::with_rules(RULES)
        .redis_by_default("redis://nowhere:6379")
        .env("HOSTALIASES", aliases.to_str().unwrap())
        .args(["--workers", "1", "--drain-timeout", FOR_EVER])
        .start();
    one(&mut connect(server.grpc).await).await.unwrap_err();
    check_stops(&mut server).await;
}

/// A call that takes longer than the drain timeout ends the wait, with a line in the log.
#[tokio::test]
async fn a_call_that_takes_too_long_is_given_up() {
    let redis = Redis::start();
    let mut server = tollgate::with_rules(RULES)
        .redis_at(&redis.url(), FOR_EVER)
        .args(["--workers", "1", "--drain-timeout", "300ms"])
        .start();
    let mut client = connect(server.grpc).await;
    one(&mut client).await.unwrap();
    redis.freeze();
    // One on its way to Redis, and one that waits for it.
    let mut calls = JoinSet::new();
    for _ in 0..2 {
        let mut client = client.clone();
        calls.spawn(async move { one(&mut client).await });
    }
    let node = redis.address().replace(['.', ':'], "_");
    eventually("both have come", async || {
        let of_node = |stat: &str| server.metric(&format!("{stat}{{node=\"{node}\"}}"));
        of_node("tollgate_redis_node_in_flight") == 2
    })
    .await;
    server.signal(Signal::SIGTERM);
    assert_eq!(ended(&mut server).await, Some(0));
    server.log().with("still running");
    for call in calls.join_all().await {
        call.unwrap_err();
    }
}
