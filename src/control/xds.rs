//! Receives rules from a control plane: Envoy's aggregated discovery service, state of the world.
//!
//! A push is compiled as files are. A valid push is taken into use and acknowledged; an invalid one changes nothing
//! and is refused with every reason. While the control plane is away the last valid rules stay in use.

use self::error::XdsError;

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use tonic::{Code, metadata::MetadataMap, transport::Channel};

use crate::{
    config::{
        self,
        message::{Push, TYPE_URL},
    },
    control::reload::Intake,
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

mod connect;
mod end;
pub(crate) mod error;
mod identity;
mod judge;
pub(crate) mod options;
mod presence;
mod refusal;
mod stream;

use connect::ControlPlaneConnector;
pub(crate) use connect::ControlPlaneTls;
use end::StreamEnd;
use identity::{headers, node};
use judge::PushJudge;
use options::Options;
use presence::Presence;
use stream::DiscoveryStream;

/// If a control plane pushes nothing within this time after a reconnect, the client asks for everything. A restarted
/// control plane may count versions from 1 again, and confuse its own version with the one in use.
const RESYNC_AFTER: Duration = Duration::from_secs(2);

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
        rules: config::options::Options,
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
                Ok(channel) => {
                    let began = Instant::now();
                    let Err(lost) = self.call(channel).await;
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

    /// Calls the control plane and answers its pushes until the call ends.
    async fn call(&mut self, channel: Channel) -> Result<Infallible, StreamEnd> {
        let version = self.judge.version().to_owned();
        let first = self.request(&version, "", None);
        let headers = self.headers.clone();
        let mut call = DiscoveryStream::new(
            channel,
            headers,
            self.max_message_bytes,
            self.backoff,
            first,
        );
        if let Ok(response) = tokio::time::timeout(RESYNC_AFTER, call.next()).await {
            self.answer(&mut call, response?).await?;
        } else if !version.is_empty() {
            call.send(self.request("", "", None)).await?;
        }
        loop {
            let response = call.next().await?;
            self.answer(&mut call, response).await?;
        }
    }

    /// Accepts or refuses a push.
    async fn answer(
        &mut self,
        call: &mut DiscoveryStream,
        response: DiscoveryResponse,
    ) -> Result<(), StreamEnd> {
        self.presence.find();
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
        let error = match self.judge.judge(push, version_info).await {
            Ok(()) => {
                call.refusals = BackoffWaits::new(self.backoff);
                call.is_refusing = false;
                None
            }
            Err(refused) => {
                // Some control planes answer a refusal at once with the refused push.
                if call.is_refusing {
                    tokio::time::sleep(call.refusals.next_wait()).await;
                }
                call.is_refusing = true;
                Some(rpc::Status {
                    code: Code::InvalidArgument.into(),
                    message: refused.reason,
                })
            }
        };
        call.send(self.request(self.judge.version(), &nonce, error))
            .await
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
