//! Hints for texts that mean something else here: patterns of other systems, templates before they are rendered, and
//! lines that are no YAML.

use std::net::IpAddr;

use super::{
    fault::Fault,
    parse::TOO_MANY,
    position::{Lines, Position},
};

/// A longer text is no pattern that a person wrote.
const MAX_PATTERN_BYTES: usize = 1024;

/// The warning of a key or a value that is a regular expression, or a range of addresses where Envoy sends none.
pub(super) fn foreign_pattern(text: &str, may_be_range: impl Fn() -> bool) -> Option<Fault> {
    if text.len() > MAX_PATTERN_BYTES {
        return None;
    }
    let (kind, fix) = if is_regex(text) {
        let fix = "write the text itself, with `*` for any characters".to_owned();
        ("a regular expression", fix)
    } else {
        let (address, length) = text.split_once('/')?;
        let length: u8 = length.parse().ok()?;
        let family = match address.parse().ok()? {
            IpAddr::V4(_) if length < 32 && !may_be_range() => "v4",
            IpAddr::V6(_) if length < 128 && !may_be_range() => "v6",
            IpAddr::V4(_) | IpAddr::V6(_) => return None,
        };
        let fix = format!(
            "let Envoy send `masked_remote_address` with `{family}_prefix_mask_len: {length}`, and write that key"
        );
        ("a range of addresses", fix)
    };
    let text = text.to_owned();
    Some(Fault::ForeignPattern { text, kind, fix })
}

/// Whether it has a part that only regular expressions have: `^/v1`, `/v1/.*` and `\d+`, but not `v1.*` or `^1`.
fn is_regex(text: &str) -> bool {
    let mut parts = [
        "\\d+", "\\w+", "\\.", "[a-z", "[A-Z", "[0-9", "[^", "(.", "(?",
    ]
    .into_iter();
    let begins =
        |rest: &str| rest.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
    let ends_name = |before: char| before.is_alphanumeric() || "*.$".contains(before);
    let mut any = text.match_indices(".*").chain(text.match_indices(".+"));
    text.strip_prefix('^').is_some_and(begins)
        || parts.any(|part| text.contains(part))
        || any.any(|(at, _)| !text[..at].ends_with(ends_name))
}

/// The template in a text: `{{ … }}`, `{% … %}` or `${NAME}`.
pub(super) fn template(text: &str) -> Option<&str> {
    let between = |open: &str, close: &str| {
        let at = text.find(open)?;
        let end = text[at..].find(close)?;
        Some(&text[at..at + end + close.len()])
    };
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_variable =
        |found: &&str| found.len() > 3 && found[2..found.len() - 1].bytes().all(is_of_name);
    let braces = between("{{", "}}").or_else(|| between("{%", "%}"));
    braces.or_else(|| between("${", "}").filter(is_variable))
}

/// The fault of a template in a text, which where any text is valid is a warning.
pub(super) fn unrendered(text: &str, is_text: bool) -> Option<Fault> {
    template(text).map(|text| Fault::Template {
        text: text.to_owned(),
        is_text,
    })
}

