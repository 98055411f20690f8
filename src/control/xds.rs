//! Receives rules from a control plane: Envoy's aggregated discovery service, state of the world.
//!
//! A push is compiled as files are. A valid push is taken into use and acknowledged; an invalid one changes nothing
//! and is refused with every reason. While the control plane is away the last valid rules stay in use.

use self::error::XdsError;

use std::{
    convert::Infallible,
    fmt::{self, Write as _},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tonic::{
    Code, Request, Response, Status, Streaming,
    codegen::tokio_stream::{self, StreamExt as _, wrappers::ReceiverStream},
    metadata::MetadataMap,
    transport::Channel,
};

use crate::{
    config::{
        self,
        fault::{Fault, Problem},
        message::{Push, TYPE_URL},
    },
    control::reload::{Intake, report},
    foundation::{
        backoff::{Backoff, BackoffWaits, linear},
        causes::chain,
    },
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

mod connect;
pub(crate) mod error;
mod identity;

use connect::ControlPlaneConnector;
pub(crate) use connect::ControlPlaneTls;
use identity::{headers, node};

/// gRPC's default for the largest message, 4 MiB.
pub(crate) const DEFAULT_MESSAGE_BYTES: usize = 4 << 20;

/// Bound on the text of a refusal, in bytes: a quarter of what control planes read by default. A push of thousands of
/// rules can have as many errors.
const MAX_REFUSAL_BYTES: usize = 1 << 20;

/// If a control plane pushes nothing within this time after a reconnect, the client asks for everything. A restarted
/// control plane may count versions from 1 again, and confuse its own version with the one in use.
const RESYNC_AFTER: Duration = Duration::from_secs(2);

/// How to get rules from a control plane.
#[derive(Clone)]
pub(crate) struct Options {
    /// `host:port` or `unix:path`, as gRPC writes targets.
    pub server: String,
    pub node_id: String,
    pub node_metadata: Vec<(String, String)>,
    /// Each is `name:value`, with one colon. They may be secret.
    pub headers: Vec<String>,
    /// `None` means without TLS.
    pub tls: Option<ControlPlaneTls>,
    pub empty: OnEmptyPush,
    /// Largest message accepted.
    pub max_message_bytes: usize,
    pub backoff: Backoff,
    /// The wait after a refused call, times the refusals in a row; `None` means the usual back-off.
    pub retry_interval: Option<Duration>,
    /// How often to ping a silent control plane; `None` means never.
    pub keepalive: Option<Duration>,
}

impl fmt::Debug for Options {
    /// Omits fields that may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("server", &self.server)
            .field("node_id", &self.node_id)
            .finish_non_exhaustive()
    }
}

/// The effect of a push without any rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnEmptyPush {
    /// It is accepted like any other: then nothing is limited.
    Allow,
    /// It is refused while there are rules.
    Keep,
}

/// Why a call ended.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error(transparent)]
    Connect(#[from] connect::ConnectError),
    /// The server answered the call with an error only.
    #[error("it refuses the call with {:?}: {}", .0.code(), .0.message())]
    Refused(Status),
    #[error("{:?}: {}", .0.code(), .0.message())]
    Broken(Status),
    #[error("it ended the call")]
    Ended,
}

impl StreamEnd {
    /// Whether a message arrived that could not be read.
    fn is_unreadable(&self) -> bool {
        let unreadable = [Code::OutOfRange, Code::InvalidArgument];
        matches!(self, Self::Broken(status) if unreadable.contains(&status.code()))
    }

    /// Advice for the operator.
    fn hint(&self) -> &'static str {
        match self {
            Self::Broken(status) if status.code() == Code::OutOfRange => {
                " (XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES, --xds-max-message-bytes, allows larger pushes)"
            }
            Self::Connect(_) | Self::Refused(_) | Self::Broken(_) | Self::Ended => "",
        }
    }
}

