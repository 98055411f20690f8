use std::{collections::HashSet, pin::pin};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::TcpListener,
};

use super::*;
use crate::{
    foundation::sample::make::{counter, gauge, labelled, timer},
    observe::metrics::mogrifier::Mogrifier,
};

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn plain() -> Flusher {
    Flusher::new(&Dialect::Statsd, &[])
}

/// The lines that a flush sends, sorted, without line feeds.
fn sent(flusher: &mut Flusher, samples: &[Sample<'_>]) -> Vec<String> {
    let mut text = String::new();
    flusher.learn(|take| samples.iter().for_each(take));
    for known in flusher.known.values_mut() {
        known.write(&mut text);
        known.sent = known.value.clone();
    }
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Flushes snapshots one after the other.
#[track_caller]
fn check(mut flusher: Flusher, flushes: &[(&[Sample<'_>], &[&str])]) {
    for (samples, expected) in flushes {
        assert_eq!(sent(&mut flusher, samples), *expected);
    }
}

#[test]
fn counters_are_differences_and_silent_without_one() {
    check(
        plain(),
        &[
            (&[counter("a", 0), counter("b", 3)], &["b:3|c"]),
            (&[counter("a", 2), counter("b", 3)], &["a:2|c"]),
            (&[counter("a", 2), counter("b", 3)], &[]),
            (&[counter("a", 7), counter("b", 4)], &["a:5|c", "b:1|c"]),
        ],
    );
}

#[test]
fn gauges_are_sent_every_time() {
    check(
        plain(),
        &[
            (&[gauge("a", 0)], &["a:0|g"]),
            (&[gauge("a", 0)], &["a:0|g"]),
            (&[gauge("a", 9), gauge("a", 8)], &["a:8|g"]),
        ],
    );
}

#[test]
fn a_counter_that_began_again_is_all_new() {
    check(
        plain(),
        &[
            (&[counter("a", 5)], &["a:5|c"]),
            (&[counter("a", 2)], &["a:2|c"]),
            (&[], &[]),
            (&[counter("a", 2)], &["a:2|c"]),
        ],
    );
}

#[test]
fn samples_of_one_name_are_added() {
    check(
        plain(),
        &[
            (&[counter("a", 1), counter("a", 2)], &["a:3|c"]),
            (&[counter("a", 1), counter("a", 4)], &["a:2|c"]),
        ],
    );
}

#[test]
fn a_metric_may_change_its_kind() {
    check(
        plain(),
        &[
            (&[counter("a", 5)], &["a:5|c"]),
            (&[gauge("a", 5)], &["a:5|g"]),
            (&[counter("a", 5)], &["a:5|c"]),
        ],
    );
}

#[test]
fn timers_are_milliseconds_and_every_bucket_says_for_how_many() {
    check(
        plain(),
        &[
            (&[timer("t", &[1_234])], &["t:1.234|ms"]),
            (&[timer("t", &[1_234, 7])], &["t:0.007|ms"]),
            (&[timer("t", &[1_234, 7])], &[]),
            (
                &[timer("t", &[1_234, 7, 400, 360, 380, 380])],
                &["t:0.38|ms|@0.25"],
            ),
        ],
    );
    check(plain(), &[(&[timer("t", &[0, 0])], &["t:0|ms|@0.5"])]);
}

#[test]
fn count_and_sum_of_a_timer_can_be_had_from_its_lines() {
    let took: Vec<u64> = (0..1_000).map(|n| n * n * 97).collect();
    let (mut count, mut sum) = (0.0, 0.0);
    for line in sent(&mut plain(), &[timer("t", &took)]) {
        let mut fields = line.split('|');
        let millis: f64 = fields.next().unwrap()["t:".len()..].parse().unwrap();
        assert_eq!(fields.next(), Some("ms"));
        let rate: f64 = fields.next().map_or(1.0, |rate| rate[1..].parse().unwrap());
        count += (1.0 / rate).trunc();
        sum += millis * (1.0 / rate).trunc();
    }
    assert!((count - 1_000.0_f64).abs() < 1e-9);
    let exact = took.iter().sum::<u64>() as f64 / 1_000.0;
    assert!((sum - exact).abs() < exact * 1e-6, "{sum} {exact}");
}

#[test]
fn rates_survive_a_division_that_is_cut_off() {
    for count in (1..100_000).chain([u64::from(u32::MAX), 1 << 40]) {
        let inverse = 1.0 / rate(count);
        assert!(
            inverse >= count as f64 && inverse < count as f64 + 0.001,
            "{count}"
        );
    }
}

#[test]
fn what_was_not_sent_is_sent_later_as_a_whole() {
    let mut flusher = plain();
    flusher.learn(|take| [counter("a", 5), timer("t", &[3])].iter().for_each(take));
    check(
        flusher,
        &[(
            &[counter("a", 7), timer("t", &[3, 3])],
            &["a:7|c", "t:0.003|ms|@0.5"],
        )],
    );
}

#[test]
fn tags_are_a_part_of_statsd_names_in_their_order() {
    check(
        Flusher::new(
            &Dialect::Statsd,
            &pairs(&[("region", "us"), ("foo", "bar")]),
        ),
        &[(&[counter("a.b", 1)], &["a.b.__foo=bar.__region=us:1|c"])],
    );
}

#[test]
fn nothing_in_a_name_or_a_tag_starts_a_line_or_a_field() {
    check(
        Flusher::new(&Dialect::Statsd, &pairs(&[("k", "v:\n|")])),
        &[(&[counter("a\nb:1|c", 1)], &["a_b_1_c.__k=v___:1|c"])],
    );
    check(
        Flusher::new(&Dialect::DogStatsd(Vec::new()), &pairs(&[("k", "v:\n|,x")])),
        &[(&[counter("a\nb:1|c", 1)], &["a_b_1_c:1|c|#k:v:___x"])],
    );
}

#[test]
fn dogstatsd_has_tags_after_the_value() {
    check(
        Flusher::new(
            &Dialect::DogStatsd(Vec::new()),
            &pairs(&[("region", "us"), ("env", "p")]),
        ),
        &[(
            &[counter("a.b", 1), gauge("x", 2), timer("t", &[9, 9])],
            &[
                "a.b:1|c|#env:p,region:us",
                "t:0.009|ms|@0.5|#env:p,region:us",
                "x:2|g|#env:p,region:us",
            ],
        )],
    );
    check(
        Flusher::new(&Dialect::DogStatsd(Vec::new()), &[]),
        &[(&[counter("a", 1)], &["a:1|c"])],
    );
}

#[test]
fn dogstatsd_names_are_rewritten() {
    let rule = Mogrifier::new(
        "FOO",
        r"^ratelimit\.service\.rate_limit\.([^.]+)\.([^.]+)\.([^.]+)$",
        "ratelimit.$3",
        &pairs(&[("domain", "$1"), ("key", "$2")]),
    );
    check(
        Flusher::new(
            &Dialect::DogStatsd(vec![rule.unwrap()]),
            &pairs(&[("domain", "extra")]),
        ),
        &[(
            &[
                counter("ratelimit.service.rate_limit.shop.user_a.over_limit", 4),
                counter("b", 1),
            ],
            &[
                "b:1|c|#domain:extra",
                "ratelimit.over_limit:4|c|#domain:shop,key:user_a",
            ],
        )],
    );
}

#[test]
fn labels_are_the_end_of_names() {
    let labelled = labelled("tollgate.decisions_total", &[("code", "ok")], 1);
    check(
        plain(),
        &[(&[labelled], &["tollgate.decisions_total.ok:1|c"])],
    );
}

#[test]
fn datagrams_hold_whole_lines_up_to_their_bound() {
    let lines = format!("{}\n", "x".repeat(499)).repeat(5);
    let full = format!("{}\n", "y".repeat(DATAGRAM_BYTES - 1));
    let overlong = format!("{}\n", "z".repeat(DATAGRAM_BYTES));
    let datagrams = datagrams(&(lines + &full + &overlong + "a\n"));
    let lengths: Vec<_> = datagrams.iter().map(String::len).collect();
    assert_eq!(
        lengths,
        [1_000, 1_000, 500, DATAGRAM_BYTES, DATAGRAM_BYTES + 1, 2]
    );
}

fn sink(transport: Transport, port: u16) -> Sink {
    let mut sink = Sink::new(
        Options {
            host: "127.0.0.1".to_owned(),
            port,
            transport,
            dialect: Dialect::Statsd,
            extra_tags: Vec::new(),
            flush_interval: Duration::from_millis(5),
        },
        Arc::default(),
    );
    sink.retry = Duration::from_millis(5);
    sink
}

/// Runs a sink concurrently with `until`, which must end in time.
async fn beside<T>(sink: Sink, samples: Vec<Sample<'_>>, until: impl Future<Output = T>) -> T {
    let mut flusher = sink.flusher();
    tokio::select! {
        _ = sink.run(&mut flusher, |take| samples.iter().for_each(take)) => unreachable!(),
        done = timeout(Duration::from_secs(20), until) => done.expect("a collector that got all"),
    }
}

async fn read_line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(line).unwrap()
}

#[tokio::test]
async fn a_collector_that_comes_back_is_found_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    beside(
        sink(Transport::Tcp, port),
        vec![gauge("g", 1), counter("c", 2)],
        async {
            let (mut first, _) = listener.accept().await.unwrap();
            let mut lines = [read_line(&mut first).await, read_line(&mut first).await];
            lines.sort();
            assert_eq!(lines, ["c:2|c\n", "g:1|g\n"]);
            drop(first);
            let (mut second, _) = listener.accept().await.unwrap();
            assert_eq!(read_line(&mut second).await, "g:1|g\n");
        },
    )
    .await;
}

#[tokio::test]
async fn what_was_counted_before_the_collector_came_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    beside(
        sink(Transport::Tcp, address.port()),
        vec![counter("c", 2)],
        async {
            sleep(Duration::from_millis(50)).await;
            let listener = TcpListener::bind(address).await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_eq!(read_line(&mut stream).await, "c:2|c\n");
        },
    )
    .await;
}

/// Lines that do not fit into the socket stay in the totals, so the process holds a batch at most.
#[tokio::test]
async fn a_slow_collector_gets_all_later() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut sink = sink(Transport::Tcp, listener.local_addr().unwrap().port());
    sink.options.flush_interval = Duration::from_secs(3_600);
    let name = "x".repeat(100_000);
    let names: Vec<_> = (0..100).map(|n| format!("{name}{n}")).collect();
    let samples = names.iter().map(|name| counter(name, 1)).collect();
    beside(sink, samples, async {
        let (stream, _) = listener.accept().await.unwrap();
        sleep(Duration::from_millis(300)).await;
        let mut lines = BufReader::new(stream).lines();
        let mut seen = HashSet::new();
        while seen.len() < 100 {
            assert!(seen.insert(lines.next_line().await.unwrap().unwrap()));
        }
    })
    .await;
}

/// Only what was on its way is lost, and it is counted.
#[tokio::test]
async fn a_collector_that_goes_in_the_middle_gets_the_rest_after_its_return() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sink = sink(Transport::Tcp, listener.local_addr().unwrap().port());
    let stats = sink.stats.clone();
    let names: Vec<_> = (0..50_000).map(|n| format!("{n:0>200}")).collect();
    let samples = names.iter().map(|name| counter(name, 1)).collect();
    let read = |stream| BufReader::new(stream).lines();
    beside(sink, samples, async {
        let (first, _) = listener.accept().await.unwrap();
        let mut seen = HashSet::new();
        let mut lines = read(first);
        for _ in 0..10 {
            seen.insert(lines.next_line().await.unwrap().unwrap());
        }
        drop(lines);
        let (second, _) = listener.accept().await.unwrap();
        let mut lines = read(second);
        assert!(seen.insert(lines.next_line().await.unwrap().unwrap()));
        assert!(stats.lost_lines.load(Relaxed) > 0);
    })
    .await;
}

