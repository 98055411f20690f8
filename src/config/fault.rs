//! All that can be wrong with rules, and the texts that say so.

use std::{
    fmt::{self, Write as _},
    io,
    path::Path,
};

use crate::{
    core::{kind::Algorithm, refusal::MAX_BODY},
    foundation::{
        megabytes::Megabytes,
        printable::{file_name, on_one_line},
    },
};

use super::position::Position;

/// A file larger than this is not read, nor are files that are larger together: 100,000 rules take about a tenth of it.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 20;

/// No more files than this are read: each domain can have one, and a walk over strange links ends.
pub(crate) const MAX_FILES: usize = 10_000;

/// A problem with the rules, and its position.
#[derive(Debug)]
pub struct Problem {
    pub file: String,
    /// `None` for a problem without a position, such as a file that cannot be read.
    pub position: Option<Position>,
    /// The domain and the joined texts of the nodes on the path; empty outside of a domain.
    pub path: String,
    pub fault: Fault,
}

impl Problem {
    /// How many problems it stands for.
    pub(crate) fn count(&self) -> usize {
        match self.fault {
            Fault::More { count, .. } => count,
            _ => 1,
        }
    }

    /// `shop.yaml:4:13`, or the name of the file alone.
    pub(crate) fn place(&self) -> String {
        let mut place = file_name(&self.file);
        if let Some(Position { line, column }) = self.position {
            let _ = write!(place, ":{line}:{column}");
        }
        place
    }
}

impl fmt::Display for Problem {
    /// `shop.yaml:4:13: shop.remote_address: invalid rate limit unit 'fortnight' (…)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())?;
        if !self.path.is_empty() {
            write!(f, ": {}", on_one_line(&self.path))?;
        }
        if self.fault.level() != FaultLevel::Error && !matches!(self.fault, Fault::More { .. }) {
            write!(f, ": {}", self.fault.level().name())?;
        }
        write!(f, ": {}", on_one_line(&self.fault.to_string()))
    }
}

