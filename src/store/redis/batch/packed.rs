//! Commands in wire format, one after the other.

/// Commands, any of which can be copied out and sent again.
#[derive(Clone, Debug, Default)]
pub(crate) struct PackedCommands {
    bytes: Vec<u8>,
    /// Where each command ends.
    ends: Vec<usize>,
}

impl PackedCommands {
    /// A single command.
    pub(crate) fn one(words: &[&[u8]]) -> Self {
        let mut packed = Self::default();
        packed.push(words);
        packed
    }

    /// Reserves room for `commands`, which take `bytes` in all.
    pub(crate) fn with_capacity(commands: usize, bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(commands),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds a command of `words`.
    pub(crate) fn push(&mut self, words: &[&[u8]]) {
        let mut command = self.command(words.len());
        for word in words {
            command.word(word);
        }
    }

    /// Begins a command of `words` words, which the caller then writes.
    pub(crate) fn command(&mut self, words: usize) -> CommandWriter<'_> {
        self.bytes.push(b'*');
        push_line(&mut self.bytes, words);
        CommandWriter { packed: self }
    }

    /// Adds the most frequent command. INCR costs Redis a sixth less than INCRBY with a 1.
    pub(crate) fn increment(&mut self, key: &[&[u8]; 2], hits: u64) {
        let head: &[u8] = match hits {
            1 => b"*2\r\n$4\r\nINCR\r\n$",
            _ => b"*3\r\n$6\r\nINCRBY\r\n$",
        };
        let bytes = &mut self.bytes;
        bytes.extend_from_slice(head);
        push_line(bytes, key[0].len() + key[1].len());
        bytes.extend_from_slice(key[0]);
        bytes.extend_from_slice(key[1]);
        bytes.extend_from_slice(b"\r\n");
        if hits == 1 {
            self.ends.push(bytes.len());
        } else {
            CommandWriter { packed: self }.number(hits);
        }
    }

    /// Adds a copy of one of the commands of `other`.
    pub(crate) fn copy(&mut self, other: &Self, command: usize) {
        self.bytes.extend_from_slice(other.bytes_of(command));
        self.ends.push(self.bytes.len());
    }

    /// Adds a copy of one of the commands of `other` whose first words are those of `head`.
    pub(crate) fn copy_with_head<const N: usize>(
        &mut self,
        other: &Self,
        command: usize,
        head: [&[u8]; N],
    ) {
        // The number of words has a line, and each word has one for its length and one for itself: these words are
        // names and digests without line ends.
        let mut lines = other
            .bytes_of(command)
            .split_inclusive(|byte| *byte == b'\n');
        let mut command = CommandWriter { packed: self };
        if let Some(count) = lines.next() {
            command.packed.bytes.extend_from_slice(count);
        }
        for word in head {
            command.word(word);
        }
        for rest in lines.skip(2 * N) {
            command.packed.bytes.extend_from_slice(rest);
        }
    }

    /// Adds a copy of one of the commands of `other` whose last word is a number, with another number.
    pub(crate) fn copy_with_last(&mut self, other: &Self, command: usize, number: u64) {
        let mut kept = other.bytes_of(command);
        // The last word has a line for its length and one for itself.
        for _ in 0..2 {
            let end = kept[..kept.len() - 1]
                .iter()
                .rposition(|byte| *byte == b'\n');
            kept = &kept[..end.map_or(0, |end| end + 1)];
        }
        self.bytes.extend_from_slice(kept);
        CommandWriter { packed: self }.number(number);
    }

    /// The first word of a command, for operators.
    pub(crate) fn name(&self, command: usize) -> &str {
        let [name, _] = self.first_words(command);
        str::from_utf8(name).unwrap_or_default()
    }

    /// The second word of a command of two words or more: its key.
    pub(crate) fn key(&self, command: usize) -> &[u8] {
        let [_, key] = self.first_words(command);
        key
    }

    fn first_words(&self, command: usize) -> [&[u8]; 2] {
        let mut rest = self.bytes_of(command);
        let mut line = |length: Option<usize>| {
            let end = length.or_else(|| rest.iter().position(|byte| *byte == b'\r'));
            let (line, after) = rest.split_at(end.unwrap_or(rest.len()).min(rest.len()));
            rest = after.get(2..).unwrap_or_default();
            line
        };
        line(None);
        [(); 2].map(|()| {
            let length = line(None)
                .get(1..)
                .and_then(|digits| str::from_utf8(digits).ok());
            line(length.and_then(|digits| digits.parse().ok()))
        })
    }