/// The problem that an error of the parser stands for, and its position: where a quote or a bracket that is not closed
/// was opened, else where the parser gave up.
pub(super) fn syntax_problem(text: &str, error: &serde_yaml::Error) -> (Option<Position>, Fault) {
    let message = error.to_string();
    let (problem, context) = message.split_once(", while ").unwrap_or((&message, ""));
    let problem = problem.split(" at ").next().unwrap_or_default();
    // An error about a byte has an offset, and the position 1:1 too.
    let byte = message
        .split_once(" at position ")
        .and_then(|(_, offset)| offset.parse().ok());
    let at = match (byte, error.location()) {
        (Some(offset), _) => Some(Lines::of(text).position(text, offset)),
        (None, at) => at.map(|at| Position::at(at.line(), at.column())),
    };
    let mut lines = text.split('\n').zip(1..);
    let is_rendered = |(line, number): &(&str, usize)| {
        let is_of_error = at.is_some_and(|at| at.line == *number);
        let begins = |begin: &str| line.trim_start().starts_with(begin);
        begins("{{") || begins("{%") || is_of_error && template(line).is_some()
    };
    if let Some((line, number)) = lines.find(is_rendered) {
        let found = template(line).unwrap_or_else(|| line.trim_start());
        let before = line.split(found).next().unwrap_or_default();
        let position = Position::at(number, 1 + before.chars().count());
        let (text, is_text) = (found.to_owned(), false);
        return (Some(position), Fault::Template { text, is_text });
    }
    let mark = context.split_once(" at line ").and_then(|(_, mark)| {
        let (line, column) = mark.split_once(" column ")?;
        Some(Position::at(line.parse().ok()?, column.parse().ok()?))
    });
    // A mark at the very beginning is not shown.
    let opened = mark.or_else(|| {
        let is_scanning = context.starts_with("scanning ");
        is_scanning.then_some(Position::at(1, 1))
    });
    let line = |at: Position| text.split('\n').nth(at.line - 1).unwrap_or_default();
    let found = |at: Position| line(at).chars().nth(at.column - 1);
    let unclosed = opened.filter(|_| {
        context.starts_with("parsing a flow ") || context.starts_with("scanning a quoted ")
    });
    // At the end of a text it is the last bracket.
    let last = || {
        text.rfind(['[', '{'])
            .map(|last| Lines::of(text).position(text, last))
    };
    let at_end = at.filter(|at| context.starts_with("parsing a flow ") && found(*at).is_none());
    if let Some(unclosed) = unclosed.or_else(|| at_end.and_then(|_| last()))
        && let Some(token @ ('[' | '{' | '"' | '\'')) = found(unclosed)
    {
        return (Some(unclosed), Fault::Unclosed { token });
    }
    let syntax = |text: &str| Fault::Syntax(text.to_owned());
    let fault = match (problem, at.and_then(found)) {
        ("could not find expected ':'", _) => return no_colon(text, opened.or(at)),
        ("mapping values are not allowed in this context", _) => return second_colon(text, at),
        ("found character that cannot start any token", Some('\t'))
        | ("found a tab character that violates indentation", _) => Fault::Tab,
        ("found character that cannot start any token", Some(found)) => Fault::NeedsQuotes(found),
        ("did not find expected alphabetic or numeric character" | "unknown anchor", _) => {
            let sign = opened.or(at).and_then(found).filter(|sign| *sign == '&');
            return (opened.or(at), Fault::NeedsQuotes(sign.unwrap_or('*')));
        }
        ("did not find expected <document start>", _) => Fault::AfterDocument,
        ("recursion limit exceeded", _) => syntax("it has too many levels"),
        _ if problem.ends_with(TOO_MANY) => syntax("its aliases stand for too many values"),
        _ => syntax(problem),
    };
    (at, fault)
}

/// A line without a colon between a key and its value.
fn no_colon(text: &str, at: Option<Position>) -> (Option<Position>, Fault) {
    let line = at.and_then(|at| text.split('\n').nth(at.line - 1));
    let words = line.unwrap_or_default().trim_start_matches([' ', '-']);
    (at, Fault::NoColon(words.chars().take(64).collect()))
}

/// A colon where no key can be: the line above has none, or this one has two, or is indented too far.
fn second_colon(text: &str, at: Option<Position>) -> (Option<Position>, Fault) {
    let Position { line, column } = at.unwrap_or(Position::at(1, 1));
    let lines: Vec<_> = text.split('\n').take(line).collect();
    let begins = |line: &str| 1 + line.chars().take_while(|next| " -".contains(*next)).count();
    // The parser counts more characters as ends of lines.
    let own = lines.get(line - 1).filter(|own| {
        let before: String = own.chars().take(column - 1).collect();
        !before.contains(": ")
    });
    let Some(own) = own else {
        return (at, Fault::SecondColon);
    };
    let is_text = |line: &&str| !matches!(line.trim_start().chars().next(), None | Some('#'));
    let above = lines[..line - 1].iter().rposition(is_text);
    match above.map(|above| (above + 1, lines[above].trim_end())) {
        Some((above, text_above)) if !text_above.contains(": ") && !text_above.ends_with(':') => {
            no_colon(text, Some(Position::at(above, begins(text_above))))
        }
        _ => (Some(Position::at(line, begins(own))), Fault::TooFarIn),
    }
}
