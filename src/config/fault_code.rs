//! Short names of faults, for programs that read reports. docs/rules/check.md lists them; none changes its meaning.

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
            Self::NotText(_) => "not-utf8",
            Self::Utf16 => "utf16",
            Self::EmptyFile => "empty-file",
            Self::Syntax(_) => "syntax",
            Self::Tab => "tab",
            Self::NeedsQuotes(_) => "needs-quotes",
            Self::Unclosed { .. } => "unclosed",
            Self::NoColon { .. } => "no-colon",
            Self::SecondColon => "second-colon",
            Self::TooFarIn => "too-far-in",
            Self::OtherIndent => "other-indent",
            Self::AfterDocument => "text-after-document",
            Self::WrongType { .. } => "wrong-type",
            Self::Tag => "tag",
            Self::BadBinary => "bad-binary",
            Self::KeyNotText(_) => "key-not-text",
            Self::UnknownKey { .. } => "unknown-key",
            Self::Unmergeable(_) => "unmergeable",
            Self::OddKey { .. } => "odd-key",
            Self::ListItem { .. } => "not-a-map",
            Self::OddScalar(_) => "odd-scalar",
            Self::EmptyDomain => "no-domain",
            Self::DuplicateDomain { .. } => "duplicate-domain",
            Self::EmptyKey => "no-key",
            Self::OrderKey(_) => "order-key",
            Self::Duplicate { .. } => "duplicate-descriptor",
            Self::NoUnit => "no-unit",
            Self::InvalidUnit { .. } => "unknown-unit",
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
            Self::NoBody => "no-body",
            Self::UnknownPlaceholder { .. } => "unknown-placeholder",
            Self::BodyTooLong(_) => "body-too-long",
            Self::BodyNotJson(_) => "body-not-json",
            Self::HeaderName(_) => "header-name",
            Self::HeaderValue(_) => "header-value",
            Self::TooManyHeaders(_) => "too-many-headers",
            Self::SamePeriod(_) => "same-period",
            Self::UnknownWord { .. } => "unknown-word",
            Self::UnknownReplicas => "unknown-replicas",
            Self::NoSlices => "no-slices",
            Self::DoesNotGo { .. } => "does-not-go-together",
            Self::OutOfRange { .. } => "out-of-range",
            Self::LogTooLong(_) => "log-too-long",
            Self::UnknownZone { .. } => "unknown-time-zone",
            Self::NoZone => "no-time-zone",
            Self::NoTtl | Self::UnreadableTtl(_) => "no-ttl",
            Self::LongTtl(_) => "long-ttl",
            Self::ShortForm { .. } => "short-form",
            Self::Kubernetes(_) => "kubernetes",
            Self::Envoy => "envoy",
            Self::Misplaced { .. } => "misplaced-key",
            Self::OddValue(_) => "odd-value",
            Self::Repeated(_) => "repeated-key",
            Self::NoRequestsPerUnit => "no-requests-per-unit",
            Self::NoRules(_) => "no-rules",
            Self::RulesLost(_) => "rules-lost",
            Self::ReplacesUnknown(_) => "replaces-unknown",
            Self::ReplaceEachOther(..) => "replace-each-other",
            Self::NoLimitHere => "no-limit",
            Self::NeverReached(_) => "never-reached",
            Self::NeverBinds { .. } => "never-binds",
            Self::NameTwice { .. } => "name-twice",
            Self::Octal { .. } => "octal",
            Self::ForeignPattern { .. } => "foreign-pattern",
            Self::Template { .. } => "template",
            Self::ResourceName => "resource-name",
            Self::More { .. } => "more",
            Self::TooLargeTogether => "too-large-together",
            Self::NoMemory { .. } => "no-memory",
            Self::TooDense => "too-dense",
            Self::TooManyFiles => "too-many-files",
            Self::NotRegular => "not-regular",
        }
    }

    /// Whether there was nothing to check, or not all of it was read.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(
            self,
            Self::Unreadable(_)
                | Self::NoFiles
                | Self::TooLarge
                | Self::TooLargeTogether
                | Self::NoMemory { .. }
                | Self::TooManyFiles
                | Self::NotRegular
        )
    }
}
