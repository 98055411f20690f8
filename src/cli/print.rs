//! Prints the output of commands. Its reader can be gone.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use crate::foundation::printable::on_its_lines;

/// The exit code if the reader of the output is gone, as in `tollgate check rules | head -n 1`. A program that SIGPIPE
/// ends has this code.
const READER_GONE: u8 = 141;

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub(crate) struct PrintError(#[from] io::Error);

/// Prints a line to standard output.
///
/// # Errors
///
/// If it cannot be written.
pub(crate) fn print(text: &str) -> Result<(), PrintError> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Prints bytes to standard output as they are.
///
/// # Errors
///
/// If it cannot be written.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), PrintError> {
    let mut output = io::stdout().lock();
    output.write_all(bytes)?;
    Ok(output.flush()?)
}

/// Prints a line to standard error. If that is closed, nothing can report it.
pub(crate) fn print_error(line: &str) {
    let line = on_its_lines(line);
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Ends a command that failed: prints the error and returns `code`. If the reader of its output is gone, prints
/// nothing.
pub(crate) fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
    if let Some(PrintError(error)) = error.downcast_ref()
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        return ExitCode::from(READER_GONE);
    }
    print_error(&format!("{error:#}"));
    ExitCode::from(code)
}
