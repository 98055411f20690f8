//! The query of a URL.

use percent_encoding::percent_decode;

/// The parameters of `query`, in order: their names as they are, their values decoded (`%41` is `A`, `+` is a space).
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = value.replace('+', " ");
        (name, percent_decode(value.as_bytes()).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_names_are_not() {
        let read = |query| parameters(query).collect::<Vec<_>>();
        assert_eq!(
            read("a=%41+b&&c&%61=d=e"),
            [
                ("a", b"A b".to_vec()),
                ("c", b"".to_vec()),
                ("%61", b"d=e".to_vec())
            ]
        );
    }

    #[test]
    fn nonsense_stays_as_it_is() {
        for (value, decoded) in [
            ("%", &b"%"[..]),
            ("%4", b"%4"),
            ("%+5", b"% 5"),
            ("%zz", b"%zz"),
            ("%ff", b"\xff"),
        ] {
            let query = format!("a={value}");
            assert_eq!(
                parameters(&query).collect::<Vec<_>>(),
                [("a", decoded.to_vec())]
            );
        }
    }
}
