//! Puts the lines of decisions into a queue; a full queue drops lines rather than wait.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    foundation::{log_throttle::LogThrottle, sample::SampleWriter},
    observe::line_queue::{self, Dropped, LineReceiver, LineSender},
};

/// Counts of written and dropped lines.
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

/// Creates the queue.
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
    /// Puts a line and a line break into the queue, or counts the line as dropped.
    pub(super) fn send(&self, mut line: String) {
        line.push('\n');
        let Err(dropped) = self.lines.send(line.into_bytes()) else {
            return;
        };
        self.stats.dropped.fetch_add(1, Relaxed);
        // If the writer has ended, its owner logs that.
        if dropped == Dropped::Full && self.throttle.may_log() {
            tracing::warn!(
                "decisions are logged faster than they can be written; some are dropped"
            );
        }
    }

    /// Ends the queue after the lines that are waiting.
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
