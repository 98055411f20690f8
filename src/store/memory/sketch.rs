//! Counts for keys without a counter of their own: a count-min sketch with conservative update.
//!
//! A full table must neither forget a counter, which would be a fresh limit, nor leave new clients uncounted.
//! A sketch counts any number of keys in a fixed number of cells. Each key has one cell in each row, and its
//! count is the least of its cells, so a key never has fewer hits than it was given. It can have more,
//! because keys share cells. An update raises only those cells that would otherwise be below the key's new
//! count, which keeps that excess small.
//!
//! Sources: Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications"
//! (2005), for the sketch and its bound; Estan and Varghese, "New directions in traffic measurement and accounting"
//! (2002), for the conservative update.
//!
//! Hits leave with their window: each cell has the end of its latest window, after which it is empty. A cell
//! that served a day and a second would hold the hits of each second for a day, so limits of different
//! lengths have cells of their own. Hits that are given back stay, because another key may rely on the cell.

use crate::core::{
    counter::{CounterKind, IncrementSpec},
    limit::Limit,
    window::Timestamp,
};

/// Counts of any number of keys in a bounded number of cells.
#[derive(Debug)]
pub(in crate::store) struct Sketch {
    /// Cells by [`class`]; empty until they are needed.
    classes: [Cells; CLASSES],
    /// Cells in a row: a power of two.
    width: usize,
}

#[derive(Clone, Debug, Default)]
struct Cells {
    /// All rows, one after the other.
    cells: Vec<u64>,
    /// The last second in which a cell holds hits.
    live_until: u32,
    /// The hits that were added since all cells were empty.
    hits: u64,
}

/// A key counts too much with a probability of e to the power of -ROWS at most.
const ROWS: usize = 4;

/// Lengths of periods that share cells: a second, a minute, an hour, and more.
const CLASSES: usize = 4;

/// The most bytes that all cells take for each cell of a row.
pub(super) const BYTES_PER_WIDTH: usize = ROWS * CLASSES * size_of::<u64>();

/// One key in one window.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct SketchKey {
    hash: u64,
    class: usize,
    /// The second in which the window ends.
    ends: u32,
}

impl SketchKey {
    /// The key of a counter at `now`. `hash` computes the hash of its key and the number of its window.
    /// Algorithms without a window of their own get the aligned window of their period.
    pub(in crate::store) fn new(
        spec: &IncrementSpec,
        hash: impl FnOnce(u64) -> u64,
        now: Timestamp,
    ) -> Self {
        let (window, end) = match spec.method {
            CounterKind::Window => (0, spec.expires_at),
            _ => {
                let window = now.millis() / spec.period_millis.max(1);
                (window, window_end(spec, now))
            }
        };
        Self {
            hash: hash(window),
            class: class(spec.period_millis),
            ends: seconds(end.millis().div_ceil(1000)),
        }
    }

    /// The cell in each row of `width` cells: a row's distance from the one before depends on the key (Kirsch and
    /// Mitzenmacher, "Less hashing, same performance", 2006).
    fn cells(self, width: usize) -> [usize; ROWS] {
        let (first, step) = (self.hash & u64::from(u32::MAX), self.hash >> 32 | 1);
        std::array::from_fn(|row| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the width keeps the low bits"
            )]
            let column = first.wrapping_add(step.wrapping_mul(row as u64)) as usize & (width - 1);
            row * width + column
        })
    }
}

/// The end of the aligned window of the period of `spec` in which `now` falls.
pub(super) fn window_end(spec: &IncrementSpec, now: Timestamp) -> Timestamp {
    let period = spec.period_millis.max(1);
    let end = (now.millis() / period).saturating_add(1);
    Timestamp::from_millis(end.saturating_mul(period))
}

/// The index of the cells for a period.
fn class(period_millis: u64) -> usize {
    match period_millis {
        0..=1_000 => 0,
        1_001..=60_000 => 1,
        60_001..=3_600_000 => 2,
        _ => 3,
    }
}

/// Seconds since 1970, of which 32 bits last until 2106.
fn seconds(secs: u64) -> u32 {
    u32::try_from(secs).unwrap_or(u32::MAX)
}

impl Sketch {
    /// An empty sketch. Rows have `width` cells, rounded down to a power of two.
    pub(in crate::store) fn new(width: usize) -> Self {
        Self {
            classes: std::array::from_fn(|_| Cells::default()),
            width: 1 << width.max(1).ilog2(),
        }
    }

