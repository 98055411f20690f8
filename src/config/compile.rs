//! The mirror of the file format → [`Matcher`], with every error.

use std::{
    collections::{HashMap, HashSet},
    mem::{self, Discriminant},
    num::NonZeroU32,
    ptr,
    sync::Arc,
};

// As in the matcher: no client can choose these keys so that they collide.
use foldhash::fast::RandomState;

use crate::{
    config::{
        algorithm,
        fault::{Fault, MAX_LIMITS, MAX_WILDCARD_BYTES, PATH_BYTES, PATHS_BYTES, shortened},
        file::{File, ParsedFile},
        hints::unrendered,
        mirror::{DefaultKeys, DescriptorNode, Limits, RateLimit, RuleDocument},
        position::Position,
        problems::{Problems, joined},
        rule_defaults::{Options, RuleDefaults, lease},
    },
    core::{
        counter::{KeyFormat, number},
        kind::Algorithm,
        lease::order,
        limit::{Allows, CountPolicy, LeasePolicy, Limit, Metric, OnStoreLoss, Rule},
        matcher::{Matcher, NodeId, RuleOrigin},
        window::{Period, Unit},
    },
};

/// Builds the matcher of all files, in their order. It is valid only if no error was added.
pub(super) fn compile(
    sources: &[ParsedFile<'_>],
    options: Options,
    problems: &mut Problems,
) -> Matcher {
    let mut matcher = match options.strict_matching {
        true => Matcher::strict(),
        false => Matcher::default(),
    };
    matcher.key_format = options.key_format;
    // A node for each domain, too.
    let nodes = sources
        .iter()
        .map(|source| source.rules.descriptors.len() + 1);
    matcher.reserve(nodes.sum());
    let mut compiler = Compiler {
        matcher,
        locations: HashMap::default(),
        path_room: PATHS_BYTES,
        file_name: Arc::default(),
        names: HashMap::new(),
        replacers: Vec::new(),
        reserving: HashSet::new(),
        defaults: RuleDefaults::default(),
        lacks_replicas: options.lacks_replicas,
        lacks_redis: options.lacks_redis,
        problems,
    };
    // Of each domain, the first document and the number of rules.
    let mut domains: HashMap<&str, (&ParsedFile<'_>, usize)> = HashMap::new();
    for source in sources {
        let ParsedFile { file, rules } = source;
        let RuleDocument { domain, at, .. } = rules;
        if domain.is_empty() {
            compiler.report(file, *at, "", Fault::EmptyDomain);
            continue;
        }
        let (first, rules_in_domain) = domains.entry(domain).or_insert((source, 0));
        if !ptr::eq(*first, source) && !options.merge_domains {
            let fault = Fault::DuplicateDomain {
                domain: domain.clone(),
                first: first.location_beside(file),
            };
            compiler.report(file, *at, "", fault);
            continue;
        }
        *rules_in_domain += compiler.document(source, options.on_store_loss);
    }
    compiler.check_replacers();
    let Compiler {
        matcher, problems, ..
    } = compiler;
    // Rules with an error are missing, and need no second problem.
    if !problems.has_error() {
        let is_empty = |source: &&ParsedFile<'_>| {
            let known = domains.get(&*source.rules.domain);
            known.is_some_and(|(first, rules)| *rules == 0 && ptr::eq(*first, *source))
        };
        problems.extend(sources.iter().filter(is_empty).map(|source| {
            let fault = Fault::NoRules(source.rules.domain.clone());
            source.file.problem(source.rules.at, "", fault)
        }));
    }
    matcher
}

/// A position in one of the files.
#[derive(Clone, Copy)]
struct Location<'a> {
    file: &'a File,
    at: Option<usize>,
}

struct Compiler<'a, 'p> {
    matcher: Matcher,
    /// The position of each node's definition, by the node's path.
    locations: HashMap<Arc<str>, Location<'a>, RandomState>,
    /// The bytes that the paths of more nodes may take.
    path_room: usize,
    /// The name of the file in hand, shared by its rules.
    file_name: Arc<str>,
    /// Shared texts of the names of limits.
    names: HashMap<String, Arc<str>>,
    replacers: Vec<Replacer<'a>>,
    /// Names of limits whose hits are reserved.
    reserving: HashSet<Arc<str>>,
    /// The file's defaults for all its rules.
    defaults: RuleDefaults,
    lacks_replicas: bool,
    lacks_redis: bool,
    problems: &'p mut Problems,
}

/// The parent of descriptors in the tree.
#[derive(Clone, Copy)]
struct Level<'a> {
    node: NodeId,
    path: &'a Arc<str>,
    /// Whether this node or one above it has `value_to_metric`.
    reports_values: bool,
}

/// The most pairs of a limit and one that it replaces that are looked through for limits that replace each other.
const MAX_PAIRS: usize = 200_000;

