//! The trace of a call, read from its headers: W3C Trace Context, or B3 in one header or in several.
//!
//! Baggage is not forwarded, because a decision calls no further service. OpenTelemetry's own propagators would pull in
//! its crates for a few headers.

/// A longer `tracestate` is dropped (W3C Trace Context, 3.3.1.5).
const MAX_STATE_BYTES: usize = 512;

/// The trace that the caller began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Context {
    pub trace_id: Option<u128>,
    /// The caller's sampling decision; `None` if the caller left it open.
    pub is_sampled: Option<bool>,
    pub state: String,
}

/// The caller's span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub context: Context,
    pub span_id: u64,
}

impl Parent {
    /// Reads the headers of a call; malformed headers count as absent.
    pub(crate) fn read<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<Self> {
        let w3c = header("traceparent").and_then(traceparent);
        if let Some(mut parent) = w3c {
            let state = header("tracestate").unwrap_or_default();
            if state.len() <= MAX_STATE_BYTES {
                state.clone_into(&mut parent.context.state);
            }
            return Some(parent);
        }
        if let Some(parent) = header("b3").and_then(b3) {
            return Some(parent);
        }
        let flags = header("x-b3-flags");
        let sampled = match flags {
            Some("1") => Some(true),
            _ => header("x-b3-sampled").and_then(sampled),
        };
        parent(header("x-b3-traceid")?, header("x-b3-spanid")?, sampled)
    }
}

/// `00-TRACE-SPAN-FLAGS`; later versions can append more.
fn traceparent(text: &str) -> Option<Parent> {
    let mut parts = text.trim().split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let version = hex(version, 2)?;
    let is_first = version == 0;
    if version == 0xff || is_first && parts.next().is_some() || trace.len() != 32 {
        return None;
    }
    let is_sampled = hex(flags, 2)? & 1 == 1;
    parent(trace, span, Some(is_sampled))
}

/// `TRACE-SPAN`, `TRACE-SPAN-SAMPLED` or `TRACE-SPAN-SAMPLED-PARENT`
fn b3(text: &str) -> Option<Parent> {
    let mut parts = text.trim().split('-');
    let (trace, span) = (parts.next()?, parts.next()?);
    parent(trace, span, parts.next().and_then(sampled))
}

fn sampled(text: &str) -> Option<bool> {
    match text {
        // `d` is debug, which is sampled.
        "1" | "d" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn parent(trace: &str, span: &str, is_sampled: Option<bool>) -> Option<Parent> {
    let length = if trace.len() == 16 { 16 } else { 32 };
    let trace_id = hex(trace, length).filter(|id| *id != 0)?;
    let span_id = hex(span, 16).filter(|id| *id != 0)?;
    Some(Parent {
        context: Context {
            trace_id: Some(trace_id),
            is_sampled,
            state: String::new(),
        },
        span_id: u64::try_from(span_id).ok()?,
    })
}

fn hex(text: &str, length: usize) -> Option<u128> {
    let is_hex = text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    /// The parent as `TRACE SPAN SAMPLED STATE`.
    #[track_caller]
    fn check(headers: &[(&str, &str)], expected: Option<&str>) {
        let header = |name: &str| {
            let mut headers = headers.iter();
            headers.find_map(|(known, value)| (*known == name).then_some(*value))
        };
        let shown = Parent::read(header).map(|parent| {
            let Context {
                trace_id,
                is_sampled,
                state,
            } = parent.context;
            let sampled = is_sampled.map_or("open".to_owned(), |is| is.to_string());
            format!(
                "{:x} {:x} {sampled} {state}",
                trace_id.unwrap(),
                parent.span_id
            )
        });
        assert_eq!(shown.as_deref(), expected, "{headers:?}");
    }

    #[test]
    fn trace_context_is_read() {
        let parent = |flags: &str| format!("00-{TRACE}-{SPAN}-{flags}");
        let shown = |rest: &str| format!("{} {SPAN} {rest}", TRACE.trim_start_matches('0'));
        check(&[("traceparent", &parent("01"))], Some(&shown("true ")));
        check(&[("traceparent", &parent("00"))], Some(&shown("false ")));
        check(
            &[("traceparent", &parent("01")), ("tracestate", "a=b,c=d")],
            Some(&shown("true a=b,c=d")),
        );
        let long = "x".repeat(600);
        check(
            &[("traceparent", &parent("01")), ("tracestate", &long)],
            Some(&shown("true ")),
        );
        check(
            &[("traceparent", &format!("cc-{TRACE}-{SPAN}-01-more"))],
            Some(&shown("true ")),
        );
        for bad in [
            "",
            "00",
            "00-x-y-01",
            &format!("00-{TRACE}-{SPAN}"),
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("00-{}-{SPAN}-01", "0".repeat(32)),
            &format!("00-{TRACE}-{}-01", "0".repeat(16)),
            &format!("00-{SPAN}-{SPAN}-01"),
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            check(&[("traceparent", bad)], None);
        }
    }

    #[test]
    fn b3_is_read_in_both_forms() {
        let trace = TRACE.trim_start_matches('0');
        for (text, sampled) in [
            (format!("{TRACE}-{SPAN}"), "open"),
            (format!("{TRACE}-{SPAN}-1"), "true"),
            (format!("{TRACE}-{SPAN}-d-{SPAN}"), "true"),
            (format!("{TRACE}-{SPAN}-0"), "false"),
        ] {
            check(
                &[("b3", &text)],
                Some(&format!("{trace} {SPAN} {sampled} ")),
            );
        }
        check(
            &[("b3", &format!("{SPAN}-{SPAN}-1"))],
            Some(&format!("{SPAN} {SPAN} true ")),
        );
        for bad in ["0", "1", "", "x-y"] {
            check(&[("b3", bad)], None);
        }
        let multi = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        check(&multi, Some(&format!("{trace} {SPAN} open ")));
        let and = |more| [&multi[..], &[more]].concat();
        check(
            &and(("x-b3-sampled", "0")),
            Some(&format!("{trace} {SPAN} false ")),
        );
        check(
            &and(("x-b3-flags", "1")),
            Some(&format!("{trace} {SPAN} true ")),
        );
    }
}
