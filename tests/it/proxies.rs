//! Caddy and nginx before the gateway, as processes with the files that users get.
//!
//! What needs newer versions than Debian's stable ones, or several addresses (DNS, scaling, port ranges), is
//! in `compose`.

pub mod h2;
pub mod stand;
pub mod tls;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stand::{Caddy, Nginx, get};

use super::support::browser::Browser;
use super::support::gateway::{Gateway, GatewayBuilder};
use super::support::http;
use super::support::publisher::{Publisher, Statement};
use super::support::redis::RedisServer;
use super::support::sse::{Item, Sse};
use super::support::token::token;
use super::support::wait::{in_time, let_pass, wait_for, wait_until};
use super::support::ws::{Heard, Ws};

/// A bound for what takes milliseconds, wide enough for a machine that compiles meanwhile. How soon things come is
/// asserted on the composed stack.
const SOON: Duration = Duration::from_secs(20);

/// A tab among several, until it shows what it should; a second alone, and many on a machine that compiles.
const TAB: Duration = Duration::from_secs(90);

/// The path that browsers take, end to end.
struct Path {
    redis: RedisServer,
    gateway: Gateway,
    nginx: Nginx,
    caddy: Caddy,
    tunnel: tls::Tunnel,
}

impl Path {
    async fn build(
        gateway: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
        nginx: impl FnOnce(stand::Template) -> stand::Template,
    ) -> Self {
        let redis = RedisServer::start().await;
        let builder = Gateway::builder().redis(&redis).set("limits.trusted_proxies", "['127.0.0.0/8']");
        let gateway = gateway(builder).start().await;
        let nginx = Nginx::start(&[gateway.public], nginx).await;
        let caddy = Caddy::start(nginx.address).await;
        let tunnel = caddy.tunnel().await;
        Self { redis, gateway, nginx, caddy, tunnel }
    }

    async fn start() -> Self {
        Self::build(|gateway| gateway, |nginx| nginx).await
    }

    /// Where Caddy is reached without TLS.
    fn edge(&self) -> SocketAddr {
        self.tunnel.address
    }

    fn publisher(&self) -> Publisher {
        Publisher::standalone(&self.redis, 1)
    }

    async fn ws(&self, user: &str) -> Ws {
        let mut ws = Ws::connect(self.edge(), "/api/market/ws", &[]).await.expect("the upgrade is accepted");
        ws.auth(&token(user)).await;
        ws
    }

    async fn sse(&self, topics: &str) -> Sse {
        let bearer = format!("Bearer {}", token("u"));
        let path = format!("/api/market/sse?topics={topics}");
        let opened = Sse::connect(self.edge(), &path, &[("Authorization", &bearer)]).await;
        opened.unwrap_or_else(|answer| panic!("{path} refused: {answer:?}"))
    }
}

/// A number as it comes out of JSON again.
fn number(text: &str) -> String {
    serde_json::from_str::<Value>(text).unwrap().to_string()
}

fn price_of(event: &str) -> String {
    let event: Value = serde_json::from_str(event).unwrap();
    event["data"]["price"].to_string()
}

#[tokio::test]
async fn quotes_arrive_over_websocket_and_sse_through_both_proxies() {
    let path = Path::start().await;
    let mut publisher = path.publisher();
    let (mut ws, mut sse) = (path.ws("u").await, path.sse("quote:7").await);
    ws.subscribe(&["quote:7"]).await;
    sse.acknowledgement().await;
    for (price, ts) in [("71.10", 1_000), ("71.20", 2_000), ("71.30", 3_000)] {
        // Announced and not stored: a key that is read while it is written would come as an event too.
        publisher.announce(&Statement::new(7, price, ts)).await;
        assert_eq!(price_of(&ws.next_event().await), number(price));
        assert_eq!(price_of(&sse.next_event().await), number(price));
    }
    let answer = get(path.edge(), "/api/market/prices?ids=7").await;
    // The front end of before calls /api/…; without it the same paths exist.
    assert_eq!(answer.head.status, get(path.edge(), "/market/prices?ids=7").await.head.status);
    assert!(Ws::connect(path.edge(), "/market/ws", &[]).await.is_ok());
}

