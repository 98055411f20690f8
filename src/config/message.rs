//! Resources that a control plane pushed → the mirror of the file format, which is then compiled as files are. Each
//! resource stands for a file, and its name for the name of the file.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use prost::Message as _;
use prost_types::{Any, Struct, value::Kind};
use sha2::{Digest as _, Sha256};

use crate::{
    config::{
        fault::{Fault, Problem},
        file::{File, ParsedFile},
        files::{Loaded, SourceCount, finish},
        mirror::{
            BoxedOption, CalendarStarts, DefaultKeys, DescriptorNode, Limits, LocatedHeader,
            LocatedNumber, LocatedText, RateLimit, RefusalKeys, ReserveKeys, RuleDocument,
        },
        problems::{DescriptorPath, Problems},
        rule_defaults::Options,
    },
    core::metadata::{Metadata, MetadataValue},
};

use proto::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};

/// The messages that `build.rs` generates from `proto/ratelimit`.
pub mod proto {
    #![allow(
        missing_debug_implementations,
        unreachable_pub,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "generated code"
    )]

    tonic::include_proto!("ratelimit.config.ratelimit.v3");
}

/// The type of resources that hold rules.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Bound on the characters of an unknown name or type that errors repeat.
const MAX_SHOWN: usize = 256;

/// A load takes at most about this many bytes of memory for a byte of a resource, measured with short rules.
const BYTES_PER_BYTE: usize = 64;

/// All rules of a control plane, as it sent them.
#[derive(Clone, Debug)]
pub struct Push {
    /// The type of the whole; empty if it was not given.
    pub type_url: String,
    pub resources: Vec<Any>,
}

impl Push {
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// A digest of the rules, independent of the order of the resources, which control planes may vary.
    pub fn digest(&self) -> [u8; 32] {
        let digest = |any: &Any| -> [u8; 32] {
            let mut digest = Sha256::new();
            digest.update((any.type_url.len() as u64).to_le_bytes());
            digest.update(&any.type_url);
            digest.update(&any.value);
            digest.finalize().into()
        };
        let mut parts: Vec<_> = self.resources.iter().map(digest).collect();
        parts.sort_unstable();
        let mut digest = Sha256::new();
        digest.update(parts.concat());
        digest.update(&self.type_url);
        digest.finalize().into()
    }

    /// About the most bytes of memory that [`Self::compile`] takes, the rules that it returns included.
    pub(crate) fn load_bytes(&self) -> usize {
        let values = self.resources.iter().map(|any| any.value.len());
        values.sum::<usize>() * BYTES_PER_BYTE
    }

    /// Compiles the rules, in the order of their names.
    ///
    /// # Errors
    ///
    /// All problems of all resources, in the order of their names.
    pub fn compile(&self, options: Options) -> Result<Loaded, Vec<Problem>> {
        if !matches!(self.type_url.as_str(), "" | TYPE_URL) {
            return Err(vec![self.problem(Fault::OtherType(shown(&self.type_url)))]);
        }
        let mut problems = Problems::default();
        let mut names = HashSet::new();
        let mut read: Vec<(File, RateLimitConfig)> = Vec::with_capacity(self.resources.len());
        for (number, any) in (1..).zip(&self.resources) {
            match config(any) {
                Ok(config) => {
                    let mut name = match shown(&config.name) {
                        name if name.is_empty() => format!("(resource {number})"),
                        name => name,
                    };
                    // Resources with equal names get distinct names here, so that one is not merged into the other.
                    while !names.insert(name.clone()) {
                        name = format!("{name} (resource {number})");
                    }
                    read.push((File::new(name, String::new()), config));
                }
                Err(fault) => {
                    let file = File::new(format!("(resource {number})"), String::new());
                    problems.push(file.problem(None, "", fault));
                }
            }
        }
        read.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let sources: Vec<_> = read
            .iter()
            .map(|(file, config)| {
                let mut reader = MessageReader {
                    file,
                    problems: &mut problems,
                };
                let rules = reader.rule_file(config);
                ParsedFile { file, rules }
            })
            .collect();
        let counted = SourceCount {
            files: self.resources.len(),
            digest: self.digest(),
        };
        finish(&sources, counted, options, problems)
    }

    /// A problem with the push as a whole.
    pub fn problem(&self, fault: Fault) -> Problem {
        File::new("(push)".to_owned(), String::new()).problem(None, "", fault)
    }
}

fn config(any: &Any) -> Result<RateLimitConfig, Fault> {
    if any.type_url != TYPE_URL {
        return Err(Fault::OtherType(shown(&any.type_url)));
    }
    RateLimitConfig::decode(any.value.as_slice()).map_err(Fault::Undecodable)
}

/// Any text, shortened to one line for the log.
fn shown(text: &str) -> String {
    let one_line = text.chars().take(MAX_SHOWN);
    one_line
        .map(|next| if next.is_control() { '?' } else { next })
        .collect()
}

struct MessageReader<'a> {
    file: &'a File,
    problems: &'a mut Problems,
}

