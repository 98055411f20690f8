//! tollgate on a Redis Cluster: one batch for each node, slots that move, masters that die.

use std::time::Instant;

use tonic::Status;

use crate::support::{
    ask::{self, Client, ask, connect, descriptor, request, send},
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

/// A server that counts there, with a client, once calls are answered for all values.
async fn start(cluster: &Cluster, deadline: &str) -> (Tollgate, Client) {
    let server = tollgate::with_rules(RULES).redis_at(&cluster.url(), deadline);
    let server = server.start();
    let client = connect(server.grpc).await;
    all_work(&client).await;
    (server, client)
}

/// With a long deadline: every node always answers, but a busy machine may delay it.
async fn started(cluster: &Cluster) -> (Tollgate, Client) {
    start(cluster, "10s").await
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
        let admitted = ask::passing(client, "d", &[("few", &value)], 150).await;
        assert_eq!(admitted, 100, "{value}");
    }
}

/// The counter of one of the storm's values.
fn key(value: &str) -> String {
    key_of("1:k1", value)
}

/// The counter of a limit of 10,000 years: the number and the name of its key.
fn key_of(rule: &str, value: &str) -> String {
    let period = 10_000 * 31_536_000;
    let (number, name) = rule.split_once(':').unwrap();
    let window = ::tollgate::now().secs() / period;
    format!("{{1:d{number}:{name}:{value}}}{period}@{window}")
}

/// Moves the slot of `key` to another node.
fn migrate(cluster: &Cluster, key: &str, to: usize) {
    let Migration { slot, from, .. } = cluster.migration_of(key);
    cluster.migrate(from, to, slot, slot);
}

/// The hits counted for all values, on all nodes.
fn counted(cluster: &Cluster) -> usize {
    let counts = VALUES.iter().map(|value| cluster.value(&key(value)));
    usize::try_from(counts.sum::<i64>()).unwrap()
}

#[tokio::test]
async fn a_request_is_one_pipeline_for_each_node() {
    let cluster = Cluster::start(0);
    let (server, mut client) = started(&cluster).await;
    let descriptors = VALUES.map(|value| descriptor(&[("k", value)])).to_vec();
    let pipelines = || server.metric("tollgate_redis_pipelines_total");
    let before = pipelines();
    send(&mut client, request("d", descriptors)).await.unwrap();
    // Twenty-four counters.
    assert_eq!(pipelines() - before, 3);
    check_exact(&mut client, "").await;
    for node in &cluster.nodes {
        assert!(node.number(&["DBSIZE"]) > 0);
    }
}

/// Only a user of its own can count there.
#[tokio::test]
async fn a_cluster_counts_for_the_user_that_the_settings_name() {
    const AUTH: &str = "gate:open-sesame";
    let cluster = Cluster::start(0);
    for node in &cluster.nodes {
        for user in [
            "gate on >open-sesame ~* +@all",
            "default -incrby -eval -evalsha",
        ] {
            let command = format!("ACL SETUSER {user}");
            let command: Vec<_> = command.split(' ').collect();
            assert_eq!(node.cli(&command).trim(), "OK");
        }
    }
    let url = cluster.url();
    let seeds = url.strip_prefix("redis://").unwrap();
    let server = || tollgate::with_rules(RULES).args(["--redis-timeout", "10s"]);
    let of_the_reference = server()
        .env("REDIS_TYPE", "CLUSTER")
        .env("REDIS_URL", seeds);
    for server in [
        of_the_reference.env("REDIS_AUTH", AUTH),
        server().args(["--redis-url", &url, "--redis-auth", AUTH]),
        server().args(["--redis-url", &format!("redis://{AUTH}@{seeds}")]),
    ] {
        let server = server.start();
        all_work(&connect(server.grpc).await).await;
        assert!(!server.log().text().contains("sesame"));
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
    let both = VALUES.map(|value| descriptor(&[("both", value)]));
    let both = request("d", both.to_vec());
    send(&mut client, both).await.unwrap_err();
    let log = server.log().with("CROSSSLOT");
    let line = log.lines().find(|line| line.contains("CROSSSLOT")).unwrap();
    assert!(line.contains(SETTING), "{line}");
    all_work(&client).await;
    let log = server.log().text();
    assert_eq!(log.matches(redirected).count(), 1, "{log}");
}

#[tokio::test]
async fn nodes_are_asked_for_the_slots_in_turn_and_seldom() {
    let cluster = Cluster::start(0);
    let nodes = &cluster.nodes;
    for node in nodes {
        node.cli(&["CONFIG", "RESETSTAT"]);
    }
    let calls =
        |command: &str| -> Vec<u64> { nodes.iter().map(|node| node.calls(command)).collect() };
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(started(&cluster).await);
    }
    let looks = || calls("cluster|slots");
    wait_until("each node was asked", || !looks().contains(&0));
    let before: u64 = looks().iter().sum();
    // The probes of each process ask every node for its time once a second.
    let times = || calls("time").iter().sum::<u64>();
    let end = times() + 3 * 3 * 10;
    wait_until("ten seconds are over", || times() >= end);
    // Twice a second would be 60.
    let asked = looks().iter().sum::<u64>() - before;
    assert!(asked < 20, "{asked}");
}

