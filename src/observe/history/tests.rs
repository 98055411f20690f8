use proptest::prelude::*;

use super::*;
use crate::{
    core::{
        limit::{Allows, Limit, NearRatio, Rule, RuleId},
        window::{Timestamp, Unit},
    },
    observe::metrics::Metrics,
};

/// Rules with their counters, and a history of them.
struct Served {
    metrics: Metrics,
    matcher: Matcher,
    stats: RuleSetStats,
    history: History,
}

impl Served {
    /// Rules `d.k0`, `d.k1` and so on.
    fn new(rules: usize, max_bytes: usize) -> Self {
        let metrics = Metrics::new(NearRatio::default(), 10);
        let matcher = matcher(rules, 1);
        let stats = metrics.rule_set(&matcher);
        Self {
            stats,
            metrics,
            matcher,
            history: History::bounded(max_bytes),
        }
    }

    fn hit(&self, rule: usize, hits: u64) {
        self.stats.count(RuleId(rule), hits, hits / 2);
    }

    /// The next sample, 5 seconds after the one before.
    fn sample(&mut self) {
        let age = SAMPLE_INTERVAL * u32::try_from(self.history.samples + 1).unwrap();
        let at = Timestamp::from_secs(1_000_000).plus(age);
        let process = ProcessTotals {
            time: SampleTime { at, age },
            ..ProcessTotals::default()
        };
        let rules = (&self.matcher, &self.stats);
        self.history.sample(&process, Some(rules));
        assert!(self.history.rule_bytes <= self.history.max_bytes);
    }

    fn reload(&mut self, matcher: Matcher) {
        self.stats = self.metrics.rule_set(&matcher);
        self.matcher = matcher;
    }

    fn hits(&self, path: &str) -> Vec<u32> {
        self.history
            .rule_steps(path)
            .map(|[hits, ..]| hits)
            .collect()
    }

    fn over(&self, path: &str) -> Vec<Vec<u32>> {
        let limits = self.history.limit_steps(path);
        let over = limits.map(|(_, steps)| steps.map(|[_near, over]| over).collect());
        over.collect()
    }
}

fn matcher(rules: usize, limits: u64) -> Matcher {
    let mut matcher = Matcher::default();
    let root = matcher.insert_domain(b"d");
    for index in 0..rules {
        let key = format!("k{index}");
        let node = matcher.insert(root, key.as_bytes(), b"").unwrap();
        let limits = (1..=limits).map(|limit| Limit::fixed(limit, Unit::Day));
        let allows = Allows::Within(limits.collect());
        matcher.set_rule(node, |id| Rule::plain(id, &format!("d.{key}"), allows));
    }
    matcher
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn steps_follow_one_another_and_hold_each_hit_of_their_time_once(samples in 1_u32..1_500) {
        let mut served = Served::new(2, MAX_BYTES);
        for sample in 1..=samples {
            served.hit(0, sample.into());
            served.sample();
        }
        let steps: Vec<_> = served.history.process_steps().copied().collect();
        let mut ended = steps[0].ends - steps[0].lasted;
        let first = ended.as_secs() / SAMPLE_INTERVAL.as_secs();
        for step in &steps {
            prop_assert_eq!(step.ends - step.lasted, ended);
            ended = step.ends;
        }
        prop_assert_eq!(ended, SAMPLE_INTERVAL * samples);
        // The steps span an hour, or all samples if these are fewer.
        let hour = SAMPLE_INTERVAL * samples.min(720 - 6);
        prop_assert!(ended - steps[0].ends + steps[0].lasted >= hour);
        prop_assert!(steps.len() <= 2 * 120);
        // The last ten minutes are fine.
        let fine = steps.iter().rev().take_while(|step| step.lasted == SAMPLE_INTERVAL);
        prop_assert!(fine.count() >= 114.min(samples) as usize);
        let hits = served.hits("d.k0");
        prop_assert_eq!(hits.len(), steps.len());
        let all: u64 = hits.iter().map(|hits| u64::from(*hits)).sum();
        prop_assert_eq!(all, (first + 1..=samples.into()).sum::<u64>());
        prop_assert_eq!(served.hits("d.k1"), Vec::<u32>::new());
    }
}

