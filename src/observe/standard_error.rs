//! Standard error, which may be closed, full, or a pipe whose reader is gone.

use std::{
    io::{self, IsTerminal as _, Write},
    sync::Mutex,
};

use crate::foundation::lock::lock;

/// Whether the last line was cut off. The lock also keeps the lines of several threads apart.
static IS_CUT: Mutex<bool> = Mutex::new(false);

/// Writes whole lines. If only a part of a line could be written, a line break precedes the next one.
///
/// # Errors
///
/// If not all of them can be written.
pub(crate) fn write(lines: &[u8]) -> io::Result<()> {
    write_whole(&mut io::stderr().lock(), lines, &mut lock(&IS_CUT))
}

/// Whether standard error is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

fn write_whole(output: &mut impl Write, lines: &[u8], is_cut: &mut bool) -> io::Result<()> {
    if *is_cut {
        output.write_all(b"\n")?;
        *is_cut = false;
    }
    let mut written = 0;
    while written < lines.len() {
        let error = match output.write(&lines[written..]) {
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(bytes) => {
                written += bytes;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => error,
        };
        *is_cut = !matches!(lines[..written].last(), None | Some(b'\n'));
        return Err(error);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (mut disk, mut is_cut) = (
            Disk {
                room: 0,
                text: Vec::new(),
            },
            false,
        );
        for (room, line) in lines {
            disk.room = *room;
            let written = write_whole(&mut disk, line.as_bytes(), &mut is_cut);
            assert_eq!(written.is_ok(), *room >= 99, "{line:?}");
        }
        assert_eq!(String::from_utf8(disk.text).unwrap(), expected);
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
        check(&[(4, "one\ntwo\n"), (99, "three\n")], "one\nthree\n");
    }
}
