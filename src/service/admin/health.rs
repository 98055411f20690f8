//! `/healthcheck`: whether the process wants traffic, and why.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use axum::http::StatusCode;

/// Whether the process wants traffic. Unhealthy until [`set`](Health::set) makes it healthy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<AtomicBool>);

impl Health {
    /// Makes the process healthy or unhealthy.
    pub(crate) fn set(&self, is_good: bool) {
        self.0.store(is_good, Relaxed);
    }

    fn is_good(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// The reply to `/healthcheck` with this query.
    pub(super) fn answer(
        &self,
        query: Option<&str>,
        components: &Components,
    ) -> (StatusCode, String) {
        let (status, text) = if self.is_good() {
            (StatusCode::OK, "OK")
        } else {
            // As in the reference, the reply is 500 with an empty body.
            (StatusCode::INTERNAL_SERVER_ERROR, "")
        };
        if is_verbose(query) {
            (status, describe_health(status, &components()))
        } else {
            (status, text.to_owned())
        }
    }
}

/// A function that returns the name and the state of each part of the process.
pub(crate) type Components = Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>;

fn is_verbose(query: Option<&str>) -> bool {
    let mut parameters = query.unwrap_or_default().split('&');
    parameters.any(|parameter| parameter.split('=').next() == Some("verbose"))
}

/// One line for the process, and one for each of its parts. Writing to a string cannot fail.
fn describe_health(status: StatusCode, components: &[(String, String)]) -> String {
    let is_good = status == StatusCode::OK;
    let mut page = format!("health: {}\n", if is_good { "good" } else { "bad" });
    for (name, text) in components {
        let _ = writeln!(page, "{name}: {text}");
    }
    page
}
