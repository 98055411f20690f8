//! Error replies and broken connections → what is done about them.

use std::{fmt, io, time::Duration};

use bb8_redis::redis::{ServerError, Value};

use crate::{
    foundation::{
        backoff::{Backoff, BackoffWaits},
        causes::chain,
        random::between,
    },
    net::tls::failure::{TlsFailure, TlsSettingNames},
};

/// Why a node cannot be used for counting. The texts are for operators; they hold no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFailure {
    /// No server answers there, or the connection broke.
    Unreachable(String),
    /// It has not replied for too long.
    Silent,
    /// It is a replica: only its master counts.
    ReadOnly,
    /// It is still reading its data.
    Loading,
    /// It needs a password, and none is configured.
    NoAuth,
    /// It refuses the password.
    WrongPassword,
    /// It is a replica that lost its master.
    MasterDown,
    /// The cluster does not serve.
    ClusterDown,
    /// A script has run for so long that it answers no other command.
    Busy,
    /// It is a sentinel, which counts nothing.
    Sentinel,
    /// It ends each connection that has come up, for this reason.
    HangsUp(String),
    /// It answers a greeting with an error, in these words.
    Refuses(String),
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "not reachable ({why})"),
            Self::Silent => f.write_str("is silent"),
            Self::ReadOnly => f.write_str("is a replica (READONLY)"),
            Self::Loading => f.write_str("is still loading its data (LOADING)"),
            Self::NoAuth => f.write_str("wants a password (NOAUTH)"),
            Self::WrongPassword => f.write_str("refuses the password (WRONGPASS)"),
            Self::MasterDown => f.write_str("is a replica without its master (MASTERDOWN)"),
            Self::ClusterDown => f.write_str("the cluster does not serve (CLUSTERDOWN)"),
            Self::Busy => f.write_str("is busy with a script (BUSY)"),
            Self::Sentinel => f.write_str(
                "is a sentinel, not a Redis: write mymaster,host:port with --redis-type sentinel \
                 (REDIS_TYPE=SENTINEL), or redis+sentinel://host:port/mymaster",
            ),
            Self::HangsUp(why) => write!(f, "ends each connection ({why})"),
            Self::Refuses(words) => write!(f, "refuses this client: {words}"),
        }
    }
}

impl NodeFailure {
    /// The failure of a connection that has come up.
    pub(crate) fn after_coming_up(self) -> Self {
        match self {
            Self::Unreachable(why) => Self::HangsUp(why),
            failure => failure,
        }
    }

    /// The node failure in an error reply. `None` if the error concerns only its command; a node failure
    /// lasts for some time.
    pub(crate) fn of_reply(reply: &Value) -> Option<Self> {
        match Reaction::to(reply) {
            Some(Reaction::Lose(failure)) => Some(failure),
            _ => None,
        }
    }

    /// The node failure in the reply to a command that every server answers well, such as PING.
    pub(crate) fn of_greeting(reply: &Value) -> Option<Self> {
        let refused = || match reply {
            Value::ServerError(error) => Some(Self::Refuses(match advice(error) {
                Some(advice) => format!("{}; {advice}", words(error)),
                None => words(error),
            })),
            _ => None,
        };
        Self::of_reply(reply).or_else(refused)
    }

    /// The node failure of a connection that broke or did not come up.
    pub(crate) fn of_failure(error: &io::Error) -> Self {
        if let Some(failure) = TlsFailure::of(error) {
            return Self::Unreachable(failure.words(&TLS));
        }
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Silent,
            io::ErrorKind::UnexpectedEof => Self::Unreachable("the connection was closed".into()),
            _ => Self::Unreachable(chain(error)),
        }
    }
}

/// The handling of an error reply. Its command was not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// The command is sent to the server that the reply names, or to this one once more.
    SendOn,
    /// The script is sent again with its text.
    SendText,
    /// The command is refused, and the slots of the cluster are asked for: no server that is known owns this one.
    AskForSlots,
    /// The server is of no use for now: no request waits for it until the probe finds it well.
    Lose(NodeFailure),
    /// The command is refused, and the log says why.
    Refuse,
}

