//! Sends spans to an OpenTelemetry collector by OpenTelemetry's own SDK, over HTTP or gRPC.
//!
//! The SDK has a thread for the queue, which waits for each export. The exports themselves run on the runtime that
//! makes the provider, and connect as other clients of tollgate do.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::Duration,
};

use axum::body::Body;
use opentelemetry::{InstrumentationScope, KeyValue, trace::TracerProvider as _};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    resource::TelemetryResourceDetector,
    trace::{
        self as sdk, BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData,
    },
};
use tokio::runtime::Handle;
use tonic::{
    codegen::http::{HeaderMap, HeaderValue, header},
    metadata::MetadataMap,
};

use super::{Sampling, TraceStats, Tracer, Tracing};
use crate::{
    foundation::{causes::chain, lock::lock, log_throttle::LogThrottle, random},
    net::dial::{Dial, exchange},
};

/// How spans are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtlpTransport {
    /// Protobuf in the body of a POST.
    Http,
    Grpc,
}

/// Where and how spans are sent, as far as the SDK does not read it from the environment.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) sampling: Sampling,
    pub(crate) transport: OtlpTransport,
    pub(crate) dial: Dial,
    /// The path of the collector's URL, over HTTP.
    pub(crate) path: String,
    /// Headers of each message.
    pub(crate) headers: Vec<(String, String)>,
    /// How long a batch may take, with all attempts.
    pub(crate) timeout: Duration,
    pub(crate) max_queue: usize,
    /// Attributes of this process; later ones replace earlier ones.
    pub(crate) attributes: Vec<(String, String)>,
}

/// The SDK's text and a URL can have a password.
#[derive(Debug, thiserror::Error)]
#[error("the URL of the collector of spans cannot be used")]
pub(crate) struct BadCollectorUrl;

/// Starts the export of spans on the runtime of the caller. The provider ends it.
///
/// # Errors
///
/// If the URL of the collector cannot be used.
pub(crate) fn start(
    options: Options,
    stats: Arc<TraceStats>,
) -> Result<(Tracer, SdkTracerProvider), BadCollectorUrl> {
    let connection_error = Arc::default();
    let exporter = CountingExporter {
        exporter: Arc::new(exporter(&options, &connection_error)?),
        connection_error,
        runtime: Handle::current(),
        timeout: options.timeout,
        stats: stats.clone(),
        throttle: LogThrottle::new(),
        has_reported: AtomicBool::new(false),
    };
    let batches = BatchConfigBuilder::default().with_max_queue_size(options.max_queue);
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches.build());
    let provider = SdkTracerProvider::builder()
        // Only sampled calls make spans.
        .with_sampler(Sampler::AlwaysOn)
        .with_resource(resource(&options.attributes))
        .with_span_processor(processor.build())
        .build();
    let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
        .with_version(env!("CARGO_PKG_VERSION"))
        .build();
    let tracing = Tracing {
        sampling: options.sampling,
        tracer: provider.tracer_with_scope(scope),
        max_queue: options.max_queue,
        stats,
    };
    Ok((Tracer(Some(Arc::new(tracing))), provider))
}

fn resource(given: &[(String, String)]) -> Resource {
    let given = given.iter().cloned();
    Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "RateLimit"),
            KeyValue::new("service.instance.id", random::uuid()),
        ])
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes(given.map(|(key, value)| KeyValue::new(key, value)))
        .build()
}

