//! The script that looks before it adds, as one atomic step: its command and its reply. Token buckets and other
//! algorithms that need it are in `step.lua`.
//!
//! `step.lua` reads the same list of fields and the same letters; a test here holds both together.

use std::{sync::LazyLock, time::Duration};

use bb8_redis::redis::{self, Value};

use super::packed::{CommandWriter, PackedCommands};
use crate::{
    core::{
        counter::{
            BucketPlace, Charge, CounterKind, CounterState, Enforcement, Increment, IncrementSpec,
            Operation, Reservation, ResetTimes,
        },
        window::Timestamp,
    },
    store::contract::StoreError,
};

/// The text of the script.
const STEP: &str = include_str!("step.lua");

/// Its digest for EVALSHA.
static STEP_SHA: LazyLock<String> =
    LazyLock::new(|| redis::Script::new(STEP).get_hash().to_owned());

/// How far the clocks of replicas may differ where each counts by its own: a day, as in `step.lua`,
/// which is more than the offset of any time zone from UTC.
pub(crate) const MAX_SKEW: Duration = Duration::from_secs(24 * 60 * 60);

/// The fields of each increment, in the order in which they are sent.
const FIELDS: [&str; 8] = [
    "algorithm",
    "operation",
    "enforcement",
    "descriptor",
    "hits",
    "limit",
    "period",
    "extra",
];

/// The script returns this many numbers for each counter.
const NUMBERS_OF_COUNTER: usize = 4;

const fn operation_letter(operation: Operation) -> &'static [u8] {
    match operation {
        Operation::Look => b"n",
        Operation::Add(Charge::Always) => b"a",
        Operation::Add(Charge::Within) => b"w",
        Operation::Add(Charge::Admitted) => b"m",
        Operation::Add(Charge::Stopping) => b"s",
        Operation::GiveBack => b"b",
        Operation::Reset => b"z",
    }
}

const fn enforcement_letter(enforcement: Enforcement) -> &'static [u8] {
    match enforcement {
        Enforcement::Refuses => b"r",
        Enforcement::Quota => b"q",
        Enforcement::Silent => b"-",
    }
}

/// The command that loads the script into a server.
pub(crate) fn load_step() -> PackedCommands {
    PackedCommands::one(&[b"SCRIPT", b"LOAD", STEP.as_bytes()])
}

/// Adds to `again` the command of `packed` at `command`, an EVALSHA, with the text of the script in the place of its
/// digest. A server that runs it knows the script from then on.
pub(crate) fn push_with_text(again: &mut PackedCommands, packed: &PackedCommands, command: usize) {
    again.copy_with_head(packed, command, [b"EVAL", STEP.as_bytes()]);
}

/// How many words the command for `increments` has: the name, the digest, the number of keys, the keys, the
/// time, the fields, and the moment that few requests have.
pub(crate) const fn words(increments: usize, ends: Option<Timestamp>) -> usize {
    4 + increments * (1 + FIELDS.len()) + ends.is_some() as usize
}

/// Writes all before the keys.
pub(crate) fn begin(script: &mut CommandWriter<'_>, increments: usize) {
    script
        .word(b"EVALSHA")
        .word(STEP_SHA.as_bytes())
        .number(increments);
}

/// Writes the [`FIELDS`] of `increment`; `ttl_secs` is how long the counter of a window may live.
pub(crate) fn write_fields(
    script: &mut CommandWriter<'_>,
    increment: &Increment<'_>,
    ttl_secs: impl FnOnce() -> u64,
) {
    // Every field is named, so that the compiler asks here about a new one.
    let IncrementSpec {
        descriptor_bytes: _,
        operation,
        hits: _,
        limit,
        method,
        enforcement,
        on_loss: _,
        descriptor,
        domain: _,
        rule: _,
        is_per_second: _,
        is_sliced: _,
        adds_first: _,
        period_millis,
        expires_at: _,
        reservation,
    } = increment.spec;
    script
        .word(&[method.facts().letter])
        .word(operation_letter(operation))
        .word(enforcement_letter(enforcement))
        .number(descriptor)
        .number(increment.signed())
        .number(limit)
        .number(period_millis);
    match (method, reservation) {
        (CounterKind::Window, _) => script.number(ttl_secs()),
        (CounterKind::TokenBucket { .. }, Reservation::Begins) => {
            script.word(format!("{}:0", method.argument()).as_bytes())
        }
        (_, Reservation::Ends { hits, place }) => {
            let BucketPlace { era, drained } = place;
            script.word(format!("{}:{hits}:{era}:{drained}", method.argument()).as_bytes())
        }
        // Redis stores a number of 64 bits with a sign in 9 bytes.
        (other, _) => script.number(other.argument().cast_signed()),
    };
}

