//! The stack that an operator runs, run for real on a Docker Engine: `make test-compose`, and most of it in `make test`.
//!
//! One test, because the stack takes a minute to start; its steps are in the order in which they build on
//! each other, and each says what it claims.

mod browsers;
mod crowd;
mod library;
mod measure;
mod ports;
mod stack;
mod watch;

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::Stdio;
use std::task::Poll;
use std::time::{Duration, Instant};

use crowd::Crowd;
use library::Library;
use stack::Stack;

use super::proxies::tls::Tunnel;
use super::support::http;
use super::support::sse::{Item, Sse};
use super::support::token::token;
use super::support::wait::{in_time, let_pass, wait_for, wait_until};
use super::support::ws::Ws;

/// What takes a second; a busy machine needs many to ask three containers something.
const SOON: Duration = Duration::from_secs(60);

/// Restarts of containers, with a drain each.
const SLOW: Duration = Duration::from_secs(180);

fn topics(ids: std::ops::RangeInclusive<i64>) -> Vec<String> {
    ids.map(|id| format!("quote:{id}")).collect()
}

/// A step's name, what it claims, and what it does.
type Step<'a> = (&'a str, &'a str, Pin<Box<dyn Future<Output = ()> + 'a>>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Docker Engine and images; run by tests/compose/run.sh"]
async fn the_stack_holds_through_scaling_restarts_and_faults() {
    let only = std::env::var("COMPOSE_STEPS").unwrap_or_default();
    let only: Vec<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    let stack = Stack::new();
    let begun = Instant::now();
    eprintln!("compose: the balancer starts before any replica, and serves the first one within 15 s");
    let tunnel = starts_before_any_replica(&stack).await;
    eprintln!("  {:.0} s", begun.elapsed().as_secs_f64());
    let (s, t) = (&stack, &tunnel);
    let steps: [Step<'_>; 12] = [
        ("migrate", "the functions are loaded on every primary", Box::pin(migrates(s))),
        (
            "scale",
            "1 -> 3 -> 2 replicas, nginx untouched; each gets a fifth at least",
            Box::pin(scales(s, t)),
        ),
        (
            "recreate",
            "all replicas get new addresses; 50 of 50 handshakes succeed",
            Box::pin(recreates(s, t)),
        ),
        ("tabs", "eight tabs of a browser", Box::pin(browsers::open_many_tabs(s))),
        ("streams", "120 event streams on one connection", Box::pin(browsers::share_a_connection(s))),
        ("restart", "a rolling restart under load leaves nobody on an old price", Box::pin(restarts(s, t))),
        ("primary", "a Redis primary killed", Box::pin(loses_a_primary(s, t))),
        ("reload", "Caddy and nginx reloaded under 200 clients of the library", Box::pin(reloads(s))),
        ("ports", "ports run out at the balancer", Box::pin(ports::run_out(s, t))),
        ("watch", "Prometheus sees every replica, and answers every panel", Box::pin(watch::is_watched(s))),
        ("published", "nothing but the edge is published", Box::pin(ports::only_the_edge_is_published(s))),
        (
            "measure",
            "idle links live for 90 s, while latency is measured beside them",
            Box::pin(async {
                tokio::join!(idles(s, t), measure::report(s, t));
            }),
        ),
    ];
    for name in &only {
        assert!(steps.iter().any(|(known, ..)| known == name), "COMPOSE_STEPS: there is no step {name}");
    }
    let mut broken = Vec::new();
    for (name, claim, step) in steps {
        if !only.is_empty() && !only.contains(&name) {
            eprintln!("NOT TESTED: {claim}");
            continue;
        }
        let started = Instant::now();
        eprintln!("compose: {claim} [{name}]");
        if !holds(step).await {
            broken.push(name);
            stack.logs(name);
            // What it left running must not disturb the others.
            stack.compose(&["--profile", "demo", "stop", "-t", "5", "publisher"]).await;
        }
        eprintln!("  {:.0} s", started.elapsed().as_secs_f64());
    }
    eprintln!("compose: the whole took {:.0} s", begun.elapsed().as_secs_f64());
    assert!(broken.is_empty(), "broken: {broken:?}");
}

/// Whether a step comes to its end. One that panics has said why, and each begins with what it needs, so the others go on.
async fn holds(mut step: Pin<Box<dyn Future<Output = ()> + '_>>) -> bool {
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| step.as_mut().poll(cx))) {
        Ok(Poll::Ready(())) => Poll::Ready(true),
        Ok(Poll::Pending) => Poll::Pending,
        Err(_) => Poll::Ready(false),
    })
    .await
}

