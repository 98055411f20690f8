//! Keys that differ where counters do, and batches of increments.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::{key::MAX_IDENTITY_BYTES, *};
use crate::core::{
    kind::{Algorithm, Halves},
    limit::{Limit, OnStoreLoss},
    request::{Entry, Hits},
    window::{Period, Timestamp, Unit, window},
};

type Values = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>, bool)>);

fn identity(values: &Values) -> Identity {
    identity_in(KeyFormat::Native, values)
}

fn identity_in(format: KeyFormat, (domain, entries): &Values) -> Identity {
    let mut identity = Identity::new(format);
    let shared: Vec<_> = entries
        .iter()
        .enumerate()
        .filter(|(_, (_, _, is_shared))| *is_shared)
        .map(|(index, (_, value, _))| (index, value.as_slice()))
        .collect();
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value, is_shared)| Entry {
            key,
            value: if *is_shared { b"" } else { value },
        })
        .collect();
    identity.set(domain, &entries, &shared);
    identity
}

fn key(values: &Values, period: Period, now: Timestamp) -> Vec<u8> {
    key_of(&identity(values), period, now)
}

fn key_of(identity: &Identity, period: Period, now: Timestamp) -> Vec<u8> {
    let mut batch = Batch::default();
    let limit = Limit::fixed(1, period);
    batch.push(identity, &limit, now, Hits::ONE);
    batch.iter().next().unwrap().key.to_vec()
}

/// Decodes an identity that was not replaced by a digest.
fn decode(mut text: &[u8]) -> Option<Values> {
    let mut next = || {
        let digits = text.iter().position(|byte| !byte.is_ascii_digit())?;
        let length: usize = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
        let is_shared = text[digits] == b'*';
        let end = digits + 1 + length;
        let part = text[digits + 1..end].to_vec();
        text = &text[end..];
        Some((part, is_shared))
    };
    let (domain, _) = next()?;
    let mut entries = Vec::new();
    while let Some((key, _)) = next() {
        let (value, is_shared) = next()?;
        entries.push((key, value, is_shared));
    }
    Some((domain, entries))
}

fn simple(domain: &str, entries: &[(&str, &str)]) -> Values {
    let entries = entries
        .iter()
        .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec(), false));
    (domain.as_bytes().to_vec(), entries.collect())
}

#[test]
fn a_key_reads_as_documented() {
    let values = simple("shop", &[("remote_address", "127.0.0.1")]);
    let now = Timestamp::from_secs(1_795_230_000);
    assert_eq!(
        String::from_utf8(key(&values, Unit::Minute.into(), now)).unwrap(),
        "{4:shop14:remote_address9:127.0.0.1}60@29920500"
    );
}

#[track_caller]
fn check_reference(values: &Values, unit: Unit, expected: &str) {
    let identity = identity_in(KeyFormat::Reference, values);
    let key = key_of(&identity, unit.into(), Timestamp::from_secs(1234));
    assert_eq!(String::from_utf8_lossy(&key), expected);
}

#[test]
fn the_reference_s_keys_are_those_of_the_reference() {
    let plain = simple("domain", &[("key", "value")]);
    check_reference(&plain, Unit::Second, "domain_key_value_1234");
    let two = simple("domain", &[("key2", "value2"), ("subkey2", "subvalue2")]);
    let expected = "domain_key2_value2_subkey2_subvalue2_1200";
    check_reference(&two, Unit::Minute, expected);
    check_reference(&simple("d", &[("a", "")]), Unit::Second, "d_a__1234");
    let files = (b"files".to_vec(), b"files/*".to_vec(), true);
    let shared = (b"domain".to_vec(), vec![files]);
    check_reference(&shared, Unit::Second, "domain_files_files/*_1234");
}

#[test]
fn where_one_text_ends_and_the_next_begins_is_part_of_the_key() {
    let now = Timestamp::from_secs(0);
    let key = |domain, entries| key(&simple(domain, entries), Unit::Hour.into(), now);
    assert_ne!(key("d", &[("a", "b_c")]), key("d", &[("a_b", "c")]));
    assert_ne!(key("d_a", &[("b", "c")]), key("d", &[("a_b", "c")]));
    assert_ne!(
        key("d", &[("a", "b:1:c")]),
        key("d", &[("a", "b"), ("c", "")])
    );
}

