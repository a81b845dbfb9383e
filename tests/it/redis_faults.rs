//! Faults of Redis as browsers and operators see them.
//!
//! Not here: the same faults on the Redis side alone, with their times (`upstream`).

use super::support::chaos::ChaosProxy;
use super::support::gateway::Gateway;
use super::support::http;
use super::support::publisher::{CHANNEL, Publisher, Statement, watcher_key};
use super::support::redis::RedisServer;
use super::support::wait::{let_pass, wait_for};
use super::support::world::World;
use super::support::ws::Ws;
use std::time::{Duration, Instant};

/// Within which a gateway recovers, and a busy machine shows it.
const SOON: Duration = Duration::from_secs(20);

async fn is_unready(gateway: &Gateway, reason: &str, within: Duration) {
    wait_for(&format!("not ready for {reason}"), within, || async {
        let answer = gateway.readiness().await;
        (answer.head.status == 503 && answer.body.contains(reason)).then_some(())
    })
    .await;
    assert_eq!(http::get(gateway.admin, "/livez", &[]).await.head.status, 200);
}

async fn is_ready(gateway: &Gateway, within: Duration) {
    wait_for("ready", within, || async { (gateway.readiness().await.head.status == 200).then_some(()) })
        .await;
}

/// Whether the publisher sees somebody who stands for a user.
async fn is_watched_by(redis: &RedisServer, id: i64, user: &str) -> bool {
    let members: Vec<String> = redis.cmd(&["SMEMBERS", &watcher_key(id)]).await;
    members.iter().any(|member| member.starts_with(&format!("{user}@")))
}

async fn until_watched(redis: &RedisServer, id: i64, user: &str, within: Duration) {
    wait_for(&format!("{user} watches {id}"), within, || async {
        is_watched_by(redis, id, user).await.then_some(())
    })
    .await;
}

async fn subscribed(redis: &RedisServer, within: Duration) {
    wait_for("the channel has its subscriber", within, || async {
        (redis.n_subscribers(CHANNEL).await == 1).then_some(())
    })
    .await;
}

