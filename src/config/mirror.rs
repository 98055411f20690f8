//! A mirror of the file format: what rule files and control planes say of rules, not yet judged.

use std::sync::Arc;

use crate::core::metadata::Metadata;

/// One file.
#[derive(Debug)]
pub(super) struct RuleDocument {
    pub(super) domain: String,
    /// Position of the domain.
    pub(super) at: Option<usize>,
    /// Defaults for every rule of the file that does not override them.
    pub(super) defaults: DefaultKeys,
    pub(super) descriptors: Vec<DescriptorNode>,
}

/// Settings that a file or a descriptor can have.
#[derive(Debug, Default)]
pub(super) struct DefaultKeys {
    pub(super) count: BoxedOption<LocatedText>,
    pub(super) on_store_loss: BoxedOption<LocatedText>,
    pub(super) refusal: BoxedOption<RefusalKeys>,
}

/// How a rule reserves hits.
#[derive(Debug)]
pub(super) struct ReserveKeys {
    pub(super) at: Option<usize>,
    pub(super) estimate: BoxedOption<LocatedNumber>,
    pub(super) missing: BoxedOption<LocatedText>,
}

/// The body that clients get with a refusal, and its type.
#[derive(Debug)]
pub(super) struct RefusalKeys {
    pub(super) at: Option<usize>,
    pub(super) body: BoxedOption<LocatedText>,
    pub(super) content_type: BoxedOption<LocatedText>,
    pub(super) status: BoxedOption<LocatedNumber>,
    pub(super) headers: Vec<LocatedHeader>,
}

/// A header of refused responses.
#[derive(Debug)]
pub(super) struct LocatedHeader {
    pub(super) at: Option<usize>,
    pub(super) name: String,
    /// `None` if it is no text.
    pub(super) value: Option<String>,
}

/// One node of the tree of rules.
#[derive(Debug, Default)]
pub(super) struct DescriptorNode {
    pub(super) at: Option<usize>,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) limits: Limits,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) share_threshold: bool,
    pub(super) detailed_metric: bool,
    pub(super) value_to_metric: bool,
    pub(super) metadata: Option<Arc<Metadata>>,
    pub(super) reserve: BoxedOption<ReserveKeys>,
    pub(super) accuracy: BoxedOption<LocatedText>,
    pub(super) own: DefaultKeys,
    pub(super) descriptors: Vec<Self>,
}

#[derive(Debug, Default)]
pub(super) enum Limits {
    #[default]
    None,
    /// `rate_limit`
    One(Box<RateLimit>),
    /// `rate_limits`
    List(Vec<RateLimit>),
}

#[derive(Debug, Default)]
pub(super) struct RateLimit {
    pub(super) at: Option<usize>,
    pub(super) unit: String,
    pub(super) unit_multiplier: BoxedOption<LocatedNumber>,
    pub(super) requests_per_unit: u64,
    pub(super) unlimited: bool,
    pub(super) name: String,
    pub(super) replaces: Vec<(String, Option<usize>)>,
    pub(super) algorithm: BoxedOption<LocatedText>,
    pub(super) window: BoxedOption<LocatedText>,
    pub(super) burst: BoxedOption<LocatedNumber>,
    pub(super) ttl: BoxedOption<LocatedText>,
    pub(super) calendar: bool,
    pub(super) time_zone: BoxedOption<LocatedText>,
    pub(super) week_starts: BoxedOption<LocatedText>,
    pub(super) starts: CalendarStarts,
}

/// When the windows of a calendar begin.
#[derive(Debug, Default)]
pub(super) struct CalendarStarts {
    pub(super) month: BoxedOption<LocatedNumber>,
    pub(super) day: BoxedOption<LocatedNumber>,
    pub(super) hour: BoxedOption<LocatedNumber>,
}

/// A setting that few rules have; it costs the others one pointer.
pub(super) type BoxedOption<T> = Option<Box<T>>;

/// A text and its position.
#[derive(Debug)]
pub(super) struct LocatedText {
    pub(super) text: String,
    pub(super) at: Option<usize>,
}

/// A whole number as written, and its position.
#[derive(Debug)]
pub(super) struct LocatedNumber {
    /// `None` if it is none, which has been reported.
    pub(super) value: Option<i128>,
    pub(super) text: String,
    pub(super) at: Option<usize>,
}
