//! What breaks under a stream: the connection to Redis, Redis itself, a replica that drains, a slot that moves.

use super::client::{BOTH, Client, DUE, Item, Transport};
use super::producer::{Producer, texts};
use super::{builder, world};
use crate::support::chaos::ChaosProxy;
use crate::support::cluster::RedisCluster;
use crate::support::redis::RedisServer;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_broken_connection_to_redis_costs_time_and_no_entry() {
    let redis = RedisServer::start().await;
    let proxy = ChaosProxy::start(&redis.address()).await;
    let gateway = builder().redis_at(&[proxy.address()]).start().await;
    let mut producer = Producer::new(&redis, "a").await;
    let mut clients = Vec::new();
    for transport in BOTH {
        clients.push(Client::resume(gateway.public, transport, "a", None).await);
    }
    producer.tokens(0..10).await;
    for client in &mut clients {
        assert_eq!(client.texts(10).await, texts(0..10));
    }
    for round in 1..4 {
        proxy.cut();
        producer.tokens(round * 50 - 40..round * 50).await;
        proxy.restore();
        producer.tokens(round * 50..round * 50 + 10).await;
        for client in &mut clients {
            assert_eq!(client.texts(50).await, texts(round * 50 - 40..round * 50 + 10));
        }
    }
    for client in &mut clients {
        assert_eq!(client.next_within(Duration::from_millis(100)).await, None);
    }
}

/// This Redis saves nothing: everything is gone, and whoever had some of it is told.
#[tokio::test]
async fn what_redis_forgets_is_told_and_the_stream_goes_on() {
    let (mut redis, gateway) = world().await;
    let mut producer = Producer::new(&redis, "a").await;
    let ids = producer.tokens(0..5).await;
    let mut clients = Vec::new();
    for transport in BOTH {
        let mut client = Client::resume(gateway.public, transport, "a", None).await;
        assert_eq!(client.texts(5).await, texts(0..5));
        clients.push(client);
    }
    redis.kill9();
    redis.restart().await;
    let mut producer = Producer::new(&redis, "a").await;
    let told = json!({ "type": "lost", "id": "0-0", "after": "0-0", "through": ids[4] });
    for client in &mut clients {
        let mut lost = client.next_of("lost").await;
        // The number is known where the replica had read all of it.
        lost.as_object_mut().unwrap().remove("missing");
        assert_eq!(lost, told);
    }
    producer.tokens(5..8).await;
    for client in &mut clients {
        assert_eq!(client.texts(3).await, texts(5..8));
    }
    // A client that was away meanwhile is told, too.
    let mut late = Client::resume(gateway.public, Transport::Sse, "a", Some("99999999999999-0")).await;
    assert_eq!(late.next_of("lost").await["through"], json!("99999999999999-0"));
    let lost = [("reason", "failover")];
    gateway.metric_is("stream_gaps_total", &lost, DUE, 3.0).await;
}

/// The other replica knows nothing of the session, and goes on exactly where the cursor is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_hands_over_without_a_lost_or_doubled_entry() {
    const N: usize = 400;
    let redis = RedisServer::start().await;
    let mut drained = builder().redis(&redis).start().await;
    let other = builder().redis(&redis).start().await;
    let mut clients = Vec::new();
    for transport in BOTH.repeat(4) {
        clients.push(Client::resume(drained.public, transport, "a", None).await);
    }
    let mut producer = Producer::new(&redis, "a").await;
    let producing = tokio::spawn(async move {
        let mut turns = tokio::time::interval(Duration::from_millis(5));
        for n in 0..N {
            turns.tick().await;
            producer.tokens(n..n + 1).await;
        }
        producer.end().await;
    });
    let to = other.public;
    let reading: Vec<_> =
        clients.into_iter().map(|client| tokio::spawn(read_to_the_end(client, to))).collect();
    let delivered = "stream_entries_delivered_total";
    drained.metric_fits("entries flow", delivered, &[], DUE, |n| n > 80.0).await;
    assert!(drained.stop(DUE).await.success());
    producing.await.unwrap();
    for read in reading {
        let (got, advised) = read.await.unwrap();
        assert_eq!(got, texts(0..N));
        assert!(advised, "it was told before it was closed");
    }
    assert!(other.metrics().await.sum(delivered, &[]) > 8.0, "the other replica had a part in it");
}

