//! The log's queue to standard error. A thread that logs never waits for the reader of standard error; a line that
//! cannot be written is dropped and counted.

use std::{
    io,
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
        mpsc,
    },
};

use crate::foundation::{log_throttle::LogThrottle, sample::SampleWriter};

/// Most bytes of waiting lines: about ten thousand lines, which a disk writes in a moment.
const MAX_BYTES: usize = 4 << 20;

/// The memory of a waiting line in addition to its text.
const LINE_BYTES: usize = 64;

/// Counts of lost lines.
#[derive(Debug, Default)]
pub struct LogStats {
    /// The queue was full, or the line could not be written.
    dropped: AtomicU64,
}

impl LogStats {
    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        let dropped = self.dropped.load(Relaxed);
        list.counter("tollgate.log_lines_dropped_total", dropped);
    }
}

/// The sending end: each write is one line. Clones share one queue.
#[derive(Clone, Debug)]
pub(crate) struct LogLines {
    lines: mpsc::Sender<Option<Vec<u8>>>,
    waiting_bytes: Arc<AtomicUsize>,
    stats: Arc<LogStats>,
}

/// The writing end of the queue.
#[derive(Debug)]
pub(crate) struct LogWriter {
    lines: mpsc::Receiver<Option<Vec<u8>>>,
    waiting_bytes: Arc<AtomicUsize>,
    stats: Arc<LogStats>,
    throttle: LogThrottle,
    /// How many of the dropped lines the log has reported.
    reported: u64,
}

/// Creates the queue.
pub(crate) fn log_lines(stats: Arc<LogStats>) -> (LogLines, LogWriter) {
    let (sender, receiver) = mpsc::channel();
    let waiting_bytes = Arc::new(AtomicUsize::new(0));
    let lines = LogLines {
        lines: sender,
        waiting_bytes: waiting_bytes.clone(),
        stats: stats.clone(),
    };
    let writer = LogWriter {
        lines: receiver,
        waiting_bytes,
        stats,
        throttle: LogThrottle::new(),
        reported: 0,
    };
    (lines, writer)
}

impl LogLines {
    /// Ends the queue after the lines that are waiting.
    pub(crate) fn end(&self) {
        // Without a receiver, the queue has ended already.
        let _ = self.lines.send(None);
    }

    /// Puts a line into the queue; returns false if that is full, or its receiver is gone.
    fn send(&self, line: &[u8]) -> bool {
        let bytes = line.len() + LINE_BYTES;
        let has_room = self.waiting_bytes.fetch_add(bytes, AcqRel) + bytes <= MAX_BYTES;
        let is_sent = has_room && self.lines.send(Some(line.to_owned())).is_ok();
        if !is_sent {
            self.waiting_bytes.fetch_sub(bytes, AcqRel);
        }
        is_sent
    }
}

impl io::Write for &LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.send(line) {
            self.stats.dropped.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogWriter {
    /// Passes lines to `write` until the queue ends. When writing works again after a failure, one line reports how
    /// many lines were dropped.
    pub(crate) fn write_all(mut self, mut write: impl FnMut(&[u8]) -> io::Result<()>) {
        let mut is_written = false;
        loop {
            let next = self.lines.try_recv().or_else(|_| {
                if is_written {
                    self.report_dropped();
                }
                self.lines.recv()
            });
            let Ok(Some(line)) = next else { return };
            let bytes = line.len() + LINE_BYTES;
            self.waiting_bytes.fetch_sub(bytes, AcqRel);
            is_written = write(&line).is_ok();
            if !is_written {
                self.stats.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// Logs how many lines were dropped since the last report. This line goes through the queue too.
    fn report_dropped(&mut self) {
        let dropped = self.stats.dropped.load(Relaxed);
        if dropped > self.reported && self.throttle.may_log() {
            // Logged as an error, so that it appears at every log level.
            tracing::error!(
                lines = dropped - self.reported,
                "lines of the log could not be written and are lost"
            );
            self.reported = dropped;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        sync::{Mutex, mpsc},
        thread,
    };

    use super::*;

    #[test]
    fn a_full_queue_drops_lines_until_one_is_taken() {
        let stats = Arc::new(LogStats::default());
        let (lines, writer) = log_lines(stats.clone());
        let line = vec![b'x'; (1 << 20) - LINE_BYTES];
        for _ in 0..5 {
            (&lines).write_all(&line).unwrap();
        }
        assert_eq!(stats.dropped.load(Relaxed), 1);
        lines.end();
        let mut written = 0;
        writer.write_all(|_| {
            written += 1;
            Ok(())
        });
        assert_eq!(written, 4);
        // Without a receiver. More than fits: what is dropped holds no room.
        for _ in 0..5 {
            (&lines).write_all(&line).unwrap();
        }
        assert_eq!(stats.dropped.load(Relaxed), 6);
        assert_eq!(lines.waiting_bytes.load(Relaxed), 0);
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_once_when_lines_can_be_written_again() {
        let stats = Arc::new(LogStats::default());
        let (lines, writer) = log_lines(stats.clone());
        let (works, seen) = (
            Arc::new(Mutex::new(true)),
            Arc::new(Mutex::new(String::new())),
        );
        let (tried, each_try) = mpsc::channel();
        let write = {
            let (works, seen) = (works.clone(), seen.clone());
            move |line: &[u8]| {
                let works = *works.lock().unwrap();
                if works {
                    seen.lock().unwrap().push_str(str::from_utf8(line).unwrap());
                }
                tried.send(()).unwrap();
                works.then_some(()).ok_or(io::ErrorKind::BrokenPipe.into())
            }
        };
        let log = tracing_subscriber::fmt()
            .with_writer(Arc::new(lines.clone()))
            .without_time()
            .with_ansi(false)
            .finish();
        let writing = thread::spawn(|| {
            tracing::subscriber::with_default(log, || writer.write_all(write));
        });
        let say = |works_now: bool, line: &str| {
            *works.lock().unwrap() = works_now;
            (&lines).write_all(line.as_bytes()).unwrap();
            each_try.recv().unwrap();
        };
        say(true, "one\n");
        say(false, "two\n");
        say(false, "three\n");
        say(true, "four\n");
        // The report.
        each_try.recv().unwrap();
        say(true, "five\n");
        lines.end();
        writing.join().unwrap();
        assert_eq!(stats.dropped.load(Relaxed), 2);
        let seen = seen.lock().unwrap();
        let report = "ERROR tollgate::observe::log_lines: lines of the log could not be written and are lost lines=2";
        let expected = ["one", "four", report, "five"];
        assert_eq!(seen.lines().map(str::trim).collect::<Vec<_>>(), expected);
    }
}
