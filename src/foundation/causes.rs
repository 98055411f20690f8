//! Errors as log lines show them.

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use std::{error::Error, fmt};

    use super::*;

    #[derive(Debug)]
    struct Failed(Option<Box<Failed>>, &'static str);

    impl fmt::Display for Failed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.1)
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.0.as_ref().map(|cause| cause.as_ref() as _)
        }
    }

    #[test]
    fn the_error_stands_before_its_causes() {
        let cause = Failed(None, "no such file");
        assert_eq!(chain(&cause), "no such file");
        let error = Failed(Some(cause.into()), "no rules");
        assert_eq!(chain(&error), "no rules: no such file");
    }
}
