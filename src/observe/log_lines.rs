//! The log's queue to standard error, which may be closed, full, or a pipe whose reader is gone or stalls. No thread
//! that logs waits for it; a line that cannot be written is dropped and counted.

use std::{
    io::{self, IsTerminal as _, Stderr, Write},
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
};

use crate::foundation::{log_throttle::LogThrottle, sample::SampleWriter};

/// Most bytes of waiting lines: about ten thousand lines, which a disk writes in a moment.
const MAX_BYTES: usize = 4 << 20;

/// Least bytes that a waiting line counts.
const LEAST_LINE_BYTES: usize = 256;

/// Places in the queue: more than lines can take, so that bytes alone decide, and the end of the queue has a place.
pub(crate) const MAX_LINES: usize = MAX_BYTES / LEAST_LINE_BYTES + 1;

/// Counts of waiting and lost lines.
#[derive(Debug, Default)]
pub struct LogStats {
    waiting_bytes: AtomicUsize,
    /// The queue was full, or the line could not be written.
    dropped: AtomicU64,
}

impl LogStats {
    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        list.total("tollgate.log_lines_dropped_total", &self.dropped);
    }
}

/// The sending end: each write is one line, which goes to `queue` if there is room.
#[derive(Clone, Debug)]
pub(crate) struct LogLines<Q> {
    pub(crate) queue: Q,
    pub(crate) stats: Arc<LogStats>,
}

impl<Q: Write> Write for LogLines<Q> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let (stats, bytes) = (&self.stats, bytes(line));
        if stats.waiting_bytes.fetch_add(bytes, AcqRel) + bytes <= MAX_BYTES {
            return self.queue.write(line);
        }
        stats.waiting_bytes.fetch_sub(bytes, AcqRel);
        stats.dropped.fetch_add(1, Relaxed);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn bytes(line: &[u8]) -> usize {
    line.len().max(LEAST_LINE_BYTES)
}

/// The writing end. It has no errors; [`LogStats`] counts them.
#[derive(Debug)]
pub(crate) struct LogWriter<W> {
    output: W,
    stats: Arc<LogStats>,
    /// Whether the latest line is written.
    is_written: bool,
    /// Whether the output ends within a line.
    is_cut: bool,
    throttle: LogThrottle,
    /// How many of the dropped lines the log has reported.
    reported: u64,
}

/// Whether standard error is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

impl LogWriter<Stderr> {
    pub(crate) fn of_standard_error(stats: Arc<LogStats>) -> Self {
        Self::new(io::stderr(), stats)
    }
}

impl<W: Write> LogWriter<W> {
    fn new(output: W, stats: Arc<LogStats>) -> Self {
        Self {
            output,
            stats,
            is_written: false,
            is_cut: false,
            throttle: LogThrottle::new(),
            reported: 0,
        }
    }

    /// Writes a whole line. If only a part of a line could be written, a line break precedes the next one.
    fn write_whole(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_cut {
            self.output.write_all(b"\n")?;
            self.is_cut = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match self.output.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    rest = &rest[bytes..];
                    self.is_cut = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<W: Write> Write for LogWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.stats.waiting_bytes.fetch_sub(bytes(line), AcqRel);
        self.is_written = self.write_whole(line).is_ok();
        if !self.is_written {
            self.stats.dropped.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    /// Called when no line waits: once lines can be written again, logs how many were dropped since the last report.
    /// This line goes through the queue too.
    fn flush(&mut self) -> io::Result<()> {
        let dropped = self.stats.dropped.load(Relaxed);
        if self.is_written && dropped > self.reported && self.throttle.may_log() {
            // Logged as an error, so that it appears at every log level.
            tracing::error!(
                lines = dropped - self.reported,
                "lines of the log could not be written and are lost"
            );
            self.reported = dropped;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> LogLines<Vec<u8>> {
        LogLines {
            queue: Vec::new(),
            stats: Arc::default(),
        }
    }

    #[test]
    fn lines_beyond_the_bound_are_dropped_and_hold_no_room() {
        let mut lines = lines();
        for _ in 0..6 {
            lines.write_all(&[b'x'; 1 << 20]).unwrap();
        }
        assert_eq!(lines.queue.len(), MAX_BYTES);
        assert_eq!(lines.stats.dropped.load(Relaxed), 2);
        assert_eq!(lines.stats.waiting_bytes.load(Relaxed), MAX_BYTES);
    }

    #[test]
    fn short_lines_never_take_all_places() {
        let mut lines = lines();
        for _ in 0..MAX_LINES + 10 {
            lines.write_all(b"x").unwrap();
        }
        assert!(lines.queue.len() < MAX_LINES);
    }

    /// Takes as many bytes as there is room for.
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = bytes.len().min(self.room);
            if fits == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= fits;
            self.text.extend(&bytes[..fits]);
            Ok(fits)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Checks the text on the disk after writing `lines`; each number is the room on the disk before its line.
    #[track_caller]
    fn check(lines: &[(usize, &str)], expected: &str) {
        let disk = Disk {
            room: 0,
            text: Vec::new(),
        };
        let mut writer = LogWriter::new(disk, Arc::default());
        for (room, line) in lines {
            writer.output.room = *room;
            writer.write_all(line.as_bytes()).unwrap();
            assert_eq!(writer.is_written, *room >= 99, "{line:?}");
        }
        let lost = lines.iter().filter(|(room, _)| *room < 99).count();
        assert_eq!(writer.stats.dropped.load(Relaxed), lost as u64);
        assert_eq!(String::from_utf8(writer.output.text).unwrap(), expected);
    }

    #[test]
    fn a_line_never_goes_on_after_one_that_was_cut_off() {
        check(&[(99, "one\n"), (99, "two\n")], "one\ntwo\n");
        check(&[(0, "one\n"), (99, "two\n")], "two\n");
        check(
            &[(2, "one\n"), (99, "two\n"), (99, "three\n")],
            "on\ntwo\nthree\n",
        );
        check(
            &[(2, "one\n"), (0, "two\n"), (99, "three\n")],
            "on\nthree\n",
        );
        check(
            &[(2, "one\n"), (1, "two\n"), (99, "three\n")],
            "on\nthree\n",
        );
    }
}
