//! Every attack of `make attack`, a little of each: others are answered, memory stays below what the manifests
//! allow, and nothing holds up a stop. How long it takes is measured by `make attack` and not here.

use crate::support::attack::{Size, all};

/// Of the 256 Mi in `deploy/`.
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