/// A rule that replaces others.
struct Replacer<'a> {
    location: Location<'a>,
    path: Arc<str>,
    own_names: Arc<[String]>,
    replaces: String,
}

impl<'a> Compiler<'a, '_> {
    /// Adds the rules of a document to its domain. Returns their number.
    fn document(&mut self, source: &'a ParsedFile<'_>, on_store_loss: OnStoreLoss) -> usize {
        let ParsedFile { file, rules } = source;
        let domain = &rules.domain;
        let rules_before = self.matcher.rules().len();
        let root = self.matcher.insert_domain(domain.as_bytes());
        self.file_name = file.name.as_str().into();
        self.defaults = RuleDefaults {
            on_store_loss,
            ..RuleDefaults::default()
        };
        self.defaults = self.rule_defaults(file, domain, &rules.defaults);
        let path = domain.as_str().into();
        for descriptor in &rules.descriptors {
            let level = Level {
                node: root,
                path: &path,
                reports_values: false,
            };
            self.descriptor(file, level, descriptor);
        }
        self.matcher.rules().len() - rules_before
    }

    fn report(&mut self, file: &File, at: Option<usize>, path: &str, fault: Fault) {
        self.problems.push(file.problem(at, path, fault));
    }

    /// The settings in `keys`, completed with the present defaults.
    fn rule_defaults(&mut self, file: &File, path: &str, keys: &DefaultKeys) -> RuleDefaults {
        let mut faults = Vec::new();
        let defaults = RuleDefaults::new(keys, &self.defaults, self.lacks_replicas, &mut faults);
        for (at, fault) in faults {
            self.report(file, at, path, fault);
        }
        defaults
    }

    fn descriptor(&mut self, file: &'a File, parent: Level<'_>, descriptor: &DescriptorNode) {
        let reports_values = parent.reports_values || descriptor.value_to_metric;
        let (parent, path) = (parent.node, parent.path);
        let at = descriptor.at;
        if descriptor.key.is_empty() {
            return self.report(file, at, path, Fault::EmptyKey);
        }
        if descriptor.key.as_bytes().starts_with(order::PREFIX) {
            let fault = Fault::OrderKey(descriptor.key.clone());
            self.report(file, at, path, fault);
        }
        let text = joined(&descriptor.key, &descriptor.value);
        let room = (self.path_room + PATH_BYTES).checked_sub(path.len() + 1 + text.len());
        let Some(room) = room else {
            return self.report(file, at, "", Fault::LongPaths);
        };
        self.path_room = room;
        let path: Arc<str> = format!("{path}.{text}").into();
        let (key, value) = (descriptor.key.as_bytes(), descriptor.value.as_bytes());
        let wildcard_bytes = self.matcher.wildcard_bytes(parent);
        let Some(node) = self.matcher.insert(parent, key, value) else {
            let fault = Fault::Duplicate {
                path: shortened(&path),
                first: self.first_location(&path),
            };
            return self.report(file, at, &path, fault);
        };
        let is_full = |bytes| bytes > MAX_WILDCARD_BYTES;
        if !is_full(wildcard_bytes) && is_full(self.matcher.wildcard_bytes(parent)) {
            self.report(file, at, &path, Fault::TooManyWildcards);
        }
        let origin = RuleOrigin {
            file: self.file_name.clone(),
            line: at.map(|at| file.line(at)),
        };
        self.matcher.set_origin(node, origin);
        self.locations.insert(path.clone(), Location { file, at });
        if descriptor.share_threshold {
            if text.contains('*') {
                self.matcher.share(node, descriptor.value.as_bytes());
            } else {
                let fault = Fault::ShareWithoutWildcard(descriptor.key.clone());
                self.report(file, at, &path, fault);
            }
        }
        if descriptor.value_to_metric {
            self.matcher.report_values(node);
        }
        let level = Level {
            node,
            path: &path,
            reports_values,
        };
        self.rule(file, level, descriptor);
        for child in &descriptor.descriptors {
            self.descriptor(file, level, child);
        }
    }

    fn first_location(&self, path: &str) -> String {
        let Some(Location { file, at }) = self.locations.get(path) else {
            return "another level".to_owned();
        };
        match at.map(|at| file.position(at)) {
            Some(Position { line, column }) => format!("{}:{line}:{column}", file.name),
            None => file.name.clone(),
        }
    }

    fn rule(&mut self, file: &'a File, level: Level<'_>, descriptor: &DescriptorNode) {
        let path = level.path;
        let limits = match &descriptor.limits {
            Limits::None => return self.without_limits(file, path, descriptor),
            Limits::One(limit) => std::slice::from_ref(&**limit),
            Limits::List(limits) => limits,
        };
        if let Some(limit) = limits.get(MAX_LIMITS) {
            self.report(file, limit.at, path, Fault::TooManyLimits);
        }
        let limits = &limits[..limits.len().min(MAX_LIMITS)];
        let is_list = matches!(descriptor.limits, Limits::List(_));
        let mut compiled: Vec<Limit> = Vec::with_capacity(limits.len());
        let mut periods = HashSet::new();
        let mut is_unlimited = false;
        for limit in limits {
            if limit.unlimited {
                self.unlimited(file, path, limit, is_list);
                is_unlimited = true;
            } else if let Some(limit) = self.limit(file, path, limit, &mut periods) {
                compiled.push(limit);
            }
        }
        if self.matcher.key_format == KeyFormat::Reference {
            self.check_reference_key(file, path, descriptor, &compiled);
        }
        let replaces = self.replaces(file, path, limits);
        let rule_defaults = self.rule_defaults(file, path, &descriptor.own);
        if let (true, Some(refusal)) = (is_unlimited, &descriptor.own.refusal) {
            let (key, with) = ("refusal", "`unlimited`");
            let fix = "remove it: such a rule refuses nothing";
            self.report(file, refusal.at, path, Fault::DoesNotGo { key, with, fix });
        }
        let mut faults = Vec::new();
        let lease = lease(descriptor, &compiled, is_unlimited, &mut faults);
        for (at, fault) in faults {
            self.report(file, at, path, fault);
        }
        if let (true, Some(LeasePolicy::Slices)) = (self.lacks_redis, lease) {
            let at = descriptor.accuracy.as_ref().and_then(|word| word.at);
            self.report(file, at, path, Fault::NoSlices);
        }
        if let Some(LeasePolicy::Reserve(_) | LeasePolicy::Slices) = lease {
            let names = compiled.iter().filter_map(|limit| limit.name.clone());
            self.reserving.extend(names);
        }
        if compiled.is_empty() && !is_unlimited {
            // Every limit had an error, so this matcher will not be used.
            return;
        }
        self.matcher.set_rule(level.node, |id| Rule {
            id,
            path: path.clone(),
            number: number(path.as_bytes()),
            allows: if is_unlimited {
                Allows::Unlimited
            } else {
                Allows::Within(compiled.into())
            },
            replaces,
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            counts: match lease {
                Some(_) => CountPolicy::Admitted,
                None => rule_defaults.counts,
            },
            lease,
            on_store_loss: rule_defaults.on_store_loss,
            refusal: rule_defaults.refusal,
            metric: match (descriptor.detailed_metric, level.reports_values) {
                (true, _) => Metric::AllValues,
                (false, true) => Metric::SomeValues,
                (false, false) => Metric::Path,
            },
            metadata: descriptor.metadata.clone(),
        });
    }

    /// Reports settings of limits that are not there.
    fn without_limits(&mut self, file: &File, path: &str, descriptor: &DescriptorNode) {
        let reserve = descriptor.reserve.as_ref().map(|keys| ("reserve", keys.at));
        let accuracy = descriptor
            .accuracy
            .as_ref()
            .map(|word| ("accuracy", word.at));
        for (key, at) in reserve.into_iter().chain(accuracy) {
            let with = "a descriptor without limits";
            let fix = "write it beside `rate_limits`";
            self.report(file, at, path, Fault::DoesNotGo { key, with, fix });
        }
    }

    fn unlimited(&mut self, file: &'a File, path: &str, limit: &RateLimit, is_list: bool) {
        if is_list {
            self.report(file, limit.at, path, Fault::UnlimitedInList);
        } else if limit.unit.parse::<Unit>().is_ok() {
            self.report(file, limit.at, path, Fault::UnlimitedUnit);
        }
        self.name(&limit.name);
    }

    /// Reports limits that the reference's keys cannot express: the keys name neither unit nor multiplier.
    fn check_reference_key(
        &mut self,
        file: &File,
        path: &str,
        descriptor: &DescriptorNode,
        limits: &[Limit],
    ) {
        let has = |is_wrong: fn(&Limit) -> bool| limits.iter().any(is_wrong);
        let is_long = |limit: &Limit| limit.period.multiplier().get() > 1;
        let is_other = |limit: &Limit| limit.algorithm != Algorithm::FixedWindow;
        for (is_wrong, what) in [
            (limits.len() > 1, "a rule with several limits"),
            (has(is_long), "a limit whose period is several units"),
            (has(is_other), "a limit with an algorithm of its own"),
        ] {
            if is_wrong {
                self.report(file, descriptor.at, path, Fault::NoReferenceKey(what));
            }
        }
    }

    /// `periods` are those of the earlier limits of the same rule, and the kinds of their algorithms.
    fn limit(
        &mut self,
        file: &'a File,
        path: &str,
        limit: &RateLimit,
        periods: &mut HashSet<(u64, Discriminant<Algorithm>)>,
    ) -> Option<Limit> {
        let mut faults = Vec::new();
        let period = match algorithm::ttl(limit, &mut faults) {
            Some(ttl) => ttl.ok(),
            None => self.period(file, path, limit),
        };
        let algorithm = period.map(|period| {
            let algorithm = algorithm::algorithm(limit, period, &mut faults);
            (period, algorithm)
        });
        let is_wrong = faults.iter().any(|(_, fault)| !fault.is_warning());
        for (at, fault) in faults {
            self.report(file, at.or(limit.at), path, fault);
        }
        let (period, algorithm) = algorithm.filter(|_| !is_wrong)?;
        // Another would have an equal key.
        if !periods.insert((period.secs(), mem::discriminant(&algorithm))) {
            self.report(file, limit.at, path, Fault::SamePeriod(period.to_string()));
            return None;
        }
        Some(Limit {
            requests_per_unit: limit.requests_per_unit,
            period,
            algorithm,
            name: self.name(&limit.name),
        })
    }

    fn period(&mut self, file: &'a File, path: &str, limit: &RateLimit) -> Option<Period> {
        let multiplier = self.multiplier(file, path, limit);
        let Ok(unit) = limit.unit.parse::<Unit>() else {
            let unknown = || match limit.unit.as_str() {
                "" => Fault::NoUnit,
                unit => Fault::InvalidUnit(unit.to_owned()),
            };
            let fault = unrendered(&limit.unit, false).unwrap_or_else(unknown);
            self.report(file, limit.at, path, fault);
            return None;
        };
        let multiplier = multiplier?;
        let period = Period::new(unit, multiplier);
        if period.is_none() {
            let fault = Fault::PeriodTooLong {
                unit: unit.name(),
                multiplier: multiplier.get(),
            };
            self.report(file, limit.at, path, fault);
        }
        period
    }

    fn multiplier(&mut self, file: &'a File, path: &str, limit: &RateLimit) -> Option<NonZeroU32> {
        let Some(number) = &limit.unit_multiplier else {
            return Some(NonZeroU32::MIN);
        };
        let multiplier = u32::try_from(number.value?).ok().and_then(NonZeroU32::new);
        if multiplier.is_none() {
            let fault = Fault::InvalidMultiplier(number.text.clone());
            self.report(file, number.at, path, fault);
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

    fn replaces(
        &mut self,
        file: &'a File,
        path: &Arc<str>,
        limits: &[RateLimit],
    ) -> Box<[Arc<str>]> {
        let own_names = limits.iter().map(|limit| limit.name.clone());
        let own_names: Arc<[String]> = own_names.filter(|name| !name.is_empty()).collect();
        let own: HashSet<&String> = own_names.iter().collect();
        let mut replaced = Vec::new();
        let mut all = limits.iter().flat_map(|limit| &limit.replaces);
        for (name, at) in all.by_ref().take(MAX_LIMITS) {
            if name.is_empty() {
                self.report(file, *at, path, Fault::EmptyReplaces);
            } else if own.contains(name) {
                self.report(file, *at, path, Fault::ReplacesItself);
            } else {
                replaced.push(name.as_str().into());
                self.replacers.push(Replacer {
                    location: Location { file, at: *at },
                    path: path.clone(),
                    own_names: own_names.clone(),
                    replaces: name.clone(),
                });
            }
        }
        if let Some((_, at)) = all.next() {
            self.report(file, *at, path, Fault::TooManyReplaces);
        }
        replaced.into()
    }

    /// Warns of replaced names that no limit has, and of limits that replace each other.
    fn check_replacers(&mut self) {
        let mut pairs: HashSet<(&str, &str)> = HashSet::new();
        for by in &self.replacers {
            let own = by.own_names.iter().take(MAX_PAIRS - pairs.len());
            pairs.extend(own.map(|own| (own.as_str(), by.replaces.as_str())));
        }
        let mut asked = 0;
        for by in &self.replacers {
            asked += by.own_names.len();
            let fault = if self.reserving.contains(by.replaces.as_str()) {
                let key = "replaces";
                let with = "a limit of a rule with `reserve` or `exact-leased`";
                let fix = "replace another one: what this limit had not charged would be given back to it";
                Fault::DoesNotGo { key, with, fix }
            } else if !self.names.contains_key(&by.replaces) {
                Fault::ReplacesUnknown(by.replaces.clone())
            } else if let Some(own) = by.own_names.iter().find(|own| {
                asked < MAX_PAIRS && pairs.contains(&(by.replaces.as_str(), own.as_str()))
            }) {
                Fault::ReplaceEachOther(own.clone(), by.replaces.clone())
            } else {
                continue;
            };
            let Location { file, at } = by.location;
            self.problems.push(file.problem(at, &by.path, fault));
        }
    }
}