#[test]
fn an_hour_and_a_day_that_begin_together_are_two_counters() {
    let values = simple("d", &[("a", "b")]);
    let midnight = Timestamp::from_secs(0);
    assert_ne!(
        key(&values, Unit::Hour.into(), midnight),
        key(&values, Unit::Day.into(), midnight)
    );
}

#[test]
fn a_long_identity_is_a_digest_of_all_of_it() {
    let long = |last: &str| simple("d", &[("a", &("x".repeat(1_000_000) + last))]);
    let digest = identity(&long("1")).text.to_vec();
    assert_eq!(digest.len(), "{#}".len() + 32);
    assert!(digest.starts_with(b"{#"));
    assert_ne!(digest, identity(&long("2")).text.to_vec());
}

#[test]
fn a_shared_pattern_is_not_the_value_that_reads_the_same() {
    let shared = (b"d".to_vec(), vec![(b"f".to_vec(), b"a/*".to_vec(), true)]);
    assert_ne!(
        *identity(&shared).text,
        *identity(&simple("d", &[("f", "a/*")])).text
    );
}

#[test]
fn an_identity_is_written_out_up_to_the_longest_that_may_be() {
    // Ten bytes and the value.
    for (value_bytes, text_bytes) in [
        (150, "{}".len() + MAX_IDENTITY_BYTES),
        (151, "{#}".len() + 32),
    ] {
        let values = simple("d", &[("a", &"x".repeat(value_bytes))]);
        assert_eq!(identity(&values).text.len(), text_bytes, "{value_bytes}");
    }
}

#[test]
fn lengths_are_written_in_as_many_digits_as_they_have() {
    for (length, text) in [
        (0, "0"),
        (9, "9"),
        (10, "10"),
        (42, "42"),
        (99, "99"),
        (100, "100"),
    ] {
        let domain = "x".repeat(length);
        let expected = format!("{{{text}:{domain}}}");
        assert_eq!(*identity(&simple(&domain, &[])).text, *expected.as_bytes());
    }
}

/// How the keys of windows of `multiplier` units end at each of `times`, in milliseconds.
#[track_caller]
fn check_windows(unit: Unit, multiplier: u32, times: &[(u64, &str)]) {
    let period = Period::new(unit, NonZeroU32::new(multiplier).unwrap()).unwrap();
    for &(millis, expected) in times {
        let key = key(&simple("d", &[]), period, Timestamp::from_millis(millis));
        assert_eq!(String::from_utf8_lossy(&key), format!("{{1:d}}{expected}"));
    }
}

#[test]
fn a_key_ends_with_the_length_and_the_number_of_its_window() {
    let minutes = &[
        (119_999, "60@1"),
        (120_000, "60@2"),
        (179_999, "60@2"),
        (180_000, "60@3"),
        (60_000, "60@1"),
    ];
    check_windows(Unit::Minute, 1, minutes);
    check_windows(Unit::Second, 2, &[(180_000, "2@90"), (181_999, "2@90")]);
    check_windows(
        Unit::Second,
        1_000,
        &[(999_999, "1000@0"), (1_000_000, "1000@1")],
    );
    for unit in Unit::ALL {
        let secs = unit.secs();
        let expected = [&*format!("{secs}@0"), &format!("{secs}@123456789")];
        let times = [0, 123_456_789 * 1000 * secs];
        check_windows(unit, 1, &[(times[0], expected[0]), (times[1], expected[1])]);
    }
}

