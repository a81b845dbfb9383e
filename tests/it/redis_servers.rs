//! The test servers themselves: every other test trusts these verbs. And the versions of them that the
//! contract names: what the gateway asks of a server, it asks of each.

use super::support::chaos::ChaosProxy;
use super::support::cluster::RedisCluster;
use super::support::gateway::{Gateway, GatewayBuilder};
use super::support::ports;
use super::support::publisher::{Publisher, Statement, price_key, slot, watcher_key};
use super::support::redis::{RedisServer, query};
use super::support::wait::wait_for;
use super::support::ws::Ws;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[test]
fn slots_agree_with_the_known_ones() {
    for (name, expected) in [
        ("market:price-updated", 1726),
        ("market:price-updated:{0}", 13_907),
        ("market:price-updated:{3}", 1584),
        (&price_key(101), 12_774),
        (&price_key(201), 10_422),
    ] {
        assert_eq!(slot(name), expected, "{name}");
    }
}

#[tokio::test]
async fn a_server_comes_back_on_its_port() {
    let mut server = RedisServer::start().await;
    server.cmd::<()>(&["SET", "a", "1"]).await;
    server.kill9();
    assert!(server.try_cmd::<String>(&["GET", "a"]).await.is_err());
    server.restart().await;
    assert_eq!(server.cmd::<Option<String>>(&["GET", "a"]).await, None);
}

#[tokio::test]
async fn a_cluster_survives_each_of_its_faults() {
    let mut cluster = RedisCluster::start(3, 3).await;
    let mut publisher = Publisher::sharded(&cluster, 4);
    for id in [101, 102, 201] {
        publisher.publish(&Statement::new(id, "71000.10", 1)).await;
    }
    let replica = cluster.fail_over(0).await;
    assert_eq!(cluster.primary(0).await, replica);

    let (from, to) = (cluster.owner(12_774).await, cluster.primary(0).await);
    cluster.migrate_slot(12_774, from, to).await;
    let stored: String = cluster.cmd(to, &["GET", &price_key(101)]).await;
    assert_eq!(stored, r#"{"stockId":101,"price":71000.10,"volume":12}"#);
    publisher.publish(&Statement::new(101, "71000.20", 2)).await;

    let killed = cluster.kill_primary(1).await;
    cluster.succeeded(1, killed).await;
    cluster.revive(killed).await;
    cluster.healthy().await;
    cluster.restart_all().await;
    publisher.publish(&Statement::new(102, "1.0", 3)).await;
}

#[tokio::test]
async fn the_proxy_does_what_its_verbs_say() {
    let server = RedisServer::start().await;
    let proxy = ChaosProxy::start(&server.address()).await;
    let ping = || query::<String>(proxy.port(), &["PING"]);
    ping().await.unwrap();

    let held = Duration::from_secs(2);
    proxy.hold_responses_to("GET", held);
    let started = Instant::now();
    ping().await.unwrap();
    assert!(started.elapsed() < held);
    query::<Option<String>>(proxy.port(), &["GET", "a"]).await.unwrap();
    assert!(started.elapsed() >= held);

    proxy.cut();
    ping().await.unwrap_err();
    proxy.restore();
    ping().await.unwrap();
    proxy.black_hole();
    assert!(tokio::time::timeout(Duration::from_millis(300), ping()).await.is_err());
}

/// Servers of other versions, as `tests/redis_versions.sh` fetches them.
fn other_versions() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-servers");
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path().join("server")).collect();
    found.sort();
    found
}

#[tokio::test]
async fn other_versions_of_the_server_carry_the_contract() {
    let others = other_versions();
    if others.is_empty() {
        return eprintln!(
            "NOT RUN: no other version than that of `redis-server`; see tests/redis_versions.sh"
        );
    }
    for binary in others {
        eprintln!("with {}", binary.display());
        let server = RedisServer::start_as(&binary, ports::free(), &[]).await;
        let alone = Gateway::builder().redis(&server);
        carries_the_contract(alone, &[&server], Publisher::standalone(&server, 4)).await;
        // Redis 6 has no sharded channels, and is claimed for standing alone only.
        if server.try_cmd::<u64>(&["SPUBLISH", "channel", "message"]).await.is_ok() {
            let cluster = RedisCluster::start_as(&binary).await;
            let nodes = [0, 1, 2].map(|at| cluster.node(at));
            let sharded = Gateway::builder().cluster(&cluster);
            carries_the_contract(sharded, &nodes, Publisher::sharded(&cluster, 4)).await;
        }
    }
}

/// Stored prices, live ones, watchers, and subscriptions that come back.
async fn carries_the_contract(gateway: GatewayBuilder, nodes: &[&RedisServer], mut publisher: Publisher) {
    const SOON: Duration = Duration::from_secs(5);
    let mut gateway = gateway.partitions(4).start().await;
    publisher.store(&Statement::new(101, "71000.10", 1)).await;
    let mut ws = Ws::open_as(&gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    let stored = ws.next_event().await;
    assert!(stored.contains("71000.10") && stored.contains(r#""initial":true"#), "{stored}");
    publisher.publish(&Statement::new(101, "71000.20", 2)).await;
    assert!(ws.next_event().await.contains("71000.20"));
    wait_for("the publisher sees a watcher", SOON, || async {
        for node in nodes {
            if node.try_cmd::<u64>(&["SCARD", &watcher_key(101)]).await.is_ok_and(|n| n == 1) {
                return Some(());
            }
        }
        None
    })
    .await;
    for node in nodes {
        node.client_kill_pubsub().await;
    }
    gateway.metric_fits("they were lost", "upstream_connections_lost_total", &[], SOON, |n| n > 0.5).await;
    gateway.ready().await;
    publisher.publish(&Statement::new(101, "71000.30", 3)).await;
    assert!(ws.next_event().await.contains("71000.30"));
    assert_eq!(gateway.stop(SOON * 2).await.code(), Some(0));
}
