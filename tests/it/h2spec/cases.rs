//! The table: the bytes of each case, and the reactions that the RFCs allow.

use super::{MAX_STREAMS, Seen};
use crate::support::{
    frames::{DATA, GO_AWAY, PING, PREFACE, RESET, SETTINGS, frame, headers},
    raw::PATH,
};

const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const PUSH_PROMISE: u8 = 5;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const WITH_PRIORITY: u8 = 0x20;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const COMPRESSION_ERROR: u32 = 9;

const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;

/// The largest frame that a server accepts by default.
const LARGEST: usize = 1 << 14;

/// Stream of a call that shows that the connection still works.
const LAST: u32 = 101;

/// The beginning of a case.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opening {
    /// After both prefaces.
    Greeted,
    /// Before any preface.
    Bare,
}

/// Frames, and the allowed reactions to them.
#[derive(Debug)]
pub(super) struct Case {
    /// Its number in h2spec.
    pub(super) section: &'static str,
    pub(super) claim: &'static str,
    pub(super) opening: Opening,
    pub(super) first: Vec<u8>,
    /// Further frames, each sent after a reaction.
    pub(super) later: Vec<(Seen, Vec<u8>)>,
    pub(super) allowed: Vec<Seen>,
    /// Stock tonic's reaction, if it is another one.
    pub(super) of_tonic: Option<Seen>,
}

impl Case {
    /// Whether one of the allowed reactions is about this stream.
    pub(super) fn is_about(&self, stream: u32) -> bool {
        self.allowed.iter().any(|seen| match seen {
            Seen::Reset(about, _) | Seen::Answered(about) | Seen::Ended(about) => *about == stream,
            _ => false,
        })
    }

    fn then(mut self, awaited: Seen, bytes: Vec<u8>) -> Self {
        self.later.push((awaited, bytes));
        self
    }

    fn may(mut self, allowed: &[Seen]) -> Self {
        self.allowed.extend_from_slice(allowed);
        self
    }

    /// The server answers the call on the first stream.
    fn answers(self) -> Self {
        self.may(&[Seen::Answered(1)])
    }

    /// The server ends the first stream in any way, with a message or without.
    fn ends(self) -> Self {
        self.may(&[Seen::Answered(1), Seen::Ended(1)])
    }

    /// The connection still works: the server answers a call after all other frames.
    fn goes_on(mut self) -> Self {
        let last = self.later.last_mut();
        let bytes = last.map_or(&mut self.first, |(_, bytes)| bytes);
        bytes.extend(call(LAST));
        self.may(&[Seen::Answered(LAST)])
    }

    /// A connection error, after which the server may simply close (RFC 7540, 5.4.1).
    fn fails(self, codes: &[u32]) -> Self {
        let words: Vec<_> = codes.iter().map(|&code| Seen::GoAway(code)).collect();
        self.may(&words).may(&[Seen::Closed(None)])
    }

    /// An error of the first stream, which may also be a connection error (RFC 7540, 5.4.2).
    fn resets(self, codes: &[u32]) -> Self {
        self.resets_stream(1, codes)
    }

    fn resets_stream(self, stream: u32, codes: &[u32]) -> Self {
        let resets: Vec<_> = codes
            .iter()
            .map(|&code| Seen::Reset(stream, code))
            .collect();
        self.may(&resets).fails(codes)
    }

    /// The HTTP/2 library reports this error for all input that it cannot parse. h2spec accepts any error, if the
    /// connection is closed.
    fn but_h2_says_protocol_error(self) -> Self {
        self.but_tonic(Seen::GoAway(PROTOCOL_ERROR))
    }

    fn but_tonic(mut self, seen: Seen) -> Self {
        self.of_tonic = Some(seen);
        self
    }
}

fn case(section: &'static str, claim: &'static str, first: impl Into<Frames>) -> Case {
    Case {
        section,
        claim,
        opening: Opening::Greeted,
        first: first.into().0,
        later: Vec::new(),
        allowed: Vec::new(),
        of_tonic: None,
    }
}

/// A sequence of frames.
struct Frames(Vec<u8>);

impl From<Vec<u8>> for Frames {
    fn from(frame: Vec<u8>) -> Self {
        Self(frame)
    }
}

impl<const N: usize> From<[Vec<u8>; N]> for Frames {
    fn from(frames: [Vec<u8>; N]) -> Self {
        Self(frames.concat())
    }
}

