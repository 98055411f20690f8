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
            service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
        },
        google::rpc,
    },
};

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use tonic::{Code, metadata::MetadataMap, transport::Channel};

mod connect;
mod judge;
mod lost;
pub(crate) mod options;
mod stream;

use connect::{ControlPlaneConnection, ControlPlaneConnector};
use judge::{Objection, PushJudge};
use lost::{Presence, StreamEnd};
use options::{Options, headers, node};
use stream::{DiscoveryStream, StreamEvent};

/// If a control plane pushes nothing within this time after a reconnect, the client asks for everything. A restarted
/// control plane can count versions from 1 again, and confuse its own version with the one in use.
const RESYNC_AFTER: Duration = Duration::from_secs(2);

/// The reason for not believing an answer without rules.
const DOUBT: &str = "(push): the rules in use stay, because this push without rules answers a request without a \
                     version; send it again to remove them";

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
                Err(error) => error.into(),
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
        match (lost, connection.end.take()) {
            // The library knows that the call broke, and the connection knows why.
            (StreamEnd::Broken(_), Some(end)) => self.connector.explain(end).into(),
            // An error of HTTP/2 would have a code.
            (StreamEnd::Broken(status), None) if status.code() == Code::Unknown => self
                .connector
                .explain_own()
                .map_or(StreamEnd::Broken(status), StreamEnd::from),
            (lost, _) => lost,
        }
    }

    /// Calls the control plane and answers its pushes until the call ends.
    async fn call(&mut self, channel: Channel) -> Result<Infallible, StreamEnd> {
        let first = self.request(self.judge.version(), "", None);
        let headers = self.headers.clone();
        let mut call = DiscoveryStream::new(channel, headers, self.max_message_bytes, first);
        if !self.is_answered(&mut call).await? {
            // No refusal came either, so the call is open; a server may say so with the first push only.
            self.presence.find();
            if !self.judge.version().is_empty() {
                call.send(self.request("", "", None)).await;
                call.asked_for_all = true;
            }
        }
        loop {
            let event = call.next().await?;
            self.handle(&mut call, event).await;
        }
    }

    /// Whether the first push came soon. It is answered then.
    async fn is_answered(&mut self, call: &mut DiscoveryStream) -> Result<bool, StreamEnd> {
        let deadline = Instant::now() + RESYNC_AFTER;
        while let Ok(event) = timeout_at(deadline, call.next()).await {
            let event = event?;
            let is_push = matches!(event, StreamEvent::Push(_));
            self.handle(call, event).await;
            if is_push {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn handle(&mut self, call: &mut DiscoveryStream, event: StreamEvent) {
        self.presence.find();
        if let StreamEvent::Push(response) = event {
            self.answer(call, response).await;
        }
    }

    /// Accepts or refuses a push.
    async fn answer(&mut self, call: &mut DiscoveryStream, response: DiscoveryResponse) {
        let DiscoveryResponse {
            version_info,
            resources,
            type_url,
            nonce,
        } = response;
        let push = Push {
            type_url,
            resources,
        };
        let asked_for_all = std::mem::take(&mut call.asked_for_all);
        let judged = self.judge.judge(push, version_info, asked_for_all).await;
        let answer = |reason: Option<&str>| {
            let error = reason.map(|reason| rpc::Status {
                code: Code::InvalidArgument.into(),
                message: reason.to_owned(),
            });
            self.request(self.judge.version(), &nonce, error)
        };
        match judged {
            Ok(()) => call.send(answer(None)).await,
            Err(Objection::Refused(push)) => {
                call.refuse(push.digest, answer(Some(&push.reason))).await;
            }
            Err(Objection::Doubted { is_first }) => {
                if is_first {
                    self.presence.doubt();
                }
                // Without an answer, a control plane would not send other rules either.
                call.send(answer(Some(DOUBT))).await;
            }
        }
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