/// The next quote; nothing on the way to it tells of an error.
async fn next_price(ws: &mut Ws) -> String {
    loop {
        let text = ws.next_text().await;
        assert!(!text.starts_with(r#"{"type":"error""#), "{text}");
        if text.starts_with(r#"{"type":"event""#) {
            return text;
        }
    }
}

#[tokio::test]
async fn r01_a_lost_subscription_comes_back_and_the_gap_is_filled_from_the_key() {
    let mut world = World::start().await;
    let mut s0 = Ws::open_as(&world.gateway, "control").await;
    s0.subscribe(&["quote:101"]).await;
    world.announce(101, "71000.10", 1).await;
    assert!(next_price(&mut s0).await.contains("71000.10"));

    let n_lost =
        async |world: &World| world.gateway.metrics().await.sum("upstream_connections_lost_total", &[]);
    let before = n_lost(&world).await;
    assert_eq!(world.redis.client_kill_pubsub().await, 1);
    world.gateway.metric_is("upstream_connections_lost_total", &[], SOON, before + 1.0).await;
    subscribed(&world.redis, SOON).await;
    world.announce(101, "71500", 2).await;
    assert!(next_price(&mut s0).await.contains("71500"));

    world.redis.kill9();
    is_unready(&world.gateway, "node_unreachable", SOON).await;
    let_pass(Duration::from_secs(3)).await;
    world.redis.restart().await;
    world.store(101, "72000", 3).await;
    let gap = next_price(&mut s0).await;
    assert!(gap.contains(r#""price":72000,"#), "{gap}");
    is_ready(&world.gateway, SOON).await;
    world.announce(101, "72500", 4).await;
    assert!(next_price(&mut s0).await.contains("72500"), "the same session is still open");
    assert!(n_lost(&world).await >= before + 2.0);
}

/// The server accepts and never answers; what waits for it must not hold up anything else.
#[tokio::test]
async fn r10_a_frozen_redis_holds_up_no_session_and_what_was_missed_comes_after_the_thaw() {
    const FROZEN: Duration = Duration::from_secs(6);
    let mut world = World::start().await;
    world.store(101, "71000.10", 1).await;
    let mut s0 = Ws::open_as(&world.gateway, "control").await;
    s0.subscribe(&["quote:102"]).await;
    world.redis.freeze();
    let frozen = Instant::now();
    let mut late = Ws::open_as(&world.gateway, "7").await;
    late.subscribe(&["quote:101"]).await;
    assert!(
        frozen.elapsed() < Duration::from_secs(3),
        "the answer waits for no read: {:?}",
        frozen.elapsed()
    );
    let operator = async {
        is_unready(&world.gateway, "probe_silent", SOON).await;
        while frozen.elapsed() < FROZEN {
            world.gateway.metrics().await;
            let_pass(Duration::from_millis(500)).await;
        }
    };
    tokio::join!(operator, s0.all_within(FROZEN));
    assert!(s0.n_pings >= 1, "heartbeats go on");
    world.redis.thaw();
    let first = next_price(&mut late).await;
    assert!(first.contains("71000.10") && first.contains(r#""initial":true"#), "{first}");
    until_watched(&world.redis, 101, "7", SOON).await;
    is_ready(&world.gateway, SOON).await;
    world.announce(102, "1.5", 1).await;
    assert!(next_price(&mut s0).await.contains("1.5"));
}

#[tokio::test]
async fn r14_a_demoted_server_is_left_by_name_for_commands_and_subscriptions() {
    const WITHIN: Duration = Duration::from_secs(20);
    let [a, b] = [RedisServer::start().await, RedisServer::start().await];
    let name = ChaosProxy::start(&a.address()).await;
    let gateway = Gateway::builder().redis_at(&[name.address()]).start().await;
    let mut ws = Ws::open_as(&gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    until_watched(&a, 101, "7", SOON).await;
    a.cmd::<()>(&["REPLICAOF", "127.0.0.1", &b.port().to_string()]).await;
    is_unready(&gateway, "read_only", WITHIN).await;
    name.lead_to(&b.address());
    ws.subscribe(&["quote:102"]).await;
    until_watched(&b, 102, "7", WITHIN).await;
    subscribed(&b, WITHIN).await;
    is_ready(&gateway, WITHIN).await;
    Publisher::standalone(&b, 1).announce(&Statement::new(102, "5.50", 1)).await;
    assert!(next_price(&mut ws).await.contains("5.50"));
}

#[tokio::test]
async fn r16_channels_that_the_acl_denies_are_named_and_come_back_with_the_grant() {
    const WITHIN: Duration = Duration::from_secs(20);
    const DENIED: Duration = Duration::from_secs(5);
    let redis = RedisServer::start().await;
    let acl = async |rule: &str| redis.cmd::<()>(&["ACL", "SETUSER", "svc", rule]).await;
    for rule in ["on", ">pw", "~market:*", "~tickbridge:*", "+@all", "resetchannels"] {
        acl(rule).await;
    }
    let builder = Gateway::builder().redis(&redis).set("redis.username", "'svc'");
    let mut gateway = builder.set("redis.password", "'pw'").launch();
    wait_for("the gateway answers", Duration::from_secs(20), || async {
        http::try_request(gateway.admin, "GET", "/livez", &[], "").await.ok()
    })
    .await;
    is_unready(&gateway, "channel_denied", WITHIN).await;
    let_pass(DENIED).await;
    let n_told = gateway.log().lines().filter(|line| line.contains("channels were refused")).count();
    // Pauses double from a tenth of a second up to two seconds.
    assert!((1..=15).contains(&n_told), "{n_told} lines in {DENIED:?}");

    let mut publisher = Publisher::standalone(&redis, 1);
    acl("&market:*").await;
    gateway.ready().await;
    let mut ws = Ws::open_as(&gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    publisher.announce(&Statement::new(101, "1.25", 1)).await;
    assert!(next_price(&mut ws).await.contains("1.25"));
    acl("resetchannels").await;
    is_unready(&gateway, "channel_denied", WITHIN).await;
    acl("&market:*").await;
    is_ready(&gateway, WITHIN).await;
    publisher.announce(&Statement::new(101, "2.25", 2)).await;
    assert!(next_price(&mut ws).await.contains("2.25"));
}

#[tokio::test]
async fn r19_a_user_watches_until_the_last_tab_on_any_replica_closes() {
    let redis = RedisServer::start().await;
    let (x, y) = (Gateway::start(&redis).await, Gateway::start(&redis).await);
    let mut tabs = Vec::new();
    for gateway in [&x, &x, &y] {
        let mut tab = Ws::open_as(gateway, "7").await;
        tab.subscribe(&["quote:101"]).await;
        tabs.push(tab);
    }
    wait_for("both replicas have registered the user", SOON, || async {
        (redis.cmd::<u64>(&["SCARD", &watcher_key(101)]).await == 2).then_some(())
    })
    .await;
    let (last, mut second) = (tabs.pop().unwrap(), tabs.pop().unwrap());
    tabs.pop().unwrap().close().await;
    let_pass(Duration::from_secs(1)).await;
    assert!(is_watched_by(&redis, 101, "7").await, "two tabs are left");
    assert_eq!(redis.cmd::<u64>(&["SCARD", &watcher_key(101)]).await, 2, "one on each replica");
    second.unsubscribe(&["quote:101"]).await;
    let_pass(Duration::from_secs(1)).await;
    assert!(is_watched_by(&redis, 101, "7").await, "one is left, on the other replica");
    last.close().await;
    wait_for("nobody watches", SOON, || async { (!is_watched_by(&redis, 101, "7").await).then_some(()) })
        .await;
}

#[tokio::test]
async fn r62_connections_that_the_server_closed_while_idle_are_replaced_quietly() {
    const IDLE: Duration = Duration::from_secs(3);
    let mut world = World::start().await;
    let ids: Vec<i64> = (101..=121).collect();
    for &id in &ids {
        world.store(id, &format!("{id}.50"), 1).await;
    }
    let n_lost = async || world.gateway.metrics().await.sum("upstream_connections_lost_total", &[]);
    let before = n_lost().await;
    world.redis.cmd::<()>(&["CONFIG", "SET", "timeout", "1"]).await;
    let shown = async |id: i64| {
        let mut ws = Ws::open_as(&world.gateway, &id.to_string()).await;
        ws.subscribe(&[&format!("quote:{id}")]).await;
        let first = next_price(&mut ws).await;
        assert!(first.contains(&format!(r#""price":{id}.50"#)), "{first}");
    };
    let_pass(IDLE).await;
    shown(ids[0]).await;
    let_pass(IDLE).await;
    futures_util::future::join_all(ids[1..].iter().map(|&id| shown(id))).await;
    assert!((n_lost().await - before).abs() < 0.5, "subscriptions are no idle connections");
}

#[tokio::test]
async fn functions_older_than_the_program_are_a_warning_and_newer_ones_the_end() {
    let redis = RedisServer::start().await;
    let older = Gateway::start(&redis).await;
    wait_for("the remedy is told", SOON, || async {
        older.log().contains("run `tickbridge migrate`").then_some(())
    })
    .await;
    redis.cmd::<()>(&["HSET", "tickbridge:schema", "0099_future", "x"]).await;
    let mut newer = Gateway::builder().redis(&redis).launch();
    let status = newer.process().ended(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(1));
    assert!(newer.log().contains("newer than this program"), "{}", newer.log());
}
