//! Every counter that one request touches, in order, with its hits.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use crate::core::{
    counter::{
        Batch, Charge, Enforcement, Identity, IncrementSpec, Joined, Operation, Reservation,
    },
    lease::{
        order::{MOST_COST, Order, OrderKind, OrderTarget},
        token::{LeaseId, LeaseToken},
    },
    limit::{Allows, CountPolicy, LeasePolicy, Limit, Metric, Modes, Reserve, Rule},
    matcher::{Domain, Match, Matcher, NoMatch},
    metric_key,
    request::{Descriptor, Entry, Hits, InlineList, Request},
    window::Timestamp,
};

/// The outcomes of a request's descriptors before anything is counted.
#[derive(Debug)]
pub struct Plan<'a> {
    /// One for each descriptor, in order.
    pub outcomes: InlineList<Outcome<'a>>,
    /// The limit of each increment of [`Plan::batch`], in order.
    pub limits: SmallVec<[&'a Limit; 8]>,
    pub batch: Box<Batch>,
    /// `None` if it neither leases nor orders anything.
    pub leases: Option<Box<PlannedLeases<'a>>>,
}

/// The leases of a request, and what it orders for earlier ones.
#[derive(Debug, Default)]
pub struct PlannedLeases<'a> {
    /// Names all leases of the request.
    pub id: LeaseId,
    /// The descriptors whose hits are reserved, by index.
    pub reserved: SmallVec<[u32; 2]>,
    /// The descriptors that take slots, by index.
    pub slots: SmallVec<[u32; 2]>,
    pub orders: Vec<Order<'a>>,
}

impl PlannedLeases<'_> {
    /// Whether the request leases hits itself.
    pub fn leases(&self) -> bool {
        !self.reserved.is_empty() || !self.slots.is_empty()
    }
}

#[derive(Debug)]
pub enum Outcome<'a> {
    /// No rule applies: no file names the domain, or no rule of it matches.
    Unmatched(NoMatch),
    Unlimited(&'a Rule),
    /// Another rule of the same request replaces every limit of this one.
    Replaced(&'a Rule),
    /// It orders the end of a lease, and counts nothing itself.
    Ordered,
    Counted(PlannedDescriptor<'a>),
}

/// A descriptor that is counted.
#[derive(Debug)]
pub struct PlannedDescriptor<'a> {
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
            batch: Box::default(),
            outcomes: InlineList::new(),
            limits: SmallVec::new(),
            leases: None,
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
        let mut all: InlineList<LimitSource<'a>> = InlineList::new();
        // All names, before any rule is replaced: two rules that replace each other both drop out.
        let mut replaced: Vec<&'a Arc<str>> = Vec::new();
        for descriptor in request.descriptors() {
            let found = find(rules, descriptor, &mut joined);
            if let LimitSource::Rule(Match { rule, .. }) = found {
                replaced.extend(&rule.replaces);
            }
            all.push(found);
        }
        let mut builder = PlanBuilder {
            rules,
            domain: request.domain,
            now,
            modes,
            all: &all,
            replaced: &replaced,
            quotas_refuse: None,
            identity: Identity::new(matcher.key_format),
            limits: &mut self.limits,
            batch: &mut self.batch,
            leases: &mut self.leases,
        };
        for ((index, found), descriptor) in (0..).zip(&all).zip(request.descriptors()) {
            let outcome = builder.outcome(index, found, &descriptor);
            self.outcomes.push(outcome);
        }
    }
}

impl Plan<'_> {
    /// Names what the request leases, if it leases anything.
    #[inline]
    pub fn name_leases(&mut self, id: impl FnOnce() -> LeaseId) {
        if let Some(leases) = self.leases.as_deref_mut()
            && leases.leases()
        {
            leases.id = id();
            if !leases.slots.is_empty() {
                self.batch.name_slots(leases.id.0);
            }
        }
    }
}

