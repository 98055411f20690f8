//! Every counter that one request touches, in order, with its hits.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use crate::{
    counter::{Batch, Charge, Counting, Identity, Joined, Voice},
    lent::Lent,
    limit::{Allows, Counts, Limit, Metric, Modes, Rule},
    matcher::{Domain, Match, Matcher},
    request::{Descriptor, Entry, Few, Hits, Request},
    window::Timestamp,
};

/// The outcomes of a request's descriptors before anything is counted.
#[derive(Debug)]
pub struct Plan<'a> {
    /// One for each descriptor, in order.
    pub outcomes: Few<Outcome<'a>>,
    /// The limit of each increment of [`Plan::batch`], in order.
    pub limits: SmallVec<[&'a Limit; 8]>,
    pub batch: Lent<Batch>,
}

#[derive(Debug)]
pub enum Outcome<'a> {
    /// No rule applies: no file names the domain, or no rule of it matches.
    Unmatched {
        is_domain_known: bool,
    },
    Unlimited(&'a Rule),
    /// Another rule of the same request replaces every limit of this one.
    Replaced(&'a Rule),
    Counted(Counted<'a>),
}

/// A descriptor that is counted.
#[derive(Debug)]
pub struct Counted<'a> {
    /// `None` if the request brought its own limit.
    pub rule: Option<&'a Rule>,
    pub hits: Hits,
    /// Its counters, by index; never empty.
    pub counters: Range<usize>,
    /// The key under which its statistics are counted, unless that is the path of the rule.
    pub metric_key: Option<String>,
}

impl Default for Plan<'_> {
    #[inline]
    fn default() -> Self {
        Self {
            // First, because a value that is made before one that can fail has to be moved.
            batch: Lent::default(),
            outcomes: Few::new(),
            limits: SmallVec::new(),
        }
    }
}

impl<'a> Plan<'a> {
    pub fn new(
        matcher: &'a Matcher,
        request: &'a Request<'_>,
        modes: Modes,
        now: Timestamp,
    ) -> Self {
        let mut plan = Self::default();
        plan.fill(matcher, request, modes, now);
        plan
    }

    /// Fills an empty plan in place; a plan is too large to return by value.
    pub fn fill(
        &mut self,
        matcher: &'a Matcher,
        request: &'a Request<'_>,
        modes: Modes,
        now: Timestamp,
    ) {
        let rules = matcher.domain(request.domain);
        let mut joined = Joined::new();
        let mut found: Few<Found<'a>> = Few::new();
        for descriptor in request.descriptors() {
            found.push(find(rules, descriptor, &mut joined));
        }
        let replaced = replaced_names(&found);
        // One quota that is never over lets all of them pass.
        let is_open = |found: &Found<'_>| match found {
            Found::Nothing { .. } => modes.quota,
            Found::Override(_) => false,
            Found::Rule(Match { rule, .. }) if rule.is_replaced(&replaced) => modes.quota,
            Found::Rule(Match { rule, .. }) => {
                rule.shadow_mode && (modes.quota || rule.quota_mode) && !rule.is_unlimited()
            }
        };
        let quotas_refuse = !found.iter().any(is_open);
        let mut builder = Builder {
            rules,
            domain: request.domain,
            now,
            modes,
            quotas_refuse,
            identity: Identity::new(matcher.key_format),
            limits: &mut self.limits,
            batch: &mut self.batch,
        };
        for ((index, found), descriptor) in (0..).zip(&found).zip(request.descriptors()) {
            let outcome = builder.outcome(index, found, &descriptor, &replaced);
            self.outcomes.push(outcome);
        }
    }
}

/// The limits of a descriptor, before rules of one request replace one another.
enum Found<'a> {
    Nothing { is_domain_known: bool },
    Override(&'a Limit),
    Rule(Match<'a>),
}

/// `rules` are those of the request's domain, if there are any.
fn find<'a>(
    rules: Option<Domain<'a>>,
    descriptor: Descriptor<'a>,
    joined: &mut Joined,
) -> Found<'a> {
    let Some(rules) = rules else {
        return Found::Nothing {
            is_domain_known: false,
        };
    };
    if let Some(limit) = descriptor.limit {
        return Found::Override(limit);
    }
    match rules.find(descriptor.entries, joined) {
        Some(found) => Found::Rule(found),
        None => Found::Nothing {
            is_domain_known: true,
        },
    }
}

