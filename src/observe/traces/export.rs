//! Sends spans to an OpenTelemetry collector (OTLP 1.x), over HTTP or gRPC.
//!
//! It uses its own messages and the HTTP library that the program already has. OpenTelemetry's crates would bring a
//! second HTTP client and some forty crates for a message of a dozen fields.

use std::{sync::Arc, time::Duration};

use axum::body::{Body, to_bytes};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tonic::codegen::http::{HeaderName, HeaderValue, Request, header};

use super::{AttributeValue, Span, Spans, TraceStats};
use crate::{
    foundation::causes::chain,
    net::dial::{Dial, DialError},
};

/// The messages that `build.rs` generates from `proto/`.
#[allow(
    missing_debug_implementations,
    unreachable_pub,
    reason = "generated code"
)]
mod proto {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}

use proto::{
    AnyValue, ExportTraceServiceRequest, ExportTraceServiceResponse, InstrumentationScope,
    KeyValue, Resource, ResourceSpans, ScopeSpans, Status, any_value, span, status,
    trace_service_client::TraceServiceClient,
};

/// Most bytes that are read of an answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Longest time that a batch can take at the end of the process. A batch that has taken longer already is given up at
/// once: a collector that does not answer would only delay the end.
pub(crate) const LAST: Duration = Duration::from_secs(1);

/// How spans are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Protobuf in the body of a POST.
    Http,
    Grpc,
}

/// Where and how spans are sent.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub protocol: Protocol,
    pub dial: Dial,
    /// Path of the URL, for HTTP.
    pub path: String,
    /// Extra headers, such as an API key.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Attributes that identify this process.
    pub resource: Vec<(String, String)>,
    /// Most spans in one message.
    pub batch: usize,
    /// How long a span may wait for others.
    pub delay: Duration,
    /// How long the collector may take to answer.
    pub timeout: Duration,
}

/// How soon spans have to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Spans can wait for others.
    None,
    AtOnce,
    /// Spans are sent at once, and no others follow.
    Last,
}

