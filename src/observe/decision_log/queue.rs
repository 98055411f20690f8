//! The queue between decisions and the file of their lines: decisions never wait for it.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Relaxed},
    },
    mpsc,
};

use crate::foundation::{log_throttle::LogThrottle, sample::SampleWriter};

/// Most bytes of lines that may wait to be written: about ten thousand lines, which a disk takes in a moment.
const MAX_BYTES: usize = 4 << 20;

/// The memory of a waiting line beside its text.
const LINE_BYTES: usize = 64;

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
pub(crate) struct LineSender(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    lines: mpsc::Sender<Option<String>>,
    held: Arc<AtomicUsize>,
    stats: Arc<DecisionLogStats>,
    throttle: LogThrottle,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct LineReceiver {
    lines: mpsc::Receiver<Option<String>>,
    held: Arc<AtomicUsize>,
}

/// A queue of lines.
pub(crate) fn queue(stats: Arc<DecisionLogStats>) -> (LineSender, LineReceiver) {
    let (sender, lines) = mpsc::channel();
    let held = Arc::new(AtomicUsize::new(0));
    let sender = Sender {
        lines: sender,
        held: held.clone(),
        stats,
        throttle: LogThrottle::new(),
    };
    (LineSender(Arc::new(sender)), LineReceiver { lines, held })
}

impl LineSender {
    /// Puts a line into the queue, or counts it as dropped if the queue is full.
    pub(super) fn send(&self, line: String) {
        let bytes = line.len() + LINE_BYTES;
        let held = self.0.held.fetch_add(bytes, AcqRel);
        if held + bytes <= MAX_BYTES && self.0.lines.send(Some(line)).is_ok() {
            return;
        }
        self.0.held.fetch_sub(bytes, AcqRel);
        self.0.stats.dropped.fetch_add(1, Relaxed);
        if self.0.throttle.may_log() {
            tracing::warn!(
                "decisions are logged faster than they can be written; some are dropped"
            );
        }
    }

    /// Ends the queue behind the lines that wait.
    pub(crate) fn end(&self) {
        // Without a receiver it has ended.
        let _ = self.0.lines.send(None);
    }
}

impl LineReceiver {
    /// Waits for the next line; `None` at the end.
    pub(super) fn next(&self) -> Option<String> {
        self.taken(self.lines.recv().ok()?)
    }

    /// The next line, if one waits. At the end `None` in a `Some`.
    pub(super) fn next_waiting(&self) -> Option<Option<String>> {
        Some(self.taken(self.lines.try_recv().ok()?))
    }

    fn taken(&self, line: Option<String>) -> Option<String> {
        if let Some(line) = &line {
            self.held.fetch_sub(line.len() + LINE_BYTES, AcqRel);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_lines_and_counts_them() {
        let stats = Arc::new(DecisionLogStats::default());
        let (sender, receiver) = queue(stats.clone());
        let line = "x".repeat((1 << 20) - LINE_BYTES);
        for _ in 0..5 {
            sender.send(line.clone());
        }
        assert_eq!(stats.dropped.load(Relaxed), 1);
        // One was taken, so one more fits.
        assert_eq!(receiver.next().as_deref(), Some(&*line));
        sender.send("y".to_owned());
        assert_eq!(stats.dropped.load(Relaxed), 1);
        sender.end();
        let rest = std::iter::from_fn(|| receiver.next());
        assert_eq!(rest.count(), 4);
    }

    #[test]
    fn nothing_waits_in_an_empty_queue() {
        let (sender, receiver) = queue(Arc::default());
        assert_eq!(receiver.next_waiting(), None);
        sender.send("a".to_owned());
        sender.end();
        assert_eq!(receiver.next_waiting(), Some(Some("a".to_owned())));
        assert_eq!(receiver.next_waiting(), Some(None));
    }
}
