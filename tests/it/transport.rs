//! Transports of gRPC: sockets and ports, `tollgate ask` over each of them, and connections of clients that are
//! malicious, do not read, or are gone.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::{
    PATIENCE,
    certificates::{self, Authority},
    finish,
    frames::{
        CONTINUATION, DATA, Frames, GO_AWAY, HEADERS, PING, RESET, SETTINGS, beginnings,
        cancelled_calls, data, frame, headers, headers_with_timeout, streams,
    },
    tollgate::{self, Tollgate, program},
    wait_until,
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: year, requests_per_unit: 1000000000 }
";

/// `tollgate ask` with further arguments; returns its exit code and its output.
#[track_caller]
fn ask(args: &[&str]) -> (Option<i32>, String) {
    let what = ["ask", "--domain", "d", "-d", "k=v"];
    let output = finish(program().args(what).args(args));
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code(), said)
}

#[track_caller]
fn check_answers(args: &[&str]) {
    let (code, said) = ask(args);
    assert!(said.starts_with("OK\n"), "{args:?}: {said}");
    assert_eq!(code, Some(0));
}

#[track_caller]
fn check_fails(args: &[&str], expected: &str) {
    let (code, said) = ask(args);
    assert!(said.contains(expected), "{args:?}: {said}");
    assert_eq!(code, Some(1), "{said}");
}

#[test]
fn a_unix_socket_has_its_mode_and_is_gone_at_the_end() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.sock");
    let shown = path.display().to_string();
    let arguments = ["--grpc-uds", &shown];
    let start = || tollgate::with_rules(RULES).args(arguments).start();
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let mut server = start();
    // An Envoy can run as any user.
    assert_eq!(mode(), 0o666);
    check_answers(&["--server", &format!("unix://{shown}")]);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!path.exists());

    // A killed server leaves its socket behind, and the next one replaces it.
    let mut server = start();
    server.signal(Signal::SIGKILL);
    server.wait();
    assert!(path.exists());
    let _server = start();
    assert_eq!(mode(), 0o666);
    check_answers(&["--server", &format!("unix:{shown}")]);
}

#[test]
fn a_socket_that_somebody_listens_on_and_a_file_are_left_alone() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let _somebody = UnixListener::bind(path("socket")).unwrap();
    fs::write(path("file"), "precious").unwrap();
    for name in ["socket", "file"] {
        let shown = path(name).display().to_string();
        let builder = tollgate::with_rules(RULES).args(["--grpc-uds", &shown]);
        let (status, said) = builder.fail();
        assert_eq!(status.code(), Some(1));
        let expected = format!("cannot listen on {shown} for gRPC (--grpc-uds, GRPC_UDS): ");
        assert!(said.contains(&expected), "{said}");
        assert!(said.contains("in use"), "{said}");
    }
    assert_eq!(fs::read_to_string(path("file")).unwrap(), "precious");
}

#[test]
fn two_colons_are_every_address_of_both_families() {
    let builder = tollgate::bare().file("rules.yaml", RULES);
    let folder = builder.rules().display().to_string();
    let server = builder
        .args(["--config-dir", &folder, "--log-format", "json"])
        .args(["--grpc-host", "::", "--grpc-port", "0"])
        .args(["--host", "127.0.0.1", "--port", "0", "--debug-port", "0"])
        .start();
    let port = server.grpc.port();
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        check_answers(&["--server", &format!("http://{host}:{port}")]);
    }
}

#[test]
fn ask_speaks_tls_and_shows_its_certificate() {
    const NAME: &str = "tollgate.example";
    let ours = Authority::new("ours");
    let start = |name: &str| {
        let secret = certificates::mount(&ours.issue(name), &ours);
        let server = certificates::serving_known(tollgate::with_rules(RULES), &secret);
        (server.start(), secret)
    };
    let (server, secret) = start(NAME);
    let [certificate, key, ca] = certificates::paths(&secret);
    let [https, http] = ["https", "http"].map(|scheme| format!("{scheme}://{}", server.grpc));
    let own = ["--ca", &ca, "--cert", &certificate, "--key", &key];
    let with = |url, name, more: &[&'static str]| {
        [&["--server", url, "--authority", name][..], &own, more].concat()
    };
    check_answers(&with(&https, NAME, &[]));
    check_answers(&with(&http, NAME, &["--tls"]));
    check_fails(&with(&http, NAME, &[]), "certificates need --tls");
    check_fails(&with(&https, "other.example", &[]), "not valid for name");
    let with_ca = |ca| ["--server", &*https, "--authority", NAME, "--ca", ca];
    check_fails(&with_ca(&ca)[..4], "--ca is required for TLS");
    let none = format!("{key}: contains no certificate in PEM");
    check_fails(&with_ca(&key), &none);
    check_fails(&with_ca("/nowhere"), "/nowhere: cannot be read");
    let (server, _secret) = start("*.mesh");
    let url = format!("https://{}", server.grpc);
    let rule = "a wildcard in a certificate must have at least two labels after the star";
    check_fails(&with(&url, "tollgate.mesh", &[]), rule);
}

