use super::*;
use crate::core::{
    counter::{CounterKind, Operation},
    kind::Algorithm,
    limit::{Allows, CountPolicy, Limit, Modes, Rule},
    matcher::tests::Rules,
    plan::Plan,
    request::{Hits, Request},
    window::{Timestamp, Unit},
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

impl Rules {
    /// Adds a rule of five requests per hour.
    fn five(self, key: &str, change: impl FnOnce(&mut Rule)) -> Self {
        self.with(key, five(|_| ()), change)
    }
}

fn five(change: impl FnOnce(&mut Limit)) -> Allows {
    let mut limit = Limit::fixed(5, Unit::Hour);
    change(&mut limit);
    Allows::Within([limit].into())
}

/// A request with a descriptor for each key.
fn request<'a>(keys: &[&'a str], hits: u64) -> Request<'a> {
    let mut request = Request::for_keys(keys.iter().copied());
    request.set_hits(Hits::add(hits));
    request
}

/// The answer to a look at a counter that holds `count`.
fn looked_at(count: u64) -> CounterState {
    CounterState {
        is_charged: false,
        ..CounterState::from(count)
    }
}

#[test]
fn a_look_asks_for_every_counter_and_charges_none() {
    let log = five(|limit| limit.algorithm = Algorithm::SlidingLog);
    let rules = Rules::default().five("a", |_| ()).with("log", log, |_| ());
    let check = |hits: u64, retry_in: Option<u64>| {
        let request = request(&["a", "log"], hits);
        let batch = Plan::new(&rules.0, &request, Modes::default(), NOW).batch;
        let mut look = Plan::new(&rules.0, &request, Modes::default(), NOW).batch;
        look.look();
        let keys = |batch: &Batch| -> Vec<_> {
            batch
                .iter()
                .map(|one| (one.key.to_vec(), one.spec.method))
                .collect()
        };
        assert_eq!(keys(&look), keys(&batch));
        assert!(
            look.all_specs()
                .all(|spec| spec.operation == Operation::Look)
        );
        let [window, log] = &empty_look(&batch)[..] else {
            panic!("{batch:?}");
        };
        assert_eq!(batch.spec(1).method, CounterKind::SlidingLog);
        assert_eq!(
            (window.after, window.is_charged, window.ends),
            (0, false, None)
        );
        assert!(!log.is_charged);
        let ends = log.ends.unwrap();
        assert_eq!((ends.resets_in, ends.retry_in), (0, retry_in));
    };
    check(5, Some(0));
    check(6, None);
}

#[test]
fn a_counter_that_is_asked_for_twice_predicts_the_hits_in_front() {
    let rules = Rules::default().five("a", |rule| rule.counts = CountPolicy::Admitted);
    let request = request(&["a", "a"], 1);
    let batch = Plan::new(&rules.0, &request, Modes::default(), NOW).batch;
    let predicted = |count| {
        let counts = predicted(&batch, &[count; 2].map(looked_at));
        counts
            .iter()
            .map(|count| (count.after, count.is_charged))
            .collect::<Vec<_>>()
    };
    assert_eq!(predicted(3), [(4, true), (5, true)]);
    assert_eq!(predicted(4), [(4, false), (5, false)]);
}
