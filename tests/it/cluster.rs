//! tollgate on a Redis Cluster: one batch for each node, slots that move, masters that die.

use std::time::Instant;

use tonic::Status;

use crate::support::{
    ask::{Client, ask, connect, descriptor, is_ok, request, send},
    cluster::{Cluster, Migration, is_replica},
    eventually,
    storm::Storm,
    tollgate::{self, Tollgate},
    wait_until,
};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limits: [1000000/10000years, 2000000/5000years]}
  - {key: few, rate_limits: [100/10000years]}
  - {key: both, count: admitted, rate_limits: [200/10000years, 100/5000years]}
";

/// Values with counters in all parts of the cluster.
const VALUES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

fn start(cluster: &Cluster) -> Tollgate {
    start_with_deadline(cluster, "200ms")
}

/// With a long deadline: every node always answers, but a busy machine may delay it.
fn start_patient(cluster: &Cluster) -> Tollgate {
    start_with_deadline(cluster, "10s")
}

fn start_with_deadline(cluster: &Cluster, deadline: &str) -> Tollgate {
    tollgate::with_rules(RULES)
        .redis_at(&cluster.url(), deadline)
        .start()
}

async fn one(client: &mut Client, value: &str) -> Result<(), Status> {
    ask(client, "d", &[("k", value)]).await.map(|_| ())
}

async fn all_work(client: &Client) {
    eventually("calls are answered for all values", async || {
        for value in VALUES {
            if one(&mut client.clone(), value).await.is_err() {
                return false;
            }
        }
        true
    })
    .await;
}

/// Of 150 calls as many pass as the limit allows, on all nodes.
async fn check_exact(client: &mut Client, round: &str) {
    for value in VALUES {
        let value = format!("{value}{round}");
        let mut admitted = 0;
        for _ in 0..150 {
            admitted += usize::from(is_ok(&ask(client, "d", &[("few", &value)]).await));
        }
        assert_eq!(admitted, 100, "{value}");
    }
}

/// The counter of one of the storm's values.
fn key(value: &str) -> String {
    let now = tollgate_now();
    let period = 10_000 * 31_536_000;
    format!("{{1:d1:k1:{value}}}{period}@{}", now / period)
}

fn tollgate_now() -> u64 {
    ::tollgate::now().secs()
}

/// The hits counted for all values, on all nodes.
fn counted(cluster: &Cluster) -> usize {
    let counts = VALUES.iter().map(|value| cluster.value(&key(value)));
    usize::try_from(counts.sum::<i64>()).unwrap()
}

#[tokio::test]
async fn a_request_is_one_pipeline_for_each_node() {
    let cluster = Cluster::start(0);
    let server = start_patient(&cluster);
    let mut client = connect(server.grpc).await;
    all_work(&client).await;
    let descriptors: Vec<_> = VALUES
        .iter()
        .map(|value| descriptor(&[("k", value)]))
        .collect();
    let before = server.metric("tollgate_redis_pipelines_total");
    send(&mut client, request("d", descriptors)).await.unwrap();
    let pipelines = server.metric("tollgate_redis_pipelines_total") - before;
    // Twenty-four counters.
    assert_eq!(pipelines, 3);
    check_exact(&mut client, "").await;
    for node in &cluster.nodes {
        assert!(node.number(&["DBSIZE"]) > 0);
    }
}

/// Each command goes to the server of the address first, and is redirected from there.
#[tokio::test]
async fn a_cluster_behind_one_address_without_its_type_is_named_with_the_setting() {
    const SETTING: &str = "set --redis-type cluster (REDIS_TYPE=CLUSTER)";
    let cluster = Cluster::start(0);
    let server = tollgate::with_rules(RULES)
        .redis_at(&cluster.nodes[0].url(), "10s")
        .start();
    let mut client = connect(server.grpc).await;
    all_work(&client).await;
    let redirected = "commands go to the wrong one of its servers first";
    let log = server.log().with(redirected);
    assert!(log.contains(SETTING), "{log}");
    // Limits that are judged together need their keys in one slot.
    let values = VALUES.iter();
    let both = values.map(|value| descriptor(&[("both", value)]));
    send(&mut client, request("d", both.collect()))
        .await
        .unwrap_err();
    let log = server.log().with("CROSSSLOT");
    let line = log.lines().find(|line| line.contains("CROSSSLOT")).unwrap();
    assert!(line.contains(SETTING), "{line}");
    all_work(&client).await;
    let log = server.log().text();
    assert_eq!(log.matches(redirected).count(), 1, "{log}");
}

/// How often each node ran a command.
fn calls(cluster: &Cluster, command: &str) -> Vec<u64> {
    let nodes = cluster.nodes.iter();
    nodes.map(|node| node.calls(command)).collect()
}