#[test]
fn ask_says_what_is_wrong_with_an_address() {
    for bad in ["not a URL", "ftp://h:1"] {
        check_fails(&["--server", bad], "expected http://HOST:PORT");
    }
    check_fails(&["--server", "unix:///nowhere/at/all"], "No such file");
    check_fails(&["--authority", "a b"], "`a b` cannot be an authority");
}

/// The flag of a PING that answers another one (RFC 9113, section 6.7).
const ACK: u8 = 1;

/// The headers of a call with this representation of `:authority`, without END_STREAM.
fn headers_as(stream: u32, authority: &[u8]) -> Vec<u8> {
    let call = headers(stream);
    let usual = b"\x01\x08tollgate";
    let at = call.windows(usual.len()).position(|bytes| bytes == usual);
    let (before, after) = call.split_at(at.unwrap());
    let block = [&before[9..], authority, &after[usual.len()..]].concat();
    frame(1, 4, stream, &block)
}

/// Whether the next call that ends has an answer; otherwise it was reset.
#[track_caller]
fn is_answered(client: &mut Frames) -> bool {
    loop {
        match client.read().expect("the connection stands").0 {
            RESET => return false,
            DATA => return true,
            kind => assert_ne!(kind, GO_AWAY),
        }
    }
}

/// A call in frames.
fn call(stream: u32) -> Vec<u8> {
    [headers(stream), data(stream)].concat()
}

/// Sends a call.
#[track_caller]
fn send(client: &mut Frames, call: &[u8]) {
    client.0.write_all(call).unwrap();
}

/// For a value that is not text the library would close the connection, with all other calls on it. An empty name
/// cannot be repaired: its call ends, and others on the connection continue. The log reports that, although it has just
/// reported harmless names. Too many such calls close the connection.
#[test]
fn an_authority_that_is_no_text_is_as_good_as_any_and_an_empty_one_ends_its_call() {
    let server = tollgate::with_rules(RULES).args(["--workers", "1"]).start();
    let no_text: [&[u8]; 4] = [
        b"\x41\x02\xff|",
        b"\xbe",
        b"\x10\x0a:authority\x01\x80",
        b"\x00\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f\x03a%b",
    ];
    let name = b"\x00\x0a:authority\x00";
    let empty: [&[u8]; 4] = [b"\x41\x00", b"\x81", name, b"\x01\x80"];
    for (authorities, expected) in [(no_text, true), (empty, false)] {
        let mut client = Frames::connect(server.grpc);
        for (stream, authority) in streams().zip(authorities) {
            let call = [headers_as(stream, authority), data(stream)].concat();
            send(&mut client, &call);
            assert_eq!(is_answered(&mut client), expected, "{authority:?}");
        }
        send(&mut client, &call(101));
        assert!(is_answered(&mut client));
    }
    let refused = || server.metric("tollgate_authorities_refused_total");
    assert_eq!(server.metric("tollgate_authorities_replaced_total"), 3);
    assert_eq!(refused(), 4);
    let reset = "tollgate_streams_reset_total{code=\"protocol_error\"}";
    wait_until("all are counted", || server.metric(reset) == 4);
    let said = server.log().with("HTTP/2 resets each of them");
    let answered = "are answered; a valid one replaces it";
    assert!(said.contains(answered), "{said}");
    let reports = said.matches("HTTP/2 resets each of them").count();
    assert_eq!(reports, 1, "{said}");

    let bad = |stream| frame(HEADERS, 5, stream, b"\x83\x86\x84\x01\x00");
    let bad: Vec<u8> = streams().take(2_000).flat_map(bad).collect();
    let mut client = Frames::connect(server.grpc);
    send(&mut client, &bad);
    let reported = client.read_until(GO_AWAY).expect("it is told why");
    assert_eq!(reported[4..8], [0, 0, 0, 11]);
    assert!(refused() > 1028);
}

