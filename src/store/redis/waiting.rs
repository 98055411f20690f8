//! Requests that wait for the next batch of a node, and for its replies.

use std::mem;

use tokio::time::Instant;

use super::pending::PendingReplies;
use crate::{
    core::{counter::Batch, window::Timestamp},
    store::contract::StoreError,
};

/// The changing part of a queue, behind its lock.
#[derive(Debug, Default)]
pub(super) struct QueueState {
    pub(super) waiting: WaitingBatch,
    /// An empty one whose memory is used again.
    pub(super) spare: Option<WaitingBatch>,
    pub(super) replies: PendingReplies,
    /// Whether the ticks watch this queue.
    pub(super) is_watched: bool,
    /// Whether a request came since their last look.
    pub(super) has_new: bool,
    /// Since when the worker itself has to watch the time; `None` if it need not.
    pub(super) timed_since: Option<Instant>,
    /// No more requests may queue: the node has left the topology.
    pub(super) is_over: bool,
}

/// Requests that wait for the next batch.
#[derive(Debug, Default)]
pub(super) struct WaitingBatch {
    /// Boxed, because it is large and moves with every batch.
    pub(super) batch: Box<Batch>,
    pub(super) waiters: Vec<QueuedRequest>,
    /// The time of the last request, with which all are sent.
    pub(super) now: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct QueuedRequest {
    /// How many increments of the batch belong to this request.
    pub(super) increments: usize,
    pub(super) slot: usize,
}

impl WaitingBatch {
    /// Keeps the first requests, of `increments` increments at most but at least one request, and
    /// returns the others.
    pub(super) fn split_off(&mut self, increments: usize) -> Self {
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
    pub(super) fn drop_abandoned(&mut self, replies: &mut PendingReplies) {
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
