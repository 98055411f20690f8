//! Traps in the time that Envoy waits for a decision.

use super::super::{
    document::DocumentValue,
    finding::TrapSeverity,
    trap::{FilterSubject, Report, Subject, Trap},
};

/// A timeout that is missing, too short, endless or no duration.
pub(super) const TIMEOUT: Trap = Trap {
    name: "timeout",
    look: |subject, report| {
        if let Subject::HttpFilter(filter) | Subject::TcpFilter(filter) = subject {
            timeout(filter.filter, report);
        }
    },
};

fn timeout(filter: &DocumentValue<'_>, report: &mut Report<'_>) {
    let Some(timeout) = filter.get("timeout") else {
        // Where the timeout is at the wrong place, the next trap reports that.
        if service_timeout(filter).is_none() {
            report.add(
                filter,
                TrapSeverity::Warning,
                "no timeout is set, so Envoy discards answers after 20 ms, its default",
                "write `timeout: 0.25s`; fast answers are not delayed",
            );
        }
        return;
    };
    let text = timeout.text().unwrap_or_default();
    let secs = text
        .strip_suffix('s')
        .and_then(|secs| secs.parse::<f64>().ok());
    let (severity, what) = match secs {
        None => (
            TrapSeverity::Error,
            format!("`{text}` is not a valid duration"),
        ),
        Some(secs) if secs <= 0.0 => {
            let what =
                "without a timeout, requests wait forever for a service that does not answer";
            (TrapSeverity::Warning, what.to_owned())
        }
        Some(secs) if secs <= 0.02 => {
            let what = format!("a pause of a busy machine can be longer than {text}");
            (TrapSeverity::Warning, what)
        }
        Some(_) => return,
    };
    report.add(&timeout, severity, what, "write `timeout: 0.25s`");
}

fn service_timeout<'d>(filter: &DocumentValue<'d>) -> Option<DocumentValue<'d>> {
    filter.at(&["rate_limit_service", "grpc_service", "timeout"])
}

/// A timeout where the filter does not look for it.
pub(super) const SERVICE_TIMEOUT: Trap = Trap {
    name: "service-timeout",
    look: |subject, report| {
        let (Subject::HttpFilter(FilterSubject { filter, .. })
        | Subject::TcpFilter(FilterSubject { filter, .. })) = subject
        else {
            return;
        };
        let Some(timeout) = service_timeout(filter) else {
            return;
        };
        if filter.get("timeout").is_none() {
            report.add(
                &timeout,
                TrapSeverity::Warning,
                "`timeout` under `grpc_service` is not used here, so Envoy discards answers after 20 ms, its default",
                "move it up to the filter, beside `domain`",
            );
        } else {
            report.add(
                &timeout,
                TrapSeverity::Advice,
                "`timeout` under `grpc_service` is not used here: the `timeout` of the filter applies",
                "remove it",
            );
        }
    },
};
