//! The text of a refusal.

use std::fmt::Write as _;

use crate::config::fault::Problem;

/// Bound on the text of a refusal, in bytes: a quarter of what control planes read by default. A push of thousands of
/// rules can have as many errors.
const MAX_REFUSAL_BYTES: usize = 1 << 20;

/// All errors for the control plane, one per line.
pub(super) fn refusal(problems: &[Problem]) -> String {
    let errors = || {
        problems
            .iter()
            .filter(|problem| !problem.fault.is_warning())
    };
    let mut text = String::new();
    for (reported, problem) in errors().enumerate() {
        let line = problem.to_string();
        if text.len() + line.len() > MAX_REFUSAL_BYTES {
            let _ = write!(text, "\nand {} more", errors().count() - reported);
            break;
        }
        if reported > 0 {
            text.push('\n');
        }
        text.push_str(&line);
    }
    text
}