pub(super) fn all() -> Vec<Case> {
    [
        generic(),
        starting(),
        framing(),
        states(),
        identifiers(),
        errors_and_extensions(),
        data_and_headers(),
        priorities_and_resets(),
        settings_frames(),
        pings_and_last_words(),
        flow_control(),
        continuations(),
        messages(),
        compression(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

// --- frames --------------------------------------------------------------------------------------

/// The headers of a call, as plain literals with new names.
fn fields() -> Vec<(&'static str, &'static str)> {
    vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", PATH),
        (":authority", "tollgate"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
}

fn without(name: &str) -> Vec<(&'static str, &'static str)> {
    let mut fields = fields();
    fields.retain(|(known, _)| *known != name);
    fields
}

fn with(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut fields = fields();
    match fields.iter_mut().find(|(known, _)| *known == name) {
        Some(field) => field.1 = value,
        None => fields.push((name, value)),
    }
    fields
}

/// The fields with one pseudo-header repeated, before all others.
fn twice(name: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut fields = fields();
    let at = fields.iter().position(|(known, _)| *known == name).unwrap();
    fields.insert(at, fields[at]);
    fields
}

fn text(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn literals(fields: &[(&str, &str)]) -> Vec<u8> {
    let literal = |(name, value): &(&str, &str)| [vec![0], text(name), text(value)].concat();
    fields.iter().flat_map(literal).collect()
}

/// The header block of a call, followed by further bytes of HPACK.
fn block(behind: &[u8]) -> Vec<u8> {
    [&literals(&fields())[..], behind].concat()
}

/// HEADERS with these fields, without END_STREAM.
fn request(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &literals(fields))
}

/// A call's message, as in DATA.
fn message() -> Vec<u8> {
    crate::support::frames::data(1)[9..].to_vec()
}

/// DATA with the first half of a message, without END_STREAM.
fn half_a_message(stream: u32) -> Vec<u8> {
    frame(DATA, 0, stream, &message()[..8])
}

fn other_half(stream: u32) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, &message()[8..])
}

fn data(stream: u32) -> Vec<u8> {
    crate::support::frames::data(stream)
}

/// A call from its headers to its end.
fn call(stream: u32) -> Vec<u8> {
    [headers(stream), data(stream)].concat()
}

/// A call in the middle of its message, which the server cannot answer yet.
fn pending(stream: u32) -> Vec<u8> {
    [headers(stream), half_a_message(stream)].concat()
}

/// A complete call whose answer cannot be sent completely, because there is no window for it.
fn stuck(stream: u32) -> Vec<u8> {
    [settings(&[(INITIAL_WINDOW_SIZE, 0)]), call(stream)].concat()
}

/// The headers of a call followed by further bytes of HPACK, and its message.
fn call_with(behind: &[u8]) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, 1, &block(behind)), data(1)].concat()
}

/// A call with these headers.
fn call_of(fields: &[(&str, &str)]) -> Vec<u8> {
    [request(1, fields), half_a_message(1)].concat()
}

fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let value =
        |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat();
    let payload: Vec<_> = values.iter().flat_map(value).collect();
    frame(SETTINGS, 0, 0, &payload)
}

fn priority(stream: u32, dependency: u32, weight: u8) -> Vec<u8> {
    let payload = [&dependency.to_be_bytes()[..], &[weight]].concat();
    frame(PRIORITY, 0, stream, &payload)
}

fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RESET, 0, stream, &code.to_be_bytes())
}

