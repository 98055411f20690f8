//! The mirror of the file format → [`Matcher`], with every error.

use std::{
    collections::{HashMap, HashSet},
    mem,
    num::NonZeroU32,
    sync::Arc,
};

// As in the matcher: no client can choose these keys so that they collide.
use foldhash::fast::RandomState;

use super::{
    Fault, File, Options, Position, Problem, algorithm,
    yaml::{Defaults, Descriptor, Limits, RateLimit, RuleFile, Word, joined},
};
use crate::{
    counter::KeyFormat,
    limit::{Algorithm, Allows, Counts, Limit, Metric, OnStoreLoss, Rule},
    matcher::{Matcher, NodeId},
    window::{Period, Unit},
};

/// Builds the matcher of all files, in their order. It is valid only if no error was added.
pub(super) fn compile(
    sources: &[Source<'_>],
    options: Options,
    problems: &mut Vec<Problem>,
) -> Matcher {
    let mut matcher = if options.strict_matching {
        Matcher::strict()
    } else {
        Matcher::default()
    };
    matcher.key_format = options.key_format;
    let mut compiler = Compiler {
        matcher,
        places: HashMap::default(),
        names: HashMap::new(),
        replacers: Vec::new(),
        defaults: Manner::default(),
        lacks_replicas: options.lacks_replicas,
        problems,
    };
    let mut domains: HashMap<&str, &str> = HashMap::new();
    for Source { file, rules } in sources {
        let RuleFile { domain, at, .. } = rules;
        if domain.is_empty() {
            compiler.say(file, *at, "", Fault::EmptyDomain);
            continue;
        }
        let first = *domains.entry(domain).or_insert(&file.name);
        if first != file.name && !options.merge_domains {
            let fault = Fault::DuplicateDomain {
                domain: domain.clone(),
                first: first.to_owned(),
            };
            compiler.say(file, *at, "", fault);
            continue;
        }
        let root = compiler.matcher.insert_domain(domain.as_bytes());
        let otherwise = Manner {
            on_store_loss: options.on_store_loss,
            ..Manner::default()
        };
        compiler.defaults = compiler.manner(file, domain, &rules.defaults, otherwise);
        let path = domain.as_str().into();
        for descriptor in &rules.descriptors {
            let level = Level {
                node: root,
                path: &path,
                tells_values: false,
            };
            compiler.descriptor(file, level, descriptor);
        }
    }
    compiler.check_replacers();
    compiler.matcher
}

/// A file and its parsed rules.
pub(super) struct Source<'a> {
    pub(super) file: &'a File,
    pub(super) rules: RuleFile,
}

/// A position in one of the files.
#[derive(Clone, Copy)]
struct Place<'a> {
    file: &'a File,
    at: Option<usize>,
}

struct Compiler<'a, 'p> {
    matcher: Matcher,
    /// The position of each node's definition, by the node's path.
    places: HashMap<Arc<str>, Place<'a>, RandomState>,
    /// Shared texts of the names of limits.
    names: HashMap<String, Arc<str>>,
    replacers: Vec<Replacer<'a>>,
    /// The file's defaults for all its rules.
    defaults: Manner,
    lacks_replicas: bool,
    problems: &'p mut Vec<Problem>,
}

/// How a rule is counted, independent of its limits.
#[derive(Clone, Copy, Default)]
struct Manner {
    counts: Counts,
    on_store_loss: OnStoreLoss,
}

/// The parent of descriptors in the tree.
#[derive(Clone, Copy)]
struct Level<'a> {
    node: NodeId,
    path: &'a Arc<str>,
    /// Whether this node or one above it has `value_to_metric`.
    tells_values: bool,
}

/// A rule that replaces others.
struct Replacer<'a> {
    place: Place<'a>,
    path: String,
    own_names: Vec<String>,
    replaces: String,
}