    /// The hits of `key`, or more.
    pub(in crate::store) fn held(&self, key: SketchKey, now: Timestamp) -> u64 {
        let now = seconds(now.secs());
        let Cells {
            cells, live_until, ..
        } = &self.classes[key.class];
        if *live_until <= now {
            return 0;
        }
        let held = key.cells(self.width).map(|cell| count(cells[cell], now));
        match held.into_iter().min().unwrap_or_default() {
            // At least this many, and perhaps more than any limit.
            u32::MAX => Limit::MAX_REQUESTS + 1,
            held => held.into(),
        }
    }

    /// Adds hits to `key` and returns its count.
    pub(in crate::store) fn add(&mut self, key: SketchKey, hits: u64, now: Timestamp) -> u64 {
        let total = self.held(key, now).saturating_add(hits);
        let now = seconds(now.secs());
        let class = &mut self.classes[key.class];
        if class.live_until <= now {
            class.hits = 0;
        }
        if class.cells.is_empty() {
            class.cells = vec![0; ROWS * self.width];
        }
        class.hits = class.hits.saturating_add(hits);
        class.live_until = class.live_until.max(key.ends);
        // A count that ends here is taken for more than any limit, also for those that are higher.
        let at_least = u32::try_from(total).unwrap_or(u32::MAX);
        for cell in key.cells(self.width) {
            let cell = &mut class.cells[cell];
            let ends = if is_live(*cell, now) { end(*cell) } else { 0 };
            *cell =
                u64::from(ends.max(key.ends)) << 32 | u64::from(count(*cell, now).max(at_least));
        }
        total
    }

    /// Frees the cells that hold no hits at `now`.
    pub(in crate::store) fn sweep(&mut self, now: Timestamp) {
        let now = seconds(now.secs());
        for class in &mut self.classes {
            if !class.cells.is_empty() && class.live_until <= now {
                *class = Cells::default();
            }
        }
    }

    /// The hits by which a key counts too much at most, with a probability of 98 % for each key: the sketch's
    /// bound of e / width of all hits. Conservative updates usually stay far below it.
    pub(super) fn excess(&self) -> u64 {
        let hits = self.classes.iter().map(|class| class.hits);
        let most = hits.max().unwrap_or_default();
        let width = self.width as u128 * 1_000_000;
        let excess = (u128::from(most) * 2_718_282).div_ceil(width);
        u64::try_from(excess).unwrap_or(u64::MAX)
    }

    /// The bytes that the cells take now.
    pub(super) fn bytes(&self) -> usize {
        let cells: usize = self.classes.iter().map(|class| class.cells.len()).sum();
        cells * size_of::<u64>()
    }
}

/// A cell is the second in which its hits leave, and their number.
fn end(cell: u64) -> u32 {
    u32::try_from(cell >> 32).expect("32 bits are left")
}

fn is_live(cell: u64, now: u32) -> bool {
    end(cell) > now
}

