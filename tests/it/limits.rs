//! What a client may cost: fragments, topics, heads, descriptors, series, connections per second.

use super::support::gateway::Gateway;
use super::support::http;
use super::support::publisher::watcher_key;
use super::support::raw_ws::{RawWs, TEXT};
use super::support::sse::Sse;
use super::support::token::token;
use super::support::wait::{let_pass, wait_for, wait_until};
use super::support::world::World;
use super::support::ws::{Heard, Ws};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// `session.max_message_bytes` by default.
const LIMIT: usize = 64 * 1024;

/// First bytes of a text frame and of a continuation that aren't the last fragment, and of a last one.
const TEXT_BEGINS: u8 = 0x01;
const GOES_ON: u8 = 0x00;
const ENDS: u8 = 0x80;

#[tokio::test]
async fn r21_fragments_count_together_against_the_limit_of_a_message() {
    const CONNECTIONS: usize = 20;
    let mut world = World::start().await;
    let rss = world.gateway.process().rss();
    let mut endless = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut ws = RawWs::connect(world.gateway.public).await;
        ws.send_frame(TEXT_BEGINS, &[b'x'; 1024]).await.unwrap();
        for _ in 1..LIMIT / 1024 {
            ws.send_frame(GOES_ON, &[b'x'; 1024]).await.unwrap();
        }
        endless.push(ws);
    }
    let grown = world.gateway.process().rss().saturating_sub(rss);
    assert!(grown < (CONNECTIONS * 2 * LIMIT) as u64 + (4 << 20), "{grown} bytes for unfinished messages");
    for mut ws in endless {
        ws.send_frame(GOES_ON, b"x").await.unwrap();
        assert_eq!(ws.next().await.expect("a close frame").close(), (1009, "message_too_big"));
    }

    // Exactly the limit is an ordinary message, whole or in pieces; one byte more is too much.
    let padded = |length: usize| {
        let message = r#"{"type":"ping","ts":7}"#;
        message.to_owned() + &" ".repeat(length - message.len())
    };
    let mut ws = RawWs::connect(world.gateway.public).await;
    ws.send(&padded(LIMIT)).await;
    assert!(ws.next_text().await.starts_with(r#"{"type":"pong","ts":7"#));
    let pieces = padded(LIMIT);
    ws.send_frame(TEXT_BEGINS, &pieces.as_bytes()[..LIMIT / 2]).await.unwrap();
    ws.send_frame(ENDS, &pieces.as_bytes()[LIMIT / 2..]).await.unwrap();
    assert!(ws.next_text().await.starts_with(r#"{"type":"pong","ts":7"#));
    // It may be closed while the last bytes are still on their way.
    let _ = ws.send_frame(TEXT, padded(LIMIT + 1).as_bytes()).await;
    assert_eq!(ws.next().await.expect("a close frame").close(), (1009, "message_too_big"));
    let closed = [("reason", "message_too_big")];
    world.gateway.metric_is("sessions_closed_total", &closed, SOON, CONNECTIONS as f64 + 1.0).await;
}

#[tokio::test]
async fn r37_a_session_has_as_many_topics_as_it_may_however_many_it_asks_for() {
    const MOST: usize = 200;
    // As many as fit into a message.
    const PER_MESSAGE: i64 = 4_000;
    let mut world = World::start().await;
    let mut control = Ws::open_as(&world.gateway, "control").await;
    control.subscribe(&["quote:101"]).await;
    let mut greedy = RawWs::connect(world.gateway.public).await;
    greedy.send(&json!({ "type": "auth", "token": token("greedy") }).to_string()).await;
    greedy.next_text().await;
    let topics = |n: i64| -> Vec<String> {
        (0..PER_MESSAGE).map(|i| format!("quote:{}", 1_000_000 + n * PER_MESSAGE + i)).collect()
    };
    let rss = world.gateway.process().rss();
    let n_added = world.redis.n_calls("sadd").await;
    let (mut n_subscribed, mut n_rejected) = (0, 0);
    for n in 0..20 {
        greedy.send(&json!({ "type": "subscribe", "request_id": n, "topics": topics(n) }).to_string()).await;
        let answer: Value = serde_json::from_str(&greedy.next_text().await).unwrap();
        n_subscribed += answer["subscribed"].as_array().unwrap().len();
        let reasons = answer["rejected_reasons"].as_array().unwrap();
        assert!(reasons.iter().all(|reason| reason == "limit_exceeded"));
        n_rejected += reasons.len();
        world.announce(101, "71000.10", n + 1).await;
        assert!(control.next_event().await.contains(&format!(r#""eventTs":{},"#, n + 1)));
    }
    assert_eq!((n_subscribed, n_rejected), (MOST, 20 * PER_MESSAGE as usize - MOST));
    world.gateway.metric_is("subscriptions", &[], SOON, MOST as f64 + 1.0).await;
    world.gateway.metric_is("watcher_members", &[], SOON, MOST as f64 + 1.0).await;
    let n_added = world.redis.n_calls("sadd").await - n_added;
    assert!(n_added <= MOST as u64 + 10, "{n_added} additions to watcher keys");
    let grown = world.gateway.process().rss().saturating_sub(rss);
    assert!(grown < 8 << 20, "{grown} bytes for {MOST} topics");

    for n in 0..20 {
        greedy
            .send(&json!({ "type": "unsubscribe", "request_id": n, "topics": topics(n) }).to_string())
            .await;
        let answer = greedy.next_text().await;
        assert!(
            answer.starts_with(&format!(r#"{{"type":"unsubscribe","request_id":{n},"ok":true"#)),
            "{answer}"
        );
    }
    drop(greedy);
    world.gateway.metric_is("subscriptions", &[], SOON, 1.0).await;
    world.gateway.metric_is("watcher_members", &[], SOON, 1.0).await;
    assert_eq!(world.redis.cmd::<u64>(&["EXISTS", &watcher_key(1_000_000)]).await, 0);
}

#[tokio::test]
async fn r50_heads_that_come_drop_by_drop_are_cut_off_and_disturb_nobody() {
    const SOCKETS: usize = 300;
    let limit = Duration::from_secs(3);
    let mut gateway =
        Gateway::builder().set("redis.mode", "'embedded'").set("listen.header_timeout", "'3s'").start().await;
    let n_descriptors = gateway.process().n_descriptors();
    let begun = Instant::now();
    let drops = (0..SOCKETS).map(|_| async {
        let mut stream = TcpStream::connect(gateway.public).await.unwrap();
        stream.write_all(b"GET /market/ws HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
        loop {
            let mut byte = [0];
            match tokio::time::timeout(Duration::from_secs(1), stream.read(&mut byte)).await {
                // An answer may come before the end.
                Ok(Ok(n)) if n > 0 => {}
                Ok(_) => return begun.elapsed(),
                Err(_) => drop(stream.write_all(b"x").await),
            }
        }
    });
    let others = async {
        for user in 0..5 {
            let mut ws = Ws::open_as(&gateway, &user.to_string()).await;
            ws.subscribe(&["quote:1"]).await;
            let_pass(limit / 6).await;
        }
        begun.elapsed()
    };
    let (ends, served) = tokio::join!(join_all(drops), others);
    let first = *ends.iter().min().unwrap();
    let last = *ends.iter().max().unwrap();
    assert!(first >= limit, "cut off after {first:?}, before the limit");
    assert!(last < limit + SOON, "the last one held out for {last:?}");
    assert!(served < last, "five sessions took {served:?}, longer than all slow heads");
    wait_until("all descriptors are back", SOON, || gateway.process().n_descriptors() <= n_descriptors).await;
    gateway.metric_is("connections_unadmitted", &[], SOON, 0.0).await;
}

#[tokio::test]
async fn r51_without_descriptors_it_neither_ends_nor_spins_and_recovers() {
    const HOLD: Duration = Duration::from_secs(5);
    let mut world = World::start_with(|builder| builder.descriptors(128)).await;
    let mut control = Ws::open_as(&world.gateway, "control").await;
    control.subscribe(&["quote:101"]).await;
    let cpu = world.gateway.process().cpu_time();
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(TcpStream::connect(world.gateway.public).await.unwrap());
    }
    let begun = Instant::now();
    let mut n = 0;
    while begun.elapsed() < HOLD {
        n += 1;
        world.announce(101, "71000.10", n).await;
        assert!(control.next_event().await.contains(&format!(r#""eventTs":{n},"#)));
        let_pass(Duration::from_millis(200)).await;
    }
    let share = (world.gateway.process().cpu_time() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    assert!(share < 0.5, "{share} of a core");
    assert!(world.gateway.process().is_running());
    let log = world.gateway.log();
    assert!(log.matches("can't accept connections").count() <= 2, "{log}");
    drop(held);
    wait_for("a new session", SOON, || async {
        let mut ws = Ws::connect(world.gateway.public, "/market/ws", &[]).await.ok()?;
        ws.auth(&token("new")).await;
        Some(ws)
    })
    .await;
    let refused = world.gateway.metrics().await.sum("refusals_total", &[("reason", "descriptors")]);
    assert!(refused >= 50.0, "{refused} of 200 refused for want of descriptors");
}

#[tokio::test]
async fn r60_nothing_that_clients_make_up_becomes_a_series() {
    const CONNECTIONS: usize = 2_000;
    const AT_ONCE: usize = 40;
    let gateway = Gateway::builder().set("redis.mode", "'embedded'").start().await;
    let visit = async |n: usize| {
        if n.is_multiple_of(2) {
            let (path, host, origin, agent) =
                (format!("/p{n}"), format!("h{n}"), format!("https://o{n}.test"), format!("a{n}"));
            let headers =
                [("X-Host", host.as_str()), ("Origin", origin.as_str()), ("User-Agent", agent.as_str())];
            assert_eq!(http::get(gateway.public, &path, &headers).await.head.status, 404);
            return;
        }
        let mut ws = RawWs::connect(gateway.public).await;
        for message in [
            json!({ "type": "auth", "token": token(&format!("subject-{n}")) }),
            json!({ "type": format!("t{n}") }),
            json!({ "type": "subscribe", "topics": [format!("quote:{n}"), format!("x{n}:1")] }),
        ] {
            ws.send(&message.to_string()).await;
            ws.next_text().await;
        }
        let code = 3_000 + n as u16 % 2_000;
        let close = [&code.to_be_bytes(), format!("reason {n}").as_bytes()].concat();
        ws.send_frame(super::support::raw_ws::CLOSE, &close).await.unwrap();
        ws.next().await;
    };
    // One of each, so that what shows with its first value is there.
    visit(0).await;
    visit(1).await;
    gateway.metric_is("sessions", &[], SOON, 0.0).await;
    let before = gateway.metrics().await.text.lines().count();
    for chunk in (2..CONNECTIONS).collect::<Vec<_>>().chunks(AT_ONCE) {
        join_all(chunk.iter().map(|&n| visit(n))).await;
    }
    gateway.metric_is("sessions_opened_total", &[], SOON, CONNECTIONS as f64 / 2.0).await;
    let after = gateway.metrics().await.text.lines().count();
    assert!(after <= before + 20, "{before} lines of metrics before, {after} after");
}

/// Whoever is over the rate is told when to come again, and the rest isn't touched; what was refused leaves nothing.
#[tokio::test]
async fn a_storm_over_the_accept_rate_is_told_to_come_again_and_leaves_nothing() {
    const CONNECTIONS: usize = 600;
    let mut gateway = Gateway::builder()
        .set("redis.mode", "'embedded'")
        .set("limits.accepts_per_second", "100")
        .start()
        .await;
    let n_descriptors = gateway.process().n_descriptors();
    let begun = Instant::now();
    let opened = (0..CONNECTIONS).map(|_| Ws::connect(gateway.public, "/market/ws", &[]));
    let opened = join_all(opened).await;
    let took = begun.elapsed();
    let (sessions, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
    for answer in refused.iter().filter_map(|refused| refused.as_ref().err()) {
        assert_eq!((answer.head.status, answer.head.header("retry-after")), (503, "1"), "{answer:?}");
    }
    // A second's worth at once, and the rate for as long as it took.
    let most = 100.0 * (1.0 + took.as_secs_f64()) + 1.0;
    assert!(sessions.len() >= 100 && sessions.len() as f64 <= most, "{} in {took:?}", sessions.len());
    let by_rate = [("reason", "accept_rate")];
    assert!((gateway.metrics().await.sum("refusals_total", &by_rate) - refused.len() as f64).abs() < 0.5);
    assert!((gateway.metrics().await.sum("refusals_total", &[]) - refused.len() as f64).abs() < 0.5);
    drop((sessions, refused));
    wait_until("all descriptors are back", SOON, || gateway.process().n_descriptors() <= n_descriptors).await;
    // The bucket is full again after a second.
    let_pass(Duration::from_millis(1_100)).await;
    for answer in join_all((0..50).map(|_| http::get(gateway.public, "/market/prices?ids=1", &[]))).await {
        assert_eq!(answer.head.status, 401, "{answer:?}");
    }
}

/// A message that goes on for ever is cut off, also when it comes after a good session began.
#[tokio::test]
async fn the_inbound_rate_ends_who_talks_too_much_and_nobody_else() {
    let world = World::start().await;
    let mut quiet = Ws::open_as(&world.gateway, "quiet").await;
    let mut loud = Ws::open_as(&world.gateway, "loud").await;
    for n in 0..100 {
        loud.send(json!({ "type": "ping", "ts": n }).to_string());
    }
    assert_eq!(loud.closed(SOON).await, (1008, "rate_limited".into()));
    quiet.subscribe(&["quote:1"]).await;
    assert_eq!(quiet.all_within(Duration::from_millis(100)).await, Vec::<Heard>::new());
}

/// Reads until the newest and gives how many events came.
async fn n_until(ws: &mut Ws, newest: i64) -> usize {
    let mut n = 1;
    while !ws.next_event().await.contains(&format!(r#""eventTs":{newest},"#)) {
        n += 1;
    }
    n
}

#[tokio::test]
async fn a_subscription_gets_the_newest_at_the_pace_that_it_asked_for() {
    const QUOTES: i64 = 40;
    let mut world = World::start().await;
    let mut paced = Ws::open_as(&world.gateway, "paced").await;
    paced.send(r#"{"type":"subscribe","request_id":"r","topics":["quote:101"],"max_rate_hz":2}"#);
    assert!(paced.next_text().await.contains(r#""subscribed":["quote:101"]"#));
    let bearer = format!("Bearer {}", token("stream"));
    let path = "/market/sse?topics=quote:101&max_rate_hz=2";
    let headers = [("Authorization", bearer.as_str())];
    let mut stream = Sse::connect(world.gateway.public, path, &headers).await.expect("a stream");
    stream.acknowledgement().await;
    let begun = Instant::now();
    for ts in 1..=QUOTES {
        world.announce(101, "71000.10", ts).await;
        let_pass(Duration::from_millis(50)).await;
    }
    let n = n_until(&mut paced, QUOTES).await;
    let mut n_streamed = 1;
    while !stream.next_event().await.contains(&format!(r#""eventTs":{QUOTES},"#)) {
        n_streamed += 1;
    }
    let most = 2.0 * begun.elapsed().as_secs_f64() + 2.0;
    assert!(n >= 2 && n as f64 <= most, "{n} events in {:?}", begun.elapsed());
    assert!(n_streamed >= 2 && n_streamed as f64 <= most, "{n_streamed} events in {:?}", begun.elapsed());

    // Subscribed again without a pace, it gets every one that comes alone.
    paced.subscribe(&["quote:101"]).await;
    let begun = Instant::now();
    for ts in QUOTES + 1..=QUOTES + 10 {
        world.announce(101, "71000.10", ts).await;
        assert_eq!(n_until(&mut paced, ts).await, 1);
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}, the old pace is five seconds", begun.elapsed());
}
