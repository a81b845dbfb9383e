//! Readers that are slow or stop: they skip to the newest, or go, and nobody else notices.

use super::support::publisher::{CHANNEL, Statement};
use super::support::raw_ws::{RawWs, TEXT};
use super::support::redis::connect;
use super::support::token::token;
use super::support::wait::let_pass;
use super::support::world::World;
use super::support::ws::Ws;
use serde_json::json;
use std::time::{Duration, Instant};

const INSTRUMENTS: i64 = 200;

/// A session on all instruments, whose kernel takes little.
async fn reader(world: &World, user: &str) -> RawWs {
    let mut ws = RawWs::connect_with(world.gateway.public, Some(4096), &[]).await;
    ws.send(&json!({ "type": "auth", "token": token(user) }).to_string()).await;
    ws.next_text().await;
    let topics: Vec<String> = (1..=INSTRUMENTS).map(|id| format!("quote:{id}")).collect();
    ws.send(&json!({ "type": "subscribe", "topics": topics }).to_string()).await;
    ws.next_text().await;
    ws
}

/// Publishes one version of every instrument.
async fn round(world: &World, version: i64) {
    let mut connection = connect(world.redis.port()).await.unwrap();
    let mut pipeline = redis::pipe();
    for id in 1..=INSTRUMENTS {
        let message = Statement::new(id, "71000.10", version).message();
        pipeline.cmd("PUBLISH").arg(CHANNEL).arg(message).ignore();
    }
    pipeline.query_async::<()>(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_slow_session_skips_to_the_newest_quotes() {
    const ROUNDS: i64 = 200;
    let mut world = World::start_with(|builder| {
        builder.set("session.slow_consumer_grace", "'60s'").set("session.pong_timeout", "'30s'")
    })
    .await;
    let mut ws = reader(&world, "slow").await;
    let rss = world.gateway.process().rss();
    // Eight megabytes of frames for a session that reads nothing.
    for version in 1..=ROUNDS {
        round(&world, version).await;
    }
    let all = (ROUNDS * INSTRUMENTS) as f64;
    let within = Duration::from_secs(20);
    world.gateway.metric_is("deliveries_offered_total", &[], within, all).await;
    let grown = world.gateway.process().rss().saturating_sub(rss);
    assert!(grown < 5 << 20, "{grown} bytes more for one reader that stopped");

    let mut newest = vec![0; INSTRUMENTS as usize + 1];
    let mut n_events = 0;
    while newest[1..].iter().any(|&version| version < ROUNDS) {
        let text = ws.next_text().await;
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let id = json["data"]["stockId"].as_i64().unwrap() as usize;
        let version = json["data"]["eventTs"].as_i64().unwrap();
        assert!(version > newest[id], "{version} after {} of {id}", newest[id]);
        newest[id] = version;
        n_events += 1;
    }
    assert!(n_events < ROUNDS * INSTRUMENTS / 4, "{n_events} events: old ones are replaced, not queued");
    round(&world, ROUNDS + 1).await;
    assert!(
        ws.next_text().await.contains(&format!(r#""eventTs":{},"#, ROUNDS + 1)),
        "the session is not deaf"
    );
    let metrics = world.gateway.metrics().await;
    assert!(metrics.sum("deliveries_conflated_total", &[]) > 0.0);
    world.gateway.metric_is("deliveries_imbalance", &[], Duration::from_secs(2), 0.0).await;
}

#[tokio::test]
async fn a_reader_that_stopped_is_closed_after_the_grace_and_disturbs_nobody() {
    // It sends a pong per round, which come faster than a client may talk by default.
    let world = World::start_with(|builder| builder.set("session.max_inbound_per_second", "1000")).await;
    let mut stopped = reader(&world, "stopped").await;
    let mut control = Ws::open_as(&world.gateway, "control").await;
    control.subscribe(&["quote:1"]).await;
    let started = Instant::now();
    let mut version = 0;
    let closed = async |world: &World| {
        world.gateway.metrics().await.sum("sessions_closed_total", &[("reason", "slow_consumer")]) > 0.5
    };
    while !closed(&world).await {
        version += 1;
        round(&world, version).await;
        // It is alive by its pongs, and still too slow.
        let _ = stopped.send_frame(TEXT, br#"{"type":"pong"}"#).await;
        let published = Instant::now();
        while !control.next_event().await.contains(&format!(r#""eventTs":{version},"#)) {}
        assert!(published.elapsed() < Duration::from_secs(1), "the control session waits");
        assert!(started.elapsed() < Duration::from_secs(8), "not closed in time");
        let_pass(Duration::from_millis(20)).await;
    }
    // The sweep's clock ticks ten times a second.
    let early = Duration::from_secs(3).saturating_sub(started.elapsed());
    assert!(early < Duration::from_millis(200), "closed {early:?} before the grace is over");
    // What is left in the kernel's buffers comes, then the end; 4500 where the frame still fits.
    let last = loop {
        match stopped.next().await {
            Some(frame) if frame.first == TEXT => {}
            other => break other,
        }
    };
    if let Some(close) = last {
        assert_eq!(close.close(), (4500, "slow_consumer"));
    }
    world.gateway.metric_is("sessions", &[], Duration::from_secs(2), 1.0).await;
    world.gateway.metric_is("deliveries_imbalance", &[], Duration::from_secs(2), 0.0).await;
    let dropped = world.gateway.metrics().await.sum("deliveries_dropped_total", &[]);
    assert!(dropped > 0.0, "what it never got is counted");
}

#[tokio::test]
async fn a_stream_that_nobody_reads_ends_too() {
    let mut world = World::start().await;
    let topics: Vec<String> = (1..=INSTRUMENTS).map(|id| format!("quote:{id}")).collect();
    let path = topics.join(",");
    let sse = super::support::sse::Sse::open(&world.gateway, &token("7"), &path).await;
    let started = Instant::now();
    let mut version = 0;
    while world.gateway.metrics().await.sum("sessions_closed_total", &[("reason", "slow_consumer")]) < 0.5 {
        version += 1;
        round(&world, version).await;
        assert!(started.elapsed() < Duration::from_secs(12), "not closed in time");
    }
    drop(sse);
    assert!(world.gateway.process().is_running());
    world.gateway.metric_is("sessions", &[], Duration::from_secs(2), 0.0).await;
}

/// Its requests wait in the kernel, where they cost it and not us.
#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_not_read_from() {
    const PINGS: usize = 20_000;
    let world = World::start_with(|builder| {
        let builder =
            builder.set("session.slow_consumer_grace", "'60s'").set("session.pong_timeout", "'30s'");
        builder.set("session.max_inbound_per_second", "100000")
    })
    .await;
    let mut ws = RawWs::connect_with(world.gateway.public, Some(4096), &[]).await;
    ws.send(&json!({ "type": "auth", "token": token("deaf") }).to_string()).await;
    ws.next_text().await;
    let mut requests = Vec::new();
    for n in 0..PINGS {
        push_masked(&mut requests, format!(r#"{{"type":"ping","ts":{n}}}"#).as_bytes());
    }
    // As many as go out unread: until nothing moved for a while.
    let mut rest = &requests[..];
    let quiet = Duration::from_millis(500);
    while !rest.is_empty() && tokio::time::timeout(quiet, ws.stream.writable()).await.is_ok() {
        rest = &rest[ws.stream.try_write(rest).unwrap_or(0)..];
    }
    let_pass(quiet).await;
    for n in 0..PINGS {
        rest = &rest[ws.stream.try_write(rest).unwrap_or(0)..];
        let answer = ws.next_text().await;
        assert!(answer.starts_with(&format!(r#"{{"type":"pong","ts":{n},"#)), "{answer}");
    }
    world.gateway.metric_is("sessions", &[], Duration::from_secs(2), 1.0).await;
}

/// A client's text frame of at most 125 bytes, under a mask of zeros.
fn push_masked(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend([TEXT, 0x80 | payload.len() as u8, 0, 0, 0, 0]);
    out.extend(payload);
}
