//! The limit of sessions per user, over two replicas that share one Redis or one cluster.

use super::support::cluster::RedisCluster;
use super::support::gateway::{Gateway, GatewayBuilder};
use super::support::http::{self, Answer};
use super::support::redis::RedisServer;
use super::support::sse::Sse;
use super::support::token::token;
use super::support::wait::wait_for;
use super::support::ws::{Heard, Ws};
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn limited(builder: GatewayBuilder, limit: usize, lease: &str) -> GatewayBuilder {
    // A machine that is too busy for a command in time would let everybody in.
    let builder = builder.set("redis.command_timeout", "'10s'").set("limits.user_lease", lease);
    builder.set("limits.max_sessions_per_user", &limit.to_string())
}

/// Starts both at the same time.
async fn start_two(builder: impl Fn() -> GatewayBuilder) -> (Gateway, Gateway) {
    let (mut a, mut b) = (builder().launch(), builder().launch());
    a.ready().await;
    b.ready().await;
    (a, b)
}

/// Two replicas with one limit.
struct Replicas {
    a: Gateway,
    b: Gateway,
    redis: RedisServer,
}

impl Replicas {
    async fn start(limit: usize, lease: &str) -> Self {
        let redis = RedisServer::start().await;
        let (a, b) = start_two(|| limited(Gateway::builder().redis(&redis), limit, lease)).await;
        Self { a, b, redis }
    }
}

