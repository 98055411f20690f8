//! The bytes that clients make the process hold: incoming messages, unread replies, unfinished headers, pages. All
//! connections share one [`HeldBound`]. When it is reached, the connection with the largest product of bytes and time
//! is closed; if that connection asks for more itself, its request is refused instead.
//!
//! A call whose message arrives with its headers and whose reply is written at once costs nothing: the first
//! `FREE_BYTES` of every connection are not counted.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::{Duration, Instant},
};

use tokio::task::AbortHandle;

use crate::{
    foundation::lock::lock,
    observe::metrics::{CutOff, Metrics},
};

mod charge;
mod cut_off_log;
#[cfg(test)]
mod tests;

pub(crate) use charge::{HeldBytes, ReplyBytes};

use cut_off_log::CutOffLog;

/// Bytes that a connection can hold without a charge.
const FREE_BYTES: usize = 4 << 10;

/// Accounts are charged in pieces of this size, so that most changes touch no shared counter.
const PIECE_BYTES: usize = 32 << 10;

/// Memory that HTTP/2 needs for a call until its reply is sent.
pub(crate) const CALL_BYTES: usize = 512;

const FIRST_TURN: u64 = 1;

/// Shortest length of a turn.
const TURN: Duration = Duration::from_secs(1);

/// Time for a new connection to send its first message before it can be closed to make room: a client waits for the
/// server's settings first. A flood can take every place at most once in this time.
const NEW_FOR_MILLIS: u64 = 100;

/// Most unused connections closed at once to make room for new ones.
const CLOSED_TOGETHER: usize = 32;

/// The turn of connections that never give up their place.
const ALWAYS: u64 = u64::MAX;

/// There is no room below the bound, and no other connection will be closed for it.
#[derive(Debug)]
pub(crate) struct NoHeldRoom;

/// Bound on the memory that all clients together can make the process hold, in bytes.
pub(crate) struct HeldBound {
    max: u64,
    metrics: Arc<Metrics>,
    accounts: Mutex<OpenAccounts>,
    /// Ages are measured from here.
    start: Instant,
    /// The current turn of the search for idle connections; `turned` is when it began. Connections note the turn
    /// instead of the time, so that no call has to read a clock.
    turn: AtomicU64,
    turned: Mutex<Instant>,
    log: CutOffLog,
}

#[derive(Default)]
struct OpenAccounts {
    next: u64,
    open: HashMap<u64, Weak<Account>>,
}

impl fmt::Debug for HeldBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldBound").field("max", &self.max).finish()
    }
}

/// The bytes that one connection holds.
#[derive(Debug)]
pub(crate) struct Account {
    bound: Arc<HeldBound>,
    number: u64,
    /// When the connection was opened, in milliseconds since the bound's start.
    opened: u64,
    held: AtomicUsize,
    /// The part that is charged, in whole pieces.
    drawn: AtomicU64,
    /// When the first bytes were charged, in milliseconds since the start of the bound.
    since: AtomicU64,
    /// Bytes held until all written data has been sent.
    until_flushed: AtomicUsize,
    /// Whether a request has arrived on the connection.
    is_used: AtomicBool,
    /// The turn in which the last whole message arrived; 0 if none did.
    messages: AtomicU64,
    is_over: AtomicBool,
    /// Aborts the task that serves the connection. A future that waited for the abort would take a lock at each
    /// poll of the connection.
    task: OnceLock<AbortHandle>,
}

impl HeldBound {
    pub(crate) fn new(max_bytes: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        let max = u64::try_from(max_bytes).unwrap_or(u64::MAX);
        metrics.held.max.store(max, Relaxed);
        Arc::new(Self {
            max,
            log: CutOffLog::new(metrics.clone()),
            metrics,
            accounts: Mutex::default(),
            start: Instant::now(),
            turn: AtomicU64::new(FIRST_TURN),
            turned: Mutex::new(Instant::now()),
        })
    }

    /// The account of a newly opened connection.
    pub(crate) fn account(self: &Arc<Self>) -> Arc<Account> {
        let mut accounts = self.accounts();
        let number = accounts.next;
        accounts.next += 1;
        let account = Arc::new(Account {
            bound: self.clone(),
            number,
            opened: self.millis(),
            held: AtomicUsize::new(0),
            drawn: AtomicU64::new(0),
            since: AtomicU64::new(0),
            until_flushed: AtomicUsize::new(0),
            is_used: AtomicBool::new(false),
            messages: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            task: OnceLock::new(),
        });
        accounts.open.insert(number, Arc::downgrade(&account));
        account
    }

