//! `/rlconfig`: the rules in use, with one limit per line.

use std::fmt::Write as _;

use super::page::{PageWriter, texts};
use crate::{
    core::{
        kind::Algorithm,
        limit::{Allows, CountPolicy, OnStoreLoss, Rule},
        window::Unit,
    },
    foundation::named::Named as _,
    service::limiter::Rules,
};

/// One line for each limit, in the reference's format, with tollgate's own fields appended.
pub(super) fn rlconfig(rules: &Rules) -> PageWriter {
    let rules = rules.current();
    let count = rules
        .as_ref()
        .map_or(0, |rules| rules.matcher.rules().len());
    let rule = move |nth: usize| Some(lines(&rules.as_ref()?.matcher.rules()[nth]));
    texts((0..count).filter_map(rule))
}

/// The lines of one rule. Writing to a string cannot fail.
fn lines(rule: &Rule) -> String {
    let mut page = String::new();
    // A rule's value can be any text, but a line must stay one line.
    let path = rule.path.replace(char::is_control, "?");
    let mut line = |unit: &str, requests_per_unit: u64, more: &str| {
        let _ = writeln!(
            page,
            "{}: unit={} requests_per_unit={requests_per_unit}, shadow_mode: {}, quota_mode: {}{more}",
            path,
            unit.to_uppercase(),
            rule.shadow_mode,
            rule.quota_mode
        );
    };
    let limits = match &rule.allows {
        Allows::Unlimited => {
            line("unknown", 0, "");
            &[]
        }
        Allows::Within(limits) => &limits[..],
    };
    for limit in limits {
        let mut more = String::new();
        let multiplier = limit.unit_multiplier();
        if multiplier > 1 {
            let _ = write!(more, ", unit_multiplier: {multiplier}");
        }
        match &limit.algorithm {
            Algorithm::FixedWindow => {}
            Algorithm::FirstHit => more.push_str(", window: first_hit"),
            Algorithm::Calendar(calendar) => {
                let _ = write!(more, ", calendar: {}", calendar.zone_name());
            }
            other => {
                let _ = write!(more, ", algorithm: {}", other.name());
            }
        }
        if limit.is_concurrency() {
            let _ = write!(more, ", ttl: {}s", limit.period.secs());
        }
        if let Algorithm::TokenBucket { burst } = limit.algorithm {
            let _ = write!(more, ", burst: {burst}");
        }
        if rule.counts == CountPolicy::Admitted {
            more.push_str(", count: admitted");
        }
        if rule.on_store_loss != OnStoreLoss::Error {
            let _ = write!(more, ", on_store_loss: {}", rule.on_store_loss.name());
        }
        let unit = limit.unit().map_or("unknown", Unit::name);
        line(unit, limit.requests_per_unit, &more);
    }
    page
}