impl<'a> Compiler<'a, '_> {
    fn say(&mut self, file: &File, at: Option<usize>, path: &str, fault: Fault) {
        self.problems.push(file.problem(at, path, fault));
    }

    /// The settings in `said`, completed with those in `otherwise`.
    fn manner(&mut self, file: &File, path: &str, said: &Defaults, otherwise: Manner) -> Manner {
        let mut manner = otherwise;
        if let Some(Word { text, at }) = said.count.as_deref() {
            match text.as_str() {
                "all" => manner.counts = Counts::All,
                "admitted" => manner.counts = Counts::Admitted,
                _ => {
                    let fault = Fault::UnknownWord {
                        key: "count",
                        text: text.clone(),
                        expected: "all or admitted",
                    };
                    self.say(file, *at, path, fault);
                }
            }
        }
        if let Some(Word { text, at }) = said.on_store_loss.as_deref() {
            match text.as_str() {
                "error" => manner.on_store_loss = OnStoreLoss::Error,
                "allow" => manner.on_store_loss = OnStoreLoss::Allow,
                "deny" => manner.on_store_loss = OnStoreLoss::Deny,
                "local" => {
                    manner.on_store_loss = OnStoreLoss::Local;
                    if self.lacks_replicas {
                        self.say(file, *at, path, Fault::UnknownReplicas);
                    }
                }
                _ => {
                    let fault = Fault::UnknownWord {
                        key: "on_store_loss",
                        text: text.clone(),
                        expected: "error, allow, deny or local",
                    };
                    self.say(file, *at, path, fault);
                }
            }
        }
        manner
    }

    fn descriptor(&mut self, file: &'a File, parent: Level<'_>, descriptor: &Descriptor) {
        let Level {
            node: parent,
            path,
            tells_values,
        } = parent;
        let tells_values = tells_values || descriptor.value_to_metric;
        let at = descriptor.at;
        if descriptor.key.is_empty() {
            return self.say(file, at, path, Fault::EmptyKey);
        }
        let text = joined(&descriptor.key, &descriptor.value);
        let path: Arc<str> = format!("{path}.{text}").into();
        let (key, value) = (descriptor.key.as_bytes(), descriptor.value.as_bytes());
        let Some(node) = self.matcher.insert(parent, key, value) else {
            let fault = Fault::Duplicate {
                path: path.to_string(),
                first: self.first_place(&path),
            };
            return self.say(file, at, &path, fault);
        };
        self.places.insert(path.clone(), Place { file, at });
        if descriptor.share_threshold {
            if text.contains('*') {
                self.matcher.share(node, descriptor.value.as_bytes());
            } else {
                let fault = Fault::ShareWithoutWildcard(descriptor.key.clone());
                self.say(file, at, &path, fault);
            }
        }
        if descriptor.value_to_metric {
            self.matcher.tell_values(node);
        }
        let level = Level {
            node,
            path: &path,
            tells_values,
        };
        self.rule(file, level, descriptor);
        for child in &descriptor.descriptors {
            self.descriptor(file, level, child);
        }
    }

    fn first_place(&self, path: &str) -> String {
        let Some(Place { file, at }) = self.places.get(path) else {
            return "another level".to_owned();
        };
        match at.map(|at| file.position(at)) {
            Some(Position { line, column }) => format!("{}:{line}:{column}", file.name),
            None => file.name.clone(),
        }
    }

    fn rule(&mut self, file: &'a File, level: Level<'_>, descriptor: &Descriptor) {
        let Level {
            node,
            path,
            tells_values,
        } = level;
        let limits = match &descriptor.limits {
            Limits::None => return,
            Limits::One(limit) => std::slice::from_ref(&**limit),
            Limits::List(limits) => limits,
        };
        let is_list = matches!(descriptor.limits, Limits::List(_));
        let mut compiled: Vec<Limit> = Vec::with_capacity(limits.len());
        let mut is_unlimited = false;
        for limit in limits {
            if limit.unlimited {
                self.unlimited(file, path, limit, is_list);
                is_unlimited = true;
            } else if let Some(limit) = self.limit(file, path, limit, &compiled) {
                compiled.push(limit);
            }
        }
        if self.matcher.key_format == KeyFormat::Reference {
            self.check_reference_key(file, path, descriptor, &compiled);
        }
        let replaces = self.replaces(file, path, limits);
        let manner = self.manner(file, path, &descriptor.own, self.defaults);
        if compiled.is_empty() && !is_unlimited {
            // Every limit had an error, so this matcher will not be used.
            return;
        }
        self.matcher.set_rule(node, |id| Rule {
            id,
            path: path.clone(),
            allows: if is_unlimited {
                Allows::Unlimited
            } else {
                Allows::Within(compiled.into())
            },
            replaces,
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            counts: manner.counts,
            on_store_loss: manner.on_store_loss,
            metric: match (descriptor.detailed_metric, tells_values) {
                (true, _) => Metric::AllValues,
                (false, true) => Metric::SomeValues,
                (false, false) => Metric::Path,
            },
            metadata: descriptor.metadata.clone(),
        });
    }

    fn unlimited(&mut self, file: &'a File, path: &str, limit: &RateLimit, is_list: bool) {
        if is_list {
            self.say(file, limit.at, path, Fault::UnlimitedInList);
        } else if limit.unit.parse::<Unit>().is_ok() {
            self.say(file, limit.at, path, Fault::UnlimitedUnit);
        }
        self.name(&limit.name);
    }

    /// Reports limits that the reference's keys cannot express: the keys name neither unit nor multiplier.
    fn check_reference_key(
        &mut self,
        file: &File,
        path: &str,
        descriptor: &Descriptor,
        limits: &[Limit],
    ) {
        if limits.len() > 1 {
            let fault = Fault::NoReferenceKey("a rule with several limits");
            self.say(file, descriptor.at, path, fault);
        }
        if limits
            .iter()
            .any(|limit| limit.period.multiplier().get() > 1)
        {
            let fault = Fault::NoReferenceKey("a limit with a unit_multiplier");
            self.say(file, descriptor.at, path, fault);
        }
        if limits
            .iter()
            .any(|limit| limit.algorithm != Algorithm::FixedWindow)
        {
            let fault = Fault::NoReferenceKey("a limit with an algorithm of its own");
            self.say(file, descriptor.at, path, fault);
        }
    }

    /// `before` are the earlier limits of the same rule.
    fn limit(
        &mut self,
        file: &'a File,
        path: &str,
        limit: &RateLimit,
        before: &[Limit],
    ) -> Option<Limit> {
        let multiplier = self.multiplier(file, path, limit);
        let Ok(unit) = limit.unit.parse::<Unit>() else {
            self.say(file, limit.at, path, Fault::InvalidUnit(limit.unit.clone()));
            return None;
        };
        let multiplier = multiplier?;
        let Some(period) = Period::new(unit, multiplier) else {
            let fault = Fault::PeriodTooLong {
                unit: unit.name(),
                multiplier: multiplier.get(),
            };
            self.say(file, limit.at, path, fault);
            return None;
        };
        let mut faults = Vec::new();
        let algorithm = algorithm::algorithm(limit, period, &mut faults);
        let is_wrong = !faults.is_empty();
        for (at, fault) in faults {
            self.say(file, at.or(limit.at), path, fault);
        }
        if is_wrong {
            return None;
        }
        // A limit with an equal key.
        let is_same = |other: &Limit| {
            other.period.secs() == period.secs()
                && mem::discriminant(&other.algorithm) == mem::discriminant(&algorithm)
        };
        if before.iter().any(is_same) {
            self.say(file, limit.at, path, Fault::SamePeriod(period.to_string()));
            return None;
        }
        Some(Limit {
            requests_per_unit: limit.requests_per_unit,
            period,
            algorithm,
            name: self.name(&limit.name),
        })
    }

    fn multiplier(&mut self, file: &'a File, path: &str, limit: &RateLimit) -> Option<NonZeroU32> {
        let Some(number) = &limit.unit_multiplier else {
            return Some(NonZeroU32::MIN);
        };
        let multiplier = u32::try_from(number.value?).ok().and_then(NonZeroU32::new);
        if multiplier.is_none() {
            let fault = Fault::InvalidMultiplier(number.text.clone());
            self.say(file, number.at, path, fault);
        }
        multiplier
    }

    fn name(&mut self, name: &str) -> Option<Arc<str>> {
        if name.is_empty() {
            return None;
        }
        let interned = self
            .names
            .entry(name.to_owned())
            .or_insert_with(|| name.into());
        Some(interned.clone())
    }

    fn replaces(&mut self, file: &'a File, path: &str, limits: &[RateLimit]) -> Box<[Arc<str>]> {
        let own_names: Vec<String> = limits
            .iter()
            .map(|limit| limit.name.clone())
            .filter(|name| !name.is_empty())
            .collect();
        let mut replaced = Vec::new();
        for (name, at) in limits.iter().flat_map(|limit| &limit.replaces) {
            if name.is_empty() {
                self.say(file, *at, path, Fault::EmptyReplaces);
            } else if own_names.contains(name) {
                self.say(file, *at, path, Fault::ReplacesItself);
            } else {
                replaced.push(name.as_str().into());
                self.replacers.push(Replacer {
                    place: Place { file, at: *at },
                    path: path.to_owned(),
                    own_names: own_names.clone(),
                    replaces: name.clone(),
                });
            }
        }
        replaced.into()
    }

    /// Warns of replaced names that no limit has, and of limits that replace each other.
    fn check_replacers(&mut self) {
        let pairs: HashSet<(&str, &str)> = self
            .replacers
            .iter()
            .flat_map(|by| {
                by.own_names
                    .iter()
                    .map(|own| (own.as_str(), by.replaces.as_str()))
            })
            .collect();
        let mut found = Vec::new();
        for by in &self.replacers {
            let fault = if !self.names.contains_key(&by.replaces) {
                Fault::ReplacesUnknown(by.replaces.clone())
            } else if let Some(own) = by
                .own_names
                .iter()
                .find(|own| pairs.contains(&(by.replaces.as_str(), own.as_str())))
            {
                Fault::ReplaceEachOther(own.clone(), by.replaces.clone())
            } else {
                continue;
            };
            found.push(by.place.file.problem(by.place.at, &by.path, fault));
        }
        self.problems.extend(found);
    }
}
