//! The memory budget for clients: incoming messages, unread replies, unfinished headers, pages. All connections share
//! one [`Budget`]. When it is used up, the connection that has held the most for the longest is closed; if that is
//! the requesting connection, its request is refused instead.
//!
//! A call whose message has arrived when it begins, and whose reply is written at once, costs nothing: the first
//! `FREE_BYTES` of every connection are not counted.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Instant,
};

use prost::bytes::{Buf, Bytes};
use tokio::task::AbortHandle;

use crate::{
    foundation::log_throttle::LogThrottle,
    observe::metrics::{CutOff, Metrics},
};

/// Bytes that a connection may hold without using the budget.
const FREE_BYTES: usize = 4 << 10;

/// An account charges the budget in pieces of this size, so that it seldom has to.
const PIECE_BYTES: usize = 32 << 10;

/// Memory that HTTP/2 needs for a call until its reply is sent.
pub const CALL_BYTES: usize = 512;

/// The budget has no room, and no other connection will be closed for it.
#[derive(Debug)]
pub struct BudgetExhausted;

/// Bound on the memory that all clients together can make the process hold, in bytes.
pub struct Budget {
    max: u64,
    metrics: Arc<Metrics>,
    accounts: Mutex<OpenAccounts>,
    /// When the budget was made; ages count from then.
    start: Instant,
    throttles: [LogThrottle; CutOff::REASONS.len()],
}

#[derive(Default)]
struct OpenAccounts {
    next: u64,
    open: HashMap<u64, Weak<Account>>,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("max", &self.max).finish()
    }
}

/// One connection's share of the budget.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    number: u64,
    held: AtomicUsize,
    /// The part charged to the budget, in whole pieces.
    drawn: AtomicU64,
    /// Since when anything is charged, in milliseconds since the budget's start.
    since: AtomicU64,
    /// Bytes held until all written data has been sent.
    until_flushed: AtomicUsize,
    /// Whether a request has arrived on the connection.
    is_used: AtomicBool,
    is_over: AtomicBool,
    /// Aborts the task that serves the connection. A future that waited for the abort would take a lock at each
    /// poll of the connection.
    task: OnceLock<AbortHandle>,
}

impl Budget {
    pub fn new(max_bytes: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        let max = u64::try_from(max_bytes).unwrap_or(u64::MAX);
        metrics.held.max.store(max, Relaxed);
        Arc::new(Self {
            max,
            metrics,
            accounts: Mutex::default(),
            start: Instant::now(),
            throttles: Default::default(),
        })
    }

    /// The account of a newly opened connection.
    pub fn account(self: &Arc<Self>) -> Arc<Account> {
        let mut accounts = self.accounts();
        let number = accounts.next;
        accounts.next += 1;
        let account = Arc::new(Account {
            budget: self.clone(),
            number,
            held: AtomicUsize::new(0),
            drawn: AtomicU64::new(0),
            since: AtomicU64::new(0),
            until_flushed: AtomicUsize::new(0),
            is_used: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            task: OnceLock::new(),
        });
        accounts.open.insert(number, Arc::downgrade(&account));
        account
    }

    /// Closes the oldest connection without a request, because no place is left for another.
    pub fn make_connection_room(&self) {
        let accounts = self.accounts();
        let all: Vec<_> = accounts.open.values().filter_map(Weak::upgrade).collect();
        drop(accounts);
        let unused = all
            .iter()
            .filter(|one| !one.is_used() && !one.is_over.load(Relaxed));
        if let Some(oldest) = unused.min_by_key(|one| one.number) {
            oldest.end_as(CutOff::CONNECTION_LIMIT);
        }
    }

