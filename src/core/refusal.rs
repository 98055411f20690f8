//! Bodies of refusals (`refusal`): a problem of RFC 9457, or a template with the numbers of the limit that refused.

use std::fmt::Write as _;

/// The longest that a body can become, in bytes: it is sent with every refusal.
pub(crate) const MAX_BODY: usize = 16 << 10;

/// Bytes of the name of a limit that a body shows.
const MAX_NAME: usize = 64;

/// The body that clients get with a refusal, and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleRefusal {
    /// A value of the header `content-type`.
    pub content_type: String,
    pub body: RefusalBody,
    /// The status of the client's response, as the body says it. Envoy decides the status itself.
    pub status: u16,
    /// Names and values of the headers that the response gets besides.
    pub headers: Box<[(String, String)]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalBody {
    /// Written for each refusal (RFC 9457).
    Problem,
    Template(Template),
}

/// The syntax of a body, into which values are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    Plain,
    /// HTML or XML.
    Markup,
    Json,
}

/// A text with places for the numbers of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Box<[BodyPart]>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum BodyPart {
    Text(Box<str>),
    Place(Placeholder, Surroundings),
}

/// A value in a template, written as its name in braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placeholder {
    /// The name of the limit, or else its rate.
    Limit,
    /// The rate of the limit, such as `300/30minutes`.
    Rate,
    /// The hits that pass in a period.
    Requests,
    /// The length of the period in seconds.
    Period,
    /// Seconds until the request would pass; never if it never will.
    RetryAfter,
    /// Seconds until the limit resets.
    ResetAfter,
    /// The status of the client's response.
    Status,
}

/// The surroundings of a placeholder, which decide how its value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surroundings {
    Plain,
    Markup,
    JsonString,
    /// Outside of JSON's strings: a text brings its quotes.
    JsonValue,
}

/// The values of a template's placeholders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusalValues<'a> {
    /// The name of the limit; empty if it has none.
    pub(crate) name: &'a str,
    pub(crate) rate: &'a str,
    pub(crate) requests_per_unit: u64,
    pub(crate) period_secs: u64,
    pub(crate) status: u16,
    /// `None` if the request will never pass.
    pub(crate) retry_secs: Option<u64>,
    pub(crate) reset_secs: u64,
}

impl Placeholder {
    const ALL: [Self; 7] = [
        Self::Limit,
        Self::Rate,
        Self::Requests,
        Self::Period,
        Self::RetryAfter,
        Self::ResetAfter,
        Self::Status,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Rate => "rate",
            Self::Requests => "requests",
            Self::Period => "period",
            Self::RetryAfter => "retry_after",
            Self::ResetAfter => "reset_after",
            Self::Status => "status",
        }
    }

    /// Most bytes of its value, in any place.
    fn max_bytes(self) -> usize {
        /// Of the longest number, 2^64.
        const NUMBER: usize = 20;
        match self {
            // JSON writes a control character in 6 bytes.
            Self::Limit => 6 * MAX_NAME + 2,
            Self::Rate => 2 * NUMBER + 16,
            Self::Requests | Self::Period | Self::RetryAfter | Self::ResetAfter | Self::Status => {
                NUMBER
            }
        }
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    ///
    /// The name of a placeholder that does not exist.
    pub(crate) fn parse(text: &str, syntax: Syntax) -> Result<Self, &str> {
        let mut parts = Vec::new();
        let mut rest = text;
        let mut is_in_string = false;
        while let Some((before, name, after)) = next_placeholder(rest) {
            is_in_string = ends_in_string(before, is_in_string);
            let known = Placeholder::ALL.into_iter();
            let placeholder = known.clone().find(|known| known.name() == name);
            let place = match syntax {
                Syntax::Plain => Surroundings::Plain,
                Syntax::Markup => Surroundings::Markup,
                Syntax::Json if is_in_string => Surroundings::JsonString,
                Syntax::Json => Surroundings::JsonValue,
            };
            if !before.is_empty() {
                parts.push(BodyPart::Text(before.into()));
            }
            parts.push(BodyPart::Place(placeholder.ok_or(name)?, place));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(BodyPart::Text(rest.into()));
        }
        Ok(Self(parts.into()))
    }

    /// The longest text that it can become, in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        let bytes = self.0.iter().map(|part| match part {
            BodyPart::Text(text) => text.len(),
            BodyPart::Place(placeholder, _) => placeholder.max_bytes(),
        });
        bytes.sum()
    }

    pub(crate) fn has(&self, placeholder: Placeholder) -> bool {
        let is_it =
            |part: &BodyPart| matches!(part, BodyPart::Place(found, _) if *found == placeholder);
        self.0.iter().any(is_it)
    }

    /// The text with these values.
    pub(crate) fn render(&self, values: &RefusalValues<'_>) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                BodyPart::Text(part) => text.push_str(part),
                BodyPart::Place(placeholder, place) => values.push(*placeholder, *place, &mut text),
            }
        }
        text
    }
}

