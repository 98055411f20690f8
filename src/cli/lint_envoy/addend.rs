//! The hits that an item of `rate_limits` sends (`hits_addend`), as far as its text shows them.

use super::document::DocumentValue;

/// Commands of formats that have a value for refused requests as well.
const ALWAYS_KNOWN: [&str; 6] = [
    "BYTES_RECEIVED",
    "BYTES_SENT",
    "CEL",
    "DURATION",
    "REQ",
    "REQUEST_HEADER",
];

/// A part of an answer that hits can be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerPart {
    Headers,
    Trailers,
}

/// Whether an item that is sent at the end of the stream has hits for a refused request. A number always has a value,
/// and without `hits_addend` there is one hit.
pub(super) fn has_value_on_refusal(item: &DocumentValue<'_>) -> bool {
    let Some(format) = format(item) else {
        return true;
    };
    command(format).is_some_and(|(name, _)| ALWAYS_KNOWN.contains(&name))
}

/// The request headers that the hits are read from, of which the first that is there counts; none if they come from
/// elsewhere.
pub(super) fn request_headers<'d>(item: &DocumentValue<'d>) -> Vec<&'d str> {
    match format(item).and_then(command) {
        Some(("REQ" | "REQUEST_HEADER", names)) => names.split('?').collect(),
        _ => Vec::new(),
    }
}

/// The part of the answer that the hits are read from.
pub(super) fn part_of_answer(item: &DocumentValue<'_>) -> Option<AnswerPart> {
    match format(item).and_then(command)?.0 {
        "RESP" | "RESPONSE_HEADER" => Some(AnswerPart::Headers),
        "TRAILER" | "RESPONSE_TRAILER" => Some(AnswerPart::Trailers),
        _ => None,
    }
}

/// The text of the format, unless it is empty.
pub(super) fn format<'d>(item: &DocumentValue<'d>) -> Option<&'d str> {
    let format = item.at(&["hits_addend", "format"])?.text()?;
    Some(format).filter(|format| !format.is_empty())
}

/// The name and the argument of a format of one command, such as `%REQ(x-tokens)%`.
fn command(format: &str) -> Option<(&str, &str)> {
    let command = format.strip_prefix('%')?.strip_suffix('%')?;
    let (name, rest) = command.split_once('(').unwrap_or((command, ""));
    // A greatest length can follow.
    let argument = rest.rsplit_once(')').map_or("", |(argument, _)| argument);
    Some((name, argument))
}
