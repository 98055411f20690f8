//! How rules are read.

use crate::core::{counter::KeyFormat, limit::OnStoreLoss};

/// How rules are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Several files may name one domain; their top-level descriptors are merged.
    pub merge_domains: bool,
    /// Keep keys and values apart: the entry (`a`, `b`) is not the bare key `a_b`.
    pub strict_matching: bool,
    /// How counters are named; the reference's format cannot name every counter.
    pub key_format: KeyFormat,
    /// Answer of rules that set no `on_store_loss`, while the store is lost.
    pub on_store_loss: OnStoreLoss,
    /// The number of replicas is unknown, so no rule can count locally.
    pub lacks_replicas: bool,
    /// Counters are known to be in memory, where no rule needs slices.
    pub lacks_redis: bool,
}