#[tokio::test]
async fn nodes_are_asked_for_the_slots_in_turn_and_seldom() {
    let cluster = Cluster::start(0);
    cluster.nodes.iter().for_each(|node| {
        node.cli(&["CONFIG", "RESETSTAT"]);
    });
    let looks = || calls(&cluster, "cluster|slots");
    let servers = [(); 3].map(|()| start_patient(&cluster));
    for server in &servers {
        all_work(&connect(server.grpc).await).await;
    }
    wait_until("each node was asked", || {
        looks().iter().all(|&asked| asked > 0)
    });
    let before: u64 = looks().iter().sum();
    // The probes of each process ask every node for its time once a second.
    let times = || calls(&cluster, "time").iter().sum::<u64>();
    let seconds = |count: u64| 3 * 3 * count;
    let end = times() + seconds(10);
    wait_until("ten seconds are over", || times() >= end);
    // Twice a second would be 60.
    let asked = looks().iter().sum::<u64>() - before;
    assert!(asked < 20, "{asked}");
}

#[tokio::test]
async fn slots_that_move_under_load_cost_no_answer_and_no_count() {
    let cluster = Cluster::start(0);
    let server = start_patient(&cluster);
    let client = connect(server.grpc).await;
    all_work(&client).await;
    let before = counted(&cluster);
    let storm = Storm::start(&[server.grpc], &VALUES);
    for value in VALUES {
        let slot = cluster.nodes[0].number(&["CLUSTER", "KEYSLOT", &key(value)]);
        let slot = u16::try_from(slot).unwrap();
        let from = cluster.owner(&key(value));
        cluster.migrate(from, (from + 1) % 3, slot, slot);
    }
    let answers = storm.end().await;
    assert_eq!(answers.error_count(), 0, "{:?}", answers.errors());
    assert!(answers.ok() > 100);
    assert_eq!(counted(&cluster) - before, answers.ok());
    check_exact(&mut client.clone(), "").await;
}

/// Commands are redirected while the slot map is stale. Once it is current, the connections for redirects close.
#[tokio::test]
async fn connections_of_detours_are_closed_when_nothing_is_sent_on_any_more() {
    let cluster = Cluster::start(0);
    let server = start_patient(&cluster);
    // One for each worker.
    let clients = [connect(server.grpc).await, connect(server.grpc).await];
    let all_count = async || {
        for client in &clients {
            all_work(client).await;
        }
    };
    all_count().await;
    let open_files = || {
        let folder = format!("/proc/{}/fd", server.process_id());
        std::fs::read_dir(folder).unwrap().count()
    };
    let before = open_files();
    let redirects = || {
        let stats = server.page("/stats");
        let lines = stats
            .lines()
            .filter(|line| line.contains(".redirects_total: "));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum::<u64>()
    };
    let slot = cluster.nodes[0].number(&["CLUSTER", "KEYSLOT", &key("a")]);
    let slot = u16::try_from(slot).unwrap();
    let mut owner = cluster.owner(&key("a"));
    let mut most = before;
    eventually("something was sent on", async || {
        let to = (owner + 1) % 3;
        cluster.migrate(owner, to, slot, slot);
        owner = to;
        all_count().await;
        most = most.max(open_files());
        redirects() > 0
    })
    .await;
    assert!(most > before, "a detour has a connection of its own");
    eventually("they are closed", async || {
        all_count().await;
        open_files() <= before
    })
    .await;
}

#[tokio::test]
async fn a_slot_that_is_on_its_way_is_asked_for_at_both_ends() {
    let cluster = Cluster::start(0);
    let server = start_patient(&cluster);
    let mut client = connect(server.grpc).await;
    all_work(&client).await;
    let now = tollgate_now();
    let period = 10_000 * 31_536_000;
    let key = format!("{{1:d3:few3:new}}{period}@{}", now / period);
    let migration = cluster.migration_of(&key);
    cluster.begin_migration(migration);
    // ASKING creates the key at the new owner.
    for _ in 0..10 {
        assert!(is_ok(&ask(&mut client, "d", &[("few", "new")]).await));
    }
    let Migration { slot, to, .. } = migration;
    assert!(cluster.nodes[to].number(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]) > 0);
    server.log().with("slots of the cluster changed");
    cluster.end_migration(migration);
    for _ in 0..90 {
        assert!(is_ok(&ask(&mut client, "d", &[("few", "new")]).await));
    }
    assert!(!is_ok(&ask(&mut client, "d", &[("few", "new")]).await));
}