/// A stream's head and first comment come without anything to carry, and silence on a topic outlasts the
/// proxies' time-outs, which are a tenth of the shipped ones here, like the heartbeat.
#[tokio::test]
async fn idle_streams_begin_at_once_and_outlive_the_proxies_timeouts() {
    let shorter = |nginx: stand::Template| {
        nginx
            .put("proxy_read_timeout 90s", "proxy_read_timeout 9s")
            .put("proxy_send_timeout 90s", "proxy_send_timeout 9s")
    };
    let path = Path::build(|gateway| gateway, shorter).await;
    let bearer = format!("Bearer {}", token("u"));
    let headers = [("Authorization", bearer.as_str()), ("Accept-Encoding", "gzip, zstd")];
    let mut sse = Sse::connect(path.edge(), "/api/market/sse?topics=quote:9", &headers).await.unwrap();
    in_time("a comment", SOON, async { while !matches!(sse.next().await, Item::Comment(_)) {} }).await;
    assert_eq!(sse.head.header("content-type"), "text/event-stream");
    assert_eq!(sse.head.header("content-encoding"), "");
    assert_eq!(sse.head.header("x-accel-buffering"), "no");
    let caching = sse.head.header("cache-control");
    assert!(caching.contains("no-cache") && caching.contains("no-transform"), "{caching}");

    let mut ws = path.ws("u").await;
    ws.subscribe(&["quote:9"]).await;
    sse.acknowledgement().await;
    // Longer than the time-outs; heartbeats come every two seconds, on a busy machine later and not as one.
    let mut comments = 0;
    let end = Instant::now() + Duration::from_secs(11);
    while let Some(item) = sse.next_within(end.saturating_duration_since(Instant::now())).await {
        assert!(matches!(item, Item::Comment(_)), "{item:?}");
        comments += 1;
    }
    assert!(ws.all_within(Duration::ZERO).await.is_empty());
    assert!(comments >= 2 && ws.n_pings >= 2, "{comments} comments, {} pings", ws.n_pings);

    path.publisher().publish(&Statement::new(9, "1.5", 1_000)).await;
    assert_eq!(price_of(&ws.next_event().await), "1.5");
    assert_eq!(price_of(&sse.next_event().await), "1.5");
}

