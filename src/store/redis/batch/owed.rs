//! EXPIRE commands that are owed: for keys that may have been left without a time to live.
//!
//! A batch that fails may have been carried out in part: up to an increment that created its key, and not as far as the
//! EXPIRE after it. A failover can cut the last commands of a batch that had its replies. It is possible that no later
//! request names these keys, so batchers leave the commands here, and the probe of the node sends them once the node is
//! well.

use std::{mem, sync::Mutex, time::Duration};

use bb8_redis::redis::Value;
use tokio::time::Instant;

use super::packed::PackedCommands;
use crate::{
    foundation::lock::lock,
    store::redis::health::failure::{NodeFailure, is_unserved_slot},
};

/// The owed commands of all workers.
#[derive(Debug, Default)]
pub(crate) struct OwedExpiries(Mutex<PackedCommands>);

impl OwedExpiries {
    /// Room for a full batch of each of 16 connections, with keys of 200 bytes. Keys of commands beyond that stay until
    /// their next hit.
    const MAX_BYTES: usize = 4 << 20;

    pub(crate) fn add(&self, commands: &PackedCommands) {
        let mut owed = lock(&self.0);
        for command in 0..commands.len() {
            if owed.bytes().len() >= Self::MAX_BYTES {
                return;
            }
            owed.copy(commands, command);
        }
    }

    pub(crate) fn take(&self) -> PackedCommands {
        mem::take(&mut *lock(&self.0))
    }

    /// Keeps those of `commands` that this node did not carry out, but another one will, or this one later.
    pub(crate) fn keep_undone(&self, commands: &PackedCommands, replies: &[Value]) {
        let mut undone = PackedCommands::default();
        for (command, reply) in replies.iter().enumerate() {
            if is_undone(reply) {
                undone.copy(commands, command);
            }
        }
        self.add(&undone);
    }
}

fn is_undone(reply: &Value) -> bool {
    let is_elsewhere =
        matches!(reply, Value::ServerError(error) if matches!(error.code(), "MOVED" | "ASK"));
    is_elsewhere || is_unserved_slot(reply) || NodeFailure::of_reply(reply).is_some()
}

/// The EXPIRE commands that one connection has sent in the last second or two: a failover can forget them.
#[derive(Debug)]
pub(crate) struct RecentExpiries {
    young: PackedCommands,
    old: PackedCommands,
    /// When the first of the young ones was sent.
    since: Instant,
}

impl RecentExpiries {
    /// A replica that is further behind has lost more than times to live.
    const KEPT: Duration = Duration::from_secs(1);

    /// About a thousand commands. Of more, the last ones are kept.
    const MAX_BYTES: usize = 64 << 10;

    pub(crate) fn new(now: Instant) -> Self {
        Self {
            young: PackedCommands::default(),
            old: PackedCommands::default(),
            since: now,
        }
    }

    /// Adds a copy of one of the commands of `sent`.
    pub(crate) fn add(&mut self, sent: &PackedCommands, command: usize, now: Instant) {
        let is_full = self.young.bytes().len() >= Self::MAX_BYTES;
        if is_full || now.saturating_duration_since(self.since) >= Self::KEPT {
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.since = now;
        }
        self.young.copy(sent, command);
    }

    /// Leaves all of them to `owed`.
    pub(crate) fn leave_to(&mut self, owed: &OwedExpiries) {
        for recent in [&mut self.old, &mut self.young] {
            owed.add(recent);
            recent.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis;

    use super::*;

    fn expiries(keys: &[&str]) -> PackedCommands {
        let mut commands = PackedCommands::default();
        for key in keys {
            commands.push(&[b"EXPIRE", key.as_bytes(), b"9"]);
        }
        commands
    }

    #[track_caller]
    fn check(owed: &OwedExpiries, expected: &[&str]) {
        assert_eq!(owed.take().bytes(), expiries(expected).bytes());
    }

    #[test]
    fn what_another_node_has_to_do_or_this_one_later_stays_owed() {
        let error =
            |text: &str| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
        let replies = [
            Value::Int(1),
            error("MOVED 1 127.0.0.1:1"),
            Value::Int(0),
            error("READONLY a replica"),
            error("NOPERM no permission"),
            error("ASK 1 127.0.0.1:1"),
        ];
        let owed = OwedExpiries::default();
        owed.keep_undone(&expiries(&["a", "b", "c", "d", "e", "f"]), &replies);
        check(&owed, &["b", "d", "f"]);
        check(&owed, &[]);
    }

    #[test]
    fn what_is_owed_is_bounded() {
        let owed = OwedExpiries::default();
        let long = "k".repeat(OwedExpiries::MAX_BYTES / 4);
        for _ in 0..9 {
            owed.add(&expiries(&[&long]));
        }
        assert_eq!(owed.take().len(), 4);
    }

    #[test]
    fn a_connection_keeps_the_expiries_of_the_last_second_and_no_older_ones() {
        let (owed, start) = (OwedExpiries::default(), Instant::now());
        let mut recent = RecentExpiries::new(start);
        let all = expiries(&["a", "b", "c", "d"]);
        for (command, millis) in [(0, 0), (1, 900), (2, 1_100), (3, 2_200)] {
            recent.add(&all, command, start + Duration::from_millis(millis));
        }
        recent.leave_to(&owed);
        check(&owed, &["c", "d"]);
        recent.leave_to(&owed);
        check(&owed, &[]);
        let long = "k".repeat(RecentExpiries::MAX_BYTES);
        for _ in 0..9 {
            recent.add(&expiries(&[&long]), 0, start);
        }
        recent.leave_to(&owed);
        assert_eq!(owed.take().len(), 2);
    }
}