fn window(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

fn ping(payload: &[u8]) -> Vec<u8> {
    frame(PING, 0, 0, payload)
}

fn last_word(stream: u32, code: u32) -> Vec<u8> {
    let payload = [[0; 4], code.to_be_bytes()].concat();
    frame(GO_AWAY, 0, stream, &payload)
}

fn unknown(flags: u8, stream: u32) -> Vec<u8> {
    frame(0x16, flags, stream, &[0; 8])
}

/// A stream without any frame so far.
const IDLE: u32 = 1;

// --- generic -------------------------------------------------------------------------------------

fn generic() -> Vec<Case> {
    let padded = |kind: u8, flags: u8, payload: &[u8]| {
        let payload = [&[7][..], payload, &[0; 7]].concat();
        frame(kind, flags | PADDED, 1, &payload)
    };
    let with_priority = [&[0, 0, 0, 0, 200][..], &block(&[])].concat();
    let dependent = [&[0, 0, 0, 9, 200][..], &block(&[])].concat();
    let whole = message();
    let (first, second) = whole.split_at(3);
    let block = block(&[]);
    let (head, rest) = block.split_at(block.len() / 3);
    let (middle, tail) = rest.split_at(rest.len() / 2);
    let get = with(":method", "GET");
    let head_of = with(":method", "HEAD");
    let ended =
        |fields: &[(&str, &str)]| frame(HEADERS, END_HEADERS | END_STREAM, 1, &literals(fields));
    let trailers = frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &literals(&[("x-trailer", "1")]),
    );
    let ping_of = *b"h2spec\0\0";
    vec![
        case("generic/1/1", "both say hello", Vec::new()).goes_on(),
        case(
            "generic/2/1",
            "PRIORITY on a stream that is idle",
            priority(IDLE, 0, 255),
        )
        .goes_on(),
        case(
            "generic/2/2",
            "WINDOW_UPDATE on one that the client has ended",
            [stuck(1), window(1, 100)],
        )
        .answers(),
        case(
            "generic/2/3",
            "PRIORITY on one that the client has ended",
            [stuck(1), priority(1, 0, 255), window(1, 100)],
        )
        .answers(),
        case(
            "generic/2/4",
            "RST_STREAM on one that the client has ended",
            [
                stuck(1),
                reset(1, CANCEL),
                settings(&[(INITIAL_WINDOW_SIZE, 100)]),
            ],
        )
        .goes_on(),
        case("generic/2/5", "PRIORITY on one that is closed", call(1))
            .then(Seen::Answered(1), priority(1, 0, 255))
            .goes_on(),
        case("generic/3.1/1", "one frame of DATA", call(1)).answers(),
        case(
            "generic/3.1/2",
            "several frames of DATA",
            [
                headers(1),
                frame(DATA, 0, 1, first),
                frame(DATA, END_STREAM, 1, second),
            ],
        )
        .answers(),
        case(
            "generic/3.1/3",
            "DATA with padding",
            [headers(1), padded(DATA, END_STREAM, &message())],
        )
        .answers(),
        case("generic/3.2/1", "HEADERS", call_with(&[])).answers(),
        case(
            "generic/3.2/2",
            "HEADERS with padding",
            [padded(HEADERS, END_HEADERS, &block), data(1)],
        )
        .answers(),
        case(
            "generic/3.2/3",
            "HEADERS with a priority",
            [
                frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, &with_priority),
                data(1),
            ],
        )
        .answers(),
        case(
            "generic/3.3/1",
            "PRIORITY of the least weight",
            [priority(1, 0, 0), call(1)],
        )
        .answers(),
        case(
            "generic/3.3/2",
            "PRIORITY of the greatest weight",
            [priority(1, 0, 255), call(1)],
        )
        .answers(),
        case(
            "generic/3.3/3",
            "HEADERS that depend on a stream",
            [
                frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, &dependent),
                data(1),
            ],
        )
        .answers(),
        case(
            "generic/3.3/4",
            "PRIORITY that is exclusive",
            [priority(1, 1 << 31, 15), call(1)],
        )
        .answers(),
        case(
            "generic/3.3/5",
            "PRIORITY on an idle stream does not use up lower ones",
            [priority(5, 0, 255), call(1)],
        )
        .answers(),
        case(
            "generic/3.4/1",
            "RST_STREAM",
            [headers(1), reset(1, CANCEL)],
        )
        .goes_on(),
        case(
            "generic/3.5/1",
            "SETTINGS are taken",
            settings(&[(INITIAL_WINDOW_SIZE, 70_000)]),
        )
        .may(&[Seen::SettingsTaken]),
        case("generic/3.7/1", "PING is answered", ping(&ping_of)).may(&[Seen::Pong(ping_of)]),
        case(
            "generic/3.8/1",
            "GOAWAY lets calls under way end",
            [pending(1), last_word(0, 0), other_half(1)],
        )
        .answers()
        .may(&[Seen::Closed(None), Seen::Closed(Some(0))]),
        case(
            "generic/3.9/1",
            "WINDOW_UPDATE of the connection",
            window(0, 1),
        )
        .goes_on(),
        case(
            "generic/3.9/2",
            "WINDOW_UPDATE of a stream",
            [headers(1), window(1, 1), data(1)],
        )
        .answers(),
        case(
            "generic/3.10/1",
            "one CONTINUATION",
            [
                frame(HEADERS, 0, 1, head),
                frame(CONTINUATION, END_HEADERS, 1, rest),
                data(1),
            ],
        )
        .answers(),
        case(
            "generic/3.10/2",
            "several frames of CONTINUATION",
            [
                frame(HEADERS, 0, 1, head),
                frame(CONTINUATION, 0, 1, middle),
                frame(CONTINUATION, END_HEADERS, 1, tail),
                data(1),
            ],
        )
        .answers(),
        case("generic/4/1", "GET", ended(&get)).ends(),
        case("generic/4/2", "HEAD", ended(&head_of)).ends(),
        case("generic/4/3", "POST", call(1)).answers(),
        case(
            "generic/4/4",
            "POST with trailers",
            [headers(1), frame(DATA, 0, 1, &message()), trailers],
        )
        .answers(),
    ]
    .into_iter()
    .chain(representations())
    .collect()
}