/// "Rapid reset", CVE-2023-44487: each call is cancelled right after its headers. A few hundred in a row are those of an
/// Envoy whose time is over.
#[test]
fn a_flood_of_resets_is_told_to_go_and_some_are_not() {
    let server = tollgate::with_rules(RULES).args(["--workers", "1"]).start();
    let ping = frame(PING, 0, 0, &[0; 8]);
    // Whether the connection goes on; otherwise it has to be told why. The server may close before all is written.
    let goes_on = |calls: &[u8]| {
        let mut client = Frames::connect(server.grpc);
        let mut writing = client.0.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| writing.write_all(calls));
            loop {
                match client.try_read().expect("it is told why") {
                    (PING, ACK, _, _) => break true,
                    (GO_AWAY, _, _, payload) => {
                        assert_eq!(payload[4..8], [0, 0, 0, 11], "ENHANCE_YOUR_CALM");
                        break false;
                    }
                    _ => {}
                }
            }
        })
    };
    assert!(goes_on(&[cancelled_calls(900), ping.clone()].concat()));
    let flood = [cancelled_calls(20_000), ping].concat();
    // A busy machine may write so slowly that the server keeps up; then the flood is repeated.
    assert!((0..100).any(|_| !goes_on(&flood)));
    check_answers(&["--server", &format!("http://{}", server.grpc)]);
}

/// CVE-2024-2758: a header block without an end, of as many and as large frames as a client likes.
#[test]
fn headers_without_an_end_cost_bounded_memory() {
    let server = tollgate::with_rules(RULES).args(["--workers", "1"]).start();
    let before = server.resident_bytes();
    let mut client = Frames::connect(server.grpc);
    let block = [&[0, 1, b'x', 0x7f, 0x80, 0x7c][..], &[b'v'; 15_999]].concat();
    client.0.write_all(&frame(HEADERS, 0, 1, &block)).unwrap();
    let further = frame(CONTINUATION, 0, 1, &block);
    let is_refused = (0..20_000).any(|_| client.0.write_all(&further).is_err());
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(is_refused && grown < 64 << 20, "{grown} bytes");
    check_answers(&["--server", &format!("http://{}", server.grpc)]);
}

/// Calls that the library resets for its own reasons: Envoy would let their requests pass.
#[test]
fn a_call_that_http_2_resets_is_counted_and_told() {
    let server = tollgate::with_rules(RULES).args(["--workers", "1"]).start();
    let mut client = Frames::connect(server.grpc);
    // No scheme and no path; a name in capitals would be an error of the whole connection.
    let bad = |stream| frame(HEADERS, 5, stream, b"\x83\x01\x08tollgate");
    let bad: Vec<_> = streams().take(3).flat_map(bad).collect();
    send(&mut client, &bad);
    assert_eq!([(); 3].map(|()| is_answered(&mut client)), [false; 3]);
    let reset = "tollgate_streams_reset_total{code=\"protocol_error\"}";
    wait_until("all are counted", || server.metric(reset) == 3);
    assert_eq!(server.metric("tollgate_authorities_refused_total"), 0);
    let said = server.log().with("HTTP/2 reset a call with PROTOCOL_ERROR");
    let reports = said.matches("HTTP/2 reset a call with").count();
    assert_eq!(reports, 1, "{said}");
}

/// The status of the next call that ends without a message.
#[track_caller]
fn status_without_message(client: &mut Frames) -> String {
    let block = loop {
        match client.read().expect("the connection stands") {
            (HEADERS, block) => break block,
            (kind, _) => assert!(![DATA, RESET, GO_AWAY].contains(&kind), "{kind}"),
        }
    };
    let fields = loona_hpack::Decoder::new().decode(&block).unwrap();
    let mut fields = fields.into_iter();
    let status = fields.find(|(name, _)| name == b"grpc-status");
    String::from_utf8(status.expect("it has a status").1).unwrap()
}

