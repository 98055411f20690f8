//! Names and values of HTTP header fields, and which of them can be sent as they are. Envoy passes on all of them: a
//! line break in a value, or a second `content-length`, would break the response.

/// Longest value of a field, in bytes: some clients accept no more than 8 kB for all fields together.
const MAX_VALUE: usize = 4 << 10;

/// Fields that frame a message or belong to one connection (RFC 9110), and those that only the sender of a response
/// knows.
const RESERVED: [&str; 14] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Whether `text` is a token (RFC 9110), as names of fields are.
pub(crate) fn is_token(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

/// Whether a field of this name can be added to any response without a change to its meaning or its frame.
pub(crate) fn is_free_name(name: &str) -> bool {
    let is_reserved = |reserved: &&str| name.eq_ignore_ascii_case(reserved);
    is_token(name) && !RESERVED.iter().any(is_reserved)
}

/// Whether `value` is printable ASCII, begins and ends without a blank, and is not too long.
pub(crate) fn is_value(value: &str) -> bool {
    value.len() <= MAX_VALUE
        && value.trim_matches(' ').len() == value.len()
        && value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_frame_a_response_are_not_free() {
        for name in ["RateLimit", "x-limit", "Retry-After", "!#$%&'*+-.^_`|~"] {
            assert!(is_free_name(name), "{name}");
        }
        for name in [
            "",
            ":status",
            "a b",
            "a:b",
            "a\r\nb",
            "é",
            "Content-Length",
            "transfer-encoding",
            "CONNECTION",
            "Host",
        ] {
            assert!(!is_free_name(name), "{name}");
        }
    }

    #[test]
    fn values_with_line_breaks_or_odd_bytes_are_none() {
        for value in ["", "5", "\"a b\";q=1, \"c\"", &"x".repeat(MAX_VALUE)] {
            assert!(is_value(value), "{value}");
        }
        for value in ["a\r\nb", "a\nb", "\0", "\u{7f}", "\t", "é", " a", "a "] {
            assert!(!is_value(value), "{value:?}");
        }
        assert!(!is_value(&"x".repeat(MAX_VALUE + 1)));
    }
}