/// Reads a stream that is handed over to the replica at `to`. Gives its texts and whether that was advised.
async fn read_to_the_end(mut client: Client, to: std::net::SocketAddr) -> (Vec<String>, bool) {
    let (mut got, mut advised) = (Vec::new(), false);
    loop {
        let item = client.next().await;
        match &item {
            _ if item.is("entry") => got.push(item.json()["data"].as_str().unwrap().to_owned()),
            _ if item.is("end") => return (got, advised),
            _ if item.is("reconnect") => {
                let after_ms = item.json()["after_ms"].as_u64();
                assert!(after_ms.is_some());
                if client.transport == Transport::Sse {
                    assert_eq!(client.retry_ms, after_ms, "a page that knows no messages comes as late");
                }
                advised = true;
            }
            Item::Closed(code, reason) => assert_eq!((*code, reason.as_str()), (1012, "service_restart")),
            Item::End | Item::Cut => {
                client = Client::resume(to, client.transport, "a", client.cursor.as_deref()).await;
            }
            _ => panic!("{item:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_a_cluster_lie_on_all_nodes_and_follow_a_slot_that_moves() {
    let cluster = RedisCluster::start(3, 0).await;
    let gateway = builder().cluster(&cluster).start().await;
    let mut streams = Vec::new();
    for n in 0..12 {
        let id = format!("s{n}");
        let slot: u16 = cluster.cmd(0, &["CLUSTER", "KEYSLOT", &super::producer::key(&id)]).await;
        let owner = cluster.owner(slot).await;
        let producer = Producer::at(cluster.node(owner).port(), &id).await;
        let client = Client::resume(gateway.public, BOTH[n % 2], &id, None).await;
        streams.push((id, slot, owner, producer, client));
    }
    let owners: std::collections::BTreeSet<_> = streams.iter().map(|(_, _, owner, ..)| *owner).collect();
    assert_eq!(owners.len(), 3, "the streams should lie on all nodes");
    for (_, _, _, producer, client) in &mut streams {
        producer.tokens(0..30).await;
        assert_eq!(client.texts(30).await, texts(0..30));
    }
    let (id, slot, from, _, client) = &mut streams[0];
    let to = (*from + 1) % 3;
    cluster.migrate_slot(*slot, *from, to).await;
    let mut producer = Producer::at(cluster.node(to).port(), id).await;
    producer.tokens(30..60).await;
    producer.end().await;
    assert_eq!(client.texts(30).await, texts(30..60));
    client.next_of("end").await;
}

/// A line now and then and not one per read, or whoever may ask for streams could fill the log.
#[tokio::test]
async fn what_redis_refuses_is_counted_and_logged_once() {
    let (redis, gateway) = world().await;
    let mut producer = Producer::new(&redis, "a").await;
    producer.tokens(0..1).await;
    let mut clients = Vec::new();
    for transport in BOTH {
        let mut client = Client::resume(gateway.public, transport, "a", None).await;
        assert_eq!(client.texts(1).await, texts(0..1));
        clients.push(client);
    }
    let acl = async |rule: &str| redis.cmd::<()>(&["ACL", "SETUSER", "default", rule]).await;
    let n_logged = |what: &str| gateway.log().matches(what).count();
    acl("-xread").await;
    gateway.metric_fits("reads fail", "stream_reads_failed_total", &[], DUE, |n| n > 10.0).await;
    assert_eq!((n_logged("refuses to let streams be read"), n_logged("'xread'")), (1, 1));
    producer.tokens(1..3).await;
    acl("+xread").await;
    for client in &mut clients {
        assert_eq!(client.texts(2).await, texts(1..3));
    }
    acl("-xrange").await;
    for transport in BOTH.repeat(2) {
        assert_eq!(Client::open(gateway.public, transport, "id=a", &[]).await.err(), Some(503));
    }
    assert_eq!((n_logged("refuses to let a stream be read"), n_logged("'xrange'")), (1, 1));
}
