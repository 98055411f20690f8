//! Short names of faults, for programs that read reports. docs/check.md lists them; none changes its meaning.

use super::fault::Fault;

impl Fault {
    /// Its name, stable across versions.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::NoFiles => "no-files",
            Self::TooLarge => "too-large",
            Self::OtherType(_) => "other-resource",
            Self::Undecodable(_) => "undecodable",
            Self::EmptyPush => "empty-push",
            Self::NotText => "not-utf8",
            Self::Utf16 => "utf16",
            Self::Syntax(_) => "syntax",
            Self::BehindDocument => "text-behind-document",
            Self::WrongType { .. } => "wrong-type",
            Self::Tag => "tag",
            Self::KeyNotText(_) => "key-not-text",
            Self::UnknownKey { .. } => "unknown-key",
            Self::ListOfScalars(_) => "not-a-map",
            Self::OddScalar(_) => "odd-scalar",
            Self::EmptyDomain => "no-domain",
            Self::DuplicateDomain { .. } => "duplicate-domain",
            Self::EmptyKey => "no-key",
            Self::Duplicate { .. } => "duplicate-descriptor",
            Self::InvalidUnit(_) => "unknown-unit",
            Self::UnlimitedUnit => "unlimited-with-unit",
            Self::EmptyReplaces => "empty-replaces",
            Self::ReplacesItself => "replaces-itself",
            Self::ShareWithoutWildcard(_) => "share-without-wildcard",
            Self::BothForms => "rate-limit-twice",
            Self::NoLimits => "empty-rate-limits",
            Self::UnlimitedInList => "unlimited-in-list",
            Self::InvalidMultiplier(_) => "invalid-multiplier",
            Self::PeriodTooLong { .. } => "period-too-long",
            Self::NoReferenceKey(_) => "no-reference-key",
            Self::SamePeriod(_) => "same-period",
            Self::UnknownWord { .. } => "unknown-word",
            Self::UnknownReplicas => "unknown-replicas",
            Self::DoesNotGo { .. } => "does-not-go-together",
            Self::OutOfRange { .. } => "out-of-range",
            Self::LogTooLong(_) => "log-too-long",
            Self::UnknownZone(_) => "unknown-time-zone",
            Self::NoZone => "no-time-zone",
            Self::ShortForm(_) => "short-form",
            Self::Kubernetes(_) => "kubernetes",
            Self::Envoy => "envoy",
            Self::NoRuleFile(_) => "no-rule-file",
            Self::Misplaced { .. } => "misplaced-key",
            Self::Repeated(_) => "repeated-key",
            Self::NoRequestsPerUnit => "no-requests-per-unit",
            Self::NoRules(_) => "no-rules",
            Self::ReplacesUnknown(_) => "replaces-unknown",
            Self::ReplaceEachOther(..) => "replace-each-other",
            Self::NoLimitHere => "no-limit",
            Self::NeverReached(_) => "never-reached",
            Self::NeverBinds { .. } => "never-binds",
            Self::NameTwice { .. } => "name-twice",
            Self::Octal { .. } => "octal",
            Self::KeyPassedOver { .. } => "key-passed-over",
            Self::FilePassedOver(_) => "file-passed-over",
        }
    }

    /// Whether there was nothing to check, or not all of it was read.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self, Self::Unreadable(_) | Self::NoFiles | Self::TooLarge)
    }
}