async fn starts_before_any_replica(stack: &Stack) -> Tunnel {
    stack.up(&["nginx", "caddy"]).await;
    let tunnel = stack.tunnel().await;
    let answer = http::get(tunnel.address, "/api/market/prices?ids=1", &[]).await;
    assert_eq!((answer.head.status, answer.head.header("retry-after")), (503, "1"), "{answer:?}");
    let nginx = stack.started("nginx").await;
    stack.compose(&["up", "-d", "--no-build", "redis-init"]).await;
    stack.scale(1).await;
    wait_for("a handshake succeeds", Duration::from_secs(15), || async {
        Ws::connect(tunnel.address, "/api/market/ws", &[]).await.ok()
    })
    .await;
    assert_eq!(stack.started("nginx").await, nginx, "nginx was not restarted");
    tunnel
}

/// Runs the one-shot service until every replica sees the functions on all three primaries.
async fn migrates(stack: &Stack) {
    stack.compose(&["up", "-d", "--no-build", "migrate"]).await;
    for node in ["redis-1", "redis-2", "redis-3"] {
        wait_for(&format!("{node} has the function"), SLOW, || async {
            let list = stack.compose(&["exec", "-T", node, "redis-cli", "function", "list"]).await;
            list.contains("tickbridge_publish_1").then_some(())
        })
        .await;
    }
    wait_for("each replica sees the functions on every primary", SLOW, || async {
        let current = stack.each("schema_primaries", &[("standing", "current")]).await?;
        (!current.is_empty() && current.iter().all(|n| *n > 2.5)).then_some(())
    })
    .await;
}

async fn sse(tunnel: &Tunnel, topics: &str) -> Sse {
    let bearer = format!("Bearer {}", token("s"));
    let headers = [("Authorization", bearer.as_str()), ("Accept-Encoding", "gzip, zstd")];
    let path = format!("/api/market/sse?topics={topics}");
    Sse::connect(tunnel.address, &path, &headers).await.unwrap_or_else(|answer| panic!("refused: {answer:?}"))
}

async fn ws(tunnel: &Tunnel, topics: &[&str]) -> Ws {
    let mut ws = Ws::connect(tunnel.address, "/api/market/ws", &[]).await.expect("the upgrade is accepted");
    ws.auth(&token("w")).await;
    ws.subscribe(topics).await;
    ws
}

