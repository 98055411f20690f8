//! Pending replies: a slab with one entry for each request that waits for its answer.
//!
//! Two owners hold an entry: the request that waits, and the batch that brings the answer. It is free
//! again when both have released it.

use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use super::{StoreError, running::Pause};
use crate::counter::{Count, CountList};

/// The answer to a request, without its counts.
pub(super) type Answered = Result<(), StoreError>;

/// Counts that an entry keeps room for: enough for almost every request.
const MAX_KEPT: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Seats {
    all: Vec<Seat>,
    free: Vec<usize>,
    last_pause: Option<Pause>,
}

#[derive(Debug)]
struct Seat {
    state: State,
    /// The counts of the answer. The list stays with the entry, so that no answer has to allocate.
    counts: Vec<Count>,
}

#[derive(Debug)]
enum State {
    Free,
    /// A request waits. Both owners hold the entry.
    Waiting {
        since: Instant,
        /// When the wait ends, later by the known pauses of this thread.
        ends: Instant,
        waker: Option<Waker>,
    },
    /// The time is over, and the request does not know yet. Both owners hold the entry.
    Late,
    /// The answer can be fetched.
    Told(Answered),
    /// The request no longer waits, and the batch does not know yet.
    Left,
}

impl Seats {
    /// Takes an entry for a request that waits from `since` to `ends`; `waker` wakes it, unless a later
    /// poll brings another one.
    pub(super) fn take(&mut self, since: Instant, ends: Instant, waker: Option<Waker>) -> usize {
        let mut ends = ends;
        if let Some(Pause { from, to }) = self.last_pause
            && since < to
        {
            // The request came before a pause that was noticed before the request was queued.
            ends += to.saturating_duration_since(from.max(since));
        }
        let state = State::Waiting { since, ends, waker };
        match self.free.pop() {
            Some(free) => {
                self.all[free].state = state;
                free
            }
            None => {
                self.all.push(Seat {
                    state,
                    counts: Vec::new(),
                });
                self.all.len() - 1
            }
        }
    }

    /// The answer, if there is one; its counts are appended to `counts`. The request then no longer
    /// holds the entry.
    pub(super) fn poll(
        &mut self,
        seat: usize,
        context: &Context<'_>,
        counts: &mut CountList,
    ) -> Poll<Answered> {
        let seat_of_one = &mut self.all[seat];
        match &mut seat_of_one.state {
            State::Waiting { waker, .. } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            late @ State::Late => {
                *late = State::Left;
                Poll::Ready(Err(StoreError::Timeout))
            }
            State::Told(answered) => {
                let answered = *answered;
                if answered.is_ok() {
                    counts.extend_from_slice(&seat_of_one.counts);
                }
                self.let_go(seat);
                Poll::Ready(answered)
            }
            State::Free | State::Left => unreachable!("a request that has left does not poll"),
        }
    }

    /// The request no longer waits.
    pub(super) fn leave(&mut self, seat: usize) {
        match &mut self.all[seat].state {
            State::Told(_) => self.let_go(seat),
            state => *state = State::Left,
        }
    }

    /// Whether a request waits there.
    pub(super) fn is_wanted(&self, seat: usize) -> bool {
        matches!(self.all[seat].state, State::Waiting { .. })
    }

    /// Stores the answer of the batch for a request that still waits. All `counts` are consumed, even if
    /// one is an error.
    pub(super) fn tell_counts(
        &mut self,
        seat: usize,
        counts: impl Iterator<Item = Result<Count, StoreError>>,
    ) {
        let mut told = Ok(());
        let own = &mut self.all[seat].counts;
        own.clear();
        for count in counts {
            match count {
                Ok(count) => own.push(count),
                Err(error) => told = told.and(Err(error)),
            }
        }
        self.tell_answered(seat, told);
    }

    /// Stores an error, because the batch has no answer for this request.
    pub(super) fn tell(&mut self, seat: usize, error: StoreError) {
        self.tell_answered(seat, Err(error));
    }

    fn tell_answered(&mut self, seat: usize, answered: Answered) {
        let state = &mut self.all[seat].state;
        match state {
            State::Waiting { waker, .. } => {
                let waker = waker.take();
                *state = State::Told(answered);
                if let Some(waker) = waker {
                    // It only queues the task, and does not call back into this.
                    waker.wake();
                }
            }
            State::Late => *state = State::Told(Err(StoreError::Timeout)),
            State::Free | State::Told(_) | State::Left => self.let_go(seat),
        }
    }

    fn let_go(&mut self, seat: usize) {
        let seat_of_one = &mut self.all[seat];
        seat_of_one.state = State::Free;
        if seat_of_one.counts.capacity() > MAX_KEPT {
            seat_of_one.counts = Vec::new();
        }
        self.free.push(seat);
    }

    /// Since when the first request waits, if any does.
    pub(super) fn first_since(&self) -> Option<Instant> {
        let since = self.all.iter().filter_map(|seat| match seat.state {
            State::Waiting { since, .. } => Some(since),
            State::Free | State::Late | State::Told(_) | State::Left => None,
        });
        since.min()
    }

