//! What publishers send, usable or not.

use super::support::publisher::CHANNEL;
use super::support::world::World;
use super::support::ws::Ws;
use std::time::{Duration, Instant};

/// Ids of the connections that subscribe.
async fn subscribers(world: &World) -> Vec<String> {
    let list: String = world.redis.cmd(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    let id = |line: &str| line.split(' ').find(|field| field.starts_with("id=")).map(str::to_owned);
    list.lines().filter_map(id).collect()
}

#[tokio::test]
async fn r09_one_bad_message_stops_nothing() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    let before = subscribers(&world).await;
    assert!(!before.is_empty());

    let huge = format!(r#"{{"stockId":101,"close":1,"at":"{}"}}"#, "x".repeat(5_000_000));
    let bad: [&[u8]; 9] = [
        b"",
        b"foo",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        br#"{"stockId":"101","close":1}"#,
        br#"{"stockId":101.5,"close":1}"#,
        huge.as_bytes(),
    ];
    for payload in bad {
        world.publisher.announce_raw(CHANNEL, payload).await;
    }
    // No price, but an instrument: usable by the contract, and no harm either.
    world.say(r#"{"stockId":101}"#).await;
    let published = Instant::now();
    world.say(r#"{"stockId":101,"ts":1760000000001,"close":71000.10}"#).await;
    loop {
        let event = ws.next_event().await;
        if event.contains("71000.10") {
            break;
        }
        assert!(!event.contains("price"), "{event}");
    }
    assert!(published.elapsed() < Duration::from_secs(1), "{:?}", published.elapsed());
    let within = Duration::from_secs(2);
    world.gateway.metric_is("upstream_payloads_dropped_total", &[], within, bad.len() as f64).await;
    world.gateway.metric_is("upstream_payloads_dropped_total", &[("reason", "too_large")], within, 1.0).await;
    assert_eq!(subscribers(&world).await, before, "the subscriber keeps its connection");
    assert!(world.gateway.log().len() < 100_000, "the log doesn't print five megabytes");

    // A flood of them is told about, but not line by line.
    let lines_before = world.gateway.log().lines().count();
    for _ in 0..5_000 {
        world.say("foo").await;
    }
    world
        .gateway
        .metric_is("upstream_payloads_dropped_total", &[("reason", "not_json")], within, 5_000.0 + 3.0)
        .await;
    assert!(world.gateway.log().lines().count() < lines_before + 100);
}
