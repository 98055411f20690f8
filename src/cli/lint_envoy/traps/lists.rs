//! Traps of the form in which a configuration is written.

use super::super::{
    finding::TrapSeverity,
    trap::{Subject, Trap},
};

/// A map in the place of a list.
pub(super) const LIST_OF_ONE: Trap = Trap {
    name: "list-of-one",
    look: |subject, report| {
        if let Subject::SingleItem { key, value } = subject {
            report.add(
                value,
                TrapSeverity::Advice,
                format!(
                    "`{key}` is a list: Envoy reads this map as its only item, and other readers, such as Istio, \
                     refuse it"
                ),
                "write `- ` before the item, or put it in brackets",
            );
        }
    },
};
