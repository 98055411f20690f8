//! Descriptors as people write them: `key=value,key=value`.

use std::str::FromStr;

/// The keys and values of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entries(pub(crate) Vec<(String, String)>);

impl FromStr for Entries {
    type Err = String;

    /// Parses entries in order, separated by commas; `\,` is a comma, `\=` an equals sign and `\\` a backslash.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut entries = vec![(String::new(), None::<String>)];
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            let (key, value) = entries.last_mut().expect("there is always an entry");
            match (next, value) {
                (',', _) => entries.push((String::new(), None)),
                ('=', value @ None) => *value = Some(String::new()),
                (next, value) => {
                    let literal = match next {
                        '\\' => rest.next().ok_or("nothing follows the last backslash")?,
                        other => other,
                    };
                    value.as_mut().unwrap_or(key).push(literal);
                }
            }
        }
        let pair = |(key, value): (String, Option<String>)| match value {
            Some(value) if !key.is_empty() => Ok((key, value)),
            _ => Err(format!("`{key}` is not KEY=VALUE")),
        };
        Ok(Self(
            entries.into_iter().map(pair).collect::<Result<_, _>>()?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_pairs_with_an_escape() {
        let pairs = |text: &str| {
            let Entries(pairs) = text.parse().unwrap();
            pairs
                .iter()
                .map(|(key, value)| format!("{key}→{value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(pairs("a=b,c=d=e"), ["a→b", "c→d=e"]);
        assert_eq!(pairs(r"a\=b=c\,d,e="), ["a=b→c,d", "e→"]);
        for bad in ["", "a", "a=b,", "=b", "a=b\\"] {
            assert!(bad.parse::<Entries>().is_err(), "{bad}");
        }
    }
}