/// As in envoyproxy/ratelimit: nobody waits for these answers any more. The time of a call begins with its headers.
#[test]
fn a_call_whose_time_is_over_is_not_decided_and_charges_nothing() {
    let rules = RULES.replace("1000000000", "3");
    let server = tollgate::with_rules(&rules).start();
    let late = Duration::from_millis(60);
    for (timeout, pause, is_answered) in [
        ("1n", Duration::ZERO, false),
        ("0m", Duration::ZERO, false),
        ("50m", late, false),
        ("20S", late, true),
        ("20S", Duration::ZERO, true),
    ] {
        let mut client = Frames::connect(server.grpc);
        send(&mut client, &headers_with_timeout(1, timeout));
        thread::sleep(pause);
        send(&mut client, &data(1));
        match is_answered {
            true => assert!(self::is_answered(&mut client), "{timeout}"),
            false => assert_eq!(status_without_message(&mut client), "4", "{timeout}"),
        }
    }
    assert_eq!(server.metric("tollgate_late_calls_total"), 3);
    // Two of three hits are used.
    for expected in ["OK", "OVER_LIMIT"] {
        let (_, said) = ask(&["--server", &format!("http://{}", server.grpc)]);
        assert!(said.contains(expected), "{said}");
    }
}

/// Reads until the server closes.
#[track_caller]
fn read_to_the_end(stream: &mut TcpStream, what: &str) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}"),
    }
}

/// Ten thousand such connections would block all others.
#[test]
fn who_does_not_call_in_time_is_closed() {
    let server = tollgate::with_rules(RULES).start();
    let mut caller = Frames::connect(server.grpc);
    send(&mut caller, &call(1));
    assert!(is_answered(&mut caller));
    let mut begun = begun(&server);
    for (number, stream) in begun.iter_mut().enumerate() {
        read_to_the_end(stream, &format!("beginning {number}"));
    }
    // After its first call a client may take any time for the next one.
    send(&mut caller, &call(3));
    assert!(is_answered(&mut caller));
}

/// Connections that have begun, and then stay silent.
fn begun(server: &Tollgate) -> Vec<TcpStream> {
    let begin = |bytes: Vec<u8>| {
        let mut stream = TcpStream::connect(server.grpc).unwrap();
        stream.write_all(&bytes).unwrap();
        stream
    };
    beginnings().into_iter().map(begin).collect()
}

/// The process's own limits of open files, soft and hard.
fn limit_of_files(server: &Tollgate) -> [u64; 2] {
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.process_id())).unwrap();
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers = line.unwrap().split_whitespace().map(str::parse);
    [(); 2].map(|()| numbers.next().unwrap().unwrap())
}

/// Container runtimes start processes with a soft limit of 1024.
#[test]
fn as_many_files_may_be_opened_as_the_system_allows() {
    let start = || tollgate::with_rules(RULES).with_files(100, 3000);
    let server = start().start();
    assert_eq!(limit_of_files(&server), [3000, 3000]);
    let said = server.log().text();
    let expected = "it accepts at most 2648 gRPC connections, not 10000";
    assert!(said.contains(expected), "{said}");
    let server = start().args(["--max-connections", "500"]).start();
    assert!(!server.log().text().contains("gRPC connections"));
}

/// Probes and changes of the rules need some files too.
#[test]
fn connections_do_not_use_up_all_files() {
    let server = tollgate::with_rules(RULES).with_files(256, 256).start();
    let connect = |port| TcpStream::connect(port).unwrap();
    let _grpc: Vec<_> = (0..300).map(|_| connect(server.grpc)).collect();
    let http: Vec<_> = (0..300).map(|_| connect(server.debug)).collect();
    assert_eq!(server.page("/healthcheck"), "OK");
    let more = RULES.replace("domain: d", "domain: another");
    fs::write(server.rules().join("more.yaml"), more).unwrap();
    drop(http);
    wait_until("the rules are there", || {
        server.page("/rlconfig").contains("another.k")
    });
    assert!(!server.log().text().contains("cannot accept"));
}

#[test]
fn the_log_says_once_that_there_are_no_more_files() {
    let server = tollgate::with_rules(RULES).start();
    let allow = |files: &str| {
        let id = server.process_id().to_string();
        let output = finish(Command::new("prlimit").args(["--pid", &id, files]));
        assert!(output.status.success(), "{output:?}");
    };
    let [_, hard] = limit_of_files(&server);
    allow(&format!("--nofile=3:{hard}"));
    let waiting = TcpStream::connect(server.http).unwrap();
    let _also = TcpStream::connect(server.grpc).unwrap();
    let said = server.log().with("cannot accept");
    let began = Instant::now();
    wait_until("it was tried again", || {
        began.elapsed() > Duration::from_millis(500)
    });
    let reports = server.log().text().matches("cannot accept").count();
    assert_eq!(reports, 1, "{said}");
    allow(&format!("--nofile={hard}:{hard}"));
    drop(waiting);
    assert_eq!(server.page("/healthcheck"), "OK");
}

