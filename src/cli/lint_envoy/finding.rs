//! A finding is a trap at one place in a configuration, and its fix. Parts that were checked are counted.

use std::fmt;

use super::document::DocumentValue;
use crate::{
    config::position::Position,
    foundation::printable::{CountOf, on_one_line},
};

pub(crate) use crate::settings::command_line::lint_envoy::{Trap, TrapSeverity};

/// A trap at one place, and how to avoid it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// `None` for JSON, which is read without positions.
    pub position: Option<Position>,
    /// The path in the file, such as `static_resources.clusters[0]`.
    pub path: String,
    pub severity: TrapSeverity,
    pub trap: Trap,
    pub text: String,
    pub fix: String,
}

impl fmt::Display for Finding {
    /// `error: static_resources.clusters[0]: [http2] the cluster speaks HTTP/1.1, …; add …`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}: [{}] {}; {}",
            self.severity,
            on_one_line(&self.path),
            self.trap,
            on_one_line(&self.text),
            on_one_line(&self.fix)
        )
    }
}

/// Collects findings.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Reports a trap at `value`.
    pub(super) fn add(
        &mut self,
        severity: TrapSeverity,
        trap: Trap,
        value: &DocumentValue<'_>,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.0.push(Finding {
            position: value.position(),
            path: value.path(),
            severity,
            trap,
            text: text.into(),
            fix: fix.into(),
        });
    }

    pub(super) fn error(
        &mut self,
        trap: Trap,
        value: &DocumentValue<'_>,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(TrapSeverity::Error, trap, value, text, fix);
    }

    pub(super) fn warning(
        &mut self,
        trap: Trap,
        value: &DocumentValue<'_>,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(TrapSeverity::Warning, trap, value, text, fix);
    }

    pub(super) fn advice(
        &mut self,
        trap: Trap,
        value: &DocumentValue<'_>,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(TrapSeverity::Advice, trap, value, text, fix);
    }
}

/// How many parts of a configuration were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenParts {
    /// Rate limit filters.
    pub(crate) filters: usize,
    pub(crate) routes: usize,
    pub(crate) clusters: usize,
    /// Items of `rate_limits`.
    pub(crate) items: usize,
}

impl SeenParts {
    /// Whether there was nothing to check: no filter and no item of `rate_limits`.
    pub(crate) fn is_nothing(&self) -> bool {
        self.filters == 0 && self.items == 0
    }
}

impl fmt::Display for SeenParts {
    /// `1 filter, 3 routes, 2 clusters`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            filters,
            routes,
            clusters,
            items,
        } = *self;
        if filters == 0 {
            let items = CountOf(items, "item");
            write!(f, "no rate limit filter, {items} of `rate_limits`, ")?;
        } else {
            write!(f, "{}, ", CountOf(filters, "filter"))?;
        }
        write!(
            f,
            "{}, {}",
            CountOf(routes, "route"),
            CountOf(clusters, "cluster")
        )
    }
}
