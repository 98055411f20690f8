//! A flood of new values, at a small size: nobody gets a fresh limit, nobody an error, and memory stays as it is.
//! `make attack` does it with ten million values and prints the outcome.

use crate::support::flood;

#[tokio::test]
async fn a_flood_of_new_values_neither_switches_limits_off_nor_takes_more_memory() {
    let outcome = flood::run(400_000, 5_000).await;
    eprintln!("{outcome}");
    assert_eq!(outcome.undecided, 0);
    assert_eq!(outcome.known_admitted, 5);
    assert!(outcome.newcomer_most <= 5, "{outcome}");
    // All newcomers without room share one limit.
    assert!(
        outcome.newcomers_refused < outcome.newcomers_sent,
        "{outcome}"
    );
    assert!(outcome.shared >= 395_000, "{outcome}");
    assert!(
        outcome.resident < outcome.resident_early + (8 << 20),
        "{outcome}"
    );
}
