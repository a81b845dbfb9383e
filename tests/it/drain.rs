//! The end of a process: told, in time, with exit code 0.

use super::support::http;
use super::support::raw_ws::RawWs;
use super::support::sse::{Item, Sse};
use super::support::token::token;
use super::support::wait::{let_pass, wait_for};
use super::support::world::World;
use super::support::ws::{Heard, Ws};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// The drain deadline of test gateways, and a second.
const DRAINED: Duration = Duration::from_secs(6);

#[tokio::test]
async fn every_session_is_told_to_reconnect_and_the_exit_is_clean() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    let mut sse = Sse::open(&world.gateway, &token("8"), "quote:101").await;
    sse.acknowledgement().await;
    world.gateway.process().stop();
    let advice = ws.next_of("reconnect").await;
    let after_ms = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap()["after_ms"].as_u64();
    assert!(after_ms(&advice).is_some_and(|ms| ms < 60_000), "{advice}");
    assert_eq!(ws.closed(DRAINED).await, (1012, "service_restart".into()));

    let (mut advised, mut retry) = (None, None);
    loop {
        match sse.next().await {
            Item::Event { name, data, .. } if name == "reconnect" => advised = after_ms(&data),
            Item::Retry(ms) if advised.is_some() => retry = Some(ms),
            Item::End => break,
            _ => {}
        }
    }
    assert!(advised.is_some() && retry.is_some(), "advice {advised:?}, retry {retry:?}");
    let status = world.gateway.process().ended(DRAINED).await;
    assert_eq!(status.code(), Some(0), "{status:?}");
}

#[tokio::test]
async fn quotes_flow_until_the_close() {
    let mut world = World::start_with(|builder| {
        builder.set("drain.notice", "'1s'").set("drain.deadline", "'6s'").set("drain.reconnect_rate", "1")
    })
    .await;
    let mut sessions = Vec::new();
    for user in ["7", "8", "9"] {
        let mut ws = Ws::open_as(&world.gateway, user).await;
        ws.subscribe(&["quote:101"]).await;
        sessions.push(ws);
    }
    world.gateway.process().stop();
    sessions[0].next_of("reconnect").await;
    // Closings are a second apart, so that somebody is still there after the first.
    let_pass(Duration::from_millis(1_200)).await;
    world.announce(101, "71000.10", 1).await;
    let mut n_saw = 0;
    for ws in &mut sessions {
        let heard = ws.all_within(Duration::from_secs(7)).await;
        n_saw +=
            usize::from(heard.iter().any(|h| matches!(h, Heard::Text(text) if text.contains("71000.10"))));
        assert!(heard.contains(&Heard::Close(1012, "service_restart".into())), "{heard:?}");
    }
    assert!(n_saw >= 1, "nobody got a quote while the process drained");
    assert_eq!(world.gateway.process().ended(DRAINED).await.code(), Some(0));
}

#[tokio::test]
async fn a_draining_process_is_not_ready_at_once_and_then_admits_nobody() {
    let mut world = World::start_with(|builder| builder.set("drain.reconnect_rate", "1")).await;
    let mut sessions = Vec::new();
    for user in ["7", "8", "9", "10"] {
        sessions.push(Ws::open_as(&world.gateway, user).await);
    }
    world.gateway.process().stop();
    wait_for("readiness fails at once", Duration::from_secs(1), || async {
        let answer = world.gateway.readiness().await;
        (answer.head.status == 503 && answer.body.contains("drain")).then_some(())
    })
    .await;
    assert_eq!(http::get(world.gateway.admin, "/livez", &[]).await.head.status, 200);
    sessions[0].next_of("reconnect").await;
    let bearer = format!("Bearer {}", token("11"));
    let headers = [("Authorization", bearer.as_str())];
    let path = "/market/sse?topics=quote:1";
    match http::try_request(world.gateway.public, "GET", path, &headers, "").await {
        // A connection that waits to be accepted when the listener closes is reset.
        Err(refused) => {
            let is_refusal =
                matches!(refused.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset);
            assert!(is_refusal, "{refused}");
        }
        Ok(answer) => {
            assert_eq!(answer.head.status, 503, "{answer:?}");
            assert!(!answer.head.header("retry-after").is_empty(), "{answer:?}");
        }
    }
    assert_eq!(world.gateway.process().ended(DRAINED).await.code(), Some(0));
}

#[tokio::test]
async fn r52_idle_streams_and_readers_that_stopped_do_not_hold_the_exit_up() {
    const INSTRUMENTS: i64 = 200;
    let mut world = World::start_with(|builder| builder.set("drain.notice", "'500ms'")).await;
    let mut idle = Vec::new();
    for user in 0..10 {
        let mut sse = Sse::open(&world.gateway, &token(&user.to_string()), "quote:101").await;
        sse.acknowledgement().await;
        idle.push(sse);
    }
    let mut stopped = RawWs::connect_with(world.gateway.public, Some(4096), &[]).await;
    let auth = serde_json::json!({ "type": "auth", "token": token("stopped") }).to_string();
    stopped.send(&auth).await;
    let topics: Vec<String> = (1_001..=1_000 + INSTRUMENTS).map(|id| format!("quote:{id}")).collect();
    stopped.send(&serde_json::json!({ "type": "subscribe", "topics": topics }).to_string()).await;
    world.gateway.metric_is("subscriptions", &[], DRAINED, INSTRUMENTS as f64 + 10.0).await;
    // More than its kernel and ours take together: something is always left to be written.
    for n in 1..=5 {
        for id in 1_001..=1_000 + INSTRUMENTS {
            world.announce(id, "71000.10", n).await;
        }
    }
    let what = "its pipe is full";
    world.gateway.metric_fits(what, "deliveries_pending", &[], DRAINED, |pending| pending > 0.0).await;
    let watched = async || world.redis.cmd::<Vec<String>>(&["KEYS", "market:current-watcher:*"]).await.len();
    wait_for("all are watched", DRAINED, || async {
        (watched().await == INSTRUMENTS as usize + 1).then_some(())
    })
    .await;

    let signalled = Instant::now();
    world.gateway.process().stop();
    wait_for("readiness fails", DRAINED, || async {
        let answer = http::try_request(world.gateway.admin, "GET", "/readyz", &[], "").await.ok()?;
        (answer.head.status == 503).then_some(())
    })
    .await;
    wait_for("new connections are refused", DRAINED, || async {
        let path = "/market/prices?ids=1";
        let refused = http::try_request(world.gateway.public, "GET", path, &[], "").await;
        refused.is_err().then_some(())
    })
    .await;
    let status = world.gateway.process().ended(DRAINED).await;
    assert_eq!(status.code(), Some(0), "{status:?}");
    // The grace of the drain and a second, and what a busy machine takes to notice.
    assert!(signalled.elapsed() < DRAINED + Duration::from_secs(4), "{:?}", signalled.elapsed());
    for sse in &mut idle {
        sse.ended(Duration::from_secs(1)).await;
    }
    assert_eq!(watched().await, 0, "watchers are left");
}