/// The text before the next placeholder, its name, and the text after it. Braces around anything but a name are text.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let is_name = |next: char| next.is_ascii_lowercase() || next == '_';
    text.match_indices('{').find_map(|(at, _)| {
        let (before, rest) = (&text[..at], &text[at + 1..]);
        let end = rest.find(|next| !is_name(next))?;
        let after = rest[end..].strip_prefix('}')?;
        (end > 0).then_some((before, &rest[..end], after))
    })
}

/// Whether JSON that continues with `text` ends inside of a string.
fn ends_in_string(text: &str, mut is_in_string: bool) -> bool {
    let mut chars = text.chars();
    while let Some(next) = chars.next() {
        match next {
            '"' => is_in_string = !is_in_string,
            '\\' if is_in_string => drop(chars.next()),
            _ => {}
        }
    }
    is_in_string
}

impl RefusalValues<'_> {
    /// The name of the limit for people, or else its rate.
    pub(crate) fn shown_name(&self) -> &str {
        match self.name {
            "" => self.rate,
            name => &name[..name.floor_char_boundary(MAX_NAME)],
        }
    }

    fn push(&self, placeholder: Placeholder, place: Surroundings, text: &mut String) {
        let number = match placeholder {
            Placeholder::Limit => return push_text(self.shown_name(), place, text),
            Placeholder::Rate => return push_text(self.rate, place, text),
            Placeholder::RetryAfter => match self.retry_secs {
                Some(secs) => secs,
                None if place == Surroundings::JsonValue => return text.push_str("null"),
                None => return text.push_str("never"),
            },
            Placeholder::Requests => self.requests_per_unit,
            Placeholder::Period => self.period_secs,
            Placeholder::ResetAfter => self.reset_secs,
            Placeholder::Status => self.status.into(),
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "{number}");
    }
}

fn push_text(value: &str, place: Surroundings, text: &mut String) {
    match place {
        Surroundings::Plain => text.extend(value.chars().map(printable)),
        Surroundings::Markup => {
            for next in value.chars().map(printable) {
                match next {
                    '&' => text.push_str("&amp;"),
                    '<' => text.push_str("&lt;"),
                    '>' => text.push_str("&gt;"),
                    '"' => text.push_str("&quot;"),
                    '\'' => text.push_str("&#39;"),
                    next => text.push(next),
                }
            }
        }
        Surroundings::JsonString => push_json(value, text),
        Surroundings::JsonValue => {
            text.push('"');
            push_json(value, text);
            text.push('"');
        }
    }
}

/// A blank instead of a control character, some of which XML cannot express at all.
fn printable(next: char) -> char {
    if next.is_control() { ' ' } else { next }
}

