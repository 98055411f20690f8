//! Spans of calls, for an OpenTelemetry collector.
//!
//! Without tracing a call costs one branch, and a call that is not sampled makes no span. As in the reference, one that
//! is sampled becomes two spans: one for the RPC, in the caller's trace, and inside it one for the decision. [`export`]
//! sends them. No span contains a key or a value of a request.

use std::{
    str::FromStr as _,
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::{Duration, UNIX_EPOCH},
};

use opentelemetry::{
    Context, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{
        Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, TraceState, Tracer as _,
    },
};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SdkTracer, ShouldSample as _};

use crate::foundation::{log_throttle::LogThrottle, random, sample::SampleWriter};

pub(crate) mod export;

/// A longer `tracestate` is dropped (W3C Trace Context, 3.3.1.5).
const MAX_STATE_BYTES: usize = 512;

/// Most bytes of a text in a span. Spans wait in memory.
const MAX_TEXT_BYTES: usize = 256;

/// The spans of one call.
const SPANS: usize = 2;

static FULL: LogThrottle = LogThrottle::new();

/// Counts of spans.
#[derive(Debug, Default)]
pub struct TraceStats {
    exported: AtomicU64,
    /// The queue was full, or the collector did not accept them.
    dropped: AtomicU64,
    /// Not sent yet.
    waiting: AtomicUsize,
}

impl TraceStats {
    fn add(counter: &AtomicU64, spans: usize) {
        counter.fetch_add(spans as u64, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        list.total("tollgate.spans_exported_total", &self.exported);
        list.total("tollgate.spans_dropped_total", &self.dropped);
    }
}

/// Which calls are sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sampling {
    /// Whether the caller's decision counts, if it has made one.
    pub(crate) follows_caller: bool,
    /// The share of all other calls: 1 or more means all, 0 or less none.
    pub(crate) rate: f64,
}

impl Sampling {
    /// Callers decide, and else this rate.
    pub(crate) fn of_callers(rate: f64) -> Self {
        Self {
            follows_caller: true,
            rate,
        }
    }

    fn samples(self, parent: Option<&Parent>) -> bool {
        if let Some(parent) = parent
            && self.follows_caller
        {
            return parent.flags.is_sampled();
        }
        let trace = parent.map_or_else(|| random::long_id().into(), |parent| parent.trace);
        let sampler = Sampler::TraceIdRatioBased(self.rate);
        let result = sampler.should_sample(None, trace, RPC, &SpanKind::Server, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

/// The caller's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace: TraceId,
    span: SpanId,
    flags: TraceFlags,
}

impl Parent {
    /// Reads `traceparent`: `00-TRACE-SPAN-FLAGS`; later versions can append more. A malformed one counts as absent.
    ///
    /// The SDK reads it too, but takes identifiers of any length, and memory also for calls that are not sampled.
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let mut digits = |length| {
            let part = parts.next().filter(|part| part.len() == length)?;
            let is_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            part.bytes().all(is_hex).then_some(part)
        };
        let (version, trace) = (digits(2)?, TraceId::from_hex(digits(32)?).ok()?);
        let span = SpanId::from_hex(digits(16)?).ok()?;
        let flags = u8::from_str_radix(digits(2)?, 16).ok()?;
        let is_valid = version != "ff" && (version != "00" || parts.next().is_none());
        let is_known = trace != TraceId::INVALID && span != SpanId::INVALID;
        let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
        (is_valid && is_known).then_some(Self { trace, span, flags })
    }
}

/// Makes spans, or none if tracing is off. Clones share one queue.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Tracing>>);

#[derive(Debug)]
struct Tracing {
    sampling: Sampling,
    tracer: SdkTracer,
    /// Most spans that can wait to be sent; any more are dropped and counted.
    max_queue: usize,
    stats: Arc<TraceStats>,
}

impl Tracer {
    /// Begins the spans of a call, if it is sampled. `header` returns a header of the call by its name in lower case.
    pub fn begin<'h>(&self, header: impl Fn(&str) -> Option<&'h str>) -> Option<TracedCall> {
        let tracing = self.0.as_ref()?;
        let parent = header("traceparent").and_then(Parent::read);
        tracing.sampling.samples(parent.as_ref()).then(|| {
            let state = || {
                let state = header("tracestate").filter(|state| state.len() <= MAX_STATE_BYTES);
                TraceState::from_str(state?).ok()
            };
            let context = parent.map(|Parent { trace, span, flags }| {
                SpanContext::new(trace, span, flags, true, state().unwrap_or_default())
            });
            TracedCall {
                tracing: tracing.clone(),
                parent: context.unwrap_or(SpanContext::NONE),
            }
        })
    }
}