impl MessageReader<'_> {
    fn report(&mut self, path: &dyn fmt::Display, fault: Fault) {
        let problem = self.file.problem(None, &path.to_string(), fault);
        self.problems.push(problem);
    }

    fn rule_file(&mut self, config: &RateLimitConfig) -> RuleDocument {
        RuleDocument {
            domain: config.domain.clone(),
            at: None,
            defaults: DefaultKeys {
                count: word(&config.count),
                on_store_loss: word(&config.on_store_loss),
                refusal: config.refusal.as_ref().map(refusal),
            },
            descriptors: self.descriptors(&config.descriptors, &config.domain),
        }
    }

    fn descriptors(
        &mut self,
        descriptors: &[RateLimitDescriptor],
        parent: &dyn fmt::Display,
    ) -> Vec<DescriptorNode> {
        descriptors
            .iter()
            .map(|descriptor| self.descriptor(descriptor, parent))
            .collect()
    }

    fn descriptor(
        &mut self,
        descriptor: &RateLimitDescriptor,
        parent: &dyn fmt::Display,
    ) -> DescriptorNode {
        let RateLimitDescriptor { key, value, .. } = descriptor;
        let path = DescriptorPath { parent, key, value };
        DescriptorNode {
            at: None,
            key: key.clone(),
            value: value.clone(),
            limits: self.limits(descriptor, &path),
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            share_threshold: descriptor.share_threshold,
            detailed_metric: descriptor.detailed_metric,
            value_to_metric: descriptor.value_to_metric,
            metadata: descriptor.metadata.as_ref().map(|from| Arc::new(map(from))),
            reserve: descriptor.reserve.as_ref().map(reserve),
            accuracy: word(&descriptor.accuracy),
            own: DefaultKeys {
                count: word(&descriptor.count),
                on_store_loss: word(&descriptor.on_store_loss),
                refusal: descriptor.refusal.as_ref().map(refusal),
            },
            descriptors: self.descriptors(&descriptor.descriptors, &path),
        }
    }

    fn limits(&mut self, descriptor: &RateLimitDescriptor, path: &dyn fmt::Display) -> Limits {
        let list = &descriptor.rate_limits;
        match &descriptor.rate_limit {
            None if list.is_empty() => Limits::None,
            Some(one) if list.is_empty() => Limits::One(Box::new(rate_limit(one))),
            one => {
                if one.is_some() {
                    self.report(path, Fault::BothForms);
                }
                Limits::List(list.iter().map(rate_limit).collect())
            }
        }
    }
}

fn rate_limit(policy: &RateLimitPolicy) -> RateLimit {
    let starts = policy.starts.unwrap_or_default();
    let replaces = policy.replaces.iter();
    RateLimit {
        at: None,
        unit: unit(policy),
        unit_multiplier: policy.unit_multiplier.map(number),
        requests_per_unit: policy.requests_per_unit.into(),
        unlimited: policy.unlimited,
        name: policy.name.clone(),
        replaces: replaces
            .map(|replace| (replace.name.clone(), None))
            .collect(),
        algorithm: word(&policy.algorithm),
        window: word(&policy.window),
        burst: policy.burst.map(number),
        ttl: word(&policy.ttl),
        calendar: policy.calendar,
        time_zone: word(&policy.time_zone),
        week_starts: word(&policy.week_starts),
        starts: CalendarStarts {
            month: starts.month.map(number),
            day: starts.day.map(number),
            hour: starts.hour.map(number),
        },
    }
}

fn reserve(message: &proto::Reserve) -> Box<ReserveKeys> {
    Box::new(ReserveKeys {
        at: None,
        estimate: message.estimate.map(number),
        missing: word(&message.missing),
    })
}

fn refusal(message: &proto::Refusal) -> Box<RefusalKeys> {
    Box::new(RefusalKeys {
        at: None,
        body: word(&message.body),
        content_type: word(&message.content_type),
        status: message.status.map(number),
        headers: headers(&message.headers),
    })
}

/// In the order of their names.
fn headers(message: &HashMap<String, String>) -> Vec<LocatedHeader> {
    let header = |(name, value): (&String, &String)| LocatedHeader {
        at: None,
        name: name.clone(),
        value: Some(value.clone()),
    };
    let mut headers: Vec<_> = message.iter().map(header).collect();
    headers.sort_by(|one, other| one.name.cmp(&other.name));
    headers
}

/// `None` if the text is empty.
fn word(text: &str) -> BoxedOption<LocatedText> {
    let word = || LocatedText {
        text: text.to_owned(),
        at: None,
    };
    (!text.is_empty()).then(|| Box::new(word()))
}

fn number(number: impl Into<i128> + ToString) -> Box<LocatedNumber> {
    Box::new(LocatedNumber {
        text: number.to_string(),
        value: Some(number.into()),
        at: None,
    })
}

/// The unit as a file would name it; empty for an unlimited rule without a unit.
fn unit(policy: &RateLimitPolicy) -> String {
    match RateLimitUnit::try_from(policy.unit) {
        Ok(RateLimitUnit::Unknown) if policy.unlimited || !policy.ttl.is_empty() => String::new(),
        Ok(unit) => unit.as_str_name().to_owned(),
        Err(_) => policy.unit.to_string(),
    }
}

fn map(from: &Struct) -> Metadata {
    let entries = from.fields.iter();
    entries
        .map(|(key, value)| (key.as_str(), value_of(value)))
        .collect()
}

fn value_of(from: &prost_types::Value) -> MetadataValue {
    match &from.kind {
        None | Some(Kind::NullValue(_)) => MetadataValue::Null,
        Some(Kind::BoolValue(value)) => MetadataValue::Bool(*value),
        Some(Kind::NumberValue(value)) => MetadataValue::Number(*value),
        Some(Kind::StringValue(value)) => MetadataValue::Text(value.clone()),
        Some(Kind::ListValue(list)) => {
            MetadataValue::List(list.values.iter().map(value_of).collect())
        }
        Some(Kind::StructValue(value)) => MetadataValue::Map(map(value)),
    }
}

#[cfg(test)]
mod tests;