#[test]
fn an_increment_carries_the_terms_of_its_limit() {
    use crate::core::calendar::{Calendar, Starts};

    let calendar = Calendar::new(Unit::Day, "Europe/Madrid", Starts::default()).unwrap();
    // The day on which the clocks are put forward: 2026-03-28T23:00Z to 22:00Z.
    let now = Timestamp::from_secs(1_774_785_600);
    let two_minutes = Period::new(Unit::Minute, NonZeroU32::new(2).unwrap()).unwrap();
    let bucket = Algorithm::TokenBucket { burst: 9 };
    let rate = CounterKind::TokenBucket {
        rate: Halves::new(7),
    };
    for (period, algorithm, limit, method, is_per_second, period_millis, expires_at) in [
        (
            Unit::Second.into(),
            Algorithm::FixedWindow,
            7,
            CounterKind::Window,
            true,
            1_000,
            1,
        ),
        (
            two_minutes,
            Algorithm::FixedWindow,
            7,
            CounterKind::Window,
            false,
            120_000,
            120,
        ),
        (
            Unit::Day.into(),
            Algorithm::Calendar(calendar.into()),
            7,
            CounterKind::Window,
            false,
            23 * 3_600_000,
            10 * 3_600,
        ),
        (
            two_minutes,
            Algorithm::FirstHit,
            7,
            CounterKind::FirstHit,
            false,
            120_000,
            120,
        ),
        (
            two_minutes,
            Algorithm::SlidingLog,
            7,
            CounterKind::SlidingLog,
            false,
            120_000,
            120,
        ),
        (Unit::Second.into(), bucket, 9, rate, true, 1_000, 1),
    ] {
        let limited = Limit {
            algorithm,
            ..Limit::fixed(7, period)
        };
        let mut batch = Batch::default();
        batch.push_value(b"v", &limited, now, Hits::add(3));
        let expected = IncrementSpec {
            descriptor_bytes: 11,
            operation: Operation::Add(Charge::Always),
            hits: 3,
            limit,
            method,
            enforcement: Enforcement::Refuses,
            on_loss: OnStoreLoss::Error,
            descriptor: 0,
            is_sliced: false,
            adds_first: false,
            is_per_second,
            period_millis,
            expires_at: Timestamp::from_secs(now.secs() + expires_at),
            // Processes of all versions have to agree on it.
            domain: 3_775_669_363,
            rule: 3_775_669_363,
            reservation: crate::core::counter::Reservation::None,
        };
        assert_eq!(*batch.spec(0), expected);
    }
}

#[test]
fn only_charges_that_depend_on_no_other_limit_stand_alone() {
    let stands_alone = |operation| {
        let plain = sample::spec(1, Hits::ONE);
        IncrementSpec { operation, ..plain }.stands_alone()
    };
    use Charge::{Admitted, Always, Stopping, Within};
    let adds = [Always, Within, Admitted, Stopping].map(Operation::Add);
    assert_eq!(adds.map(stands_alone), [true, true, false, false]);
    let others = [Operation::GiveBack, Operation::Reset, Operation::Look];
    assert_eq!(others.map(stands_alone), [true, true, false]);
}

#[test]
fn only_fixed_windows_that_count_every_hit_are_plain_numbers() {
    let plain = sample::spec(5, Hits::ONE);
    assert!(plain.is_plain());
    let others = [
        IncrementSpec {
            method: CounterKind::SlidingLog,
            ..plain
        },
        plain.asking(Hits::ONE, Charge::Admitted),
        plain.asking(Hits::give_back(1), Charge::Always),
        plain.look(),
    ];
    assert!(!others.iter().any(IncrementSpec::is_plain));
}

#[test]
fn hits_are_too_many_when_they_pass_the_limit_and_what_is_given_back_never_is() {
    // Of a limit of 10: the hits, what was held before, whether they are refused.
    for (hits, held, is_refused) in [
        (Hits::ONE, 9, false),
        (Hits::ONE, 10, true),
        (Hits::add(3), 7, false),
        (Hits::add(3), 8, true),
        (Hits::add(0), 10, false),
        (Hits::add(0), 11, true),
        (Hits::add(1), u64::MAX, true),
        (Hits::give_back(1), 11, false),
        (Hits::give_back(1), u64::MAX, false),
    ] {
        let mut batch = Batch::default();
        let limit = Limit::fixed(10, Unit::Day);
        batch.push_value(b"v", &limit, Timestamp::from_secs(0), hits);
        assert_eq!(batch.spec(0).refuses(held), is_refused, "{hits:?} {held}");
    }
}

/// A batch with one increment for each value, of as many hits as its place says.
fn batch_of(values: &[&[u8]]) -> Batch {
    let mut batch = Batch::default();
    for (hits, value) in (1..).zip(values) {
        let limit = Limit::fixed(1, Unit::Hour);
        batch.push_value(value, &limit, Timestamp::from_secs(0), Hits::add(hits));
    }
    batch
}