/// A collector that talks back is not heard.
#[tokio::test]
async fn a_collector_that_sends_nonsense_changes_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sink = sink(Transport::Tcp, listener.local_addr().unwrap().port());
    beside(sink, vec![gauge("g", 1)], async {
        let (mut stream, _) = listener.accept().await.unwrap();
        for _ in 0..20 {
            stream.write_all(&[0xff; 4_096]).await.unwrap();
            assert_eq!(read_line(&mut stream).await, "g:1|g\n");
        }
    })
    .await;
}

#[tokio::test]
async fn datagrams_arrive() {
    let collector = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = collector.local_addr().unwrap().port();
    beside(sink(Transport::Udp, port), vec![counter("c", 2)], async {
        let mut datagram = [0; 100];
        let length = collector.recv(&mut datagram).await.unwrap();
        assert_eq!(&datagram[..length], b"c:2|c\n");
    })
    .await;
}

#[tokio::test]
async fn datagrams_that_nobody_takes_are_counted() {
    let collector = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let sink = sink(Transport::Udp, collector.local_addr().unwrap().port());
    let stats = sink.stats.clone();
    drop(collector);
    beside(sink, vec![gauge("g", 1)], async {
        while stats.lost_lines.load(Relaxed) < 2 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_host_that_does_not_exist_is_no_reason_to_end() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let mut sink = sink(transport, 1);
        // This name fails without a query to a resolver.
        sink.options.host = "collector..invalid".to_owned();
        let mut flusher = sink.flusher();
        let run = pin!(sink.run(&mut flusher, |take| take(&counter("c", 1))));
        assert!(timeout(Duration::from_millis(50), run).await.is_err());
    }
}

#[test]
fn the_server_can_own_the_task() {
    fn check(_: impl Future + Send + 'static) {}
    let sink = sink(Transport::Tcp, 1);
    check(async move { sink.run(&mut sink.flusher(), |_| {}).await });
}
