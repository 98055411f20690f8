//! The HTTP doors. On the HTTP port: `/healthcheck`. On the debug port: `/` (this list),
//! `/metrics` and `/rlconfig`.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::{any, get},
};

use crate::{
    limit::{Allows, Rule},
    limiter::Rules,
    metrics::Metrics,
    store::memory::MemoryStore,
};

/// Whether the process wants to be asked.
#[derive(Clone, Debug)]
pub struct Health(Arc<AtomicBool>);

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Health {
    pub fn turn_bad(&self) {
        self.0.store(false, Relaxed);
    }

    fn is_good(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// The HTTP port.
pub fn http(health: Health) -> Router {
    let healthcheck = move || async move {
        if health.is_good() {
            (StatusCode::OK, "OK")
        } else {
            // As in the reference: 500, and nothing to read.
            (StatusCode::INTERNAL_SERVER_ERROR, "")
        }
    };
    Router::new().route("/healthcheck", any(healthcheck))
}

/// What the debug port shows.
#[derive(Clone, Debug)]
pub struct Debug {
    pub rules: Rules,
    pub metrics: Arc<Metrics>,
    pub memory: Option<Arc<MemoryStore>>,
}

const INDEX: &str = "\
/: this list
/metrics: counters and gauges in Prometheus' text format
/rlconfig: the rules in use, one limit a line
";

/// The debug port.
pub fn debug(shown: Debug) -> Router {
    let Debug {
        rules,
        metrics,
        memory,
    } = shown;
    let page = move || async move {
        let text = metrics.render(memory.as_deref());
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
    };
    Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/metrics", get(page))
        .route("/rlconfig", get(move || async move { rlconfig(&rules) }))
}

/// One line for each limit, as the reference prints them, with our own additions behind.
fn rlconfig(rules: &Rules) -> String {
    let mut page = String::new();
    if let Some(rules) = rules.current() {
        for rule in rules.matcher.rules() {
            describe(rule, &mut page);
        }
    }
    page
}

/// Writing to a string cannot fail.
fn describe(rule: &Rule, page: &mut String) {
    let mut line = |unit: &str, requests_per_unit: u32, multiplier: u32| {
        let _ = write!(
            page,
            "{}: unit={} requests_per_unit={requests_per_unit}, shadow_mode: {}, quota_mode: {}",
            rule.path,
            unit.to_uppercase(),
            rule.shadow_mode,
            rule.quota_mode
        );
        if multiplier > 1 {
            let _ = write!(page, ", unit_multiplier: {multiplier}");
        }
        page.push('\n');
    };
    match &rule.allows {
        Allows::Unlimited => line("unknown", 0, 1),
        Allows::Within(limits) => {
            for limit in limits {
                let period = limit.period;
                line(
                    period.unit().name(),
                    limit.requests_per_unit,
                    period.multiplier().get(),
                );
            }
        }
    }
}
