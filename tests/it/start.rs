//! Starting: what it takes, what prevents it, and the commands that need a running gateway.

use super::cli::tickbridge;
use super::support::gateway::Gateway;
use super::support::process::Process;
use super::support::token::{SECRET, token};
use super::support::wait::wait_for;
use super::support::world::World;
use super::support::ws::Ws;
use super::support::{http, ports};
use std::fs::File;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// The deployment that exists is configured by names of its own; they must be enough.
#[tokio::test]
async fn the_names_of_the_existing_deployment_are_enough_to_serve() {
    let world = World::start().await;
    let folder = tempfile::tempdir().unwrap();
    let port = ports::free();
    let port_text = port.to_string();
    let redis_port = world.redis.port().to_string();
    let admin = format!("127.0.0.1:{}", ports::free());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tickbridge"));
    command.arg("serve").env_clear().envs([
        ("LISTENER_PORT", port_text.as_str()),
        ("REDIS_HOST", "127.0.0.1"),
        ("REDIS_PORT", &redis_port),
        ("JWT_SECRET", SECRET),
        ("WS_AUTH_TIMEOUT_MS", "3000"),
        ("WS_PRICE_TOPIC", "market:price-updated"),
        ("WS_PRICE_TOPIC_PARTITION_COUNT", "1"),
        ("TICKBRIDGE_LISTEN__ADMIN", &admin),
    ]);
    let log = File::create(folder.path().join("log")).unwrap();
    let _process = Process::spawn(command.stdout(log.try_clone().unwrap()).stderr(log));
    let public = SocketAddr::from(([127, 0, 0, 1], port));
    wait_for("the gateway answers", Duration::from_secs(20), || async {
        http::try_request(admin.parse().unwrap(), "GET", "/readyz", &[], "")
            .await
            .ok()
            .filter(|answer| answer.head.status == 200)
    })
    .await;
    let mut ws = Ws::connect(public, "/market/ws", &[]).await.unwrap();
    ws.auth(&token("7")).await;
}

/// Nothing about a start depends on Redis being there; readiness says that it isn't.
#[tokio::test]
async fn a_gateway_without_redis_starts_and_says_what_is_missing() {
    let nobody = format!("127.0.0.1:{}", ports::free());
    let gateway = Gateway::builder().redis_at(std::slice::from_ref(&nobody)).launch();
    let within = Duration::from_secs(10);
    // A gateway that has just begun can't name the node yet; it isn't ready then either.
    wait_for("readiness names the Redis that is missing", within, || async {
        let answer = http::try_request(gateway.admin, "GET", "/readyz", &[], "").await.ok()?;
        assert_eq!(answer.head.status, 503, "{answer:?}");
        answer.body.contains(&nobody).then_some(())
    })
    .await;
    let alive = http::get(gateway.admin, "/livez", &[]).await;
    assert_eq!(alive.head.status, 200, "{alive:?}");
}

#[tokio::test]
async fn a_development_token_opens_a_session() {
    let world = World::start().await;
    let made = tickbridge(&["token", "--sub", "42", "--ttl", "1h"], &[("JWT_SECRET", SECRET)]);
    assert_eq!(made.code, 0, "{}", made.err);
    Ws::open(&world.gateway).await.auth(made.out.trim()).await;
}

#[tokio::test]
async fn health_follows_readiness() {
    let mut world = World::start().await;
    let url = format!("http://{}/readyz", world.gateway.admin);
    let healthy = tickbridge(&["health", "--url", &url], &[]);
    assert_eq!(healthy.code, 0, "{}", healthy.err);
    world.gateway.process().kill9();
    let gone = tickbridge(&["health", "--url", &url], &[]);
    assert_eq!(gone.code, 1, "{}", gone.out);
    assert!(!gone.err.is_empty());
}
