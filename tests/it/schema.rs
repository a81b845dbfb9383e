//! What the gateway says about the functions in Redis, by which operators learn of a forgotten `migrate`.

use super::cli::tickbridge;
use super::support::gateway::Gateway;
use super::support::http;
use super::support::redis::RedisServer;
use std::time::Duration;

/// Three times as long as between two looks.
const WITHIN: Duration = Duration::from_secs(60);

async fn stands(gateway: &Gateway, standing: &str) {
    gateway.metric_is("schema_primaries", &[("standing", standing)], WITHIN, 1.0).await;
    let all = gateway.metrics().await.sum("schema_primaries", &[]);
    assert!((all - 1.0).abs() < 1e-9, "{all} primaries, of which there is one");
}

/// Functions that are missing or newer are told while the gateway runs, and it serves on; only one that
/// starts after a newer program gives up.
#[tokio::test]
async fn how_the_functions_stand_is_told_and_newer_ones_end_a_start_only() {
    let redis = RedisServer::start().await;
    let mut first = Gateway::start(&redis).await;
    stands(&first, "behind").await;
    assert!(first.log().contains("run `tickbridge migrate`"), "{}", first.log());

    let url = format!("redis://{}", redis.address());
    let ran = tickbridge(&["migrate", "--redis", &url], &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let second = Gateway::start(&redis).await;
    stands(&second, "current").await;

    redis.cmd::<()>(&["HSET", "tickbridge:schema", "0099_future", "x"]).await;
    stands(&first, "ahead").await;
    let ready = http::get(first.admin, "/readyz", &[]).await;
    assert_eq!(ready.head.status, 200, "a rollout needs the old ones: {ready:?}");
    assert!(first.stop(WITHIN).await.success());

    let mut late = Gateway::builder().redis(&redis).launch();
    assert_eq!(late.process().ended(WITHIN).await.code(), Some(1), "{}", late.log());
    assert!(late.log().contains("newer than this program"), "{}", late.log());
}
