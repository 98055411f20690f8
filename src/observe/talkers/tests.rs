use proptest::prelude::*;

use super::*;

const SLOTS: usize = 32;

/// A value, and its hits.
type Hit = (u64, u64);

/// A descriptor with this value, so that merged ones can be recognised.
fn describe(value: u64) -> TalkerDescriptor {
    let value = value.to_string();
    let entry = Entry {
        key: b"k",
        value: value.as_bytes(),
    };
    TalkerDescriptor::new(&"d.k".into(), &[entry])
}

fn sketch(stream: &[Hit]) -> TalkerSketch {
    let mut sketch = TalkerSketch::new(SLOTS);
    for (value, hits) in stream {
        sketch.add(*value, *hits, 0, || describe(*value));
    }
    sketch
}

/// The exact hits of each value.
fn exact(stream: &[Hit]) -> HashMap<u64, u64> {
    let mut exact = HashMap::new();
    for (value, hits) in stream {
        *exact.entry(*value).or_default() += hits;
    }
    exact
}

/// The talkers of the only rule.
fn merged(sketches: &[TalkerSketch]) -> Vec<Talker> {
    merge(sketches).into_values().flatten().collect()
}

fn value(talker: &Talker) -> u64 {
    let value = str::from_utf8(&talker.entries[0].value).unwrap();
    value.parse().unwrap()
}

/// Compares a sketch with the exact counts of its stream.
#[track_caller]
fn check(stream: &[Hit]) {
    let sketch = sketch(stream);
    let mut without_slot = exact(stream);
    let total: u64 = without_slot.values().sum();
    for (value, slot) in &sketch.slots {
        let hits = without_slot.remove(value).expect("a value has one slot");
        assert!(
            slot.hits - slot.error <= hits && hits <= slot.hits,
            "{value}: {hits} {slot:?}"
        );
    }
    assert!(sketch.slots.len() <= SLOTS);
    for (value, hits) in without_slot {
        assert!(hits <= sketch.floor, "{value}: {hits} {}", sketch.floor);
        assert!(hits <= total / SLOTS as u64, "{value}: {hits} of {total}");
    }
}

/// Streams that a sketch finds easy and hard.
fn streams() -> impl Strategy<Value = Vec<Hit>> {
    let hit = |value| (value, 1_u64..30);
    let few = prop::collection::vec(hit((0_u64..20).boxed()), 0..300);
    let many = prop::collection::vec(hit((0_u64..400).boxed()), 0..900);
    // Zipf: the value of rank r has a share that falls with r.
    let zipf = (1_u64..1_000_000).prop_map(|random| 1_000_000 / random);
    let zipf = prop::collection::vec(hit(zipf.boxed()), 0..900);
    // Values in turn, so that each one comes back just after it has lost its slot.
    let turns = (1..4 * SLOTS, 0..900_usize)
        .prop_map(|(values, length)| (0..length).map(|at| ((at % values) as u64, 1)).collect());
    // One value among others that come once.
    let hidden = (2..20_u64, 0..900_u64).prop_map(|(nth, length)| {
        let value = |at: u64| if at.is_multiple_of(nth) { 0 } else { at + 1 };
        (0..length).map(|at| (value(at), 1)).collect()
    });
    // Other values fill all slots with many hits each before the frequent ones come.
    let late = (1..1000_u64, 0..600_u64).prop_map(|(much, length)| {
        let first = (0..SLOTS as u64).map(|value| (value, much));
        first
            .chain((0..length).map(|at| (1000 + at % 3, 1)))
            .collect()
    });
    prop_oneof![few, many, zipf, turns, hidden, late]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_hits_of_each_value_are_between_its_bounds(stream in streams()) {
        check(&stream);
    }

    #[test]
    fn sketches_of_several_workers_are_one_with_bounds_that_hold(
        streams in prop::collection::vec(streams(), 1..5),
    ) {
        let sketches: Vec<_> = streams.iter().map(|stream| sketch(stream)).collect();
        let exact = exact(&streams.concat());
        let talkers = merged(&sketches);
        prop_assert!(talkers.len() <= MOST_SLOTS);
        for talker in &talkers {
            let hits = exact[&value(talker)];
            prop_assert!(talker.at_least <= hits && hits <= talker.at_most);
        }
        let most: Vec<_> = talkers.iter().map(|talker| talker.at_most).collect();
        prop_assert!(most.is_sorted_by(|one, next| one >= next));
    }
}

#[test]
fn the_most_frequent_of_a_zipf_stream_come_first() {
    // The value of rank r comes 20,000 / r times, spread over the stream.
    let mut stream: Vec<_> = (1..=5_000_u64)
        .flat_map(|rank| (0..20_000 / rank).map(move |nth| (nth * rank, rank)))
        .collect();
    stream.sort_unstable();
    let stream: Vec<Hit> = stream.into_iter().map(|(_, rank)| (rank, 1)).collect();
    check(&stream);
    let talkers = merged(&[sketch(&stream)]);
    let first: Vec<_> = talkers.iter().take(3).map(value).collect();
    assert_eq!(first, [1, 2, 3]);
}

