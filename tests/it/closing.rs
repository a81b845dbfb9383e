//! Ends that aren't as the book says: vanished clients, broken frames, close handshakes that nobody finishes.

use super::support::chaos::ChaosProxy;
use super::support::http::Head;
use super::support::publisher::watcher_key;
use super::support::raw_ws::{CLOSE, RawWs, TEXT};
use super::support::token::token;
use super::support::wait::{let_pass, wait_for, wait_until};
use super::support::world::World;
use super::support::ws::Ws;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(10);

async fn subscribed(to: SocketAddr, user: &str, more: &[(&str, &str)]) -> RawWs {
    let mut ws = RawWs::connect_with(to, None, more).await;
    ws.send(&json!({ "type": "auth", "token": token(user) }).to_string()).await;
    ws.next_text().await;
    ws.send(r#"{"type":"subscribe","request_id":"r","topics":["quote:101"]}"#).await;
    ws.next_text().await;
    ws
}

async fn is_watched(world: &World, id: i64, n: u64) {
    let key = watcher_key(id);
    wait_for(&format!("{n} watch {id}"), SOON, || async {
        (world.redis.cmd::<u64>(&["SCARD", &key]).await == n).then_some(())
    })
    .await;
}

/// Heartbeat, missed pongs and a sweep are about ten seconds with the timers of tests.
#[tokio::test]
async fn r54_a_client_that_vanishes_from_an_idle_topic_is_found_and_leaves_nothing() {
    let mut world = World::start().await;
    let mut control = Ws::open_as(&world.gateway, "control").await;
    control.subscribe(&["quote:101"]).await;
    let network = ChaosProxy::start(&world.gateway.public.to_string()).await;
    let n_connections = world.gateway.n_connections();
    let through = SocketAddr::from(([127, 0, 0, 1], network.port()));
    let _vanished = subscribed(through, "vanished", &[]).await;
    is_watched(&world, 101, 2).await;
    network.black_hole();
    let begun = Instant::now();
    let reason = [("reason", "pong_timeout")];
    world.gateway.metric_is("sessions_closed_total", &reason, 2 * SOON, 1.0).await;
    assert!(begun.elapsed() > Duration::from_secs(4), "found dead after {:?} already", begun.elapsed());
    world.gateway.metric_is("sessions", &[], SOON, 1.0).await;
    is_watched(&world, 101, 1).await;
    wait_until("its descriptor is closed", SOON, || world.gateway.n_connections() <= n_connections).await;
    world.announce(101, "71000.10", 1).await;
    assert!(control.next_event().await.contains("71000.10"));
}

#[tokio::test]
async fn r63_wrong_text_and_bits_end_the_session_and_a_cut_character_does_not() {
    let world = World::start().await;
    let to = world.gateway.public;
    let mut ws = subscribed(to, "7", &[]).await;
    ws.send_frame(TEXT, &[0xc3, 0x28]).await.unwrap();
    assert_eq!(ws.next().await.expect("a close frame").close().0, 1007);
    // The first reserved bit means compression, to which nobody agreed.
    let offer = [("Sec-WebSocket-Extensions", "permessage-deflate; client_max_window_bits")];
    let mut ws = subscribed(to, "7", &offer).await;
    let has_extensions = |head: &Head| !head.header("sec-websocket-extensions").is_empty();
    assert!(!has_extensions(&ws.head), "{:?}", ws.head);
    ws.send_frame(TEXT | 0x40, br#"{"type":"pong"}"#).await.unwrap();
    assert_eq!(ws.next().await.expect("a close frame").close().0, 1002);

    let mut ws = subscribed(to, "7", &[]).await;
    let message = r#"{"type":"subscribe","request_id":"가","topics":[]}"#.as_bytes();
    let cut = message.windows(3).position(|bytes| bytes == "가".as_bytes()).unwrap() + 1;
    ws.send_frame(TEXT & 0x0f, &message[..cut]).await.unwrap();
    ws.send_frame(0x80, &message[cut..]).await.unwrap();
    let answer = ws.next_text().await;
    assert!(answer.starts_with(r#"{"type":"subscribe","request_id":"가""#), "{answer}");
    for (reason, n) in [("invalid_text", 1.0), ("protocol_error", 1.0)] {
        world.gateway.metric_is("sessions_closed_total", &[("reason", reason)], SOON, n).await;
    }
}

/// The code in the server's close frame, after whatever comes before it.
async fn close_code(ws: &mut RawWs) -> u16 {
    loop {
        let frame = ws.next().await.expect("a close frame before the end");
        if frame.first != TEXT {
            return frame.close().0;
        }
    }
}

#[tokio::test]
async fn r64_a_close_is_answered_also_under_load_and_by_who_never_finishes_it() {
    let mut world = World::start().await;
    let to = world.gateway.public;
    let n_connections = world.gateway.n_connections();
    let goodbye = [&1000u16.to_be_bytes()[..], b"bye"].concat();

    // (a) The client waits for the answer and the end.
    let mut ws = subscribed(to, "7", &[]).await;
    ws.send_frame(CLOSE, &goodbye).await.unwrap();
    assert_eq!(close_code(&mut ws).await, 1000);
    assert_eq!(ws.next().await, None, "the connection ends after the close");

    // (b) The same while quotes come.
    let mut ws = subscribed(to, "7", &[]).await;
    for n in 1..=50 {
        world.announce(101, "71000.10", n).await;
        if n == 25 {
            ws.send_frame(CLOSE, &goodbye).await.unwrap();
        }
    }
    assert_eq!(close_code(&mut ws).await, 1000);
    assert_eq!(ws.next().await, None, "the connection ends after the close");
    let normal = [("reason", "normal")];
    world.gateway.metric_is("sessions_closed_total", &normal, SOON, 2.0).await;

    // (c) The client leaves TCP open and reads nothing.
    let mut ws = subscribed(to, "7", &[]).await;
    ws.send_frame(CLOSE, &goodbye).await.unwrap();
    world.gateway.metric_is("sessions_closed_total", &normal, SOON, 3.0).await;
    let (cpu, begun) = (world.gateway.process().cpu_time(), Instant::now());
    wait_until("its descriptor is closed", SOON, || world.gateway.n_connections() <= n_connections).await;
    let_pass(Duration::from_secs(1).saturating_sub(begun.elapsed())).await;
    let used = world.gateway.process().cpu_time() - cpu;
    assert!(used < begun.elapsed() / 2, "{used:?} of processor time in {:?}", begun.elapsed());
    assert!(!world.gateway.log().contains("ERROR"), "{}", world.gateway.log());
    drop(ws);
}
