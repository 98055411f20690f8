//! The log of decisions: the part that all threads share, and the thread that writes its lines of JSON.

use std::{io, thread, time::Duration};

use tokio::sync::oneshot;

use super::error::ServerError;
use crate::{
    observe::{
        decision_log::{
            DecisionChoice, DecisionLog,
            queue::{LineSender, queue},
            writer::{LineTarget, LineWriter},
        },
        metrics::Metrics,
    },
    settings::process::Process,
};

/// Longest time for writing the last lines.
const FLUSH: Duration = Duration::from_secs(5);

/// The thread that writes lines of JSON, if there is one.
pub(super) struct DecisionLines(Option<Writing>);

struct Writing {
    sender: LineSender,
    ended: oneshot::Receiver<()>,
}

/// Makes the log of decisions, and starts to write its lines of JSON if there are any.
///
/// # Errors
///
/// If the file of the lines cannot be opened.
pub(super) fn start(
    settings: &Process,
    metrics: &Metrics,
) -> Result<(DecisionLog, DecisionLines), ServerError> {
    if settings.log_decisions_to.is_some() && settings.decision_choice() == DecisionChoice::Off {
        tracing::warn!(
            "no decision is logged, so --log-decisions-to has no effect; set --log-decisions"
        );
    }
    let writing = match settings.decision_lines() {
        Some(target) => Some(Writing::start(target, metrics)?),
        None => None,
    };
    let sender = writing.as_ref().map(|writing| writing.sender.clone());
    let choice = settings.decision_choice();
    let log = DecisionLog::new(choice, settings.log_decisions_values.into(), sender);
    Ok((log, DecisionLines(writing)))
}

impl Writing {
    fn start(target: LineTarget, metrics: &Metrics) -> Result<Self, ServerError> {
        let path = match &target {
            LineTarget::StandardError => String::new(),
            LineTarget::File(options) => options.path.display().to_string(),
        };
        let stats = metrics.decision_log.clone();
        let (sender, receiver) = queue(stats.clone());
        let opened = LineWriter::open(target, stats);
        let writer = opened.map_err(|source| ServerError::DecisionFile { path, source })?;
        let (end, ended) = oneshot::channel();
        let write = move || {
            writer.write_all(&receiver);
            // Without a receiver the process does not wait.
            let _ = end.send(());
        };
        let name = "decision-log".to_owned();
        let started: io::Result<_> = thread::Builder::new().name(name).spawn(write);
        started?;
        Ok(Self { sender, ended })
    }
}

impl DecisionLines {
    /// Writes the last lines.
    pub(super) async fn finish(self) {
        let Some(Writing { sender, ended }) = self.0 else {
            return;
        };
        sender.end();
        if tokio::time::timeout(FLUSH, ended).await.is_err() {
            tracing::warn!("some logged decisions could not be written before the exit");
        }
    }
}
