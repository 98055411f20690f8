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
                DiscoveryRequest, DiscoveryResponse,
                aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
            },
        },
        google::rpc,
    },
};

use std::{convert::Infallible, mem, pin::pin, sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};
use tonic::{
    Code, Request,
    codegen::tokio_stream::{self, StreamExt as _, wrappers::ReceiverStream},
    metadata::MetadataMap,
    transport::Channel,
};

mod connect;
mod judge;
mod lost;
pub(crate) mod options;

use connect::{ControlPlaneConnection, ControlPlaneConnector};
use judge::{Objection, PushJudge};
use lost::{Presence, StreamEnd};
use options::{Options, headers, node};

/// If a control plane pushes nothing within this time after a reconnect, the client asks for everything. A restarted
/// control plane can count versions from 1 again, and confuse its own version with the one in use.
const RESYNC_AFTER: Duration = Duration::from_secs(2);

/// Waits before a push is refused once more. Some control planes answer a refusal with the refused push at once, and
/// without a pause both sides would do nothing else. A new push waits behind such a refusal, so a wait is short.
const REPEATED_REFUSALS: Backoff = Backoff {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(1),
    factor: 2.0,
    jitter: false,
};

/// A refused push that comes again after this time is no answer to the refusal.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// The client of one control plane.
#[derive(Debug)]
pub(crate) struct Client {
    connector: ControlPlaneConnector,
    node: Node,
    headers: MetadataMap,
    max_message_bytes: usize,
    backoff: Backoff,
    retry_interval: Option<Duration>,
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
        let connector =
            ControlPlaneConnector::new(&options.server, options.tls, options.keepalive)?;
        connector.check()?;
        Ok(Self {
            presence: Presence::new(connector.target(), metrics),
            connector,
            node: node(options.node_id, options.node_metadata),
            headers: headers(&options.headers)?,
            max_message_bytes: options.max_message_bytes,
            backoff: options.backoff,
            retry_interval: options.retry_interval,
            judge: PushJudge::new(options.empty, rules, intake),
        })
    }

    /// The address of the control plane.
    pub(crate) fn server(&self) -> &str {
        self.presence.server()
    }

    /// Receives rules until the process ends.
    pub(crate) async fn run(mut self) -> Infallible {
        let mut waits = BackoffWaits::new(self.backoff);
        let mut refusals = 0;
        loop {
            let lost = match self.connector.connect().await {
                Ok(connection) => {
                    let began = Instant::now();
                    let lost = self.use_connection(connection).await;
                    // A call that lasted was good, so the back-off starts again.
                    if began.elapsed() > self.backoff.max {
                        waits = BackoffWaits::new(self.backoff);
                        refusals = 0;
                    }
                    lost
                }
                Err(reason) => StreamEnd::Away(reason),
            };
            let wait = match (self.retry_interval, &lost) {
                (Some(interval), StreamEnd::Refused(_)) => {
                    refusals += 1;
                    linear(interval, refusals)
                }
                _ => waits.next_wait(),
            };
            self.presence.lose(&lost);
            tokio::time::sleep(wait).await;
        }
    }

    /// Calls the control plane until the call ends, and returns why it ended.
    async fn use_connection(&mut self, connection: ControlPlaneConnection) -> StreamEnd {
        let Err(lost) = self.call(connection.channel).await;
        let explained = match (&lost, connection.end.take()) {
            // The library knows that the call broke, and the connection knows why.
            (StreamEnd::Broken(_), Some(end)) => self.connector.explain(Some(end)),
            // An error of HTTP/2 would have a code.
            (StreamEnd::Broken(status), None) if status.code() == Code::Unknown => {
                self.connector.explain(None)
            }
            _ => None,
        };
        explained.map_or(lost, StreamEnd::Away)
    }

    /// Calls the control plane and answers its pushes until the call ends.
    async fn call(&mut self, channel: Channel) -> Result<Infallible, StreamEnd> {
        // Room for one: a request is sent only after a response was read, or once in its place.
        let (requests, queue) = mpsc::channel(1);
        let first = tokio_stream::once(self.request(self.judge.version(), "", None));
        let mut request = Request::new(first.chain(ReceiverStream::new(queue)));
        *request.metadata_mut() = self.headers.clone();
        let service = AggregatedDiscoveryServiceClient::new(channel);
        let mut service = service.max_decoding_message_size(self.max_message_bytes);
        let mut call = Call {
            requests,
            asked_for_all: false,
            last_refusal: None,
        };
        let mut opening = pin!(service.stream_aggregated_resources(request));
        let mut resync = pin!(tokio::time::sleep(RESYNC_AFTER));
        let mut is_late = false;
        // Servers may send no header before the first push.
        let opened = loop {
            tokio::select! {
                opened = &mut opening => break opened,
                () = &mut resync, if !is_late => {
                    is_late = true;
                    self.ask_for_all(&mut call).await;
                }
            }
        };
        let opened = opened.map_err(|status| StreamEnd::by(status, StreamEnd::Refused))?;
        self.presence.find();
        let mut responses = opened.into_inner();
        loop {
            tokio::select! {
                next = responses.message() => {
                    is_late = true;
                    let next = next.map_err(|status| StreamEnd::by(status, StreamEnd::Failed))?;
                    self.presence.find();
                    self.answer(&mut call, next.ok_or(StreamEnd::Ended)?).await;
                }
                () = &mut resync, if !is_late => {
                    is_late = true;
                    self.ask_for_all(&mut call).await;
                }
            }
        }
    }

    /// Asks for all rules, because no push has come. No refusal came either, so the call is open.
    async fn ask_for_all(&mut self, call: &mut Call) {
        self.presence.find();
        if !self.judge.version().is_empty() {
            call.send(self.request("", "", None)).await;
            call.asked_for_all = true;
        }
    }

    /// Accepts or refuses a push.
    async fn answer(&mut self, call: &mut Call, response: DiscoveryResponse) {
        let push = Push {
            type_url: response.type_url,
            resources: response.resources,
        };
        let asked_for_all = mem::take(&mut call.asked_for_all);
        let version = response.version_info;
        let judged = self.judge.judge(push, version, asked_for_all).await;
        let mut error = None;
        if let Err(objection) = judged {
            let Objection {
                digest,
                reason,
                is_first_doubt,
            } = objection;
            if is_first_doubt {
                self.presence.doubt();
            }
            call.wait_before_refusing(digest).await;
            error = Some(rpc::Status {
                code: Code::InvalidArgument.into(),
                message: reason,
            });
        }
        // Without an answer, a control plane would not send other rules either.
        let answer = self.request(self.judge.version(), &response.nonce, error);
        call.send(answer).await;
    }

    fn request(
        &self,
        version: &str,
        nonce: &str,
        error_detail: Option<rpc::Status>,
    ) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: version.to_owned(),
            node: Some(self.node.clone()),
            resource_names: Vec::new(),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail,
        }
    }
}

/// One call of a control plane.
struct Call {
    requests: mpsc::Sender<DiscoveryRequest>,
    /// Whether the last request named no version although one is in use, and no response has come since.
    asked_for_all: bool,
    /// The push that was refused last, when, and the waits before it is refused again.
    last_refusal: Option<([u8; 32], Instant, BackoffWaits)>,
}

impl Call {
    /// Sends a request. If the call has ended, the next response says why.
    async fn send(&self, request: DiscoveryRequest) {
        let _ = self.requests.send(request).await;
    }

    /// Waits before a push is refused that only answers its last refusal.
    async fn wait_before_refusing(&mut self, digest: [u8; 32]) {
        match &mut self.last_refusal {
            Some((refused, at, waits)) if *refused == digest && at.elapsed() < ANSWERED_WITHIN => {
                tokio::time::sleep(waits.next_wait()).await;
                *at = Instant::now();
            }
            last => *last = Some((digest, Instant::now(), BackoffWaits::new(REPEATED_REFUSALS))),
        }
    }
}