    fn accounts(&self) -> MutexGuard<'_, OpenAccounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drawn(&self) -> u64 {
        self.metrics.held.bytes.load(Relaxed)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Makes room by closing connections, first those that have held the most for the longest.
    ///
    /// # Errors
    ///
    /// If `asking` itself would be closed.
    fn make_room(&self, asking: &Account) -> Result<(), BudgetExhausted> {
        let accounts = self.accounts();
        let all: Vec<_> = accounts.open.values().filter_map(Weak::upgrade).collect();
        // Dropping an account takes this lock too.
        drop(accounts);
        let is_leaving = |account: &&Arc<Account>| account.is_over.load(Relaxed);
        let leaving: u64 = all.iter().filter(is_leaving).map(|one| one.drawn()).sum();
        let mut left = self.drawn().saturating_sub(leaving);
        let now = self.millis();
        let mut staying: Vec<_> = all.iter().filter(|one| !is_leaving(one)).collect();
        while left > self.max {
            let weight = |account: &Account| {
                let age = now.saturating_sub(account.since.load(Relaxed)) + 1;
                u128::from(account.drawn()) * u128::from(age)
            };
            let holding = staying.iter().enumerate();
            let holding = holding.filter(|(_, one)| one.drawn() > 0);
            let Some((at, _)) = holding.max_by_key(|(_, one)| weight(one)) else {
                return Ok(());
            };
            let worst = staying.swap_remove(at);
            if worst.number == asking.number {
                return Err(BudgetExhausted);
            }
            left = left.saturating_sub(worst.drawn());
            worst.end();
        }
        Ok(())
    }

    /// Counts a refused or closed piece of work, and logs it now and then.
    pub fn note(&self, reason: usize) {
        self.metrics.held.cut_off.count(reason);
        if self.throttles[reason].is_over() {
            let max = self.max;
            match reason {
                CutOff::MESSAGE_LATE => tracing::warn!(
                    "the message of a call did not come within `--message-timeout`; it is refused"
                ),
                CutOff::JSON_LATE => tracing::warn!(
                    "the body of a request in JSON did not come within `--message-timeout`; it is refused"
                ),
                CutOff::MESSAGE_NO_ROOM => tracing::warn!(
                    "clients have the process hold more than {max} bytes (`--max-held-bytes`): the \
                     messages of calls are refused"
                ),
                CutOff::JSON_NO_ROOM => tracing::warn!(
                    "clients have the process hold more than {max} bytes (`--max-held-bytes`): requests \
                     in JSON are refused"
                ),
                CutOff::CONNECTION_LIMIT => tracing::warn!(
                    "there are as many gRPC connections as there may be (`--max-connections`, or the limit \
                     of open files): for one more the oldest is closed that has not called"
                ),
                _ => tracing::warn!(
                    "clients have the process hold more than {max} bytes (`--max-held-bytes`): the \
                     connection is closed that has held most for the longest time"
                ),
            }
        }
    }
}

