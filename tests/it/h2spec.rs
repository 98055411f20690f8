//! The cases of h2spec, frame by frame: how a server handles frames that RFC 7540 and RFC 7541 allow or forbid.
//!
//! h2spec is a separate program, and its requests are not gRPC calls: a server that refuses those at once seems to
//! break rules. Here its cases are calls. The table also runs against a server of stock tonic, which uses the same
//! HTTP/2 library: deviations of both from the RFCs are in the table, and tollgate adds none.

mod cases;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use ::tollgate::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::Code,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use cases::{Case, Opening};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use crate::support::{
    PATIENCE,
    frames::{DATA, Frames, GO_AWAY, PING, RESET, SETTINGS, frame},
    tollgate,
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: year, requests_per_unit: 1000000000 }
";

/// Most concurrent calls of one connection.
const MAX_STREAMS: u32 = 10;

const HEADERS: u8 = 1;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;

/// A reaction of a server.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    /// A GOAWAY with this error.
    GoAway(u32),
    /// A reset of this stream, with this error.
    Reset(u32, u32),
    /// The end of this stream, after a message.
    Answered(u32),
    /// The end of this stream, without a message.
    Ended(u32),
    /// So many bytes of this stream's body.
    Body(u32, usize),
    Pong([u8; 8]),
    SettingsTaken,
    /// The end of the connection, with the error of its GOAWAY if there was one.
    Closed(Option<u32>),
    /// The end of the connection with unread input, so that the system reset it.
    Cut,
    /// No expected reaction for a long time.
    Silence,
}

/// A connection and the server's reactions on it.
struct Watched {
    client: Frames,
    last_word: Option<u32>,
    with_body: Vec<u32>,
}

impl Watched {
    /// A connection after both prefaces; a server's preface begins with its settings.
    #[track_caller]
    fn greeted(address: SocketAddr) -> Self {
        let mut watched = Self::over(Frames::connect(address));
        let (kind, flags, ..) = watched.frame().expect("the server says hello");
        assert_eq!((kind, flags), (SETTINGS, 0), "the hello of a server");
        watched.write(&frame(SETTINGS, ACK, 0, &[]));
        watched.until(|seen| *seen == Seen::SettingsTaken);
        watched
    }

    /// A connection without a preface.
    fn bare(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::over(Frames(stream))
    }

