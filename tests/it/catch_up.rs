//! What a session is shown first, and how it fits to what comes live.

use super::support::chaos::ChaosProxy;
use super::support::cluster::RedisCluster;
use super::support::gateway::Gateway;
use super::support::http;
use super::support::publisher::{Publisher, Statement, price_key, slot};
use super::support::redis::{RedisServer, connect};
use super::support::token::token;
use super::support::wait::{let_pass, wait_for};
use super::support::world::World;
use super::support::ws::{Heard, Ws};
use std::time::{Duration, Instant};

/// How long the answer of a read is held. Half a second shows the race; the rest is for the publisher of
/// a busy machine, which must be done well before the answer comes.
const HOLD: Duration = Duration::from_secs(1);

/// A gateway whose reads of price keys take a second, and everything else no time.
async fn world_with_slow_reads() -> (RedisServer, ChaosProxy, Gateway, Publisher) {
    let redis = RedisServer::start().await;
    let proxy = ChaosProxy::start(&redis.address()).await;
    let slow = Gateway::builder().redis_at(&[proxy.address()]).set("redis.command_timeout", "'3s'");
    let gateway = slow.start().await;
    proxy.hold_responses_to("market:current-price:", HOLD);
    let publisher = Publisher::standalone(&redis, 1);
    (redis, proxy, gateway, publisher)
}

