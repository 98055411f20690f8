//! Makes texts from outside safe as parts of statsd names.

use std::borrow::Cow;

/// Makes a text from outside safe as a part of a statsd name.
///
/// As in the reference, `:` and `|`, which end a name on a statsd line, and the dots of an apparent IPv4 address
/// become `_`. Unlike there, so do control characters, since a line feed would start a metric of the client's choice,
/// and the dot of `.__`, which would start a tag.
pub(crate) fn sanitize(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|found| found == '.' || breaks_line(found)) {
        return Cow::Borrowed(text);
    }
    let dots = address_dots(text.as_bytes());
    // From the end, because a replacement after a dot can create the start of a tag.
    let mut fit: Vec<char> = Vec::with_capacity(text.len());
    for (at, found) in text.char_indices().rev() {
        let starts_tag = || fit.ends_with(&['_', '_']);
        let is_unfit =
            breaks_line(found) || found == '.' && (dots.binary_search(&at).is_ok() || starts_tag());
        fit.push(if is_unfit { '_' } else { found });
    }
    Cow::Owned(fit.into_iter().rev().collect())
}

/// The domain of a rule, and the rest of its path.
pub(crate) type RuleLabels<'p> = [(&'static str, &'p str); 2];

/// Labels of the rule at `path`, which begins with its domain.
pub(crate) fn domain_and_rule(path: &str) -> RuleLabels<'_> {
    let (domain, rule) = path.split_once('.').unwrap_or((path, ""));
    [("domain", domain), ("rule", rule)]
}

/// Whether a character must not appear in a name on a statsd line.
pub(crate) fn breaks_line(found: char) -> bool {
    matches!(found, ':' | '|') || found.is_control()
}

/// Positions of the dots in apparent IPv4 addresses: four groups of one to three digits, whatever surrounds them.
fn address_dots(bytes: &[u8]) -> Vec<usize> {
    let mut dots = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match address(bytes, at) {
            Some((three, end)) => {
                dots.extend(three);
                at = end;
            }
            None => at += 1,
        }
    }
    dots
}

/// The dots and the end of the address that starts here, if there is one.
fn address(bytes: &[u8], start: usize) -> Option<([usize; 3], usize)> {
    let group_end = |from: usize| {
        let rest = bytes.get(from..)?;
        let digits = rest
            .iter()
            .take(3)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        (digits > 0).then_some(from + digits)
    };
    let mut dots = [0; 3];
    let mut end = group_end(start)?;
    for dot in &mut dots {
        if bytes.get(end) != Some(&b'.') {
            return None;
        }
        *dot = end;
        end = group_end(end + 1)?;
    }
    Some((dots, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(sanitize(text), expected);
    }

    #[test]
    fn separators_of_a_line_become_underscores() {
        check("foo", "foo");
        check("path_/a b.c", "path_/a b.c");
        check("a:b|c", "a_b_c");
        check("a\nb\r\0c\u{85}d\u{7f}", "a_b__c_d_");
        check("é:ü", "é_ü");
    }

    #[test]
    fn the_domain_of_a_rule_is_what_stands_before_the_first_dot() {
        let found = ["shop.key.value", "shop"].map(domain_and_rule);
        let expected = [("shop", "key.value"), ("shop", "")];
        assert_eq!(
            found,
            expected.map(|(domain, rule)| [("domain", domain), ("rule", rule)])
        );
    }

    #[test]
    fn dots_of_addresses_become_underscores() {
        check("remote_address_10.0.0.1", "remote_address_10_0_0_1");
        check("10.0.0.1:80", "10_0_0_1_80");
        check("1.2.3", "1.2.3");
        check("1.2.3.x", "1.2.3.x");
        check("1.2345.3.4", "1.2345.3.4");
        check("a.1.2.3.4.b", "a.1_2_3_4.b");
        check("1.2.3.4.5.6.7.8", "1_2_3_4.5_6_7_8");
        check("12345.1.1.12345", "12345_1_1_12345");
        check("1..2.3.4", "1..2.3.4");
    }

    #[test]
    fn a_value_cannot_start_a_tag() {
        check("x.__env=prod", "x___env=prod");
        check("x.|\n", "x___");
        check("x..__", "x____");
        check("x._y", "x._y");
        check("x.", "x.");
    }

    #[test]
    fn what_is_fit_is_not_copied() {
        assert!(matches!(sanitize("a_b_c/d e"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn what_is_sanitized_stays_so(text in "[0-9.:|_a\n]{0,24}") {
            let once = sanitize(&text).into_owned();
            prop_assert_eq!(sanitize(&once), once.as_str());
            prop_assert_eq!(once.chars().count(), text.chars().count());
        }
    }
}
