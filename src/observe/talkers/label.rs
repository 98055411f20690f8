//! The entries of a descriptor, cut to a bounded number of bytes, in a reusable buffer.
//!
//! The first byte is the number of entries. For each entry follow the lengths of the key and the value as they are
//! stored, the length of the whole value, and the stored bytes. Entries that do not fit are left out.

use sha2::{Digest as _, Sha256};

use super::ValueForm;
use crate::core::request::Entry;

/// Most bytes of a label.
const MAX_BYTES: usize = 512;

/// Most bytes of a key, and of a value.
const MAX_TEXT_BYTES: usize = 128;

/// Bytes of an entry before its key and value.
const HEAD_BYTES: usize = 2 + size_of::<u32>();

/// Bytes of a hash that are shown, in hexadecimal.
const HASH_BYTES: usize = 8;

/// The entries of one descriptor.
#[derive(Clone, Debug, Default)]
pub(super) struct Label(Vec<u8>);

/// An entry as a label holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TalkerEntry {
    pub(crate) key: Vec<u8>,
    /// `None` if values are hidden.
    pub(crate) value: Option<EntryValue>,
}

/// A value as a label holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryValue {
    pub(crate) shown: Vec<u8>,
    /// How many bytes were cut off.
    pub(crate) cut: usize,
}

/// Stands for the length of a hidden value.
const HIDDEN: u32 = u32::MAX;

