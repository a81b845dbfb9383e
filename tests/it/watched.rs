//! What the publisher can see of who watches what, of sessions of every kind.
//!
//! Not here: replicas, users and faults (`watchers`).

use super::support::chaos::ChaosProxy;
use super::support::cluster::RedisCluster;
use super::support::gateway::Gateway;
use super::support::publisher::{slot, watcher_key};
use super::support::raw_ws::RawWs;
use super::support::redis::RedisServer;
use super::support::sse::Sse;
use super::support::token::token;
use super::support::wait::{let_pass, wait_for};
use super::support::world::World;
use super::support::ws::Ws;
use serde_json::json;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(3);

/// Waits until so many members stand for watchers of an instrument.
async fn n_watchers(redis: &RedisServer, id: i64, n: u64, within: Duration) {
    let key = watcher_key(id);
    wait_for(&format!("{n} watchers of {id}"), within, || async {
        let found: u64 = redis.cmd(&["SCARD", &key]).await;
        (found == n).then_some(())
    })
    .await;
}

#[tokio::test]
async fn r34_the_watcher_key_has_the_exact_id() {
    let world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:9007199254740993"]).await;
    n_watchers(&world.redis, 9_007_199_254_740_993, 1, SOON).await;
    n_watchers(&world.redis, 9_007_199_254_740_992, 0, SOON).await;
    let ttl: i64 = world.redis.cmd(&["TTL", &watcher_key(9_007_199_254_740_993)]).await;
    assert!((1..=600).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn r18_watchers_are_registered_on_every_shard_with_their_time_to_live() {
    let cluster = RedisCluster::start(3, 0).await;
    let gateway = Gateway::builder().cluster(&cluster).partitions(4).start().await;
    let mut ws = Ws::open_as(&gateway, "7").await;
    ws.subscribe(&["quote:101", "quote:102", "quote:201"]).await;
    for id in [101, 102, 201] {
        let (key, owner) = (watcher_key(id), cluster.owner(slot(&watcher_key(id))).await);
        wait_for("a watcher with its time to live", SOON, || async {
            let n: u64 = cluster.cmd(owner, &["SCARD", &key]).await;
            let ttl: i64 = cluster.cmd(owner, &["TTL", &key]).await;
            (n == 1 && ttl > 0).then_some(())
        })
        .await;
    }
}

/// The clients are gone before their watchers are written.
#[tokio::test]
async fn r26_clients_that_leave_while_they_subscribe_leave_no_watchers() {
    let redis = RedisServer::start().await;
    let proxy = ChaosProxy::start(&redis.address()).await;
    let builder = Gateway::builder().redis_at(&[proxy.address()]).set("redis.command_timeout", "'3s'");
    let gateway = builder.start().await;
    proxy.delay(Duration::from_millis(100));
    let mut control = Ws::open_as(&gateway, "control").await;
    control.subscribe(&["quote:101"]).await;
    let topics: Vec<String> = (101..=120).map(|id| format!("quote:{id}")).collect();
    let subscribe = json!({ "type": "subscribe", "request_id": "r", "topics": topics }).to_string();
    let auth = json!({ "type": "auth", "token": token("leaver") }).to_string();
    for _ in 0..100 {
        let mut ws = RawWs::connect(gateway.public).await;
        ws.send(&auth).await;
        ws.send(&subscribe).await;
        let_pass(Duration::from_millis(20)).await;
        ws.reset();
    }
    for id in 102..=120 {
        n_watchers(&redis, id, 0, Duration::from_secs(5)).await;
    }
    n_watchers(&redis, 101, 1, SOON).await;
}

#[tokio::test]
async fn watchers_go_with_the_session_however_it_ends() {
    let world = World::start().await;
    let mut unsubscribes = Ws::open_as(&world.gateway, "1").await;
    unsubscribes.subscribe(&["quote:101"]).await;
    let mut closes = Ws::open_as(&world.gateway, "2").await;
    closes.subscribe(&["quote:101"]).await;
    let mut vanishes = RawWs::connect(world.gateway.public).await;
    vanishes.send(&json!({ "type": "auth", "token": token("3") }).to_string()).await;
    vanishes.send(&json!({ "type": "subscribe", "topics": ["quote:101"] }).to_string()).await;
    let mut streams = Sse::open(&world.gateway, &token("4"), "quote:101").await;
    streams.acknowledgement().await;
    n_watchers(&world.redis, 101, 4, SOON).await;
    unsubscribes.unsubscribe(&["quote:101"]).await;
    n_watchers(&world.redis, 101, 3, SOON).await;
    closes.close().await;
    n_watchers(&world.redis, 101, 2, SOON).await;
    vanishes.reset();
    n_watchers(&world.redis, 101, 1, SOON).await;
    drop(streams);
    n_watchers(&world.redis, 101, 0, SOON).await;
}