#[test]
fn a_rule_that_is_hit_late_rests_before_and_one_that_is_not_hit_has_no_history() {
    let mut served = Served::new(3, MAX_BYTES);
    served.sample();
    served.hit(1, 6);
    served.sample();
    served.sample();
    assert_eq!(served.hits("d.k1"), [0, 6, 0]);
    assert_eq!(served.over("d.k1"), [[0, 3, 0]]);
    let paths: Vec<_> = served.history.rule_paths().map(|path| &**path).collect();
    assert_eq!(paths, ["d.k1"]);
}

#[test]
fn a_rule_that_is_gone_rests_and_one_with_other_limits_keeps_its_hits() {
    let mut served = Served::new(2, MAX_BYTES);
    served.hit(0, 4);
    served.hit(1, 8);
    served.sample();
    served.reload(matcher(1, 2));
    served.hit(0, 2);
    served.sample();
    assert_eq!(served.hits("d.k0"), [4, 2]);
    // The limits have changed, so their counts restart at zero.
    assert_eq!(served.over("d.k0"), [[0, 1], [0, 0]]);
    assert_eq!(served.hits("d.k1"), [8, 0]);
    // The rule comes back with new counters, which start at zero.
    served.reload(matcher(2, 2));
    served.hit(1, 3);
    served.sample();
    assert_eq!(served.hits("d.k1"), [8, 0, 3]);
}

#[test]
fn rules_have_a_bounded_room_which_those_leave_that_were_idle_for_long() {
    let one = RuleHistory::max_bytes("d.k0", ["1/day"].into_iter());
    let mut served = Served::new(4, 3 * one);
    for rule in 0..4 {
        served.hit(rule, 2);
    }
    served.sample();
    assert_eq!(
        (served.history.rules.len(), served.history.omitted()),
        (3, 1)
    );
    for _ in 0..IDLE_SAMPLES {
        served.hit(0, 1);
        served.hit(3, 1);
        served.sample();
    }
    let paths: Vec<_> = served.history.rule_paths().map(|path| &**path).collect();
    assert_eq!(paths, ["d.k0", "d.k3"]);
    assert_eq!(served.history.omitted(), 0);
    // Hits from before the history do not count as new ones.
    assert!(served.hits("d.k3").iter().all(|hits| *hits == 0));
    served.hit(3, 5);
    served.sample();
    assert_eq!(served.hits("d.k3").last(), Some(&5));
}

#[test]
fn the_bytes_of_all_histories_are_those_of_a_few_hundred_rules() {
    let one = RuleHistory::max_bytes("domain.some_longer_key", ["1000/minute"].into_iter());
    assert!((4_000..14_000).contains(&one), "{one}");
    assert!(MAX_BYTES / one > 300);
}

#[test]
fn a_step_has_the_latency_of_its_own_calls() {
    let mut served = Served::new(1, MAX_BYTES);
    let metrics = std::sync::Arc::new(Metrics::new(NearRatio::default(), 10));
    let recorder = metrics.clone().recorder(0);
    for (age, micros) in [(5, 40), (10, 2_000)] {
        for _ in 0..9 {
            recorder.record_call(Duration::from_micros(micros));
        }
        recorder.record_call(Duration::from_micros(10 * micros));
        let time = SampleTime {
            at: Timestamp::from_secs(age),
            age: Duration::from_secs(age),
        };
        served
            .history
            .sample(&ProcessTotals::read(&metrics, None, time), None);
    }
    let quantiles: Vec<_> = served
        .history
        .process_steps()
        .map(|step| {
            let value = |wanted| {
                let at = STEP_VALUES.iter().position(|name| *name == wanted);
                step.values[at.unwrap()]
            };
            ["calls", "p50Micros", "p90Micros", "p99Micros"].map(value)
        })
        .collect();
    assert_eq!(quantiles, [[10, 40, 40, 400], [10, 2_000, 2_000, 20_000]]);
}