    /// When the first wait ends, if any request waits.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let ends = self.all.iter().filter_map(|seat| match seat.state {
            State::Waiting { ends, .. } => Some(ends),
            State::Free | State::Late | State::Told(_) | State::Left => None,
        });
        ends.min()
    }

    /// Extends all waits by their share of a pause, in which no request waited for a server.
    pub(super) fn leave_out(&mut self, pause: Pause) {
        self.last_pause = Some(pause);
        let Pause { from, to } = pause;
        for seat in &mut self.all {
            if let State::Waiting { since, ends, .. } = &mut seat.state {
                *ends += to.saturating_duration_since(from.max(*since));
            }
        }
    }

    /// Ends the waits whose time is over. Returns when the next wait ends, if there is one.
    pub(super) fn end_late(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for seat in &mut self.all {
            let State::Waiting { ends, waker, .. } = &mut seat.state else {
                continue;
            };
            if *ends <= now {
                let waker = waker.take();
                seat.state = State::Late;
                if let Some(waker) = waker {
                    waker.wake();
                }
            } else {
                next = Some(next.map_or(*ends, |next| next.min(*ends)));
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(50);

    fn told() -> Result<CountList, StoreError> {
        Ok(CountList::from_iter([Count::from(7)]))
    }

    fn take(seats: &mut Seats, since: Instant) -> usize {
        seats.take(since, since + DEADLINE, None)
    }

    fn tell(seats: &mut Seats, seat: usize) {
        seats.tell_counts(seat, [Ok(Count::from(7))].into_iter());
    }

    fn poll(seats: &mut Seats, seat: usize) -> Option<Result<CountList, StoreError>> {
        let mut counts = CountList::new();
        match seats.poll(seat, &Context::from_waker(Waker::noop()), &mut counts) {
            Poll::Ready(answered) => Some(answered.map(|()| counts)),
            Poll::Pending => None,
        }
    }

    #[test]
    fn an_answer_is_fetched_once_and_its_seat_is_free_again() {
        let (mut seats, now) = (Seats::default(), Instant::now());
        let seat = take(&mut seats, now);
        assert!(seats.is_wanted(seat));
        assert_eq!(poll(&mut seats, seat), None);
        tell(&mut seats, seat);
        assert_eq!(poll(&mut seats, seat), Some(told()));
        assert_eq!(take(&mut seats, now), seat);
        assert_ne!(take(&mut seats, now), seat);
    }

    #[test]
    fn an_error_brings_no_counts_of_who_sat_there_before() {
        let (mut seats, now) = (Seats::default(), Instant::now());
        let seat = take(&mut seats, now);
        tell(&mut seats, seat);
        assert_eq!(poll(&mut seats, seat), Some(told()));
        assert_eq!(take(&mut seats, now), seat);
        seats.tell(seat, StoreError::Refused);
        let mut counts = CountList::new();
        let polled = seats.poll(seat, &Context::from_waker(Waker::noop()), &mut counts);
        assert_eq!(polled, Poll::Ready(Err(StoreError::Refused)));
        assert!(counts.is_empty());
    }

    #[test]
    fn a_seat_that_was_left_is_free_when_its_batch_ends() {
        let (mut seats, now) = (Seats::default(), Instant::now());
        let seat = take(&mut seats, now);
        seats.leave(seat);
        assert!(!seats.is_wanted(seat));
        assert_ne!(take(&mut seats, now), seat);
        tell(&mut seats, seat);
        assert_eq!(take(&mut seats, now), seat);
        // The other way round.
        tell(&mut seats, seat);
        seats.leave(seat);
        assert_eq!(take(&mut seats, now), seat);
    }

    #[test]
    fn nobody_waits_for_longer_than_the_deadline() {
        let (mut seats, now) = (Seats::default(), Instant::now());
        let [first, second] = [now, now + DEADLINE / 2].map(|since| take(&mut seats, since));
        assert_eq!(seats.next_end(), Some(now + DEADLINE));
        assert_eq!(seats.end_late(now), Some(now + DEADLINE));
        let next = seats.end_late(now + DEADLINE);
        assert_eq!(next, Some(now + DEADLINE / 2 + DEADLINE));
        assert_eq!(poll(&mut seats, first), Some(Err(StoreError::Timeout)));
        assert_eq!(poll(&mut seats, second), None);
        // The batch still holds it: no other request may get its answer.
        assert_ne!(take(&mut seats, now), first);
        tell(&mut seats, first);
        assert_eq!(take(&mut seats, now), first);
        assert_eq!(seats.end_late(now + 3 * DEADLINE), None);
        tell(&mut seats, second);
        assert_eq!(poll(&mut seats, second), Some(Err(StoreError::Timeout)));
        seats.leave(first);
    }

    #[test]
    fn a_pause_puts_off_the_end_of_who_waited_and_by_no_more_than_that() {
        let (mut seats, now) = (Seats::default(), Instant::now());
        let pause = 3 * DEADLINE;
        let middle = now + DEADLINE / 2 + pause / 2;
        for since in [now, middle, now + DEADLINE / 2 + pause] {
            take(&mut seats, since);
        }
        let from = now + DEADLINE / 2;
        let to = from + pause;
        seats.leave_out(Pause { from, to });
        let ends = [
            now + DEADLINE + pause,
            middle + DEADLINE + pause / 2,
            now + DEADLINE / 2 + pause + DEADLINE,
        ];
        // A request that came before the pause and gets its entry only now.
        take(&mut seats, middle);
        assert_eq!(seats.end_late(now + DEADLINE), Some(ends[0]));
        assert_eq!(seats.end_late(ends[0]), Some(ends[1]));
        assert_eq!(ends[1], ends[2]);
        assert_eq!(seats.end_late(ends[1]), None);
    }
}
