//! Keeps the topology of the servers up to date, for all workers.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::{
    Servers,
    address::{Kind, Place},
    cluster::Cluster,
    map::Map,
    node::Node,
    probe::{Patience, Probe},
    sentinel::{Sentinels, is_master_at},
    trouble::Trouble,
};

/// The time between two looks at the topology while all is well.
const CALM: Duration = Duration::from_millis(500);

/// The time between two looks while something is wrong.
const TROUBLED: Duration = Duration::from_millis(100);

/// The least time between two looks, however many workers ask for one.
const LEAST: Duration = Duration::from_millis(20);

/// The task that keeps the topology and the health of the servers. One for each address.
#[derive(Debug)]
pub struct Guide {
    servers: Servers,
    source: Source,
    /// How long requests wait for a node.
    patience: Patience,
    tasks: JoinSet<()>,
    /// The nodes that are probed.
    probed: HashMap<Place, AbortHandle>,
}

/// The source of the topology.
#[derive(Debug)]
enum Source {
    /// The settings.
    Settings,
    Sentinels(Sentinels),
    Cluster(Cluster),
}

impl Guide {
    pub(super) fn new(servers: Servers, patience: Patience) -> Self {
        let seeds = servers.0.seeds.clone();
        let source = match servers.0.kind {
            Kind::Single => Source::Settings,
            Kind::Sentinel => Source::Sentinels(Sentinels::new(
                servers.0.sentinel_connector.clone(),
                seeds,
                servers.0.master.clone(),
            )),
            Kind::Cluster => Source::Cluster(Cluster::new(servers.0.connector.clone(), seeds)),
        };
        Self {
            servers,
            source,
            patience,
            tasks: JoinSet::new(),
            probed: HashMap::new(),
        }
    }

    /// Watches the servers until it is dropped.
    pub async fn run(mut self) -> Infallible {
        let shared = self.servers.0.clone();
        self.tasks
            .spawn(async move { match shared.ticks.run(&shared.meters.lateness).await {} });
        loop {
            let looked = Instant::now();
            let found = self.look().await;
            self.servers.record_look(found);
            self.follow_map();
            self.wait(looked).await;
        }
    }

    /// Waits for the next look, and publishes changes of nodes meanwhile.
    async fn wait(&mut self, looked: Instant) {
        let is_calm = self.servers.tell();
        let mut next = looked + if is_calm { CALM } else { TROUBLED };
        loop {
            tokio::select! {
                () = sleep_until(next) => return,
                () = self.servers.0.wanted.notified() => next = next.min(looked + LEAST),
                () = self.servers.0.news.notified() => if !self.servers.tell() {
                    next = next.min(looked + TROUBLED);
                },
                Some(ended) = self.tasks.join_next() => if let Err(error) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                },
            }
        }
    }

    /// Asks the source, and takes a new map into use.
    async fn look(&mut self) -> Result<(), String> {
        match &mut self.source {
            Source::Settings => Ok(()),
            Source::Sentinels(sentinels) => {
                let master = sentinels.master().await?;
                self.change_master(master).await
            }
            Source::Cluster(cluster) => {
                let is_doubted = !*self.servers.0.is_well.borrow();
                let ranges = cluster.ranges(is_doubted).await?;
                let current = self.servers.map();
                let map = Map::cluster(&ranges, |place| self.servers.node(&current, place));
                if !map.equals(&current) {
                    tracing::info!(
                        masters = map.nodes.len(),
                        "the slots of the cluster changed"
                    );
                    self.servers.change_map(map);
                }
                Ok(())
            }
        }
    }

    /// Switches to the server that the sentinels named, once that server confirms it.
    async fn change_master(&self, master: Place) -> Result<(), String> {
        let current = self.servers.map();
        if current.nodes.iter().any(|node| node.place == master) {
            return Ok(());
        }
        match is_master_at(&self.servers.0.connector, &master).await {
            Ok(true) => {
                tracing::info!(node = %master, "the sentinels named a master");
                let node = self.servers.node(&current, &master);
                self.servers.change_map(Map::single(node));
                Ok(())
            }
            Ok(false) => Err(format!("{master} {}", Trouble::ReadOnly)),
            Err(trouble) => Err(format!("{master} {trouble}")),
        }
    }

    /// Starts a probe for each node of the map, and stops all others.
    fn follow_map(&mut self) {
        let map = self.servers.map();
        let is_there = |place: &Place| map.nodes.iter().any(|node| node.place == *place);
        self.probed.retain(|place, probe| {
            let stays = is_there(place);
            if !stays {
                probe.abort();
            }
            stays
        });
        for node in &map.nodes {
            if !self.probed.contains_key(&node.place) {
                let probe = self.probe(node.clone());
                let handle = self.tasks.spawn(probe.run());
                self.probed.insert(node.place.clone(), handle);
            }
        }
    }

    fn probe(&self, node: Arc<Node>) -> Probe {
        let must_be_master = self.servers.0.kind != Kind::Single;
        let connector = self.servers.0.connector.clone();
        let (patience, now) = (self.patience, self.servers.0.now);
        Probe::new(node, connector, must_be_master, patience, now)
    }
}
