//! The test servers themselves: every other test trusts these verbs.

use super::support::chaos::ChaosProxy;
use super::support::cluster::RedisCluster;
use super::support::publisher::{Publisher, Statement, price_key, slot};
use super::support::redis::{RedisServer, query};
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

    proxy.hold_responses_to("GET", Duration::from_millis(300));
    let started = Instant::now();
    ping().await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(300));
    query::<Option<String>>(proxy.port(), &["GET", "a"]).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(300));

    proxy.cut();
    ping().await.unwrap_err();
    proxy.restore();
    ping().await.unwrap();
    proxy.black_hole();
    assert!(tokio::time::timeout(Duration::from_millis(300), ping()).await.is_err());
}
