//! Where requests find their answers: each that waits has a seat.
//!
//! Two hold a seat: who waits in it, and the batch that the answer comes with. It is free again when
//! both have let go.

use std::{
    mem,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::StoreError;
use crate::counter::CountList;

/// What a request is told.
pub(super) type Answered = Result<CountList, StoreError>;

#[derive(Debug, Default)]
pub(super) struct Seats {
    all: Vec<Seat>,
    free: Vec<usize>,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "answers lie in seats so that none has to ask for memory"
)]
enum Seat {
    Free,
    /// Somebody waits, since then. Both hold it.
    Waiting {
        since: Instant,
        waker: Option<Waker>,
    },
    /// Whoever waits does so in vain. Both hold it.
    Late,
    /// There is an answer to be fetched.
    Told(Answered),
    /// Nobody waits any more, which the batch does not know yet.
    Left,
}

impl Seats {
    /// A seat for one that waits from now on.
    pub(super) fn take(&mut self, now: Instant) -> usize {
        let seat = Seat::Waiting {
            since: now,
            waker: None,
        };
        match self.free.pop() {
            Some(free) => {
                self.all[free] = seat;
                free
            }
            None => {
                self.all.push(seat);
                self.all.len() - 1
            }
        }
    }

    /// The answer, if there is one. Who gets it has left the seat.
    pub(super) fn poll(&mut self, seat: usize, context: &Context<'_>) -> Poll<Answered> {
        match &mut self.all[seat] {
            Seat::Waiting { waker, .. } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
            late @ Seat::Late => {
                *late = Seat::Left;
                return Poll::Ready(Err(StoreError::Timeout));
            }
            _ => {}
        }
        match mem::replace(&mut self.all[seat], Seat::Free) {
            Seat::Told(answered) => {
                self.free.push(seat);
                Poll::Ready(answered)
            }
            _ => unreachable!("who has left a seat does not ask"),
        }
    }

    /// Who waited does so no more.
    pub(super) fn leave(&mut self, seat: usize) {
        if let Seat::Told(_) = self.all[seat] {
            self.let_go(seat);
        } else {
            self.all[seat] = Seat::Left;
        }
    }

    /// Whether somebody waits there.
    pub(super) fn is_wanted(&self, seat: usize) -> bool {
        matches!(self.all[seat], Seat::Waiting { .. })
    }

    /// The batch has `answered` who waits in the seat, if anybody does.
    pub(super) fn tell(&mut self, seat: usize, answered: Answered) {
        let seat_of_one = &mut self.all[seat];
        match seat_of_one {
            Seat::Waiting { waker, .. } => {
                let waker = waker.take();
                *seat_of_one = Seat::Told(answered);
                if let Some(waker) = waker {
                    // It only queues the task; nobody comes back here from within.
                    waker.wake();
                }
            }
            Seat::Late => *seat_of_one = Seat::Told(Err(StoreError::Timeout)),
            _ => self.let_go(seat),
        }
    }

    fn let_go(&mut self, seat: usize) {
        self.all[seat] = Seat::Free;
        self.free.push(seat);
    }

    /// Tells all who have waited for `deadline` that there will be no answer in time. Returns when
    /// the next one will have, if there is one.
    pub(super) fn end_late(&mut self, now: Instant, deadline: Duration) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for seat in &mut self.all {
            let Seat::Waiting { since, waker } = seat else {
                continue;
            };
            let ends = *since + deadline;
            if ends <= now {
                let waker = waker.take();
                *seat = Seat::Late;
                if let Some(waker) = waker {
                    waker.wake();
                }
            } else {
                next = Some(next.map_or(ends, |next| next.min(ends)));
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::Count;

    const DEADLINE: Duration = Duration::from_millis(50);

    fn told() -> Answered {
        Ok(CountList::from_iter([Count::from(7)]))
    }

    fn poll(seats: &mut Seats, seat: usize) -> Option<Answered> {
        match seats.poll(seat, &Context::from_waker(Waker::noop())) {
            Poll::Ready(answered) => Some(answered),
            Poll::Pending => None,
        }
    }

    #[test]
    fn an_answer_is_fetched_once_and_its_seat_is_free_again() {
        let (mut seats, now) = (Seats::default(), Instant::now());
        let seat = seats.take(now);
        assert!(seats.is_wanted(seat));
        assert_eq!(poll(&mut seats, seat), None);
        seats.tell(seat, told());
        assert_eq!(poll(&mut seats, seat), Some(told()));
        assert_eq!(seats.take(now), seat);
        assert_ne!(seats.take(now), seat);
    }

    #[test]
    fn a_seat_that_was_left_is_free_when_its_batch_ends() {
        let (mut seats, now) = (Seats::default(), Instant::now());
        let seat = seats.take(now);
        seats.leave(seat);
        assert!(!seats.is_wanted(seat));
        assert_ne!(seats.take(now), seat);
        seats.tell(seat, told());
        assert_eq!(seats.take(now), seat);
        // The other way round.
        seats.tell(seat, told());
        seats.leave(seat);
        assert_eq!(seats.take(now), seat);
    }

    #[test]
    fn nobody_waits_for_longer_than_the_deadline() {
        let (mut seats, now) = (Seats::default(), Instant::now());
        let [first, second] = [now, now + DEADLINE / 2].map(|since| seats.take(since));
        assert_eq!(seats.end_late(now, DEADLINE), Some(now + DEADLINE));
        let next = seats.end_late(now + DEADLINE, DEADLINE);
        assert_eq!(next, Some(now + DEADLINE / 2 + DEADLINE));
        assert_eq!(poll(&mut seats, first), Some(Err(StoreError::Timeout)));
        assert_eq!(poll(&mut seats, second), None);
        // The batch still holds it: nobody else may get its answer.
        assert_ne!(seats.take(now), first);
        seats.tell(first, told());
        assert_eq!(seats.take(now), first);
        assert_eq!(seats.end_late(now + 3 * DEADLINE, DEADLINE), None);
        seats.tell(second, told());
        assert_eq!(poll(&mut seats, second), Some(Err(StoreError::Timeout)));
        seats.leave(first);
    }
}