impl Reaction {
    /// The reaction to `reply`; `None` if it is no error.
    pub(crate) fn to(reply: &Value) -> Option<Self> {
        let Value::ServerError(error) = reply else {
            return None;
        };
        let is_about_a_slot = || {
            let details = error.details();
            details.is_some_and(|details| details.contains("slot not served"))
        };
        Some(match error.code() {
            "MOVED" | "ASK" | "TRYAGAIN" => Self::SendOn,
            "NOSCRIPT" => Self::SendText,
            // One slot without an owner is no reason to give up the others.
            "CLUSTERDOWN" if is_about_a_slot() => Self::AskForSlots,
            "CLUSTERDOWN" => Self::Lose(NodeFailure::ClusterDown),
            "READONLY" => Self::Lose(NodeFailure::ReadOnly),
            "LOADING" => Self::Lose(NodeFailure::Loading),
            "NOAUTH" => Self::Lose(NodeFailure::NoAuth),
            "WRONGPASS" => Self::Lose(NodeFailure::WrongPassword),
            "MASTERDOWN" => Self::Lose(NodeFailure::MasterDown),
            "BUSY" => Self::Lose(NodeFailure::Busy),
            // OOM, NOPERM, CROSSSLOT, and whatever else there is.
            _ => Self::Refuse,
        })
    }
}

/// The most characters of an error that are kept.
const MAX_WORDS: usize = 200;

/// The words of an error reply, for operators: its first line, of bounded length, and without what Redis repeats of the
/// command, which may be a key.
pub(crate) fn words(error: &ServerError) -> String {
    let details = error.details().unwrap_or_default();
    let line = details.lines().next().unwrap_or_default();
    let (line, _) = line
        .split_once(", with args beginning with")
        .unwrap_or((line, ""));
    let mut words = error.code().to_owned();
    if !line.is_empty() {
        words.push(' ');
        words.push_str(line);
    }
    let shown = |letter: char| {
        if letter.is_control() {
            '\u{fffd}'
        } else {
            letter
        }
    };
    words.chars().map(shown).take(MAX_WORDS).collect()
}

const TLS: TlsSettingNames = TlsSettingNames {
    certificate: "--redis-tls-cert and --redis-tls-key (REDIS_TLS_CLIENT_CERT, REDIS_TLS_CLIENT_KEY)",
    authorities: "--redis-tls-ca (REDIS_TLS_CACERT)",
    name: "--redis-tls-any-host (REDIS_TLS_SKIP_HOSTNAME_VERIFICATION)",
};

/// The setting that an error of a command asks for, if it is known.
pub(crate) fn advice(error: &ServerError) -> Option<&'static str> {
    let details = error.details().unwrap_or_default();
    if error.code() == "CROSSSLOT" {
        return Some(
            "this Redis is a cluster, where keys of different slots need requests of their own: set --redis-type \
             cluster (REDIS_TYPE=CLUSTER)",
        );
    }
    if details.contains("cluster support disabled") {
        return Some(
            "this Redis is no node of a cluster, which several addresses or --redis-type cluster (REDIS_TYPE=CLUSTER) \
             ask for",
        );
    }
    let mut words = details.split(['\'', '`', ',', ' ']).skip(2);
    let command = words.find(|word| !word.is_empty()).unwrap_or_default();
    (is_unknown_command(error) && command.eq_ignore_ascii_case("sentinel"))
        .then_some("it knows no SENTINEL command: is it a Redis and no sentinel?")
}

/// Whether the server has no command of this name.
pub(crate) fn is_unknown_command(error: &ServerError) -> bool {
    error.details().is_some_and(|details| {
        let begin = details.get(.."unknown command".len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case("unknown command"))
    })
}

/// The role in a reply to ROLE: `master`, `slave` or `sentinel`.
pub(crate) fn role(reply: &Value) -> Option<&str> {
    match reply.as_sequence()?.first()? {
        Value::BulkString(role) => str::from_utf8(role).ok(),
        _ => None,
    }
}

/// Whether a reply means that the command was not carried out and may be sent once more to the same
/// server.
pub(crate) fn is_try_again(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "TRYAGAIN")
}

const SETBACKS: Backoff = Backoff {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(10),
    factor: 2.0,
    // They are varied below, by less.
    jitter: false,
};

/// The pauses after connections in a row that came up and were of no use: a server that refuses clients or closes their
/// connections is not helped by more of them.
#[derive(Debug)]
pub(crate) struct SetbackPauses(BackoffWaits);

impl SetbackPauses {
    pub(crate) fn new() -> Self {
        Self(BackoffWaits::new(SETBACKS))
    }

    /// The pause after one more. It is varied, because all clients of the server have the same reason to come back.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let wait = self.0.next_wait();
        between(wait - wait / 4, wait)
    }
}
