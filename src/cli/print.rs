//! Writes to standard output.

use std::io::{self, Write as _};

/// Prints to standard output and ignores a closed pipe.
pub(crate) fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints to standard output as it is, and ignores a closed pipe.
pub(crate) fn print_bytes(bytes: &[u8]) {
    let _ = io::stdout().write_all(bytes);
}
