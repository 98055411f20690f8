//! Pending replies: a slab with one entry for each request that waits for its answer.
//!
//! Two owners hold an entry: the request that waits, and the batch that brings the answer. It is free
//! again when both have released it.

use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use crate::{
    core::counter::{CounterState, CounterStates},
    store::{contract::StoreError, redis::health::running::Pause},
};

/// The answer to a request, without its counts.
pub(crate) type ReplyResult = Result<(), StoreError>;

/// Counts that an entry keeps room for: enough for almost every request.
const MAX_KEPT: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct PendingReplies {
    all: Vec<ReplySlot>,
    free: Vec<usize>,
    last_pause: Option<Pause>,
}

#[derive(Debug)]
struct ReplySlot {
    state: ReplyState,
    /// The counts of the answer. The list stays with the entry, so that no answer has to allocate.
    counts: Vec<CounterState>,
}

#[derive(Debug)]
enum ReplyState {
    Free,
    /// A request waits. Both owners hold the entry.
    Waiting {
        since: Instant,
        /// When the wait ends, later by the known pauses of this thread; `None` for leased hits that are sent: their
        /// answer is followed however late it comes.
        ends: Option<Instant>,
        /// When the caller of leased hits leaves; `None` for all others.
        leaves: Option<Instant>,
        is_sent: bool,
        waker: Option<Waker>,
    },
    /// The time is over, and the request does not know this error yet. Both owners hold the entry.
    Late(StoreError),
    /// The answer can be fetched.
    Answered(ReplyResult),
    /// The request no longer waits, and the batch does not know yet.
    Abandoned,
}

impl PendingReplies {
    /// Takes an entry for a request that waits from `since` to `ends`; `waker` wakes it, unless a later poll brings
    /// another one.
    pub(crate) fn take(
        &mut self,
        since: Instant,
        ends: Instant,
        is_lease: bool,
        waker: Option<Waker>,
    ) -> usize {
        let mut ends = ends;
        if let Some(Pause { from, to }) = self.last_pause
            && since < to
        {
            // The request came before a pause that was noticed before the request was queued.
            ends += to.saturating_duration_since(from.max(since));
        }
        let state = ReplyState::Waiting {
            since,
            ends: Some(ends),
            leaves: is_lease.then_some(ends),
            is_sent: false,
            waker,
        };
        match self.free.pop() {
            Some(free) => {
                self.all[free].state = state;
                free
            }
            None => {
                self.all.push(ReplySlot {
                    state,
                    counts: Vec::new(),
                });
                self.all.len() - 1
            }
        }
    }

    /// The answer, if there is one; its counts are appended to `counts`. The request then no longer
    /// holds the entry.
    pub(crate) fn poll(
        &mut self,
        slot: usize,
        context: &Context<'_>,
        counts: &mut CounterStates,
    ) -> Poll<ReplyResult> {
        let own_slot = &mut self.all[slot];
        match &mut own_slot.state {
            ReplyState::Waiting { waker, .. } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            ReplyState::Late(error) => {
                let error = *error;
                own_slot.state = ReplyState::Abandoned;
                Poll::Ready(Err(error))
            }
            ReplyState::Answered(answered) => {
                let answered = *answered;
                if answered.is_ok() {
                    counts.extend_from_slice(&own_slot.counts);
                }
                self.let_go(slot);
                Poll::Ready(answered)
            }
            ReplyState::Free | ReplyState::Abandoned => {
                unreachable!("a request that has left does not poll")
            }
        }
    }

    /// The request no longer waits.
    pub(crate) fn leave(&mut self, slot: usize) {
        match &mut self.all[slot].state {
            ReplyState::Answered(_) => self.let_go(slot),
            state => *state = ReplyState::Abandoned,
        }
    }

    /// Whether a request waits there.
    pub(crate) fn is_waiting(&self, slot: usize) -> bool {
        matches!(self.all[slot].state, ReplyState::Waiting { .. })
    }

    /// Notes that a request is sent, if it still waits. Returns whether it does.
    pub(crate) fn send(&mut self, slot: usize) -> bool {
        let ReplyState::Waiting {
            ends,
            leaves,
            is_sent,
            ..
        } = &mut self.all[slot].state
        else {
            return false;
        };
        *is_sent = true;
        if leaves.is_some() {
            *leaves = ends.take();
        }
        true
    }

    /// When the caller of leased hits leaves, which must not be charged after that; `None` for other hits.
    pub(crate) fn leaves(&self, slot: usize) -> Option<Instant> {
        match self.all[slot].state {
            ReplyState::Waiting { leaves, .. } => leaves,
            ReplyState::Free
            | ReplyState::Late(_)
            | ReplyState::Answered(_)
            | ReplyState::Abandoned => None,
        }
    }

