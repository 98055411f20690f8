//! Sends what is queued whenever a connection is free.

use std::{
    collections::{HashSet, hash_map::RandomState},
    convert::Infallible,
    hash::BuildHasher as _,
    mem,
    sync::Arc,
};

use bb8_redis::redis::{Pipeline, Value};

use super::{
    Meters, Options, Queue, StoreError, Waiting,
    connection::{Connection, ConnectionPool},
    pipeline::{Builder, Commands, load_step},
};
use crate::{counter::Count, window::Timestamp};

/// The loop of one connection.
#[derive(Debug)]
pub struct Batcher {
    queue: Arc<Queue>,
    pool: ConnectionPool,
    options: Options,
    meters: Arc<Meters>,
    known: Known,
    is_reachable: bool,
}

impl Batcher {
    pub(super) fn new(
        queue: Arc<Queue>,
        pool: ConnectionPool,
        options: Options,
        meters: Arc<Meters>,
    ) -> Self {
        Self {
            queue,
            pool,
            options,
            meters,
            known: Known::default(),
            is_reachable: true,
        }
    }

    /// Serves the queue until it is dropped.
    pub async fn run(mut self) -> Infallible {
        loop {
            self.queue.arrived().await;
            // The connection first: what arrives while it is busy joins the batch.
            let mut pool = self.pool.clone();
            match pool.get().await {
                Ok(mut connection) => {
                    self.tell(None);
                    let waiting = self.queue.take();
                    self.send(&mut connection, waiting).await;
                }
                Err(error) => {
                    self.tell(Some(&error));
                    self.meters.record_failure();
                    self.queue.take().fail(StoreError::Unreachable);
                }
            }
        }
    }

    /// Says once that Redis is gone, and once that it is back.
    fn tell(&mut self, error: Option<&str>) {
        if self.is_reachable != error.is_none() {
            self.is_reachable = error.is_none();
            match error {
                Some(error) => tracing::warn!(error, "Redis is not reachable"),
                None => tracing::info!("Redis is reachable again"),
            }
        }
    }

    /// One round trip. Whatever happens, the batch is not sent again: some of it may have counted.
    async fn send(&mut self, connection: &mut Connection, mut waiting: Waiting) {
        // Who gave up by now is not counted.
        waiting.drop_closed();
        let Some(now) = waiting.now.filter(|_| !waiting.waiters.is_empty()) else {
            return;
        };
        let commands = self.commands(&waiting, now);
        match self.round_trip(connection, &commands.pipeline).await {
            Ok(mut replies) => {
                self.run_unknown(connection, &commands, &mut replies).await;
                for hash in commands.expiring(&replies) {
                    self.known.insert(hash);
                }
                let repairs = commands.repairs(&replies);
                waiting.answer(commands.counts(&replies));
                if !repairs.is_empty() {
                    // Nobody waits for it. If it fails, those keys stay until Redis evicts them.
                    let _ = self.round_trip(connection, &repairs).await;
                }
            }
            Err(error) => waiting.fail(error),
        }
    }

    /// Loads the script where the server did not know it, as after a restart, a failover or SCRIPT
    /// FLUSH, and sends again what it could not run for want of it, and nothing else.
    async fn run_unknown(
        &self,
        connection: &mut Connection,
        commands: &Commands,
        replies: &mut [Value],
    ) {
        let unknown = commands.unknown(replies);
        if unknown.is_empty() {
            return;
        }
        let mut pipeline = Pipeline::with_capacity(unknown.len() + 1);
        pipeline.add_command(load_step());
        for &command in &unknown {
            let command = commands.pipeline.cmd_iter().nth(command);
            pipeline.add_command(command.expect("one reply a command").clone());
        }
        // If it fails the first replies stay, and they are errors.
        if let Ok(again) = self.round_trip(connection, &pipeline).await {
            for (command, reply) in unknown.into_iter().zip(again.into_iter().skip(1)) {
                replies[command] = reply;
            }
        }
    }

    /// Sends `pipeline` and returns one reply for each command.
    async fn round_trip(
        &self,
        connection: &mut Connection,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, StoreError> {
        let sent = connection.send(pipeline);
        let replies = match tokio::time::timeout(self.options.deadline, sent).await {
            Ok(Ok(replies)) if replies.len() == pipeline.len() => Ok(replies),
            Ok(Ok(_)) => Err(StoreError::Refused),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a batch failed");
                Err(StoreError::Unreachable)
            }
            Err(_elapsed) => Err(StoreError::Timeout),
        };
        self.meters.record_pipeline(pipeline.len());
        if replies.is_err() {
            self.meters.record_failure();
        }
        replies
    }

    fn commands(&self, waiting: &Waiting, now: Timestamp) -> Commands {
        let mut builder = Builder::new(
            &self.options,
            now,
            |key| self.known.hasher.hash_one(key),
            |hash| self.known.contains(hash),
        );
        let mut increments = waiting.batch.iter();
        for waiter in &waiting.waiters {
            let own: Vec<_> = increments.by_ref().take(waiter.increments).collect();
            builder.request(own.iter().copied());
        }
        builder.finish()
    }
}

impl Waiting {
    /// Forgets those who do not wait any more, with their increments.
    fn drop_closed(&mut self) {
        if self.waiters.iter().any(|waiter| waiter.answer.is_closed()) {
            let mut open = Self {
                now: self.now,
                ..Self::default()
            };
            let mut first = 0;
            for waiter in mem::take(&mut self.waiters) {
                let own = first..first + waiter.increments;
                first = own.end;
                if !waiter.answer.is_closed() {
                    open.batch.append_range(&self.batch, own);
                    open.waiters.push(waiter);
                }
            }
            *self = open;
        }
    }

    /// Hands each waiter its own counts.
    fn answer(self, counts: impl Iterator<Item = Result<Count, StoreError>>) {
        let mut counts = counts;
        for waiter in self.waiters {
            // All are taken, even if one is an error: what follows is the next one's.
            let own: Vec<_> = counts.by_ref().take(waiter.increments).collect();
            // Nobody to tell if the request was cancelled meanwhile; its hits have counted.
            let _ = waiter.answer.send(own.into_iter().collect());
        }
    }

    fn fail(self, error: StoreError) {
        for waiter in self.waiters {
            let _ = waiter.answer.send(Err(error));
        }
    }
}

/// Keys that are known to have a time to live, by hash, in two generations: when the young one is
/// full the old one is forgotten, which costs one more EXPIRE for each key that is still in use.
#[derive(Debug, Default)]
struct Known {
    /// Random for each process: values come from outside.
    hasher: RandomState,
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Known {
    /// About 2 MB a generation at most.
    const GENERATION: usize = 1 << 16;

    fn contains(&self, hash: u64) -> bool {
        self.young.contains(&hash) || self.old.contains(&hash)
    }

    fn insert(&mut self, hash: u64) {
        if self.young.len() >= Self::GENERATION {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_are_bounded_and_the_recent_ones_kept() {
        let mut known = Known::default();
        for hash in 0..3 * Known::GENERATION as u64 + 5 {
            known.insert(hash);
        }
        assert!(known.young.len() + known.old.len() <= 2 * Known::GENERATION);
        assert!(known.contains(3 * Known::GENERATION as u64 + 4));
        assert!(known.contains(2 * Known::GENERATION as u64));
        assert!(!known.contains(0));
    }
}
