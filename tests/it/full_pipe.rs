//! Clients that stop reading while quotes come, as in the field: what waits for them is bounded and the newest.
//!
//! Not here: the same in small (`slow_consumer`).

use super::support::publisher::{CHANNEL, Statement, watcher_key};
use super::support::raw_ws::{CLOSE, PING, PONG, RawWs, TEXT};
use super::support::redis::{RedisServer, connect};
use super::support::token::token;
use super::support::wait::{let_pass, wait_for, wait_until};
use super::support::world::World;
use super::support::ws::Ws;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(15);

/// A session on the instruments from 1 to `n`, whose kernel takes little.
async fn reader(world: &World, n: i64) -> RawWs {
    let mut ws = RawWs::connect_with(world.gateway.public, Some(4096), &[]).await;
    ws.send(&json!({ "type": "auth", "token": token("stopped") }).to_string()).await;
    ws.next_text().await;
    let topics: Vec<String> = (1..=n).map(|id| format!("quote:{id}")).collect();
    ws.send(&json!({ "type": "subscribe", "topics": topics }).to_string()).await;
    let answer = ws.next_text().await;
    assert!(answer.contains(r#""rejected":[]"#), "{answer}");
    ws
}

/// Publishes one version of the instruments from 1 to `n`.
async fn round(connection: &mut redis::aio::MultiplexedConnection, n: i64, version: i64) {
    let mut pipeline = redis::pipe();
    for id in 1..=n {
        let message = Statement::new(id, "71000.10", version).message();
        pipeline.cmd("PUBLISH").arg(CHANNEL).arg(message).ignore();
    }
    pipeline.query_async::<()>(connection).await.unwrap();
}

async fn n_watchers(redis: &RedisServer, id: i64) -> u64 {
    redis.cmd(&["SCARD", &watcher_key(id)]).await
}

/// The close frame can't be delivered into a full pipe, and the client's own is never waited for.
#[tokio::test]
async fn r23_a_blocked_send_stops_neither_reading_nor_the_end() {
    const INSTRUMENTS: i64 = 200;
    let mut world = World::start_with(|builder| builder.set("session.max_inbound_per_second", "1000")).await;
    let mut control = Ws::open_as(&world.gateway, "control").await;
    control.subscribe(&["quote:1"]).await;
    let n_connections = world.gateway.n_connections();
    let mut stopped = reader(&world, INSTRUMENTS).await;
    wait_for("both are watched", SOON, || async {
        (n_watchers(&world.redis, 1).await == 2 && n_watchers(&world.redis, 200).await == 1).then_some(())
    })
    .await;
    let mut connection = connect(world.redis.port()).await.unwrap();
    let (begun, mut version, mut n_pongs) = (Instant::now(), 0, 0);
    let reason = [("reason", "slow_consumer")];
    while world.gateway.metrics().await.sum("sessions_closed_total", &reason) < 0.5 {
        version += 1;
        round(&mut connection, INSTRUMENTS, version).await;
        while !control.next_event().await.contains(&format!(r#""eventTs":{version},"#)) {}
        // It is read all the time: its pongs keep it alive, and it is too slow all the same.
        n_pongs += u32::from(stopped.send_frame(TEXT, br#"{"type":"pong"}"#).await.is_ok());
        assert!(begun.elapsed() < 2 * SOON, "not closed for being slow");
    }
    assert!(begun.elapsed() > Duration::from_millis(2_800), "after {:?}", begun.elapsed());
    // Both sessions' first two messages make up for pongs that the close overtook.
    let n_read = world.gateway.metrics().await.sum("inbound_messages_total", &[]);
    assert!(n_pongs > 10 && n_read >= f64::from(n_pongs), "{n_read} messages read, {n_pongs} pongs sent");
    // Its own close comes too late for anybody.
    let _ = stopped.send_frame(CLOSE, &1000u16.to_be_bytes()).await;
    world.gateway.metric_is("sessions", &[], SOON, 1.0).await;
    wait_for("its watchers go", SOON, || async {
        (n_watchers(&world.redis, 1).await == 1 && n_watchers(&world.redis, 200).await == 0).then_some(())
    })
    .await;
    wait_until("its descriptor is closed", SOON, || world.gateway.n_connections() <= n_connections).await;
    round(&mut connection, 1, version + 1).await;
    while !control.next_event().await.contains(&format!(r#""eventTs":{},"#, version + 1)) {}
    world.gateway.metric_is("deliveries_imbalance", &[], SOON, 0.0).await;
}

#[tokio::test]
async fn r25_what_waits_is_one_quote_per_topic_and_the_newest() {
    const TOPICS: i64 = 500;
    const ROUNDS: i64 = 400;
    let mut world = World::start_with(|builder| {
        let builder = builder.set("session.max_topics", "500").set("session.pong_timeout", "'60s'");
        // Two hundred thousand quotes take a debug build on a busy machine longer than two seconds.
        builder.set("session.slow_consumer_grace", "'120s'")
    })
    .await;
    let mut ws = reader(&world, TOPICS).await;
    let rss = world.gateway.process().rss();
    let mut connection = connect(world.redis.port()).await.unwrap();
    for version in 1..=ROUNDS {
        round(&mut connection, TOPICS, version).await;
        if version % 50 == 0 {
            let pending = world.gateway.metrics().await.sum("deliveries_pending", &[]);
            // The quote whose frame was begun is on its way, and the next one of its topic waits.
            assert!(pending <= TOPICS as f64 + 1.0, "{pending} pending for {TOPICS} topics");
        }
    }
    let all = (ROUNDS * TOPICS) as f64;
    world.gateway.metric_is("deliveries_offered_total", &[], 4 * SOON, all).await;
    let grown = world.gateway.process().rss().saturating_sub(rss);
    assert!(grown < 5 << 20, "{grown} bytes more for one reader that stopped");

    let mut newest = vec![0; TOPICS as usize + 1];
    while newest[1..].iter().any(|&version| version < ROUNDS) {
        let event: Value = serde_json::from_str(&ws.next_text().await).unwrap();
        let id = event["data"]["stockId"].as_i64().unwrap() as usize;
        newest[id] = event["data"]["eventTs"].as_i64().unwrap();
    }
    // It isn't deaf, on any topic.
    round(&mut connection, TOPICS, ROUNDS + 1).await;
    while newest[1..].iter().any(|&version| version <= ROUNDS) {
        let event: Value = serde_json::from_str(&ws.next_text().await).unwrap();
        newest[event["data"]["stockId"].as_i64().unwrap() as usize] =
            event["data"]["eventTs"].as_i64().unwrap();
    }
    let metrics = world.gateway.metrics().await;
    let (delivered, conflated) =
        (metrics.sum("deliveries_delivered_total", &[]), metrics.sum("deliveries_conflated_total", &[]));
    assert!(conflated > 0.0 && delivered < all / 2.0, "{delivered} delivered, {conflated} replaced of {all}");
    world.gateway.metric_is("deliveries_imbalance", &[], SOON, 0.0).await;
}

/// Sends a ping of either kind; the message's stamp and the frame's payload are `n`.
async fn ping(ws: &mut RawWs, n: usize) {
    ws.send(&json!({ "type": "ping", "ts": n }).to_string()).await;
    ws.send_frame(PING, n.to_string().as_bytes()).await.unwrap();
}

/// Whoever reads nothing gets no heartbeats and lives by what it sends, and what it asks for has a bound.
#[tokio::test]
async fn pings_into_a_full_pipe_keep_the_session_and_let_nothing_grow() {
    const INSTRUMENTS: i64 = 200;
    // Ten seconds: longer than a silence of two missed pongs with the timers of tests.
    const SLOW: usize = 100;
    const AT_ONCE: usize = 4_000;
    let mut world = World::start_with(|builder| {
        let builder = builder.set("session.heartbeat_interval", "'1s'");
        let builder = builder.set("session.slow_consumer_grace", "'120s'");
        builder.set("session.max_inbound_per_second", "100000")
    })
    .await;
    let mut ws = reader(&world, INSTRUMENTS).await;
    let mut connection = connect(world.redis.port()).await.unwrap();
    let mut version = 0;
    while world.gateway.metrics().await.sum("deliveries_pending", &[]) < INSTRUMENTS as f64 / 2.0 {
        version += 1;
        round(&mut connection, INSTRUMENTS, version).await;
    }
    for n in 0..SLOW {
        ping(&mut ws, n).await;
        let_pass(Duration::from_millis(100)).await;
    }
    world.gateway.metric_is("sessions", &[], SOON, 1.0).await;
    let read = world.gateway.metrics().await.sum("inbound_messages_total", &[]);
    assert!(
        read > SLOW as f64,
        "{read} messages read; beside a full pipe a client is read from all the same"
    );

    // So many answers are more than wait for one session. It is no longer read from, and alive all the same.
    let rss = world.gateway.process().rss();
    for n in SLOW..SLOW + AT_ONCE {
        ping(&mut ws, n).await;
    }
    let_pass(Duration::from_secs(1)).await;
    let grown = world.gateway.process().rss().saturating_sub(rss);
    assert!(grown < 1 << 20, "{grown} bytes more for pings");
    let (mut n_messages, mut n_frames, mut n_heartbeats) = (0, 0, 0);
    let mut newest = vec![0; INSTRUMENTS as usize + 1];
    while n_messages < SLOW + AT_ONCE || n_frames < SLOW + AT_ONCE {
        let frame = ws.next().await.expect("the session is open");
        if frame.first == PONG {
            assert_eq!(frame.payload, n_frames.to_string().as_bytes());
            n_frames += 1;
            continue;
        }
        assert_eq!(frame.first, TEXT, "{frame:?}");
        let json: Value = serde_json::from_str(frame.text()).unwrap();
        match json["type"].as_str() {
            Some("pong") => {
                assert_eq!(json["ts"], n_messages);
                n_messages += 1;
            }
            // Before these the pipe wasn't full, and behind them it is no longer.
            Some("ping") => n_heartbeats += usize::from((1..SLOW).contains(&n_messages)),
            _ => {
                newest[json["data"]["stockId"].as_u64().unwrap() as usize] =
                    json["data"]["eventTs"].as_i64().unwrap()
            }
        }
    }
    assert_eq!(n_heartbeats, 0, "heartbeats waited");
    while newest[1..].iter().any(|&seen| seen < version) {
        let event: Value = serde_json::from_str(&ws.next_text().await).unwrap();
        newest[event["data"]["stockId"].as_u64().unwrap() as usize] =
            event["data"]["eventTs"].as_i64().unwrap();
    }
    world.gateway.metric_is("deliveries_imbalance", &[], SOON, 0.0).await;
}
