//! A report as workflow commands of GitHub Actions, which shows them beside the lines of a change.

use super::report::{CheckReport, message};
use crate::config::fault::FaultLevel;

/// A command for each problem, and the summary.
pub(super) fn github(report: &CheckReport) -> String {
    let commands = report.problems.iter().map(|problem| {
        let command = match problem.fault.level() {
            FaultLevel::Error => "error",
            FaultLevel::Warning => "warning",
            FaultLevel::Note => "notice",
        };
        let mut line = format!("::{command} file={}", property(&report.path(problem)));
        if let Some(place) = problem.position {
            line += &format!(",line={},col={}", place.line, place.column);
        }
        let title = property(&format!("tollgate check: {}", problem.fault.code()));
        line + &format!(",title={title}::{}", data(&message(problem)))
    });
    let lines: Vec<_> = commands.chain([report.summary()]).collect();
    lines.join("\n")
}

/// Escapes the text of a command.
fn data(text: &str) -> String {
    let text = text.replace('%', "%25");
    text.replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes the value of a property of a command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_properties_are_escaped_as_github_reads_them() {
        let text = "100%: a,\r\nb";
        assert_eq!(data(text), "100%25: a,%0D%0Ab");
        assert_eq!(property(text), "100%25%3A a%2C%0D%0Ab");
    }
}
