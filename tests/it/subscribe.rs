//! Requests over WebSocket: what is answered, what is delivered after it, what is counted.

use super::support::chaos::ChaosProxy;
use super::support::gateway::Gateway;
use super::support::publisher::{Publisher, Statement};
use super::support::raw_ws::{RawWs, TEXT};
use super::support::redis::RedisServer;
use super::support::token::token;
use super::support::wait::let_pass;
use super::support::world::World;
use super::support::ws::{Heard, Ws};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

const SOON: Duration = Duration::from_secs(3);

fn list(acknowledgement: &str, name: &str) -> Vec<String> {
    let json: Value = serde_json::from_str(acknowledgement).unwrap();
    let elements = json[name].as_array().unwrap_or_else(|| panic!("no {name} in {acknowledgement}"));
    elements.iter().map(|element| element.as_str().unwrap().to_owned()).collect()
}

/// Waits for the fence, a message on a topic of its own, and gives what came before it.
async fn events_before_fence(world: &mut World, ws: &mut Ws, n: i64) -> Vec<String> {
    world.announce(999, "1", n).await;
    let mut before = Vec::new();
    loop {
        let event = ws.next_event().await;
        if event.contains(r#""topic":"quote:999""#) {
            return before;
        }
        before.push(event);
    }
}