/// An authenticated session, or how it was refused.
async fn ws(gateway: &Gateway, user: &str) -> Result<Ws, (String, Heard)> {
    let mut ws = Ws::open(gateway).await;
    ws.send(json!({ "type": "auth", "token": token(user) }).to_string());
    let answer = ws.next_text().await;
    if answer.starts_with(r#"{"type":"auth","ok":true"#) { Ok(ws) } else { Err((answer, ws.next().await)) }
}

async fn sse(gateway: &Gateway, user: &str) -> Result<Sse, Answer> {
    let bearer = format!("Bearer {}", token(user));
    let path = "/market/sse?topics=quote:101";
    let mut sse = Sse::connect(gateway.public, path, &[("Authorization", &bearer)]).await?;
    sse.acknowledgement().await;
    Ok(sse)
}

fn assert_refused(refused: Result<Ws, (String, Heard)>) {
    let (error, close) = refused.err().expect("refused");
    assert!(
        error.starts_with(r#"{"type":"error""#) && error.contains(r#""code":"LIMIT_EXCEEDED""#),
        "{error}"
    );
    assert_eq!(close, Heard::Close(1013, "try_again_later".into()));
}

fn assert_told_to_wait(answer: &Answer) {
    assert_eq!((answer.head.status, &answer.json()["code"]), (429, &json!("LIMIT_EXCEEDED")), "{answer:?}");
    assert!(!answer.head.header("retry-after").is_empty(), "{answer:?}");
}

#[tokio::test]
async fn a_user_has_the_same_limit_over_all_replicas_and_transports() {
    let Replicas { a, b, redis } = Replicas::start(3, "'1h'").await;
    let first = ws(&a, "7").await.expect("the first of three");
    let stream = sse(&a, "7").await.expect("the second of three");
    let mut third = ws(&b, "7").await.expect("the third of three");
    let mut others = Vec::new();
    for gateway in [&a, &b] {
        assert_refused(ws(gateway, "7").await);
        assert_told_to_wait(&sse(gateway, "7").await.err().expect("refused"));
        let bearer = format!("Bearer {}", token("7"));
        let auth = [("Authorization", bearer.as_str())];
        let answer = http::request(gateway.public, "POST", "/market/ticket", &auth, "").await;
        let path = format!("/market/ws?ticket={}", answer.json()["ticket"].as_str().expect("a ticket"));
        assert_told_to_wait(&Ws::connect(gateway.public, &path, &[]).await.err().expect("refused"));
        others.push(ws(gateway, "8").await.expect("somebody else's"));
    }
    // A fresh token is no further session, and messages cost nothing.
    third.auth(&token("7")).await;
    let n_asked = redis.n_calls("eval").await;
    third.auth(&token("7")).await;
    for _ in 0..5 {
        third.subscribe(&["quote:101"]).await;
    }
    assert_eq!(redis.n_calls("eval").await, n_asked);

    // Each end gives its place to whoever asks next, wherever that is.
    drop(first);
    let next = wait_for("a place for the next", SOON, || async { ws(&b, "7").await.ok() }).await;
    drop(stream);
    let last = wait_for("a place for the last", SOON, || async { sse(&b, "7").await.ok() }).await;
    assert_refused(ws(&a, "7").await);
    drop((next, third, last, others));
    wait_for("nothing is left in Redis", SOON, || async {
        redis.cmd::<Vec<String>>(&["KEYS", "tickbridge:sessions:*"]).await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn sessions_that_come_at_once_never_exceed_the_limit() {
    let Replicas { a, b, redis: _redis } = Replicas::start(5, "'1h'").await;
    let asked = (0..30).map(|n| ws(if n % 2 == 0 { &a } else { &b }, "7"));
    let asked = futures_util::future::join_all(asked).await;
    let (sessions, refused): (Vec<_>, Vec<_>) = asked.into_iter().partition(Result::is_ok);
    assert_eq!((sessions.len(), refused.len()), (5, 25));
    refused.into_iter().for_each(assert_refused);
    let mut granted = 0.0;
    for gateway in [&a, &b] {
        granted += gateway.metrics().await.sum("user_places_total", &[("verdict", "granted")]);
    }
    assert!((granted - 5.0).abs() < 0.5, "{granted}");
}

#[tokio::test]
async fn the_places_of_a_killed_replica_come_back() {
    let Replicas { mut a, b, redis } = Replicas::start(2, "'5s'").await;
    let _sessions = [ws(&a, "7").await.expect("room"), ws(&a, "7").await.expect("room")];
    let other = ws(&a, "8").await.expect("room");
    assert_refused(ws(&b, "7").await);
    // What lives is renewed, however short the lease.
    super::support::wait::let_pass(Duration::from_secs(7)).await;
    assert_refused(ws(&b, "7").await);
    a.process().kill9();
    let both = wait_for("the places of the dead replica", SOON, || async {
        Some([ws(&b, "7").await.ok()?, ws(&b, "7").await.ok()?])
    })
    .await;
    assert_refused(ws(&b, "7").await);
    drop((both, other));
    wait_for("nothing is left in Redis", SOON, || async {
        redis.cmd::<Vec<String>>(&["KEYS", "tickbridge:sessions:*"]).await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_redis_each_replica_keeps_the_limit_by_itself() {
    let Replicas { a, b, mut redis } = Replicas::start(2, "'1s'").await;
    let mut sessions = vec![ws(&a, "7").await.expect("room")];
    redis.kill9();
    sessions.push(ws(&a, "7").await.expect("let in without Redis"));
    assert_refused(ws(&a, "7").await);
    for _ in 0..2 {
        sessions.push(ws(&b, "7").await.expect("let in without Redis"));
    }
    assert_refused(ws(&b, "7").await);
    assert_told_to_wait(&sse(&b, "7").await.err().expect("refused"));
    sse(&b, "9").await.expect("somebody else is let in");
    for (gateway, n) in [(&a, 1.0), (&b, 3.0)] {
        let unchecked = [("verdict", "unchecked")];
        gateway.metric_is("user_places_total", &unchecked, SOON, n).await;
    }

    // The count becomes whole again by itself: nobody gets in until three of the four have left.
    redis.restart().await;
    wait_for("both replicas' sessions are counted", SOON, || async {
        (redis.cmd::<u64>(&["HLEN", "tickbridge:sessions:7"]).await == 2).then_some(())
    })
    .await;
    assert_refused(ws(&a, "7").await);
    drop(sessions.drain(..3));
    wait_for("a place for the next", SOON, || async { ws(&a, "7").await.ok() }).await;
}

#[tokio::test]
async fn whoever_leaves_a_draining_replica_finds_its_place_elsewhere() {
    const USERS: usize = 12;
    let redis = RedisServer::start().await;
    let builder = || limited(Gateway::builder().redis(&redis), 1, "'1h'");
    // A turn per second: the last session is open for long after it was told to go.
    let drain =
        |builder: GatewayBuilder| builder.set("drain.deadline", "'30s'").set("drain.reconnect_rate", "1");
    let (mut a, b) = (drain(builder()).start().await, builder().start().await);
    let mut sessions = Vec::new();
    for user in (0..USERS).map(|n| n.to_string()) {
        sessions.push((ws(&a, &user).await.expect("room"), user));
    }
    assert_refused(ws(&b, "7").await);
    a.process().stop();
    let (mut last, mut longest) = (0, 0);
    for (n, (session, _)) in sessions.iter_mut().enumerate() {
        let told: Value = serde_json::from_str(&session.next_of("reconnect").await).unwrap();
        let wait = told["after_ms"].as_u64().unwrap();
        if wait > longest {
            (last, longest) = (n, wait);
        }
    }
    let (mut session, user) = sessions.swap_remove(last);
    let moved = wait_for("a place elsewhere", SOON, || async { ws(&b, &user).await.ok() }).await;
    session.send(json!({ "type": "ping", "ts": 7 }).to_string());
    session.next_of("pong").await;
    for (_, user) in &sessions {
        wait_for("a place elsewhere", SOON, || async { ws(&b, user).await.ok() }).await;
    }
    drop((session, moved));
    assert_eq!(a.process().ended(SOON * 2).await.code(), Some(0));
}

/// How many users have a hash on each node of the cluster that is a primary.
async fn n_users(cluster: &RedisCluster) -> [usize; 3] {
    let mut n = [0; 3];
    for (shard, n) in n.iter_mut().enumerate() {
        let primary = cluster.primary(shard).await;
        *n = cluster.cmd::<Vec<String>>(primary, &["KEYS", "tickbridge:sessions:*"]).await.len();
    }
    n
}

/// Each user is counted on the node that has the slot of its key.
#[tokio::test]
async fn in_a_cluster_the_limit_holds_on_every_shard_and_after_a_failover() {
    const USERS: usize = 12;
    let mut cluster = RedisCluster::start(3, 1).await;
    let (a, b) = start_two(|| limited(Gateway::builder().cluster(&cluster), 2, "'3s'")).await;
    let mut held = Vec::new();
    for user in (1..=USERS).map(|n| n.to_string()) {
        let first = ws(&a, &user).await.expect("the first of two");
        let second = ws(&b, &user).await.expect("the second of two");
        for gateway in [&a, &b] {
            assert_refused(ws(gateway, &user).await);
        }
        held.push((user, first, second));
    }
    let n = n_users(&cluster).await;
    assert!(n.iter().sum::<usize>() == USERS && !n.contains(&0), "{n:?}");

    let former = cluster.kill_primary(0).await;
    cluster.succeeded(0, former).await;
    let mut rest = Vec::new();
    for (user, first, second) in held {
        // While the shard has no primary, each replica goes by its own count, which is one of two.
        for gateway in [&a, &b] {
            let refused = wait_for("both replicas count", SOON, || async { ws(gateway, &user).await.err() });
            assert_refused(Err(refused.await));
        }
        drop(first);
        let next = wait_for("the place of who left", SOON, || async { ws(&b, &user).await.ok() }).await;
        rest.push((second, next));
    }
    drop(rest);
    wait_for("nothing is left in the cluster", SOON, || async {
        (n_users(&cluster).await == [0; 3]).then_some(())
    })
    .await;
}
