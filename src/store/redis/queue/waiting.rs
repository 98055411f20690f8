//! Requests that wait for the next batch of a node, and for its replies, and the bound on their number.

use std::{
    mem,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
};

use tokio::time::Instant;

use super::replies::PendingReplies;
use crate::{
    core::{counter::Batch, window::Timestamp},
    store::contract::StoreError,
};

/// The changing part of a queue, behind its lock.
#[derive(Debug, Default)]
pub(crate) struct QueueState {
    pub(crate) waiting: WaitingBatch,
    /// An empty one whose memory is used again.
    pub(crate) spare: Option<WaitingBatch>,
    pub(crate) replies: PendingReplies,
    /// Whether the ticks watch this queue.
    pub(crate) is_watched: bool,
    /// Whether a request came since their last look.
    pub(crate) has_new: bool,
    /// Since when the worker itself has to watch the time; `None` if it need not.
    pub(crate) timed_since: Option<Instant>,
    /// No more requests may queue: the node has left the topology.
    pub(crate) is_over: bool,
}

/// Requests that wait for the next batch.
#[derive(Debug, Default)]
pub(crate) struct WaitingBatch {
    /// Boxed, because it is large and moves with every batch.
    pub(crate) batch: Box<Batch>,
    pub(crate) waiters: Vec<QueuedRequest>,
    /// The time of the last request, with which all are sent.
    pub(crate) now: Option<Timestamp>,
}

#[derive(Debug)]
pub(crate) struct QueuedRequest {
    /// How many increments of the batch belong to this request.
    pub(crate) increments: usize,
    pub(crate) slot: usize,
}

impl WaitingBatch {
    /// Keeps the first requests, of `increments` increments at most but at least one request, and
    /// returns the others.
    pub(crate) fn split_off(&mut self, increments: usize) -> Self {
        let mut kept = 0;
        let mut end = 0;
        for waiter in &self.waiters {
            if kept > 0 && end + waiter.increments > increments {
                break;
            }
            kept += 1;
            end += waiter.increments;
        }
        let all = mem::take(&mut self.batch);
        self.batch.append_range(&all, 0..end);
        let mut rest = Self {
            waiters: self.waiters.split_off(kept),
            now: self.now,
            ..Self::default()
        };
        rest.batch.append_range(&all, end..all.len());
        rest
    }

    /// Removes waiters whose wait is over, with their increments: an increment that is not sent is not
    /// counted.
    pub(crate) fn drop_abandoned(&mut self, replies: &mut PendingReplies) {
        if self
            .waiters
            .iter()
            .all(|waiter| replies.is_waiting(waiter.slot))
        {
            return;
        }
        let mut rest = Self {
            now: self.now,
            ..Self::default()
        };
        let mut first = 0;
        for waiter in mem::take(&mut self.waiters) {
            let own = first..first + waiter.increments;
            first = own.end;
            if replies.is_waiting(waiter.slot) {
                rest.batch.append_range(&self.batch, own);
                rest.waiters.push(waiter);
            } else {
                replies.fail(waiter.slot, StoreError::Timeout);
            }
        }
        *self = rest;
    }
}

/// How many requests of one worker may wait at a time, for all nodes together.
#[derive(Debug)]
pub(crate) struct WaitPermits {
    taken: AtomicUsize,
    max: usize,
}

impl WaitPermits {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            max,
        }
    }

    pub(crate) fn take(&self) -> Result<(), StoreError> {
        if self.taken.fetch_add(1, Relaxed) >= self.max {
            self.give_back(1);
            return Err(StoreError::Overloaded);
        }
        Ok(())
    }

    pub(crate) fn give_back(&self, permits: usize) {
        self.taken.fetch_sub(permits, Relaxed);
    }
}

/// Adds one to a count until it is dropped.
pub(crate) struct CountGuard<'a>(&'a AtomicU32);

impl<'a> CountGuard<'a> {
    pub(crate) fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
