//! Spans of calls, for an OpenTelemetry collector.
//!
//! Tracing is off by default, and then costs one branch per call. As in the reference, a sampled call becomes two
//! spans: one for the RPC, in the caller's trace, and inside it one for the decision. Both go into a bounded queue,
//! from which [`export`] sends them in batches. No span contains a key or a value of a request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::mpsc;

use crate::foundation::sample::SampleWriter;

pub(crate) mod context;
pub(crate) mod export;

use context::{Context, Parent};

use crate::foundation::random;

/// Settings of tracing.
#[derive(Clone, Debug)]
pub struct Options {
    /// The share of calls that are sampled if the caller has left that open: 1 or more means all, 0 or less none.
    pub sampling_rate: f64,
    /// How many spans can wait to be sent; any more are dropped and counted.
    pub max_queue: usize,
}

/// Counts of exported and dropped spans.
#[derive(Debug, Default)]
pub struct TraceStats {
    pub exported: AtomicU64,
    /// The queue was full, or the collector did not accept them.
    pub dropped: AtomicU64,
}

impl TraceStats {
    fn add(counter: &AtomicU64, spans: usize) {
        counter.fetch_add(spans as u64, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        for (name, spans) in [("exported", &self.exported), ("dropped", &self.dropped)] {
            list.counter(format!("tollgate.spans_{name}_total"), spans.load(Relaxed));
        }
    }
}

/// Makes spans, or none if tracing is off. Clones share one queue.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Sampler>>);

#[derive(Debug)]
struct Sampler {
    /// A trace is sampled if the last 63 bits of its ID are below this.
    threshold: u64,
    queue: mpsc::Sender<Span>,
    stats: Arc<TraceStats>,
}

/// The receiving end of the queue of finished spans.
#[derive(Debug)]
pub struct Spans(mpsc::Receiver<Span>);

impl Tracer {
    /// A tracer, and the queue of its spans.
    pub fn new(options: &Options, stats: Arc<TraceStats>) -> (Self, Spans) {
        let (queue, spans) = mpsc::channel(options.max_queue);
        let sampler = Sampler {
            threshold: threshold(options.sampling_rate),
            queue,
            stats,
        };
        (Self(Some(Arc::new(sampler))), Spans(spans))
    }

    /// Begins the spans of a call, if it is sampled. `header` returns a header of the call by its name in lower case.
    pub fn begin<'h>(&self, header: impl Fn(&str) -> Option<&'h str>) -> Option<TracedCall> {
        let sampler = self.0.as_ref()?;
        let parent = Parent::read(header);
        let (context, parent_id) = match parent {
            Some(parent) => (parent.context, Some(parent.span_id)),
            None => (Context::default(), None),
        };
        let trace_id = context.trace_id.unwrap_or_else(random::long_id);
        let is_sampled = context
            .is_sampled
            .unwrap_or_else(|| sampler.samples(trace_id));
        is_sampled.then(|| TracedCall {
            sampler: sampler.clone(),
            trace_id,
            parent_id,
            state: context.state,
        })
    }
}

impl Sampler {
    fn samples(&self, trace_id: u128) -> bool {
        // This is OpenTelemetry's TraceIdRatioBased, so that all services of a trace agree.
        let low = trace_id & u128::from(u64::MAX);
        low >> 1 < self.threshold.into()
    }
}

/// 2^63 times the rate.
fn threshold(rate: f64) -> u64 {
    const ALL: u64 = 1 << 63;
    if rate >= 1.0 {
        ALL
    } else if rate > 0.0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 2^63"
        )]
        let part = (rate * ALL as f64) as u64;
        part
    } else {
        0
    }
}