/// The representations of a field in a header block. The strings in Huffman code are those of RFC 7541, C.
fn representations() -> Vec<Case> {
    const KEY: &[u8] = b"\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f";
    const VALUE: &[u8] = b"\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf";
    const PLAIN_KEY: &[u8] = b"\x0acustom-key";
    const PLAIN_VALUE: &[u8] = b"\x0ccustom-value";
    /// `user-agent`, in six bits and in four.
    const INDEXED: &[u8] = b"\x7a";
    const NOT_INDEXED: &[u8] = b"\x0f\x2b";
    const NEVER_INDEXED: &[u8] = b"\x1f\x2b";
    let behind = |section, claim, pieces: &[&[u8]]| {
        // A known field at the end shows that the earlier ones were understood.
        case(section, claim, call_with(&pieces.concat())).answers()
    };
    let resized = |size: &[u8]| {
        [
            frame(HEADERS, END_HEADERS, 1, &[size, &block(&[])].concat()),
            data(1),
        ]
    };
    vec![
        behind("generic/5/1", "an indexed field", &[b"\x90"]),
        behind(
            "generic/5/2",
            "incremental indexing under a known name",
            &[INDEXED, PLAIN_VALUE, b"\xbe"],
        ),
        behind(
            "generic/5/3",
            "the same in Huffman code",
            &[INDEXED, VALUE, b"\xbe"],
        ),
        behind(
            "generic/5/4",
            "incremental indexing under a new name",
            &[b"\x40", PLAIN_KEY, PLAIN_VALUE, b"\xbe"],
        ),
        behind(
            "generic/5/5",
            "the same in Huffman code",
            &[b"\x40", KEY, VALUE, b"\xbe"],
        ),
        behind(
            "generic/5/6",
            "no indexing under a known name",
            &[NOT_INDEXED, PLAIN_VALUE],
        ),
        behind(
            "generic/5/7",
            "the same in Huffman code",
            &[NOT_INDEXED, VALUE],
        ),
        behind(
            "generic/5/8",
            "no indexing under a new name",
            &[b"\x00", PLAIN_KEY, PLAIN_VALUE],
        ),
        behind(
            "generic/5/9",
            "the same in Huffman code",
            &[b"\x00", KEY, VALUE],
        ),
        behind(
            "generic/5/10",
            "never indexed under a known name",
            &[NEVER_INDEXED, PLAIN_VALUE],
        ),
        behind(
            "generic/5/11",
            "the same in Huffman code",
            &[NEVER_INDEXED, VALUE],
        ),
        behind(
            "generic/5/12",
            "never indexed under a new name",
            &[b"\x10", PLAIN_KEY, PLAIN_VALUE],
        ),
        behind(
            "generic/5/13",
            "the same in Huffman code",
            &[b"\x10", KEY, VALUE],
        ),
        case(
            "generic/5/14",
            "a new size of the dynamic table",
            resized(b"\x3f\x61"),
        )
        .answers(),
        case(
            "generic/5/15",
            "several new sizes of the dynamic table",
            resized(b"\x20\x3f\x61"),
        )
        .answers(),
    ]
}

// --- RFC 7540 ------------------------------------------------------------------------------------

fn starting() -> Vec<Case> {
    let hello = [PREFACE.to_vec(), settings(&[])].concat();
    vec![
        Case {
            opening: Opening::Bare,
            ..case("http2/3.5/1", "a client says hello", hello)
        }
        .goes_on(),
        Case {
            opening: Opening::Bare,
            ..case(
                "http2/3.5/2",
                "a hello that is none",
                b"INVALID CONNECTION PREFACE\r\n\r\n".to_vec(),
            )
        }
        .fails(&[PROTOCOL_ERROR])
        .but_tonic(Seen::Cut),
    ]
}

fn framing() -> Vec<Case> {
    let large = [message(), [0x18, 0x01].repeat(LARGEST)].concat();
    let filled = |length: usize| {
        let mut body = message();
        while body.len() + 2 <= length {
            body.extend([0x18, 0x01]);
        }
        if body.len() < length {
            // A number in one byte more than necessary.
            let last = body.len() - 1;
            body[last] = 0x81;
            body.push(0x00);
        }
        let length = u32::try_from(body.len() - 5).unwrap();
        body[1..5].copy_from_slice(&length.to_be_bytes());
        body
    };
    let mut reserved = ping(b"reserved");
    reserved[5] |= 0x80;
    let cut = literals(&fields());
    vec![
        case(
            "http2/4.1/1",
            "a frame of an unknown type is ignored",
            unknown(0, 0),
        )
        .goes_on(),
        case(
            "http2/4.1/2",
            "flags that mean nothing are ignored",
            frame(PING, 0x16 & !ACK, 0, b"no flags"),
        )
        .may(&[Seen::Pong(*b"no flags")]),
        case("http2/4.1/3", "the reserved bit is ignored", reserved)
            .may(&[Seen::Pong(*b"reserved")]),
        case(
            "http2/4.2/1",
            "DATA of the largest size",
            [headers(1), frame(DATA, END_STREAM, 1, &filled(LARGEST))],
        )
        .answers(),
        case(
            "http2/4.2/2",
            "DATA above the largest size",
            [headers(1), frame(DATA, END_STREAM, 1, &large[..=LARGEST])],
        )
        .resets(&[FRAME_SIZE_ERROR]),
        case(
            "http2/4.2/3",
            "HEADERS above the largest size",
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                1,
                &block(
                    &[&b"\x00"[..], &text(&"x".repeat(100)), b"\x00"]
                        .concat()
                        .repeat(200),
                ),
            ),
        )
        .fails(&[FRAME_SIZE_ERROR]),
        case(
            "http2/4.3/1",
            "a header block that is none",
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                1,
                b"\x82\x84\x86\x41\x81\xff\xff",
            ),
        )
        .fails(&[COMPRESSION_ERROR])
        .but_h2_says_protocol_error(),
        case(
            "http2/4.3/2",
            "PRIORITY inside of a header block",
            [
                frame(HEADERS, 0, 1, &cut),
                priority(1, 0, 255),
                frame(CONTINUATION, END_HEADERS, 1, b"\x90"),
            ],
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/4.3/3",
            "HEADERS of another stream inside of a header block",
            [
                frame(HEADERS, 0, 1, &cut),
                headers(3),
                frame(CONTINUATION, END_HEADERS, 1, b"\x90"),
            ],
        )
        .fails(&[PROTOCOL_ERROR]),
    ]
}