/// Over WebSocket and SSE from each of `n` replicas.
async fn quotes_arrive(stack: &Stack, tunnel: &Tunnel, n: usize) {
    let (mut sockets, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..2 * n {
        sockets.push(ws(tunnel, &["quote:7"]).await);
    }
    for _ in 0..2 * n {
        let mut stream = sse(tunnel, "quote:7").await;
        stream.acknowledgement().await;
        streams.push(stream);
    }
    for transport in ["ws", "sse"] {
        let spread = stack.each("sessions", &[("transport", transport)]).await.unwrap();
        assert!(spread.len() == n && spread.iter().all(|n| *n >= 1.0), "{transport}: {spread:?}");
    }
    stack.publish(7..=7, &format!("71.{n}")).await;
    let price = format!(r#""price":71.{n}"#);
    let arrived = async {
        for ws in &mut sockets {
            while !ws.next_event().await.contains(&price) {}
        }
        for sse in &mut streams {
            while !sse.next_event().await.contains(&price) {}
        }
    };
    in_time("the quote for each", SOON, arrived).await;
}

async fn handshakes(tunnel: &Tunnel, n: usize) -> Vec<Ws> {
    let mut sessions = Vec::new();
    for i in 0..n {
        let opened = Ws::connect(tunnel.address, "/api/market/ws", &[]).await;
        let ws = opened.unwrap_or_else(|answer| panic!("handshake {i} of {n}: {answer:?}"));
        ws.send(serde_json::json!({ "type": "auth", "token": token(&format!("h{i}")) }).to_string());
        sessions.push(ws);
    }
    sessions
}

async fn scales(stack: &Stack, tunnel: &Tunnel) {
    let nginx = stack.started("nginx").await;
    stack.scale(1).await;
    quotes_arrive(stack, tunnel, 1).await;
    stack.scale(3).await;
    // Within this time the balancer has asked DNS again.
    let_pass(Duration::from_secs(5)).await;
    quotes_arrive(stack, tunnel, 3).await;
    let sessions = handshakes(tunnel, 300).await;
    wait_for("each of three replicas has a fifth of 300 sessions", SOON, || async {
        let spread = stack.each("sessions", &[]).await?;
        eprintln!("  sessions by replica: {spread:?}");
        (spread.len() == 3 && spread.iter().all(|n| *n >= 60.0)).then_some(())
    })
    .await;
    stack.scale(2).await;
    drop(sessions);
    let _sessions = handshakes(tunnel, 50).await;
    assert_eq!(stack.started("nginx").await, nginx, "nginx was not restarted");
}

async fn recreates(stack: &Stack, tunnel: &Tunnel) {
    stack.scale(3).await;
    let before = stack.replicas().await;
    let nginx = stack.started("nginx").await;
    stack.compose(&["rm", "-sf", "listener"]).await;
    let _held = Held::hold(stack, before.len()).await;
    let since = Instant::now();
    stack.scale(3).await;
    let after = stack.replicas().await;
    let moved = after.iter().filter(|now| before.iter().all(|then| then.address != now.address)).count();
    assert_eq!(moved, 3, "all addresses are new: {before:?} {after:?}");
    let_pass(Duration::from_secs(15).saturating_sub(since.elapsed())).await;
    let _sessions = handshakes(tunnel, 50).await;
    assert_eq!(stack.started("nginx").await, nginx, "nginx was not restarted");
}

/// Containers that take the addresses which become free, so that nobody gets his old one again.
struct Held(Vec<String>);

impl Held {
    async fn hold(stack: &Stack, n: usize) -> Self {
        let mut ids = Vec::new();
        for _ in 0..n {
            let network = format!("{}_front", stack.project());
            let args = ["run", "-d", "--rm", "--network", &network, "redis:8.0", "sleep", "600"];
            ids.push(stack.run("docker", &args).await.trim().to_owned());
        }
        Self(ids)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut remove = std::process::Command::new("docker");
        let _ = remove.args(["rm", "-f"]).args(&self.0).stdout(Stdio::null()).status();
    }
}

/// Longer than the shipped time-outs of the proxies, on a topic without traffic.
async fn idles(stack: &Stack, tunnel: &Tunnel) {
    let opened = Instant::now();
    let mut sse = sse(tunnel, "quote:5001").await;
    in_time("a comment", SOON, async { while !matches!(sse.next().await, Item::Comment(_)) {} }).await;
    assert!(opened.elapsed() < Duration::from_secs(1), "the head and a comment took {:?}", opened.elapsed());
    assert_eq!(sse.head.header("content-type"), "text/event-stream");
    assert_eq!((sse.head.header("content-encoding"), sse.head.header("x-accel-buffering")), ("", "no"));
    let mut ws = ws(tunnel, &["quote:5001"]).await;
    sse.acknowledgement().await;
    let end = Instant::now() + Duration::from_secs(92);
    let mut last = Instant::now();
    while let Some(item) = sse.next_within(end.saturating_duration_since(Instant::now())).await {
        assert!(matches!(item, Item::Comment(_)), "{item:?}");
        assert!(last.elapsed() < Duration::from_secs(30), "silent for {:?}", last.elapsed());
        last = Instant::now();
    }
    assert!(ws.all_within(Duration::ZERO).await.is_empty());
    assert!(ws.n_pings >= 3, "{} pings", ws.n_pings);
    stack.publish(5001..=5001, "5.5").await;
    let published = Instant::now();
    for event in [ws.next_event().await, sse.next_event().await] {
        assert!(event.contains(r#""price":5.5"#), "{event}");
    }
    assert!(published.elapsed() < Duration::from_secs(1), "{:?}", published.elapsed());
}

async fn restarts(stack: &Stack, tunnel: &Tunnel) {
    const N: usize = 100;
    let topics = topics(1..=20);
    stack.scale(3).await;
    stack.publish(1..=20, "1.0").await;
    let crowd = Crowd::gather(N, tunnel.address, &topics);
    wait_until("all clients show the first price", SOON * 2, || crowd.n_showing(&topics, "1.0") == N).await;
    stack.compose(&["--profile", "demo", "up", "-d", "--no-build", "--no-deps", "publisher"]).await;
    for replica in stack.replicas().await {
        // As docs/deployment.md says: one more, then one of the old ones drains.
        stack.scale(4).await;
        stack.run("docker", &["stop", "-t", "40", &replica.id]).await;
        stack.run("docker", &["rm", &replica.id]).await;
        stack.ready(3).await;
    }
    stack.compose(&["--profile", "demo", "stop", "-t", "5", "publisher"]).await;
    let (lost, refused, slow) = (crowd.lost(), crowd.refused(), crowd.slow());
    stack.publish(1..=20, "2.5").await;
    let published = Instant::now();
    wait_until("all clients show the last price", SOON, || crowd.n_showing(&topics, "2.5") == N).await;
    eprintln!(
        "  {lost} sessions moved, {refused} handshakes failed, {slow} were slow, all current {:?} later",
        published.elapsed()
    );
    assert!(lost >= N, "each client moved at least once");
    assert_eq!(refused, 0, "no handshake fails while replicas restart one after the other");
}

async fn loses_a_primary(stack: &Stack, tunnel: &Tunnel) {
    const N: usize = 20;
    let topics = topics(1..=20);
    stack.scale(3).await;
    stack.publish(1..=20, "3.0").await;
    let crowd = Crowd::gather(N, tunnel.address, &topics);
    wait_until("all clients show the price before", SOON * 2, || crowd.n_showing(&topics, "3.0") == N).await;
    let (before, pid) = stack.started("redis-1").await;
    let killed = Instant::now();
    // From a container, because whoever may start one need not be root, and the engine restarts nothing that it was
    // itself told to kill.
    let kill = format!("kill -9 {pid}");
    stack.run("docker", &["run", "--rm", "--pid", "host", "redis:8.0", "sh", "-c", &kill]).await;
    wait_for("the engine has restarted the primary", SLOW, || async {
        let (now, pid) = stack.started("redis-1").await;
        (now != before && pid != 0).then_some(())
    })
    .await;
    wait_for("the cluster is whole", SLOW, || async {
        let info = stack.compose(&["exec", "-T", "redis-2", "redis-cli", "cluster", "info"]).await;
        info.contains("cluster_state:ok").then_some(())
    })
    .await;
    stack.ready(3).await;
    eprintln!("  every replica was ready again {:.1} s after the kill", killed.elapsed().as_secs_f64());
    // What it had not saved it has lost.
    migrates(stack).await;
    stack.publish(1..=20, "4.0").await;
    let published = Instant::now();
    wait_until("all clients show the price afterwards", SOON, || crowd.n_showing(&topics, "4.0") == N).await;
    eprintln!("  all current {:?} after the publication", published.elapsed());
    assert_eq!(crowd.lost(), 0, "no session is lost because a primary was");
}

fn unix_ms() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_secs_f64() * 1e3
}

fn spread(moments: &[f64]) -> f64 {
    let first = moments.iter().copied().fold(f64::INFINITY, f64::min);
    (moments.iter().copied().fold(0.0, f64::max) - first).max(0.0)
}

async fn reloads(stack: &Stack) {
    const N: usize = 200;
    // As nginx.conf and the Caddyfile say.
    let delay = Duration::from_secs(30);
    stack.scale(3).await;
    stack.publish(1..=3, "6.0").await;
    let mut clients = Library::start(stack, N, &["1", "2", "3"]).await;
    clients.all_show(N, "6.0", Duration::from_secs(30)).await;

    let unrelated =
        super::proxies::stand::shipped("Caddyfile").replace("max-age=31536000", "max-age=31535999");
    for (what, price) in [("Caddy", "6.5"), ("nginx", "7.0")] {
        let reloaded = unix_ms();
        if what == "Caddy" {
            let args = [
                "compose",
                "exec",
                "-T",
                "caddy",
                "caddy",
                "reload",
                "--adapter",
                "caddyfile",
                "--config",
                "-",
            ];
            stack.feed("docker", &args, &unrelated).await;
        } else {
            stack.compose(&["exec", "-T", "nginx", "nginx", "-s", "reload"]).await;
        }
        let half = delay / 2;
        let_pass(half).await;
        stack.publish(1..=3, price).await;
        let (lost, _) = clients.all_show(N, price, SOON).await;
        assert!(lost.is_empty(), "{what}: {} sessions were lost before the delay", lost.len());
        let_pass(half + Duration::from_secs(8)).await;
        stack.publish(1..=3, &format!("{price}1")).await;
        let (lost, back) = clients.all_show(N, &format!("{price}1"), SOON).await;
        let first = lost.iter().copied().fold(f64::INFINITY, f64::min) - reloaded;
        eprintln!(
            "  {what}: {} of {N} sessions ended, the first {:.1} s after the reload; back spread over {:.1} s",
            lost.len(),
            first / 1e3,
            spread(&back) / 1e3
        );
        assert!(
            lost.is_empty() || first + 500.0 >= delay.as_secs_f64() * 1e3,
            "{what}: cut {first} ms after the reload"
        );
        assert_eq!(lost.len(), back.len(), "each client that was cut came back once");
        assert!(
            back.is_empty() || spread(&back) > 500.0,
            "{what}: all came back within {} ms",
            spread(&back)
        );
    }
    wait_for("old workers are gone", SOON, || async {
        let workers = stack.compose(&["exec", "-T", "nginx", "ps", "-eo", "args"]).await;
        (!workers.contains("shutting down")).then_some(())
    })
    .await;
    wait_for("one session per client", SOON, || async {
        let n: f64 = stack.each("sessions", &[]).await?.iter().sum();
        ((n - N as f64).abs() < 0.5).then_some(())
    })
    .await;
}