/// The client of one control plane.
#[derive(Debug)]
pub(crate) struct Client {
    connector: ControlPlaneConnector,
    node: Node,
    headers: MetadataMap,
    max_message_bytes: usize,
    empty: OnEmptyPush,
    backoff: Backoff,
    retry_interval: Option<Duration>,
    rules: config::options::Options,
    intake: Intake,
    metrics: Arc<Metrics>,
    accepted: AcceptedPush,
    refused: Option<RefusedPush>,
    /// The reason in the log why the control plane is away; `None` while it is connected.
    reported: Option<String>,
}

/// The last accepted push.
#[derive(Debug, Default)]
struct AcceptedPush {
    /// Empty if there is none.
    version: String,
    digest: Option<[u8; 32]>,
}

/// The last push, if it was refused.
#[derive(Debug)]
struct RefusedPush {
    digest: [u8; 32],
    reason: String,
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
        metrics.record_control_plane(false);
        Ok(Self {
            connector,
            node: node(options.node_id, options.node_metadata),
            headers: headers(&options.headers)?,
            max_message_bytes: options.max_message_bytes,
            empty: options.empty,
            backoff: options.backoff,
            retry_interval: options.retry_interval,
            rules,
            intake,
            metrics,
            accepted: AcceptedPush::default(),
            refused: None,
            reported: None,
        })
    }

    /// The address of the control plane.
    pub(crate) fn server(&self) -> String {
        self.connector.target()
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
            self.lose(&lost);
            tokio::time::sleep(wait).await;
        }
    }

    /// Calls the control plane and answers its pushes until the call ends.
    async fn call(&mut self, channel: Channel) -> Result<Infallible, StreamEnd> {
        let version = self.accepted.version.clone();
        let mut call = DiscoveryStream::new(self, channel, self.request(&version, "", None));
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
        self.find();
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
        let error = match self.judge(push, version_info).await {
            Ok(()) => {
                call.refusals = BackoffWaits::new(self.backoff);
                call.is_refusing = false;
                None
            }
            Err(reason) => {
                // Some control planes answer a refusal at once with the refused push.
                if call.is_refusing {
                    tokio::time::sleep(call.refusals.next_wait()).await;
                }
                call.is_refusing = true;
                Some(rpc::Status {
                    code: Code::InvalidArgument.into(),
                    message: reason,
                })
            }
        };
        let version = self.accepted.version.clone();
        call.send(self.request(&version, &nonce, error)).await
    }

    /// Accepts a push, unless it equals the rules in use or the one refused last.
    ///
    /// # Errors
    ///
    /// All problems with the push; the rules in use then stay.
    async fn judge(&mut self, push: Push, version: String) -> Result<(), String> {
        let digest = push.digest();
        if let Some(refused) = &self.refused
            && refused.digest == digest
        {
            return Err(refused.reason.clone());
        }
        if self.accepted.digest != Some(digest)
            && let Err(reason) = self.take(push).await
        {
            let refused = RefusedPush {
                digest,
                reason: reason.clone(),
            };
            self.refused = Some(refused);
            return Err(reason);
        }
        self.refused = None;
        self.accepted = AcceptedPush {
            version,
            digest: Some(digest),
        };
        Ok(())
    }

    /// Compiles a push and takes it into use.
    async fn take(&self, push: Push) -> Result<(), String> {
        let keeps = self.empty == OnEmptyPush::Keep && self.intake.has_domains();
        let (rules, intake) = (self.rules, self.intake.clone());
        // Thousands of rules take a while to compile; the dispatcher has other work meanwhile.
        let taken = tokio::task::spawn_blocking(move || {
            let loaded = if push.is_empty() && keeps {
                Err(vec![push.problem(Fault::EmptyPush)])
            } else {
                push.compile(rules)
            };
            intake.take(loaded).map_err(|problems| {
                report(&problems);
                refusal(&problems)
            })
        });
        let panicked = |_| {
            tracing::error!("reading a push panicked; it is refused");
            "reading it panicked".to_owned()
        };
        taken.await.map_err(panicked)?
    }

    /// Logs that the control plane is back, if it was away.
    fn find(&mut self) {
        self.metrics.record_control_plane(true);
        if self.reported.take().is_some() {
            tracing::info!("the control plane at {} is back", self.server());
        }
    }

    /// Logs that the control plane is away, once for each new reason.
    fn lose(&mut self, lost: &StreamEnd) {
        self.metrics.record_control_plane(false);
        if lost.is_unreadable() {
            self.metrics
                .record_load(crate::service::grpc::now(), Err(&[]));
        }
        let server = self.server();
        // The server's text may have line breaks; a log entry must stay one line.
        let reason = format!("{}{}", chain(lost), lost.hint()).replace(char::is_control, "?");
        if self.reported.as_ref() == Some(&reason) {
            tracing::debug!("the control plane at {server} is still away: {reason}");
        } else {
            tracing::warn!(
                "the control plane at {server} is away: {reason}; the rules stay as they are"
            );
            self.reported = Some(reason);
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

/// One call of a control plane.
struct DiscoveryStream {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Responses,
    /// Whether the last push was refused.
    is_refusing: bool,
    /// The waits before further refusals.
    refusals: BackoffWaits,
}

enum Responses {
    /// The call has no header yet: servers may send none before the first push.
    Opening(Opening),
    Open(Box<Streaming<DiscoveryResponse>>),
}

type Opening =
    Pin<Box<dyn Future<Output = Result<Response<Streaming<DiscoveryResponse>>, Status>> + Send>>;

impl DiscoveryStream {
    fn new(client: &Client, channel: Channel, first: DiscoveryRequest) -> Self {
        // Room for one: a request is sent only after a response was read.
        let (requests, queue) = mpsc::channel(1);
        let first = tokio_stream::once(first);
        let mut request = Request::new(first.chain(ReceiverStream::new(queue)));
        *request.metadata_mut() = client.headers.clone();
        let mut service = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(client.max_message_bytes);
        let opening = async move { service.stream_aggregated_resources(request).await };
        Self {
            requests,
            responses: Responses::Opening(Box::pin(opening)),
            is_refusing: false,
            refusals: BackoffWaits::new(client.backoff),
        }
    }

    /// The next response, without a time limit. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<DiscoveryResponse, StreamEnd> {
        loop {
            match &mut self.responses {
                Responses::Opening(opening) => {
                    let opened = opening.await.map_err(refused)?;
                    self.responses = Responses::Open(Box::new(opened.into_inner()));
                }
                Responses::Open(responses) => {
                    let next = responses.message().await.map_err(StreamEnd::Broken)?;
                    return next.ok_or(StreamEnd::Ended);
                }
            }
        }
    }

    async fn send(&mut self, request: DiscoveryRequest) -> Result<(), StreamEnd> {
        let sent = self.requests.send(request).await;
        sent.map_err(|_| StreamEnd::Ended)
    }
}

/// A status without a local `source` came from the peer.
fn refused(status: Status) -> StreamEnd {
    match std::error::Error::source(&status) {
        Some(_) => StreamEnd::Broken(status),
        None => StreamEnd::Refused(status),
    }
}

/// All errors for the control plane, one per line.
fn refusal(problems: &[Problem]) -> String {
    let errors = || {
        problems
            .iter()
            .filter(|problem| !problem.fault.is_warning())
    };
    let mut text = String::new();
    for (reported, problem) in errors().enumerate() {
        let line = problem.to_string();
        if text.len() + line.len() > MAX_REFUSAL_BYTES {
            let _ = write!(text, "\nand {} more", errors().count() - reported);
            break;
        }
        if reported > 0 {
            text.push('\n');
        }
        text.push_str(&line);
    }
    text
}
