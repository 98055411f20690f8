//! The texts of a refusal. A push of thousands of rules can have an error in each, so each text is bounded.

use std::fmt::Write as _;

use crate::{
    config::fault::{Fault, Problem},
    foundation::log_throttle::{BurstThrottle, Omitted},
};

/// Bound on the text for the control plane, in bytes. It is sent again each time that the push comes again.
const MAX_REFUSAL_BYTES: usize = 16 << 10;

/// Bounds on the text for the log: errors, and bytes.
const MAX_LOGGED: usize = 10;
const MAX_LOGGED_BYTES: usize = 4 << 10;

/// A control plane can push as often as it likes.
static REFUSED: BurstThrottle = BurstThrottle::new(30);

/// The errors for the control plane, one per line.
pub(super) fn refusal(problems: &[Problem]) -> String {
    joined(&errors(problems), "\n", usize::MAX, MAX_REFUSAL_BYTES)
}

/// Logs a refused push in one line, with its first errors.
pub(super) fn log(problems: &[Problem]) {
    let Some(omitted) = REFUSED.may_log() else {
        return;
    };
    let errors = errors(problems);
    let count = match errors.iter().map(|error| error.count()).sum() {
        1_usize => "1 error".to_owned(),
        count => format!("{count} errors"),
    };
    let text = joined(&errors, "; ", MAX_LOGGED, MAX_LOGGED_BYTES);
    tracing::error!(
        "the push is refused for {count}, and the rules stay as they are: {text}{}",
        Omitted(omitted, "refused pushes")
    );
}

fn errors(problems: &[Problem]) -> Vec<&Problem> {
    let errors = problems.iter();
    errors
        .filter(|problem| !problem.fault.is_warning())
        .collect()
}

/// The first errors, at most `count`, in about `bytes`, and how many more there are.
fn joined(errors: &[&Problem], separator: &str, count: usize, bytes: usize) -> String {
    let mut text = String::new();
    let mut shown = 0;
    let is_listed = |error: &&&Problem| !matches!(error.fault, Fault::More { .. });
    for error in errors.iter().filter(is_listed) {
        if shown == count || text.len() >= bytes {
            break;
        }
        if shown > 0 {
            text.push_str(separator);
        }
        shown += 1;
        let error = error.to_string();
        let room = bytes.saturating_sub(text.len());
        if error.len() <= room {
            text.push_str(&error);
        } else {
            text.push_str(&error[..error.floor_char_boundary(room)]);
            text.push('…');
        }
    }
    let all: usize = errors.iter().map(|error| error.count()).sum();
    if all > shown {
        let _ = write!(text, "{separator}and {} more", all - shown);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::message::Push;

    fn problems(count: usize) -> Vec<Problem> {
        let push = Push {
            type_url: String::new(),
            resources: Vec::new(),
        };
        (0..count)
            .map(|number| push.problem(Fault::OtherType(format!("{number:0>100}"))))
            .collect()
    }

    #[test]
    fn few_errors_are_all_in_the_refusal() {
        let problems = problems(50);
        let text = refusal(&problems);
        let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn however_many_errors_there_are_the_refusal_is_bounded() {
        let text = refusal(&problems(20_000));
        assert!(text.len() < MAX_REFUSAL_BYTES + 100, "{}", text.len());
        let (_, last) = text.rsplit_once('\n').unwrap();
        let complete = text.lines().count() - 1;
        assert_eq!(last, format!("and {} more", 20_000 - complete));
    }

    #[test]
    fn one_long_error_is_cut() {
        let problem = Push {
            type_url: String::new(),
            resources: Vec::new(),
        }
        .problem(Fault::OtherType("ö".repeat(MAX_REFUSAL_BYTES)));
        let text = refusal(&[problem]);
        assert!(text.ends_with("ö…"), "{}", text.len());
        assert!(text.len() < MAX_REFUSAL_BYTES + 10);
    }
}