#[test]
fn of_those_that_were_never_refused_the_furthest_from_its_limit_leaves_first() {
    let mut sketch = TalkerSketch::new(SLOTS);
    for value in 0..=SLOTS as u64 {
        let used = 99 - u8::try_from(value % SLOTS as u64).unwrap();
        sketch.add(value, 0, used, || describe(value));
    }
    let furthest = SLOTS as u64 - 1;
    let mut kept: Vec<_> = sketch.slots.keys().copied().collect();
    kept.sort_unstable();
    let expected = (0..=SLOTS as u64).filter(|value| *value != furthest);
    assert!(kept.into_iter().eq(expected));
}

#[test]
fn each_rule_has_its_own_talkers() {
    let mut sketch = TalkerSketch::new(SLOTS);
    let descriptor = |rule: &str| TalkerDescriptor::new(&rule.into(), &[]);
    sketch.add(1, 3, 0, || descriptor("d.one"));
    sketch.add(2, 5, 0, || descriptor("d.two"));
    sketch.add(1, 1, 0, || unreachable!("it has a slot"));
    let rules = merge(&[sketch.clone(), sketch]);
    let rules = rules
        .iter()
        .map(|(rule, talkers)| (&**rule, talkers[0].at_least, talkers.len()));
    assert_eq!(
        rules.collect::<Vec<_>>(),
        [("d.one", 8, 1), ("d.two", 10, 1)]
    );
}

#[test]
fn hits_leave_after_one_to_two_epochs() {
    let mut worker = WorkerTalkers::new(SLOTS);
    let hits = |worker: &WorkerTalkers| {
        let talkers = merged(&[worker.current.clone(), worker.previous.clone()]);
        talkers.first().map_or(0, |talker| talker.at_least)
    };
    let mut add = |epoch| {
        worker.move_to(epoch);
        worker.current.add(1, 1, 0, || describe(1));
        hits(&worker)
    };
    assert_eq!([10, 10, 11, 11, 12, 15].map(&mut add), [1, 2, 3, 4, 3, 1]);
    // A request that began in the epoch before.
    assert_eq!([50, 49, 50].map(&mut add), [1, 2, 3]);
    let mut look = |epoch| {
        worker.move_to(epoch);
        hits(&worker)
    };
    assert_eq!([50, 51, 52].map(&mut look), [3, 3, 0]);
}

#[test]
fn however_many_workers_there_are_their_sketches_keep_to_the_bytes() {
    for workers in [1, 3, 64, 1024] {
        let talkers = Talkers::new(workers);
        let value = [b'v'; 16_000];
        let entry = Entry {
            key: b"k",
            value: &value,
        };
        let allocated = allocation_counter::measure(|| {
            for worker in &talkers.workers {
                let mut own = lock(&worker.0);
                for epoch in 0..2 {
                    own.move_to(epoch);
                    for hash in 0..own.current.most as u64 + 10 {
                        let describe = || TalkerDescriptor::new(&"d.k".into(), &[entry; 9]);
                        own.current.add(hash, 1, 0, describe);
                    }
                }
            }
        });
        // Tables and lists grow by doubling.
        assert!(
            allocated.bytes_current <= 3 * MAX_BYTES as i64 / 2,
            "{workers}: {allocated:?}"
        );
        let talkers = talkers.top(Instant::now().into());
        assert!(!talkers["d.k"].is_empty());
    }
}

#[test]
fn a_known_descriptor_allocates_nothing() {
    let mut sketch = sketch(&[(1, 1), (2, 1)]);
    let counted =
        allocation_counter::measure(|| sketch.add(2, 1, 0, || unreachable!("it is known")));
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

/// A key, and the value with the number of bytes that were cut off.
type Shown<'a> = (&'a [u8], &'a [u8], usize);

#[track_caller]
fn check_kept(entries: &[(&[u8], &[u8])], expected: &[Shown<'_>]) {
    let entries: Vec<_> = entries
        .iter()
        .map(|&(key, value)| Entry { key, value })
        .collect();
    let kept = TalkerDescriptor::new(&"d.k".into(), &entries);
    assert_eq!(kept.omitted_entries, entries.len() - expected.len());
    let kept = kept.entries.iter();
    let kept: Vec<_> = kept
        .map(|entry| (&*entry.key, &*entry.value, entry.cut))
        .collect();
    assert_eq!(kept, expected);
}

#[test]
fn long_texts_are_cut_and_their_length_is_known() {
    check_kept(&[], &[]);
    check_kept(
        &[(b"ip", b"192.0.2.1"), (b"", b"\xff\0")],
        &[(b"ip", b"192.0.2.1", 0), (b"", b"\xff\0", 0)],
    );
    let long = [b'x'; 16_000];
    let cut = &long[..MAX_TEXT_BYTES];
    check_kept(&[(b"k", &long)], &[(b"k", cut, 15_872)]);
    check_kept(
        &[(&b"k"[..], &long[..]); 300],
        &[
            (b"k", cut, 15_872),
            (b"k", cut, 15_872),
            (b"k", &long[..85], 15_915),
        ],
    );
}