/// The kind of problem. Texts say what the reference's do, and name the fix.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    #[error("no rule files found")]
    NoFiles,
    #[error("is larger than {MAX_FILE_BYTES} bytes; split it and turn on merging of domains")]
    TooLarge,
    #[error("the rule files are larger than {MAX_FILE_BYTES} bytes together")]
    TooLargeTogether,
    #[error(
        "to load these rules takes about {needed}, and the process takes {taken} of {total} already: raise its memory \
             limit, or set --max-memory-bytes"
    )]
    NoMemory {
        needed: Megabytes,
        taken: Megabytes,
        total: Megabytes,
    },
    #[error(
        "is no text of rules: it consists of brackets, commas and short lines, more than one in four bytes"
    )]
    TooDense,
    #[error("there are more than {MAX_FILES} rule files")]
    TooManyFiles,
    #[error("is no regular file, and no other is read; `tollgate check -` reads standard input")]
    NotRegular,
    #[error("is a resource of type '{0}'; rules are ratelimit.config.ratelimit.v3.RateLimitConfig")]
    OtherType(String),
    #[error("is not a readable RateLimitConfig: {0}")]
    Undecodable(#[source] prost::DecodeError),
    #[error("a push without rules is refused (--xds-empty-push keep)")]
    EmptyPush,
    #[error(
        "domain '{0}' has lost all its rules, so nothing in it would be limited; write a rule, remove the domain, or \
             allow it (--empty-reload allow)"
    )]
    RulesLost(String),
    #[error("the byte 0x{0:02X} is not UTF-8 text; save the file as UTF-8")]
    NotText(u8),
    #[error("UTF-16 text; save it as UTF-8")]
    Utf16,
    #[error("the file is empty; write `domain: NAME` and `descriptors:`, or remove it")]
    EmptyFile,
    #[error("invalid YAML: {0}")]
    Syntax(String),
    #[error("a tab; YAML indents with blanks")]
    Tab,
    #[error("a text cannot begin with `{0}`; put it in quotes")]
    NeedsQuotes(char),
    #[error("this `{token}` is not closed")]
    Unclosed { token: char },
    #[error("`{text}` has no {lacks}; write `{fixed}`")]
    NoColon {
        text: String,
        lacks: &'static str,
        fixed: String,
    },
    #[error("a second `: ` in one line; begin a new line, or put a value that holds it in quotes")]
    SecondColon,
    #[error("this line is indented deeper than the one above, which already has a value")]
    TooFarIn,
    #[error("this line is indented as no line above it")]
    OtherIndent,
    #[error(
        "the document has ended before this text, which would not be read; indent it as the lines above it, or begin a \
             new document with `---`"
    )]
    AfterDocument,
    #[error("{key} must be {expected}, not {found}{}", after_semicolon(.fix))]
    WrongType {
        key: String,
        expected: &'static str,
        found: String,
        fix: String,
    },
    #[error("tags such as `!include` are not supported")]
    Tag,
    #[error("`!!binary` must be UTF-8 text in base64; write the text itself")]
    BadBinary,
    #[error("a key must be a text, not {0}; put it in quotes")]
    KeyNotText(String),
    #[error("unknown key '{key}' (expected {expected})")]
    UnknownKey { key: String, expected: String },
    #[error("`<<` merges a map or a list of maps, not {0}; write an alias, such as `*name`")]
    Unmergeable(String),
    #[error("{found}; {fix}")]
    OddKey { found: String, fix: &'static str },
    #[error("an item of this list must be a map, not {found}{}", after_semicolon(.fix))]
    ListItem { found: String, fix: String },
    #[error(
        "{0} is not a string, a whole number, a boolean or null; put it in quotes if it is a text"
    )]
    OddScalar(String),
    #[error("config file cannot have empty domain; write `domain: NAME` at the top")]
    EmptyDomain,
    #[error(
        "duplicate domain '{domain}' in config file, already defined in {first}; put all its descriptors \
             under one `domain` or turn on merging of domains"
    )]
    DuplicateDomain { domain: String, first: String },
    #[error("descriptor has empty key; write `key: NAME`")]
    EmptyKey,
    #[error(
        "keys that begin with `tollgate.` are what Envoy asks of tollgate at the end of a stream, such as \
             `tollgate.release`; give '{0}' another name"
    )]
    OrderKey(String),
    #[error("duplicate descriptor composite key '{path}', already defined at {first}")]
    Duplicate { path: String, first: String },
    #[error("`unit` is missing ({UNITS})")]
    NoUnit,
    #[error("invalid rate limit unit '{unit}'{}", instead(.meant.as_deref(), UNITS))]
    InvalidUnit { unit: String, meant: Option<String> },
    #[error("should not specify rate limit unit when unlimited; remove one of them")]
    UnlimitedUnit,
    #[error("should not have an empty replaces entry; write `- name: NAME`")]
    EmptyReplaces,
    #[error("replaces should not contain name of same descriptor")]
    ReplacesItself,
    #[error(
        "share_threshold can only be used with wildcard values (containing '*'), but found key '{0}'"
    )]
    ShareWithoutWildcard(String),
    #[error("`rate_limit` and `rate_limits` on one descriptor; put all limits into `rate_limits`")]
    BothForms,
    #[error(
        "`rate_limits` is empty; list at least one limit, or write `rate_limit: {{unlimited: true}}`"
    )]
    NoLimits,
    #[error("`unlimited` is not for a list of limits; write `rate_limit: {{unlimited: true}}`")]
    UnlimitedInList,
    #[error("`unit_multiplier` must be a whole number from 1 to 4294967295, not {0}")]
    InvalidMultiplier(String),
    #[error("a period of {multiplier} {unit}s is longer than 10,000 years")]
    PeriodTooLong { unit: &'static str, multiplier: u32 },
    #[error("{0} does not fit the reference's key format; use the native one")]
    NoReferenceKey(&'static str),
    #[error("`refusal` has no `body`; write `body: problem+json`, a text, or `none`")]
    NoBody,
    #[error(
        "unknown placeholder {{{name}}}{}",
        instead(.meant.as_deref(), PLACEHOLDERS)
    )]
    UnknownPlaceholder { name: String, meant: Option<String> },
    #[error(
        "this body is sent with every refusal, and can become {0} bytes long; {MAX_BODY} is the most"
    )]
    BodyTooLong(usize),
    #[error("the body would not be JSON: {0}; correct it, or its `content_type`")]
    BodyNotJson(String),
    #[error("a rule cannot set the header `{0}`; use another name")]
    HeaderName(String),
    #[error(
        "the value of the header `{0}` must be a text of printable ASCII; write numbers and booleans in quotes"
    )]
    HeaderValue(String),
    #[error("more than {0} headers; remove some")]
    TooManyHeaders(usize),
    #[error("two limits with a period of {0} and the same algorithm; keep the lower one")]
    SamePeriod(String),
    #[error("unknown {key} '{text}'{}", instead(*.meant, expected))]
    UnknownWord {
        key: &'static str,
        text: String,
        meant: Option<&'static str>,
        expected: &'static str,
    },
    #[error(
        "`local` shares each limit among the replicas, whose number is read from Redis: a replica that starts while \
             Redis is away admits one hit of each counter; set --replicas N, the number of replicas that run"
    )]
    UnknownReplicas,
    #[error(
        "`exact-leased` has no effect on counters in memory, where every decision is exact and needs no round trip; \
             remove it, or set --redis-url"
    )]
    NoSlices,
    #[error("`{key}` does not go with {with}; {fix}")]
    DoesNotGo {
        key: &'static str,
        with: &'static str,
        fix: &'static str,
    },
    #[error("`{key}` must be a whole number from {low} to {high}, not {text}")]
    OutOfRange {
        key: &'static str,
        low: u64,
        high: u64,
        text: String,
    },
    #[error(
        "`sliding_log` remembers every hit, {max} at most, and this limit admits {0}; use `sliding_window`",
        max = Algorithm::MAX_LOGGED
    )]
    LogTooLong(u64),
    #[error(
        "unknown time_zone '{name}'{}",
        instead(.meant.as_deref(), "an IANA name, such as Europe/Madrid or UTC")
    )]
    UnknownZone { name: String, meant: Option<String> },
    #[error("`calendar` needs a `time_zone`, such as Europe/Madrid or UTC")]
    NoZone,
    #[error(
        "`concurrency` needs a `ttl`, such as 2m: how long a request counts if its end is not heard of"
    )]
    NoTtl,
    #[error("`ttl` must be a number and a unit, such as 90s or 2m, not {0}")]
    UnreadableTtl(String),
    #[error("cannot read the limit '{text}'; {fix}")]
    ShortForm { text: String, fix: String },
    #[error(
        "this is a Kubernetes {0}: no rule file; keep it elsewhere, and mount a ConfigMap of rules as a folder"
    )]
    Kubernetes(String),
    #[error("this is an Envoy configuration: no rule file; `tollgate lint-envoy` reads it")]
    Envoy,

    /// Stands for the problems that are not listed.
    #[error("and {count} more {}s in this file", .level.name())]
    More { count: usize, level: FaultLevel },

    // From here on warnings: the reference accepts these silently.
    #[error("`{key}` means nothing here and is ignored; it belongs {belongs}")]
    Misplaced { key: String, belongs: &'static str },
    #[error("{0} would be part of the text; remove that, or put the text in quotes if it is meant")]
    OddValue(String),
    #[error("`{0}` is given twice; the last one counts")]
    Repeated(String),
    #[error("`requests_per_unit` is missing, so every request is refused; write it, 0 included")]
    NoRequestsPerUnit,
    #[error("0 rules: nothing in domain '{0}' is limited")]
    NoRules(String),
    #[error("`replaces` names '{0}', but no limit has that name")]
    ReplacesUnknown(String),
    #[error(
        "'{0}' and '{1}' replace each other: a request that matches both is not limited by either"
    )]
    ReplaceEachOther(String, String),
    #[error(
        "no limit, and no descriptors below: requests that end here pass; if that is meant, write \
             `rate_limit: {{unlimited: true}}`"
    )]
    NoLimitHere,
    #[error("never reached: '{0}' on the same level takes every value that this could match")]
    NeverReached(String),
    #[error(
        "{limit} never refuses a request that {stricter} would admit; remove it or correct one of them"
    )]
    NeverBinds { limit: String, stricter: String },
    #[error(
        "another limit is named '{name}', at {first}; give each its own name, or `replaces` drops both"
    )]
    NameTwice { name: String, first: String },
    #[error(
        "`ttl` is {0}: each end of a request that is not heard of takes a slot for that long; a ttl near the \
             longest request is best"
    )]
    LongTtl(String),
    #[error("{text} is an octal number and means {value}; write {fix}")]
    Octal {
        text: String,
        value: i128,
        fix: String,
    },

    #[error(
        "`{text}` looks like {kind}, but is matched as text: only `*` is special, and stands for any characters; {fix}"
    )]
    ForeignPattern {
        text: String,
        kind: &'static str,
        fix: String,
    },
    /// A warning where any text is valid, and an error elsewhere.
    #[error("`{text}` is a template that has not been rendered; {fix}")]
    Template {
        text: String,
        fix: &'static str,
        is_text: bool,
    },

    // From here on notes.
    #[error("`name` beside `domain` names the resource of a control plane; it means nothing here")]
    ResourceName,
}

