//! A bound on bytes.

/// Bytes that may still be taken.
#[derive(Debug)]
pub(super) struct ByteRoom {
    left: usize,
}

impl ByteRoom {
    pub(super) fn new(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// Takes bytes; returns whether there were as many.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// Gives bytes back.
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.left += bytes;
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left
    }
}
