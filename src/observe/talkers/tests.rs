use std::collections::HashMap;

use proptest::prelude::*;

use super::{
    label::ByteRoom,
    label::Label,
    merged::merge,
    sketch::{SLOTS, TopSketch},
    *,
};

/// A value, its hits, and whether they were refused.
type Hit = (u64, u64, bool);

fn new_hits(&(value, hits, is_refused): &Hit) -> NewHits {
    NewHits {
        hash: value,
        hits,
        refused: if is_refused { hits } else { 0 },
    }
}

/// Writes the value as the label, so that merged values can be recognised.
fn name(value: u64) -> impl FnOnce(&mut Label, &mut ByteRoom) {
    move |label, room| {
        let value = value.to_string();
        let entry = Entry {
            key: b"k",
            value: value.as_bytes(),
        };
        label.set(&[entry], ValueForm::Show, room);
    }
}

fn sketch(stream: &[Hit], room: &mut ByteRoom) -> TopSketch {
    let mut sketch = TopSketch::default();
    for hit in stream {
        sketch.add(new_hits(hit), room, name(hit.0));
    }
    sketch
}

/// The exact hits of each value, and the refused ones.
fn exact(stream: &[Hit]) -> HashMap<u64, (u64, u64)> {
    let mut exact = HashMap::<_, (u64, u64)>::new();
    for (value, hits, is_refused) in stream {
        let counts = exact.entry(*value).or_default();
        counts.0 += hits;
        counts.1 += if *is_refused { *hits } else { 0 };
    }
    exact
}

/// Compares a sketch with the exact counts of its stream.
#[track_caller]
fn check(stream: &[Hit], max_bytes: usize) {
    let sketch = sketch(stream, &mut ByteRoom::new(max_bytes));
    let exact = exact(stream);
    let total: u64 = stream.iter().map(|(_, hits, _)| hits).sum();
    assert_eq!(sketch.total(), total);
    let mut without_slot = exact.clone();
    let mut slots = 0;
    for (value, slot) in sketch.slots() {
        let (hits, refused) = without_slot.remove(&value).expect("a value has one slot");
        slots += 1;
        assert!(
            slot.hits - slot.error <= hits && hits <= slot.hits,
            "{value}: {hits} {slot:?}"
        );
        assert!(
            slot.refused <= refused && refused <= slot.refused + slot.error,
            "{value}: {slot:?}"
        );
    }
    assert!(slots <= SLOTS);
    for (value, (hits, _)) in without_slot {
        assert!(
            hits <= sketch.floor(),
            "{value}: {hits} above {}",
            sketch.floor()
        );
        if slots == SLOTS && max_bytes > 1 << 16 {
            assert!(
                hits <= total / SLOTS as u64,
                "{value}: {hits} of {total} and no slot"
            );
        }
    }
}

/// Streams that a sketch finds easy and hard.
fn streams() -> impl Strategy<Value = Vec<Hit>> {
    let hit = |value| (value, 1_u64..30, any::<bool>());
    let few = prop::collection::vec(hit((0_u64..20).boxed()), 0..300);
    let many = prop::collection::vec(hit((0_u64..400).boxed()), 0..900);
    // Zipf: the value of rank r has a share that falls with r.
    let zipf = (1_u64..1_000_000)
        .prop_map(|random| 1_000_000 / random)
        .boxed();
    let zipf = prop::collection::vec(hit(zipf), 0..900);
    // Values in turn, so that each one comes back just after it has lost its slot.
    let turns = (1..4 * SLOTS, 0..900_usize).prop_map(|(values, length)| {
        (0..length)
            .map(|at| ((at % values) as u64, 1, true))
            .collect()
    });
    // One value among others that come once.
    let hidden = (2..20_u64, 0..900_u64).prop_map(|(nth, length)| {
        let value = |at: u64| if at.is_multiple_of(nth) { 0 } else { at + 1 };
        (0..length).map(|at| (value(at), 1, at % 3 == 0)).collect()
    });
    // Other values fill all slots with many hits each before the frequent ones come.
    let late = (1..1000_u64, 0..600_u64).prop_map(|(much, length)| {
        let first = (0..SLOTS as u64).map(|value| (value, much, false));
        first
            .chain((0..length).map(|at| (1000 + at % 3, 1, true)))
            .collect()
    });
    prop_oneof![few, many, zipf, turns, hidden, late]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_hits_of_each_value_are_between_its_bounds(stream in streams()) {
        check(&stream, 1 << 20);
    }

    /// Without room for all slots, or for any.
    #[test]
    fn the_bounds_hold_however_little_room_there_is(stream in streams(), max_bytes in 0_usize..3_000) {
        check(&stream, max_bytes);
    }

    #[test]
    fn sketches_of_several_workers_are_one_with_bounds_that_hold(
        streams in prop::collection::vec(streams(), 1..5),
    ) {
        let mut room = ByteRoom::new(1 << 20);
        let sketches: Vec<_> = streams.iter().map(|stream| sketch(stream, &mut room)).collect();
        let exact = exact(&streams.concat());
        let top = merge(&sketches);
        let total: u64 = exact.values().map(|(hits, _)| hits).sum();
        prop_assert_eq!(top.total, total);
        prop_assert!(top.talkers.len() <= SLOTS);
        for talker in &top.talkers {
            let value = talker.entries[0].value.as_ref().unwrap();
            let value: u64 = std::str::from_utf8(&value.shown).unwrap().parse().unwrap();
            let (hits, refused) = exact[&value];
            prop_assert!(talker.at_least <= hits && hits <= talker.at_most);
            prop_assert!(talker.refused <= refused);
        }
        let most: Vec<_> = top.talkers.iter().map(|talker| talker.at_most).collect();
        prop_assert!(most.is_sorted_by(|one, next| one >= next));
    }
}

