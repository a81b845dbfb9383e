//! Ports: which of them the machine's outside sees, and what happens when the balancer has none left.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::stack::Stack;
use super::{Tunnel, handshakes};
use crate::support::token::token;
use crate::support::wait::let_pass;
use crate::support::ws::Ws;

/// Descriptors for 10,000 sessions, each of which takes two in a proxy.
const DESCRIPTORS: u64 = 20_000;

/// What the engine publishes is the edge, and for this machine alone Prometheus; Redis isn't even known by name to what
/// stands next to the edge.
pub async fn only_the_edge_is_published(stack: &Stack) {
    let label = format!("label=com.docker.compose.project={}", stack.project());
    let ids = stack.run("docker", &["ps", "-q", "--filter", &label]).await;
    let mut published = Vec::new();
    for id in ids.split_whitespace() {
        let format =
            r#"{{index .Config.Labels "com.docker.compose.service"}} {{json .NetworkSettings.Ports}}"#;
        let told = stack.run("docker", &["inspect", "-f", format, id]).await;
        let (service, ports) = told.trim().split_once(' ').unwrap();
        let ports: Value = serde_json::from_str(ports).unwrap();
        for (port, bound) in ports.as_object().into_iter().flatten() {
            if bound.as_array().is_some_and(|bound| !bound.is_empty()) {
                published.push(format!("{service} {port}"));
            }
            let loopback = bound[0]["HostIp"] == "127.0.0.1";
            assert!(service != "prometheus" || loopback, "Prometheus is this machine's alone: {bound}");
        }
    }
    published.sort();
    eprintln!("  published: {}", published.join(", "));
    published.retain(|port| port != "prometheus 9090/tcp");
    assert_eq!(published, ["caddy 443/tcp", "caddy 443/udp", "caddy 80/tcp"]);
    let script = "getent hosts listener >/dev/null && ! getent hosts redis-1 >/dev/null && echo apart";
    let told = stack.compose(&["exec", "-T", "nginx", "sh", "-c", script]).await;
    assert_eq!(told.trim(), "apart", "nginx knows listeners and no Redis");
}

/// Descriptors and connections are really there in the containers, for 10,000 sessions.
pub async fn there_is_room(stack: &Stack) {
    for service in ["caddy", "nginx"] {
        let script = "cat /proc/1/limits; cat /proc/sys/net/ipv4/ip_local_port_range";
        let told = stack.compose(&["exec", "-T", service, "sh", "-c", script]).await;
        let limit = told.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let hard: u64 = limit.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(hard >= DESCRIPTORS, "{service}: {limit}");
        let range = told.lines().next_back().unwrap();
        let range: Vec<u64> = range.split_whitespace().map(|port| port.parse().unwrap()).collect();
        assert!(range[1] - range[0] >= DESCRIPTORS, "{service}: {range:?}");
    }
}

/// The balancer's local ports, given back with their holder.
struct Ports {
    pid: u32,
}

impl Ports {
    fn limit(pid: u32, range: &str) -> Self {
        set(pid, range);
        Self { pid }
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        set(self.pid, "1024 65535");
    }
}

fn set(pid: u32, range: &str) {
    let range = format!("net.ipv4.ip_local_port_range={range}");
    let args = ["-t", &pid.to_string(), "-n", "sysctl", "-qw", &range];
    assert!(Command::new("nsenter").args(args).status().unwrap().success());
}

/// With 100 local ports the balancer opens 100 connections to one replica; the surplus is told so at once.
pub async fn run_out(stack: &Stack, tunnel: &Tunnel) {
    there_is_room(stack).await;
    stack.scale(1).await;
    let_pass(Duration::from_secs(5)).await;
    let (_, pid) = stack.started("nginx").await;
    let _limited = Ports::limit(pid, "20000 20099");
    let mut sessions = Vec::new();
    let mut refused = 0;
    for _ in 0..150 {
        let asked = Instant::now();
        match Ws::connect(tunnel.address, "/api/market/ws", &[]).await {
            Ok(ws) => sessions.push(ws),
            Err(answer) => {
                assert!(matches!(answer.head.status, 502 | 503), "{answer:?}");
                assert!(asked.elapsed() < Duration::from_secs(6), "refused only after {:?}", asked.elapsed());
                refused += 1;
            }
        }
    }
    eprintln!("  one replica: {} sessions, {refused} refused", sessions.len());
    assert!((80..=100).contains(&sessions.len()) && refused >= 50);
    let logged = stack.compose(&["logs", "--tail", "200", "nginx"]).await;
    assert!(logged.contains("Cannot assign requested address"), "the log says why");
    for ws in &mut sessions {
        ws.auth(&token("p")).await;
    }
    drop(sessions);
    stack.scale(2).await;
    let_pass(Duration::from_secs(6)).await;
    let _sessions = handshakes(tunnel, 150).await;
}
