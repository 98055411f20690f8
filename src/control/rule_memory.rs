//! Whether the process has the memory for a load of rules.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::{config::fault::Fault, foundation::printable::Megabytes, observe::metrics::process};

/// The memory that rules may take: a share of their own, and beyond it as much as nothing else takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleMemory {
    /// The most bytes of the process; `None` if nothing limits them.
    pub(crate) total: Option<usize>,
    /// The bytes that rules may always take.
    pub(crate) share: usize,
    /// The bytes that counters leave to rules beyond their share.
    pub(crate) reserved: Arc<AtomicUsize>,
}

impl RuleMemory {
    /// Whether there is room for a load that takes about `load_bytes`.
    ///
    /// # Errors
    ///
    /// If it does not fit in the share, and not in what the process leaves of its limit either.
    pub(crate) fn check(&self, load_bytes: usize) -> Result<(), Fault> {
        let Some(total) = self.total else {
            return Ok(());
        };
        // Without the figure of the kernel the share is all that is certain.
        let taken = process::resident_bytes()
            .map_or(total, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        if load_bytes <= self.share || load_bytes <= total.saturating_sub(taken) {
            return Ok(());
        }
        Err(Fault::NoMemory {
            needed: Megabytes(load_bytes),
            taken: Megabytes(taken),
            total: Megabytes(total),
        })
    }

    /// Takes from the room of counters what rules in use, which take about `rule_bytes`, take beyond their share.
    pub(crate) fn reserve(&self, rule_bytes: usize) {
        let reserved = self.total.map(|_| rule_bytes.saturating_sub(self.share));
        self.reserved.store(reserved.unwrap_or_default(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_always_have_their_share_and_more_only_where_the_process_leaves_it() {
        let taken = usize::try_from(process::resident_bytes().unwrap()).unwrap();
        let memory = |total| RuleMemory {
            total,
            share: 1000,
            reserved: Arc::default(),
        };
        let full = memory(Some(taken / 2));
        full.check(1000).unwrap();
        let refused = full.check(1001).unwrap_err().to_string();
        assert!(refused.contains("--max-memory-bytes"), "{refused}");
        // Tests beside this one take memory meanwhile.
        memory(Some(taken + (1 << 30))).check(1 << 20).unwrap();
        memory(None).check(usize::MAX).unwrap();
    }

    #[test]
    fn counters_leave_what_rules_take_beyond_their_share() {
        let bounds = crate::store::memory::CounterBounds {
            counters: usize::MAX,
            bytes: 4_000_000,
            ..Default::default()
        };
        let before = bounds.fixed_windows();
        let memory = RuleMemory {
            total: Some(1 << 30),
            share: 1_000_000,
            reserved: bounds.reserved.clone(),
        };
        memory.reserve(2_000_000);
        assert_eq!(bounds.fixed_windows(), before / 4 * 3);
        memory.reserve(900_000);
        assert_eq!(bounds.fixed_windows(), before);
    }
}