#[tokio::test]
async fn the_clients_address_is_what_caddy_saw_and_not_what_the_client_claims() {
    let path = Path::build(|gateway| gateway.set("limits.max_sessions_per_ip", "1"), |nginx| nginx).await;
    let claim =
        |address| [("X-Forwarded-For", address), ("X-Real-IP", address), ("Forwarded", "for=198.51.100.7")];
    let first = Ws::connect(path.edge(), "/api/market/ws", &claim("198.51.100.1")).await;
    let second = Ws::connect(path.edge(), "/api/market/ws", &claim("198.51.100.2")).await;
    assert!(first.is_ok());
    assert_eq!(second.err().map(|answer| answer.head.status), Some(429), "both come from one address");
    // What nginx hears from Caddy is what counts.
    let balancer = path.nginx.address;
    let third = Ws::connect(balancer, "/market/ws", &[("X-Forwarded-For", "198.51.100.3")]).await;
    let again = Ws::connect(balancer, "/market/ws", &[("X-Forwarded-For", "198.51.100.3")]).await;
    assert!(third.is_ok());
    assert_eq!(again.err().map(|answer| answer.head.status), Some(429));
    wait_until("the access log names the client", SOON, || {
        path.nginx.access_log().contains(r#""client":"198.51.100.3""#)
    })
    .await;
}

#[tokio::test]
async fn what_is_for_operators_is_not_reachable_through_the_proxies() {
    let path = Path::start().await;
    for prefix in ["", "/api", "/api/api", "/market", "/api/market/..", "/market/ws/..", "/", "/%2e"] {
        for page in [
            "livez",
            "readyz",
            "metrics",
            "publish",
            "debug/sessions",
            "actuator/health",
            "actuator/prometheus",
        ] {
            let answer = get(path.edge(), &format!("{prefix}/{page}")).await;
            let refused = matches!(answer.head.status, 301 | 308 | 400 | 404);
            assert!(refused && !answer.body.contains("tickbridge_"), "{prefix}/{page}: {answer:?}");
        }
    }
    for page in ["/healthz", "/connections", "/api/connections", "/config/", "/%6detrics"] {
        assert_eq!(get(path.edge(), page).await.head.status, 404, "{page}");
    }
    let unknown = get(path.edge(), "/api/metrics").await;
    assert_eq!(unknown.json()["code"], "BAD_REQUEST");
}

#[tokio::test]
async fn neither_tokens_nor_tickets_reach_a_log() {
    let mut path = Path::start().await;
    let jwt = token("u");
    let bearer = format!("Bearer {jwt}");
    let answer =
        http::request(path.edge(), "POST", "/api/market/ticket", &[("Authorization", &bearer)], "").await;
    let ticket = answer.json()["ticket"].as_str().expect("a ticket").to_owned();
    let topic = "/api/market/sse?topics=quote:1";
    assert!(Sse::connect(path.edge(), &format!("{topic}&ticket={ticket}"), &[]).await.is_ok());
    // Once more: used, so refused. Then what a mistaken client may send.
    for query in [format!("ticket={ticket}"), format!("token={jwt}"), format!("access_token={jwt}")] {
        let refused =
            Sse::connect(path.edge(), &format!("{topic}&{query}"), &[("Cookie", &format!("token={jwt}"))])
                .await;
        assert_eq!(refused.err().map(|answer| answer.head.status), Some(401), "{query}");
    }
    // With nobody behind them the proxies log errors, too.
    path.gateway.process().kill9();
    let lost = get(path.edge(), &format!("{topic}&ticket={ticket}&token={jwt}")).await;
    assert_eq!(lost.head.status, 503, "{lost:?}");
    wait_until("both proxies have logged the last request", SOON, || {
        path.nginx.access_log().contains(r#""status":503"#) && path.caddy.log().contains(r#""status":503"#)
    })
    .await;
    let logs = [path.caddy.log(), path.nginx.access_log(), path.nginx.errors(), path.gateway.log()];
    let signature = jwt.rsplit('.').next().unwrap();
    for log in &logs {
        for secret in [ticket.as_str(), signature] {
            let line = log.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "{line:?}");
        }
    }
    assert!(logs[0].contains("REDACTED"), "{}", logs[0]);
}

/// An error of the network closes an `EventSource` for good unless it is a refused connection, so the answer must
/// tell a client library when to come back.
#[tokio::test]
async fn with_no_replica_left_the_answer_says_when_to_come_back() {
    let mut path = Path::start().await;
    path.gateway.process().kill9();
    let answer = get(path.edge(), "/api/market/prices?ids=1").await;
    assert_eq!((answer.head.status, answer.head.header("retry-after")), (503, "1"), "{answer:?}");
    assert_eq!(answer.json()["code"], "INTERNAL");
    path.gateway.restart().await;
    wait_for("sessions are taken again", SOON, || async {
        Ws::connect(path.edge(), "/api/market/ws", &[]).await.ok()
    })
    .await;
}

#[tokio::test]
async fn handshakes_succeed_while_one_of_two_replicas_drains_and_when_it_is_gone() {
    let redis = RedisServer::start().await;
    let replica =
        || Gateway::builder().redis(&redis).set("drain.notice", "'2s'").set("drain.deadline", "'8s'");
    let (mut first, second) = (replica().start().await, replica().start().await);
    let nginx = Nginx::start(&[first.public, second.public], |nginx| nginx).await;
    let mut sessions = Vec::new();
    for _ in 0..20 {
        sessions.push(Ws::connect(nginx.address, "/market/ws", &[]).await.expect("an upgrade"));
    }
    // Half of them, unless a replica was too busy to accept within the time-out and rested for a while.
    let both = |n| (1.0..=19.0).contains(&n);
    first.metric_fits("sessions on both replicas", "sessions", &[], SOON, both).await;

    first.process().stop();
    wait_for("the first replica is not ready", SOON, || async {
        (first.readiness().await.head.status == 503).then_some(())
    })
    .await;
    let mut n = 0;
    while first.process().is_running() {
        sessions
            .push(Ws::connect(nginx.address, "/market/ws", &[]).await.expect("an upgrade while draining"));
        n += 1;
        let_pass(Duration::from_millis(100)).await;
    }
    assert!(n >= 10, "only {n} handshakes while the first replica drained");
    for _ in 0..50 {
        sessions.push(Ws::connect(nginx.address, "/market/ws", &[]).await.expect("an upgrade afterwards"));
    }
}

/// Sessions go on until `worker_shutdown_timeout`, which is shorter here; then the old workers are gone, and each
/// client ends with one session and the current price.
#[tokio::test]
async fn a_reload_of_nginx_cuts_nobody_before_the_configured_delay() {
    const N: usize = 50;
    let delay = Duration::from_secs(3);
    let path = Path::build(
        |gateway| gateway,
        |nginx| nginx.put("worker_shutdown_timeout 30s", "worker_shutdown_timeout 3s"),
    )
    .await;
    let mut publisher = path.publisher();
    publisher.publish(&Statement::new(3, "1.0", 1_000)).await;
    let mut sessions = Vec::new();
    for i in 0..N {
        let mut ws = path.ws(&format!("u{i}")).await;
        ws.subscribe(&["quote:3"]).await;
        sessions.push(ws);
    }
    let old = path.nginx.workers();
    let reloaded = Instant::now();
    path.nginx.reload();
    wait_until("new workers", SOON, || path.nginx.workers().iter().any(|worker| !old.contains(worker))).await;
    publisher.publish(&Statement::new(3, "2.0", 2_000)).await;
    let mut cut = Vec::new();
    for mut ws in sessions {
        cut.push(tokio::spawn(async move {
            let mut newest = String::new();
            loop {
                match in_time("the end of a session", 3 * SOON, ws.next()).await {
                    Heard::Text(text) if text.contains(r#""type":"event""#) => newest = price_of(&text),
                    Heard::Text(_) => {}
                    Heard::Close(..) | Heard::Gone => return (newest, Instant::now()),
                }
            }
        }));
    }
    let mut sessions = Vec::new();
    for (i, session) in cut.into_iter().enumerate() {
        let (newest, at) = session.await.unwrap();
        assert_eq!(newest, "2.0");
        let after = at - reloaded;
        assert!(after + Duration::from_millis(100) >= delay, "cut after {after:?}");
        let mut ws = path.ws(&format!("u{i}")).await;
        ws.subscribe(&["quote:3"]).await;
        assert_eq!(price_of(&ws.next_event().await), "2.0");
        sessions.push(ws);
    }
    wait_until("the old workers are gone", SOON, || {
        path.nginx.workers().iter().all(|worker| !old.contains(worker))
    })
    .await;
    path.gateway.metric_is("sessions", &[("transport", "ws")], SOON, N as f64).await;
}

/// 120 streams on one connection, one of them never read: its window fills up, and the others must not notice.
#[tokio::test]
async fn an_unread_stream_on_a_shared_connection_holds_back_no_other() {
    let path = Path::start().await;
    let mut publisher = path.publisher();
    let edge = SocketAddr::from(([127, 0, 0, 1], path.caddy.port));
    let connection = h2::Connection::open(edge, &path.caddy.root()).await;
    let jwt = token("u");
    let unread = connection.sse("/api/market/sse?topics=quote:1,quote:2", &jwt).await;
    let mut streams = Vec::new();
    for _ in 0..119 {
        let mut stream = connection.sse("/api/market/sse?topics=quote:2", &jwt).await;
        stream.until("event: subscribe").await;
        streams.push(stream);
    }
    // Several times what the unread stream's window and the proxies' buffers hold, on a topic of its own.
    let filler = format!(r#""open":{}"#, "1".repeat(800));
    for ts in 1..=2_000 {
        let statement = Statement { more: filler.clone(), ..Statement::new(1, "1.0", ts) };
        publisher.announce(&statement).await;
    }
    for ts in 1..=3 {
        publisher.publish(&Statement::new(2, "2.5", ts)).await;
        for stream in &mut streams {
            // What the unread stream holds back never comes.
            in_time("a quote", SOON, stream.until(&format!(r#""eventTs":{ts},"#))).await;
        }
    }
    drop(unread);
}

/// With HTTP/1.1 the seventh tab would hang: browsers open six connections per host.
#[tokio::test]
async fn eight_tabs_of_a_browser_stream_at_once_and_websocket_works_beside_http2() {
    let open = |gateway: GatewayBuilder| {
        gateway.set("auth.anonymous", "true").set("demo.page", "true").set("listen.allowed_origins", "['*']")
    };
    let path = Path::build(open, |nginx| nginx).await;
    path.publisher().publish(&Statement::new(1, "7.25", 1_000)).await;
    let browser = Browser::start_with(&["--ignore-certificate-errors"]).await;
    let mut tabs = Vec::new();
    let live = "document.body.dataset.state === 'live'";
    for _ in 0..8 {
        let url = format!("https://localhost:{}/?transport=sse&shared=0&ids=1,2,3", path.caddy.port);
        let tab = browser.open(&url).await;
        tab.wait_until_loaded(live, TAB).await;
        let price =
            "document.querySelector('[data-topic=\"quote:1\"][data-field=price]').textContent === '7.25'";
        tab.wait_until(price, TAB).await;
        tabs.push(tab);
    }
    path.gateway.metric_is("sessions", &[("transport", "sse")], SOON, 8.0).await;
    let protocol = tabs[7].eval("performance.getEntriesByType('navigation')[0].nextHopProtocol").await;
    assert_eq!(protocol, json!("h2"));
    let tab = browser.open(&format!("https://localhost:{}/?ids=1", path.caddy.port)).await;
    tab.wait_until_loaded(&format!("{live} && document.body.dataset.transport === 'ws'"), TAB).await;
    path.gateway.metric_is("sessions", &[("transport", "ws")], SOON, 1.0).await;
}

/// Workers of a killed nginx live on and listen, so that each run of the tests would leave some.
#[tokio::test]
async fn a_balancer_of_a_test_ends_with_its_workers() {
    let nginx = Nginx::start(&[SocketAddr::from(([127, 0, 0, 1], 9))], |nginx| nginx).await;
    let address = nginx.address;
    drop(nginx);
    wait_until("nobody listens any more", SOON, || std::net::TcpStream::connect(address).is_err()).await;
}