    fn over(client: Frames) -> Self {
        Self {
            client,
            last_word: None,
            with_body: Vec::new(),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        // The server may have closed already.
        let _ = self.client.0.write_all(bytes);
    }

    /// Type, flags, stream and payload of the next frame, or the end of the connection.
    fn frame(&mut self) -> Result<(u8, u8, u32, Vec<u8>), Seen> {
        let mut head = [0; 9];
        self.fill(&mut head)?;
        let number = |bytes: [u8; 4]| u32::from_be_bytes(bytes);
        let length = number([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.fill(&mut payload)?;
        let stream = number([head[5], head[6], head[7], head[8]]);
        Ok((head[3], head[4], stream, payload))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Seen> {
        self.client
            .0
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                ErrorKind::WouldBlock => Seen::Silence,
                ErrorKind::UnexpectedEof => Seen::Closed(self.last_word),
                _ if self.last_word.is_some() => Seen::Closed(self.last_word),
                _ => Seen::Cut,
            })
    }

    /// The server's next reactions, in order.
    fn next(&mut self) -> Vec<Seen> {
        let (kind, flags, stream, payload) = match self.frame() {
            Ok(frame) => frame,
            Err(end) => return vec![end],
        };
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        let mut seen = Vec::new();
        match kind {
            DATA if !payload.is_empty() => {
                self.with_body.push(stream);
                seen.push(Seen::Body(stream, payload.len()));
            }
            RESET => seen.push(Seen::Reset(stream, number(0))),
            SETTINGS if flags & ACK != 0 => seen.push(Seen::SettingsTaken),
            PING if flags & ACK != 0 => seen.push(Seen::Pong(payload[..].try_into().unwrap())),
            GO_AWAY => {
                self.last_word = Some(number(4));
                seen.push(Seen::GoAway(number(4)));
            }
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            seen.push(if self.with_body.contains(&stream) {
                Seen::Answered(stream)
            } else {
                Seen::Ended(stream)
            });
        }
        seen
    }

    /// Watches for an expected reaction, or until no more can come; returns the last one.
    fn until(&mut self, is_awaited: impl Fn(&Seen) -> bool) -> Seen {
        loop {
            for seen in self.next() {
                let is_end = matches!(seen, Seen::Closed(_) | Seen::Cut | Seen::Silence);
                if is_end || is_awaited(&seen) {
                    return seen;
                }
            }
        }
    }
}

/// The server's reaction to `case`: an allowed one, or another one that ends the case.
fn run(case: &Case, address: SocketAddr) -> Seen {
    let mut watched = match case.opening {
        Opening::Greeted => Watched::greeted(address),
        Opening::Bare => Watched::bare(address),
    };
    watched.write(&case.first);
    for (awaited, bytes) in &case.later {
        let seen = watched.until(|seen| seen == awaited);
        if seen != *awaited {
            return seen;
        }
        watched.write(bytes);
    }
    watched.until(|seen| {
        let is_good = case.allowed.contains(seen);
        // Some reactions can precede an allowed one.
        let is_final = match seen {
            Seen::Reset(_, code) => *code != 0,
            Seen::Pong(_) => true,
            Seen::Answered(stream) | Seen::Ended(stream) => case.is_about(*stream),
            Seen::Body(..) => case
                .allowed
                .iter()
                .any(|seen| matches!(seen, Seen::Body(..))),
            _ => false,
        };
        is_good || is_final || case.of_tonic.as_ref() == Some(seen)
    })
}

/// A server of stock tonic, which answers OK to everything. It ends with the test program.
fn stock_tonic() -> SocketAddr {
    struct Stock;

    #[tonic::async_trait]
    impl RateLimitService for Stock {
        async fn should_rate_limit(
            &self,
            _: Request<RateLimitRequest>,
        ) -> Result<Response<RateLimitResponse>, Status> {
            Ok(Response::new(RateLimitResponse {
                overall_code: Code::Ok.into(),
                ..RateLimitResponse::default()
            }))
        }
    }

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            Server::builder()
                .max_concurrent_streams(MAX_STREAMS)
                .add_service(RateLimitServiceServer::new(Stock))
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
        })
    });
    address
}

/// Reactions other than `expected`, one line per case.
#[track_caller]
fn check(address: SocketAddr, expected: impl Fn(&Case, &Seen) -> bool) {
    let cases = cases::all();
    let others: Vec<_> = cases
        .iter()
        .filter_map(|case| {
            let seen = run(case, address);
            let Case { section, claim, .. } = case;
            let line = format!("{section}: {claim}: {seen:?} instead of {:?}", case.allowed);
            (!expected(case, &seen)).then_some(line)
        })
        .collect();
    assert!(others.is_empty(), "{:#?}\n{others:#?}", others.len());
}

#[test]
fn tollgate_fails_no_case_that_stock_tonic_does_not() {
    let max_streams = MAX_STREAMS.to_string();
    let server = tollgate::with_rules(RULES)
        .args(["--max-streams", &max_streams])
        .start();
    check(server.grpc, |case, seen| {
        case.allowed.contains(seen) || case.of_tonic.as_ref() == Some(seen)
    });
}

/// A case that tonic now passes must be removed from the list of its failures.
#[test]
fn stock_tonic_fails_the_cases_that_the_table_says() {
    check(stock_tonic(), |case, seen| match &case.of_tonic {
        Some(known) => seen == known,
        None => case.allowed.contains(seen),
    });
}

#[test]
fn every_case_has_a_number_of_its_own_and_something_that_is_allowed() {
    let cases = cases::all();
    let mut numbers: Vec<_> = cases.iter().map(|case| case.section).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), cases.len());
    assert!(cases.iter().all(|case| !case.allowed.is_empty()));
}
