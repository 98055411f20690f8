//! Log lines on standard error: as text, or as JSON in the reference's shape.

use std::{
    fmt,
    io::{self, IsTerminal as _},
};

use serde_json::{Map, Value};
use tracing::{Event, Subscriber, field::Field, level_filters::LevelFilter};
use tracing_subscriber::{
    filter::Targets,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use crate::{
    observe::decision_log::{self, DecisionChoice},
    settings::process::{LogFormat, LogLevel, Process},
};

/// Installs the log for the whole process, in the format and at the level that `process` names.
pub(crate) fn start(process: &Process) {
    install(
        process.log_format,
        process.log_level,
        process.decisions_in_log(),
    );
}

/// Installs the log of a process whose settings are wrong.
pub(crate) fn start_at(format: LogFormat, level: LogLevel) {
    install(format, level, DecisionChoice::Off);
}

fn install(format: LogFormat, level: LogLevel, decisions: DecisionChoice) {
    subscriber(format, level, decisions).init();
}

fn subscriber(
    format: LogFormat,
    level: LogLevel,
    decisions: DecisionChoice,
) -> Box<dyn Subscriber + Send + Sync> {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let mut targets = without_noise(level);
    let mut most = level;
    // Only if it is needed: below this level libraries ask for each line whether it is wanted, and a decision passes
    // hundreds of such lines.
    if decisions != DecisionChoice::Off {
        targets = targets.with_target(decision_log::TARGET, LevelFilter::DEBUG);
        most = most.max(LevelFilter::DEBUG);
    }
    let lines = tracing_subscriber::fmt()
        .with_max_level(most)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => Box::new(lines.finish().with(targets)),
        LogFormat::Json => Box::new(lines.event_format(Json).finish().with(targets)),
    }
}

/// A filter for lines of libraries, which would hide our own: their details are for `trace` only, and the file watch
/// reports at `info` that a folder is gone which the kubelet has replaced, as it always does.
fn without_noise(level: LevelFilter) -> Targets {
    let others = match level {
        LevelFilter::TRACE => LevelFilter::TRACE,
        level => level.min(LevelFilter::INFO),
    };
    let of_watch = others.min(LevelFilter::WARN);
    let targets = [("tollgate", level), ("notify", of_watch)];
    Targets::new().with_default(others).with_targets(targets)
}

/// One JSON object per line: `@timestamp`, `level`, `@message`, and the fields of the event.
#[derive(Debug)]
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = JsonFields(Map::new());
        event.record(&mut fields);
        let JsonFields(mut line) = fields;
        line.insert("@timestamp".to_owned(), time.into());
        let metadata = event.metadata();
        let level = metadata.level().as_str().to_ascii_lowercase();
        line.insert("level".to_owned(), level.into());
        line.insert("target".to_owned(), metadata.target().into());
        writeln!(writer, "{}", Value::Object(line))
    }
}

struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn insert(&mut self, field: &Field, value: Value) {
        let name = match field.name() {
            "message" => "@message",
            name => name,
        };
        self.0.insert(name.to_owned(), value);
    }
}

impl tracing::field::Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_off_before_a_library_asks() {
        for format in [LogFormat::Text, LogFormat::Json] {
            for (level, decisions, most) in [
                (LogLevel::Info, DecisionChoice::Off, LevelFilter::INFO),
                (LogLevel::Error, DecisionChoice::Off, LevelFilter::ERROR),
                (LogLevel::Info, DecisionChoice::Refused, LevelFilter::DEBUG),
                (LogLevel::Trace, DecisionChoice::Off, LevelFilter::TRACE),
            ] {
                let subscriber = subscriber(format, level, decisions);
                assert_eq!(subscriber.max_level_hint(), Some(most), "{level:?}");
            }
        }
    }
}