#[track_caller]
fn check_batch(batch: &Batch, expected: &[(&str, u64)]) {
    let all = batch.iter().map(|increment| {
        let key = String::from_utf8(increment.key.to_vec()).unwrap();
        (key, increment.added())
    });
    let expected: Vec<_> = expected
        .iter()
        .map(|(value, hits)| (format!("{{1:d1:k1:{value}}}3600@0"), *hits))
        .collect();
    assert_eq!(all.collect::<Vec<_>>(), expected);
    let (count, is_empty) = (expected.len(), expected.is_empty());
    assert_eq!((batch.len(), batch.is_empty()), (count, is_empty));
    for (index, (key, hits)) in expected.iter().enumerate() {
        assert_eq!(batch.key(index), key.as_bytes());
        assert_eq!(batch.spec(index).hits, *hits);
    }
}

#[test]
fn batches_are_put_together_in_order() {
    let (first, second) = (batch_of(&[b"a", b"b"]), batch_of(&[b"c", b"d", b"e"]));
    let mut all = Batch::default();
    check_batch(&all, &[]);
    all.append(&first);
    check_batch(&all, &[("a", 1), ("b", 2)]);
    all.append(&second);
    check_batch(&all, &[("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 3)]);
    assert_eq!(all.requests().collect::<Vec<_>>(), [0..2, 2..5]);
    all.clear();
    check_batch(&all, &[]);
    all.append_one(first.increment(1));
    all.append_range(&second, 1..3);
    check_batch(&all, &[("b", 2), ("d", 2), ("e", 3)]);
}

#[test]
fn only_added_hits_that_were_counted_are_returned() {
    let mut batch = Batch::default();
    let limit = Limit::fixed(1, Unit::Hour);
    for (value, hits) in [
        (b"a", Hits::add(3)),
        (b"b", Hits::add(4)),
        (b"c", Hits::add(0)),
        (b"d", Hits::give_back(5)),
    ] {
        batch.push_value(value, &limit, Timestamp::from_secs(0), hits);
    }
    let counts = [true, false, true, true].map(|is_charged| CounterState {
        is_charged,
        ..CounterState::from(9)
    });
    let returned = batch.returned(&counts);
    let found: Vec<_> = returned
        .iter()
        .map(|increment| (increment.key, increment.operation, increment.signed()))
        .collect();
    assert_eq!(found, [(batch.key(0), Operation::GiveBack, -3)]);
}

#[test]
fn slots_are_named_and_freed_but_not_returned() {
    let hour = Limit::fixed(5, Unit::Hour);
    let slots = Limit {
        algorithm: Algorithm::Concurrency,
        ..hour.clone()
    };
    let mut batch = Batch::default();
    for (limit, hits) in [
        (&slots, Hits::add(2)),
        (&hour, Hits::add(3)),
        (&slots, Hits::add(0)),
        (&slots, Hits::give_back(1)),
    ] {
        batch.push_value(b"v", limit, Timestamp::from_secs(0), hits);
    }
    batch.name_slots(9);
    let lease = Halves::new(9);
    let slots = CounterKind::Slots { lease };
    let methods: Vec<_> = batch.all_specs().map(|spec| spec.method).collect();
    assert_eq!(methods, [slots, CounterKind::Window, slots, slots]);
    let counts = [CounterState::from(4); 4];
    for (other, method, hits) in [
        (batch.freed(), slots, 2),
        (batch.returned(&counts), CounterKind::Window, 3),
    ] {
        let found: Vec<_> = other
            .all_specs()
            .map(|spec| (spec.operation, spec.method, spec.hits))
            .collect();
        assert_eq!(found, [(Operation::GiveBack, method, hits)]);
    }
}

#[test]
fn only_added_hits_take_slots() {
    let slots = CounterKind::Slots {
        lease: Halves::new(9),
    };
    let add = Operation::Add(Charge::Admitted);
    for (method, operation, hits, takes_slots) in [
        (slots, add, 1, true),
        (slots, add, 0, false),
        (slots, Operation::Look, 1, false),
        (slots, Operation::GiveBack, 1, false),
        (CounterKind::Window, add, 1, false),
    ] {
        let spec = IncrementSpec {
            method,
            operation,
            hits,
            ..sample::spec(5, Hits::ONE)
        };
        assert_eq!(spec.takes_slots(), takes_slots, "{spec:?}");
    }
}

#[test]
fn the_oldest_slot_is_as_old_as_its_time_is_over() {
    let slots = CounterKind::Slots {
        lease: Halves::new(0),
    };
    let ends = ResetTimes {
        resets_in: 57_500,
        retry_in: None,
    };
    for (method, after, ends, secs) in [
        (slots, 1, Some(ends), Some(2)),
        (slots, 0, Some(ends), None),
        (slots, 1, None, None),
        (CounterKind::SlidingLog, 1, Some(ends), None),
    ] {
        let spec = IncrementSpec {
            method,
            ..sample::spec(5, Hits::ONE)
        };
        let state = CounterState {
            ends,
            ..CounterState::from(after)
        };
        assert_eq!(state.oldest_secs(&spec), secs, "{state:?}");
    }
}

fn any_values() -> impl Strategy<Value = Values> {
    let text = || prop::collection::vec(any::<u8>(), 0..12);
    let entry = (text(), text(), any::<bool>());
    (text(), prop::collection::vec(entry, 0..4))
}

/// Texts that are easily confused: few letters, and the separators.
fn alike_values() -> impl Strategy<Value = Values> {
    let text = || prop::collection::vec(prop::sample::select(b"1:*_}".to_vec()), 0..4);
    let entry = (text(), text(), any::<bool>());
    (text(), prop::collection::vec(entry, 0..3))
}

fn any_period() -> impl Strategy<Value = Period> {
    (prop::sample::select(Unit::ALL.to_vec()), 1_u32..4)
        .prop_map(|(unit, n)| Period::new(unit, NonZeroU32::new(n).unwrap()).unwrap())
}

proptest! {
    #[test]
    fn an_identity_can_be_taken_apart_again(values in any_values()) {
        let text = identity(&values).text.to_vec();
        let inner = &text[1..text.len() - 1];
        if inner.first() != Some(&b'#') {
            prop_assert_eq!(decode(inner), Some(values));
        }
    }

    #[test]
    fn distinct_counters_have_distinct_keys(
        first in prop_oneof![any_values(), alike_values()],
        second in prop_oneof![any_values(), alike_values()],
        periods in (any_period(), any_period()),
        secs in (0_u64..1_000_000, 0_u64..1_000_000),
    ) {
        let now = (Timestamp::from_secs(secs.0), Timestamp::from_secs(secs.1));
        let same_counter = first == second
            && periods.0.secs() == periods.1.secs()
            && window(periods.0, now.0) == window(periods.1, now.1);
        let same_key = key(&first, periods.0, now.0) == key(&second, periods.1, now.1);
        prop_assert_eq!(same_counter, same_key);
    }
}

#[test]
fn hits_that_are_given_back_leave_no_debt() {
    for (count, hits, expected) in [
        (5, Hits::give_back(3), 2),
        (5, Hits::give_back(7), 0),
        (0, Hits::give_back(1), 0),
        (u64::MAX, Hits::add(1), u64::MAX),
    ] {
        let spec = sample::spec(1, hits);
        assert_eq!(spec.moves(count), expected, "{count} {hits:?}");
        assert_eq!(spec.signed(), hits.signed());
    }
}

#[test]
fn a_look_is_of_hits_that_would_be_added() {
    let spec = |hits| sample::spec(10, hits).look();
    assert_eq!(spec(Hits::add(3)).added(), 3);
    assert!(spec(Hits::add(3)).refuses(8) && !spec(Hits::add(3)).refuses(7));
    let back = spec(Hits::give_back(3));
    assert_eq!((back.added(), back.taken_off()), (0, 0));
}

#[test]
fn hits_were_counted_unless_a_rule_let_them_pass_without_the_store() {
    let spec = |on_loss| IncrementSpec {
        on_loss,
        ..sample::spec(10, Hits::ONE)
    };
    let count = |is_charged, is_degraded| CounterState {
        is_charged,
        is_degraded,
        ..CounterState::from(1)
    };
    assert!(count(true, false).was_counted(&spec(OnStoreLoss::Allow)));
    assert!(!count(true, true).was_counted(&spec(OnStoreLoss::Allow)));
    assert!(count(true, true).was_counted(&spec(OnStoreLoss::Local)));
    assert!(!count(false, false).was_counted(&spec(OnStoreLoss::Error)));
}
