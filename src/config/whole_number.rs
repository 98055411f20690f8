//! Reads whole numbers, and says how to write those that are none.

use std::fmt;

use crate::{
    config::{
        advice::wrong_type,
        fault::Fault,
        keys::KeyKind,
        mirror::{BoxedOption, LocatedNumber},
        node::{NodeKind, Scalar, YamlNode, float, resolve},
        reader::{Fields, YamlReader},
        short_form::{is_unlimited, unit},
    },
    core::{limit::Limit, window::Unit},
};

const REQUESTS: &str = "requests_per_unit";
const REQUESTS_EXPECTED: &str = "a whole number from 0 to 9007199254740991";

impl YamlReader<'_> {
    pub(super) fn number(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        path: &dyn fmt::Display,
    ) -> BoxedOption<LocatedNumber> {
        let node = fields.get(key)?;
        let at = node.offset.or(fields.at(key));
        let (text, value) = match &node.kind {
            NodeKind::Scalar { text, is_plain } => match resolve(text, *is_plain) {
                Scalar::Int(value) => (text.to_string(), Some(value)),
                _ => (text.to_string(), None),
            },
            _ => (String::new(), None),
        };
        if let Some(value) = value {
            if let Some(fault) = octal(&text, value) {
                self.report(at, path, fault);
            }
        } else {
            self.report_number(at, path, key, node, fields);
        }
        Some(Box::new(LocatedNumber { value, text, at }))
    }

    /// 0 if it is missing or was reported.
    pub(super) fn requests_per_unit(
        &mut self,
        fields: &Fields<'_>,
        path: &dyn fmt::Display,
    ) -> u64 {
        let number = self.number(fields, REQUESTS, path);
        let Some((value, number)) = number.and_then(|number| Some((number.value?, number))) else {
            return 0;
        };
        let requests = u64::try_from(value).ok();
        let requests = requests.filter(|requests| *requests <= Limit::MAX_REQUESTS);
        requests.unwrap_or_else(|| {
            let fault = Fault::WrongType {
                key: format!("`{REQUESTS}`"),
                expected: REQUESTS_EXPECTED,
                fix: meant_number(REQUESTS, &number.text, true, fields).unwrap_or_default(),
                found: number.text,
            };
            self.report(number.at, path, fault);
            0
        })
    }

    fn report_number(
        &mut self,
        at: Option<usize>,
        path: &dyn fmt::Display,
        key: &str,
        node: &YamlNode<'_>,
        fields: &Fields<'_>,
    ) {
        let expected = match key {
            REQUESTS => REQUESTS_EXPECTED,
            _ => KeyKind::Number.expected(),
        };
        let mut fault = wrong_type(key, expected, node);
        if let (Fault::WrongType { found, fix, .. }, NodeKind::Scalar { text, is_plain }) =
            (&mut fault, &node.kind)
        {
            if *is_plain {
                found.clone_from(&text.to_string());
            }
            if let Some(better) = meant_number(key, text, *is_plain, fields) {
                *fix = better;
            }
        }
        match node.kind {
            // Reported for every value.
            NodeKind::Tagged => {}
            _ => self.report(self.beginning(at, node), path, fault),
        }
    }
}

/// How to write the number that `text` means.
fn meant_number(key: &str, text: &str, is_plain: bool, fields: &Fields<'_>) -> Option<String> {
    let number = text.parse::<u64>().ok();
    if let Some(number) = number.filter(|number| *number <= Limit::MAX_REQUESTS) {
        let quotes = if is_plain { "" } else { " without quotes" };
        return Some(format!("write {number}{quotes}"));
    }
    if key == REQUESTS && is_unlimited(text) {
        return Some("for no limit write `unlimited: true`, without `unit`".to_owned());
    }
    let Scalar::Float = resolve(text, true) else {
        return None;
    };
    let number = float(text);
    if let Some(whole) = whole(number) {
        return Some(format!("write {whole}"));
    }
    if key != REQUESTS || fields.get("unit_multiplier").is_some() {
        return None;
    }
    let NodeKind::Scalar { text: word, .. } = &fields.get("unit")?.kind else {
        return None;
    };
    let unit = unit(word)?;
    // Months and years have no whole number of weeks.
    let longer = [Unit::Minute, Unit::Hour, Unit::Day, Unit::Week].into_iter();
    let (longer, requests) = longer
        .filter(|longer| longer.secs() > unit.secs())
        .find_map(|longer| {
            #[expect(clippy::cast_precision_loss, reason = "at most a week of seconds")]
            let factor = (longer.secs() / unit.secs()) as f64;
            Some((longer, whole(number * factor)?))
        })?;
    Some(format!(
        "for {text} a {unit} write `unit: {longer}, {REQUESTS}: {requests}`"
    ))
}

/// The number, if it is whole but for the error of its calculation.
fn whole(number: f64) -> Option<u64> {
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    const MOST: f64 = Limit::MAX_REQUESTS as f64;
    let rounded = number.round();
    let is_whole = (number - rounded).abs() < 1e-6 && (0.0..=MOST).contains(&rounded);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked above"
    )]
    is_whole.then_some(rounded as u64)
}

/// A warning of a number such as `010`, which YAML 1.1 reads as 8, if it reads as another number in decimal.
fn octal(text: &str, value: i128) -> Option<Fault> {
    let decimal: i128 = text.replace('_', "").parse().ok()?;
    (decimal != value).then(|| Fault::Octal {
        text: text.to_owned(),
        value,
        fix: format!("{value} or {decimal}"),
    })
}