impl Account {
    /// Names the task that serves the connection. It is aborted if the connection has to close.
    ///
    /// # Panics
    ///
    /// If the connection has a task already.
    pub fn served_by(&self, task: AbortHandle) {
        self.task
            .set(task)
            .expect("a connection is served by one task");
        // The connection may have had to close before it had a task.
        self.abort_if_over();
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Records that a request has arrived.
    pub fn use_it(&self) {
        self.is_used.store(true, Relaxed);
    }

    pub fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    /// Closes the connection, because it holds too much.
    pub fn end(&self) {
        self.end_as(CutOff::CONNECTION_NO_ROOM);
    }

    fn end_as(&self, reason: usize) {
        if !self.is_over.swap(true, AcqRel) {
            self.budget.note(reason);
            self.abort_if_over();
        }
    }

    fn abort_if_over(&self) {
        if self.is_over.load(Acquire)
            && let Some(task) = self.task.get()
        {
            task.abort();
        }
    }

    fn drawn(&self) -> u64 {
        self.drawn.load(Relaxed)
    }

    /// Charges `bytes`.
    ///
    /// # Errors
    ///
    /// If there is no room; the bytes stay charged until they are given back.
    fn take(&self, bytes: usize) -> Result<(), BudgetExhausted> {
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        if pieces(held) <= self.drawn() {
            return Ok(());
        }
        self.draw(held);
        if self.budget.drawn() > self.budget.max {
            return self.budget.make_room(self);
        }
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        let held = self.held.fetch_sub(bytes, Relaxed) - bytes;
        // One piece stays charged, so that small changes cost nothing.
        let drawn = self.drawn();
        if drawn > 0 && (held <= FREE_BYTES || pieces(held) + 2 * PIECE_BYTES as u64 <= drawn) {
            self.draw(held);
        }
    }

    /// Adjusts the charged pieces to what is held.
    fn draw(&self, held: usize) {
        let drawn = pieces(held);
        let before = self.drawn.swap(drawn, AcqRel);
        let all = &self.budget.metrics.held.bytes;
        if drawn > before {
            if before == 0 {
                self.since.store(self.budget.millis(), Relaxed);
            }
            all.fetch_add(drawn - before, Relaxed);
        } else {
            all.fetch_sub(before - drawn, Relaxed);
        }
    }

    /// Charges `bytes` until all pending output has been sent.
    pub fn hold_until_flushed(&self, bytes: usize) {
        self.until_flushed.fetch_add(bytes, Relaxed);
        if self.take(bytes).is_err() {
            self.end();
        }
    }

    /// Called when all pending output has been sent.
    pub fn flushed(&self) {
        if self.until_flushed.load(Relaxed) > 0 {
            self.give_back(self.until_flushed.swap(0, Relaxed));
        }
    }
}

/// The bytes to charge for so many held bytes.
fn pieces(held: usize) -> u64 {
    let above = held.saturating_sub(FREE_BYTES);
    u64::try_from(above.next_multiple_of(PIECE_BYTES)).unwrap_or(u64::MAX)
}

impl Drop for Account {
    fn drop(&mut self) {
        self.draw(0);
        self.budget.accounts().open.remove(&self.number);
    }
}

/// Bytes charged to a connection until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Account>,
    bytes: usize,
}

impl Reservation {
    /// Charges `bytes` even without room; then the connection closes.
    pub fn new(account: &Arc<Account>, bytes: usize) -> Self {
        let held = Self {
            account: account.clone(),
            bytes,
        };
        if account.take(bytes).is_err() {
            account.end();
        }
        held
    }

    /// Charges nothing yet.
    pub fn nothing(account: Arc<Account>) -> Self {
        Self { account, bytes: 0 }
    }

    /// Charges `bytes` instead of the present number, even without room: the connection closes then. A charge that
    /// is slightly too large stays.
    pub fn resize(&mut self, bytes: usize) {
        const LITTLE: usize = 512;
        if let Some(more @ 1..) = bytes.checked_sub(self.bytes) {
            self.bytes = bytes;
            if self.account.take(more).is_err() {
                self.account.end();
            }
        } else if self.bytes - bytes > LITTLE {
            self.account.give_back(self.bytes - bytes);
            self.bytes = bytes;
        }
    }

    /// Charges `bytes` if there is room.
    ///
    /// # Errors
    ///
    /// If there is no room.
    pub fn try_new(account: &Arc<Account>, bytes: usize) -> Result<Self, BudgetExhausted> {
        let mut held = Self {
            account: account.clone(),
            bytes: 0,
        };
        held.add(bytes)?;
        Ok(held)
    }

