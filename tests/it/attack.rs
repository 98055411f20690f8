//! Every attack of `make attack`, at a small size: other clients get answers, memory stays below the limit of the
//! manifests, and nothing delays a stop. `make attack` measures the times; this test does not.

use crate::support::{
    attack::{Size, all},
    doors,
};

/// Below the 256 Mi in `deploy/`.
const BOUND: u64 = 160 << 20;

#[test]
fn others_are_answered_during_every_attack() {
    for attack in all() {
        let outcome = attack.run(Size(5));
        let (before, held) = (attack.before, outcome.calls_while_held);
        eprintln!(
            "{}: {outcome}, {held:?} while held; before: {before}",
            attack.name
        );
        assert_eq!(outcome.failures, 0, "{}: {outcome}", attack.name);
        assert!(outcome.resident_bytes < BOUND, "{}: {outcome}", attack.name);
    }
}

/// Those by way of Redis and the control plane.
#[test]
fn nothing_is_gained_at_any_door() {
    for attack in doors::all() {
        let effect = attack.run(Size(5));
        eprintln!(
            "{}: {}; before: {}",
            attack.name, effect.text, attack.before
        );
        assert!(effect.is_harmless, "{}: {}", attack.name, effect.text);
    }
}
