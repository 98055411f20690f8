//! Transports of gRPC: sockets and ports, `tollgate ask` over each of them, and connections of clients that are
//! malicious, do not read, or are gone.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::{
    PATIENCE, Process,
    certificates::{Authority, Secret},
    finish,
    frames::{
        DATA, Frames, GO_AWAY, HEADERS, PING, RESET, SETTINGS, beginnings, data, frame, headers,
        headers_with_timeout, streams,
    },
    http,
    redis::Redis,
    tollgate::{self, Tollgate, program},
    tool, wait_until,
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: year, requests_per_unit: 1000000000 }
";

// --- sockets and ports ---------------------------------------------------------------------------

/// A server with its gRPC port at this address.
fn listening(host: &str, port: u16) -> tollgate::Builder {
    let builder = tollgate::bare().file("rules.yaml", RULES);
    let folder = builder.rules().display().to_string();
    builder
        .args(["--config-dir", &folder, "--log-format", "json"])
        .args(["--grpc-host", host, "--grpc-port", &port.to_string()])
        .args(["--host", "127.0.0.1", "--port", "0", "--debug-port", "0"])
}

/// `tollgate ask` with further arguments; returns its exit code and its output.
#[track_caller]
fn ask(args: &[&str]) -> (Option<i32>, String) {
    let what = ["ask", "--domain", "d", "-d", "k=v"];
    let Output {
        status,
        stdout,
        stderr,
    } = finish(program().args(what).args(args));
    let said = String::from_utf8([stdout, stderr].concat()).unwrap();
    (status.code(), said)
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
    let start = || {
        let builder = tollgate::with_rules(RULES);
        builder.args(["--grpc-uds", &shown]).start()
    };
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
        let (status, said) = tollgate::with_rules(RULES)
            .args(["--grpc-uds", &shown])
            .fail();
        assert_eq!(status.code(), Some(1));
        let expected = format!("cannot listen on {shown} for gRPC (--grpc-uds, GRPC_UDS): ");
        assert!(said.contains(&expected), "{said}");
        assert!(said.contains("in use"), "{said}");
    }
    assert_eq!(fs::read_to_string(path("file")).unwrap(), "precious");
}

#[test]
fn two_colons_are_every_address_of_both_families() {
    let server = listening("::", 0).start();
    let port = server.grpc.port();
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        check_answers(&["--server", &format!("http://{host}:{port}")]);
    }
}

// --- ask -----------------------------------------------------------------------------------------

#[test]
fn ask_speaks_tls_and_shows_its_certificate() {
    let authority = Authority::new("ours");
    let pair = authority.issue("tollgate.example");
    let secret = Secret::mount(&[
        ("tls.crt", &pair.certificate),
        ("tls.key", &pair.key),
        ("ca.crt", &authority.certificate),
        ("none", ""),
    ]);
    let [certificate, key, ca, none] =
        ["tls.crt", "tls.key", "ca.crt", "none"].map(|name| secret.at(name));
    let server = tollgate::with_rules(RULES)
        .args(["--grpc-tls", "--grpc-tls-cert", &certificate])
        .args(["--grpc-tls-key", &key, "--grpc-client-ca", &ca])
        .start();
    let url = format!("https://{}", server.grpc);
    let named = ["--server", &url, "--authority", "tollgate.example"];
    let with = |more: &[&'static str], files: &[&str]| -> Vec<String> {
        let args = more
            .iter()
            .zip(files)
            .flat_map(|(flag, file)| [*flag, *file]);
        named
            .iter()
            .copied()
            .chain(args)
            .map(str::to_owned)
            .collect()
    };
    let all = with(&["--ca", "--cert", "--key"], &[&ca, &certificate, &key]);
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    check_answers(&all);
    let plain = url.replace("https", "http");
    let flag: Vec<_> = all
        .iter()
        .map(|&arg| if arg == url { &plain } else { arg })
        .collect();
    check_answers(&[&flag[..], &["--tls"]].concat());

    check_fails(&flag, "certificates need --tls");
    check_fails(&named, "--ca is required for TLS");
    check_fails(
        &[&named[..], &["--ca", &none]].concat(),
        &format!("{none}: contains no certificate in PEM"),
    );
    check_fails(
        &[&named[..], &["--ca", "/nowhere"]].concat(),
        "/nowhere: cannot be read",
    );
    // Without a client certificate.
    let (code, said) = ask(&[&named[..], &["--ca", &ca]].concat());
    assert_eq!(code, Some(1), "{said}");
    // Another name than the one in the certificate.
    let other: Vec<_> = all
        .iter()
        .map(|&arg| {
            if arg == "tollgate.example" {
                "other.example"
            } else {
                arg
            }
        })
        .collect();
    check_fails(&other, "not valid for name");
}

