//! Text → trees of YAML nodes: refuses brackets without end early, and reads long lists in pieces.

use super::{binary, node::YamlNode, one_pass::documents, pieces};

/// serde_yaml gets long lists in pieces of this many bytes, each extended to the end of an item: it needs a hundred
/// bytes per word, and data that fits the caches is read faster.
const PIECE_BYTES: usize = 64 << 10;

/// All documents of `text` but empty ones; an empty file is one empty map. A long document is read faster if
/// `is_scalar` holds for the keys whose values are scalars.
///
/// # Errors
///
/// If any part of the text is not YAML. The error has the line and the column.
pub(crate) fn parse_all(
    text: &str,
    is_scalar: fn(&str) -> bool,
) -> Result<Vec<YamlNode<'_>>, serde_yaml::Error> {
    check_nesting(text)?;
    if let Some(root) = pieces::read(text, PIECE_BYTES, is_scalar) {
        return Ok(vec![root]);
    }
    let mut found = documents(text, false)?;
    if let Some(tagged) = binary::with_local_tag(text) {
        for (node, other) in found.iter_mut().zip(documents(&tagged, true)?) {
            binary::adopt(node, other);
        }
    }
    if found.iter().any(|document| !document.is_null()) {
        found.retain(|document| !document.is_null());
    } else {
        found.truncate(1);
    }
    if found.is_empty() {
        found.push(YamlNode::empty());
    }
    Ok(found)
}

/// More open brackets than this start the check of the nesting.
const MAX_OPEN_BRACKETS: usize = 256;

/// Bytes read after the brackets: longer than any key, so that the parser sees the structure before them.
const AFTER_BRACKETS_BYTES: usize = 4096;

/// Refuses, in less time, a text that serde_yaml refuses as nested too deeply. serde_yaml checks the nesting after
/// reading the whole document, and for that visits all open brackets again at each word: 100,000 brackets take it
/// more than half a minute. Brackets can be part of texts too, so their count only decides when to ask serde_yaml
/// about the beginning of the text.
///
/// # Errors
///
/// That of serde_yaml.
pub(super) fn check_nesting(text: &str) -> Result<(), serde_yaml::Error> {
    let mut open = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => continue,
        }
        if open > MAX_OPEN_BRACKETS {
            let end = text.ceil_char_boundary(text.len().min(at + AFTER_BRACKETS_BYTES));
            return match documents(&text[..end], false) {
                Err(error) if error.to_string().contains("recursion limit") => Err(error),
                _ => Ok(()),
            };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