fn states() -> Vec<Case> {
    let ended_twice = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[]));
    let rest = frame(CONTINUATION, END_HEADERS, 1, b"\x90");
    let both = [STREAM_CLOSED, PROTOCOL_ERROR];
    vec![
        case("http2/5.1/1", "idle: DATA", data(IDLE)).fails(&[PROTOCOL_ERROR]),
        case("http2/5.1/2", "idle: RST_STREAM", reset(IDLE, CANCEL)).fails(&[PROTOCOL_ERROR]),
        case("http2/5.1/3", "idle: WINDOW_UPDATE", window(IDLE, 100)).fails(&[PROTOCOL_ERROR]),
        case("http2/5.1/4", "idle: CONTINUATION", rest.clone()).fails(&[PROTOCOL_ERROR]),
        case("http2/5.1/5", "half closed: DATA", [stuck(1), data(1)])
            .resets(&[STREAM_CLOSED])
            .but_h2_says_protocol_error(),
        case(
            "http2/5.1/6",
            "half closed: HEADERS",
            [stuck(1), ended_twice.clone()],
        )
        .resets(&[STREAM_CLOSED])
        .but_h2_says_protocol_error(),
        case(
            "http2/5.1/7",
            "half closed: CONTINUATION",
            [stuck(1), rest.clone()],
        )
        .resets(&both),
        case(
            "http2/5.1/8",
            "closed by the client: DATA",
            [pending(1), reset(1, CANCEL), other_half(1)],
        )
        .resets(&[STREAM_CLOSED]),
        case(
            "http2/5.1/9",
            "closed by the client: HEADERS",
            [pending(1), reset(1, CANCEL), ended_twice.clone()],
        )
        .resets(&[STREAM_CLOSED])
        .but_h2_says_protocol_error(),
        case(
            "http2/5.1/10",
            "closed by the client: CONTINUATION",
            [pending(1), reset(1, CANCEL), rest.clone()],
        )
        .resets(&both),
        case("http2/5.1/11", "closed by both: DATA", call(1))
            .then(Seen::Answered(1), data(1))
            .resets(&[STREAM_CLOSED]),
        case("http2/5.1/12", "closed by both: HEADERS", call(1))
            .then(Seen::Answered(1), ended_twice)
            .fails(&[STREAM_CLOSED, PROTOCOL_ERROR]),
        case("http2/5.1/13", "closed by both: CONTINUATION", call(1))
            .then(Seen::Answered(1), rest)
            .fails(&both),
    ]
}

fn identifiers() -> Vec<Case> {
    let many: Vec<_> = (0..=MAX_STREAMS).map(|nth| 2 * nth + 1).collect();
    let last = 2 * MAX_STREAMS + 1;
    let on_itself = [&1_u32.to_be_bytes()[..], &[255], &block(&[])].concat();
    vec![
        case("http2/5.1.1/1", "an even number", call(2)).fails(&[PROTOCOL_ERROR]),
        case("http2/5.1.1/2", "a number below the last one", call(5))
            .then(Seen::Answered(5), call(3))
            .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/5.1.2/1",
            "more streams than the server allows",
            many.iter()
                .flat_map(|&stream| pending(stream))
                .collect::<Vec<_>>(),
        )
        .resets_stream(last, &[PROTOCOL_ERROR, REFUSED_STREAM]),
        case(
            "http2/5.3.1/1",
            "HEADERS that depend on their own stream",
            frame(
                HEADERS,
                END_HEADERS | END_STREAM | WITH_PRIORITY,
                1,
                &on_itself,
            ),
        )
        .resets(&[PROTOCOL_ERROR]),
        case(
            "http2/5.3.1/2",
            "PRIORITY that depends on its own stream",
            [pending(1), priority(1, 1, 255)],
        )
        .resets(&[PROTOCOL_ERROR]),
    ]
}