/// Appends the content of a JSON string.
pub(crate) fn push_json(value: &str, text: &mut String) {
    for next in value.chars() {
        match next {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            control if u32::from(control) < 0x20 => {
                let _ = write!(text, "\\u{:04x}", u32::from(control));
            }
            next => text.push(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str) -> RefusalValues<'_> {
        RefusalValues {
            name,
            rate: "3/minute",
            requests_per_unit: 3,
            period_secs: 60,
            status: 429,
            retry_secs: Some(12),
            reset_secs: 48,
        }
    }

    #[track_caller]
    fn check(template: &str, syntax: Syntax, name: &str, expected: &str) {
        let template = Template::parse(template, syntax).unwrap();
        let text = template.render(&values(name));
        assert_eq!(text, expected);
        assert!(text.len() <= template.max_bytes());
    }

    #[test]
    fn each_placeholder_becomes_its_value() {
        check(
            "{limit}: {rate}, {requests} in {period} s; {retry_after}, {reset_after} ({status})",
            Syntax::Plain,
            "burst",
            "burst: 3/minute, 3 in 60 s; 12, 48 (429)",
        );
        check("{limit}", Syntax::Plain, "", "3/minute");
        for placeholder in Placeholder::ALL {
            let template = format!("{{{}}}", placeholder.name());
            let template = Template::parse(&template, Syntax::Plain).unwrap();
            for known in Placeholder::ALL {
                assert_eq!(template.has(known), known == placeholder);
            }
        }
    }

    #[test]
    fn json_escapes_what_it_must_and_no_more() {
        let mut text = String::new();
        push_json("a b\"\\\u{1f}ü", &mut text);
        assert_eq!(text, "a b\\\"\\\\\\u001fü");
    }

    #[test]
    fn the_longest_values_fit_exactly() {
        let longest = [
            // Each character becomes 6, between quotes.
            (Placeholder::Limit, 6 * MAX_NAME + 2),
            // Two numbers, and as many letters as the longest period needs.
            (Placeholder::Rate, 2 * 20 + 16),
            (Placeholder::Requests, 20),
            (Placeholder::RetryAfter, 20),
        ];
        for (placeholder, bytes) in longest {
            assert_eq!(placeholder.max_bytes(), bytes, "{}", placeholder.name());
        }
        assert_eq!(MAX_BODY, 16_384);
        assert_eq!(u64::MAX.to_string().len(), 20);
    }

    #[test]
    fn braces_around_anything_else_are_text() {
        for text in ["", "{", "{}", "{ limit}", "{Limit}", "a{b:c}", "{{", "{a"] {
            check(text, Syntax::Markup, "n", text);
        }
        check("{{limit}}", Syntax::Plain, "n", "{n}");
        assert_eq!(Template::parse("a {b_c} {d}", Syntax::Plain), Err("b_c"));
    }

    #[test]
    fn a_value_is_written_as_its_place_needs_it() {
        let name = "<b>\"'&\\\n";
        check(
            "{limit}",
            Syntax::Markup,
            name,
            "&lt;b&gt;&quot;&#39;&amp;\\ ",
        );
        check("{limit}", Syntax::Plain, name, "<b>\"'&\\ ");
        check(
            r#"{"a\"b": "of {limit}", "c": {limit}, "d": {retry_after}}"#,
            Syntax::Json,
            name,
            r#"{"a\"b": "of <b>\"'&\\\u000a", "c": "<b>\"'&\\\u000a", "d": 12}"#,
        );
    }

    #[test]
    fn a_request_that_never_passes_has_null_in_json_and_a_word_elsewhere() {
        let never = RefusalValues {
            retry_secs: None,
            ..values("n")
        };
        let template = r#"[{retry_after}, "{retry_after}"]"#;
        let template = Template::parse(template, Syntax::Json).unwrap();
        assert_eq!(template.render(&never), r#"[null, "never"]"#);
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let name = "ä".repeat(99);
        check("{limit}", Syntax::Plain, &name, &"ä".repeat(MAX_NAME / 2));
        let worst = "\u{1}".repeat(99);
        let expected = format!("\"{}\"", "\\u0001".repeat(MAX_NAME));
        check("{limit}", Syntax::Json, &worst, &expected);
    }
}