#[tokio::test]
async fn limits_that_are_judged_together_are_counted_while_their_slot_moves() {
    let cluster = Cluster::start(0);
    let server = start_patient(&cluster);
    let mut client = connect(server.grpc).await;
    all_work(&client).await;
    let now = tollgate_now();
    let period = 10_000 * 31_536_000;
    let key = |value| format!("{{1:d4:both3:{value}}}{period}@{}", now / period);
    for value in ["old", "new"] {
        let passing = async |client: &mut Client, calls: usize| {
            let mut passing = 0;
            for _ in 0..calls {
                passing += usize::from(is_ok(&ask(client, "d", &[("both", value)]).await));
            }
            passing
        };
        if value == "old" {
            assert_eq!(passing(&mut client, 20).await, 20);
        }
        let migration = cluster.migration_of(&key(value));
        cluster.begin_migration(migration);
        // The keys of the new one are on neither node.
        let before = if value == "old" { 20 } else { 0 };
        assert_eq!(passing(&mut client, 40).await, 40, "{value}");
        cluster.end_migration(migration);
        assert_eq!(passing(&mut client, 100).await, 60 - before, "{value}");
        assert_eq!(cluster.value(&key(value)), 100);
    }
}

#[tokio::test]
async fn a_node_that_joins_takes_its_share() {
    let mut cluster = Cluster::start(0);
    let server = start_patient(&cluster);
    let client = connect(server.grpc).await;
    all_work(&client).await;
    let before = counted(&cluster);
    let storm = Storm::start(&[server.grpc], &VALUES);
    cluster.add_node();
    for value in VALUES {
        let slot = cluster.nodes[0].number(&["CLUSTER", "KEYSLOT", &key(value)]);
        let slot = u16::try_from(slot).unwrap();
        cluster.migrate(cluster.owner(&key(value)), 3, slot, slot);
    }
    let answers = storm.end().await;
    assert_eq!(answers.error_count(), 0, "{:?}", answers.errors());
    assert_eq!(counted(&cluster) - before, answers.ok());
    // The slot map has the new node by now, or soon will.
    eventually("the new node is on the map", async || {
        for value in VALUES {
            one(&mut client.clone(), value).await.unwrap();
        }
        server
            .page("/stats")
            .contains(&format!("_{}.batches", cluster.nodes[3].port()))
    })
    .await;
    check_exact(&mut client.clone(), "").await;
}

/// Calls for values on other masters are always answered; those on the dead one fail at once, until its replica takes
/// over.
#[tokio::test]
async fn when_a_master_dies_its_replica_counts_and_nobody_else_notices() {
    let mut cluster = Cluster::start(1);
    let server = start(&cluster);
    let mut client = connect(server.grpc).await;
    all_work(&client).await;
    check_exact(&mut client, "before").await;
    let storm = Storm::start(&[server.grpc], &VALUES);
    eventually("the load is there", async || {
        server.metric("tollgate_redis_pipelines_total") > 300
    })
    .await;
    let master = cluster
        .nodes
        .iter()
        .position(|node| !is_replica(node))
        .unwrap();
    let lost = VALUES
        .iter()
        .filter(|value| cluster.owner(&key(value)) == master)
        .count();
    assert!(lost > 0 && lost < VALUES.len());
    let masters = |cluster: &Cluster| {
        let nodes = cluster.nodes.iter().enumerate();
        let alive = nodes.filter(|(at, _)| *at != master);
        alive.filter(|(_, node)| !is_replica(node)).count()
    };
    cluster.nodes[master].kill();
    let killed = Instant::now();
    wait_until("a replica was promoted", || masters(&cluster) == 3);
    let promoted = Instant::now();
    all_work(&client).await;
    let answers = storm.end().await;
    let meanwhile = answers.between(killed, promoted);
    assert!(meanwhile.ok() > 0, "the other masters answer");
    check_exact(&mut client, "after").await;
}

#[tokio::test]
async fn a_cluster_that_does_not_serve_is_not_waited_for() {
    let mut cluster = Cluster::start(0);
    let server = start(&cluster);
    let mut client = connect(server.grpc).await;
    all_work(&client).await;
    cluster.nodes[0].kill();
    wait_until("the cluster is down", || {
        let info = cluster.nodes[1].cli(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:fail")
    });
    eventually("all breakers are open", async || {
        for value in VALUES {
            let _ = one(&mut client, value).await;
        }
        server
            .page("/healthcheck?verbose")
            .matches("CLUSTERDOWN")
            .count()
            == 2
    })
    .await;
    for value in VALUES {
        let error = one(&mut client, value).await.unwrap_err();
        assert_eq!(error.message(), "the counter store is not reachable");
    }
    cluster.nodes[0].restart();
    cluster.await_agreement();
    all_work(&client).await;
    check_exact(&mut client, "").await;
}
