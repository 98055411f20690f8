//! Requests on their way from their callers to the loop of one worker and node.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::Instant,
};

use crate::{
    core::{
        counter::{Batch, CounterStates},
        window::Timestamp,
    },
    store::{
        contract::{Deadline, StoreError},
        redis::{node::Node, wait::by},
    },
};

/// Requests of one worker that may wait for a node at a time; the next one is refused at once.
const MAX_WAITING: usize = 5_000;

type StoreReply = Result<CounterStates, StoreError>;

/// The queue of one worker for one node. Its loop ends once all copies are dropped.
#[derive(Clone, Debug)]
pub(crate) struct NodeQueue {
    pub(crate) node: Arc<Node>,
    /// The longest that a request waits.
    longest: Duration,
    waiting: Arc<AtomicU64>,
    requests: mpsc::Sender<QueuedRequest>,
}

/// A request that waits. If it is dropped without an answer, it may have been counted.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) batch: Box<Batch>,
    pub(crate) now: Timestamp,
    /// When its call arrived.
    pub(crate) began: Instant,
    /// When its caller leaves.
    pub(crate) ends: Instant,
    /// Whether its hits are leased: then its answer is followed after that.
    pub(crate) is_lease: bool,
    /// Whether it may not be sent after that, because its caller has a time of its own or its hits are leased.
    pub(crate) is_timed: bool,
    /// How many wait.
    waiting: Arc<AtomicU64>,
    /// `None` once it has an answer.
    reply: Option<oneshot::Sender<StoreReply>>,
}

impl NodeQueue {
    /// A queue whose requests wait for `longest`, or a little more, and the end that its loop reads.
    pub(crate) fn new(node: Arc<Node>, longest: Duration) -> (Self, mpsc::Receiver<QueuedRequest>) {
        let (requests, receiver) = mpsc::channel(MAX_WAITING);
        let queue = Self {
            longest,
            waiting: node.new_waiting(),
            node,
            requests,
        };
        (queue, receiver)
    }

    /// Queues one request.
    ///
    /// # Errors
    ///
    /// If no answer can be expected, or too many requests wait already.
    pub(crate) fn push(
        &self,
        batch: &Batch,
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<PendingReply, StoreError> {
        if self.node.is_lost() {
            return Err(StoreError::Unsent);
        }
        let (reply, pending) = oneshot::channel();
        let mut own = Box::<Batch>::default();
        own.append(batch);
        let ends = deadline.ends(self.longest).into();
        let is_short = deadline.timeout.is_some_and(|most| most < self.longest);
        let request = QueuedRequest {
            batch: own,
            now,
            began: deadline.began.into(),
            ends,
            is_lease: deadline.is_for_lease,
            is_timed: deadline.is_for_lease || is_short,
            waiting: self.waiting.clone(),
            reply: Some(reply),
        };
        self.waiting.fetch_add(1, Relaxed);
        self.requests
            .try_send(request)
            .map_err(|refused| match refused {
                TrySendError::Full(_) => StoreError::Overloaded,
                TrySendError::Closed(_) => StoreError::Unsent,
            })?;
        Ok(PendingReply {
            reply: pending,
            ends: (is_short && !deadline.is_for_lease).then_some(ends),
        })
    }
}

/// The reply to one request.
#[derive(Debug)]
pub(crate) struct PendingReply {
    reply: oneshot::Receiver<StoreReply>,
    /// When its caller leaves, if that is earlier than the loop answers.
    ends: Option<Instant>,
}

impl PendingReply {
    pub(crate) async fn fetch(self) -> StoreReply {
        let reply = pin!(self.reply);
        let reply = match self.ends {
            None => reply.await,
            Some(ends) => by(ends, reply).await.ok_or(StoreError::Timeout)?,
        };
        reply.unwrap_or(Err(StoreError::Unreachable))
    }
}

impl QueuedRequest {
    /// Whether its caller has left.
    pub(crate) fn is_deserted(&self) -> bool {
        self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Answers it. Returns whether its caller takes the answer; `None` if it has one.
    pub(crate) fn answer(&mut self, reply: StoreReply) -> Option<bool> {
        let caller = self.reply.take()?;
        Some(caller.send(reply).is_ok())
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Relaxed);
    }
}
