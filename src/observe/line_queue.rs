//! A queue of lines from the threads that produce them to the thread that writes them. Producers never wait for a disk
//! or a reader.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::AcqRel},
    mpsc,
};

/// Most bytes of waiting lines: about ten thousand lines, which a disk writes in a moment.
const MAX_BYTES: usize = 4 << 20;

/// The memory of a waiting line in addition to its text.
const LINE_BYTES: usize = 64;

/// Why a line was dropped: the queue is full, or its receiver is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    Full,
    Ended,
}

/// The sending end. Clones share one queue.
#[derive(Clone, Debug)]
pub(crate) struct LineSender {
    lines: mpsc::Sender<Option<Vec<u8>>>,
    held: Arc<AtomicUsize>,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct LineReceiver {
    lines: mpsc::Receiver<Option<Vec<u8>>>,
    held: Arc<AtomicUsize>,
}

/// A queue of lines.
pub(crate) fn queue() -> (LineSender, LineReceiver) {
    let (sender, lines) = mpsc::channel();
    let held = Arc::new(AtomicUsize::new(0));
    let sender = LineSender {
        lines: sender,
        held: held.clone(),
    };
    (sender, LineReceiver { lines, held })
}

impl LineSender {
    /// Puts a line into the queue.
    ///
    /// # Errors
    ///
    /// If the line is dropped.
    pub(crate) fn send(&self, line: Vec<u8>) -> Result<(), Dropped> {
        let bytes = line.len() + LINE_BYTES;
        let dropped = if self.held.fetch_add(bytes, AcqRel) + bytes > MAX_BYTES {
            Dropped::Full
        } else if self.lines.send(Some(line)).is_err() {
            Dropped::Ended
        } else {
            return Ok(());
        };
        self.held.fetch_sub(bytes, AcqRel);
        Err(dropped)
    }

    /// Ends the queue after the lines that are waiting.
    pub(crate) fn end(&self) {
        // Without a receiver, the queue has ended already.
        let _ = self.lines.send(None);
    }
}

impl LineReceiver {
    /// Waits for the next line; `None` at the end.
    pub(crate) fn next(&self) -> Option<Vec<u8>> {
        self.taken(self.lines.recv().ok()?)
    }

    /// Returns the next line if one is waiting, without blocking; `Some(None)` at the end of the queue.
    pub(crate) fn next_waiting(&self) -> Option<Option<Vec<u8>>> {
        Some(self.taken(self.lines.try_recv().ok()?))
    }

    fn taken(&self, line: Option<Vec<u8>>) -> Option<Vec<u8>> {
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
    fn a_full_queue_drops_lines_until_one_is_taken() {
        let (sender, receiver) = queue();
        let line = vec![b'x'; (1 << 20) - LINE_BYTES];
        for _ in 0..4 {
            assert_eq!(sender.send(line.clone()), Ok(()));
        }
        assert_eq!(sender.send(line.clone()), Err(Dropped::Full));
        assert_eq!(receiver.next(), Some(line));
        assert_eq!(sender.send(b"y".to_vec()), Ok(()));
        sender.end();
        let rest = std::iter::from_fn(|| receiver.next());
        assert_eq!(rest.count(), 4);
    }

    #[test]
    fn a_queue_that_nobody_reads_takes_no_line() {
        let (sender, receiver) = queue();
        drop(receiver);
        // More than fits: what is dropped holds no room.
        for _ in 0..5 {
            assert_eq!(sender.send(vec![b'x'; 1 << 20]), Err(Dropped::Ended));
        }
    }

    #[test]
    fn nothing_waits_in_an_empty_queue() {
        let (sender, receiver) = queue();
        assert_eq!(receiver.next_waiting(), None);
        sender.send(b"a".to_vec()).unwrap();
        sender.end();
        assert_eq!(receiver.next_waiting(), Some(Some(b"a".to_vec())));
        assert_eq!(receiver.next_waiting(), Some(None));
    }
}