fn errors_and_extensions() -> Vec<Case> {
    vec![
        case(
            "http2/5.4.1/1",
            "an error of the connection closes it",
            ping(&[0; 6]),
        )
        .may(&[Seen::Closed(Some(FRAME_SIZE_ERROR)), Seen::Closed(None)])
        .but_tonic(Seen::Closed(Some(PROTOCOL_ERROR))),
        case(
            "http2/5.4.1/2",
            "an error of the connection is told before",
            ping(&[0; 6]),
        )
        .may(&[Seen::GoAway(FRAME_SIZE_ERROR)])
        .but_h2_says_protocol_error(),
        case(
            "http2/5.5/1",
            "an unknown frame on a stream is ignored",
            [headers(1), unknown(0xff, 1), data(1)],
        )
        .answers(),
        case(
            "http2/5.5/2",
            "an unknown frame inside of a header block",
            [
                frame(HEADERS, 0, 1, &block(&[])),
                unknown(0, 1),
                frame(CONTINUATION, END_HEADERS, 1, b"\x90"),
            ],
        )
        .fails(&[PROTOCOL_ERROR]),
    ]
}

fn data_and_headers() -> Vec<Case> {
    let block = block(&[]);
    let overlong = |payload: &[u8]| [&[255][..], payload].concat();
    vec![
        case("http2/6.1/1", "DATA without a stream", data(0)).fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.1/2",
            "DATA on a stream that is not open",
            [stuck(1), half_a_message(1)],
        )
        .resets(&[STREAM_CLOSED])
        .but_h2_says_protocol_error(),
        case(
            "http2/6.1/3",
            "DATA that is all padding and more",
            [
                headers(1),
                frame(DATA, END_STREAM | PADDED, 1, &overlong(&message())),
            ],
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.2/1",
            "HEADERS that go on in PRIORITY",
            [frame(HEADERS, 0, 1, &block), priority(1, 0, 255)],
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.2/2",
            "HEADERS that go on in those of another stream",
            [frame(HEADERS, 0, 1, &block), headers(3)],
        )
        .fails(&[PROTOCOL_ERROR]),
        case("http2/6.2/3", "HEADERS without a stream", headers(0)).fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.2/4",
            "HEADERS that are all padding and more",
            frame(
                HEADERS,
                END_HEADERS | END_STREAM | PADDED,
                1,
                &overlong(&literals(&fields()[..2])),
            ),
        )
        .fails(&[PROTOCOL_ERROR]),
    ]
}

fn priorities_and_resets() -> Vec<Case> {
    vec![
        case(
            "http2/6.3/1",
            "PRIORITY without a stream",
            priority(0, 1, 255),
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.3/2",
            "PRIORITY of a wrong size",
            [pending(1), frame(PRIORITY, 0, 1, &[0, 0, 0, 0])],
        )
        .resets(&[FRAME_SIZE_ERROR])
        .but_h2_says_protocol_error(),
        case(
            "http2/6.4/1",
            "RST_STREAM without a stream",
            reset(0, CANCEL),
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.4/2",
            "RST_STREAM on a stream that is idle",
            reset(IDLE, CANCEL),
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.4/3",
            "RST_STREAM of a wrong size",
            [pending(1), frame(RESET, 0, 1, &[0; 3])],
        )
        .fails(&[FRAME_SIZE_ERROR])
        .but_h2_says_protocol_error(),
    ]
}

fn settings_frames() -> Vec<Case> {
    vec![
        case(
            "http2/6.5/1",
            "SETTINGS that are acknowledged with a payload",
            frame(SETTINGS, ACK, 0, &[0; 6]),
        )
        .fails(&[FRAME_SIZE_ERROR])
        .but_h2_says_protocol_error(),
        case(
            "http2/6.5/2",
            "SETTINGS of a stream",
            frame(SETTINGS, 0, 1, &[0, 3, 0, 0, 0, 100]),
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.5/3",
            "SETTINGS of a wrong size",
            frame(SETTINGS, 0, 0, &[0, 3, 0]),
        )
        .fails(&[FRAME_SIZE_ERROR])
        .but_h2_says_protocol_error(),
        case(
            "http2/6.5.2/1",
            "ENABLE_PUSH that is neither 0 nor 1",
            settings(&[(ENABLE_PUSH, 2)]),
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.5.2/2",
            "INITIAL_WINDOW_SIZE above the largest",
            settings(&[(INITIAL_WINDOW_SIZE, 1 << 31)]),
        )
        .fails(&[FLOW_CONTROL_ERROR])
        .but_h2_says_protocol_error(),
        case(
            "http2/6.5.2/3",
            "MAX_FRAME_SIZE below the least",
            settings(&[(MAX_FRAME_SIZE, (1 << 14) - 1)]),
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.5.2/4",
            "MAX_FRAME_SIZE above the largest",
            settings(&[(MAX_FRAME_SIZE, 1 << 24)]),
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.5.2/5",
            "an unknown setting is ignored",
            settings(&[(0xff, 1)]),
        )
        .goes_on(),
        case(
            "http2/6.5.3/1",
            "of two values of one setting the last counts",
            [
                settings(&[(INITIAL_WINDOW_SIZE, 100), (INITIAL_WINDOW_SIZE, 1)]),
                call(1),
            ],
        )
        .may(&[Seen::Body(1, 1)]),
        case("http2/6.5.3/2", "SETTINGS are acknowledged", settings(&[]))
            .may(&[Seen::SettingsTaken]),
    ]
}

