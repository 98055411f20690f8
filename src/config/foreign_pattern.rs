//! Values that are patterns elsewhere: regular expressions, paths with parameters, ranges of addresses. Here only `*`
//! is special, and everything else is text.

use std::net::IpAddr;

use super::fault::Fault;

/// Longer texts are not looked at: patterns are short, and the search takes quadratic time.
const MAX_BYTES: usize = 1024;

/// The warning of a value, or of a key, that looks like a pattern of another system. `is_path` is whether parameters of
/// a path are looked for, too.
pub(super) fn foreign_pattern(text: &str, is_path: bool) -> Option<Fault> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let (kind, meant) = if is_regex(text) {
        ("a regular expression", wildcards(text))
    } else if is_path && has_parameter(text) {
        (
            "the path pattern of another system",
            Some(without_parameters(text)),
        )
    } else {
        return None;
    };
    Some(Fault::ForeignPattern {
        text: text.to_owned(),
        kind,
        fix: fix(text, meant),
    })
}

/// The warning of a value that is a range of addresses, such as `10.0.0.0/8`.
pub(super) fn address_range(text: &str) -> Option<Fault> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    let (family, whole) = match address {
        IpAddr::V4(_) => ("v4", 32),
        IpAddr::V6(_) => ("v6", 128),
    };
    (length < whole).then(|| Fault::ForeignPattern {
        text: text.to_owned(),
        kind: "a range of addresses",
        fix: format!(
            "let Envoy send `masked_remote_address` with `{family}_prefix_mask_len: {length}`, and write that key"
        ),
    })
}

/// Whether a text has parts that only regular expressions have.
fn is_regex(text: &str) -> bool {
    is_anchored(text)
        || has_escape(text)
        || has_any(text)
        || text.contains("[[:")
        || text
            .match_indices('[')
            .any(|(at, _)| class(&text[at..]).is_some())
        || has_group(text)
        || is_alternation(text)
}

/// `^shop`, `^/v1$`, `/v1$` and the `~ ^/v1` of nginx, but not `^1.2.3` or `10 US$`.
fn is_anchored(text: &str) -> bool {
    let text = text.trim_start_matches(['~', '*', ' ']);
    let before_end = text.strip_suffix('$');
    let ends_as_path = before_end.is_some_and(|before| {
        let last = before.chars().next_back();
        last.is_some_and(|last| last.is_ascii_lowercase() || last == '/')
    });
    match text.strip_prefix('^') {
        Some(rest) => {
            let is_word =
                rest.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
            is_word || (before_end.is_some() && rest.len() > 1)
        }
        None => text.starts_with('/') && (ends_as_path || text.starts_with("/^")),
    }
}

/// `\d+`, `\.` and the like, but not the names in `CORP\dave`.
fn has_escape(text: &str) -> bool {
    text.match_indices('\\').any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let mut rest = text[at + 1..].chars();
        match rest.next() {
            Some('.' | '/' | '*' | '?' | '(' | '[' | '+' | '$') => true,
            Some('p' | 'P') => rest.next() == Some('{'),
            Some('d' | 'D' | 'w' | 'W' | 's' | 'S') => match rest.next() {
                Some('+' | '*' | '?' | '{') => true,
                Some(next) => !next.is_alphanumeric() && !is_letter(before),
                None => !is_letter(before),
            },
            _ => false,
        }
    })
}

fn is_letter(found: Option<char>) -> bool {
    found.is_some_and(char::is_alphanumeric)
}

/// `.*` and `.+` where no name ends: `/v1/.*`, but not `v1.*`, `10.0.*` or `*.*`.
fn has_any(text: &str) -> bool {
    text.match_indices('.').any(|(at, _)| {
        let ends_name = text[..at]
            .chars()
            .next_back()
            .is_some_and(|before| before.is_alphanumeric() || "*.$".contains(before));
        let rest = &text[at + 1..];
        match rest.chars().next() {
            Some('*') => !ends_name,
            Some('+') => !ends_name && !rest[1..].starts_with(char::is_alphanumeric),
            Some('{') => rest[1..].starts_with(|next: char| next.is_ascii_digit()),
            _ => false,
        }
    })
}