    /// Makes room for a new connection. Closes the oldest connections that have sent no whole message, several at once,
    /// since a flood brings more. If there are none, closes the one that has been silent longest, if that is at least a
    /// turn. Returns whether any was closed.
    pub(crate) fn make_connection_room(&self) -> bool {
        let turn = self.begin_turn();
        let accounts = self.accounts();
        let all: Vec<_> = accounts.open.values().filter_map(Weak::upgrade).collect();
        drop(accounts);
        let now = self.millis();
        let idle = all.iter().filter_map(|one| {
            let last = one.messages.load(Relaxed);
            let is_idle = match last {
                0 => one.opened + NEW_FOR_MILLIS <= now,
                // Its last message came before the previous turn, so it has been silent for a whole turn.
                _ => last < turn - 1,
            };
            (is_idle && !one.is_over.load(Relaxed)).then_some((last, one.number, one))
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable_by_key(|(last, number, _)| (*last, *number));
        let unused = idle.iter().take_while(|(last, ..)| *last == 0).count();
        // Younger ones may be about to send a call.
        idle.truncate((unused / 2).clamp(1, CLOSED_TOGETHER));
        for (_, _, account) in &idle {
            account.end_as(CutOff::CONNECTION_LIMIT);
        }
        !idle.is_empty()
    }

    /// Returns the current turn, after beginning a new one if the last is long enough.
    fn begin_turn(&self) -> u64 {
        let mut turned = lock(&self.turned);
        if turned.elapsed() < TURN {
            return self.turn.load(Relaxed);
        }
        *turned = Instant::now();
        self.turn.fetch_add(1, Relaxed) + 1
    }

    fn accounts(&self) -> MutexGuard<'_, OpenAccounts> {
        lock(&self.accounts)
    }

    fn drawn(&self) -> u64 {
        self.metrics.held.bytes.load(Relaxed)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Makes room by closing connections, those with the largest product of bytes and time first.
    ///
    /// # Errors
    ///
    /// If `asking` itself would be closed.
    fn make_room(&self, asking: &Account) -> Result<(), NoHeldRoom> {
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
                return Err(NoHeldRoom);
            }
            left = left.saturating_sub(worst.drawn());
            worst.end();
        }
        Ok(())
    }

    /// Counts a refused or closed piece of work, and logs it now and then.
    pub(crate) fn note(&self, reason: usize) {
        self.log.note(reason, self.max);
    }
}

impl Account {
    /// Sets the task that serves the connection, which is aborted if the connection has to close.
    ///
    /// # Panics
    ///
    /// If the connection has a task already.
    pub(crate) fn served_by(&self, task: AbortHandle) {
        self.task
            .set(task)
            .expect("a connection is served by one task");
        // The connection may have had to close before it had a task.
        self.abort_if_over();
    }

    /// The bound that the account belongs to.
    pub(crate) fn bound(&self) -> &HeldBound {
        &self.bound
    }

    /// Records that a request has arrived.
    pub(crate) fn use_it(&self) {
        self.is_used.store(true, Relaxed);
    }

    /// Records that a whole message has arrived, so the connection is not idle.
    pub(crate) fn record_message(&self) {
        let turn = self.bound.turn.load(Relaxed);
        if self.messages.load(Relaxed) != turn {
            self.messages.store(turn, Relaxed);
        }
    }

    /// Keeps the connection from being closed for a new one, because it takes up none of the places that are counted
    /// here.
    pub(crate) fn keep_place(&self) {
        self.messages.store(ALWAYS, Relaxed);
    }

    /// Whether a request has arrived.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    /// Closes the connection, because it holds too much.
    pub(crate) fn end(&self) {
        self.end_as(CutOff::CONNECTION_NO_ROOM);
    }

    fn end_as(&self, reason: usize) {
        if self.close() {
            self.bound.note(reason);
        }
    }

    /// Closes the connection without counting a reason. Returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        let was_open = !self.is_over.swap(true, AcqRel);
        self.abort_if_over();
        was_open
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

    /// Charges `bytes` to the account.
    ///
    /// # Errors
    ///
    /// If there is no room. The bytes stay charged all the same, until they are given back.
    fn take(&self, bytes: usize) -> Result<(), NoHeldRoom> {
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        if pieces(held) <= self.drawn() {
            return Ok(());
        }
        self.draw(held);
        if self.bound.drawn() > self.bound.max {
            return self.bound.make_room(self);
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
        let all = &self.bound.metrics.held.bytes;
        if drawn > before {
            if before == 0 {
                self.since.store(self.bound.millis(), Relaxed);
            }
            all.fetch_add(drawn - before, Relaxed);
        } else {
            all.fetch_sub(before - drawn, Relaxed);
        }
    }

    /// Charges `bytes` until all pending output has been sent.
    pub(crate) fn hold_until_flushed(&self, bytes: usize) {
        self.until_flushed.fetch_add(bytes, Relaxed);
        if self.take(bytes).is_err() {
            self.end();
        }
    }

    /// Called when all pending output has been sent.
    pub(crate) fn flushed(&self) {
        if self.until_flushed.load(Relaxed) > 0 {
            self.give_back(self.until_flushed.swap(0, Relaxed));
        }
    }
}

/// The bytes to charge for `held` bytes, in whole pieces.
fn pieces(held: usize) -> u64 {
    let above = held.saturating_sub(FREE_BYTES);
    u64::try_from(above.next_multiple_of(PIECE_BYTES)).unwrap_or(u64::MAX)
}

impl Drop for Account {
    fn drop(&mut self) {
        self.draw(0);
        self.bound.accounts().open.remove(&self.number);
    }
}