    /// Charges more bytes if there is room.
    ///
    /// # Errors
    ///
    /// If there is no room; the drop gives everything back.
    pub fn add(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        self.bytes += bytes;
        self.account.take(bytes)
    }

    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// `bytes` that give their charge back when the last reference to them is dropped.
    pub fn with(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(ReservedVec { bytes, _held: self })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

struct ReservedVec {
    bytes: Vec<u8>,
    _held: Reservation,
}

impl AsRef<[u8]> for ReservedVec {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes of a reply, charged until they are written or dropped.
///
/// A pointer: hyper keeps room for two of them in the task of each call.
#[derive(Debug)]
pub struct ReplyBytes(Box<(Bytes, Reservation)>);

impl ReplyBytes {
    pub fn new(bytes: Bytes, held: Reservation) -> Self {
        Self(Box::new((bytes, held)))
    }
}

impl Buf for ReplyBytes {
    fn remaining(&self) -> usize {
        self.0.0.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.0.0.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.0.0.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MAX: usize = 1 << 20;

    fn budget() -> (Arc<Budget>, Arc<Metrics>) {
        let metrics = Arc::<Metrics>::default();
        (Budget::new(MAX, metrics.clone()), metrics)
    }

    fn is_over(account: &Account) -> bool {
        account.is_over.load(Relaxed)
    }

    #[test]
    fn a_little_is_nobody_elses_business_and_all_of_it_goes_back() {
        let (budget, metrics) = budget();
        let account = budget.account();
        let drawn = || metrics.held.bytes.load(Relaxed);
        let little = Reservation::new(&account, FREE_BYTES);
        assert_eq!(drawn(), 0);
        let more = Reservation::new(&account, 1);
        assert_eq!(drawn(), PIECE_BYTES as u64);
        drop(little);
        assert_eq!(drawn(), 0);
        account.hold_until_flushed(100_000);
        assert!(drawn() >= 96_000);
        account.flushed();
        assert_eq!(drawn(), 0);
        let bytes = Reservation::new(&account, 100_000).with(vec![0; 100_000]);
        let part = bytes.slice(5..7);
        drop(bytes);
        assert!(drawn() >= 96_000);
        drop((part, more));
        assert_eq!(drawn(), 0);
    }

    #[test]
    fn who_holds_most_for_longest_makes_room() {
        let (mut budget, metrics) = budget();
        Arc::get_mut(&mut budget).unwrap().start -= Duration::from_secs(60);
        let [old, large, small] = [(); 3].map(|()| budget.account());
        let _old = Reservation::new(&old, MAX / 4);
        // As if it had happened earlier.
        old.since.store(0, Relaxed);
        let _large = Reservation::new(&large, MAX / 2);
        let _first = Reservation::new(&small, MAX / 8);
        assert!(![&old, &large, &small].into_iter().any(|one| is_over(one)));
        let _second = Reservation::try_new(&small, MAX / 4).unwrap();
        assert!(is_over(&old));
        assert!(!is_over(&large) && !is_over(&small));
        // It is closing, so what it held counts as free.
        let _third = Reservation::try_new(&small, MAX / 64).unwrap();
        assert!(!is_over(&large) && !is_over(&small));
        assert_eq!(metrics.held.cut_off.total(CutOff::CONNECTION_NO_ROOM), 1);
    }

    #[test]
    fn who_would_go_is_refused_and_may_stay() {
        let (budget, _) = budget();
        let [greedy, other] = [(); 2].map(|()| budget.account());
        let _other = Reservation::new(&other, FREE_BYTES);
        let first = Reservation::try_new(&greedy, MAX / 2).unwrap();
        assert!(Reservation::try_new(&greedy, MAX).is_err());
        assert!(!is_over(&greedy) && !is_over(&other));
        // A refused charge is given back.
        let second = Reservation::try_new(&greedy, MAX / 4).unwrap();
        drop((first, second));
        // Memory that already exists cannot be refused.
        let _reply = Reservation::new(&greedy, 2 * MAX);
        assert!(is_over(&greedy) && !is_over(&other));
    }

    #[tokio::test]
    async fn a_connection_that_has_to_go_is_aborted_also_before_it_is_served() {
        let (budget, _) = budget();
        for is_over_first in [true, false] {
            let account = budget.account();
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
        let (budget, metrics) = budget();
        let account = budget.account();
        account.hold_until_flushed(MAX / 2);
        drop(account);
        assert_eq!(metrics.held.bytes.load(Relaxed), 0);
        assert!(budget.accounts().open.is_empty());
    }
}
