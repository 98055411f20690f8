//! `!!binary`: a text in base64.
//!
//! serde_yaml drops this tag, and the base64 would be taken for the text. A second reading with a local tag in its
//! place shows which scalars have it.

use std::borrow::Cow;

use super::node::{NodeKind, YamlNode};

/// The local tag, without its exclamation mark.
pub(super) const LOCAL_TAG: &str = "binary";

/// The tag as files write it, and a local tag of the same length, so that no position changes.
const SPELLINGS: [(&str, &str); 2] = [
    ("!!binary", "!binary "),
    ("!<tag:yaml.org,2002:binary>", "!binary                    "),
];

/// The text with the local tag, if it may have the tag anywhere.
pub(super) fn with_local_tag(text: &str) -> Option<String> {
    let mut changed = None;
    for (tag, local) in SPELLINGS {
        if text.contains(tag) {
            let text = changed.as_deref().unwrap_or(text);
            changed = Some(text.replace(tag, local));
        }
    }
    changed
}

/// The text of a scalar with the tag.
pub(super) fn decoded(scalar: YamlNode<'_>) -> YamlNode<'_> {
    let NodeKind::Scalar { text, .. } = &scalar.kind else {
        return scalar;
    };
    let text = base64(text).and_then(|bytes| String::from_utf8(bytes).ok());
    YamlNode {
        kind: text.map_or(NodeKind::BadBinary, |text| NodeKind::Scalar {
            text: Cow::Owned(text),
            is_plain: false,
        }),
        offset: scalar.offset,
    }
}

/// Takes the decoded scalars of `other`, the same document with the local tag, into `node`.
pub(super) fn adopt(node: &mut YamlNode<'_>, other: YamlNode<'_>) {
    match (&mut node.kind, other.kind) {
        (NodeKind::List(items), NodeKind::List(others)) => {
            for (item, other) in items.iter_mut().zip(others) {
                adopt(item, other);
            }
        }
        (NodeKind::Map(entries), NodeKind::Map(others)) => {
            for ((key, value), (other_key, other_value)) in entries.iter_mut().zip(others) {
                adopt(key, other_key);
                adopt(value, other_value);
            }
        }
        (kind @ NodeKind::Scalar { .. }, NodeKind::BadBinary) => *kind = NodeKind::BadBinary,
        (NodeKind::Scalar { text, is_plain }, NodeKind::Scalar { text: other, .. }) => {
            // A text that holds the tag as part of itself has not been decoded.
            let holds_tag = SPELLINGS.iter().any(|(tag, _)| text.contains(tag));
            if !holds_tag && *text != other {
                *text = Cow::Owned(other.into_owned());
                *is_plain = false;
            }
        }
        _ => {}
    }
}

/// The bytes that a text in base64 stands for; blanks and line breaks do not count.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (groups, []) = text.as_chunks::<4>() else {
        return None;
    };
    for (index, group) in groups.iter().enumerate() {
        let digits = group.iter().take_while(|&&byte| byte != b'=').count();
        let is_padded = group[digits..].iter().all(|&byte| byte == b'=');
        if digits < 2 || !is_padded || digits < 4 && index + 1 < groups.len() {
            return None;
        }
        let mut bits = 0_u32;
        for byte in group {
            bits = bits << 6 | u32::from(if *byte == b'=' { 0 } else { digit(*byte)? });
        }
        bytes.extend(&bits.to_be_bytes()[1..digits]);
    }
    Some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_or_refused() {
        for (text, bytes) in [
            ("", Some(&b""[..])),
            ("aGk=", Some(b"hi")),
            ("aG\n k=", Some(b"hi")),
            ("aA==", Some(b"h")),
            ("aGlo", Some(b"hih")),
            ("/+8=", Some(b"\xff\xef")),
            ("aGk", None),
            ("a===", None),
            ("aA==aA==", None),
            ("aA=a", None),
            ("aG-k", None),
        ] {
            assert_eq!(base64(text).as_deref(), bytes, "{text}");
        }
    }
}