/// How much a problem matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultLevel {
    /// The rules cannot be used.
    Error,
    /// The rules can be used, but are probably not as they were meant.
    Warning,
    /// Something that a reader may want to know.
    Note,
}

impl FaultLevel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl Fault {
    pub fn level(&self) -> FaultLevel {
        match self {
            Self::Misplaced { .. }
            | Self::OddValue(_)
            | Self::Repeated(_)
            | Self::NoRequestsPerUnit
            | Self::NoRules(_)
            | Self::ReplacesUnknown(_)
            | Self::ReplaceEachOther(..)
            | Self::NoLimitHere
            | Self::NeverReached(_)
            | Self::NeverBinds { .. }
            | Self::NameTwice { .. }
            | Self::UnknownReplicas
            | Self::LongTtl(_)
            | Self::ForeignPattern { .. }
            | Self::Template { is_text: true, .. }
            | Self::Octal { .. } => FaultLevel::Warning,
            Self::ResourceName | Self::NoSlices => FaultLevel::Note,
            Self::More { level, .. } => *level,
            _ => FaultLevel::Error,
        }
    }

    /// Whether the rules can be used despite this problem.
    pub fn is_warning(&self) -> bool {
        self.level() != FaultLevel::Error
    }
}

/// The units of a limit, as error texts list them.
const UNITS: &str = "second, minute, hour, day, week, month or year";

/// The placeholders of a body, as error texts list them.
const PLACEHOLDERS: &str = "{limit}, {rate}, {requests}, {period}, {retry_after}, {reset_after} or {status}; \
     for the text itself, write a blank after its brace";

/// A fix after a semicolon, if there is one.
fn after_semicolon(fix: &str) -> String {
    match fix {
        "" => String::new(),
        fix => format!("; {fix}"),
    }
}

/// The word that is probably meant, or else all that could be.
fn instead(meant: Option<&str>, all: &str) -> String {
    match meant {
        Some(meant) => format!("; did you mean `{meant}`?"),
        None => format!(" ({all})"),
    }
}

pub(super) fn unlocated(path: &Path, fault: Fault) -> Problem {
    Problem {
        file: path.display().to_string(),
        position: None,
        path: String::new(),
        fault,
    }
}
