//! Asks the sentinels which server is the master.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bb8_redis::redis;
use tokio::task::JoinSet;

use super::{
    address::Place, connection::Connector, link::Link, packed::Packed, probe::is_master,
    running::within, trouble::Trouble,
};

/// How long a sentinel may take. A slower one has no vote this time.
const PATIENCE: Duration = Duration::from_millis(250);

/// The sentinels of one master, and connections to them.
#[derive(Debug)]
pub(super) struct Sentinels {
    connector: Arc<Connector>,
    places: Vec<Place>,
    master: String,
    links: HashMap<Place, Link>,
}

/// The answer of one sentinel.
type Vote = Result<(Link, Option<Place>), Trouble>;

impl Sentinels {
    pub(super) fn new(connector: Arc<Connector>, places: Vec<Place>, master: String) -> Self {
        Self {
            connector,
            places,
            master,
            links: HashMap::new(),
        }
    }

    /// The master by most votes; of those with as many, the one named by the sentinel that comes first.
    ///
    /// # Errors
    ///
    /// The failures of all sentinels, if none names a master.
    pub(super) async fn master(&mut self) -> Result<Place, String> {
        let mut asking = JoinSet::new();
        for (order, place) in self.places.iter().enumerate() {
            let link = self.links.remove(place);
            let connector = self.connector.clone();
            let (place, master) = (place.clone(), self.master.clone());
            asking.spawn(async move {
                let vote = within(PATIENCE, ask(&connector, &place, link, &master)).await;
                (order, place, vote.unwrap_or(Err(Trouble::Silent)))
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(order, ..)| *order);
        let mut votes: Vec<(Place, usize)> = Vec::new();
        let mut failures = Vec::new();
        for (_, place, vote) in answers {
            match self.hear(&place, vote) {
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

    fn hear(&mut self, sentinel: &Place, vote: Vote) -> Result<Place, String> {
        match vote {
            Ok((link, master)) => {
                self.links.insert(sentinel.clone(), link);
                master.ok_or_else(|| format!("sentinel {sentinel} knows no master of this name"))
            }
            Err(trouble) => Err(format!("sentinel {sentinel} {trouble}")),
        }
    }
}

async fn ask(connector: &Connector, place: &Place, link: Option<Link>, master: &str) -> Vote {
    let mut link = match link {
        Some(link) => link,
        None => connector.connect(place).await?,
    };
    let words = [
        b"SENTINEL",
        &b"get-master-addr-by-name"[..],
        master.as_bytes(),
    ];
    let replies = link.ask(&Packed::one(&words)).await?;
    let reply = replies.into_iter().next();
    if let Some(trouble) = reply.as_ref().and_then(Trouble::of_reply) {
        return Err(trouble);
    }
    let told = reply.and_then(|reply| {
        let (host, port): (String, u16) = redis::from_redis_value(reply).ok()?;
        Some(Place::told(&host, port, place))
    });
    Ok((link, told))
}

/// Whether the server at `place` itself reports that it is a master: sentinels may be the last to notice
/// a failover.
pub(super) async fn is_master_at(connector: &Connector, place: &Place) -> Result<bool, Trouble> {
    let ask = async {
        let mut link = connector.connect(place).await?;
        let replies = link.ask(&Packed::one(&[b"ROLE"])).await?;
        match replies.first().and_then(Trouble::of_reply) {
            Some(trouble) => Err(trouble),
            None => Ok(replies.first().is_some_and(is_master)),
        }
    };
    within(connector.timeout, ask)
        .await
        .unwrap_or(Err(Trouble::Silent))
}