/// Why a batch was lost.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("the collector cannot be reached")]
    Dial(#[from] DialError),
    #[error("no answer from the collector within {0:?}")]
    TimedOut(Duration),
    #[error("no answer from the collector before the end")]
    Ended,
    #[error("the collector closed the connection")]
    Http(#[from] hyper::Error),
    #[error("the collector answered {0}")]
    Answered(tonic::codegen::http::StatusCode),
    #[error("the collector answered {:?}: {}", .0.code(), .0.message())]
    Refused(Box<tonic::Status>),
    #[error("the collector rejected {0} spans: {1}")]
    Rejected(i64, String),
    #[error("the request cannot be made")]
    Request(#[from] tonic::codegen::http::Error),
}

#[derive(Debug)]
pub(crate) struct Exporter {
    pub spans: Spans,
    pub options: Options,
    pub stats: Arc<TraceStats>,
}

impl Exporter {
    /// Sends batches until the last spans are sent. A batch that cannot be sent is lost; the log reports the first loss
    /// and the recovery, once each.
    pub(crate) async fn run(&mut self, mut urgency: watch::Receiver<Urgency>) {
        let mut is_good = true;
        let mut batch = Vec::new();
        loop {
            let is_over = tokio::select! {
                changed = urgency.changed() => {
                    self.options.delay = Duration::ZERO;
                    // A dropped sender counts as the end.
                    changed.is_err() || *urgency.borrow_and_update() == Urgency::Last
                }
                () = gather(&mut self.spans, &mut batch, &self.options) => false,
            };
            if is_over {
                while let Ok(span) = self.spans.0.try_recv() {
                    batch.push(span);
                }
            }
            let mut rest = std::mem::take(&mut batch);
            while !rest.is_empty() {
                let later = rest.split_off(rest.len().min(self.options.batch));
                let sent = tokio::select! {
                    sent = self.send(&rest) => sent,
                    () = too_late(urgency.clone()) => Err(ExportError::Ended),
                };
                // Further attempts would only delay the end.
                let gives_up = *urgency.borrow() == Urgency::Last && sent.is_err();
                self.note(sent, rest.len(), &mut is_good);
                rest = later;
                if gives_up {
                    TraceStats::add(&self.stats.dropped, rest.len());
                    return;
                }
            }
            if is_over {
                return;
            }
        }
    }

    fn note(&self, sent: Result<(), ExportError>, spans: usize, is_good: &mut bool) {
        match sent {
            Ok(()) => {
                TraceStats::add(&self.stats.exported, spans);
                if !*is_good {
                    tracing::info!("the collector accepts spans again");
                }
                *is_good = true;
            }
            Err(error) => {
                TraceStats::add(&self.stats.dropped, spans);
                if *is_good {
                    tracing::warn!("spans are lost: {}", chain(&error));
                }
                *is_good = false;
            }
        }
    }

    async fn send(&self, spans: &[Span]) -> Result<(), ExportError> {
        let request = message(spans, &self.options.resource);
        let timeout = self.options.timeout;
        let sent = async {
            match self.options.protocol {
                Protocol::Http => self.post(&request).await,
                Protocol::Grpc => self.call(request).await,
            }
        };
        let answer = tokio::time::timeout(timeout, sent)
            .await
            .map_err(|_| ExportError::TimedOut(timeout))??;
        match answer.partial_success {
            Some(some) if some.rejected_spans > 0 => Err(ExportError::Rejected(
                some.rejected_spans,
                some.error_message,
            )),
            _ => Ok(()),
        }
    }

    async fn post(
        &self,
        message: &ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, ExportError> {
        let Options {
            dial,
            path,
            headers,
            ..
        } = &self.options;
        let mut request = Request::post(path)
            .header(header::HOST, dial.authority())
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::CONNECTION, "close")
            .body(Body::from(message.encode_to_vec()))?;
        request.headers_mut().extend(headers.iter().cloned());
        let stream = TokioIo::new(dial.stream().await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        let answered = async {
            let reply = sender.send_request(request).await?;
            let status = reply.status();
            if !status.is_success() {
                return Err(ExportError::Answered(status));
            }
            let body = to_bytes(Body::new(reply.into_body()), MAX_ANSWER_BYTES).await;
            // A success with an unreadable body is still a success.
            let answer = body
                .ok()
                .and_then(|body| ExportTraceServiceResponse::decode(body).ok());
            Ok(answer.unwrap_or_default())
        };
        tokio::pin!(answered);
        tokio::select! {
            answer = &mut answered => answer,
            ended = connection => {
                ended?;
                answered.await
            }
        }
    }

    async fn call(
        &self,
        message: ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, ExportError> {
        let Options {
            dial,
            timeout,
            headers,
            ..
        } = &self.options;
        let channel = dial.channel(*timeout).await?;
        let mut request = tonic::Request::new(message);
        let mut head = request.metadata().clone().into_headers();
        head.extend(headers.iter().cloned());
        *request.metadata_mut() = tonic::metadata::MetadataMap::from_headers(head);
        let answer = TraceServiceClient::new(channel).export(request).await;
        let answer = answer.map_err(|status| ExportError::Refused(Box::new(status)))?;
        Ok(answer.into_inner())
    }
}

/// Waits until the process is ending and a batch that began at this call has taken [`LAST`].
async fn too_late(mut urgency: watch::Receiver<Urgency>) {
    let latest = Instant::now() + LAST;
    // A dropped sender counts as the end.
    let _ = urgency.wait_for(|urgency| *urgency == Urgency::Last).await;
    sleep_until(latest).await;
}

/// Waits until a batch is full, or its first span has waited for the whole delay.
async fn gather(spans: &mut Spans, batch: &mut Vec<Span>, options: &Options) {
    let Spans(queue) = spans;
    if batch.is_empty() {
        match queue.recv().await {
            Some(first) => batch.push(first),
            // No tracer is left. The stop signal ends this wait.
            None => std::future::pending().await,
        }
    }
    let full = async {
        while batch.len() < options.batch {
            match queue.recv().await {
                Some(next) => batch.push(next),
                None => std::future::pending().await,
            }
        }
    };
    // When the time is up, the batch is sent as it is.
    let _ = tokio::time::timeout(options.delay, full).await;
}

fn text(key: &str, value: &str) -> KeyValue {
    pair(key, any_value::Value::StringValue(value.to_owned()))
}

fn pair(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

fn message(spans: &[Span], resource: &[(String, String)]) -> ExportTraceServiceRequest {
    let attributes = resource.iter().map(|(key, value)| text(key, value));
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: attributes.collect(),
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(InstrumentationScope {
                    name: env!("CARGO_PKG_NAME").to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                spans: spans.iter().map(wire).collect(),
            }],
        }],
    }
}

fn wire(span: &Span) -> proto::Span {
    let attribute = |(key, value): &(&'static str, AttributeValue)| match value {
        AttributeValue::Text(value) => text(key, value),
        AttributeValue::Number(number) => pair(key, any_value::Value::IntValue(*number)),
    };
    let kind = if span.is_server {
        span::Kind::Server
    } else {
        span::Kind::Internal
    };
    let id = |id: u64| id.to_be_bytes().to_vec();
    proto::Span {
        trace_id: span.trace_id.to_be_bytes().to_vec(),
        span_id: id(span.span_id),
        trace_state: span.state.clone(),
        parent_span_id: span.parent_id.map(id).unwrap_or_default(),
        name: span.name.to_owned(),
        kind: kind.into(),
        start_time_unix_nano: span.start_nanos,
        end_time_unix_nano: span.end_nanos,
        attributes: span.attributes.iter().map(attribute).collect(),
        status: span.error.as_ref().map(|error| Status {
            message: error.clone(),
            code: status::Code::Error.into(),
        }),
    }
}
