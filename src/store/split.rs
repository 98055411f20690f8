//! One request over several stores.
//!
//! Each part is judged where it lives. What a rule with `count: admitted` was charged in one place
//! although another refused the request is given back at once; until it is, others can find that
//! counter fuller than it should be, never emptier.

use crate::{
    counter::{Batch, Charge, Count, Increment},
    request::Hits,
    verdict::Verdict,
};

/// The parts of a batch, and where each increment went.
#[derive(Debug)]
pub(super) struct Split {
    parts: Vec<Batch>,
    places: Vec<usize>,
}

impl Split {
    /// `place` says where an increment lives: a small number, for there is a part for each up to
    /// the highest.
    pub(super) fn new(batch: &Batch, place: impl Fn(&Increment<'_>) -> usize) -> Self {
        let places: Vec<usize> = batch.iter().map(|increment| place(&increment)).collect();
        let mut parts = Vec::new();
        for (increment, &place) in batch.iter().zip(&places) {
            if parts.len() <= place {
                parts.resize_with(place + 1, Batch::default);
            }
            parts[place].append_one(increment);
        }
        Self { parts, places }
    }

    /// The parts, some of them empty.
    pub(super) fn parts(&self) -> &[Batch] {
        &self.parts
    }

    /// The one place where all increments live, if it is one.
    pub(super) fn only(&self) -> Option<usize> {
        let (first, others) = self.places.split_first()?;
        others.iter().all(|place| place == first).then_some(*first)
    }

    /// The counts of all parts in the order of the request, those of each part being in order.
    pub(super) fn merge(&self, counts: Vec<Vec<Count>>) -> Option<Vec<Count>> {
        let mut counts: Vec<_> = counts.into_iter().map(Vec::into_iter).collect();
        let places = self.places.iter();
        places.map(|&place| counts.get_mut(place)?.next()).collect()
    }

    /// What was charged although the request as a whole is refused, to be given back to each part;
    /// nothing if that is nothing. `counts` then no longer say that it is charged.
    pub(super) fn overcharged(&self, batch: &Batch, counts: &mut [Count]) -> Option<Vec<Batch>> {
        overcharged_at(batch, counts, &self.places, self.parts.len())
    }
}

/// The same, where each increment lives at its place of `places`, of which there are `parts`.
pub(super) fn overcharged_at(
    batch: &Batch,
    counts: &mut [Count],
    places: &[usize],
    parts: usize,
) -> Option<Vec<Batch>> {
    let increments: Vec<_> = batch.iter().collect();
    let judged = increments.iter().zip(counts.iter());
    let verdict = Verdict::new(judged.map(|(increment, count)| {
        (
            &increment.terms,
            count.is_over(increment.limit, increment.hits),
        )
    }));
    let mut back: Option<Vec<Batch>> = None;
    for ((increment, count), &place) in increments.iter().zip(counts).zip(places) {
        let hits = increment.hits.added();
        if increment.charge != Charge::Admitted
            || hits == 0
            || !count.is_charged
            || verdict.charges(&increment.terms, false)
        {
            continue;
        }
        let mut terms = increment.terms;
        terms.hits = Hits::give_back(hits);
        terms.charge = Charge::Always;
        let empty = || (0..parts).map(|_| Batch::default()).collect();
        back.get_or_insert_with(empty)[place].append_one(Increment {
            terms,
            ..*increment
        });
        count.is_charged = false;
        count.after = count.after.saturating_sub(hits);
    }
    back
}
