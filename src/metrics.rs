//! All metric names and labels; records decisions.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    counter::Count,
    decision::{Code, Decision, Tally, tally},
    limit::{NearRatio, Rule},
    limiter::RuleSet,
    plan::{Outcome, Plan},
    store::{memory::MemoryStore, over_limit_cache, redis},
};

pub mod mapper;
pub mod mogrifier;
pub mod process;
pub mod prometheus;
pub mod sample;
pub mod statsd;

/// Everything that is counted about the process. One for all workers.
#[derive(Debug, Default)]
pub struct Metrics {
    near_ratio: NearRatio,
    decisions_ok: AtomicU64,
    decisions_over_limit: AtomicU64,
    decisions_failed: AtomicU64,
    global_shadow_mode: AtomicU64,
    unknown_domains: AtomicU64,
    loads_ok: AtomicU64,
    loads_failed: AtomicU64,
    rules: Mutex<BTreeMap<Arc<str>, Arc<RuleMeters>>>,
    pub redis: Arc<redis::Meters>,
    pub over_limit_cache: Arc<over_limit_cache::Meters>,
}

/// How the hits of one rule fell, by its binding limit.
#[derive(Debug, Default)]
pub struct RuleMeters {
    total_hits: AtomicU64,
    within_limit: AtomicU64,
    near_limit: AtomicU64,
    over_limit: AtomicU64,
    shadow_mode: AtomicU64,
}

impl Metrics {
    pub fn new(near_ratio: NearRatio) -> Self {
        Self {
            near_ratio,
            ..Self::default()
        }
    }

    /// The meters of `rules`, in their order: a rule that was there before keeps its counts, one
    /// that is gone is forgotten, so the number of meters is that of the rules.
    pub fn rules(&self, rules: &[Rule]) -> Vec<Arc<RuleMeters>> {
        let mut known = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let meters: BTreeMap<_, _> = rules
            .iter()
            .map(|rule| {
                let meters = known.get(&rule.path).cloned().unwrap_or_default();
                (rule.path.clone(), meters)
            })
            .collect();
        let in_order = rules
            .iter()
            .map(|rule| meters[&rule.path].clone())
            .collect();
        *known = meters;
        in_order
    }

    pub fn record(&self, rules: &RuleSet, plan: &Plan<'_>, counts: &[Count], decision: &Decision) {
        add(&self.global_shadow_mode, u64::from(decision.is_shadowed));
        match decision.overall {
            Code::Ok => add(&self.decisions_ok, 1),
            Code::OverLimit => add(&self.decisions_over_limit, 1),
        }
        for (outcome, status) in plan.outcomes.iter().zip(&decision.statuses) {
            let counted = match outcome {
                Outcome::Counted(counted) => counted,
                Outcome::Unmatched {
                    is_domain_known: false,
                } => {
                    add(&self.unknown_domains, 1);
                    continue;
                }
                Outcome::Unmatched { .. } | Outcome::Unlimited(_) | Outcome::Replaced(_) => {
                    continue;
                }
            };
            let (Some(rule), Some(binding)) = (counted.rule, &status.binding) else {
                continue;
            };
            let fell = tally(
                &binding.limit,
                self.near_ratio,
                counted.hits,
                counts[binding.counter],
            );
            rules.meters[rule.id.0].record(counted.hits.added(), fell, rule.shadow_mode);
        }
    }

    pub fn record_failure(&self) {
        add(&self.decisions_failed, 1);
    }

    pub fn record_load(&self, is_ok: bool) {
        add(
            if is_ok {
                &self.loads_ok
            } else {
                &self.loads_failed
            },
            1,
        );
    }

