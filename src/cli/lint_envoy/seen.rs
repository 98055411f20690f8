//! Counts of the parts of a configuration that were looked at.

use std::fmt;

/// How much of a configuration there was to look at.
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
    /// Whether there was neither a filter nor an item of `rate_limits`, so that no trap could be found.
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

/// A number and its noun: `1 filter`, `2 filters`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountOf(pub(crate) usize, pub(crate) &'static str);

impl fmt::Display for CountOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, noun) = self;
        let plural = if *number == 1 { "" } else { "s" };
        write!(f, "{number} {noun}{plural}")
    }
}