#[test]
fn ask_says_what_is_wrong_with_an_address() {
    for bad in ["not a URL", "ftp://h:1"] {
        check_fails(&["--server", bad], "expected http://HOST:PORT");
    }
    check_fails(&["--server", "unix:///nowhere/at/all"], "No such file");
    check_fails(&["--authority", "a b"], "`a b` cannot be an authority");
}

// --- malicious, slow and vanished clients --------------------------------------------------------

/// The flag of a PING that answers another one (RFC 9113, section 6.7).
const ACK: u8 = 1;

/// Calls with an authority that cannot be replaced are reset one by one; too many of them close the connection.
#[test]
fn calls_that_break_the_rules_end_in_going_away() {
    let server = tollgate::with_rules(RULES).start();
    let mut client = Frames::connect(server.grpc);
    let bad: Vec<u8> = streams()
        .take(2_000)
        .flat_map(|stream| frame(1, 5, stream, b"\x83\x86\x84\x01\x00"))
        .collect();
    client.0.write_all(&bad).unwrap();
    let reported = client.read_until(GO_AWAY).expect("it is told why");
    assert_eq!(reported[4..8], [0, 0, 0, 11]);
    assert!(server.metric("tollgate_authorities_refused_total") > 1024);
}

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

/// For a value that is not text the library would close the connection, with all other calls on it.
#[test]
fn an_authority_that_is_no_text_is_as_good_as_any() {
    let server = tollgate::with_rules(RULES).args(["--workers", "1"]).start();
    let mut client = Frames::connect(server.grpc);
    let authorities: [&[u8]; 4] = [
        b"\x41\x02\xff|",
        b"\xbe",
        b"\x10\x0a:authority\x01\x80",
        b"\x00\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f\x03a%b",
    ];
    for (stream, authority) in streams().zip(authorities) {
        let call = [headers_as(stream, authority), data(stream)].concat();
        client.0.write_all(&call).unwrap();
        assert!(is_answered(&mut client), "{authority:?}");
    }
    assert_eq!(server.metric("tollgate_authorities_replaced_total"), 3);
}

/// An empty name cannot be repaired: its call ends, and others on the connection continue. The log reports that
/// although it has just reported harmless names.
#[test]
fn an_empty_authority_ends_its_call_and_is_told() {
    let server = tollgate::with_rules(RULES).args(["--workers", "1"]).start();
    let mut client = Frames::connect(server.grpc);
    let empty: [&[u8]; 4] = [b"\x41\x00", b"\x81", b"\x00\x0a:authority\x00", b"\x01\x80"];
    let around = [&b"\x41\x03a|b"[..]].into_iter().chain(empty);
    for (stream, authority) in streams().zip(around) {
        let call = [headers_as(stream, authority), data(stream)].concat();
        client.0.write_all(&call).unwrap();
        assert_eq!(is_answered(&mut client), stream == 1, "{authority:?}");
    }
    let call = [headers(101), data(101)].concat();
    client.0.write_all(&call).unwrap();
    assert!(is_answered(&mut client));
    assert_eq!(server.metric("tollgate_authorities_replaced_total"), 1);
    assert_eq!(server.metric("tollgate_authorities_refused_total"), 4);
    let reset = "tollgate_streams_reset_total{code=\"protocol_error\"}";
    wait_until("all are counted", || server.metric(reset) == 4);
    let said = server.log().with("HTTP/2 resets each of them");
    assert!(
        said.contains("are answered; a valid one replaces it"),
        "{said}"
    );
    assert_eq!(
        said.matches("HTTP/2 resets each of them").count(),
        1,
        "{said}"
    );
}