    fn bytes_of(&self, command: usize) -> &[u8] {
        let start = command.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[command]]
    }
}

/// A command that is being written; dropping it completes it.
pub(crate) struct CommandWriter<'a> {
    packed: &'a mut PackedCommands,
}

impl CommandWriter<'_> {
    pub(crate) fn word(&mut self, word: &[u8]) -> &mut Self {
        self.words(&[word])
    }

    /// Writes one word, joined from `parts`.
    pub(crate) fn words(&mut self, parts: &[&[u8]]) -> &mut Self {
        let bytes = &mut self.packed.bytes;
        bytes.push(b'$');
        push_line(bytes, parts.iter().map(|part| part.len()).sum::<usize>());
        for part in parts {
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(b"\r\n");
        self
    }

    pub(crate) fn number(&mut self, number: impl itoa::Integer) -> &mut Self {
        self.word(itoa::Buffer::new().format(number).as_bytes())
    }
}

impl Drop for CommandWriter<'_> {
    fn drop(&mut self) {
        self.packed.ends.push(self.packed.bytes.len());
    }
}

fn push_line(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_lists_of_words_after_their_lengths() {
        let mut packed = PackedCommands::one(&[b"GET", b""]);
        packed
            .command(3)
            .word(b"INCRBY")
            .words(&[b"a:", b"\r\n"])
            .number(-12);
        let expected = "*2\r\n$3\r\nGET\r\n$0\r\n\r\n\
                        *3\r\n$6\r\nINCRBY\r\n$4\r\na:\r\n\r\n$3\r\n-12\r\n";
        assert_eq!(packed.bytes(), expected.as_bytes());
        assert_eq!(packed.len(), 2);
    }

    #[test]
    fn increments_are_commands_like_others() {
        let increment = |hits| {
            let mut increment = PackedCommands::default();
            increment.increment(&[b"a:", b"\r\n"], hits);
            assert_eq!(increment.len(), 1);
            increment.bytes
        };
        let one = PackedCommands::one(&[b"INCR", b"a:\r\n"]);
        assert_eq!(increment(1), one.bytes());
        for hits in [0, 2, 10, u64::MAX] {
            let text = hits.to_string();
            let command = PackedCommands::one(&[b"INCRBY", b"a:\r\n", text.as_bytes()]);
            assert_eq!(increment(hits), command.bytes());
        }
    }

    #[test]
    fn a_command_can_get_another_head() {
        let mut packed = PackedCommands::one(&[b"PING"]);
        packed.push(&[b"EVALSHA", b"abc", b"1", b"k\r\ny"]);
        let mut other = PackedCommands::default();
        other.copy_with_head(&packed, 1, [b"EVAL", b"return\n1"]);
        let expected = PackedCommands::one(&[b"EVAL", b"return\n1", b"1", b"k\r\ny"]);
        assert_eq!((other.bytes(), other.len()), (expected.bytes(), 1));
        assert_eq!((packed.name(0), packed.name(1)), ("PING", "EVALSHA"));
    }

    #[test]
    fn a_command_can_get_another_last_number() {
        let mut packed = PackedCommands::one(&[b"PING"]);
        packed.push(&[b"EVALSHA", b"k\r\ny", b"1700000000000"]);
        let mut other = PackedCommands::default();
        other.copy_with_last(&packed, 1, 7);
        let expected = PackedCommands::one(&[b"EVALSHA", b"k\r\ny", b"7"]);
        assert_eq!((other.bytes(), other.len()), (expected.bytes(), 1));
    }

    #[test]
    fn the_first_two_words_are_found_whatever_bytes_they_hold() {
        let mut packed = PackedCommands::one(&[b"PING"]);
        packed.push(&[b"EXPIRE", b"a\r\n$3\r\nb", b"7"]);
        packed.increment(&[b"p:", b"key"], 3);
        assert_eq!(
            [0, 1, 2].map(|command| packed.name(command)),
            ["PING", "EXPIRE", "INCRBY"]
        );
        assert_eq!(
            [0, 1, 2].map(|command| packed.key(command)),
            [&b""[..], b"a\r\n$3\r\nb", b"p:key"]
        );
    }
}