fn pings_and_last_words() -> Vec<Case> {
    vec![
        case("http2/6.7/1", "PING is answered in kind", ping(b"h2spec67"))
            .may(&[Seen::Pong(*b"h2spec67")]),
        case(
            "http2/6.7/2",
            "the answer to a PING that was not sent is ignored",
            [frame(PING, ACK, 0, b"invalid\0"), ping(b"the next")],
        )
        .may(&[Seen::Pong(*b"the next")]),
        case(
            "http2/6.7/3",
            "PING of a stream",
            frame(PING, 0, 1, &[0; 8]),
        )
        .fails(&[PROTOCOL_ERROR]),
        case("http2/6.7/4", "PING of a wrong size", ping(&[0; 6]))
            .fails(&[FRAME_SIZE_ERROR])
            .but_h2_says_protocol_error(),
        case("http2/6.8/1", "GOAWAY of a stream", last_word(1, 0)).fails(&[PROTOCOL_ERROR]),
        case(
            "http2/7/1",
            "GOAWAY with an unknown error",
            [last_word(0, 0xff), ping(b"still up")],
        )
        .may(&[
            Seen::Pong(*b"still up"),
            Seen::Closed(None),
            Seen::Closed(Some(0)),
        ]),
        case(
            "http2/7/2",
            "RST_STREAM with an unknown error",
            [pending(1), reset(1, 0xff)],
        )
        .goes_on(),
    ]
}

fn flow_control() -> Vec<Case> {
    const MOST: u32 = (1 << 31) - 1;
    let initial = |size: u32| settings(&[(INITIAL_WINDOW_SIZE, size)]);
    vec![
        case(
            "http2/6.9/1",
            "WINDOW_UPDATE of the connection by nothing",
            window(0, 0),
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.9/2",
            "WINDOW_UPDATE of a stream by nothing",
            [pending(1), window(1, 0)],
        )
        .resets(&[PROTOCOL_ERROR]),
        case(
            "http2/6.9/3",
            "WINDOW_UPDATE of a wrong size",
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1]),
        )
        .fails(&[FRAME_SIZE_ERROR])
        .but_h2_says_protocol_error(),
        case(
            "http2/6.9.1/1",
            "no more is sent than the window holds",
            [initial(1), call(1)],
        )
        .may(&[Seen::Body(1, 1)]),
        case(
            "http2/6.9.1/2",
            "a window of the connection above the largest",
            [window(0, MOST), window(0, MOST)],
        )
        .fails(&[FLOW_CONTROL_ERROR]),
        case(
            "http2/6.9.1/3",
            "a window of a stream above the largest",
            [pending(1), window(1, MOST), window(1, MOST)],
        )
        .resets(&[FLOW_CONTROL_ERROR]),
        case(
            "http2/6.9.2/1",
            "a window that grows by a setting",
            [initial(0), call(1), initial(1)],
        )
        .may(&[Seen::Body(1, 1)]),
        case(
            "http2/6.9.2/2",
            "a window below nothing is filled up first",
            [initial(3), call(1)],
        )
        .then(Seen::Body(1, 3), [initial(2), window(1, 2)].concat())
        .may(&[Seen::Body(1, 1)]),
        case(
            "http2/6.9.2/3",
            "a window above the largest by a setting",
            [pending(1), initial(1 << 31)],
        )
        .fails(&[FLOW_CONTROL_ERROR])
        .but_h2_says_protocol_error(),
    ]
}

fn continuations() -> Vec<Case> {
    let block = block(&[]);
    let (head, tail) = block.split_at(20);
    let begun = frame(HEADERS, 0, 1, head);
    let rest = frame(CONTINUATION, END_HEADERS, 1, tail);
    let more = frame(CONTINUATION, END_HEADERS, 1, b"\x90");
    vec![
        case(
            "http2/6.10/1",
            "CONTINUATION behind HEADERS, and several",
            [
                begun.clone(),
                frame(CONTINUATION, 0, 1, tail),
                more.clone(),
                data(1),
            ],
        )
        .answers(),
        case(
            "http2/6.10/2",
            "CONTINUATION that goes on in DATA",
            [begun.clone(), frame(CONTINUATION, 0, 1, tail), data(1)],
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.10/3",
            "CONTINUATION without a stream",
            [begun.clone(), frame(CONTINUATION, END_HEADERS, 0, tail)],
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.10/4",
            "CONTINUATION behind HEADERS that have ended",
            [frame(HEADERS, END_HEADERS, 1, &block), more.clone()],
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.10/5",
            "CONTINUATION behind one that has ended",
            [begun, rest, more.clone()],
        )
        .fails(&[PROTOCOL_ERROR]),
        case(
            "http2/6.10/6",
            "CONTINUATION behind DATA",
            [pending(1), more],
        )
        .fails(&[PROTOCOL_ERROR]),
    ]
}