/// The limits of a descriptor, before rules of one request replace one another.
enum LimitSource<'a> {
    Nothing(NoMatch),
    Override(&'a Limit),
    Rule(Match<'a>),
    /// The order, the entries that name its counters, and their rule if they have one.
    Order(OrderKind<'a>, &'a [Entry<'a>], Option<Match<'a>>),
}

/// `rules` are those of the request's domain, if there are any.
fn find<'a>(
    rules: Option<Domain<'a>>,
    descriptor: Descriptor<'a>,
    joined: &mut Joined,
) -> LimitSource<'a> {
    let Some(rules) = rules else {
        return LimitSource::Nothing(NoMatch::UnknownDomain);
    };
    if let Some(limit) = descriptor.limit {
        // An order with a limit of its own names no rule.
        return match OrderKind::of(descriptor.entries) {
            None => LimitSource::Override(limit),
            Some((_, target)) => LimitSource::Order(OrderKind::Unknown, target, None),
        };
    }
    match rules.find(descriptor.entries, joined) {
        Ok(found) => LimitSource::Rule(found),
        Err(reason) => match OrderKind::of(descriptor.entries) {
            None => LimitSource::Nothing(reason),
            Some((kind, target)) => {
                LimitSource::Order(kind, target, rules.find(target, joined).ok())
            }
        },
    }
}

struct PlanBuilder<'a, 'p> {
    rules: Option<Domain<'a>>,
    domain: &'a [u8],
    now: Timestamp,
    modes: Modes,
    /// The limits of each descriptor of the request.
    all: &'p [LimitSource<'a>],
    /// The names that rules of the request replace.
    replaced: &'p [&'a Arc<str>],
    /// Whether all quotas can be over together, once that was asked.
    quotas_refuse: Option<bool>,
    identity: Identity,
    limits: &'p mut SmallVec<[&'a Limit; 8]>,
    batch: &'p mut Batch,
    leases: &'p mut Option<Box<PlannedLeases<'a>>>,
}

