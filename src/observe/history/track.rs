//! The differences between totals, in steps of two lengths: fine ones for the last minutes, coarse ones for the hour.

use std::{collections::VecDeque, mem};

/// Steps of one length.
pub(super) struct StepLength {
    /// Samples that make up a step.
    pub(super) samples: u64,
    /// Steps that are kept.
    pub(super) steps: usize,
}

/// The lengths of steps, shortest first. With a sample every 5 seconds, these are ten minutes in steps of 5 seconds,
/// and an hour in steps of 30.
pub(super) const LENGTHS: [StepLength; 2] = [
    StepLength {
        samples: 1,
        steps: 120,
    },
    StepLength {
        samples: 6,
        steps: 120,
    },
];

/// Most bytes of the steps of one track, in queues that grow by doubling.
pub(super) const fn max_bytes<T: Total>() -> usize {
    let mut slots = 0;
    let mut length = 0;
    while length < LENGTHS.len() {
        slots += LENGTHS[length].steps.next_power_of_two();
        length += 1;
    }
    slots * size_of::<T::Step>() + size_of::<Track<T>>()
}

/// A total since the start of the process.
pub(super) trait Total: Clone + PartialEq {
    /// The events between two totals.
    type Step: Clone;

    /// The step from `earlier` to this total. A counter that is lower than before has restarted from zero.
    fn since(&self, earlier: &Self) -> Self::Step;
}

/// The steps of one total.
#[derive(Clone, Debug)]
pub(super) struct Track<T: Total> {
    /// The totals at the end of the last step of each length.
    last: [T; LENGTHS.len()],
    steps: [VecDeque<T::Step>; LENGTHS.len()],
}

impl<T: Total> Track<T> {
    /// A track without steps. The first steps begin at `start`.
    pub(super) fn new(start: &T) -> Self {
        Self {
            last: std::array::from_fn(|_| start.clone()),
            steps: Default::default(),
        }
    }

    /// Ends the steps that end with sample number `sample`, whose total is `now`. Returns whether the total has changed
    /// since the previous sample. The first sample has number 1.
    pub(super) fn advance(&mut self, sample: u64, now: &T) -> bool {
        let is_active = self.last[0] != *now;
        for (index, length) in LENGTHS.iter().enumerate() {
            if !sample.is_multiple_of(length.samples) {
                continue;
            }
            let last = mem::replace(&mut self.last[index], now.clone());
            let steps = &mut self.steps[index];
            if steps.len() == length.steps {
                steps.pop_front();
            }
            steps.push_back(now.since(&last));
        }
        is_active
    }

    /// [`Self::advance`] with an unchanged total.
    pub(super) fn rest(&mut self, sample: u64) {
        let last = self.last[0].clone();
        self.advance(sample, &last);
    }

    /// The steps of each length, oldest first.
    pub(super) fn steps(&self) -> &[VecDeque<T::Step>; LENGTHS.len()] {
        &self.steps
    }
}

/// How much a counter has grown, at most the largest number that a step can hold.
pub(super) fn difference(now: u64, earlier: u64) -> u32 {
    let more = now.checked_sub(earlier).unwrap_or(now);
    u32::try_from(more).unwrap_or(u32::MAX)
}