/// The class of characters that a text begins with, such as `[a-z0-9]` or `[^/]`; `None` for `[::1]` and `[name]`.
fn class(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('[')?;
    let end = inner.find(']')?;
    let (inner, after) = (&inner[..end], &inner[end + 1..]);
    let found = &text[..end + 2];
    if inner.starts_with('^') && inner.len() > 1 || inner.contains('\\') {
        return Some(found);
    }
    let letters: Vec<_> = inner.chars().collect();
    let mut rest = letters.as_slice();
    let mut has_range = false;
    while let [first, more @ ..] = rest {
        rest = match more {
            ['-', last, more @ ..] if first.is_alphanumeric() && last.is_alphanumeric() => {
                has_range = true;
                more
            }
            _ if first.is_alphanumeric() => return None,
            more => more,
        };
    }
    let is_repeated = after.starts_with(['+', '*', '{', '?']);
    (has_range && (is_repeated || inner.contains('-'))).then_some(found)
}

/// `(a|b)`, `(.*)` and `(?i)`, but not `(X11; Linux)`.
fn has_group(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| {
        let inner = &text[at + 1..];
        let is_flag = [":", "i)", "P<", "=", "!", "<"].iter().any(|mark| {
            inner
                .strip_prefix('?')
                .is_some_and(|rest| rest.starts_with(mark))
        });
        let end = inner.find(')');
        is_flag || end.is_some_and(|end| inner[..end].contains('|'))
    })
}

/// `GET|POST` and `/a|/b`, but not the `outbound|80||shop` of Istio.
fn is_alternation(text: &str) -> bool {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let has_several = text.contains('|');
    let mut parts = text.split('|');
    let are_methods = parts.clone().all(|part| METHODS.contains(&part));
    has_several && (are_methods || parts.all(|part| part.starts_with('/')))
}

/// Whether a segment of a path is a parameter: `{id}`, `:id`, `<id>` or `**`.
fn has_parameter(text: &str) -> bool {
    let is_path = text.starts_with('/') || text.starts_with("**/");
    is_path && text.split('/').any(|segment| parameter(segment).is_some())
}

/// A segment of a path with `*` for its parameters, if it has any.
fn parameter(segment: &str) -> Option<String> {
    if segment == "**" {
        return Some("*".to_owned());
    }
    if let Some(name) = segment.strip_prefix(':') {
        let name = name.trim_end_matches(['?', '*', '+']);
        return is_name(name).then(|| "*".to_owned());
    }
    in_braces(segment)
}

/// A segment with `*` for the names in braces, if it has any.
fn in_braces(segment: &str) -> Option<String> {
    for (open, close) in [('{', '}'), ('<', '>')] {
        if let Some((before, rest)) = segment.split_once(open)
            && let Some((name, after)) = rest.split_once(close)
            && is_parameter(name)
        {
            let before = before.trim_end_matches(['%', '#', '$']);
            let after = in_braces(after).unwrap_or_else(|| after.to_owned());
            return Some(format!("{before}*{after}"));
        }
    }
    None
}

/// `id`, `*rest`, `rest+`, `int:id`, `id:[0-9]+`, `name=**` and `a,b`.
fn is_parameter(text: &str) -> bool {
    let text = text.trim_start_matches('*');
    let text = text.trim_end_matches("...").trim_end_matches('+');
    let name = text.split([':', '=', ',', '?']).next().unwrap_or_default();
    is_name(name)
}

fn is_name(text: &str) -> bool {
    // An identifier in braces is no name.
    const MAX: usize = 32;
    let is_word = |next: char| next.is_ascii_alphanumeric() || "_-.".contains(next);
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.len() <= MAX
        && text.chars().all(is_word)
}

/// How to write what `text` means, which is `meant` with single stars.
fn fix(text: &str, meant: Option<String>) -> String {
    let mut meant = meant.unwrap_or_default();
    while meant.contains("**") {
        meant = meant.replace("**", "*");
    }
    if meant.is_empty() || meant == text {
        return "write the text itself, in a descriptor for each, with `*` for any characters"
            .to_owned();
    }
    format!("write `{meant}`")
}