fn count(cell: u64, now: u32) -> u32 {
    if is_live(cell, now) {
        u32::try_from(cell & u64::from(u32::MAX)).expect("32 bits are left")
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, hash::BuildHasher as _};

    use foldhash::fast::FixedState;
    use proptest::prelude::*;

    use super::*;
    use crate::core::{counter::sample, request::Hits};

    fn key(name: u32, method: CounterKind, period_secs: u64, now: Timestamp) -> SketchKey {
        let period = period_secs * 1000;
        let spec = IncrementSpec {
            method,
            period_millis: period,
            expires_at: Timestamp::from_millis((now.millis() / period + 1) * period),
            ..sample::spec(1, Hits::ONE)
        };
        // As in the key of a counter, the window is part of the name.
        let name = (name, period_secs, spec.expires_at.millis());
        SketchKey::new(
            &spec,
            |window| FixedState::default().hash_one((name, window)),
            now,
        )
    }

    proptest! {
        #[test]
        fn no_key_counts_less_than_its_hits(
            steps in prop::collection::vec((0_u32..40, 1_u64..5, 0_u64..3, any::<bool>(), 0_u64..700), 1..400),
        ) {
            let mut sketch = Sketch::new(8);
            let mut exact: HashMap<_, u64> = HashMap::new();
            let mut now = Timestamp::from_secs(1_000_000);
            for (name, hits, period, is_window, millis) in steps {
                now = Timestamp::from_millis(now.millis() + millis);
                let period = [1, 10, 3600][usize::try_from(period).unwrap()];
                let method = if is_window { CounterKind::Window } else { CounterKind::SlidingWindow };
                let window = now.secs() / period;
                let count = exact.entry((name, period, is_window, window)).or_default();
                *count += hits;
                let added = sketch.add(key(name + 100 * u32::from(is_window), method, period, now), hits, now);
                prop_assert!(added >= *count);
                for (&(name, period, is_window, window), &count) in &exact {
                    if window == now.secs() / period {
                        let method = if is_window { CounterKind::Window } else { CounterKind::SlidingWindow };
                        let key = key(name + 100 * u32::from(is_window), method, period, now);
                        prop_assert!(sketch.held(key, now) >= count);
                    }
                }
            }
        }
    }

    #[test]
    fn hits_leave_with_their_window_and_cells_with_the_last_hit() {
        let mut sketch = Sketch::new(64);
        let at = Timestamp::from_secs;
        let of = |secs| key(1, CounterKind::Window, 60, at(secs));
        assert_eq!(sketch.bytes(), 0);
        assert_eq!(sketch.add(of(61), 3, at(61)), 3);
        assert_eq!(sketch.held(of(119), at(119)), 3);
        assert_eq!(sketch.held(of(120), at(120)), 0);
        assert_eq!(sketch.bytes(), ROWS * 64 * 8);
        sketch.sweep(at(119));
        assert_eq!(sketch.held(of(119), at(119)), 3);
        sketch.sweep(at(120));
        assert_eq!(sketch.bytes(), 0);
    }

    #[test]
    fn a_day_keeps_no_hits_of_a_second() {
        let mut sketch = Sketch::new(1);
        let now = Timestamp::from_secs(1000);
        sketch.add(key(1, CounterKind::Window, 86_400, now), 100, now);
        let second = key(2, CounterKind::Window, 1, now);
        assert_eq!(sketch.add(second, 1, now), 1);
    }

    #[test]
    fn keys_rarely_share_all_their_cells() {
        let mut sketch = Sketch::new(1 << 12);
        let now = Timestamp::from_secs(1000);
        let of = |name| key(name, CounterKind::Window, 60, now);
        for name in 0..40_000 {
            sketch.add(of(name), 1, now);
        }
        let bound = sketch.excess();
        assert_eq!(bound, 27); // e * 40,000 / 4,096
        let above = (0..40_000).filter(|name| sketch.held(of(*name), now) > 1 + bound);
        assert!(above.count() < 40_000 / 50);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Windows of an hour to thirty days share cells for ten days, and few of two thousand values are busy.
        #[test]
        fn few_values_are_refused_for_the_hits_of_others(seed: u64) {
            const PERIODS: [u64; 4] = [3_600, 86_400, 604_800, 2_592_000];
            let random = FixedState::with_seed(seed);
            let mut sketch = Sketch::new(256);
            let mut exact: HashMap<_, u64> = HashMap::new();
            let mut now = Timestamp::from_secs(1_795_230_000);
            let (mut asked, mut wrong) = (0_u32, 0_u32);
            for step in 0..8_000_u32 {
                let drawn = |what: &str, below: u64| random.hash_one((step, what)) % below;
                now = Timestamp::from_millis(now.millis() + drawn("pause", 216_000));
                // The square of an even draw: low numbers come more often.
                let name = u32::try_from(drawn("name", 2_000).pow(2) / 2_000).unwrap();
                let period = PERIODS[usize::try_from(u64::from(name) % 4).unwrap()];
                let key = key(name, CounterKind::Window, period, now);
                let own = exact.entry((name, now.secs() / period)).or_default();
                *own += 1;
                let added = sketch.add(key, 1, now);
                // A limit that leaves room for the stated excess refuses none of these hits by itself.
                let limit = *own + sketch.excess();
                asked += 1;
                wrong += u32::from(added > limit);
            }
            prop_assert!(wrong * 50 <= asked, "{wrong} of {asked}");
        }
    }

    #[test]
    fn a_count_that_ends_is_above_every_limit() {
        let mut sketch = Sketch::new(1);
        let now = Timestamp::from_secs(1000);
        let of = key(1, CounterKind::Window, 60, now);
        sketch.add(of, u64::MAX, now);
        assert!(sketch.add(of, 1, now) > Limit::MAX_REQUESTS);
        assert!(sketch.held(of, now) > Limit::MAX_REQUESTS);
    }
}
