//! Clients in other languages: each is a process that sends one request repeatedly on one channel.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
};

use ::tollgate::proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use prost::Message as _;
use tempfile::TempDir;

use super::{
    PATIENCE, Process,
    ask::{descriptor, request},
    certificates::{Authority, Secret},
    finish,
    frames::{DATA, Frames, PREFACE, SETTINGS, frame},
    raw::PATH,
    tollgate::{self, Tollgate},
    tool,
};

/// Two requests for each value of `k`.
pub const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: year, requests_per_unit: 2 }
";

pub const SERVER_NAME: &str = "tollgate.example";

#[derive(Clone, Copy, Debug)]
pub enum Client {
    /// Python's, based on gRPC's C-core as are those of Ruby, PHP and C++.
    Grpcio,
    /// JavaScript's, written in JavaScript.
    GrpcJs,
    /// Go's, in the form of a command. It cannot compress.
    Grpcurl,
}

#[derive(Clone, Debug, Default)]
pub struct Channel {
    /// Host and port, or `unix:` and a path.
    pub target: String,
    /// Sent instead of the authority derived from the target.
    pub authority: Option<String>,
    /// Uses TLS and trusts this certificate: a file in PEM.
    pub ca: Option<String>,
    pub is_gzip: bool,
}

impl Client {
    /// The results of so many calls on one channel: an overall code or an error each.
    #[track_caller]
    pub fn ask(self, channel: &Channel, value: &str, calls: usize) -> Vec<String> {
        match self {
            Self::Grpcurl => (0..calls).map(|_| grpcurl(channel, value)).collect(),
            Self::Grpcio | Self::GrpcJs => {
                let output = finish(&mut self.script(channel, value, calls));
                let text = |bytes| String::from_utf8(bytes).unwrap();
                let (said, errors) = (text(output.stdout), text(output.stderr));
                assert!(output.status.success(), "{self:?}: {errors}");
                said.lines().map(ending).collect()
            }
        }
    }

    fn script(self, channel: &Channel, value: &str, calls: usize) -> Command {
        let (program, script) = match self {
            Self::Grpcio => ("python3", "tests/it/grpcio_ask.py"),
            Self::GrpcJs => ("node", "tests/it/grpc_js_ask.js"),
            Self::Grpcurl => panic!("it is no script"),
        };
        let message = request("d", vec![descriptor(&[("k", value)])]).encode_to_vec();
        let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new(tool(program));
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script));
        command.args([PATH, &channel.target, &hex, &calls.to_string()]);
        if let Some(authority) = &channel.authority {
            command.args(["--authority", authority]);
        }
        if let Some(ca) = &channel.ca {
            command.args(["--ca", ca, "--server-name", SERVER_NAME]);
        }
        if channel.is_gzip {
            command.arg("--gzip");
        }
        command
    }

    /// Whether its first message on such a channel is compressed.
    pub fn compresses(self, channel: &Channel, value: &str) -> bool {
        is_first_message_compressed(|target| {
            let channel = Channel {
                target,
                ..channel.clone()
            };
            // It gets no answer and reports that.
            Process::start(self.script(&channel, value, 1).stdout(Stdio::null()))
        })
    }
}

/// Whether the first message to a server is compressed; the server reads nothing else. `start` gets the server's host
/// and port.
pub fn is_first_message_compressed<T>(start: impl FnOnce(String) -> T) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = start(listener.local_addr().unwrap().to_string());
    let mut client = greeted(listener.accept().unwrap().0);
    let message = client.read_until(DATA).expect("a message comes");
    message[0] == 1
}

fn greeted(mut stream: TcpStream) -> Frames {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; PREFACE.len()]).unwrap();
    for flags in [0, 1] {
        stream.write_all(&frame(SETTINGS, flags, 0, &[])).unwrap();
    }
    Frames(stream)
}

fn ending(line: &str) -> String {
    let Some(hex) = line.strip_prefix("OK ") else {
        return line.to_owned();
    };
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let bytes: Vec<_> = (0..hex.len()).step_by(2).map(byte).collect();
    let reply = RateLimitResponse::decode(&bytes[..]).unwrap();
    format!("{:?}", reply.overall_code())
}

fn grpcurl(channel: &Channel, value: &str) -> String {
    let request = serde_json::json!({
        "domain": "d",
        "descriptors": [{ "entries": [{ "key": "k", "value": value }] }],
    });
    let mut command = Command::new(tool("grpcurl"));
    command.args(["-connect-timeout", "30", "-max-time", "30"]);
    match &channel.ca {
        Some(ca) => command.args(["-cacert", ca, "-servername", SERVER_NAME]),
        None => command.arg("-plaintext"),
    };
    let target = match channel.target.strip_prefix("unix:") {
        Some(path) => {
            command.arg("-unix");
            path
        }
        None => &channel.target,
    };
    let output = finish(command.args(["-d", &request.to_string(), target, &PATH[1..]]));
    if !output.status.success() {
        return String::from_utf8_lossy(&output.stderr).into_owned();
    }
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let code = Code::from_str_name(reply["overallCode"].as_str().unwrap());
    format!("{:?}", code.unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transport {
    Tcp,
    Unix,
    Tls,
}

impl Transport {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Unix, Self::Tls];
}

/// A server with the rules [`RULES`] by default, and the channel to it.
#[derive(Debug)]
pub struct Served {
    pub server: Tollgate,
    pub channel: Channel,
    _folder: TempDir,
    _secret: Secret,
}

impl Served {
    #[track_caller]
    pub fn over(transport: Transport) -> Self {
        Self::with_rules(transport, RULES)
    }

    #[track_caller]
    pub fn with_rules(transport: Transport, rules: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("tollgate.sock").display().to_string();
        let authority = Authority::new("ours");
        let pair = authority.issue(SERVER_NAME);
        let secret = Secret::mount(&[
            ("tls.crt", &pair.certificate),
            ("tls.key", &pair.key),
            ("ca.crt", &authority.certificate),
        ]);
        let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| secret.at(name));
        let builder = tollgate::with_rules(rules);
        let server = match transport {
            Transport::Tcp => builder,
            Transport::Unix => builder.args(["--grpc-uds", &socket]),
            Transport::Tls => builder
                .args(["--grpc-tls", "--grpc-tls-cert", &certificate])
                .args(["--grpc-tls-key", &key]),
        }
        .start();
        let channel = Channel {
            target: match transport {
                Transport::Unix => format!("unix:{socket}"),
                Transport::Tcp | Transport::Tls => server.grpc.to_string(),
            },
            ca: (transport == Transport::Tls).then_some(ca),
            ..Channel::default()
        };
        Self {
            server,
            channel,
            _folder: folder,
            _secret: secret,
        }
    }
}