/// Writes, after the fields of the last increment, until when the hits may be charged.
pub(crate) fn write_end(script: &mut CommandWriter<'_>, ends: Option<Timestamp>) {
    if let Some(ends) = ends {
        script.number(ends.millis());
    }
}

/// The time of the server if the script refused hits whose caller had left by it.
pub(crate) fn refused_at(reply: &Value) -> Option<Timestamp> {
    match reply {
        Value::Array(reply) => match reply[..] {
            [Value::Int(at), _] => u64::try_from(at).ok().map(Timestamp::from_millis),
            _ => None,
        },
        _ => None,
    }
}

/// The script's reply for the counter at `index`.
pub(crate) fn counter_state(
    reply: &[Value],
    index: usize,
    has_window: bool,
) -> Result<CounterState, StoreError> {
    if reply.len() == 2 {
        return Err(StoreError::TimedOutUnsent);
    }
    let [held, is_charged, resets_in, retry_in] = reply
        .get(NUMBERS_OF_COUNTER * index..)
        .and_then(|reply| reply.first_chunk())
        .ok_or(StoreError::Refused)?;
    let number = |reply: &Value| match reply {
        Value::Int(number) => Ok(*number),
        _ => Err(StoreError::Refused),
    };
    let (is_charged, place) = match is_charged {
        Value::BulkString(text) => (true, place(text).ok_or(StoreError::Refused)?),
        other => (number(other)? == 1, BucketPlace::default()),
    };
    Ok(CounterState {
        is_charged,
        place,
        ends: if has_window {
            None
        } else {
            Some(ResetTimes {
                resets_in: u64::try_from(number(resets_in)?).unwrap_or(0),
                retry_in: u64::try_from(number(retry_in)?).ok(),
            })
        },
        ..CounterState::from(count(held)?)
    })
}

/// The place of a reservation, as the script writes it.
fn place(text: &[u8]) -> Option<BucketPlace> {
    let (era, drained) = str::from_utf8(text).ok()?.split_once(':')?;
    Some(BucketPlace {
        era: era.parse().ok()?,
        drained: drained.parse().ok()?,
    })
}

/// How many counters the script dropped because they were too far ahead of the clock; `None` if the
/// reply is not one of the script, or if there were none.
pub(crate) fn reset_counters(reply: &Value) -> Option<u64> {
    match reply {
        Value::Array(reply) if reply.len() % NUMBERS_OF_COUNTER == 1 => {
            reply.last().and_then(|number| count(number).ok())
        }
        _ => None,
    }
}