#[test]
fn the_ten_most_frequent_of_a_zipf_stream_are_found() {
    // The value of rank r comes 20,000 / r times, spread over the stream.
    let mut stream: Vec<_> = (1..=5_000_u64)
        .flat_map(|rank| (0..20_000 / rank).map(move |nth| (nth * rank, rank)))
        .collect();
    stream.sort_unstable();
    let stream: Vec<Hit> = stream
        .into_iter()
        .map(|(_, rank)| (rank, 1, true))
        .collect();
    check(&stream, 1 << 20);
    let top = merge(&[sketch(&stream, &mut ByteRoom::new(1 << 20))]);
    let first = top.talkers.iter().take(3).map(|talker| {
        let value = talker.entries[0].value.as_ref().unwrap();
        String::from_utf8_lossy(&value.shown).into_owned()
    });
    assert_eq!(first.collect::<Vec<_>>(), ["1", "2", "3"]);
}

fn at(secs: u64) -> Epoch {
    Epoch::at(Duration::from_secs(secs))
}

fn hits(worker: &WorkerTalkers, path: &str, epoch: Epoch) -> u64 {
    merge(&worker.sketches(path, epoch)).total
}

#[test]
fn hits_leave_after_ten_to_twenty_minutes() {
    let mut worker = WorkerTalkers::new(1 << 20);
    let path = "d.k".into();
    let mut add = |secs| {
        worker.add(&path, at(secs), new_hits(&(1, 1, true)), name(1));
        hits(&worker, &path, at(secs))
    };
    assert_eq!(
        [6_000, 6_599, 6_600, 7_199, 7_200, 9_000].map(&mut add),
        [1, 2, 3, 4, 3, 1]
    );
    assert_eq!([30_000, 30_001].map(&mut add), [1, 2]);
    assert_eq!(
        [30_599, 30_600, 31_199, 31_200].map(|secs| hits(&worker, &path, at(secs))),
        [2, 2, 2, 0]
    );
    assert_eq!(hits(&worker, "d.other", at(30_001)), 0);
}

/// Rules `d.0`, `d.1` and so on, with values that have labels of this many bytes.
fn flood(worker: &mut WorkerTalkers, paths: &[Arc<str>], epoch: Epoch, bytes: usize) {
    let value = vec![b'v'; bytes];
    let entry = Entry {
        key: b"k",
        value: &value,
    };
    for hash in 0..100 {
        for path in paths {
            worker.add(path, epoch, new_hits(&(hash, 1, true)), |label, room| {
                label.set(&[entry; 3], ValueForm::Show, room);
            });
        }
    }
}

#[test]
fn all_sketches_keep_to_their_bytes_and_give_them_back() {
    const MAX: usize = 256 << 10;
    let paths: Vec<Arc<str>> = (0..500)
        .map(|number| format!("d.{number}").into())
        .collect();
    for bytes in [0, 10, 100, 16_000] {
        let mut worker = None;
        let allocated = allocation_counter::measure(|| {
            let mut new = WorkerTalkers::new(MAX);
            flood(&mut new, &paths, at(6_000), bytes);
            flood(&mut new, &paths[..20], at(6_600), bytes);
            worker = Some(new);
        });
        let mut worker = worker.unwrap();
        assert!(allocated.bytes_current <= MAX as i64, "{allocated:?}");
        assert!(worker.left() < MAX / 4 && worker.omitted() > 0);
        // A rule that had no room takes the room of rules whose hits are forgotten.
        let late: Vec<Arc<str>> = vec!["late".into()];
        flood(&mut worker, &late, at(6_601), bytes);
        assert_eq!(hits(&worker, "late", at(6_601)), 0);
        flood(&mut worker, &late, at(60_000), bytes);
        assert_eq!(hits(&worker, "late", at(60_000)), 100);
        assert_eq!(worker.paths().count(), 1);
        let one = merge(&worker.sketches("late", at(60_000)));
        assert_eq!(one.talkers.len(), SLOTS);
        // All other rules have given back their bytes.
        assert!(worker.left() > MAX - 40_000, "{}", worker.left());
    }
}

#[test]
fn a_known_value_allocates_nothing_nor_does_a_flood_of_new_ones() {
    let mut worker = WorkerTalkers::new(1 << 20);
    let paths: [Arc<str>; 1] = ["d.k".into()];
    flood(&mut worker, &paths, at(6_000), 20);
    let counted = allocation_counter::measure(|| flood(&mut worker, &paths, at(6_000), 20));
    assert_eq!(counted.count_total - 1, 0, "{counted:?}");
}