impl Label {
    /// Replaces the content of the label by these entries. Entries are left out if there is no room for the buffer to
    /// grow.
    pub(super) fn set(&mut self, entries: &[Entry<'_>], form: ValueForm, room: &mut ByteRoom) {
        self.0.clear();
        let each = entries
            .iter()
            .map(|entry| HEAD_BYTES + shown(entry.key).len() + value_bytes(entry, form));
        let wanted = MAX_BYTES.min(1 + each.sum::<usize>());
        let more = wanted.saturating_sub(self.0.capacity());
        if more > 0 && room.take(more) {
            self.0.reserve_exact(wanted);
        }
        // The allocator may have given more than it was asked for.
        let max = self.0.capacity().min(MAX_BYTES);
        if max == 0 {
            return;
        }
        self.0.push(u8::try_from(entries.len()).unwrap_or(u8::MAX));
        for entry in entries {
            match form {
                ValueForm::Show => self.push(entry.key, entry.value, length(entry.value), max),
                ValueForm::Hash => {
                    let hash = hash(entry.value);
                    self.push(entry.key, &hash, length(&hash), max);
                }
                ValueForm::Hide => self.push(entry.key, b"", HIDDEN, max),
            }
        }
    }

    /// Appends an entry if there is room for its head and its key. The value may be cut.
    fn push(&mut self, key: &[u8], value: &[u8], value_bytes: u32, max: usize) {
        let key = shown(key);
        let Some(left) = (max - self.0.len()).checked_sub(HEAD_BYTES + key.len()) else {
            return;
        };
        let value = shown(value);
        let value = &value[..value.len().min(left)];
        let lengths = [key, value].map(|text| u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(lengths);
        self.0.extend(value_bytes.to_le_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value);
    }

    /// The size of the buffer.
    pub(super) fn bytes(&self) -> usize {
        self.0.capacity()
    }

    /// The number of entries of the descriptor, and the entries that the label holds.
    pub(super) fn entries(&self) -> (usize, Vec<TalkerEntry>) {
        let Some((count, mut rest)) = self.0.split_first() else {
            return (0, Vec::new());
        };
        let mut entries = Vec::new();
        while let Some((head, texts)) = rest.split_first_chunk::<HEAD_BYTES>() {
            let [key, value, length @ ..] = *head;
            let (key, texts) = texts.split_at(key.into());
            let (value, after) = texts.split_at(value.into());
            let length = u32::from_le_bytes(length);
            let read = EntryValue {
                shown: value.to_vec(),
                cut: (length as usize).saturating_sub(value.len()),
            };
            entries.push(TalkerEntry {
                key: key.to_vec(),
                value: (length != HIDDEN).then_some(read),
            });
            rest = after;
        }
        (usize::from(*count).max(entries.len()), entries)
    }
}

/// The length of a value that is not hidden, below [`HIDDEN`].
fn length(value: &[u8]) -> u32 {
    u32::try_from(value.len()).map_or(HIDDEN - 1, |length| length.min(HIDDEN - 1))
}

/// The part of a text that a label holds.
fn shown(text: &[u8]) -> &[u8] {
    &text[..text.len().min(MAX_TEXT_BYTES)]
}

/// How many bytes a label holds of the value, or of its hash.
fn value_bytes(entry: &Entry<'_>, form: ValueForm) -> usize {
    match form {
        ValueForm::Show => shown(entry.value).len(),
        ValueForm::Hash => 2 * HASH_BYTES,
        ValueForm::Hide => 0,
    }
}

/// The first bytes of the value's SHA-256 in hexadecimal, as `printf %s VALUE | sha256sum` begins.
fn hash(value: &[u8]) -> [u8; 2 * HASH_BYTES] {
    let digest = Sha256::digest(value);
    std::array::from_fn(|index| {
        let byte = digest[index / 2];
        let digit = if index % 2 == 0 {
            byte >> 4
        } else {
            byte & 0xf
        };
        b"0123456789abcdef"[usize::from(digit)]
    })
}

/// A budget of bytes.
#[derive(Debug)]
pub(super) struct ByteRoom {
    left: usize,
}

impl ByteRoom {
    pub(super) fn new(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// Takes bytes if there are enough left, and returns whether there were.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    pub(super) fn give_back(&mut self, bytes: usize) {
        self.left += bytes;
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key, and the value with the number of bytes that were cut off.
    type Shown<'a> = (&'a [u8], Option<(&'a [u8], usize)>);

    #[track_caller]
    fn check(form: ValueForm, entries: &[(&[u8], &[u8])], expected: &[Shown<'_>]) {
        let entries: Vec<_> = entries
            .iter()
            .map(|&(key, value)| Entry { key, value })
            .collect();
        let mut label = Label::default();
        label.set(&entries, form, &mut ByteRoom::new(1 << 20));
        let (count, read) = label.entries();
        assert_eq!(count, entries.len());
        let read: Vec<_> = read
            .iter()
            .map(|entry| {
                let value = entry.value.as_ref();
                (&*entry.key, value.map(|value| (&*value.shown, value.cut)))
            })
            .collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn a_label_has_keys_and_values_or_hashes_or_keys_only() {
        let entries: [(&[u8], &[u8]); 2] = [(b"ip", b"192.0.2.1"), (b"", b"\xff\0")];
        check(
            ValueForm::Show,
            &entries,
            &[
                (b"ip", Some((b"192.0.2.1", 0))),
                (b"", Some((b"\xff\0", 0))),
            ],
        );
        check(ValueForm::Hide, &entries, &[(b"ip", None), (b"", None)]);
        // printf %s 192.0.2.1 | sha256sum
        check(
            ValueForm::Hash,
            &entries[..1],
            &[(b"ip", Some((b"37fcff24bf62035b", 0)))],
        );
        check(ValueForm::Show, &[], &[]);
    }

    #[test]
    fn a_label_of_long_texts_is_cut_and_says_how_long_they_were() {
        let long = [b'x'; 16_000];
        let cut = &long[..MAX_TEXT_BYTES];
        check(
            ValueForm::Show,
            &[(b"k", &long)],
            &[(b"k", Some((cut, 15_872)))],
        );
        let mut label = Label::default();
        let entry = Entry {
            key: b"k",
            value: &long,
        };
        label.set(&[entry; 300], ValueForm::Show, &mut ByteRoom::new(1 << 20));
        let (count, read) = label.entries();
        assert_eq!((count, read.len()), (255, 4));
        assert!(label.bytes() <= MAX_BYTES, "{}", label.bytes());
    }

    #[test]
    fn a_label_without_room_for_more_bytes_ends_early() {
        let entry = |value| Entry { key: b"k", value };
        let mut room = ByteRoom::new(1 + HEAD_BYTES + 4);
        let mut label = Label::default();
        label.set(&[entry(b"abc")], ValueForm::Show, &mut room);
        assert!(!room.take(1));
        for (value, expected) in [(&b"abcdef"[..], &b"abc"[..]), (b"x", b"x")] {
            label.set(&[entry(value)], ValueForm::Show, &mut room);
            let (count, read) = label.entries();
            let read = read[0].value.as_ref().unwrap();
            assert_eq!((count, &*read.shown), (1, expected));
            assert_eq!(read.cut, value.len() - expected.len());
        }
        let mut empty = Label::default();
        empty.set(&[entry(b"abc")], ValueForm::Show, &mut room);
        assert_eq!(empty.entries(), (0, Vec::new()));
    }
}
