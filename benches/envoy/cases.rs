//! The cases, as data.

use crate::Options;

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub service: Service,
    pub layout: Layout,
    /// Measured unless a filter names other cases.
    pub is_default: bool,
}

/// The rate limit service that Envoy calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// None: Envoy has no rate limit filter.
    None,
    /// tollgate with counters in memory.
    Memory,
    /// tollgate with counters in Redis.
    Redis,
    /// The service of `--foreign`, with counters in Redis.
    Foreign,
}

/// How Envoy describes the two limits of one header value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One descriptor, whose rule has both limits.
    OneDescriptor,
    /// The same, and hits of the rule are charged in advance.
    Sliced,
    /// Two descriptors with one limit each: envoyproxy/ratelimit supports no other form.
    TwoDescriptors,
}

pub fn all(options: &Options) -> Vec<Case> {
    use Layout::{OneDescriptor, Sliced, TwoDescriptors};
    let case = |name: &str, service, layout, is_default| Case {
        name: name.to_owned(),
        service,
        layout,
        is_default,
    };
    let has_foreign = options.foreign.is_some();
    let mut all = vec![
        case("no limit", Service::None, OneDescriptor, true),
        case("memory", Service::Memory, OneDescriptor, true),
        case("redis", Service::Redis, OneDescriptor, true),
        case("redis, leased", Service::Redis, Sliced, false),
        // Called exactly as the foreign service is.
        case(
            "redis, 2 descriptors",
            Service::Redis,
            TwoDescriptors,
            has_foreign && !options.foreign_one_descriptor,
        ),
    ];
    if has_foreign {
        let layout = if options.foreign_one_descriptor {
            OneDescriptor
        } else {
            TwoDescriptors
        };
        all.push(case(&options.foreign_name, Service::Foreign, layout, true));
    }
    all
}

/// The cases that `options` select.
pub fn chosen(options: &Options) -> Vec<Case> {
    let is_chosen = |case: &Case| {
        if options.filter.is_empty() && options.case.is_empty() {
            case.is_default
        } else {
            options.case.contains(&case.name)
                || options.filter.iter().any(|text| case.name.contains(text))
        }
    };
    all(options).into_iter().filter(is_chosen).collect()
}

impl Layout {
    /// The rule file, with limits that no load reaches.
    pub fn rules(self) -> &'static str {
        match self {
            Self::OneDescriptor => {
                "domain: bench
descriptors:
  - key: user
    rate_limits: [4000000000/minute, 4000000000/hour]
"
            }
            Self::Sliced => {
                "domain: bench
descriptors:
  - key: user
    accuracy: exact-leased
    rate_limits: [4000000000/minute, 4000000000/hour]
"
            }
            Self::TwoDescriptors => {
                "domain: bench
descriptors:
  - key: user_minute
    rate_limit: { unit: minute, requests_per_unit: 4000000000 }
  - key: user_hour
    rate_limit: { unit: hour, requests_per_unit: 4000000000 }
"
            }
        }
    }

    /// The key of each descriptor that Envoy sends.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Self::OneDescriptor | Self::Sliced => &["user"],
            Self::TwoDescriptors => &["user_minute", "user_hour"],
        }
    }
}