/// Collects all names before any rule is replaced: two rules that replace each other both drop out.
fn replaced_names<'a>(found: &[Found<'a>]) -> Vec<&'a Arc<str>> {
    let mut names = Vec::new();
    for found in found {
        if let Found::Rule(found) = found {
            names.extend(&found.rule.replaces);
        }
    }
    names
}

struct Builder<'a, 'p> {
    rules: Option<Domain<'a>>,
    domain: &'a [u8],
    now: Timestamp,
    modes: Modes,
    /// Whether all quotas can be over together.
    quotas_refuse: bool,
    identity: Identity,
    limits: &'p mut SmallVec<[&'a Limit; 8]>,
    batch: &'p mut Batch,
}

impl<'a> Builder<'a, '_> {
    fn outcome(
        &mut self,
        index: u32,
        found: &Found<'a>,
        descriptor: &Descriptor<'_>,
        replaced: &[&Arc<str>],
    ) -> Outcome<'a> {
        let (rule, limits, shared): (_, _, &[_]) = match found {
            &Found::Nothing { is_domain_known } => return Outcome::Unmatched { is_domain_known },
            Found::Override(limit) => (None, std::slice::from_ref(*limit), &[]),
            Found::Rule(Match { rule, shared }) => match &rule.allows {
                Allows::Unlimited => return Outcome::Unlimited(rule),
                Allows::Within(limits) => (Some(*rule), &**limits, shared),
            },
        };
        let first = self.limits.len();
        self.identity.set(self.domain, descriptor.entries, shared);
        let hits = descriptor.hits;
        for limit in limits {
            if rule.is_some() && limit.is_replaced(replaced) {
                continue;
            }
            let counting = Counting {
                hits,
                charge: self.charge(rule, limit),
                voice: self.voice(rule),
                on_loss: rule.map_or(self.modes.on_store_loss, |rule| rule.on_store_loss),
                descriptor: index,
            };
            self.batch.push(&self.identity, limit, self.now, counting);
            self.limits.push(limit);
        }
        match rule {
            Some(rule) if self.limits.len() == first => Outcome::Replaced(rule),
            _ => Outcome::Counted(Counted {
                metric_key: self.metric_key(rule, descriptor),
                rule,
                hits: descriptor.hits,
                counters: first..self.limits.len(),
            }),
        }
    }

    fn charge(&self, rule: Option<&Rule>, limit: &Limit) -> Charge {
        match rule.map_or(Counts::All, |rule| rule.counts) {
            Counts::Admitted => Charge::Admitted,
            Counts::All if limit.algorithm.looks_first() => Charge::Within,
            Counts::All if self.modes.stops_when_over => Charge::Stopping,
            Counts::All => Charge::Always,
        }
    }

    fn voice(&self, rule: Option<&Rule>) -> Voice {
        let has = |flag: fn(&Rule) -> bool| rule.is_some_and(flag);
        if self.modes.shadow || has(|rule| rule.shadow_mode) {
            Voice::Silent
        } else if !(self.modes.quota || has(|rule| rule.quota_mode)) {
            Voice::Refuses
        } else if self.quotas_refuse {
            Voice::Quota
        } else {
            Voice::Silent
        }
    }

    /// The key if it has to be computed, and `None` if it is the path of the rule.
    fn metric_key(&self, rule: Option<&Rule>, descriptor: &Descriptor<'_>) -> Option<String> {
        let Some(rule) = rule else {
            return Some(override_key(self.domain, descriptor.entries));
        };
        match (rule.metric, self.rules) {
            (Metric::Path, _) | (_, None) => None,
            (metric, Some(rules)) => {
                let entries = descriptor.entries;
                Some(rules.metric_key(self.domain, entries, metric, &mut Joined::new()))
            }
        }
    }
}

/// The key under which statistics are counted for a limit that a request brings.
fn override_key(domain: &[u8], entries: &[Entry<'_>]) -> String {
    let mut key = domain.to_vec();
    for Entry { key: name, value } in entries {
        key.push(b'.');
        key.extend_from_slice(name);
        if !value.is_empty() {
            key.push(b'_');
            key.extend_from_slice(value);
        }
    }
    String::from_utf8_lossy(&key).into_owned()
}
