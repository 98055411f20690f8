//! Keeps scripts from a server that ends connections for them: some proxies do so where Redis replies with an error.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::time::Instant;

use crate::{
    foundation::{lock::lock, log_throttle::LogThrottle},
    store::redis::failure::SetbackPauses,
};

/// Whether one server may be sent scripts.
#[derive(Debug, Default)]
pub(crate) struct ScriptBan {
    /// Whether there is anything to look up, which costs no lock.
    is_suspected: AtomicBool,
    ends: Mutex<ConnectionEnds>,
    /// Throttles the line about it.
    log: LogThrottle,
}

/// The ends of connections that carried scripts, since a script was answered.
#[derive(Debug, Default)]
struct ConnectionEnds {
    last: Option<Instant>,
    /// The pauses without scripts, from the second end on.
    pauses: Option<SetbackPauses>,
    /// No script is sent before.
    until: Option<Instant>,
}

impl ScriptBan {
    /// Records that a connection that came up at `came_up` ended while it carried scripts. Returns whether that is
    /// because of them: connections that all end at the same time have another reason, but not one that came up after
    /// such an end.
    pub(crate) fn record_end(&self, came_up: Instant, now: Instant) -> bool {
        let mut ends = lock(&self.ends);
        if ends.last.is_some_and(|last| came_up <= last) {
            return ends.until.is_some();
        }
        ends.last = Some(now);
        self.is_suspected.store(true, Relaxed);
        let Some(pauses) = &mut ends.pauses else {
            ends.pauses = Some(SetbackPauses::new());
            return false;
        };
        ends.until = Some(now + pauses.next_pause());
        true
    }

    /// Records that a script was answered, with an error or not.
    pub(crate) fn record_answer(&self) {
        if self.is_suspected.load(Relaxed) {
            *lock(&self.ends) = ConnectionEnds::default();
            self.is_suspected.store(false, Relaxed);
        }
    }

    /// Whether no script may be sent now.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        self.is_suspected.load(Relaxed) && lock(&self.ends).until.is_some_and(|until| now < until)
    }

    pub(crate) fn may_log(&self) -> bool {
        self.log.may_log()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(10);

    #[test]
    fn connections_that_end_together_are_no_reason_and_those_that_end_one_after_the_other_are() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let ban = ScriptBan::default();
        for _ in 0..32 {
            assert!(!ban.record_end(at(0), at(10)));
        }
        assert!(!ban.holds(at(10)));
        assert!(ban.record_end(at(20), at(30)));
        assert!(ban.holds(at(30)));
        assert!(!ban.holds(at(131)));
        ban.record_answer();
        assert!(!ban.record_end(at(200), at(210)));
    }

    #[test]
    fn pauses_without_scripts_grow_to_ten_seconds() {
        let mut now = Instant::now();
        let ban = ScriptBan::default();
        let mut longest = Duration::ZERO;
        for _ in 0..40 {
            let came_up = now + Duration::from_millis(1);
            now = came_up + Duration::from_millis(1);
            ban.record_end(came_up, now);
            let began = now;
            while ban.holds(now) {
                now += Duration::from_millis(5);
            }
            longest = longest.max(now - began);
        }
        assert!(longest <= LONGEST + Duration::from_millis(5), "{longest:?}");
        assert!(longest > LONGEST / 2, "{longest:?}");
    }
}
