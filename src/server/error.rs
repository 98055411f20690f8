//! Why the server did not start, or ended.

use std::io;

use super::{tasks::TaskError, tls::ListenerTlsError};

use crate::{
    config::{fault::Problem, problems::listed},
    control::xds::options::XdsError,
    observe::{metrics::mogrifier::MogrifierError, traces::export::BadCollectorUrl},
    settings::traces::TracesError,
    store::redis,
};

/// Why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// A port cannot be opened; `setting` has the flag and the variable to change.
    #[error("cannot listen on {address} for {purpose} ({setting})")]
    Bind {
        purpose: &'static str,
        address: String,
        setting: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the rules in {source_name} cannot be used:\n{}", list(problems))]
    Rules {
        source_name: String,
        problems: Vec<Problem>,
    },
    #[error(transparent)]
    Redis(#[from] redis::topology::address::BadUrl),
    #[error(transparent)]
    Mogrifier(#[from] MogrifierError),
    #[error(transparent)]
    Tls(#[from] ListenerTlsError),
    #[error("the token (TOLLGATE_ADMIN_TOKEN_FILE, --admin-token-file) cannot be read from {path}")]
    Token {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("rules cannot come from the control plane")]
    Xds(#[from] XdsError),
    #[error(transparent)]
    Traces(#[from] TracesError),
    #[error(transparent)]
    Spans(#[from] BadCollectorUrl),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error("cannot start a thread or a runtime, or wait for signals")]
    System(#[from] io::Error),
}

pub(super) fn list(problems: &[Problem]) -> String {
    let (problems, more) = listed(problems);
    let lines = problems.iter().map(|problem| format!("  {problem}"));
    let more = (more > 0).then(|| format!("  and {more} more"));
    lines.chain(more).collect::<Vec<_>>().join("\n")
}
