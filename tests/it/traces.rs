//! Spans reach a collector, which reads them with OpenTelemetry's own messages.

use std::{
    io::{Read, Write},
    net::TcpListener,
    os::unix::net::UnixListener,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cli::with_variables,
    envoy::traced_front,
    support::{
        ask::{Client, connect, descriptor, request},
        eventually, free_port, http,
        tollgate::{self, Builder, Log, Tollgate},
        tool, wait_until,
    },
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: year, requests_per_unit: 1 }
";

/// A collector. Killed on drop.
#[derive(Debug)]
struct Sink {
    child: Child,
    lines: Log,
    http: u64,
    grpc: u64,
}

impl Sink {
    #[track_caller]
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/otlp_sink.py");
        let mut child = Command::new(tool("python3"))
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Log::follow(child.stdout.take().unwrap());
        wait_until("the collector listens", || !lines.text().is_empty());
        let ports: Value = serde_json::from_str(lines.text().lines().next().unwrap()).unwrap();
        Self {
            child,
            http: ports["http"].as_u64().unwrap(),
            grpc: ports["grpc"].as_u64().unwrap(),
            lines,
        }
    }

    /// All spans received so far.
    fn spans(&self) -> Vec<Value> {
        let text = self.lines.text();
        let spans = text.lines().skip(1).map(serde_json::from_str);
        spans.map(Result::unwrap).collect()
    }

    /// The spans, once there are at least `count`.
    #[track_caller]
    fn wait_for(&self, count: usize) -> Vec<Value> {
        wait_until("spans come", || self.spans().len() >= count);
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that sends its spans to this port without delay.
fn traced(port: u64, protocol: &str) -> Builder {
    let variables = format!(
        "TRACING_ENABLED=true TRACING_EXPORTER_PROTOCOL={protocol} OTEL_BSP_SCHEDULE_DELAY=10 \
         OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{port}"
    );
    with_variables(tollgate::with_rules(RULES), &variables)
}

/// Sends a request with further headers.
async fn ask_with(client: &mut Client, domain: &str, headers: &[(&'static str, &str)]) {
    let mut request = tonic::Request::new(request(domain, vec![descriptor(&[("k", "secret")])]));
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    // Errors appear in the span.
    let _ = client.should_rate_limit(request).await;
}

/// Stops the server, while the client's connection closes.
async fn end(server: &mut Tollgate) {
    server.signal(Signal::SIGTERM);
    let mut status = None;
    eventually("tollgate ended", async || {
        status = server.try_wait();
        status.is_some()
    })
    .await;
    assert_eq!(status.unwrap().code(), Some(0), "{}", server.log().text());
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// The header of a caller whose trace is sampled.
const SAMPLED: (&str, &str) = (
    "traceparent",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
);

/// Those of Envoy Gateway, except for the address.
const VARIABLES: &str = "TRACING_SERVICE_NAME=envoy-ratelimit TRACING_SERVICE_NAMESPACE=envoy-gateway-system \
    TRACING_SERVICE_INSTANCE_ID=pod-1 TRACING_SAMPLING_RATE=1.0 OTEL_EXPORTER_OTLP_HEADERS=x-api-key=a%20b \
    OTEL_EXPORTER_OTLP_TRACES_HEADERS= OTEL_RESOURCE_ATTRIBUTES=zone=1%2C%202,service.name=other";

#[tokio::test]
async fn a_call_becomes_two_spans_in_the_trace_of_its_caller() {
    let sink = Sink::start();
    for (protocol, port) in [("http", sink.http), ("grpc", sink.grpc)] {
        let before = sink.spans().len();
        let server = with_variables(traced(port, protocol), VARIABLES).start();
        let mut client = connect(server.grpc).await;
        ask_with(&mut client, "d", &[SAMPLED, ("tracestate", "v=1")]).await;
        let spans = sink.wait_for(before + 2).split_off(before);
        let [server_span, inner] = &spans[..] else {
            panic!("{spans:#?}");
        };
        for span in &spans {
            assert_eq!(span["way"], protocol);
            assert_eq!(span["headers"]["x-api-key"], "a b");
            assert_eq!(span["trace"], TRACE);
            assert_eq!(span["state"], "v=1");
            assert_eq!(span["scope"], "tollgate");
            assert_eq!(span["code"], 0);
            let mut found = span["resource"].clone();
            let found = found.as_object_mut().unwrap();
            assert_eq!(found["telemetry.sdk.name"], "opentelemetry");
            found.retain(|key, _| !key.starts_with("telemetry.sdk."));
            let resource = serde_json::json!({
                "service.name": "envoy-ratelimit", "service.namespace": "envoy-gateway-system",
                "service.instance.id": "pod-1", "zone": "1, 2",
            });
            assert_eq!(Value::Object(found.clone()), resource);
            assert!(span["nanos"].as_u64().unwrap() > 0);
            let secs = span["start"].as_u64().unwrap() / 1_000_000_000;
            assert!(secs.abs_diff(::tollgate::now().secs()) < 60, "{secs}");
        }
        let service = "envoy.service.ratelimit.v3.RateLimitService";
        assert_eq!(server_span["name"], format!("{service}/ShouldRateLimit"));
        assert_eq!(server_span["kind"], 2, "a server's");
        assert_eq!(server_span["parent"], SPAN);
        assert_eq!(server_span["attributes"]["rpc.grpc.status_code"], 0);
        assert_eq!(inner["name"], "ShouldRateLimit Execution");
        assert_eq!(inner["parent"], server_span["span"]);
        let expected = serde_json::json!({ "domain": "d", "descriptors": 1, "overall_code": "OK" });
        assert_eq!(inner["attributes"], expected);
        let text = serde_json::to_string(&spans).unwrap();
        assert!(!text.contains("secret"), "no value of a request: {text}");
        // The counter rises after the collector's answer.
        await_exported(&server);
    }
}

fn await_exported(server: &Tollgate) {
    wait_until("two spans are counted", || {
        server.metric("tollgate_spans_exported_total") == 2
    });
}

#[tokio::test]
async fn callers_decide_what_is_sampled_and_failures_are_told() {
    let sink = Sink::start();
    let builder = traced(sink.http, "").env("TRACING_SAMPLING_RATE", "0.0");
    let server = builder.start();
    let mut client = connect(server.grpc).await;
    ask_with(&mut client, "d", &[]).await;
    let unsampled = format!("00-{TRACE}-{SPAN}-00");
    ask_with(&mut client, "d", &[("traceparent", &unsampled)]).await;
    // Not read, so the rate decides.
    ask_with(&mut client, "d", &[("b3", &format!("{TRACE}-{SPAN}-1"))]).await;
    ask_with(&mut client, "", &[SAMPLED]).await;
    let spans = sink.wait_for(2);
    assert_eq!(spans[0]["trace"], TRACE);
    assert_eq!(spans[0]["parent"], SPAN);
    assert_eq!(spans[0]["code"], 2);
    assert_eq!(spans[0]["message"], "rate limit domain must not be empty");
    assert_eq!(spans[0]["attributes"]["rpc.grpc.status_code"], 3);
    let resource = &spans[0]["resource"];
    let id = resource["service.instance.id"].as_str().unwrap();
    assert_eq!(id.len(), 36, "a UUID: {id}");
    assert_eq!(resource["service.name"], "RateLimit");
}

#[tokio::test]
async fn the_end_sends_what_is_left() {
    let sink = Sink::start();
    let mut server = traced(sink.grpc, "grpc")
        .env("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3")
        .start();
    let mut client = connect(server.grpc).await;
    for _ in 0..5 {
        ask_with(&mut client, "d", &[]).await;
    }
    end(&mut server).await;
    let spans = sink.wait_for(10);
    let over = |span: &&Value| span["attributes"]["overall_code"] == "OVER_LIMIT";
    assert_eq!(spans.iter().filter(over).count(), 4);
}

#[tokio::test]
async fn without_a_collector_spans_are_dropped_and_nothing_waits() {
    // A collector that accepts connections and never answers, and one that is not running.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let none = free_port();
    for (port, protocol) in [(silent_port, "http"), (silent_port, "grpc"), (none, "http")] {
        let mut server = traced(port.into(), protocol)
            .env("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
            .env("OTEL_BSP_MAX_QUEUE_SIZE", "8")
            .start();
        let mut client = connect(server.grpc).await;
        for _ in 0..200 {
            ask_with(&mut client, "d", &[]).await;
        }
        wait_until("all are lost", || {
            server.metric("tollgate_spans_dropped_total") == 400
        });
        assert_eq!(server.metric("tollgate_spans_exported_total"), 0);
        let said = server.log().with("spans are lost");
        assert_eq!(said.matches("spans are lost").count(), 1, "{said}");
        let full = said.matches("spans have no room: 8 wait").count();
        assert!(full <= 1 && (full == 1 || port != silent_port), "{said}");
        assert_eq!(http::get(server.http, "/healthcheck").status, 200);
        if port == none {
            answering_at(none, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            eventually("spans are sent again", async || {
                ask_with(&mut client, "d", &[]).await;
                server.metric("tollgate_spans_exported_total") > 0
            })
            .await;
        }
        end(&mut server).await;
    }
}

/// A collector that answers each request over HTTP with these bytes.
fn answering(answer: &'static str) -> u64 {
    answering_at(0, answer)
}

/// [`answering`], at a port.
fn answering_at(port: u16, answer: &'static str) -> u64 {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1 << 16]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port.into()
}

#[tokio::test]
async fn the_log_has_the_cause_of_lost_spans() {
    let forbidden = answering("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
    for (port, protocol, cause) in [
        (forbidden, "http", "403"),
        (answering("garbage\r\n\r\n"), "http", "HTTP/1"),
        (answering("garbage\r\n\r\n"), "grpc", "gRPC code"),
        (free_port().into(), "http", "Connection refused"),
        (free_port().into(), "grpc", "Connection refused"),
    ] {
        let builder = traced(port, protocol);
        let server = builder.env("OTEL_EXPORTER_OTLP_TIMEOUT", "200").start();
        let mut client = connect(server.grpc).await;
        for round in 1..=2 {
            ask_with(&mut client, "d", &[]).await;
            wait_until("both are lost", || {
                server.metric("tollgate_spans_dropped_total") == 2 * round
            });
        }
        let said = server.log().with("spans are lost");
        let lines: Vec<_> = said.lines().filter(|line| line.contains("spans")).collect();
        let [line] = lines[..] else {
            panic!("{said}");
        };
        assert!(line.contains(cause), "{cause}: {line}");
    }
}

#[tokio::test]
async fn the_variables_of_the_sdk_are_enough() {
    let sink = Sink::start();
    let variables = format!(
        "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{} OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_SERVICE_NAME=limits \
         OTEL_EXPORTER_OTLP_COMPRESSION=gzip OTEL_TRACES_SAMPLER=parentbased_always_off OTEL_BSP_SCHEDULE_DELAY=10",
        sink.grpc
    );
    let server = with_variables(tollgate::with_rules(RULES), &variables).start();
    let mut client = connect(server.grpc).await;
    ask_with(&mut client, "d", &[]).await;
    ask_with(&mut client, "d", &[SAMPLED]).await;
    for span in sink.wait_for(2) {
        assert_eq!(span["way"], "grpc");
        assert_eq!(span["resource"]["service.name"], "limits");
        assert_eq!(span["trace"], TRACE);
    }
}

/// An address without a scheme, and a socket; a path stays as it is.
#[tokio::test]
async fn a_collector_has_an_address_in_any_form() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("s");
    let unix = UnixListener::bind(&socket).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let all = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let bare = format!("127.0.0.1:{port}");
    let socket = format!("unix://{}", socket.display());
    let whole = format!("http://127.0.0.1:{port}/x?y=1");
    for (name, address, path) in [
        (all, &bare, "/v1/traces"),
        (all, &socket, "/v1/traces"),
        (traces, &bare, "/"),
        (traces, &whole, "/x?y=1"),
    ] {
        let server = traced(1, "http").env(name, address).start();
        ask_with(&mut connect(server.grpc).await, "d", &[]).await;
        let mut stream: Box<dyn ReadWrite> = match address.starts_with("unix") {
            true => Box::new(unix.accept().unwrap().0),
            false => Box::new(tcp.accept().unwrap().0),
        };
        let mut request = [0; 4096];
        let length = stream.read(&mut request).unwrap();
        let request = String::from_utf8_lossy(&request[..length]);
        let expected = format!("POST {path} HTTP/1.1\r\n");
        assert!(request.starts_with(&expected), "{address}: {request}");
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
        await_exported(&server);
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[tokio::test]
async fn the_parent_is_a_span_of_envoy() {
    for protocol in ["http", "grpc"] {
        let sink = Sink::start();
        let of_protocol = [sink.http, sink.grpc][usize::from(protocol == "grpc")];
        let server = traced(of_protocol, protocol).start();
        let envoy = traced_front(server.grpc, sink.grpc);
        http::get(envoy.listener("front"), "/");
        let is_ours = |span: &&Value| span["kind"] == 2 && span["scope"] == "tollgate";
        wait_until("both send spans", || {
            let spans = sink.spans();
            spans.iter().find(is_ours).is_some_and(|ours| {
                let mut parents = spans.iter().filter(|span| span["span"] == ours["parent"]);
                parents.any(|span| span["scope"] != "tollgate" && span["trace"] == ours["trace"])
            })
        });
    }
}

#[tokio::test]
async fn without_tracing_no_collector_is_called() {
    let sink = Sink::start();
    for (name, value) in [("TRACING_ENABLED", "false"), ("OTEL_SDK_DISABLED", "true")] {
        let mut server = traced(sink.http, "http").env(name, value).start();
        let mut client = connect(server.grpc).await;
        ask_with(&mut client, "d", &[SAMPLED]).await;
        end(&mut server).await;
    }
    assert!(sink.spans().is_empty());
}

#[test]
fn what_cannot_be_used_ends_the_start() {
    const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
    const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
    const COMPRESSION: &str = "OTEL_EXPORTER_OTLP_COMPRESSION";
    const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE";
    for (name, value, expected) in [
        (ENDPOINT, "ftp://h", "spans cannot be sent to `ftp://h`"),
        (ENDPOINT, "https://h:1", "required for TLS"),
        (ENDPOINT, "http://h/a b", "URL of the collector"),
        (HEADERS, "secret", HEADERS),
        (HEADERS, "a=b%zz,c=%0A", HEADERS),
        (ATTRIBUTES, "nonsense", ATTRIBUTES),
        (COMPRESSION, "zstd", COMPRESSION),
        (CERTIFICATE, "/own.pem", CERTIFICATE),
        (
            "TRACING_EXPORTER_PROTOCOL",
            "smoke",
            "expected http or grpc",
        ),
    ] {
        let (_, said) = traced(1, "http").env(name, value).fail();
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        assert!(value != "secret" || !said.contains(value), "{said}");
    }
}