fn messages() -> Vec<Case> {
    let trailers =
        |fields: &[(&str, &str)]| frame(HEADERS, END_HEADERS | END_STREAM, 1, &literals(fields));
    let late = {
        let mut fields = without(":path");
        fields.push((":path", PATH));
        fields
    };
    let refused = |section, claim, fields: Vec<(&'static str, &'static str)>| {
        case(section, claim, call_of(&fields)).resets(&[PROTOCOL_ERROR])
    };
    let long = with("content-length", "1");
    vec![
        case(
            "http2/8.1/1",
            "HEADERS behind a message that do not end the stream",
            [pending(1), request(1, &[("x-trailer", "1")])],
        )
        .resets(&[PROTOCOL_ERROR]),
        refused("http2/8.1.2/1", "a name in capitals", with("X-TEST", "1")),
        refused(
            "http2/8.1.2.1/1",
            "an unknown pseudo-header",
            [&[(":test", "1")], &fields()[..]].concat(),
        ),
        refused(
            "http2/8.1.2.1/2",
            "a pseudo-header of responses",
            [&[(":status", "200")], &fields()[..]].concat(),
        ),
        case(
            "http2/8.1.2.1/3",
            "a pseudo-header in trailers",
            [pending(1), trailers(&[(":method", "POST")])],
        )
        .resets(&[PROTOCOL_ERROR])
        .but_tonic(Seen::Ended(1)),
        refused("http2/8.1.2.1/4", "a pseudo-header behind others", late),
        refused(
            "http2/8.1.2.2/1",
            "a header of the connection",
            with("connection", "keep-alive"),
        ),
        refused(
            "http2/8.1.2.2/2",
            "TE with anything but trailers",
            with("te", "trailers, deflate;q=0.5"),
        ),
        refused("http2/8.1.2.3/1", "an empty path", with(":path", "")),
        refused("http2/8.1.2.3/2", "no method", without(":method")),
        refused("http2/8.1.2.3/3", "no scheme", without(":scheme")),
        refused("http2/8.1.2.3/4", "no path", without(":path")),
        refused("http2/8.1.2.3/5", "two methods", twice(":method")),
        refused("http2/8.1.2.3/6", "two schemes", twice(":scheme")),
        refused("http2/8.1.2.3/7", "two paths", twice(":path")),
        case(
            "http2/8.1.2.6/1",
            "a body that is not as long as it says",
            [request(1, &long), other_half(1)],
        )
        .resets(&[PROTOCOL_ERROR]),
        case(
            "http2/8.1.2.6/2",
            "a body in several frames that is not as long as it says",
            [request(1, &long), half_a_message(1), other_half(1)],
        )
        .resets(&[PROTOCOL_ERROR]),
        case(
            "http2/8.2/1",
            "a client that promises a push",
            [
                pending(1),
                frame(
                    PUSH_PROMISE,
                    END_HEADERS,
                    1,
                    &[&[0, 0, 0, 3][..], &block(&[])].concat(),
                ),
            ],
        )
        .fails(&[PROTOCOL_ERROR]),
    ]
}

// --- RFC 7541 ------------------------------------------------------------------------------------

fn compression() -> Vec<Case> {
    let refused = |section, claim, behind: &[u8]| {
        case(section, claim, call_with(behind))
            .fails(&[COMPRESSION_ERROR])
            .but_h2_says_protocol_error()
    };
    vec![
        refused("hpack/2.3.3/1", "an index that no table has", b"\xc6"),
        refused(
            "hpack/2.3.3/2",
            "the index of a name that no table has",
            b"\x7f\x07\x04test",
        ),
        refused(
            "hpack/4.2/1",
            "a new size of the table at the end of a block",
            b"\x21",
        ),
        refused(
            "hpack/5.2/1",
            "Huffman code that is padded by more than seven bits",
            b"\x00\x04test\x84\x49\x50\x9f\xff",
        ),
        refused(
            "hpack/5.2/2",
            "Huffman code that is padded by zeros",
            b"\x00\x04test\x83\x49\x50\x90",
        ),
        refused(
            "hpack/5.2/3",
            "Huffman code with its end in it",
            b"\x00\x04test\x87\xff\xff\xff\xfd\x25\x42\x7f",
        ),
        refused("hpack/6.1/1", "an index of nothing", b"\x80"),
        case(
            "hpack/6.3/1",
            "a table that is larger than allowed",
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                1,
                &[&b"\x3f\xe2\x1f"[..], &block(&[])].concat(),
            ),
        )
        .fails(&[COMPRESSION_ERROR])
        .but_h2_says_protocol_error(),
    ]
}
