//! Rewrites names for DogStatsD: the parts of a name that a pattern captures become tags.

use regex::Regex;

/// A rule of USE_DOG_STATSD_MOGRIFIERS: a pattern, and the replacement for names that match it.
#[derive(Clone, Debug)]
pub(crate) struct Mogrifier {
    pattern: Regex,
    name: String,
    tags: Vec<(String, String)>,
}

/// A rewritten name and its tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mogrified {
    pub name: String,
    pub tags: Vec<(String, String)>,
}

/// Why a rule is invalid. `rule` is its name in USE_DOG_STATSD_MOGRIFIERS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MogrifierError {
    #[error("DOG_STATSD_MOGRIFIER_{rule}_PATTERN is missing")]
    NoPattern { rule: String },
    #[error("DOG_STATSD_MOGRIFIER_{rule}_NAME is missing")]
    NoName { rule: String },
    #[error("DOG_STATSD_MOGRIFIER_{rule}_TAGS: the value `{value}` has no tag")]
    NoTagKey { rule: String, value: String },
    #[error("DOG_STATSD_MOGRIFIER_{rule}_TAGS: the tag `{key}` has no value")]
    NoTagValue { rule: String, key: String },
    #[error("DOG_STATSD_MOGRIFIER_{rule}_PATTERN is not a regular expression")]
    BadPattern {
        rule: String,
        #[source]
        source: regex::Error,
    },
}

impl Mogrifier {
    /// The rule called `rule`; `name` and `tags` can refer to the groups of `pattern`.
    ///
    /// # Errors
    ///
    /// If a part is empty or unset, or the pattern does not compile.
    pub(crate) fn new(
        rule: &str,
        pattern: &str,
        name: &str,
        tags: &[(String, String)],
    ) -> Result<Self, MogrifierError> {
        let rule = || rule.to_owned();
        if pattern.is_empty() {
            return Err(MogrifierError::NoPattern { rule: rule() });
        }
        if name.is_empty() {
            return Err(MogrifierError::NoName { rule: rule() });
        }
        for (key, value) in tags {
            if key.is_empty() {
                let value = value.clone();
                return Err(MogrifierError::NoTagKey {
                    rule: rule(),
                    value,
                });
            }
            if value.is_empty() {
                let key = key.clone();
                return Err(MogrifierError::NoTagValue { rule: rule(), key });
            }
        }
        let pattern = Regex::new(pattern).map_err(|source| MogrifierError::BadPattern {
            rule: rule(),
            source,
        })?;
        let template = |text: &str| template(text, pattern.captures_len());
        Ok(Self {
            name: template(name),
            tags: tags
                .iter()
                .map(|(key, value)| (template(key), template(value)))
                .collect(),
            pattern,
        })
    }

    /// Rewrites `name` if the pattern occurs in it.
    fn mogrify(&self, name: &str) -> Option<Mogrified> {
        let found = self.pattern.captures(name)?;
        let fill = |template: &str| {
            let mut text = String::new();
            found.expand(template, &mut text);
            text
        };
        let tags = self.tags.iter();
        Some(Mogrified {
            name: fill(&self.name),
            tags: tags.map(|(key, value)| (fill(key), fill(value))).collect(),
        })
    }
}

/// Rewrites `name` by the first rule that matches it; `None` if none does.
pub(crate) fn mogrify(rules: &[Mogrifier], name: &str) -> Option<Mogrified> {
    rules.iter().find_map(|rule| rule.mogrify(name))
}

/// `text` as a template of the regex crate: `$0` is the whole match and `$1` its first group, of `groups`; all else
/// stays as it is. A group that did not match is empty.
fn template(text: &str, groups: usize) -> String {
    let mut parts = text.split('$');
    let mut template = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = part.split_at(digits);
        template += &match number.parse::<usize>() {
            Ok(group) if group < groups => format!("${{{group}}}{rest}"),
            _ => format!("$${part}"),
        };
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    /// Applies `pattern → name, tags` to a metric; the outcome is `name key:value…`.
    #[track_caller]
    fn check(rule: (&str, &str, &[(&str, &str)]), metric: &str, expected: &str) {
        let (pattern, name, pairs) = rule;
        let rule = Mogrifier::new("R", pattern, name, &tags(pairs)).unwrap();
        assert_eq!(show(mogrify(&[rule], metric)), expected);
    }

    fn show(mogrified: Option<Mogrified>) -> String {
        mogrified.map_or_else(
            || "-".to_owned(),
            |Mogrified { mut name, tags }| {
                for (key, value) in tags {
                    name += &format!(" {key}:{value}");
                }
                name
            },
        )
    }

    #[test]
    fn groups_become_names_and_tags() {
        let rule: (_, _, &[_]) = (
            r"^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$",
            "ratelimit.service.rate_limit.$3",
            &[("domain", "$1"), ("descriptor", "$2")],
        );
        check(
            rule,
            "ratelimit.service.rate_limit.shop.user.path_a.over_limit",
            "ratelimit.service.rate_limit.over_limit domain:shop descriptor:user.path_a",
        );
        check(rule, "ratelimit_server.ShouldRateLimit.total_requests", "-");
    }

    #[test]
    fn patterns_are_searched_and_names_replaced_whole() {
        check(("b+", "n", &[]), "abbc", "n");
        check(("b+", "<$0>", &[]), "abbc", "<bb>");
        check(("^b", "n", &[]), "abbc", "-");
    }

    #[test]
    fn keys_of_tags_are_templates_too() {
        check(("(.)(.)", "n", &[("$1", "$2$1")]), "xy", "n x:yx");
    }

    #[test]
    fn references_without_a_group_stay_as_they_are() {
        check(("(a)", "$1.$2.$", &[("k", "$10$1")]), "a", "a.$2.$ k:$10a");
        check(("(a)", "$$1 ${1} $x", &[]), "a", "$a ${1} $x");
        check(
            ("a", "$99999999999999999999é", &[]),
            "a",
            "$99999999999999999999é",
        );
        check(("(a)|(b)", "[$1][$2]", &[]), "b", "[][b]");
    }

    #[test]
    fn the_first_rule_that_applies_wins() {
        let rule = |pattern, name| Mogrifier::new("R", pattern, name, &[]).unwrap();
        let rules = [rule("^x", "first"), rule("a", "second"), rule("a", "third")];
        assert_eq!(show(mogrify(&rules, "xa")), "first");
        assert_eq!(show(mogrify(&rules, "a")), "second");
        assert_eq!(show(mogrify(&rules, "b")), "-");
    }

    #[track_caller]
    fn check_refused(rule: (&str, &str, &[(&str, &str)]), expected: &str) {
        let (pattern, name, pairs) = rule;
        let error = Mogrifier::new("FOO", pattern, name, &tags(pairs)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn rules_that_lack_a_part_are_refused() {
        check_refused(
            ("", "n", &[]),
            "DOG_STATSD_MOGRIFIER_FOO_PATTERN is missing",
        );
        check_refused(("p", "", &[]), "DOG_STATSD_MOGRIFIER_FOO_NAME is missing");
        check_refused(
            ("p", "n", &[("", "v")]),
            "DOG_STATSD_MOGRIFIER_FOO_TAGS: the value `v` has no tag",
        );
        check_refused(
            ("p", "n", &[("k", "")]),
            "DOG_STATSD_MOGRIFIER_FOO_TAGS: the tag `k` has no value",
        );
        check_refused(
            ("(", "n", &[]),
            "DOG_STATSD_MOGRIFIER_FOO_PATTERN is not a regular expression",
        );
    }
}
