//! Every attack of `make attack`, at a small size: other clients get answers, memory stays below the limit of the
//! manifests, and nothing delays a stop. `make attack` measures the times; this test does not.

use crate::support::attack::{Size, all};

/// Below the 256 Mi in `deploy/`.
const BOUND: u64 = 160 << 20;

#[test]
fn others_are_answered_during_every_attack() {
    for attack in all() {
        let outcome = attack.run(Size(5));
        let (before, reference) = (attack.before, attack.reference);
        eprintln!(
            "{}: {outcome}; before: {before}; there: {reference}",
            attack.name
        );
        assert_eq!(outcome.failures, 0, "{}: {outcome}", attack.name);
        assert!(outcome.resident_bytes < BOUND, "{}: {outcome}", attack.name);
    }
}