impl<'a> PlanBuilder<'a, '_> {
    fn outcome(
        &mut self,
        index: u32,
        found: &LimitSource<'a>,
        descriptor: &Descriptor<'_>,
    ) -> Outcome<'a> {
        let (rule, limits, shared): (_, _, &[_]) = match found {
            LimitSource::Nothing(reason) => return Outcome::Unmatched(*reason),
            LimitSource::Order(kind, target, found) => {
                self.order(*kind, target, found.as_ref(), descriptor);
                return Outcome::Ordered;
            }
            LimitSource::Override(limit) => (None, std::slice::from_ref(*limit), &[]),
            LimitSource::Rule(Match { rule, shared }) => match &rule.allows {
                Allows::Unlimited => return Outcome::Unlimited(rule),
                Allows::Within(limits) => (Some(*rule), &**limits, shared),
            },
        };
        let first = self.limits.len();
        self.identity.set(self.domain, descriptor.entries, shared);
        let (mut hits, mut is_sliced) = (descriptor.hits, false);
        if let Some(Rule {
            lease: Some(lease), ..
        }) = rule
        {
            match lease {
                LeasePolicy::Reserve(reserve) => {
                    hits = self.reserve(index, reserve, descriptor);
                }
                LeasePolicy::Slots => self.slots(index, descriptor),
                LeasePolicy::Slices => is_sliced = true,
            }
        }
        let leases = self.leases.as_deref();
        let is_reserved = leases.is_some_and(|leases| leases.reserved.last() == Some(&index));
        let spec = IncrementSpec {
            reservation: match is_reserved {
                true => Reservation::Begins,
                false => Reservation::None,
            },
            enforcement: self.enforcement(rule),
            on_loss: rule.map_or(self.modes.on_store_loss, |rule| rule.on_store_loss),
            descriptor: index,
            rule: rule.map_or(0, |rule| rule.number),
            is_sliced,
            ..IncrementSpec::charged(hits, self.charge(rule))
        };
        for limit in limits {
            if rule.is_some() && limit.is_replaced(self.replaced) {
                continue;
            }
            let mut spec = spec;
            if let Operation::Add(charge @ (Charge::Always | Charge::Stopping)) =
                &mut spec.operation
                && limit.algorithm.looks_first()
            {
                *charge = Charge::Within;
            }
            self.batch.push(&self.identity, limit, self.now, spec);
            self.limits.push(limit);
        }
        match rule {
            Some(rule) if self.limits.len() == first => Outcome::Replaced(rule),
            _ => Outcome::Counted(PlannedDescriptor {
                metric_key: self.metric_key(rule, descriptor),
                rule,
                hits,
                counters: first..self.limits.len(),
            }),
        }
    }

    /// Plans the lease of a descriptor, and returns its hits. No more descriptors lease than a
    /// token has parts; the others are charged as sent.
    #[cold]
    fn reserve(&mut self, index: u32, reserve: &Reserve, descriptor: &Descriptor<'_>) -> Hits {
        let leases = self.leases.get_or_insert_default();
        if descriptor.hits.added() == 0 || leases.reserved.len() == LeaseToken::MAX_PARTS {
            return descriptor.hits;
        }
        leases.reserved.push(index);
        match reserve.estimate {
            Some(estimate) if !descriptor.has_addend => Hits::add(estimate),
            _ => descriptor.hits,
        }
    }

    /// Plans the slots of a descriptor.
    #[cold]
    fn slots(&mut self, index: u32, descriptor: &Descriptor<'_>) {
        if descriptor.hits.added() > 0 {
            self.leases.get_or_insert_default().slots.push(index);
        }
    }

    #[cold]
    fn order(
        &mut self,
        kind: OrderKind<'a>,
        entries: &'a [Entry<'a>],
        found: Option<&Match<'a>>,
        descriptor: &Descriptor<'_>,
    ) {
        let target = found.and_then(|Match { rule, shared }| {
            let Allows::Within(limits) = &rule.allows else {
                return None;
            };
            let is_ordered =
                |lease: &LeasePolicy| kind != OrderKind::Unknown && *lease != LeasePolicy::Slices;
            let lease = rule.lease.filter(is_ordered)?;
            let mut identity = Identity::new(self.identity.format());
            identity.set(self.domain, entries, shared);
            Some(OrderTarget {
                rule,
                lease,
                limits,
                identity,
            })
        });
        // A cost has no sign.
        let cost = descriptor
            .has_addend
            .then(|| descriptor.hits.count().min(MOST_COST));
        let leases = self.leases.get_or_insert_default();
        leases.orders.push(Order { kind, cost, target });
    }

    /// The policy of limits whose algorithm does not look first.
    fn charge(&self, rule: Option<&Rule>) -> Charge {
        match rule.map_or(CountPolicy::All, |rule| rule.counts) {
            CountPolicy::Admitted => Charge::Admitted,
            CountPolicy::All if self.modes.stops_when_over => Charge::Stopping,
            CountPolicy::All => Charge::Always,
        }
    }

    fn enforcement(&mut self, rule: Option<&Rule>) -> Enforcement {
        let has = |flag: fn(&Rule) -> bool| rule.is_some_and(flag);
        if self.modes.shadow || has(|rule| rule.shadow_mode) {
            Enforcement::Silent
        } else if !(self.modes.quota || has(|rule| rule.quota_mode)) {
            Enforcement::Refuses
        } else if self.quotas_refuse() {
            Enforcement::Quota
        } else {
            Enforcement::Silent
        }
    }

    /// Whether all quotas can be over together: one that is never over lets all of them pass.
    fn quotas_refuse(&mut self) -> bool {
        if let Some(known) = self.quotas_refuse {
            return known;
        }
        let modes = self.modes;
        let is_open = |found: &LimitSource<'_>| match found {
            LimitSource::Nothing(_) => modes.quota,
            LimitSource::Override(_) | LimitSource::Order(..) => false,
            LimitSource::Rule(Match { rule, .. }) if rule.is_replaced(self.replaced) => modes.quota,
            LimitSource::Rule(Match { rule, .. }) => {
                rule.shadow_mode && (modes.quota || rule.quota_mode) && !rule.is_unlimited()
            }
        };
        *self.quotas_refuse.insert(!self.all.iter().any(is_open))
    }

    /// The key if it has to be computed, and `None` if it is the path of the rule.
    fn metric_key(&self, rule: Option<&Rule>, descriptor: &Descriptor<'_>) -> Option<String> {
        let Some(rule) = rule else {
            return Some(metric_key::of_override(self.domain, descriptor.entries));
        };
        match (rule.metric, self.rules) {
            (Metric::Path, _) | (_, None) => None,
            (metric, Some(rules)) => {
                let entries = descriptor.entries;
                Some(metric_key::of_rule(rules, self.domain, entries, metric))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        kind::{Algorithm, CounterKind, Halves},
        limit::OnStoreLoss,
        matcher::tests::add_rule,
        request::Entry,
        window::Unit,
    };

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    type Change = fn(&mut Rule);

    /// Rules of domain `d` for the keys `0`, `1` and so on: one hit an hour, but for what is changed.
    fn matcher(changes: &[Change]) -> Matcher {
        let mut matcher = Matcher::default();
        for (key, change) in changes.iter().enumerate() {
            let allows = Allows::Within([Limit::fixed(1, Unit::Hour)].into());
            add_rule(&mut matcher, &key.to_string(), allows, change);
        }
        matcher
    }

    fn limit(rule: &mut Rule) -> &mut Limit {
        match &mut rule.allows {
            Allows::Within(limits) => &mut limits[0],
            Allows::Unlimited => unreachable!("it was made with a limit"),
        }
    }

    /// A request of one descriptor for each key.
    fn request(keys: &[String]) -> Request<'_> {
        Request::for_keys(keys.iter().map(String::as_str))
    }

    /// Each rule of one request has the enforcement beside it, or none if it is not counted. With
    /// `has_unmatched` the request has one more descriptor, which no rule matches.
    #[track_caller]
    fn check_enforcements(
        modes: Modes,
        has_unmatched: bool,
        rules: &[(Change, Option<Enforcement>)],
    ) {
        let changes: Vec<_> = rules.iter().map(|(change, _)| *change).collect();
        let matcher = matcher(&changes);
        let count = rules.len() + usize::from(has_unmatched);
        let keys: Vec<_> = (0..count).map(|key| key.to_string()).collect();
        let request = request(&keys);
        let plan = Plan::new(&matcher, &request, modes, NOW);
        let enforcements = plan.outcomes.iter().map(|outcome| match outcome {
            Outcome::Counted(counted) => Some(plan.batch.spec(counted.counters.start).enforcement),
            _ => None,
        });
        let enforcements: Vec<_> = enforcements.take(rules.len()).collect();
        let expected: Vec<_> = rules.iter().map(|(_, enforcement)| *enforcement).collect();
        assert_eq!(enforcements, expected);
    }

    const PLAIN: Change = |_| ();
    const SHADOW: Change = |rule| rule.shadow_mode = true;
    const QUOTA: Change = |rule| rule.quota_mode = true;
    const SHADOW_QUOTA: Change = |rule| {
        rule.shadow_mode = true;
        rule.quota_mode = true;
    };
    const FREE_SHADOW_QUOTA: Change = |rule| {
        SHADOW_QUOTA(rule);
        rule.allows = Allows::Unlimited;
    };
    const NAMED_SHADOW_QUOTA: Change = |rule| {
        SHADOW_QUOTA(rule);
        limit(rule).name = Some("n".into());
    };
    const REPLACES: Change = |rule| rule.replaces = ["n".into()].into();

    use Enforcement::{Quota, Refuses, Silent};

    #[test]
    fn rules_refuse_unless_they_are_shadowed_or_quotas() {
        let check = |modes, rules: &[_]| check_enforcements(modes, false, rules);
        let plain = Modes::default();
        let two = [(PLAIN, Some(Refuses)), (SHADOW, Some(Silent))];
        check(plain, &two);
        let two = [(QUOTA, Some(Quota)), (PLAIN, Some(Refuses))];
        check(plain, &two);
        let shadow = Modes {
            shadow: true,
            ..plain
        };
        check(shadow, &[(PLAIN, Some(Silent)), (QUOTA, Some(Silent))]);
        let quota = Modes {
            quota: true,
            ..plain
        };
        check(quota, &[(PLAIN, Some(Quota)), (QUOTA, Some(Quota))]);
    }

    #[test]
    fn quotas_refuse_nothing_beside_one_that_is_never_over() {
        let plain = Modes::default();
        let quota = Modes {
            quota: true,
            ..plain
        };
        let check = |modes, rules: &[_]| check_enforcements(modes, false, rules);
        let shadowed = (SHADOW_QUOTA, Some(Silent));
        check(
            plain,
            &[(QUOTA, Some(Silent)), shadowed, (PLAIN, Some(Refuses))],
        );
        check(quota, &[(PLAIN, Some(Silent)), (SHADOW, Some(Silent))]);
        // A shadowed rule that is no quota, has no limit or is replaced opens none.
        check(plain, &[(QUOTA, Some(Quota)), (SHADOW, Some(Silent))]);
        for modes in [plain, quota] {
            check(modes, &[(QUOTA, Some(Quota)), (FREE_SHADOW_QUOTA, None)]);
        }
        let replaced = (NAMED_SHADOW_QUOTA, None);
        check(
            plain,
            &[(QUOTA, Some(Quota)), replaced, (REPLACES, Some(Refuses))],
        );
        // If all rules are quotas, a replaced one and an unmatched descriptor open the others.
        check(
            quota,
            &[(PLAIN, Some(Silent)), replaced, (REPLACES, Some(Silent))],
        );
        check_enforcements(quota, true, &[(PLAIN, Some(Silent))]);
        check_enforcements(plain, true, &[(QUOTA, Some(Quota))]);
    }

    #[test]
    fn the_charge_follows_from_the_rule_its_algorithm_and_the_mode() {
        let charge = |change: Change, stops_when_over| {
            let (matcher, keys) = (matcher(&[change]), ["0".to_owned()]);
            let modes = Modes {
                stops_when_over,
                ..Modes::default()
            };
            let request = request(&keys);
            let plan = Plan::new(&matcher, &request, modes, NOW);
            match plan.batch.spec(0).operation {
                Operation::Add(charge) => charge,
                other => panic!("{other:?}"),
            }
        };
        let first_hit: Change = |rule| limit(rule).algorithm = Algorithm::FirstHit;
        let log: Change = |rule| limit(rule).algorithm = Algorithm::SlidingLog;
        let admitted: Change = |rule| rule.counts = CountPolicy::Admitted;
        let admitted_log: Change = |rule| {
            rule.counts = CountPolicy::Admitted;
            limit(rule).algorithm = Algorithm::SlidingLog;
        };
        for (change, usually, if_stopped) in [
            (PLAIN, Charge::Always, Charge::Stopping),
            (first_hit, Charge::Always, Charge::Stopping),
            (log, Charge::Within, Charge::Within),
            (admitted, Charge::Admitted, Charge::Admitted),
            (admitted_log, Charge::Admitted, Charge::Admitted),
        ] {
            assert_eq!(charge(change, false), usually);
            assert_eq!(charge(change, true), if_stopped);
        }
    }

    #[test]
    fn an_increment_knows_its_descriptor_and_what_its_rule_says() {
        const SLICED: Change = |rule| {
            rule.number = 7;
            rule.on_store_loss = OnStoreLoss::Deny;
            rule.lease = Some(LeasePolicy::Slices);
        };
        let matcher = matcher(&[PLAIN, SLICED]);
        let keys = ["0", "1", "own"].map(str::to_owned);
        let mut request = request(&keys[..2]);
        request.push_entry(Entry {
            key: keys[2].as_bytes(),
            value: b"",
        });
        request.push_descriptor(Hits::ONE, Some(Limit::fixed(1, Unit::Day)));
        let modes = Modes {
            on_store_loss: OnStoreLoss::Local,
            ..Modes::default()
        };
        let mut plan = Plan::new(&matcher, &request, modes, NOW);
        let specs = plan.batch.all_specs();
        let found: Vec<_> = specs
            .map(|spec| {
                (
                    spec.descriptor,
                    spec.on_loss,
                    spec.is_sliced,
                    spec.rule == 7,
                )
            })
            .collect();
        let expected = [
            (0, OnStoreLoss::Error, false, false),
            (1, OnStoreLoss::Deny, true, true),
            (2, OnStoreLoss::Local, false, false),
        ];
        assert_eq!(found, expected);
        plan.batch.add_first();
        let adds_first: Vec<_> = plan.batch.all_specs().map(|spec| spec.adds_first).collect();
        assert_eq!(adds_first, [false, true, false]);
    }

    #[test]
    fn a_request_that_leases_gets_a_name_which_its_slots_bear() {
        const RESERVES: Change = |rule| rule.lease = Some(LeasePolicy::Reserve(Reserve::default()));
        const SLOTS: Change = |rule| {
            rule.lease = Some(LeasePolicy::Slots);
            limit(rule).algorithm = Algorithm::Concurrency;
        };
        let slots = |lease| CounterKind::Slots {
            lease: Halves::new(lease),
        };
        for (change, hits, times, method) in [
            (PLAIN, 1, 0, CounterKind::Window),
            (RESERVES, 1, 1, CounterKind::Window),
            (RESERVES, 0, 0, CounterKind::Window),
            (SLOTS, 1, 1, slots(7)),
            (SLOTS, 0, 0, slots(0)),
        ] {
            let (matcher, keys) = (matcher(&[change]), ["0".to_owned()]);
            let mut request = request(&keys);
            request.set_hits(Hits::add(hits));
            let mut plan = Plan::new(&matcher, &request, Modes::default(), NOW);
            let mut named = 0;
            plan.name_leases(|| {
                named += 1;
                LeaseId(7)
            });
            assert_eq!((named, plan.batch.spec(0).method), (times, method));
        }
    }

    #[test]
    fn statistics_are_named_by_the_path_the_values_or_the_request_s_own_limit() {
        let values: Change = |rule| rule.metric = Metric::AllValues;
        let matcher = matcher(&[PLAIN, values]);
        let mut request = Request::new(b"d");
        let entry = |key, value| Entry { key, value };
        request.push_entry(entry(b"0", b"v"));
        request.push_descriptor(Hits::ONE, None);
        request.push_entry(entry(b"1", b"v"));
        request.push_descriptor(Hits::ONE, None);
        request.push_entry(entry(b"x", b""));
        request.push_entry(entry(b"y", b"v"));
        request.push_descriptor(Hits::ONE, Some(Limit::fixed(1, Unit::Day)));
        let plan = Plan::new(&matcher, &request, Modes::default(), NOW);
        let names = plan.outcomes.iter().map(|outcome| match outcome {
            Outcome::Counted(counted) => counted.metric_key.as_deref(),
            _ => unreachable!("each has a limit"),
        });
        let names: Vec<_> = names.collect();
        assert_eq!(names, [None, Some("d.1_v"), Some("d.x.y_v")]);
    }
}