fn without_parameters(text: &str) -> String {
    let segments = text.split('/');
    let segments: Vec<_> = segments
        .map(|segment| parameter(segment).unwrap_or_else(|| segment.to_owned()))
        .collect();
    segments.join("/")
}

/// A regular expression with `*` for its parts that match several texts; `None` if it has alternatives, or parts that
/// may be left out.
fn wildcards(text: &str) -> Option<String> {
    let text = text.trim_start_matches(['~', ' ']);
    let inner = text.strip_prefix('^').unwrap_or(text);
    let is_open = inner.len() < text.len() && !inner.ends_with('$');
    let mut rest = inner.strip_suffix('$').unwrap_or(inner);
    let mut meant = String::new();
    while let Some(first) = rest.chars().next() {
        if let Some(width) = several(rest) {
            meant.push('*');
            rest = after_repetition(&rest[width..]);
            continue;
        }
        let mut width = first.len_utf8();
        if first == '\\' {
            let next = rest[1..].chars().next()?;
            meant.push(next);
            width += next.len_utf8();
        } else if !matches!(first, '(' | ')') {
            meant.push(first);
        }
        rest = &rest[width..];
        if is_repetition(rest) {
            return None;
        }
    }
    if is_open {
        meant.push('*');
    }
    let meant = without_parameters(&meant);
    let has_more = meant.contains(['|', '(', ')', '[', ']', '{', '}', '^', '\\']);
    (!has_more).then_some(meant)
}

/// The length of the part at the beginning of `text` that matches several characters, such as `\d`, `[a-z]` or the dot
/// of `.*`.
fn several(text: &str) -> Option<usize> {
    const ESCAPES: [&str; 6] = ["\\d", "\\D", "\\w", "\\W", "\\s", "\\S"];
    if ESCAPES.iter().any(|escape| text.starts_with(escape)) {
        return Some(2);
    }
    match text.strip_prefix('.') {
        Some(rest) => (is_repetition(rest) || rest.starts_with('*')).then_some(1),
        None => class(text).map(str::len),
    }
}

/// Whether a text begins with a mark that repeats what is before it; `*` alone may be a wildcard.
fn is_repetition(text: &str) -> bool {
    let is_count = |rest: &str| rest.starts_with(|next: char| next.is_ascii_digit());
    text.starts_with(['+', '?']) || text.strip_prefix('{').is_some_and(is_count)
}

