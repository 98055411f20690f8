//! Text → trees of YAML nodes: refuses brackets without end early.

use super::{
    node::{NodeKind, YamlNode},
    one_pass::documents,
};

/// All documents of `text` but empty ones; an empty file is one empty map.
///
/// # Errors
///
/// If any part of the text is not YAML. The error has the line and the column.
pub(crate) fn parse_all(text: &str) -> Result<Vec<YamlNode<'_>>, serde_yaml::Error> {
    check_nesting(text)?;
    let mut found = documents(text)?;
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

/// Where `text` has the tag `!!binary`, which serde_yaml drops: the base64 would be taken for the text.
pub(super) fn binary_tag(text: &str) -> Option<usize> {
    const SPELLINGS: [&str; 2] = ["!!binary", "!<tag:yaml.org,2002:binary>"];
    let at = SPELLINGS.iter().filter_map(|tag| text.find(tag)).min()?;
    // A local tag in its place shows whether it is one, or part of a text.
    let local = SPELLINGS
        .iter()
        .fold(text.to_owned(), |text, tag| text.replace(tag, "!binary"));
    let found = documents(&local).ok()?;
    found.iter().any(has_tag).then_some(at)
}

fn has_tag(node: &YamlNode<'_>) -> bool {
    match &node.kind {
        NodeKind::Scalar { .. } => false,
        NodeKind::Tagged => true,
        NodeKind::List(items) => items.iter().any(has_tag),
        NodeKind::Map(entries) => entries
            .iter()
            .any(|(key, value)| has_tag(key) || has_tag(value)),
    }
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
            return match documents(&text[..end]) {
                Err(error) if error.to_string().contains("recursion limit") => Err(error),
                _ => Ok(()),
            };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
