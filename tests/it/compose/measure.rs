//! Figures of the running stack, printed: size of the image, time to ready, and latency through both proxies against
//! none, taken in the same run.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::stack::Stack;
use crate::proxies::tls::Tunnel;
use crate::support::token::token;
use crate::support::wait::wait_for;
use crate::support::ws::{Heard, Ws};
use crate::support::{http, ports};

/// Round trips per path.
const ROUNDS: usize = 1_000;

/// How long quotes are watched.
const WATCH: Duration = Duration::from_secs(20);

/// Measures and prints.
pub async fn report(stack: &Stack, tunnel: &Tunnel) {
    let size = stack.run("docker", &["image", "inspect", "-f", "{{.Size}}", "tickbridge:test"]).await;
    eprintln!("  image: {:.1} MB", size.trim().parse::<f64>().unwrap() / 1e6);

    // A replica of its own that is reached without proxies, on the loopback interface like Caddy.
    let (public, admin) = (ports::free(), ports::free());
    let publish = |port: u16, to: u16| format!("127.0.0.1:{port}:{to}");
    let (public_port, admin_port) = (publish(public, 8080), publish(admin, 8081));
    let args = ["run", "-d", "--no-deps", "-p", &public_port, "-p", &admin_port, "listener"];
    let id = stack.compose(&args).await;
    let admin = SocketAddr::from(([127, 0, 0, 1], admin));
    ready(admin).await;
    // Once more, because Compose does other things besides.
    stack.run("docker", &["stop", id.trim()]).await;
    let asked = Instant::now();
    stack.run("docker", &["start", id.trim()]).await;
    let told = asked.elapsed();
    ready(admin).await;
    eprintln!(
        "  docker start returned after {told:.0?}, the replica was ready after {:.0?}",
        asked.elapsed()
    );

    let direct = SocketAddr::from(([127, 0, 0, 1], public));
    let mut sessions = [open(direct, "/market/ws").await, open(tunnel.address, "/api/market/ws").await];
    let mut trips = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for (ws, trips) in sessions.iter_mut().zip(&mut trips) {
            let sent = Instant::now();
            ws.send(format!(r#"{{"type":"ping","ts":{round}}}"#));
            ws.next_of("pong").await;
            trips.push(sent.elapsed());
        }
        // Below session.max_inbound_per_second.
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    compare("round trip", &mut trips);

    stack.compose(&["--profile", "demo", "up", "-d", "--no-build", "--no-deps", "publisher"]).await;
    let topics: Vec<String> = (1..=200).map(|id| format!("quote:{id}")).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    for ws in &mut sessions {
        ws.subscribe(&topics).await;
    }
    let [direct, proxied] = sessions;
    let (direct, proxied) = tokio::join!(ages(direct), ages(proxied));
    compare("publication to arrival", &mut [direct, proxied]);
    stack.run("docker", &["rm", "-f", id.trim()]).await;
}

async fn ready(admin: SocketAddr) {
    wait_for("the direct replica is ready", Duration::from_secs(60), || async {
        let answer = http::try_request(admin, "GET", "/readyz", &[], "").await;
        answer.is_ok_and(|answer| answer.head.status == 200).then_some(())
    })
    .await;
}

async fn open(to: SocketAddr, path: &str) -> Ws {
    let mut ws = Ws::connect(to, path, &[]).await.expect("the upgrade is accepted");
    ws.auth(&token("m")).await;
    ws
}

/// How old live quotes are when they arrive; whole milliseconds, as they are stamped.
async fn ages(mut ws: Ws) -> Vec<Duration> {
    let mut ages = Vec::new();
    let end = Instant::now() + WATCH;
    while Instant::now() < end {
        let Heard::Text(text) = ws.next().await else { panic!("the session ended") };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let event: Value = serde_json::from_str(&text).unwrap();
        if let (Some(published), None) =
            (event["data"]["publishedAt"].as_u64(), event["data"]["initial"].as_bool())
        {
            ages.push(now.saturating_sub(Duration::from_millis(published)));
        }
    }
    ages
}

fn compare(what: &str, [direct, proxied]: &mut [Vec<Duration>; 2]) {
    let mut at = |quantile: f64| {
        let [direct, proxied] = [&mut *direct, &mut *proxied].map(|samples| {
            samples.sort();
            samples[((samples.len() - 1) as f64 * quantile) as usize].as_secs_f64() * 1e3
        });
        format!("{direct:.2} ms direct, {proxied:.2} ms through the proxies, {:.2} times", proxied / direct)
    };
    let (half, most) = (at(0.5), at(0.99));
    eprintln!("  {what}, p50: {half}; p99: {most}");
}