    /// All of it in Prometheus' text format, version 0.0.4.
    pub fn render(&self, memory: Option<&MemoryStore>) -> String {
        let mut page = Page(String::new());
        page.family(
            "tollgate_decisions_total",
            "counter",
            "Decisions, by what Envoy was told.",
        );
        for (code, count) in [
            ("ok", &self.decisions_ok),
            ("over_limit", &self.decisions_over_limit),
            ("error", &self.decisions_failed),
        ] {
            page.sample("tollgate_decisions_total", &[("code", code)], get(count));
        }
        page.one(
            "tollgate_global_shadow_mode_total",
            "Replies that SHADOW_MODE turned into OK.",
            &self.global_shadow_mode,
        );
        page.one(
            "tollgate_unknown_domains_total",
            "Descriptors of a domain that no file names.",
            &self.unknown_domains,
        );
        page.one(
            "tollgate_config_loads_total",
            "Good loads of the rules.",
            &self.loads_ok,
        );
        page.one(
            "tollgate_config_load_errors_total",
            "Loads of the rules that were refused; the rules before them stayed in use.",
            &self.loads_failed,
        );
        page.one(
            "tollgate_redis_pipelines_total",
            "Batches sent to Redis.",
            &self.redis.pipelines,
        );
        page.one(
            "tollgate_redis_commands_total",
            "Commands in them.",
            &self.redis.commands,
        );
        page.one(
            "tollgate_redis_failures_total",
            "Batches that failed, and connections that did not come up.",
            &self.redis.failures,
        );
        let cache = &self.over_limit_cache;
        page.one(
            "tollgate_over_limit_cache_hits_total",
            "Counters that were known to be over their limit without asking Redis.",
            &cache.hits,
        );
        page.one(
            "tollgate_over_limit_cache_misses_total",
            "Counters that were not, and had to be asked for.",
            &cache.misses,
        );
        if let Some(store) = memory {
            let live = store.live_counters() as u64;
            page.gauge("tollgate_memory_counters", "Counters held in memory.", live);
            let max = store.max_counters() as u64;
            page.gauge("tollgate_memory_counters_max", "The bound on them.", max);
        }
        self.render_rules(&mut page);
        page.0
    }

    fn render_rules(&self, page: &mut Page) {
        let rules = self
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        type Pick = fn(&RuleMeters) -> &AtomicU64;
        let families: [(&str, &str, Pick); 5] = [
            ("total_hits", "Hits on a rule.", |meters| &meters.total_hits),
            (
                "within_limit",
                "Hits of requests within the limit.",
                |meters| &meters.within_limit,
            ),
            (
                "near_limit",
                "Hits above the near-limit threshold.",
                |meters| &meters.near_limit,
            ),
            ("over_limit", "Hits above the limit.", |meters| {
                &meters.over_limit
            }),
            (
                "shadow_mode",
                "Hits above the limit that passed.",
                |meters| &meters.shadow_mode,
            ),
        ];
        for (stat, help, pick) in families {
            let name = format!("tollgate_rule_{stat}_total");
            page.family(&name, "counter", help);
            for (path, meters) in &rules {
                page.sample(&name, &[("rule", path)], get(pick(meters)));
            }
        }
    }
}

impl RuleMeters {
    fn record(&self, hits: u64, fell: Tally, is_shadowed: bool) {
        add(&self.total_hits, hits);
        add(&self.within_limit, fell.within);
        add(&self.near_limit, fell.near);
        add(&self.over_limit, fell.over);
        if is_shadowed {
            add(&self.shadow_mode, fell.over);
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Relaxed);
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// A page of metrics that grows line by line. Writing to a string cannot fail.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        self.0.push_str(if labels.is_empty() { " " } else { "} " });
        let _ = writeln!(self.0, "{value}");
    }

    fn one(&mut self, name: &str, help: &str, counter: &AtomicU64) {
        self.family(name, "counter", help);
        self.sample(name, &[], get(counter));
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page(String::new());
        page.sample("m", &[("a", "x\"y\\z\nw")], 7);
        assert_eq!(page.0, "m{a=\"x\\\"y\\\\z\\nw\"} 7\n");
    }

    #[test]
    fn a_rule_that_stays_keeps_its_counts_and_one_that_goes_is_forgotten() {
        use crate::limit::{Allows, RuleId};
        let rule = |path: &str| Rule {
            id: RuleId(0),
            path: path.into(),
            allows: Allows::Unlimited,
            replaces: Box::default(),
            shadow_mode: false,
            quota_mode: false,
            metric: Default::default(),
            metadata: Default::default(),
        };
        let metrics = Metrics::default();
        let fell = Tally {
            within: 3,
            ..Tally::default()
        };
        metrics.rules(&[rule("d.a"), rule("d.b")])[0].record(3, fell, false);
        metrics.rules(&[rule("d.c"), rule("d.a")]);
        let page = metrics.render(None);
        assert!(page.contains("tollgate_rule_within_limit_total{rule=\"d.a\"} 3\n"));
        assert!(page.contains("tollgate_rule_total_hits_total{rule=\"d.c\"} 0\n"));
        assert!(!page.contains("d.b"));
    }
}