/// A sampled call that has not ended.
#[derive(Debug)]
pub struct TracedCall {
    tracing: Arc<Tracing>,
    parent: SpanContext,
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub struct CallSummary {
    /// When the call began, in nanoseconds since 1970.
    pub began_nanos: u64,
    pub took: Duration,
    pub domain: String,
    pub descriptors: usize,
    /// The overall code, or the gRPC status and its number.
    pub answer: Result<&'static str, (String, i32)>,
}

impl TracedCall {
    /// Puts the call's spans into the queue, or counts them as dropped if it is full.
    pub fn end(self, summary: CallSummary) {
        let (Tracing { tracer, stats, .. }, max_queue) = (&*self.tracing, self.tracing.max_queue);
        // The SDK drops spans, too, but does not count them.
        if stats.waiting.fetch_add(SPANS, AcqRel) + SPANS > max_queue {
            stats.waiting.fetch_sub(SPANS, AcqRel);
            TraceStats::add(&stats.dropped, SPANS);
            if FULL.may_log() {
                tracing::warn!("spans have no room: {max_queue} wait for the collector already");
            }
            return;
        }
        let (error, status) = match &summary.answer {
            Ok(_) => (Status::Unset, 0),
            Err((text, status)) => (Status::error(cut(text)), *status),
        };
        let rpc = vec![
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.service", SERVICE),
            KeyValue::new("rpc.method", "ShouldRateLimit"),
            KeyValue::new("rpc.grpc.status_code", i64::from(status)),
        ];
        let descriptors = i64::try_from(summary.descriptors).unwrap_or(i64::MAX);
        let mut decision = vec![
            KeyValue::new("domain", cut(&summary.domain)),
            KeyValue::new("descriptors", descriptors),
        ];
        if let Ok(code) = summary.answer {
            decision.push(KeyValue::new("overall_code", code));
        }
        let start = UNIX_EPOCH + Duration::from_nanos(summary.began_nanos);
        let end = start + summary.took;
        let begin = |name, kind, attributes, parent: &Context| {
            let builder = tracer.span_builder(name).with_kind(kind);
            let builder = builder.with_start_time(start).with_attributes(attributes);
            let mut span = tracer.build_with_context(builder, parent);
            span.set_status(error.clone());
            span
        };
        let caller = Context::new().with_remote_span_context(self.parent);
        let caller = caller.with_span(begin(RPC, SpanKind::Server, rpc, &caller));
        let mut inner = begin(EXECUTION, SpanKind::Internal, decision, &caller);
        caller.span().end_with_timestamp(end);
        inner.end_with_timestamp(end);
    }
}

/// The first bytes of a text.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const RPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The reference's name for this span.
const EXECUTION: &str = "ShouldRateLimit Execution";

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn parent(flags: &str) -> String {
        format!("00-{TRACE}-{SPAN}-{flags}")
    }

    #[test]
    fn without_tracing_nothing_begins() {
        assert!(Tracer::default().begin(|_| None).is_none());
    }

    #[test]
    fn a_malformed_parent_counts_as_absent() {
        for (text, is_sampled) in [
            (parent("01"), Some(true)),
            (parent("00"), Some(false)),
            (parent("03"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01-more"), Some(true)),
            (String::new(), None),
            ("00-x-y-01".to_owned(), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (format!("00-{TRACE}-{SPAN}-01-more"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{SPAN}-{SPAN}-01"), None),
            (format!("00-+{}-{SPAN}-01", &TRACE[1..]), None),
        ] {
            let found = Parent::read(&text);
            assert_eq!(
                found.map(|parent| parent.flags.is_sampled()),
                is_sampled,
                "{text}"
            );
        }
    }

    #[test]
    fn a_caller_decides_if_it_may_and_else_the_rate() {
        let [sampled, unsampled] = ["01", "00"].map(|flags| Parent::read(&parent(flags)));
        for (rate, alone) in [(0.0, false), (-1.0, false), (1.0, true), (7.0, true)] {
            for follows_caller in [true, false] {
                let sampling = Sampling {
                    follows_caller,
                    rate,
                };
                assert_eq!(sampling.samples(None), alone);
                let expected = |by_caller| if follows_caller { by_caller } else { alone };
                assert_eq!(sampling.samples(sampled.as_ref()), expected(true));
                assert_eq!(sampling.samples(unsampled.as_ref()), expected(false));
            }
        }
        let half = Sampling::of_callers(0.5);
        let sampled = (0..1000).filter(|_| half.samples(None));
        assert!((350..650).contains(&sampled.count()));
    }
}