#[tokio::test]
async fn r30_a_stored_price_never_overtakes_the_live_one() {
    for also_stored in [false, true] {
        let (_redis, _proxy, gateway, mut publisher) = world_with_slow_reads().await;
        publisher.store(&Statement::new(101, "10", 1000)).await;
        let mut ws = Ws::open_as(&gateway, "7").await;
        let asked = Instant::now();
        ws.subscribe(&["quote:101"]).await;
        let_pass(Duration::from_millis(200)).await;
        let live = Statement::new(101, "20", 2000);
        if also_stored {
            publisher.store(&live).await;
        }
        publisher.announce(&live).await;
        let first = ws.next_event().await;
        assert!(first.contains(r#""price":20,"#), "stored too: {also_stored}: {first}");
        assert!(asked.elapsed() < HOLD, "the live quote waits for no read");
        let after: Vec<Heard> = ws.all_within(2 * HOLD).await;
        let old = |heard: &Heard| !matches!(heard, Heard::Text(text) if text.contains(r#""price":20,"#));
        assert!(after.len() <= 1 && !after.iter().any(old), "stored too: {also_stored}: {after:?}");
    }
}

#[tokio::test]
async fn a_slow_read_is_shown_when_nothing_came_live() {
    let (_redis, _proxy, gateway, mut publisher) = world_with_slow_reads().await;
    publisher.store(&Statement::new(101, "10", 1000)).await;
    let mut ws = Ws::open_as(&gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    let event = ws.next_event().await;
    assert!(event.contains(r#""price":10,"#) && event.contains(r#""initial":true"#), "{event}");
}

#[tokio::test]
async fn a_second_session_is_served_from_memory() {
    let mut world = World::start().await;
    world.store(101, "71000.10", 1000).await;
    let mut first = Ws::open_as(&world.gateway, "7").await;
    first.subscribe(&["quote:101"]).await;
    first.next_event().await;
    world.announce(101, "71000.20", 2000).await;
    first.next_event().await;
    let n_keys_read = || async {
        let metrics = world.gateway.metrics().await;
        metrics.sum("snapshot_keys_total", &[])
    };
    let before = n_keys_read().await;
    let mut second = Ws::open_as(&world.gateway, "8").await;
    second.subscribe(&["quote:101"]).await;
    let event = second.next_event().await;
    assert!(event.contains("71000.20") && event.contains(r#""initial":true"#), "{event}");
    assert!((n_keys_read().await - before).abs() < 0.5, "no key is read again");
}

/// One failing command in a pipeline must not shift the answers of the others.
#[tokio::test]
async fn r12_a_key_of_the_wrong_type_spoils_no_other_answer() {
    const ROUNDS: i64 = 200;
    const SESSIONS: usize = 50;
    let world = World::start_with(|builder| builder.set("session.max_inbound_per_second", "100000")).await;
    let mut connection = connect(world.redis.port()).await.unwrap();
    for round in 0..ROUNDS {
        let mut pipeline = redis::pipe();
        for id in [1, 3, 4].map(|i| round * 10 + i) {
            let value = format!(r#"{{"stockId":{id},"price":{id}0.5}}"#);
            pipeline.cmd("SET").arg(price_key(id)).arg(value).ignore();
        }
        pipeline.cmd("HSET").arg(price_key(round * 10 + 2)).arg("a").arg(1).ignore();
        pipeline.query_async::<()>(&mut connection).await.unwrap();
    }
    let mut sessions = tokio::task::JoinSet::new();
    for user in 0..SESSIONS {
        let mut ws = Ws::open_as(&world.gateway, &user.to_string()).await;
        sessions.spawn(async move {
            for round in 0..ROUNDS {
                let topic = |i: i64| format!("quote:{}", round * 10 + i);
                let topics = [1, 2, 3, 4].map(topic);
                ws.subscribe(&[&topics[0], &topics[1], &topics[2]]).await;
                let mut seen = vec![ws.next_event().await, ws.next_event().await];
                ws.subscribe(&[&topics[3]]).await;
                seen.push(ws.next_event().await);
                for event in seen {
                    let json: serde_json::Value = serde_json::from_str(&event).unwrap();
                    let id = json["data"]["stockId"].as_i64().unwrap();
                    assert_eq!(json["topic"], format!("quote:{id}"), "{event}");
                    assert_ne!(id, round * 10 + 2, "{event}");
                    assert!(event.contains(&format!(r#""price":{id}0.5"#)), "{event}");
                }
                ws.unsubscribe(&[&topics[0], &topics[1], &topics[2], &topics[3]]).await;
            }
        });
    }
    while let Some(session) = sessions.join_next().await {
        session.unwrap();
    }
    let metrics = world.gateway.metrics().await;
    assert!(metrics.sum("snapshot_keys_unusable_total", &[("reason", "wrong_type")]) >= ROUNDS as f64);
    assert!((metrics.sum("sessions_opened_total", &[]) - SESSIONS as f64).abs() < 0.5);
}

/// Ids whose keys lie on the shard that serves `like`.
fn neighbours(like: i64, first: i64) -> i64 {
    let shard = |id| slot(&price_key(id)) / 5462;
    (first..).find(|&id| shard(id) == shard(like)).unwrap()
}

#[tokio::test]
async fn r18_topics_of_several_shards_are_read_together_and_fail_apart() {
    let cluster = RedisCluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]).await;
    let gateway = Gateway::builder().cluster(&cluster).partitions(4).start().await;
    let mut publisher = Publisher::sharded(&cluster, 4);
    let ids = [101, 102, 201];
    let others = ids.map(|id| neighbours(id, 1000));
    for id in ids.into_iter().chain(others) {
        publisher.store(&Statement::new(id, &format!("{id}.50"), 1)).await;
    }
    let topics = |ids: &[i64]| ids.iter().map(|id| format!("quote:{id}")).collect::<Vec<_>>();
    let subscribe = async |ws: &mut Ws, ids: &[i64]| {
        let topics = topics(ids);
        ws.subscribe(&topics.iter().map(String::as_str).collect::<Vec<_>>()).await;
    };

    let n_pipelines = async || gateway.metrics().await.sum("redis_pipelines_total", &[]);
    let before = n_pipelines().await;
    let mut ws = Ws::open_as(&gateway, "7").await;
    subscribe(&mut ws, &ids).await;
    let mut prices = Vec::new();
    for _ in ids {
        prices.push(ws.next_event().await);
    }
    // A read and a registration per shard, and the replica's own sign of life.
    let round_trips = n_pipelines().await - before;
    assert!(round_trips <= 8.0, "{round_trips} round trips for three topics on three shards");
    for id in ids {
        assert!(
            prices.iter().any(|event| event.contains(&format!(r#""price":{id}.50"#))),
            "{id} in {prices:?}"
        );
    }

    let down = cluster.owner(slot(&price_key(102))).await;
    cluster.freeze(down);
    let mut late = Ws::open_as(&gateway, "8").await;
    let asked = Instant::now();
    subscribe(&mut late, &others).await;
    let first_two = [late.next_event().await, late.next_event().await];
    assert!(asked.elapsed() < Duration::from_secs(1), "healthy shards answer at once: {:?}", asked.elapsed());
    for id in [others[0], others[2]] {
        assert!(
            first_two.iter().any(|event| event.contains(&format!(r#""price":{id}.50"#))),
            "{first_two:?}"
        );
    }
    gateway
        .metric_fits(
            "the failed read is counted",
            "snapshot_keys_total",
            &[("result", "failed")],
            Duration::from_secs(3),
            |n| n >= 1.0,
        )
        .await;
    cluster.thaw(down);
    let healed = late.next_event().await;
    assert!(healed.contains(&format!(r#""price":{}.50"#, others[1])), "{healed}");
}

#[tokio::test]
async fn prices_come_from_where_snapshots_come_from() {
    let mut world = World::start().await;
    world.store(1, "71000.10", 1000).await;
    world.announce(2, "0.0", 1).await;
    let bearer = format!("Bearer {}", token("7"));
    let headers = [("Authorization", bearer.as_str())];
    let answer = wait_for("both prices", Duration::from_secs(3), || async {
        let answer = http::get(world.gateway.public, "/market/prices?ids=1,2,3", &headers).await;
        answer.body.contains(r#""price":0.0"#).then_some(answer)
    })
    .await;
    assert_eq!(answer.head.status, 200, "{answer:?}");
    assert!(answer.head.header("content-type").starts_with("application/json"), "{answer:?}");
    assert!(answer.body.contains(r#""price":71000.10"#), "{}", answer.body);
    assert!(answer.json().is_object(), "{}", answer.body);
}
