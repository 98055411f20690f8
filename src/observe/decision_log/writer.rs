//! Writes the queued lines on a thread of its own, so that a slow disk delays no decision.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use super::{
    file::{FileOptions, RotatingFile},
    queue::DecisionLogStats,
};
use crate::{
    foundation::log_throttle::LogThrottle,
    observe::{line_queue::LineReceiver, standard_error},
};

/// Most bytes of lines that are written together.
const MAX_BATCH_BYTES: u64 = 64 << 10;

/// How long the writer lets further lines gather after the first one. To wake it for each line costs more than to
/// render the line. With this wait, the queue has room for 200 MB of lines a second.
const GATHERING: Duration = Duration::from_millis(20);

/// Where the lines go.
#[derive(Clone, Debug)]
pub(crate) enum LineTarget {
    /// Standard error, between the lines of the log.
    StandardError,
    File(FileOptions),
}

#[derive(Debug)]
enum Output {
    StandardError,
    File(RotatingFile),
}

/// Writes lines, several at once.
#[derive(Debug)]
pub(crate) struct LineWriter {
    output: Output,
    stats: Arc<DecisionLogStats>,
    throttle: LogThrottle,
    batch: Vec<u8>,
    lines: u64,
}

impl LineWriter {
    /// A writer to `target`.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub(crate) fn open(target: LineTarget, stats: Arc<DecisionLogStats>) -> io::Result<Self> {
        let output = match target {
            LineTarget::StandardError => Output::StandardError,
            LineTarget::File(options) => Output::File(RotatingFile::open(options)?),
        };
        Ok(Self {
            output,
            stats,
            throttle: LogThrottle::new(),
            batch: Vec::new(),
            lines: 0,
        })
    }

    /// Writes lines until the queue ends, and counts those that cannot be written as dropped.
    pub(crate) fn write_all(mut self, queue: &LineReceiver) {
        while let Some(line) = queue.next() {
            self.add(&line);
            thread::sleep(GATHERING);
            // Lines that are waiting share one system call with it.
            while let Some(next) = queue.next_waiting() {
                let Some(next) = next else {
                    return self.write();
                };
                self.add(&next);
            }
            self.write();
        }
    }

    fn add(&mut self, line: &[u8]) {
        if (self.batch.len() + line.len()) as u64 > self.room().min(MAX_BATCH_BYTES) {
            self.write();
        }
        self.batch.extend_from_slice(line);
        self.lines += 1;
    }

    fn room(&self) -> u64 {
        match &self.output {
            Output::StandardError => u64::MAX,
            Output::File(file) => file.room(),
        }
    }

    fn write(&mut self) {
        let counter = match self.try_write() {
            Ok(()) => &self.stats.written,
            Err(error) => {
                if self.throttle.may_log() {
                    tracing::warn!(%error, "decisions cannot be logged; their lines are dropped");
                }
                &self.stats.dropped
            }
        };
        counter.fetch_add(self.lines, Relaxed);
        self.batch.clear();
        self.lines = 0;
    }

    fn try_write(&mut self) -> io::Result<()> {
        let text = &self.batch;
        match &mut self.output {
            Output::StandardError => standard_error::write(text),
            Output::File(file) => {
                if text.len() as u64 > file.room() {
                    file.rotate()?;
                }
                file.write(text)
            }
        }
    }
}