/// The count in a reply. Earlier versions left counts below zero, which are read as 0.
pub(crate) fn count(reply: &Value) -> Result<u64, StoreError> {
    let unsigned = |count: i64| u64::try_from(count).unwrap_or(0);
    match reply {
        Value::Nil => Ok(0),
        Value::Int(count) => Ok(unsigned(*count)),
        Value::BulkString(_) => redis::from_redis_value(reply.clone())
            .map(unsigned)
            .map_err(|_| StoreError::Refused),
        // The counter is as full as Redis can hold, which is above every limit.
        Value::ServerError(error)
            if error
                .details()
                .is_some_and(|text| text.contains("overflow")) =>
        {
            Ok(unsigned(i64::MAX))
        }
        _ => Err(StoreError::Refused),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::core::{
        counter::{Batch, IncrementSpec},
        kind::Algorithm,
        limit::Limit,
        request::Hits,
        window::{Timestamp, Unit},
    };

    /// The texts between `before` and `after` in the script.
    fn found<'t>(before: &str, after: &str) -> BTreeSet<&'t str> {
        let rest = STEP.split(before).skip(1);
        rest.map(|rest| rest.split(after).next().unwrap()).collect()
    }

    fn texts<'t>(letters: &[&'t [u8]]) -> BTreeSet<&'t str> {
        let texts = letters.iter().map(|letter| str::from_utf8(letter).unwrap());
        texts.collect()
    }

    #[test]
    fn the_script_reads_the_fields_in_the_order_in_which_they_are_sent() {
        let (_, counter) = STEP.split_once("  local c = {\n").unwrap();
        let (counter, _) = counter.split_once("  }\n").unwrap();
        let mut read = Vec::new();
        for line in counter.lines().filter(|line| line.contains("ARGV[")) {
            let (name, rest) = line.trim().split_once(" = ").unwrap();
            let (_, index) = rest.split_once("ARGV[at").unwrap();
            let (index, _) = index.split_once(']').unwrap();
            let index: usize = index.trim_start_matches(" + ").parse().unwrap_or(0);
            read.push((index, name));
        }
        // These are read as a text, too.
        read.retain(|(_, name)| !name.ends_with("_text"));
        let sent: Vec<_> = FIELDS.into_iter().enumerate().collect();
        assert_eq!(read, sent);
        assert!(STEP.contains(&format!("local FIELDS = {}\n", FIELDS.len())));
        // Nothing follows the fields but this moment.
        assert!(STEP.contains("local ends = tonumber(ARGV[2 + FIELDS * #KEYS] or '0')\n"));
        assert_eq!(
            STEP.matches("reply[#reply + 1] = ").count(),
            NUMBERS_OF_COUNTER + 1
        );
    }

    #[test]
    fn a_command_has_as_many_words_as_it_says() {
        let mut batch = Batch::default();
        let now = Timestamp::from_secs(0);
        let bucket = Algorithm::TokenBucket { burst: 9 };
        for (algorithm, extra) in [(Algorithm::FixedWindow, 5), (bucket, 7)] {
            let limit = Limit {
                algorithm,
                ..Limit::fixed(7, Unit::Minute)
            };
            let hits = IncrementSpec {
                descriptor: 3,
                ..Hits::give_back(2).into()
            };
            batch.push_value(b"v", &limit, now, hits);
            let increment = batch.increment(batch.len() - 1);
            let write = |ends| {
                let mut packed = PackedCommands::default();
                let mut script = packed.command(words(1, ends));
                begin(&mut script, 1);
                script.words(&[increment.key]).number(-1);
                write_fields(&mut script, &increment, || 5);
                write_end(&mut script, ends);
                drop(script);
                let text = str::from_utf8(packed.bytes()).unwrap().to_owned();
                let (count, rest) = text.split_once("\r\n").unwrap();
                let sent: Vec<_> = rest.split("\r\n").skip(1).step_by(2).collect();
                assert_eq!(count, format!("*{}", sent.len()));
                sent.into_iter().map(str::to_owned).collect::<Vec<_>>()
            };
            let sent = write(None);
            let leased = write(Some(Timestamp::from_millis(90)));
            assert_eq!(leased.split_last(), Some((&"90".to_owned(), &sent[..])));
            let letter = char::from(increment.method.facts().letter).to_string();
            let limit = increment.limit.to_string();
            let extra = extra.to_string();
            let fields = [&*letter, "b", "r", "3", "-2", &limit, "60000", &extra];
            assert_eq!(sent[sent.len() - FIELDS.len()..], fields);
        }
    }

    #[test]
    fn the_script_knows_the_letters_that_are_sent() {
        let letters: Vec<_> = CounterKind::all()
            .map(|kind| [kind.facts().letter])
            .collect();
        let letters: Vec<_> = letters.iter().map(|letter| &letter[..]).collect();
        assert_eq!(found("\nfunction algorithms.", "()"), texts(&letters));

        let stopping = Operation::Add(Charge::Stopping);
        let operations = [
            Operation::Look,
            Operation::Add(Charge::Always),
            Operation::Add(Charge::Within),
            Operation::Add(Charge::Admitted),
            Operation::Reset,
        ];
        let mut compared = found("c.operation == '", "'");
        compared.extend(found("c.operation ~= '", "'"));
        let mut sent = texts(&operations.map(operation_letter));
        assert!(!sent.contains("s"));
        sent.extend(texts(&[operation_letter(stopping)]));
        assert_eq!(compared, sent);
        // Everything else is charged.
        assert!(compared.is_disjoint(&texts(&[operation_letter(Operation::GiveBack)])));

        let [refuses, quota, silent] = [
            Enforcement::Refuses,
            Enforcement::Quota,
            Enforcement::Silent,
        ]
        .map(enforcement_letter);
        // Everything else is silent.
        let compared = found("c.enforcement == '", "'");
        assert_eq!(compared, texts(&[refuses, quota]));
        assert!(compared.is_disjoint(&texts(&[silent])));
    }

    #[test]
    fn the_step_allows_for_the_same_skew() {
        assert!(STEP.contains("local SKEW = 24 * 60 * 60 * 1000\n"));
        assert_eq!(MAX_SKEW.as_millis(), 24 * 60 * 60 * 1000);
    }
}