/// A connection lives as long as its client answers pings.
#[test]
fn a_client_that_is_gone_is_noticed() {
    let server = tollgate::with_rules(RULES).start();
    let mut gone = Frames::connect(server.grpc);
    send(&mut gone, &call(1));
    let patience = Some(Duration::from_secs(100));
    gone.0.set_read_timeout(patience).unwrap();
    let asked = gone.read_until(PING).expect("it is asked");
    gone.0.write_all(&frame(PING, ACK, 0, &asked)).unwrap();
    gone.read_until(PING).expect("it is asked again");
    assert_eq!(gone.read_until(PING), None, "the connection is closed");
}

/// The one without a call for the longest goes; those in use stay. Connections without a call go first.
#[test]
fn a_connection_that_is_idle_or_without_a_call_gives_its_place_to_another() {
    let server = tollgate::with_rules(RULES).args(["--max-connections", "2"]);
    let server = server.start();
    let [mut idle, mut busy] = [(); 2].map(|()| Frames::connect(server.grpc));
    let is_answered = |client: &mut Frames, stream| {
        send(client, &call(stream));
        client.read_until(DATA).is_some()
    };
    assert!(is_answered(&mut idle, 1));
    assert!(is_answered(&mut busy, 1) && is_answered(&mut busy, 3));
    let mut third = Frames::connect(server.grpc);
    assert!(is_answered(&mut third, 1));
    read_to_the_end(&mut idle.0, "it was idle");
    assert!(is_answered(&mut busy, 5));

    let server = tollgate::with_rules(RULES).args(["--max-connections", "2"]);
    let server = server.start();
    let mut begun = begun(&server);
    check_answers(&["--server", &format!("http://{}", server.grpc)]);
    for stream in &mut begun[..4] {
        read_to_the_end(stream, "it had to go");
    }
    let gone = "tollgate_cut_off_total{reason=\"connection_limit\"}";
    assert!(server.metric(gone) >= 5);
    let reported = "or without one for the longest, is closed for a new one";
    server.log().with(reported);
}

/// The server announces how many calls may run at once; one more is refused, and the others continue.
#[test]
fn calls_above_their_number_are_refused() {
    const MOST: u32 = 128;
    let server = tollgate::with_rules(RULES).start();
    let mut client = Frames::connect(server.grpc);
    let settings = client.read_until(SETTINGS).expect("it is greeted");
    let setting = |id: u16| {
        let mut settings = settings.chunks(6);
        let setting = settings.find(|setting| setting.starts_with(&id.to_be_bytes()))?;
        Some(u32::from_be_bytes(setting[2..].try_into().unwrap()))
    };
    // SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_MAX_HEADER_LIST_SIZE
    assert_eq!([setting(3), setting(6)], [Some(MOST), Some(64 << 10)]);
    let calls = streams().take(MOST as usize + 1);
    send(&mut client, &calls.flat_map(headers).collect::<Vec<_>>());
    let reported = client.read_until(RESET).expect("the last is refused");
    assert_eq!(reported, [0, 0, 0, 7], "REFUSED_STREAM");
    send(&mut client, &data(1));
    assert!(client.read_until(DATA).is_some(), "the first is answered");
}

/// A call that never ends keeps an old connection open for the grace, and no longer.
#[test]
fn a_call_that_outlives_the_grace_is_cut_off() {
    let server = tollgate::with_rules(RULES)
        .args(["--max-connection-age", "200ms"])
        .args(["--max-connection-age-grace", "200ms"])
        .start();
    let mut client = Frames::connect(server.grpc);
    send(&mut client, &headers(1));
    let reported = client.read_until(GO_AWAY).expect("it is told to go");
    assert_eq!(reported[4..8], [0; 4], "without reproach");
    while client.read_until(GO_AWAY).is_some() {}
    check_answers(&["--server", &format!("http://{}", server.grpc)]);
}
