//! Keeps the log from repeating one message.

use std::{
    fmt,
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::lock::lock;

/// The log repeats a message at most once in this time, however often its cause occurs.
const INTERVAL: Duration = Duration::from_secs(60);

/// When a message may be logged again, in seconds since the first throttle was asked. Workers ask it for each request,
/// so it takes no lock.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(AtomicU64);

impl LogThrottle {
    /// A throttle of a message that was never logged.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether the message may be logged now; if so, the next interval of silence begins.
    pub(crate) fn may_log(&self) -> bool {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let (now, not_before) = (BEGAN.elapsed().as_secs(), self.0.load(Relaxed));
        let next = now + INTERVAL.as_secs();
        let swap = || self.0.compare_exchange(not_before, next, Relaxed, Relaxed);
        now >= not_before && swap().is_ok()
    }

    #[cfg(test)]
    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Relaxed) > 0
    }
}

/// Lets a few messages of a kind pass in each interval, and counts the others.
#[derive(Debug)]
pub(crate) struct BurstThrottle {
    most: u32,
    state: Mutex<Option<Burst>>,
}

/// The messages since an interval began.
#[derive(Debug)]
struct Burst {
    began: Instant,
    logged: u32,
    omitted: u64,
}

impl BurstThrottle {
    /// A throttle that lets `most` messages pass in an interval.
    pub(crate) const fn new(most: u32) -> Self {
        Self {
            most,
            state: Mutex::new(None),
        }
    }

    /// How many messages were omitted since the last one that passed, if this one may pass.
    pub(crate) fn may_log(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        let burst = state.get_or_insert_with(|| Burst {
            began: Instant::now(),
            logged: 0,
            omitted: 0,
        });
        if burst.began.elapsed() >= INTERVAL {
            (burst.began, burst.logged) = (Instant::now(), 0);
        }
        if burst.logged >= self.most {
            burst.omitted += 1;
            return None;
        }
        burst.logged += 1;
        Some(std::mem::take(&mut burst.omitted))
    }
}

/// Lets the lines on a few losses pass in each interval, and those on the returns after these.
#[derive(Debug)]
pub(crate) struct LossThrottle {
    losses: BurstThrottle,
    is_logged: AtomicBool,
}

impl LossThrottle {
    /// How many losses, and as many returns, are logged in an interval.
    const LOGGED: u32 = 2;

    pub(crate) const fn new() -> Self {
        Self {
            losses: BurstThrottle::new(Self::LOGGED),
            is_logged: AtomicBool::new(true),
        }
    }

    /// Whether a change of the reason may be logged, as [`BurstThrottle::may_log`] has it.
    pub(crate) fn may_log_reason(&self) -> bool {
        self.losses.may_log().is_some()
    }

    /// How many losses were omitted since the last one that passed, if this one may pass.
    pub(crate) fn may_log_loss(&self) -> Option<u64> {
        let omitted = self.losses.may_log();
        self.is_logged.store(omitted.is_some(), Relaxed);
        omitted
    }

    /// Whether the return may pass: if the loss did.
    pub(crate) fn may_log_return(&self) -> bool {
        self.is_logged.load(Relaxed)
    }
}

/// `; 3 loads before it are not logged`, or nothing.
pub(crate) struct Omitted(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Omitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(0, _) => Ok(()),
            Self(count, what) => write!(f, "; {count} {what} before it are not logged"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_logged_once_in_an_interval() {
        let mut throttle = LogThrottle::new();
        assert!(throttle.may_log());
        assert!(!throttle.may_log());
        *throttle.0.get_mut() -= INTERVAL.as_secs();
        assert!(throttle.may_log());
        assert!(!throttle.may_log());
    }

    #[test]
    fn a_few_messages_pass_in_an_interval_and_the_others_are_counted() {
        let throttle = BurstThrottle::new(2);
        assert_eq!(
            [(); 4].map(|()| throttle.may_log()),
            [Some(0), Some(0), None, None]
        );
        throttle.state.lock().unwrap().as_mut().unwrap().began =
            Instant::now().checked_sub(INTERVAL).unwrap();
        assert_eq!([(); 2].map(|()| throttle.may_log()), [Some(2), Some(0)]);
        assert_eq!(throttle.may_log(), None);
    }

    #[test]
    fn a_return_is_logged_if_its_loss_was() {
        let throttle = LossThrottle::new();
        assert!(throttle.may_log_return());
        let lost = [(); 3].map(|()| (throttle.may_log_loss(), throttle.may_log_return()));
        assert_eq!(lost, [(Some(0), true), (Some(0), true), (None, false)]);
        assert!(!throttle.may_log_reason());
        assert!(LossThrottle::new().may_log_reason());
    }

    #[test]
    fn omitted_lines_are_named_if_there_are_any() {
        assert_eq!(Omitted(0, "loads").to_string(), "");
        let said = "; 3 loads before it are not logged";
        assert_eq!(Omitted(3, "loads").to_string(), said);
    }
}