/// Calls that the library resets for its own reasons: Envoy would let their requests pass.
#[test]
fn a_call_that_http_2_resets_is_counted_and_told() {
    let server = tollgate::with_rules(RULES).args(["--workers", "1"]).start();
    let mut client = Frames::connect(server.grpc);
    // No scheme and no path; a name in capitals would be an error of the whole connection.
    let bad: Vec<_> = streams()
        .take(3)
        .flat_map(|stream| frame(1, 5, stream, b"\x83\x01\x08tollgate"))
        .collect();
    client.0.write_all(&bad).unwrap();
    assert_eq!([(); 3].map(|()| is_answered(&mut client)), [false; 3]);
    let reset = "tollgate_streams_reset_total{code=\"protocol_error\"}";
    wait_until("all are counted", || server.metric(reset) == 3);
    assert_eq!(server.metric("tollgate_authorities_refused_total"), 0);
    let said = server.log().with("HTTP/2 reset a call with PROTOCOL_ERROR");
    assert_eq!(
        said.matches("HTTP/2 reset a call with").count(),
        1,
        "{said}"
    );
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

/// As that of envoyproxy/ratelimit: nobody waits for these answers any more. The time of a call begins with its headers.
#[test]
fn a_call_whose_time_is_over_is_not_decided_and_charges_nothing() {
    let rules = RULES.replace("1000000000", "3");
    let redis = Redis::start();
    for builder in [
        tollgate::with_rules(&rules),
        tollgate::with_rules(&rules).redis(&redis),
    ] {
        let server = builder.args(["--workers", "1"]).start();
        let late = Duration::from_millis(60);
        let calls = [
            ("1n", Duration::ZERO, false),
            ("0m", Duration::ZERO, false),
            ("50m", late, false),
            ("20S", late, true),
            ("20S", Duration::ZERO, true),
        ];
        for (timeout, pause, is_answered) in calls {
            let mut client = Frames::connect(server.grpc);
            let headers = headers_with_timeout(1, timeout);
            client.0.write_all(&headers).unwrap();
            thread::sleep(pause);
            client.0.write_all(&data(1)).unwrap();
            if is_answered {
                assert!(self::is_answered(&mut client), "{timeout}");
            } else {
                assert_eq!(status_without_message(&mut client), "4", "{timeout}");
            }
        }
        assert_eq!(server.metric("tollgate_late_calls_total"), 3);
        // Two of three hits are used.
        for expected in ["OK", "OVER_LIMIT"] {
            let (_, said) = ask(&["--server", &format!("http://{}", server.grpc)]);
            assert!(said.contains(expected), "{said}");
        }
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
    let call = |stream| [headers(stream), data(stream)].concat();
    caller.0.write_all(&call(1)).unwrap();
    assert!(is_answered(&mut caller));
    let begin = |bytes: Vec<u8>| {
        let mut stream = TcpStream::connect(server.grpc).unwrap();
        stream.write_all(&bytes).unwrap();
        (stream, bytes)
    };
    let begun: Vec<_> = beginnings().into_iter().map(begin).collect();
    for (mut stream, bytes) in begun {
        read_to_the_end(&mut stream, &String::from_utf8_lossy(&bytes));
    }
    // After its first call a client may take any time for the next one.
    caller.0.write_all(&call(3)).unwrap();
    assert!(is_answered(&mut caller));
}

#[test]
fn a_handshake_of_tls_is_part_of_that_time() {
    let authority = Authority::new("ours");
    let pair = authority.issue("tollgate.example");
    let secret = Secret::mount(&[("tls.crt", &pair.certificate), ("tls.key", &pair.key)]);
    let server = tollgate::with_rules(RULES)
        .args(["--grpc-tls", "--grpc-tls-cert", &secret.at("tls.crt")])
        .args(["--grpc-tls-key", &secret.at("tls.key")])
        .start();
    let mut begun = TcpStream::connect(server.grpc).unwrap();
    begun.write_all(&[22]).unwrap();
    // Completes the handshake, and then stays silent.
    let mut quiet = Process::start(
        Command::new(tool("openssl"))
            .args(["s_client", "-quiet", "-alpn", "h2", "-ign_eof", "-connect"])
            .arg(server.grpc.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    wait_until("the quiet one is closed", || quiet.has_ended());
    read_to_the_end(&mut begun, "half a ClientHello");
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
    let server = tollgate::with_rules(RULES).with_files(100, 3000).start();
    assert_eq!(limit_of_files(&server), [3000, 3000]);
    let said = server.log().text();
    let expected = "it accepts at most 2648 gRPC connections, not 10000";
    assert!(said.contains(expected), "{said}");
    let server = tollgate::with_rules(RULES)
        .with_files(100, 3000)
        .args(["--max-connections", "500"])
        .start();
    assert!(!server.log().text().contains("gRPC connections"));
}

/// Probes and changes of the rules need some files too.
#[test]
fn connections_do_not_use_up_all_files() {
    let server = tollgate::with_rules(RULES).with_files(256, 256).start();
    let connect = |port| TcpStream::connect(port).unwrap();
    let _grpc: Vec<_> = (0..300).map(|_| connect(server.grpc)).collect();
    let http: Vec<_> = (0..300).map(|_| connect(server.debug)).collect();
    let health = http::get(server.http, "/healthcheck");
    assert_eq!(health.body, "OK");
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
    assert_eq!(
        server.log().text().matches("cannot accept").count(),
        1,
        "{said}"
    );
    allow(&format!("--nofile={hard}:{hard}"));
    drop(waiting);
    assert_eq!(http::get(server.http, "/healthcheck").body, "OK");
}

/// A connection lives as long as its client answers pings.
#[test]
fn a_client_that_is_gone_is_noticed() {
    let server = tollgate::with_rules(RULES).start();
    let mut gone = Frames::connect(server.grpc);
    gone.0.write_all(&[headers(1), data(1)].concat()).unwrap();
    gone.0
        .set_read_timeout(Some(Duration::from_secs(100)))
        .unwrap();
    let asked = gone.read_until(PING).expect("it is asked");
    gone.0.write_all(&frame(PING, ACK, 0, &asked)).unwrap();
    gone.read_until(PING).expect("it is asked again");
    assert_eq!(gone.read_until(PING), None, "the connection is closed");
}

/// The one without a call for the longest goes; those in use stay.
#[test]
fn a_connection_that_is_idle_gives_its_place_to_another_and_one_in_use_does_not() {
    let server = tollgate::with_rules(RULES)
        .args(["--max-connections", "2"])
        .start();
    let [mut idle, mut busy] = [(); 2].map(|()| Frames::connect(server.grpc));
    let call = |client: &mut Frames, stream| {
        let call = [headers(stream), data(stream)].concat();
        client.0.write_all(&call).unwrap();
        client.read_until(DATA).is_some()
    };
    assert!(call(&mut idle, 1));
    let mut streams = streams();
    assert!(call(&mut busy, streams.next().unwrap()));
    assert!(call(&mut busy, streams.next().unwrap()));
    let mut third = Frames::connect(server.grpc);
    assert!(call(&mut third, 1));
    read_to_the_end(&mut idle.0, "it was idle");
    assert!(call(&mut busy, streams.next().unwrap()));
}

/// Connections without a call make room for new ones, the oldest first.
#[test]
fn a_connection_without_a_call_gives_its_place_to_another() {
    let server = tollgate::with_rules(RULES)
        .args(["--max-connections", "2"])
        .start();
    let mut idle: Vec<_> = beginnings()
        .iter()
        .map(|bytes| {
            let mut stream = TcpStream::connect(server.grpc).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    check_answers(&["--server", &format!("http://{}", server.grpc)]);
    for stream in &mut idle[..4] {
        read_to_the_end(stream, "it had to go");
    }
    let gone = "tollgate_cut_off_total{reason=\"connection_limit\"}";
    assert!(server.metric(gone) >= 5);
    server
        .log()
        .with("or without one for the longest, is closed for a new one");
}

/// The server announces how many calls may run at once; one more is refused, and the others continue.
#[test]
fn calls_above_their_number_are_refused() {
    const MOST: u32 = 128;
    let server = tollgate::with_rules(RULES).start();
    let mut client = Frames::connect(server.grpc);
    let settings = client.read_until(SETTINGS).expect("it is greeted");
    let setting = |id: u16| {
        let value = |setting: &[u8]| u32::from_be_bytes(setting[2..].try_into().unwrap());
        let mut settings = settings.chunks(6);
        settings.find_map(|setting| {
            setting
                .starts_with(&id.to_be_bytes())
                .then(|| value(setting))
        })
    };
    // SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_MAX_HEADER_LIST_SIZE
    assert_eq!([setting(3), setting(6)], [Some(MOST), Some(64 << 10)]);
    let calls: Vec<_> = streams()
        .take(MOST as usize + 1)
        .flat_map(headers)
        .collect();
    client.0.write_all(&calls).unwrap();
    let reported = client.read_until(RESET).expect("the last is refused");
    assert_eq!(reported, [0, 0, 0, 7], "REFUSED_STREAM");
    client.0.write_all(&data(1)).unwrap();
    assert!(client.read_until(0).is_some(), "the first is answered");
}

/// A call that never ends keeps an old connection open for the grace, and no longer.
#[test]
fn a_call_that_outlives_the_grace_is_cut_off() {
    let server = tollgate::with_rules(RULES)
        .args(["--max-connection-age", "200ms"])
        .args(["--max-connection-age-grace", "200ms"])
        .start();
    let mut client = Frames::connect(server.grpc);
    client.0.write_all(&headers(1)).unwrap();
    let reported = client.read_until(GO_AWAY).expect("it is told to go");
    assert_eq!(reported[4..8], [0; 4], "without reproach");
    while client.read_until(GO_AWAY).is_some() {}
    check_answers(&["--server", &format!("http://{}", server.grpc)]);
}
