//! The log: lines on standard error, as text or as JSON in the reference's shape. A thread of its own writes them, so
//! that no decision waits for their reader.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fmt,
    io::Write as _,
    panic,
    sync::Arc,
};

use serde_json::{Map, Value};
use tracing::{Event, Subscriber, field::Field, level_filters::LevelFilter};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
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

use super::tasks::panic_text;
use crate::{
    observe::{
        decision_log::{self, DecisionChoice},
        log_lines::{LogLines, LogStats, LogWriter, MAX_LINES, is_terminal},
    },
    settings::process::{LogFormat, LogLevel, Process},
};

/// The log of the process. Dropping it writes the last lines, for at most a second.
pub(crate) struct Log {
    lines: LogLines<NonBlocking>,
    pub(crate) stats: Arc<LogStats>,
    _writing: WorkerGuard,
}

/// Installs the log of the process, in the format and at the level that `process` names.
pub(crate) fn start(process: &Process) -> Log {
    install(
        process.log_format,
        process.log_level,
        process.decision_choice(),
    )
}

/// Installs the log of a process whose settings are wrong.
pub(crate) fn start_at(format: LogFormat, level: LogLevel) -> Log {
    install(format, level, DecisionChoice::Off)
}

fn install(format: LogFormat, level: LogLevel, decisions: DecisionChoice) -> Log {
    let log = Log::unread();
    subscriber(format, level, decisions, log.lines.clone()).init();
    panic::set_hook(Box::new(log_panic));
    log
}

impl Log {
    /// A log that is not installed, so it receives no events.
    pub(super) fn unread() -> Self {
        let stats = Arc::new(LogStats::default());
        let (queue, writing) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(MAX_LINES)
            .thread_name("log")
            .finish(LogWriter::of_standard_error(stats.clone()));
        Self {
            lines: LogLines {
                queue,
                stats: stats.clone(),
            },
            stats,
            _writing: writing,
        }
    }

    /// Prints lines for people after the lines that are already logged. Only terminals get them, not collectors of
    /// logs.
    pub(crate) fn print_on_terminal(&self, lines: &str) {
        if is_terminal() {
            let _ = self.lines.clone().write(lines.as_bytes());
        }
    }
}

/// Logs a panic like any other event: in the format of the log, and without waiting for its reader.
fn log_panic(panic: &panic::PanicHookInfo<'_>) {
    let place = panic
        .location()
        .map_or_else(String::new, ToString::to_string);
    let text = panic_text(panic.payload());
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!("a thread panicked at {place}: {text}\n{backtrace}");
    } else {
        tracing::error!("a thread panicked at {place}: {text}");
    }
}

fn subscriber(
    format: LogFormat,
    level: LogLevel,
    decisions: DecisionChoice,
    lines: LogLines<NonBlocking>,
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
    // This level is set only when needed, because with it libraries ask of every line whether it is wanted, and a
    // decision passes hundreds of such lines.
    if decisions != DecisionChoice::Off {
        targets = targets.with_target(decision_log::TARGET, LevelFilter::DEBUG);
        most = most.max(LevelFilter::DEBUG);
    }
    let lines = tracing_subscriber::fmt()
        .with_max_level(most)
        .with_ansi(is_terminal())
        // The library would report a failed write to standard error, and panic if that fails too.
        .log_internal_errors(false)
        .with_writer(move || lines.clone());
    match format {
        LogFormat::Text => Box::new(lines.finish().with(targets)),
        LogFormat::Json => Box::new(lines.event_format(Json).finish().with(targets)),
    }
}

/// A filter for the lines of libraries, which would otherwise hide tollgate's. Their details are shown at `trace` only.
/// The file watch is silenced below `warn`, because it reports at `info` whenever the kubelet replaces a folder.
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
                let log = Log::unread();
                let subscriber = subscriber(format, level, decisions, log.lines.clone());
                assert_eq!(subscriber.max_level_hint(), Some(most), "{level:?}");
            }
        }
    }
}
