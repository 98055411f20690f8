//! Starts the decision log: the part that all threads share, and the thread that writes its lines if they do not go
//! into the log of the process.

use std::time::Duration;

use super::{
    error::ServerError,
    tasks::{OwnedTasks, Task, TaskError, on_thread},
};
use crate::{
    observe::{
        decision_log::{
            DecisionChoice, DecisionLog,
            queue::{DecisionSender, queue},
            writer::{LineTarget, LineWriter},
        },
        metrics::Metrics,
    },
    settings::process::Process,
};

/// Longest time to write the last lines.
const FLUSH: Duration = Duration::from_secs(5);

/// The queue of the thread that writes lines, if there is one.
pub(super) struct DecisionLines(Option<DecisionSender>);

/// Creates the decision log, and starts the thread that writes its lines if they do not go into the log of the process.
///
/// # Errors
///
/// If the file for the lines cannot be opened.
pub(super) fn start(
    settings: &Process,
    metrics: &Metrics,
    tasks: &mut OwnedTasks,
) -> Result<(DecisionLog, DecisionLines), ServerError> {
    if settings.log_decisions_to.is_some() && settings.decision_choice() == DecisionChoice::Off {
        tracing::warn!(
            "no decision is logged, so --log-decisions-to has no effect; set --log-decisions"
        );
    }
    let sender = match settings.decision_lines() {
        Some(target) => Some(start_writing(target, metrics, tasks)?),
        None => None,
    };
    let choice = settings.decision_choice();
    let log = DecisionLog::new(choice, settings.log_decisions_values, sender.clone());
    Ok((log, DecisionLines(sender)))
}

fn start_writing(
    target: LineTarget,
    metrics: &Metrics,
    tasks: &mut OwnedTasks,
) -> Result<DecisionSender, ServerError> {
    let path = match &target {
        LineTarget::StandardError => String::new(),
        LineTarget::File(options) => options.path.display().to_string(),
    };
    let stats = metrics.decision_log.clone();
    let (sender, receiver) = queue(stats.clone());
    let opened = LineWriter::open(target, stats);
    let writer = opened.map_err(|source| ServerError::DecisionFile { path, source })?;
    let write = move || writer.write_all(&receiver);
    tasks.start(
        Task::DecisionLog,
        on_thread("decision-log".to_owned(), write)?,
    );
    Ok(sender)
}

impl DecisionLines {
    /// Writes the last lines.
    ///
    /// # Errors
    ///
    /// If a task ends unexpectedly.
    pub(super) async fn finish(self, tasks: &mut OwnedTasks) -> Result<(), TaskError> {
        if let Some(sender) = self.0 {
            sender.end();
        }
        let written = tokio::time::timeout(FLUSH, tasks.all_end(Task::DecisionLog)).await;
        written.unwrap_or_else(|_elapsed| {
            tracing::warn!("some logged decisions could not be written before the exit");
            Ok(())
        })
    }
}