#[tokio::test]
async fn messages_that_cannot_be_used_are_answered_and_the_session_goes_on() {
    let world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    for bad in [
        "",
        "foo",
        "{",
        "[]",
        "null",
        "{}",
        r#"{"type":"nope","request_id":"r1"}"#,
        r#"{"type":"subscribe","request_id":"r1"}"#,
        r#"{"type":"subscribe","request_id":"r1","topics":"quote:1"}"#,
        r#"{"type":"unsubscribe","request_id":"r1","topics":{}}"#,
    ] {
        ws.send(bad);
        let error: Value = serde_json::from_str(&ws.next_text().await).unwrap();
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("error"), &json!("BAD_REQUEST")),
            "{bad}: {error}"
        );
        assert!(!error["message"].as_str().unwrap().is_empty(), "{bad}: {error}");
        let expected = if bad.contains("r1") { "r1" } else { "" };
        assert_eq!(error["request_id"], expected, "{bad}");
    }
    ws.send(r#"{"type":"ping","ts":12.50}"#);
    let pong = ws.next_text().await;
    assert!(pong.starts_with(r#"{"type":"pong","ts":12.50,"server_ts":"#), "{pong}");
}

#[tokio::test]
async fn binary_frames_with_json_are_read_like_text() {
    let world = World::start().await;
    let mut ws = Ws::open(&world.gateway).await;
    let auth = json!({ "type": "auth", "token": token("7") }).to_string();
    ws.send_message(Message::binary(auth.into_bytes()));
    assert!(ws.next_text().await.starts_with(r#"{"type":"auth","ok":true,"ts":"#));
}

#[tokio::test]
async fn nothing_of_a_topic_follows_the_end_of_its_subscription() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:1", "quote:999"]).await;
    for n in 1..=50 {
        world.announce(1, "71000.10", n).await;
    }
    let acknowledgement = ws.unsubscribe(&["quote:1", "quote:2", "quote:x"]).await;
    assert_eq!(list(&acknowledgement, "unsubscribed"), ["quote:1"]);
    assert_eq!(list(&acknowledgement, "not_subscribed"), ["quote:2"]);
    assert_eq!(list(&acknowledgement, "rejected"), ["quote:x"]);
    assert!(
        acknowledgement.starts_with(r#"{"type":"unsubscribe","request_id":"r","ok":true,"#),
        "{acknowledgement}"
    );
    for n in 51..=100 {
        world.announce(1, "71000.20", n).await;
    }
    assert_eq!(events_before_fence(&mut world, &mut ws, 1).await, Vec::<String>::new());
}

#[tokio::test]
async fn r28_the_same_topic_subscribed_twice_is_one_subscription() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:999"]).await;
    let first = ws.subscribe(&["quote:101", "quote:101"]).await;
    assert_eq!(
        (list(&first, "subscribed"), list(&first, "already_subscribed")),
        (vec!["quote:101".into()], vec![])
    );
    let again = ws.subscribe(&["quote:101"]).await;
    assert_eq!(list(&again, "subscribed"), ["quote:101"]);
    assert_eq!(list(&again, "already_subscribed"), ["quote:101"]);
    world.gateway.metric_is("subscriptions", &[], SOON, 2.0).await;

    world.announce(101, "71000.10", 1).await;
    let events = events_before_fence(&mut world, &mut ws, 1).await;
    assert_eq!(events.len(), 1, "{events:?}");

    assert_eq!(list(&ws.unsubscribe(&["quote:101"]).await, "unsubscribed"), ["quote:101"]);
    world.announce(101, "71000.20", 2).await;
    assert_eq!(events_before_fence(&mut world, &mut ws, 2).await, Vec::<String>::new());
    world.gateway.metric_is("subscriptions", &[], SOON, 1.0).await;
}

#[tokio::test]
async fn r34_ids_above_2_to_the_53_keep_apart() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:9007199254740993"]).await;
    world.announce(9_007_199_254_740_992, "1.0", 1).await;
    world.announce(9_007_199_254_740_993, "2.0", 1).await;
    let event = ws.next_event().await;
    assert!(event.contains(r#""topic":"quote:9007199254740993""#), "{event}");
    assert!(event.contains(r#""stockId":9007199254740993,"#) && event.contains(r#""price":2.0"#), "{event}");
}

#[tokio::test]
async fn r35_every_spelling_of_an_id_is_one_topic_or_refused() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:999"]).await;
    let accepted = ["quote:5", "quote:005", "quote:-5", "quote:-0"];
    let refused = [
        "quote:+5",
        "quote: 5",
        "quote:5 ",
        "quote:",
        "QUOTE:5",
        "quote:5:1",
        "quote:0x5",
        "quote:5.0",
        "quote:1e3",
        "quote:++5",
        "quote:5_000",
        "quote:٥",
        "quote:9223372036854775808",
        "quote:5\0",
        "quote:5\n",
        "quotes:5",
        "",
    ];
    let acknowledgement = ws.subscribe(&[accepted.as_slice(), &refused].concat()).await;
    assert_eq!(list(&acknowledgement, "subscribed"), ["quote:5", "quote:-5", "quote:0"]);
    assert_eq!(list(&acknowledgement, "rejected"), refused);
    world.gateway.metric_is("subscriptions", &[], SOON, 4.0).await;

    world.announce(5, "71000.10", 1).await;
    let events = events_before_fence(&mut world, &mut ws, 1).await;
    assert_eq!(events.len(), 1, "{events:?}");

    for (i, spelling) in ["quote:5", "quote:005", "quote:0000005"].into_iter().enumerate() {
        assert_eq!(list(&ws.unsubscribe(&[spelling]).await, "unsubscribed"), ["quote:5"], "{spelling}");
        assert_eq!(list(&ws.unsubscribe(&["quote:5"]).await, "not_subscribed"), ["quote:5"], "{spelling}");
        world.announce(5, "71000.20", 10 + i as i64).await;
        assert_eq!(events_before_fence(&mut world, &mut ws, 10 + i as i64).await, Vec::<String>::new());
        ws.subscribe(&["quote:5"]).await;
        assert!(ws.next_event().await.contains(r#""initial":true"#));
    }
}

#[tokio::test]
async fn more_topics_than_a_session_may_have_are_rejected_one_by_one() {
    let world = World::start_with(|builder| builder.set("session.max_topics", "3")).await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    let acknowledgement = ws.subscribe(&["quote:1", "quote:2", "quote:3", "quote:4", "quote:x"]).await;
    assert_eq!(list(&acknowledgement, "subscribed"), ["quote:1", "quote:2", "quote:3"]);
    assert_eq!(list(&acknowledgement, "rejected"), ["quote:x", "quote:4"]);
    assert_eq!(list(&acknowledgement, "rejected_reasons"), ["invalid_topic", "limit_exceeded"]);
    // What is active stays active, and a place that is given back can be taken.
    ws.unsubscribe(&["quote:1"]).await;
    assert_eq!(list(&ws.subscribe(&["quote:2", "quote:4"]).await, "subscribed"), ["quote:2", "quote:4"]);
}

#[tokio::test]
async fn heartbeats_come_at_their_interval_and_are_enough_to_stay() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:1"]).await;
    // Longer than a client may be silent: pong timeout times the pongs that may be missed.
    assert_eq!(ws.all_within(Duration::from_secs(9)).await, []);
    assert!((3..=5).contains(&ws.n_pings), "{} pings in nine seconds", ws.n_pings);
    world.announce(1, "71000.10", 1).await;
    assert!(ws.next_event().await.contains("71000.10"));
}

#[tokio::test]
async fn who_answers_no_heartbeat_is_closed_as_unreliable() {
    let world = World::start().await;
    let mut silent = RawWs::connect(world.gateway.public).await;
    silent.send(&json!({ "type": "auth", "token": token("7") }).to_string()).await;
    let close = loop {
        let frame = silent.next().await.expect("a close frame before the end");
        if frame.first != TEXT {
            break frame;
        }
    };
    assert_eq!(close.close(), (4500, "pong_timeout"));
    world.gateway.metric_is("sessions_closed_total", &[("reason", "pong_timeout")], SOON, 1.0).await;
}

/// The subscription of a client that is gone before its watchers and snapshots are written and read
/// must not be left behind.
#[tokio::test]
async fn r26_a_client_that_leaves_while_it_subscribes_leaves_nothing() {
    const CLIENTS: usize = 500;
    let redis = RedisServer::start().await;
    let proxy = ChaosProxy::start(&redis.address()).await;
    // Everything through the proxy takes a tenth of a second each way.
    let gateway =
        Gateway::builder().redis_at(&[proxy.address()]).set("redis.command_timeout", "'3s'").start().await;
    let mut publisher = Publisher::standalone(&redis, 1);
    proxy.delay(Duration::from_millis(100));

    let mut control = Ws::open_as(&gateway, "control").await;
    control.subscribe(&["quote:101"]).await;
    let topics: Vec<String> = (101..=120).map(|id| format!("quote:{id}")).collect();
    let subscribe = json!({ "type": "subscribe", "request_id": "r", "topics": topics }).to_string();
    let auth = json!({ "type": "auth", "token": token("leaver") }).to_string();
    for _ in 0..CLIENTS {
        let mut ws = RawWs::connect(gateway.public).await;
        ws.send(&auth).await;
        ws.send(&subscribe).await;
        let_pass(Duration::from_millis(20)).await;
        ws.reset();
    }
    let within = Duration::from_secs(5);
    gateway.metric_is("sessions", &[], within, 1.0).await;
    gateway.metric_is("subscriptions", &[], within, 1.0).await;

    let before = gateway.metrics().await.sum("deliveries_offered_total", &[]);
    publisher.announce(&Statement::new(101, "71000.10", 1)).await;
    assert!(control.next_event().await.contains("71000.10"));
    gateway.metric_is("deliveries_offered_total", &[], SOON, before + 1.0).await;
    gateway.metric_is("deliveries_imbalance", &[], SOON, 0.0).await;
    assert_eq!(control.all_within(Duration::ZERO).await, Vec::<Heard>::new());
}
