//! All that can be wrong with rules, and the texts that say so.

use std::{
    fmt::{self, Write as _},
    io,
    path::Path,
};

use crate::{
    core::{kind::Algorithm, refusal::MAX_BODY},
    foundation::printable::{Megabytes, file_name, on_one_line},
};

use super::position::Position;

/// A file larger than this is not read, nor are files that are larger together: 100,000 rules take about a tenth of it.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 20;

/// No more files than this are read: each domain can have one, and a walk over strange links ends.
pub(crate) const MAX_FILES: usize = 10_000;

/// The bytes of all wildcards of one level, a short one, and a short text between two `*`, counted as 16: a search for
/// the dearest of them in a value of 64 kB takes about 1 ms, and a check compares each with those before it.
pub(super) const MAX_WILDCARD_BYTES: usize = 64 << 10;

/// The most limits of a descriptor, of which each takes a counter in each decision, and names that they replace.
pub(super) const MAX_LIMITS: usize = 1_000;

/// The most bytes of the paths of all rules: so many, and so many for each descriptor. A path repeats the one above it.
pub(super) const PATHS_BYTES: usize = 1 << 20;
pub(super) const PATH_BYTES: usize = 256;

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

    /// The text of its fault.
    pub(crate) fn message(&self) -> String {
        shortened(&self.fault.to_string())
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

/// The most bytes of a path or a message in a report: 100 problems of a rule whose key has 1 MiB would take 100 MiB.
const MAX_SHOWN_BYTES: usize = 4 << 10;

/// A text, or the beginning of a long one.
pub(super) fn shortened(text: &str) -> String {
    match text.len() {
        ..=MAX_SHOWN_BYTES => text.to_owned(),
        _ => format!("{}…", &text[..text.floor_char_boundary(MAX_SHOWN_BYTES)]),
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
        write!(f, ": {}", on_one_line(&self.message()))
    }
}

/// Makes [`Fault`] of a table: the level, the code and the text of each fault, which names the fix, and its facts.
macro_rules! faults {
    ($($level:ident $code:literal ($($text:tt)*) => $fault:ident $(($($fact:tt)*))? $({ $($field:tt)* })?;)*) => {
        /// The kind of problem. Texts say what the reference's do, and name the fix.
        #[derive(Debug, thiserror::Error)]
        pub enum Fault {
            $(#[error($($text)*)] $fault $(($($fact)*))? $({ $($field)* })?,)*
        }

        impl Fault {
            /// The level and the code of its row.
            fn row(&self) -> (FaultLevel, &'static str) {
                match self {
                    $(Self::$fault { .. } => (FaultLevel::$level, $code),)*
                }
            }
        }
    };
}

faults! {
    Error "unreadable" ("cannot be read: {0}")
    => Unreadable(#[source] io::Error);
    Error "no-files" ("no rule files found")
    => NoFiles;
    Error "too-large" ("is larger than {MAX_FILE_BYTES} bytes; split it and turn on merging of domains")
    => TooLarge;
    Error "too-large-together" ("the rule files are larger than {MAX_FILE_BYTES} bytes together")
    => TooLargeTogether;
    Error "no-memory" ("to load these rules takes about {needed}, and the process takes {taken} of {total} already: \
        raise its memory limit")
    => NoMemory { needed: Megabytes, taken: Megabytes, total: Megabytes };
    Error "too-dense" ("has too many brackets, commas, colons, dashes and short lines to be read at once; if these are \
        rules, write `descriptors` as lines that begin with `- `, which are read one after the other")
    => TooDense;
    Error "too-many-files" ("there are more than {MAX_FILES} rule files")
    => TooManyFiles;
    Error "not-regular" ("is no regular file, and no other is read; the name `-` is standard input")
    => NotRegular;
    Error "other-resource" ("is a resource of type '{0}'; rules are ratelimit.config.ratelimit.v3.RateLimitConfig")
    => OtherType(String);
    Error "undecodable" ("is not a readable RateLimitConfig: {0}")
    => Undecodable(#[source] prost::DecodeError);
    Error "empty-push" ("a push without rules is refused (--xds-empty-push keep)")
    => EmptyPush;
    Error "rules-lost" ("domain '{0}' has lost all its rules, so nothing in it would be limited; write a rule, \
        remove the domain, or allow it (--empty-reload allow)")
    => RulesLost(String);
    Error "not-utf8" ("the byte 0x{0:02X} is not UTF-8 text; save the file as UTF-8")
    => NotText(u8);
    Error "utf16" ("UTF-16 text; save it as UTF-8")
    => Utf16;
    Error "panicked" ("reading it ended in a panic, which the log tells; please report it")
    => Panicked;
    Error "empty-file" ("the file is empty; write `domain: NAME` and `descriptors:`, or remove it")
    => EmptyFile;
    Error "syntax" ("invalid YAML: {0}")
    => Syntax(String);
    Error "tab" ("a tab; YAML indents with blanks")
    => Tab;
    Error "needs-quotes" ("a text cannot begin with `{0}`; put it in quotes")
    => NeedsQuotes(char);
    Error "unclosed" ("this `{token}` is not closed")
    => Unclosed { token: char };
    Error "no-colon" ("`{0}` has no `: ` between a key and its value")
    => NoColon(String);
    Error "second-colon" ("a second `: ` in one line; begin a new line, or put a value that holds it in quotes")
    => SecondColon;
    Error "too-far-in" ("no key can be here: the line above has a value already, or lacks its `:`")
    => TooFarIn;
    Error "text-after-document" ("the document has ended before this text, which would not be read; indent it as \
        the lines above it, or begin a new document with `---`")
    => AfterDocument;
    Error "wrong-type" ("{key} must be {expected}, not {found}")
    => WrongType { key: String, expected: &'static str, found: String };
    Error "tag" ("tags such as `!include` are not supported, and `!!binary` must be UTF-8 text in base64")
    => Tag;
    Error "key-not-text" ("a key must be a text, not {0}; put it in quotes")
    => KeyNotText(String);
    Error "unknown-key" ("unknown key '{key}' (expected {expected})")
    => UnknownKey { key: String, expected: String };
    Error "unmergeable" ("`<<` merges a map or a list of maps, not {0}; write an alias, such as `*name`")
    => Unmergeable(String);
    Error "byte-order-mark" ("a byte order mark (U+FEFF) inside of the file; remove it")
    => ByteOrderMark;
    Error "not-a-map" ("an item of this list must be a map, such as `key: NAME`, not {0}")
    => ListItem(String);
    Error "odd-scalar" ("{0} is not a string, a whole number, a boolean or null; put it in quotes if it is a text")
    => OddScalar(String);
    Error "no-domain" ("config file cannot have empty domain; write `domain: NAME` at the top")
    => EmptyDomain;
    Error "duplicate-domain" ("duplicate domain '{domain}' in config file, already defined in {first}; put all its \
        descriptors under one `domain` or turn on merging of domains")
    => DuplicateDomain { domain: String, first: String };
    Error "no-key" ("descriptor has empty key; write `key: NAME`")
    => EmptyKey;
    Error "order-key" ("keys that begin with `tollgate.` are what Envoy asks of tollgate at the end of a stream, \
        such as `tollgate.release`; give '{0}' another name")
    => OrderKey(String);
    Error "duplicate-descriptor" ("duplicate descriptor composite key '{path}', already defined at {first}")
    => Duplicate { path: String, first: String };
    Error "long-paths" ("the domain, keys and values on the paths to the descriptors are longer than {PATH_BYTES} \
        bytes on average; write shorter ones")
    => LongPaths;
    Error "too-many-wildcards" ("the wildcards of this level are longer than {MAX_WILDCARD_BYTES} bytes together, \
        each, and each text between two `*`, counted as at least 16, and a request tries them in turn; write values \
        without `*`, or give some of them another `key`, or a key above them")
    => TooManyWildcards;
    Error "no-unit" ("`unit` is missing ({UNITS})")
    => NoUnit;
    Error "unknown-unit" ("invalid rate limit unit '{0}' ({UNITS})")
    => InvalidUnit(String);
    Error "unlimited-with-unit" ("should not specify rate limit unit when unlimited; remove one of them")
    => UnlimitedUnit;
    Error "empty-replaces" ("should not have an empty replaces entry; write `- name: NAME`")
    => EmptyReplaces;
    Error "replaces-itself" ("replaces should not contain name of same descriptor")
    => ReplacesItself;
    Error "share-without-wildcard" ("share_threshold can only be used with wildcard values (containing '*'), but \
        found key '{0}'")
    => ShareWithoutWildcard(String);
    Error "rate-limit-twice" ("`rate_limit` and `rate_limits` on one descriptor; put all limits into `rate_limits`")
    => BothForms;
    Error "empty-rate-limits" ("`rate_limits` is empty; list at least one limit, or write `rate_limit: {{unlimited: \
        true}}`")
    => NoLimits;
    Error "unlimited-in-list" ("`unlimited` is not for a list of limits; write `rate_limit: {{unlimited: true}}`")
    => UnlimitedInList;
    Error "invalid-multiplier" ("`unit_multiplier` must be a whole number from 1 to 4294967295, not {0}")
    => InvalidMultiplier(String);
    Error "period-too-long" ("a period of {multiplier} {unit}s is longer than 10,000 years")
    => PeriodTooLong { unit: &'static str, multiplier: u32 };
    Error "no-reference-key" ("{0} does not fit the reference's key format; use the native one")
    => NoReferenceKey(&'static str);
    Error "no-body" ("`refusal` has no `body`; write `body: problem+json`, a text, or `none`")
    => NoBody;
    Error "unknown-placeholder" ("unknown placeholder {{{0}}} ({PLACEHOLDERS})")
    => UnknownPlaceholder(String);
    Error "body-too-long" ("this body is sent with every refusal, and can become {0} bytes long; {MAX_BODY} is the \
        most")
    => BodyTooLong(usize);
    Error "body-not-json" ("the body would not be JSON: {0}; correct it, or its `content_type`")
    => BodyNotJson(String);
    Error "header-name" ("a rule cannot set the header `{0}`; use another name")
    => HeaderName(String);
    Error "header-value" ("the value of the header `{0}` must be a text of printable ASCII; write numbers and \
        booleans in quotes")
    => HeaderValue(String);
    Error "too-many-headers" ("more than {0} headers; remove some")
    => TooManyHeaders(usize);
    Error "too-many-limits" ("more than {MAX_LIMITS} limits on one descriptor; remove some")
    => TooManyLimits;
    Error "too-many-replaces" ("more than {MAX_LIMITS} names in `replaces` on one descriptor; remove some")
    => TooManyReplaces;
    Error "same-period" ("two limits with a period of {0} and the same algorithm; keep the lower one")
    => SamePeriod(String);
    Error "unknown-word" ("unknown {key} '{text}' ({expected})")
    => UnknownWord { key: &'static str, text: String, expected: String };
    Error "does-not-go-together" ("`{key}` does not go with {with}; {fix}")
    => DoesNotGo { key: &'static str, with: &'static str, fix: &'static str };
    Error "out-of-range" ("`{key}` must be a whole number from {low} to {high}, not {text}")
    => OutOfRange { key: &'static str, low: u64, high: u64, text: String };
    Error "log-too-long" ("`sliding_log` remembers every hit, {max} at most, and this limit admits {0}; use \
        `sliding_window`", max = Algorithm::MAX_LOGGED)
    => LogTooLong(u64);
    Error "unknown-time-zone" ("unknown time_zone '{0}' (an IANA name, such as Europe/Madrid or UTC)")
    => UnknownZone(String);
    Error "no-time-zone" ("`calendar` needs a `time_zone`, such as Europe/Madrid or UTC")
    => NoZone;
    Error "no-ttl" ("`concurrency` needs a `ttl`, such as 2m: how long a request counts if its end is not heard of")
    => NoTtl;
    Error "no-ttl" ("`ttl` must be a number and a unit, such as 90s or 2m, not {0}")
    => UnreadableTtl(String);
    Error "short-form" ("cannot read the limit '{0}'; {FORMS}")
    => ShortForm(String);
    Error "kubernetes" ("this is a Kubernetes {0}: no rule file; keep it elsewhere, and mount a ConfigMap of rules \
        as a folder")
    => Kubernetes(String);
    Error "envoy" ("this is an Envoy configuration: no rule file; `tollgate lint-envoy` reads it")
    => Envoy;
    // It stands for the problems that are not listed.
    Error "more" ("and {count} more {}s in this file", .level.name())
    => More { count: usize, level: FaultLevel };
    // A warning where any text is valid.
    Error "template" ("`{text}` is a template that has not been rendered; render it first, such as with `helm \
        template` or `envsubst`, and check the result")
    => Template { text: String, is_text: bool };

    Warning "unknown-replicas" ("`local` shares each limit among the replicas, whose number is read from Redis: a \
        replica that starts while Redis is away admits one hit of each counter; set --replicas N, the number of \
        replicas that run")
    => UnknownReplicas;
    Warning "misplaced-key" ("`{key}` means nothing here and is ignored; it belongs {belongs}")
    => Misplaced { key: String, belongs: &'static str };
    Warning "repeated-key" ("`{0}` is given twice; the last one counts")
    => Repeated(String);
    Warning "no-requests-per-unit" ("`requests_per_unit` is missing, so every request is refused; write it, 0 \
        included")
    => NoRequestsPerUnit;
    Warning "no-rules" ("0 rules: nothing in domain '{0}' is limited")
    => NoRules(String);
    Warning "replaces-unknown" ("`replaces` names '{0}', but no limit has that name")
    => ReplacesUnknown(String);
    Warning "replace-each-other" ("'{0}' and '{1}' replace each other: a request that matches both is not limited \
        by either")
    => ReplaceEachOther(String, String);
    Warning "no-limit" ("no limit, and no descriptors below: requests that end here pass; if that is meant, write \
        `rate_limit: {{unlimited: true}}`")
    => NoLimitHere;
    Warning "never-reached" ("never reached: '{0}' on the same level takes every value that this could match")
    => NeverReached(String);
    Warning "long-ttl" ("`ttl` is {0}: each end of a request that is not heard of takes a slot for that long; a ttl \
        near the longest request is best")
    => LongTtl(String);
    Warning "foreign-pattern" ("`{text}` looks like {kind}, but is matched as text: only `*` is special, and stands \
        for any characters; {fix}")
    => ForeignPattern { text: String, kind: &'static str, fix: String };

    Note "no-slices" ("`exact-leased` has no effect on counters in memory, where every decision is exact and needs \
        no round trip; remove it, or set --redis-url")
    => NoSlices;
    Note "resource-name" ("`name` beside `domain` names the resource of a control plane; it means nothing here")
    => ResourceName;
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
    /// Its short name, for programs that read reports: stable across versions.
    pub fn code(&self) -> &'static str {
        self.row().1
    }

    /// How much it matters.
    pub fn level(&self) -> FaultLevel {
        match self {
            Self::More { level, .. } => *level,
            Self::Template { is_text: true, .. } => FaultLevel::Warning,
            _ => self.row().0,
        }
    }

    /// Whether the rules can be used despite this problem.
    pub fn is_warning(&self) -> bool {
        self.level() != FaultLevel::Error
    }

    /// Whether there was nothing to check, or not all of it was read.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(
            self,
            Self::Unreadable(_)
                | Self::NoFiles
                | Self::TooLarge
                | Self::TooLargeTogether
                | Self::NoMemory { .. }
                | Self::TooManyFiles
                | Self::NotRegular
        )
    }
}

/// The units of a limit, as error texts list them.
const UNITS: &str = "second, minute, hour, day, week, month or year";

/// The placeholders of a body, as error texts list them.
const PLACEHOLDERS: &str = "{limit}, {rate}, {requests}, {period}, {retry_after}, {reset_after} or {status}; \
     for the text itself, write a blank after its brace";

/// How to write a limit, as error texts say.
const FORMS: &str = "write NUMBER/UNIT or NUMBER/COUNTunit, with a COUNT from 1 on, such as 5000/day, 1.5M/day or \
     300/30m (k, M, G; s, sec, second; m, min, minute; h, hr, hour; d, day; w, wk, week; mo, month; y, yr, year; \
     plurals too)";

pub(super) fn unlocated(path: &Path, fault: Fault) -> Problem {
    Problem {
        file: path.display().to_string(),
        position: None,
        path: String::new(),
        fault,
    }
}
