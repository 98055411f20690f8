//! How many replicas share the limits, as far as that is known.

use std::{
    num::NonZeroU32,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use crate::{core::window::SteadyTime, foundation::lock::lock};

/// How many replicas share the limits, as far as that is known.
#[derive(Debug, Default)]
pub(crate) struct ReplicaCount {
    /// 0 until it is known.
    known: AtomicU32,
    alone_since: Mutex<AloneSince>,
}

/// Since when there was never more than one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AloneSince {
    /// There are others, or there may be.
    #[default]
    Never,
    Moment(SteadyTime),
    /// The settings say so.
    Always,
}

impl ReplicaCount {
    /// Begins with the number that the settings give, if they do.
    pub(crate) fn begin(&self, given: Option<NonZeroU32>) {
        self.known.store(given.map_or(0, NonZeroU32::get), Relaxed);
        *lock(&self.alone_since) = match given {
            Some(NonZeroU32::MIN) => AloneSince::Always,
            _ => AloneSince::Never,
        };
    }

    /// The number that was counted last or given; 0 if there is none.
    pub(crate) fn known(&self) -> u32 {
        self.known.load(Relaxed)
    }

    /// Stands for an unknown number: each share is then one hit.
    pub(super) const UNKNOWN: u32 = u32::MAX;

    /// The number by which shares are computed.
    pub(super) fn taken(&self) -> u32 {
        match self.known() {
            0 => Self::UNKNOWN,
            known => known,
        }
    }

    /// Since when there was no other replica.
    pub(super) fn alone_since(&self) -> AloneSince {
        *lock(&self.alone_since)
    }

    /// Takes over a count: of a whole window, or of one of which a part may be missing.
    pub(in crate::store) fn count(&self, seen: u32, is_whole: bool, at: SteadyTime) {
        if is_whole {
            self.known.store(seen, Relaxed);
        } else {
            self.known.fetch_max(seen, Relaxed);
        }
        let mut alone_since = lock(&self.alone_since);
        if self.known() > 1 {
            *alone_since = AloneSince::Never;
        } else if is_whole && *alone_since == AloneSince::Never {
            *alone_since = AloneSince::Moment(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_number_falls_only_when_replicas_were_counted_in_a_whole_window() {
        let began = Instant::now();
        let at = |secs| (began + Duration::from_secs(secs)).into();
        let number = ReplicaCount::default();
        assert_eq!((number.known(), number.taken()), (0, ReplicaCount::UNKNOWN));
        number.count(3, false, at(1));
        assert_eq!(number.taken(), 3);
        number.count(5, false, at(2));
        number.count(1, false, at(3));
        assert_eq!(number.taken(), 5);
        number.count(2, true, at(20));
        assert_eq!(number.taken(), 2);
        number.count(1, false, at(30));
        assert_eq!(number.taken(), 2);
        number.begin(NonZeroU32::new(7));
        assert_eq!(number.taken(), 7);
    }

    #[test]
    fn a_replica_is_alone_since_a_whole_window_without_others() {
        let began = Instant::now();
        let at = |secs| (began + Duration::from_secs(secs)).into();
        let number = ReplicaCount::default();
        let check = |expected| assert_eq!(number.alone_since(), expected);
        check(AloneSince::Never);
        number.count(1, false, at(1));
        check(AloneSince::Never);
        number.count(1, true, at(2));
        number.count(1, true, at(3));
        check(AloneSince::Moment(at(2)));
        number.count(2, false, at(4));
        check(AloneSince::Never);
        number.count(1, true, at(5));
        check(AloneSince::Moment(at(5)));
        number.begin(NonZeroU32::new(1));
        check(AloneSince::Always);
    }
}