fn exporter(
    options: &Options,
    connection_error: &Arc<Mutex<Option<String>>>,
) -> Result<SpanExporter, BadCollectorUrl> {
    let (builder, dial) = (SpanExporter::builder(), options.dial.clone());
    let headers: HashMap<_, _> = options.headers.iter().cloned().collect();
    let mut headers = HeaderMap::try_from(&headers).map_err(|_| BadCollectorUrl)?;
    let built = match options.transport {
        OtlpTransport::Grpc => {
            let channel = dial.lasting_channel().map_err(|_| BadCollectorUrl)?;
            let builder = builder.with_tonic().with_channel(channel);
            let builder = builder.with_metadata(MetadataMap::from_headers(headers));
            builder.with_timeout(options.timeout).build()
        }
        OtlpTransport::Http => {
            let authority = HeaderValue::try_from(dial.authority()).map_err(|_| BadCollectorUrl)?;
            headers.insert(header::HOST, authority);
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            let client = DialedClient {
                dial,
                headers,
                connection_error: connection_error.clone(),
            };
            let builder = builder.with_http().with_protocol(Protocol::HttpBinary);
            // Only its path is sent; the connection is that of the client.
            let builder = builder.with_endpoint(format!("http://localhost{}", options.path));
            let builder = builder.with_http_client(client);
            builder.with_timeout(options.timeout).build()
        }
    };
    built.map_err(|_| BadCollectorUrl)
}

/// Sends each request on a new connection.
#[derive(Debug)]
struct DialedClient {
    dial: Dial,
    headers: HeaderMap,
    /// The latest error, which the SDK does not pass on.
    connection_error: Arc<Mutex<Option<String>>>,
}

/// An answer that takes its time. The type is that of the `async-trait` crate.
type Answered<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for DialedClient {
    fn send_bytes<'s, 'a>(&'s self, request: Request<Bytes>) -> Answered<'a>
    where
        's: 'a,
        Self: 'a,
    {
        let mut request = request.map(Body::from);
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = path.into();
        }
        request.headers_mut().extend(self.headers.clone());
        Box::pin(async move {
            let answered = exchange(&self.dial, request).await;
            let (status, body) = answered.inspect_err(|error| {
                *lock(&self.connection_error) = Some(chain(error));
            })?;
            let mut answer = Response::new(body.into());
            *answer.status_mut() = status;
            Ok(answer)
        })
    }
}

/// Counts exported and lost spans. The log has one line for a loss, at most each minute, and one for the recovery.
#[derive(Debug)]
struct CountingExporter {
    exporter: Arc<SpanExporter>,
    connection_error: Arc<Mutex<Option<String>>>,
    runtime: Handle,
    timeout: Duration,
    stats: Arc<TraceStats>,
    throttle: LogThrottle,
    /// Whether the log has reported a loss, and no recovery since.
    has_reported: AtomicBool,
}

impl CountingExporter {
    fn note(&self, sent: &OTelSdkResult, spans: usize) {
        let stats = &self.stats;
        stats.waiting.fetch_sub(spans, AcqRel);
        let cause = lock(&self.connection_error).take();
        let Err(error) = sent else {
            TraceStats::add(&stats.exported, spans);
            if self.has_reported.swap(false, Relaxed) {
                tracing::info!("the collector accepts spans again");
            }
            return;
        };
        TraceStats::add(&stats.dropped, spans);
        if !self.has_reported.load(Relaxed) && self.throttle.may_log() {
            self.has_reported.store(true, Relaxed);
            match (error, cause) {
                (OTelSdkError::Timeout(time), None) => {
                    tracing::warn!("spans are lost: no answer from the collector within {time:?}");
                }
                (_, Some(cause)) => tracing::warn!("spans are lost: {cause}"),
                (error, None) => tracing::warn!("spans are lost: {error}"),
            }
        }
    }
}

impl sdk::SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (spans, exporter, timeout) = (batch.len(), self.exporter.clone(), self.timeout);
        let sending = self.runtime.spawn(async move {
            let sent = tokio::time::timeout(timeout, exporter.export(batch)).await;
            sent.unwrap_or(Err(OTelSdkError::Timeout(timeout)))
        });
        let sent = sending.await;
        let sent = sent.unwrap_or_else(|end| Err(OTelSdkError::InternalFailure(end.to_string())));
        self.note(&sent, spans);
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        // It precedes the first export, so nothing else holds the exporter.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}
