use std::time::Duration;

use super::*;

const MAX: usize = 1 << 20;

fn bound() -> (Arc<HeldBound>, Arc<Metrics>) {
    let metrics = Arc::<Metrics>::default();
    (HeldBound::new(MAX, metrics.clone()), metrics)
}

fn is_over(account: &Account) -> bool {
    account.is_over.load(Relaxed)
}

#[test]
fn a_little_is_nobody_elses_business_and_all_of_it_goes_back() {
    let (bound, metrics) = bound();
    let account = bound.account();
    let drawn = || metrics.held.bytes.load(Relaxed);
    let little = HeldBytes::new(&account, FREE_BYTES);
    assert_eq!(drawn(), 0);
    let more = HeldBytes::new(&account, 1);
    assert_eq!(drawn(), PIECE_BYTES as u64);
    drop(little);
    assert_eq!(drawn(), 0);
    account.hold_until_flushed(100_000);
    assert!(drawn() >= 96_000);
    account.flushed();
    assert_eq!(drawn(), 0);
    let bytes = HeldBytes::new(&account, 100_000).with(vec![0; 100_000]);
    let part = bytes.slice(5..7);
    drop(bytes);
    assert!(drawn() >= 96_000);
    drop((part, more));
    assert_eq!(drawn(), 0);
}

#[test]
fn who_holds_most_for_longest_makes_room() {
    let (mut bound, metrics) = bound();
    Arc::get_mut(&mut bound).unwrap().start -= Duration::from_secs(60);
    let [old, large, small] = [(); 3].map(|()| bound.account());
    let _old = HeldBytes::new(&old, MAX / 4);
    // As if it had happened earlier.
    old.since.store(0, Relaxed);
    let _large = HeldBytes::new(&large, MAX / 2);
    let _first = HeldBytes::new(&small, MAX / 8);
    assert!(![&old, &large, &small].into_iter().any(|one| is_over(one)));
    let _second = HeldBytes::try_new(&small, MAX / 4).unwrap();
    assert!(is_over(&old));
    assert!(!is_over(&large) && !is_over(&small));
    // It is closing, so what it held counts as free.
    let _third = HeldBytes::try_new(&small, MAX / 64).unwrap();
    assert!(!is_over(&large) && !is_over(&small));
    assert_eq!(metrics.held.cut_off.total(CutOff::CONNECTION_NO_ROOM), 1);
}

#[test]
fn who_would_go_is_refused_and_may_stay() {
    let (bound, _) = bound();
    let [greedy, other] = [(); 2].map(|()| bound.account());
    let _other = HeldBytes::new(&other, FREE_BYTES);
    let first = HeldBytes::try_new(&greedy, MAX / 2).unwrap();
    assert!(HeldBytes::try_new(&greedy, MAX).is_err());
    assert!(!is_over(&greedy) && !is_over(&other));
    // A refused charge is given back.
    let second = HeldBytes::try_new(&greedy, MAX / 4).unwrap();
    drop((first, second));
    // Memory that already exists cannot be refused.
    let _reply = HeldBytes::new(&greedy, 2 * MAX);
    assert!(is_over(&greedy) && !is_over(&other));
}

#[tokio::test]
async fn a_connection_that_has_to_go_is_aborted_also_before_it_is_served() {
    let (bound, _) = bound();
    for is_over_first in [true, false] {
        let account = bound.account();
        let mut tasks = tokio::task::JoinSet::new();
        let task = tasks.spawn(std::future::pending::<()>());
        if is_over_first {
            account.end();
            account.served_by(task);
        } else {
            account.served_by(task);
            account.end();
        }
        assert!(tasks.join_next().await.unwrap().unwrap_err().is_cancelled());
    }
}

#[test]
fn a_connection_that_is_gone_holds_nothing() {
    let (bound, metrics) = bound();
    let account = bound.account();
    account.hold_until_flushed(MAX / 2);
    drop(account);
    assert_eq!(metrics.held.bytes.load(Relaxed), 0);
    assert!(bound.accounts().open.is_empty());
}

#[test]
fn the_place_of_a_new_connection_is_that_of_one_without_a_message_or_of_the_idlest() {
    let (bound, metrics) = bound();
    let begins_turn = || *bound.turned.lock().unwrap() -= TURN;
    let [page, idle, busy, silent, new] = [(); 5].map(|()| bound.account());
    page.keep_place();
    idle.record_message();
    busy.record_message();
    // Neither has been idle for a whole turn.
    begins_turn();
    for _ in 0..2 {
        while !bound.make_connection_room() {
            std::thread::yield_now();
        }
        assert!(bound.millis() >= NEW_FOR_MILLIS);
    }
    assert!(is_over(&silent) && is_over(&new));
    assert!(!bound.make_connection_room());
    busy.record_message();
    begins_turn();
    assert!(bound.make_connection_room());
    assert!(is_over(&idle));
    assert!(!bound.make_connection_room());
    assert!(!is_over(&busy) && !is_over(&page));
    assert_eq!(metrics.held.cut_off.total(CutOff::CONNECTION_LIMIT), 3);
}
