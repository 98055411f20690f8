//! The keys of `refusal` → a [`RuleRefusal`], with every error.

use crate::{
    config::{
        algorithm::{Faults, unknown},
        fault::Fault,
        mirror::{BoxedOption, LocatedHeader, LocatedNumber, LocatedText, RefusalKeys},
    },
    core::refusal::{
        MAX_BODY, Placeholder, RefusalBody, RefusalValues, RuleRefusal, Syntax, Template,
    },
    foundation::header_text::{is_free_name, is_value},
};

/// The status that Envoy answers with unless its filter has a `rate_limited_status`.
const TOO_MANY_REQUESTS: u16 = 429;

/// The statuses that Envoy can answer with.
const STATUSES: std::ops::RangeInclusive<u16> = 400..=599;

/// The most headers of a refusal.
const MAX_HEADERS: usize = 16;

/// The refusal that `keys` describe; `None` if it is empty, or if a fault was added.
pub(super) fn refusal(keys: &RefusalKeys, faults: &mut Faults) -> Option<RuleRefusal> {
    let Some(body) = keys.body.as_deref().filter(|body| !body.text.is_empty()) else {
        faults.push((keys.at, Fault::NoBody));
        return None;
    };
    let content_type = &keys.content_type;
    let type_at = content_type.as_ref().map(|word| word.at);
    let status_at = keys.status.as_ref().map(|number| number.at);
    let status = status(&keys.status, faults);
    let headers = headers(&keys.headers, faults);
    let headers_at = keys.headers.first().map(|header| header.at);
    match body.text.as_str() {
        "none" => {
            let with = "`body: none`";
            reject("content_type", type_at, with, "remove it", faults);
            reject("status", status_at, with, "remove it", faults);
            reject("headers", headers_at, with, "remove them", faults);
            None
        }
        "problem+json" => {
            let fix = "its type is application/problem+json";
            reject("content_type", type_at, "`body: problem+json`", fix, faults);
            Some(RuleRefusal {
                content_type: "application/problem+json".to_owned(),
                body: RefusalBody::Problem,
                status,
                headers,
            })
        }
        _ => {
            let (content_type, syntax) = match content_type.as_deref() {
                None => ("text/plain; charset=utf-8".to_owned(), Syntax::Plain),
                Some(word) => known_type(&word.text).or_else(|| {
                    faults.push(unknown("content_type", word));
                    None
                })?,
            };
            let template = template(body, syntax, status, faults)?;
            if !template.has(Placeholder::Status) {
                let with = "a `body` without `{status}`";
                let fix = "remove it: Envoy's `rate_limited_status` decides the status";
                reject("status", status_at, with, fix, faults);
            }
            Some(RuleRefusal {
                content_type,
                body: RefusalBody::Template(template),
                status,
                headers,
            })
        }
    }
}

/// Reports a key, whose position is given if it is there, that has no meaning beside another one.
fn reject(
    key: &'static str,
    at: Option<Option<usize>>,
    with: &'static str,
    fix: &'static str,
    faults: &mut Faults,
) {
    faults.extend(at.map(|at| (at, Fault::DoesNotGo { key, with, fix })));
}

/// The headers that can be sent; the others are faults. `Retry-After` has a setting of its own.
fn headers(keys: &[LocatedHeader], faults: &mut Faults) -> Box<[(String, String)]> {
    if let Some(header) = keys.get(MAX_HEADERS) {
        faults.push((header.at, Fault::TooManyHeaders(MAX_HEADERS)));
    }
    let mut headers: Vec<(String, String)> = Vec::new();
    for LocatedHeader { at, name, value } in keys.iter().take(MAX_HEADERS) {
        let is_same = |other: &str| name.eq_ignore_ascii_case(other);
        let is_known = is_same("retry-after") || headers.iter().any(|(other, _)| is_same(other));
        let fault = if is_known || !is_free_name(name) {
            Fault::HeaderName(name.chars().take(64).collect())
        } else if let Some(value) = value.as_ref().filter(|value| is_value(value)) {
            headers.push((name.clone(), value.clone()));
            continue;
        } else {
            Fault::HeaderValue(name.chars().take(64).collect())
        };
        faults.push((*at, fault));
    }
    headers.into()
}

fn status(number: &BoxedOption<LocatedNumber>, faults: &mut Faults) -> u16 {
    let Some((value, number)) = number.as_ref().and_then(|n| Some((n.value?, n))) else {
        return TOO_MANY_REQUESTS;
    };
    let status = u16::try_from(value).ok();
    status
        .filter(|status| STATUSES.contains(status))
        .unwrap_or_else(|| {
            let fault = Fault::OutOfRange {
                key: "status",
                low: (*STATUSES.start()).into(),
                high: (*STATUSES.end()).into(),
                text: number.text.clone(),
            };
            faults.push((number.at, fault));
            TOO_MANY_REQUESTS
        })
}

/// The value of the header for a known type, and the syntax of such a body. Bodies are UTF-8, which texts have to say.
fn known_type(text: &str) -> Option<(String, Syntax)> {
    let (essence, parameter) = text.split_once(';').unwrap_or((text, "charset=utf-8"));
    let charset = parameter.trim_start_matches(' ').strip_prefix("charset=")?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let (kind, subtype) = essence.split_once('/')?;
    let is_subtype = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+')
    };
    if !subtype.bytes().all(is_subtype) {
        return None;
    }
    let has_syntax = |name: &str| match subtype.strip_suffix(name) {
        Some(before) => before.is_empty() || before.len() > 1 && before.ends_with('+'),
        None => false,
    };
    let syntax = match kind {
        "text" if subtype == "plain" => Syntax::Plain,
        "text" if matches!(subtype, "html" | "xml") => Syntax::Markup,
        "application" if has_syntax("json") => Syntax::Json,
        "application" if has_syntax("xml") => Syntax::Markup,
        _ => return None,
    };
    let value = match kind {
        "text" => format!("{essence}; charset=utf-8"),
        _ => text.to_owned(),
    };
    Some((value, syntax))
}

fn template(
    body: &LocatedText,
    syntax: Syntax,
    status: u16,
    faults: &mut Faults,
) -> Option<Template> {
    let mut report = |fault| {
        faults.push((body.at, fault));
        None
    };
    let template = match Template::parse(&body.text, syntax) {
        Ok(template) => template,
        Err(name) => {
            return report(Fault::UnknownPlaceholder(name.chars().take(64).collect()));
        }
    };
    let bytes = template.max_bytes();
    if bytes > MAX_BODY {
        return report(Fault::BodyTooLong(bytes));
    }
    if syntax == Syntax::Json
        && let Some(error) = json_error(&template, status)
    {
        return report(Fault::BodyNotJson(error.to_string()));
    }
    Some(template)
}

/// Why the template makes no JSON. Its values are escaped, so that only the sorts of values matter: numbers that are 0
/// or begin with another digit, and a time that never comes.
fn json_error(template: &Template, status: u16) -> Option<serde_json::Error> {
    let samples = [(7, Some(7)), (0, None)].map(|(number, retry_secs)| RefusalValues {
        name: "name",
        rate: "7/second",
        requests_per_unit: number,
        period_secs: number,
        status,
        retry_secs,
        reset_secs: number,
    });
    let check = |values| serde_json::from_str::<serde::de::IgnoredAny>(&template.render(values));
    samples.iter().find_map(|values| check(values).err())
}