/// The text after `+`, `*`, `?` or `{3}`.
fn after_repetition(text: &str) -> &str {
    let rest = text.trim_start_matches(['+', '*', '?']);
    match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some((count, after))
            if count
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b',') =>
        {
            after
        }
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, &str)>) {
        let found = foreign_pattern(text, true).map(|fault| match fault {
            Fault::ForeignPattern { kind, fix, .. } => (kind, fix),
            other => panic!("{other}"),
        });
        let found = found.as_ref().map(|(kind, fix)| (*kind, fix.as_str()));
        assert_eq!(found, expected, "{text}");
    }

    const LISTED: &str =
        "write the text itself, in a descriptor for each, with `*` for any characters";

    #[test]
    fn regular_expressions_are_told_with_the_wildcard() {
        for (text, fix) in [
            ("/part1/.*", "write `/part1/*`"),
            (".*", "write `*`"),
            (".*/export", "write `*/export`"),
            ("/a/.+/b", "write `/a/*/b`"),
            ("^/v1$", "write `/v1`"),
            ("^/v1/users", "write `/v1/users*`"),
            ("/v1/users$", "write `/v1/users`"),
            ("^free$", "write `free`"),
            ("~ ^/api/", "write `/api/*`"),
            (r"user-\d+", "write `user-*`"),
            (r"\d+", "write `*`"),
            (r"v\d+", "write `v*`"),
            (r".*\.example\.com", "write `*.example.com`"),
            (r"/files/\w{3,}/x", "write `/files/*/x`"),
            ("[a-z]+", "write `*`"),
            ("/id/[0-9a-f]{8}", "write `/id/*`"),
            ("/a/[^/]+/b", "write `/a/*/b`"),
            ("^[A-Za-z0-9_]+$", "write `*`"),
            ("/v1/(.*)", "write `/v1/*`"),
            ("/v1/.{3}/x", "write `/v1/*/x`"),
            (r"/v1/{id:\d+}", "write `/v1/*`"),
            ("[[:alpha:]]+", LISTED),
            (r"\p{L}+", LISTED),
            ("https?://.*", LISTED),
            ("/foo(/.*)?", LISTED),
            ("(a|b)", LISTED),
            ("/(users|items)/x", LISTED),
            ("(?i)free", LISTED),
            ("GET|POST", LISTED),
            ("/a|/b", LISTED),
        ] {
            check(text, Some(("a regular expression", fix)));
        }
    }

    #[test]
    fn parameters_of_paths_are_told_with_the_wildcard() {
        for (text, fix) in [
            ("/v1/{id}", "write `/v1/*`"),
            ("/v1/{user_id}/items/{item-id}", "write `/v1/*/items/*`"),
            ("/v1/{id}.json", "write `/v1/*.json`"),
            ("/v1/{name=**}", "write `/v1/*`"),
            ("/v1/{*rest}", "write `/v1/*`"),
            ("/v1/{a,b}", "write `/v1/*`"),
            ("/v1/{proxy+}", "write `/v1/*`"),
            ("/v1/{id}:cancel", "write `/v1/*:cancel`"),
            ("/v1/{a}-{b}", "write `/v1/*-*`"),
            ("/v1/%{id}", "write `/v1/*`"),
            ("/v1/{id}?x={y}", "write `/v1/*?x=*`"),
            ("/v1/:id", "write `/v1/*`"),
            ("/v1/:id/items/:item?", "write `/v1/*/items/*`"),
            ("/v1/<int:id>", "write `/v1/*`"),
            ("/**", "write `/*`"),
            ("/static/**/x.css", "write `/static/*/x.css`"),
            ("**/x", "write `*/x`"),
        ] {
            check(text, Some(("the path pattern of another system", fix)));
            assert!(foreign_pattern(text, false).is_none(), "{text}");
        }
    }

    #[test]
    fn a_long_text_is_none_and_takes_no_time() {
        for part in ["[", "(", "{a}", ".*", "\\d"] {
            check(&format!("/{}", part.repeat(1 << 20)), None);
        }
    }

    #[test]
    fn ordinary_values_are_no_patterns() {
        for text in [
            "",
            "*",
            "/v1/*",
            "/*/x",
            "/v1/*/items",
            "*.example.com",
            "v1.*",
            "10.0.*",
            "10.*.*.*",
            "*.*",
            "example.*",
            "user@x.y",
            "user+tag@x.y",
            "/a?b=c&d=[1]",
            "/a?filter[name]=x+y",
            "/search?q=a.b+c",
            "[::1]",
            "[::1]:80",
            "[2001:db8::1]:443",
            "2001:db8::/32",
            "*/*",
            "text/html;q=0.9",
            "application/*+json",
            "C++",
            "g++",
            "1.5",
            "$100",
            "10 US$",
            "$.store.*",
            "^1.2.3",
            "^",
            "$",
            "()",
            "(none)",
            "[redacted]",
            "[us-east]",
            "items[]",
            "a[0]",
            "{}",
            "{\"a\":1}",
            "{3F2504E0-4F89-11D3-9A0C-0305E82C3301}",
            "/x/{a3F504E0-4F89-11D3-9A0C-0305E82C3301}",
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)",
            "outbound|8081||shop.svc",
            "inbound|http|8080",
            "a|b",
            "CORP\\dave",
            "CORP\\s",
            "C:\\data\\sites",
            "/v1/projects/x:cancel",
            "/shop.Cart/Get",
            "12:30",
            "a:b",
            "::1",
            ":8080",
            "/~user/x",
            "~1.2",
            "/.well-known/acme/*",
            "/a/..",
            "...",
            "**",
            "****",
            "user****",
            "what (?)",
            "/price/10$",
            "/a,b/c",
            "<none>",
            "#1",
            "50%",
            "a=b;c=d",
            "W/\"x\"",
            "/a//b",
            "é/ü",
            "/v1/{}",
            "/v1/{ id }x{",
            "[]",
            "[-]",
            "[",
            "\\",
            "(",
            "{",
            "<",
            "/:",
            "/{",
            "/<",
        ] {
            check(text, None);
        }
    }
}
