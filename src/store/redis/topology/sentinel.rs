//! Asks the sentinels which server is the master.
//!
//! The `redis` crate asks one sentinel after the other and believes the first that answers. Here all are asked at
//! once and vote: a silent one holds up no failover, and one that is cut off does not name the old master.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bb8_redis::redis;
use tokio::task::JoinSet;

use super::address::reported;
use crate::{
    net::endpoint::Endpoint,
    store::redis::{
        batch::packed::PackedCommands,
        connection::Connection,
        failure::NodeFailure,
        pool::Connector,
        probe::{MARGIN, is_master},
        wait::within,
    },
};

/// How long a sentinel may take. A slower one has no vote this time.
const PATIENCE: Duration = Duration::from_millis(250);

/// The sentinels of one master, and connections to them.
#[derive(Debug)]
pub(crate) struct Sentinels {
    connector: Arc<Connector>,
    endpoints: Vec<Endpoint>,
    master: String,
    connections: HashMap<Endpoint, Connection>,
}

/// The answer of one sentinel.
type Vote = Result<(Connection, Option<Endpoint>), NodeFailure>;

impl Sentinels {
    pub(crate) fn new(connector: Arc<Connector>, endpoints: Vec<Endpoint>, master: String) -> Self {
        Self {
            connector,
            endpoints,
            master,
            connections: HashMap::new(),
        }
    }

    /// The master by most votes; among equals, the one named by the sentinel that comes first.
    ///
    /// # Errors
    ///
    /// The failures of all sentinels, if none names a master.
    pub(crate) async fn master(&mut self) -> Result<Endpoint, String> {
        let mut asking = JoinSet::new();
        for (order, endpoint) in self.endpoints.iter().enumerate() {
            let connection = self.connections.remove(endpoint);
            let connector = self.connector.clone();
            let (endpoint, master) = (endpoint.clone(), self.master.clone());
            asking.spawn(async move {
                let vote = within(
                    PATIENCE + MARGIN,
                    ask(&connector, &endpoint, connection, &master),
                )
                .await;
                (order, endpoint, vote.unwrap_or(Err(NodeFailure::Silent)))
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(order, ..)| *order);
        let mut votes: Vec<(Endpoint, usize)> = Vec::new();
        let mut failures = Vec::new();
        for (_, endpoint, vote) in answers {
            match self.hear(&endpoint, vote) {
                Ok(master) => match votes.iter_mut().find(|(known, _)| *known == master) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((master, 1)),
                },
                Err(failure) => failures.push(failure),
            }
        }
        // The last of equals would win, but the first is wanted.
        let most = votes.into_iter().rev().max_by_key(|(_, count)| *count);
        most.map(|(master, _)| master)
            .ok_or_else(|| failures.join("; "))
    }

    fn hear(&mut self, sentinel: &Endpoint, vote: Vote) -> Result<Endpoint, String> {
        match vote {
            Ok((connection, master)) => {
                self.connections.insert(sentinel.clone(), connection);
                master.ok_or_else(|| format!("sentinel {sentinel} knows no master of this name"))
            }
            Err(failure) => Err(format!("sentinel {sentinel} {failure}")),
        }
    }
}

async fn ask(
    connector: &Connector,
    endpoint: &Endpoint,
    connection: Option<Connection>,
    master: &str,
) -> Vote {
    let mut connection = match connection {
        Some(connection) => connection,
        None => connector.connect_in(PATIENCE, endpoint).await?,
    };
    let words = [
        b"SENTINEL",
        &b"get-master-addr-by-name"[..],
        master.as_bytes(),
    ];
    let replies = connection.ask(&PackedCommands::one(&words)).await?;
    let reply = replies.into_iter().next();
    if let Some(failure) = reply.as_ref().and_then(NodeFailure::of_greeting) {
        return Err(failure);
    }
    let reported = reply.and_then(|reply| {
        let (host, port): (String, u16) = redis::from_redis_value(reply).ok()?;
        Some(reported(&host, port, endpoint))
    });
    Ok((connection, reported))
}

/// Whether the server at `endpoint` itself reports that it is a master: sentinels may be the last to notice
/// a failover.
pub(crate) async fn is_master_at(
    connector: &Connector,
    endpoint: &Endpoint,
) -> Result<bool, NodeFailure> {
    let ask = async {
        let mut connection = connector.connect(endpoint).await?;
        let replies = connection.ask(&PackedCommands::one(&[b"ROLE"])).await?;
        match replies.first().and_then(NodeFailure::of_reply) {
            Some(failure) => Err(failure),
            None => Ok(replies.first().is_some_and(is_master)),
        }
    };
    within(connector.timeout, ask)
        .await
        .unwrap_or(Err(NodeFailure::Silent))
}
