//! Clients that don't read: served from Redis when they do, and never from memory.

use super::client::{BOTH, Client, DUE, Item, Transport};
use super::producer::{Producer, key};
use super::{builder, world};
use crate::support::redis::{RedisServer, connect};
use serde_json::json;

/// Entries of four kilobytes each, more than kernel buffers take.
const ENTRIES: usize = 2_000;

async fn write_much(redis: &RedisServer, id: &str) {
    let mut connection = connect(redis.port()).await.unwrap();
    let padding = "x".repeat(4_000);
    for chunk in 0..ENTRIES / 500 {
        let mut pipeline = redis::pipe();
        for n in chunk * 500..(chunk + 1) * 500 {
            pipeline.cmd("XADD").arg(key(id)).arg("*").arg("data").arg(format!("{n} {padding}")).ignore();
        }
        pipeline.query_async::<()>(&mut connection).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_client_is_served_later_from_redis_and_not_from_memory() {
    let redis = RedisServer::start().await;
    let mut gateway = builder()
        .redis(&redis)
        .set("session.slow_consumer_grace", "'10m'")
        .set("session.pong_timeout", "'10m'")
        .start()
        .await;
    let mut clients = Vec::new();
    for transport in BOTH.repeat(2) {
        clients.push(Client::resume(gateway.public, transport, "a", None).await);
    }
    // The first entry is there, so that what is measured begins with sessions that live.
    let mut producer = Producer::new(&redis, "a").await;
    producer.add(&[("data", b"first")]).await;
    for client in &mut clients {
        client.next_of("entry").await;
    }
    let before = gateway.process().rss();
    write_much(&redis, "a").await;
    producer.end().await;
    let read = (ENTRIES + 2) as f64;
    gateway
        .metric_fits("the reader has read all", "stream_entries_read_total", &[], DUE, |n| n >= read - 150.0)
        .await;
    let grown = gateway.process().rss().saturating_sub(before);
    // Four clients are behind by eight megabytes each.
    assert!(grown < 16 << 20, "{grown} bytes more");
    for client in &mut clients {
        for n in 0..ENTRIES {
            let entry = client.next_of("entry").await;
            let text = entry["data"].as_str().unwrap();
            assert_eq!(text.split(' ').next(), Some(n.to_string().as_str()));
        }
        client.next_of("end").await;
    }
    let metrics = gateway.metrics().await;
    assert!(metrics.sum("stream_pages_total", &[]) > 10.0);
    assert_eq!(metrics.sum("stream_gaps_total", &[]), 0.0);
    let grown = gateway.process().rss().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more after all was read");
}

#[tokio::test]
async fn a_client_that_takes_nothing_for_the_grace_is_closed_and_resumes_without_a_loss() {
    let redis = RedisServer::start().await;
    let gateway = builder().redis(&redis).set("session.slow_consumer_grace", "'500ms'").start().await;
    write_much(&redis, "a").await;
    for transport in BOTH {
        let mut client = Client::resume(gateway.public, transport, "a", None).await;
        let closed = [("reason", "slow_consumer")];
        let n_closed = if transport == Transport::Sse { 1.0 } else { 2.0 };
        gateway.metric_is("stream_sessions_closed_total", &closed, DUE, n_closed).await;
        let mut n_read = 0;
        loop {
            match client.next().await {
                item if item.is("entry") => n_read += 1,
                item if item.is("close") => assert_eq!(item.json()["code"], json!(4500)),
                Item::Closed(code, _) => assert_eq!(code, 4500),
                Item::End | Item::Cut => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(n_read < ENTRIES, "it was slow");
        let mut again = Client::resume(gateway.public, transport, "a", client.cursor.as_deref()).await;
        let next = again.next_of("entry").await;
        let text = next["data"].as_str().unwrap();
        assert_eq!(text.split(' ').next(), Some(n_read.to_string().as_str()), "{transport:?}");
    }
}

#[tokio::test]
async fn an_entry_that_is_too_large_is_told_and_the_next_one_comes() {
    let (redis, gateway) = world().await;
    let mut producer = Producer::new(&redis, "a").await;
    let large = producer.add(&[("data", &vec![b'x'; 300 * 1024])]).await;
    let most = "y".repeat(256 * 1024);
    producer.add(&[("data", most.as_bytes())]).await;
    for transport in BOTH {
        let mut client = Client::resume(gateway.public, transport, "a", None).await;
        let told = json!({ "type": "gap", "id": large, "reason": "too_large", "missing": 1 });
        assert_eq!(client.next_of("gap").await, told);
        assert_eq!(client.next_of("entry").await["data"], json!(most));
    }
    gateway.metric_is("stream_gaps_total", &[("reason", "too_large")], DUE, 2.0).await;
    assert!(gateway.metrics().await.sum("stream_entries_delivered_total", &[]) >= 2.0);
}