/// A sampled call that has not ended.
#[derive(Debug)]
pub struct TracedCall {
    sampler: Arc<Sampler>,
    trace_id: u128,
    parent_id: Option<u64>,
    state: String,
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
        let span_id = random::id();
        let took = u64::try_from(summary.took.as_nanos()).unwrap_or(u64::MAX);
        let end_nanos = summary.began_nanos.saturating_add(took);
        let span = |name, is_server, span_id, parent_id, attributes| Span {
            trace_id: self.trace_id,
            span_id,
            parent_id,
            state: self.state.clone(),
            name,
            is_server,
            start_nanos: summary.began_nanos,
            end_nanos,
            attributes,
            error: summary.answer.as_ref().err().map(|(text, _)| text.clone()),
        };
        let status = summary
            .answer
            .as_ref()
            .map_or_else(|(_, status)| *status, |_| 0);
        let rpc = vec![
            ("rpc.system", AttributeValue::Text("grpc".into())),
            ("rpc.service", AttributeValue::Text(SERVICE.into())),
            ("rpc.method", AttributeValue::Text("ShouldRateLimit".into())),
            (
                "rpc.grpc.status_code",
                AttributeValue::Number(status.into()),
            ),
        ];
        let mut decision = vec![
            ("domain", AttributeValue::Text(summary.domain.clone())),
            (
                "descriptors",
                AttributeValue::Number(i64::try_from(summary.descriptors).unwrap_or(i64::MAX)),
            ),
        ];
        if let Ok(code) = &summary.answer {
            decision.push(("overall_code", AttributeValue::Text((*code).into())));
        }
        let server = span(RPC, true, span_id, self.parent_id, rpc);
        let inner = span(EXECUTION, false, random::id(), Some(span_id), decision);
        for span in [server, inner] {
            if self.sampler.queue.try_send(span).is_err() {
                TraceStats::add(&self.sampler.stats.dropped, 1);
            }
        }
    }
}

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const RPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The reference's name for this span.
const EXECUTION: &str = "ShouldRateLimit Execution";

#[derive(Clone, Debug)]
enum AttributeValue {
    Text(String),
    Number(i64),
}

/// A span that has ended.
#[derive(Clone, Debug)]
struct Span {
    trace_id: u128,
    span_id: u64,
    parent_id: Option<u64>,
    state: String,
    name: &'static str,
    is_server: bool,
    start_nanos: u64,
    end_nanos: u64,
    attributes: Vec<(&'static str, AttributeValue)>,
    error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(sampling_rate: f64, max_queue: usize) -> (Tracer, Spans, Arc<TraceStats>) {
        let stats = Arc::<TraceStats>::default();
        let options = Options {
            sampling_rate,
            max_queue,
        };
        let (tracer, spans) = Tracer::new(&options, stats.clone());
        (tracer, spans, stats)
    }

    fn summary() -> CallSummary {
        CallSummary {
            began_nanos: 7,
            took: Duration::from_nanos(5),
            domain: "d".to_owned(),
            descriptors: 1,
            answer: Ok("OK"),
        }
    }

    #[test]
    fn without_tracing_nothing_begins() {
        assert!(Tracer::default().begin(|_| None).is_none());
    }

    #[test]
    fn a_parent_decides_and_else_the_rate() {
        let parent = |flags: &str| format!("00-{:032x}-{:016x}-{flags}", 1, 2);
        let (sampled, unsampled) = (parent("01"), parent("00"));
        for (rate, alone) in [(0.0, false), (-1.0, false), (1.0, true), (7.0, true)] {
            let (tracer, _spans, _) = tracer(rate, 1);
            assert_eq!(tracer.begin(|_| None).is_some(), alone);
            let with = |parent: &str| {
                tracer
                    .begin(|name| (name == "traceparent").then_some(parent))
                    .is_some()
            };
            assert!(with(&sampled));
            assert!(!with(&unsampled));
        }
        let (tracer, _spans, _) = tracer(0.5, 1);
        let begun = (0..1000).filter(|_| tracer.begin(|_| None).is_some());
        assert!((350..650).contains(&begun.count()));
    }

    #[test]
    fn spans_hang_together_and_a_full_queue_drops_them() {
        let (tracer, mut spans, stats) = tracer(1.0, 3);
        for _ in 0..2 {
            tracer.begin(|_| None).unwrap().end(summary());
        }
        assert_eq!(stats.dropped.load(Relaxed), 1);
        let server = spans.0.try_recv().unwrap();
        let inner = spans.0.try_recv().unwrap();
        assert_eq!(server.parent_id, None);
        assert_eq!(inner.parent_id, Some(server.span_id));
        assert_eq!(inner.trace_id, server.trace_id);
        assert_eq!((server.start_nanos, server.end_nanos), (7, 12));
    }
}
