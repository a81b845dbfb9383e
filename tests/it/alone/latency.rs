//! How long a single small frame takes.

use crate::support::publisher::{CHANNEL, Publisher, Statement};
use crate::support::raw_ws::RawWs;
use crate::support::sse::Sse;
use crate::support::token::token;
use crate::support::wait::wait_until;
use crate::support::world::World;
use crate::support::ws::Ws;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

const QUOTES: usize = 1_000;
const APART: Duration = Duration::from_millis(5);

/// With Nagle's algorithm a small frame waits for the acknowledgement of the one before, which a
/// client that has nothing to say delays by 40 ms: quotes would come eight at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r69_small_frames_are_not_held_back() {
    let world = World::start().await;
    let mut ws = RawWs::connect(world.gateway.public).await;
    ws.send(&json!({ "type": "auth", "token": token("7") }).to_string()).await;
    ws.next_text().await;
    ws.send(&json!({ "type": "subscribe", "topics": ["quote:101"] }).to_string()).await;
    ws.next_text().await;

    let start = Instant::now();
    let mut publisher = Publisher::standalone(&world.redis, 1);
    let publishing = tokio::spawn(async move {
        let mut sent = Vec::new();
        let mut ticks = tokio::time::interval(APART);
        for n in 0..QUOTES {
            ticks.tick().await;
            let message = Statement::new(101, "1.0", n as i64 + 1).message();
            sent.push(start.elapsed());
            publisher.announce_raw(CHANNEL, message.as_bytes()).await;
        }
        sent
    });
    let mut arrived = vec![None; QUOTES];
    while arrived.last().is_some_and(Option::is_none) {
        // Delayed acknowledgements are the rule only for connections that the kernel believes idle.
        let _ = socket2::SockRef::from(&ws.stream).set_tcp_quickack(false);
        let text = ws.next_text().await;
        let ts = text.split(r#""eventTs":"#).nth(1).unwrap().split(',').next().unwrap();
        arrived[ts.parse::<usize>().unwrap() - 1] = Some(start.elapsed());
    }
    let sent = publishing.await.unwrap();
    let pairs = arrived.iter().zip(&sent);
    let mut delays: Vec<Duration> = pairs.filter_map(|(a, s)| Some(a.as_ref()?.saturating_sub(*s))).collect();
    delays.sort();
    let (median, p99) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
    let times: Vec<Duration> = arrived.into_iter().flatten().collect();
    let bunched = |window: &&[Duration]| window[3] - window[0] < Duration::from_millis(1);
    let n_bunches = times.windows(4).filter(bunched).count();
    println!("{} quotes, {APART:?} apart: median {median:?}, p99 {p99:?}, {n_bunches} bunches", times.len());
    // A busy machine delays some; held back frames would all come in bunches, 20 ms late on average.
    assert!(median < Duration::from_millis(10), "median {median:?}, p99 {p99:?}");
    assert!(n_bunches <= QUOTES / 4, "{n_bunches} times four quotes at once");
}

/// The option itself, on every kind of connection, read from the gateway's own descriptors.
#[tokio::test]
async fn r69_every_accepted_connection_sends_at_once() {
    let mut world = World::start().await;
    let _ws = Ws::open_as(&world.gateway, "7").await;
    let mut sse = Sse::open(&world.gateway, &token("7"), "quote:101").await;
    sse.acknowledgement().await;
    let _undecided = TcpStream::connect(world.gateway.public).await.unwrap();
    let (public, process) = (world.gateway.public, world.gateway.process());
    wait_until("three connections, all without delay", Duration::from_secs(3), || {
        let sockets = process.sockets();
        let of_browsers = sockets.iter().filter(|socket| {
            let local = socket.local_addr().ok().and_then(|address| address.as_socket());
            local == Some(public) && socket.peer_addr().is_ok()
        });
        let delays: Vec<bool> = of_browsers.map(|socket| socket.tcp_nodelay().unwrap()).collect();
        delays.len() == 3 && delays.iter().all(|without| *without)
    })
    .await;
}