    /// Stores the answer of the batch for a request that still waits. All `counts` are consumed, even if
    /// one is an error.
    pub(crate) fn answer(
        &mut self,
        slot: usize,
        counts: impl Iterator<Item = Result<CounterState, StoreError>>,
    ) {
        let mut result = Ok(());
        let own = &mut self.all[slot].counts;
        own.clear();
        for count in counts {
            match count {
                Ok(count) => own.push(count),
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.finish(slot, result);
    }

    /// Stores an error, because the batch has no answer for this request.
    pub(crate) fn fail(&mut self, slot: usize, error: StoreError) {
        self.finish(slot, Err(error));
    }

    fn finish(&mut self, slot: usize, answered: ReplyResult) {
        let state = &mut self.all[slot].state;
        match state {
            ReplyState::Waiting { waker, .. } => {
                let waker = waker.take();
                *state = ReplyState::Answered(answered);
                if let Some(waker) = waker {
                    // It only queues the task, and does not call back into this.
                    waker.wake();
                }
            }
            ReplyState::Late(error) => *state = ReplyState::Answered(Err(*error)),
            ReplyState::Free | ReplyState::Answered(_) | ReplyState::Abandoned => self.let_go(slot),
        }
    }

    fn let_go(&mut self, slot: usize) {
        let own_slot = &mut self.all[slot];
        own_slot.state = ReplyState::Free;
        if own_slot.counts.capacity() > MAX_KEPT {
            own_slot.counts = Vec::new();
        }
        self.free.push(slot);
    }

    /// Since when the first request waits, if any does.
    pub(crate) fn first_since(&self) -> Option<Instant> {
        self.waits().map(|(since, _)| since).min()
    }

    /// When the first wait ends, if any request waits.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.waits().map(|(_, ends)| ends).min()
    }

    /// When each wait began, and when it ends.
    fn waits(&self) -> impl Iterator<Item = (Instant, Instant)> {
        self.all.iter().filter_map(|slot| match slot.state {
            ReplyState::Waiting { since, ends, .. } => Some((since, ends?)),
            ReplyState::Free
            | ReplyState::Late(_)
            | ReplyState::Answered(_)
            | ReplyState::Abandoned => None,
        })
    }

    /// Extends all waits by their share of a pause, in which no request waited for a server.
    pub(crate) fn leave_out(&mut self, pause: Pause) {
        self.last_pause = Some(pause);
        let Pause { from, to } = pause;
        for slot in &mut self.all {
            if let ReplyState::Waiting {
                since,
                ends: Some(ends),
                ..
            } = &mut slot.state
            {
                *ends += to.saturating_duration_since(from.max(*since));
            }
        }
    }

    /// Ends the waits whose time is over. A request that is not sent by then is never sent. Returns when the next wait
    /// ends, if there is one.
    pub(crate) fn end_late(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for slot in &mut self.all {
            let ReplyState::Waiting {
                ends: Some(ends),
                is_sent,
                waker,
                ..
            } = &mut slot.state
            else {
                continue;
            };
            if *ends <= now {
                let waker = waker.take();
                slot.state = ReplyState::Late(match is_sent {
                    true => StoreError::Timeout,
                    false => StoreError::TimedOutUnsent,
                });
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

    fn result() -> Result<CounterStates, StoreError> {
        Ok(CounterStates::from_iter([CounterState::from(7)]))
    }

    fn take(replies: &mut PendingReplies, since: Instant) -> usize {
        replies.take(since, since + DEADLINE, false, None)
    }

    fn fail(replies: &mut PendingReplies, slot: usize) {
        replies.answer(slot, [Ok(CounterState::from(7))].into_iter());
    }

    fn poll(
        replies: &mut PendingReplies,
        slot: usize,
    ) -> Option<Result<CounterStates, StoreError>> {
        let mut counts = CounterStates::new();
        match replies.poll(slot, &Context::from_waker(Waker::noop()), &mut counts) {
            Poll::Ready(answered) => Some(answered.map(|()| counts)),
            Poll::Pending => None,
        }
    }

    #[test]
    fn an_answer_is_fetched_once_and_its_slot_is_free_again() {
        let (mut replies, now) = (PendingReplies::default(), Instant::now());
        let slot = take(&mut replies, now);
        assert!(replies.is_waiting(slot));
        assert_eq!(poll(&mut replies, slot), None);
        fail(&mut replies, slot);
        assert_eq!(poll(&mut replies, slot), Some(result()));
        assert_eq!(take(&mut replies, now), slot);
        assert_ne!(take(&mut replies, now), slot);
    }

    #[test]
    fn an_error_brings_no_counts_of_who_sat_there_before() {
        let (mut replies, now) = (PendingReplies::default(), Instant::now());
        let slot = take(&mut replies, now);
        fail(&mut replies, slot);
        assert_eq!(poll(&mut replies, slot), Some(result()));
        assert_eq!(take(&mut replies, now), slot);
        replies.fail(slot, StoreError::Refused);
        let mut counts = CounterStates::new();
        let polled = replies.poll(slot, &Context::from_waker(Waker::noop()), &mut counts);
        assert_eq!(polled, Poll::Ready(Err(StoreError::Refused)));
        assert!(counts.is_empty());
    }

    #[test]
    fn a_slot_that_was_left_is_free_when_its_batch_ends() {
        let (mut replies, now) = (PendingReplies::default(), Instant::now());
        let slot = take(&mut replies, now);
        replies.leave(slot);
        assert!(!replies.is_waiting(slot));
        assert_ne!(take(&mut replies, now), slot);
        fail(&mut replies, slot);
        assert_eq!(take(&mut replies, now), slot);
        // The other way round.
        fail(&mut replies, slot);
        replies.leave(slot);
        assert_eq!(take(&mut replies, now), slot);
    }

    #[test]
    fn no_request_waits_longer_than_its_deadline() {
        let (mut replies, now) = (PendingReplies::default(), Instant::now());
        let [first, second] = [now, now + DEADLINE / 2].map(|since| take(&mut replies, since));
        assert_eq!(replies.next_end(), Some(now + DEADLINE));
        assert_eq!(replies.end_late(now), Some(now + DEADLINE));
        let next = replies.end_late(now + DEADLINE);
        assert_eq!(next, Some(now + DEADLINE / 2 + DEADLINE));
        assert_eq!(
            poll(&mut replies, first),
            Some(Err(StoreError::TimedOutUnsent))
        );
        assert!(replies.send(second));
        assert_eq!(poll(&mut replies, second), None);
        // The batch still holds it: no other request may get its answer.
        assert_ne!(take(&mut replies, now), first);
        fail(&mut replies, first);
        assert_eq!(take(&mut replies, now), first);
        assert_eq!(replies.end_late(now + 3 * DEADLINE), None);
        fail(&mut replies, second);
        assert_eq!(poll(&mut replies, second), Some(Err(StoreError::Timeout)));
        replies.leave(first);
    }

    #[test]
    fn the_answer_to_leased_hits_is_followed_once_they_are_sent() {
        let (mut replies, now) = (PendingReplies::default(), Instant::now());
        let [sent, unsent] = [(); 2].map(|()| replies.take(now, now + DEADLINE, true, None));
        let other = take(&mut replies, now);
        for slot in [sent, other] {
            assert!(replies.send(slot));
        }
        let leaves = [sent, unsent, other].map(|slot| replies.leaves(slot));
        assert_eq!(leaves, [Some(now + DEADLINE), Some(now + DEADLINE), None]);
        assert_eq!(replies.end_late(now + DEADLINE), None);
        let late = |error| Some(Err(error));
        assert_eq!(poll(&mut replies, unsent), late(StoreError::TimedOutUnsent));
        assert_eq!(poll(&mut replies, other), late(StoreError::Timeout));
        assert_eq!(poll(&mut replies, sent), None);
        fail(&mut replies, sent);
        assert_eq!(poll(&mut replies, sent), Some(result()));
    }

    #[test]
    fn a_pause_puts_off_the_end_of_who_waited_and_by_no_more_than_that() {
        let (mut replies, now) = (PendingReplies::default(), Instant::now());
        let pause = 3 * DEADLINE;
        let middle = now + DEADLINE / 2 + pause / 2;
        for since in [now, middle, now + DEADLINE / 2 + pause] {
            take(&mut replies, since);
        }
        let from = now + DEADLINE / 2;
        let to = from + pause;
        replies.leave_out(Pause { from, to });
        let ends = [
            now + DEADLINE + pause,
            middle + DEADLINE + pause / 2,
            now + DEADLINE / 2 + pause + DEADLINE,
        ];
        // A request that came before the pause and gets its entry only now.
        take(&mut replies, middle);
        assert_eq!(replies.end_late(now + DEADLINE), Some(ends[0]));
        assert_eq!(replies.end_late(ends[0]), Some(ends[1]));
        assert_eq!(ends[1], ends[2]);
        assert_eq!(replies.end_late(ends[1]), None);
    }
}
