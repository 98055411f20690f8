//! The way of decisions into the queue of lines, which drops them rather than wait.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    foundation::{log_throttle::LogThrottle, sample::SampleWriter},
    observe::line_queue::{self, Dropped, LineReceiver, LineSender},
};

/// Counts of the lines that were written and lost.
#[derive(Debug, Default)]
pub struct DecisionLogStats {
    pub(super) written: AtomicU64,
    /// The queue was full, or the line could not be written.
    pub(super) dropped: AtomicU64,
}

impl DecisionLogStats {
    pub(in crate::observe) fn samples(&self, list: &mut SampleWriter<'_>) {
        for (name, lines) in [("written", &self.written), ("dropped", &self.dropped)] {
            let name = format!("tollgate.decision_log_{name}_total");
            list.counter(name, lines.load(Relaxed));
        }
    }
}

/// The sending end. Clones share one queue.
#[derive(Clone, Debug)]
pub(crate) struct DecisionSender {
    lines: LineSender,
    stats: Arc<DecisionLogStats>,
    throttle: Arc<LogThrottle>,
}

/// A queue of the lines of decisions.
pub(crate) fn queue(stats: Arc<DecisionLogStats>) -> (DecisionSender, LineReceiver) {
    let (lines, receiver) = line_queue::queue();
    let sender = DecisionSender {
        lines,
        stats,
        throttle: Arc::default(),
    };
    (sender, receiver)
}

impl DecisionSender {
    /// Puts a line into the queue, with its end, or counts it as dropped.
    pub(super) fn send(&self, mut line: String) {
        line.push('\n');
        let Err(dropped) = self.lines.send(line.into_bytes()) else {
            return;
        };
        self.stats.dropped.fetch_add(1, Relaxed);
        // The end of the writer is logged by its owner.
        if dropped == Dropped::Full && self.throttle.may_log() {
            tracing::warn!(
                "decisions are logged faster than they can be written; some are dropped"
            );
        }
    }

    /// Ends the queue behind the lines that wait.
    pub(crate) fn end(&self) {
        self.lines.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_writes_are_counted() {
        let stats = Arc::new(DecisionLogStats::default());
        let (sender, receiver) = queue(stats.clone());
        sender.send("a".to_owned());
        assert_eq!(stats.dropped.load(Relaxed), 0);
        sender.send("x".repeat(5 << 20));
        assert_eq!(stats.dropped.load(Relaxed), 1);
        drop(receiver);
        sender.send("b".to_owned());
        assert_eq!(stats.dropped.load(Relaxed), 2);
    }
}