/// Commands are redirected while the slot map is stale. Once it is current, the connections for redirects close.
#[tokio::test]
async fn connections_of_detours_are_closed_when_nothing_is_sent_on_any_more() {
    let cluster = Cluster::start(0);
    let (server, first) = started(&cluster).await;
    // One for each worker.
    let clients = [first, connect(server.grpc).await];
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
        let lines = stats.lines();
        let counts = lines.filter_map(|line| line.split_once(".redirects_total: "));
        counts
            .map(|(_, count)| count.parse::<u64>().unwrap())
            .sum::<u64>()
    };
    let mut most = before;
    eventually("something was sent on", async || {
        let key = key("a");
        migrate(&cluster, &key, (cluster.owner(&key) + 1) % 3);
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

/// A limit, and limits that are judged together; the keys of a new value are on neither node.
#[tokio::test]
async fn a_slot_that_is_on_its_way_is_asked_for_at_both_ends() {
    let cluster = Cluster::start(0);
    let (server, mut client) = started(&cluster).await;
    for (limit, rule, value, before) in [
        ("few", "3:few3", "new", 0),
        ("both", "4:both3", "old", 20),
        ("both", "4:both3", "new", 0),
    ] {
        let entries = [(limit, value)];
        let mut passing = async |calls| ask::passing(&mut client, "d", &entries, calls).await;
        assert_eq!(passing(before).await, before);
        let key = key_of(rule, value);
        let migration = cluster.migration_of(&key);
        cluster.begin_migration(migration);
        assert_eq!(passing(40).await, 40, "{limit} {value}");
        if limit == "few" {
            // ASKING creates the key at the new owner.
            let Migration { slot, to, .. } = migration;
            let count = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
            assert!(cluster.nodes[to].number(&count) > 0);
            server.log().with("slots of the cluster changed");
        }
        cluster.end_migration(migration);
        assert_eq!(passing(100).await, 60 - before, "{limit} {value}");
        // Hits that are refused are not counted where only admitted ones are.
        assert!(limit == "few" || cluster.value(&key) == 100);
    }
}

#[tokio::test]
async fn slots_that_move_under_load_also_to_a_node_that_joins_cost_no_answer_and_no_count() {
    let mut cluster = Cluster::start(0);
    let (server, mut client) = started(&cluster).await;
    let before = counted(&cluster);
    let storm = Storm::start(&[server.grpc], &VALUES);
    for value in VALUES {
        let key = key(value);
        migrate(&cluster, &key, (cluster.owner(&key) + 1) % 3);
    }
    cluster.add_node();
    for value in VALUES {
        migrate(&cluster, &key(value), 3);
    }
    let answers = storm.end().await;
    assert_eq!(answers.error_count(), 0, "{:?}", answers.errors());
    assert!(answers.ok() > 100);
    assert_eq!(counted(&cluster) - before, answers.ok());
    // The slot map has the new node by now, or soon will.
    eventually("the new node is on the map", async || {
        for value in VALUES {
            one(&mut client.clone(), value).await.unwrap();
        }
        let batches = format!("_{}.batches", cluster.nodes[3].port());
        server.page("/stats").contains(&batches)
    })
    .await;
    check_exact(&mut client, "").await;
}

/// Calls for values on other masters are always answered; those on the dead one fail at once, until its replica takes
/// over.
#[tokio::test]
async fn when_a_master_dies_its_replica_counts_and_nobody_else_notices() {
    let mut cluster = Cluster::start(1);
    let (server, mut client) = start(&cluster, "200ms").await;
    check_exact(&mut client, "before").await;
    let storm = Storm::start(&[server.grpc], &VALUES);
    eventually("the load is there", async || {
        server.metric("tollgate_redis_pipelines_total") > 300
    })
    .await;
    let mut nodes = cluster.nodes.iter();
    let master = nodes.position(|node| !is_replica(node)).unwrap();
    let is_lost = |value: &&str| cluster.owner(&key(value)) == master;
    let lost = VALUES.iter().filter(|value| is_lost(value)).count();
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
    let (server, mut client) = start(&cluster, "200ms").await;
    cluster.nodes[0].kill();
    wait_until("the cluster is down", || {
        let info = cluster.nodes[1].cli(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:fail")
    });
    eventually("all breakers are open", async || {
        for value in VALUES {
            let _ = one(&mut client, value).await;
        }
        let page = server.page("/healthcheck?verbose");
        page.matches("CLUSTERDOWN").count() == 2
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
