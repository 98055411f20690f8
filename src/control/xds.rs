//! Receives rules from a control plane: Envoy's aggregated discovery service, state of the world.
//!
//! A push is compiled as files are. A valid push is taken into use and acknowledged; an invalid one changes nothing
//! and is refused with every reason. While the control plane is away the last valid rules stay in use.

use crate::{
    config::{
        self,
        message::{Push, TYPE_URL},
    },
    control::{reload::Intake, xds::options::XdsError},
    foundation::backoff::{Backoff, BackoffWaits, linear},
    observe::metrics::Metrics,
    service::grpc::proto::{
        envoy::{
            config::core::v3::Node,
            service::discovery::v3::{
                DiscoveryRequest,
                aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
            },
        },
        google::rpc,
    },
};

use std::{convert::Infallible, future::pending, mem, pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tonic::{
    Code, Request, Streaming,
    codegen::tokio_stream::{self, StreamExt as _, wrappers::ReceiverStream},
    metadata::MetadataMap,
    transport::Channel,
};

mod connect;
mod judge;
mod lost;
pub(crate) mod options;

use connect::{ControlPlaneConnection, ControlPlaneConnector};
use judge::PushJudge;
use lost::{Presence, StreamEnd};
use options::{Options, headers, node};

/// If a control plane pushes nothing within this time after a reconnect, the client asks for everything. A restarted
/// control plane can count versions from 1 again, and confuse its own version with the one in use.
const RESYNC_AFTER: Duration = Duration::from_secs(2);

/// Waits before a push is refused once more. Some control planes answer a refusal with the refused push at once, and
/// send another push only after the refusal, so a wait is short.
const REPEATED_REFUSALS: Backoff = Backoff {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(1),
    factor: 2.0,
    jitter: false,
};

/// A refused push that comes again after this time is no answer to the refusal.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// The last push that was refused in a call.
struct RefusedPush {
    digest: [u8; 32],
    /// When it was refused, or will be refused again.
    at: Instant,
    /// The waits before it is refused again.
    waits: BackoffWaits,
}

/// The client of one control plane.
pub(crate) struct Client {
    connector: ControlPlaneConnector,
    node: Node,
    headers: MetadataMap,
    options: Options,
    judge: PushJudge,
    presence: Presence,
}

impl Client {
    /// Makes a client, without connecting yet.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or a certificate cannot be used.
    pub(crate) fn new(
        options: Options,
        rules: config::rule_defaults::Options,
        intake: Intake,
        metrics: Arc<Metrics>,
    ) -> Result<Self, XdsError> {
        let connector = ControlPlaneConnector::new(&options)?;
        Ok(Self {
            presence: Presence::new(connector.target(), metrics),
            connector,
            node: node(&options),
            headers: headers(&options.headers)?,
            judge: PushJudge::new(options.empty, rules, intake),
            options,
        })
    }

    /// The address of the control plane.
    pub(crate) fn server(&self) -> &str {
        &self.presence.server
    }

    /// Receives rules until the process ends.
    pub(crate) async fn run(mut self) -> Infallible {
        let mut waits = BackoffWaits::new(self.options.backoff);
        let mut refusals = 0;
        loop {
            let lost = match self.connector.connect().await {
                Ok(connection) => {
                    let began = Instant::now();
                    let lost = self.use_connection(connection).await;
                    // A call that lasted was good, so the back-off starts again.
                    if began.elapsed() > self.options.backoff.max {
                        waits = BackoffWaits::new(self.options.backoff);
                        refusals = 0;
                    }
                    lost
                }
                Err(reason) => StreamEnd::Away(reason),
            };
            let wait = match (self.options.retry_interval, &lost) {
                (Some(interval), StreamEnd::Refused(_)) => {
                    refusals += 1;
                    linear(interval, refusals)
                }
                _ => waits.next_wait(),
            };
            self.presence.lose(&lost);
            sleep(wait).await;
        }
    }

    /// Calls the control plane until the call ends, and returns why it ended.
    async fn use_connection(&mut self, connection: ControlPlaneConnection) -> StreamEnd {
        let mut carrier = connection.carrier;
        let mut end = None;
        let mut call = Box::pin(self.call(connection.channel));
        let Err(lost) = loop {
            tokio::select! {
                biased;
                lost = &mut call => break lost,
                reason = &mut carrier, if end.is_none() => end = Some(reason),
            }
        };
        drop(call);
        let explained = match (&lost, end) {
            // The library knows that the call broke, and the carrier knows why.
            (StreamEnd::Broken(_), Some(end)) => Some(end),
            // An error of HTTP/2 would have a code.
            (StreamEnd::Broken(status), None) if status.code() == Code::Unknown => {
                self.connector.unanswered_ping()
            }
            _ => None,
        };
        explained.map_or(lost, StreamEnd::Away)
    }

    /// Calls the control plane and answers its pushes until the call ends.
    async fn call(&mut self, channel: Channel) -> Result<Infallible, StreamEnd> {
        // Room for one: a request is sent only after a response was read, or once in its place.
        let (requests, queue) = mpsc::channel(1);
        let first = self.request("", None);
        // A request for later, unless a push is answered before. At first it asks for all rules, if some are in use.
        let has_version = !first.version_info.is_empty();
        let for_all = has_version.then(|| DiscoveryRequest {
            version_info: String::new(),
            ..first.clone()
        });
        let mut later = Some((Instant::now() + RESYNC_AFTER, for_all));
        // Whether the last request asked for all rules, and no push has come since.
        let mut asked_for_all = false;
        let mut last_refusal: Option<RefusedPush> = None;
        let queue = tokio_stream::once(first).chain(ReceiverStream::new(queue));
        let mut request = Request::new(queue);
        *request.metadata_mut() = self.headers.clone();
        let service = AggregatedDiscoveryServiceClient::new(channel);
        let mut service = service.max_decoding_message_size(self.options.max_message_bytes);
        let mut opening = pin!(service.stream_aggregated_resources(request));
        let mut responses: Option<Streaming<_>> = None;
        loop {
            let due = later.as_ref().map_or_else(Instant::now, |(due, _)| *due);
            let request = tokio::select! {
                // Servers may send no header before the first push.
                opened = &mut opening, if responses.is_none() => {
                    let opened = opened.map_err(|status| StreamEnd::by(status, StreamEnd::Refused))?;
                    responses = Some(opened.into_inner());
                    self.presence.find();
                    None
                }
                next = async {
                    match &mut responses {
                        Some(responses) => responses.message().await,
                        None => pending().await,
                    }
                } => {
                    let next = next.map_err(|status| StreamEnd::by(status, StreamEnd::Failed))?;
                    let response = next.ok_or_else(|| StreamEnd::Away("it ended the call".to_owned()))?;
                    self.presence.find();
                    let push = Push {
                        type_url: response.type_url,
                        resources: response.resources,
                    };
                    let (digest, asked) = (push.digest(), mem::take(&mut asked_for_all));
                    let judged = self.judge.judge(push, digest, response.version_info, asked).await;
                    // Without an answer, a control plane would not send other rules either.
                    let answer = self.request(&response.nonce, judged.as_ref().err());
                    later = None;
                    let now = Instant::now();
                    match (judged, &mut last_refusal) {
                        (Err(_), Some(last))
                            if digest == last.digest && now < last.at + ANSWERED_WITHIN =>
                        {
                            last.at = now + last.waits.next_wait();
                            later = Some((last.at, Some(answer)));
                            None
                        }
                        (judged, last) => {
                            let waits = BackoffWaits::new(REPEATED_REFUSALS);
                            let began = |_| RefusedPush { digest, at: now, waits };
                            *last = judged.err().map(began).or(last.take());
                            Some(answer)
                        }
                    }
                }
                () = sleep_until(due), if later.is_some() => {
                    // The call was not refused, so it is open.
                    self.presence.find();
                    let request = later.take().and_then(|(_, request)| request);
                    asked_for_all = request.as_ref().is_some_and(|request| request.error_detail.is_none());
                    request
                }
            };
            if let Some(request) = request {
                // If the call has ended, the next response says why.
                let _ = requests.send(request).await;
            }
        }
    }

    fn request(&self, nonce: &str, refusal: Option<&String>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.judge.version.clone(),
            node: Some(self.node.clone()),
            resource_names: Vec::new(),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: refusal.map(|reason| rpc::Status {
                code: Code::InvalidArgument.into(),
                message: reason.clone(),
            }),
        }
    }
}
