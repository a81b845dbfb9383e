//! Requests for streams: who may, what is refused, and adding entries over HTTP.

use super::client::{BOTH, Client, DUE, Item, Transport};
use super::producer::{Producer, key, texts};
use super::{builder, closed_normally};
use crate::support::gateway::Gateway;
use crate::support::http::{Answer, request};
use crate::support::redis::RedisServer;
use crate::support::token::{claims, expiring, signed, token};
use crate::support::wait::wait_for;
use serde_json::{Value, json};
use std::time::Duration;

const KEY: &str = "a key of the tests";

async fn post(gateway: &Gateway, path: &str, key: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {key}");
    request(gateway.admin, "POST", path, &[("Authorization", &bearer)], &body.to_string()).await
}

fn ids(answer: &Answer) -> Vec<String> {
    let ids = answer.json()["ids"].as_array().unwrap().clone();
    ids.into_iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

/// As what a request is refused: the status, or the close that stands for it on a WebSocket.
async fn refusal(opened: Result<Client, u16>) -> Option<(u16, String)> {
    match opened {
        Err(status) => Some((status, String::new())),
        Ok(mut client) => match client.next().await {
            Item::Closed(code, reason) => Some((code, reason)),
            _ => None,
        },
    }
}

/// What [`refusal`] gives for a status, and the reason of the close that stands for it.
fn refused(transport: Transport, status: u16, code: u16, reason: &str) -> Option<(u16, String)> {
    Some(match transport {
        Transport::Sse => (status, String::new()),
        Transport::Ws => (code, reason.to_owned()),
    })
}

#[tokio::test]
async fn who_proves_nothing_gets_nothing() {
    let redis = RedisServer::start().await;
    let gateway = builder()
        .set("auth.anonymous", "false")
        .redis(&redis)
        .set("auth.cookie", "'session'")
        .set("listen.allowed_origins", "['https://app.example']")
        .start()
        .await;
    Producer::new(&redis, "a").await.tokens(0..1).await;
    let good = token("7");
    let (bearer, bad) = (format!("Bearer {good}"), format!("Bearer {good}x"));
    let cookie = format!("session={good}");
    for transport in BOTH {
        let asked = async |query: &str, headers: &[(&str, &str)]| {
            refusal(Client::open(gateway.public, transport, query, headers).await).await
        };
        let unproven = refused(transport, 401, 1008, "auth_error");
        assert_eq!(asked("id=a", &[]).await, unproven);
        assert_eq!(asked("id=a", &[("Authorization", &bad)]).await, unproven);
        assert_eq!(asked("id=a", &[("Authorization", &bearer)]).await, None);
        let origin = ("Origin", "https://app.example");
        assert_eq!(asked("id=a", &[("Cookie", &cookie), origin]).await, None);
        let foreign = ("Origin", "https://elsewhere.example");
        assert_eq!(asked("id=a", &[("Cookie", &cookie), foreign]).await, Some((403, String::new())));
        let ticket =
            request(gateway.public, "POST", "/market/ticket", &[("Authorization", &bearer)], "").await;
        let query = format!("id=a&ticket={}", ticket.json()["ticket"].as_str().unwrap());
        assert_eq!(asked(&query, &[]).await, None);
        assert_eq!(asked(&query, &[]).await, unproven, "a ticket is good once");
        for bad in ["", "id=", "id=a%2Fb", "id=a&from=x", "id=a&from=1", "id=a&last_event_id=1-x"] {
            let unreadable = refused(transport, 400, 4400, "bad_request");
            assert_eq!(asked(bad, &[("Authorization", &bearer)]).await, unreadable, "{bad}");
        }
    }
}

/// The claim holds through a ticket, too.
#[tokio::test]
async fn a_token_reads_what_its_claim_names() {
    let redis = RedisServer::start().await;
    let gateway = builder()
        .set("auth.anonymous", "false")
        .redis(&redis)
        .set("auth.jwt.streams_claim", "'streams'")
        .start()
        .await;
    let limited = |patterns: Value| {
        let mut claims = claims("7");
        claims["streams"] = patterns;
        format!("Bearer {}", signed(&claims))
    };
    for id in ["chat:7", "chat:8", "demo-1"] {
        Producer::new(&redis, id).await.tokens(0..1).await;
    }
    let bearer = limited(json!(["chat:7", "demo-*"]));
    for (transport, (id, allowed)) in
        BOTH.into_iter().flat_map(|t| [("chat:7", true), ("demo-1", true), ("chat:8", false)].map(|c| (t, c)))
    {
        let verdict = if allowed { None } else { refused(transport, 403, 4403, "forbidden") };
        let query = format!("id={id}");
        let asked = Client::open(gateway.public, transport, &query, &[("Authorization", &bearer)]).await;
        assert_eq!(refusal(asked).await, verdict, "{id}");
        let ticket =
            request(gateway.public, "POST", "/market/ticket", &[("Authorization", &bearer)], "").await;
        let query = format!("id={id}&ticket={}", ticket.json()["ticket"].as_str().unwrap());
        let asked = Client::open(gateway.public, transport, &query, &[]).await;
        assert_eq!(refusal(asked).await, verdict, "{id}");
    }
    let nothing = format!("Bearer {}", token("7"));
    let asked =
        Client::open(gateway.public, Transport::Sse, "id=chat:7", &[("Authorization", &nothing)]).await;
    assert_eq!(asked.err(), Some(403), "a token without the claim reads nothing");
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let redis = RedisServer::start().await;
    let gateway =
        builder().set("auth.anonymous", "false").redis(&redis).set("auth.jwt.leeway", "'0s'").start().await;
    Producer::new(&redis, "a").await.tokens(0..1).await;
    for transport in BOTH {
        let bearer = format!("Bearer {}", expiring("7", 3));
        let headers = [("Authorization", bearer.as_str())];
        let mut client = Client::open(gateway.public, transport, "id=a", &headers).await.unwrap();
        assert_eq!(client.texts(1).await, texts(0..1));
        match transport {
            Transport::Sse => assert_eq!(client.next_of("close").await["reason"], json!("token_expired")),
            Transport::Ws => assert_eq!(client.next().await, Item::Closed(1008, "token_expired".into())),
        }
    }
}

#[tokio::test]
async fn sessions_of_streams_count_against_the_same_limit() {
    let redis = RedisServer::start().await;
    let gateway = builder().redis(&redis).set("limits.max_sessions", "2").start().await;
    let first = Client::resume(gateway.public, Transport::Sse, "a", None).await;
    let _market = crate::support::ws::Ws::open(&gateway).await;
    assert_eq!(Client::open(gateway.public, Transport::Ws, "id=a", &[]).await.err(), Some(503));
    drop(first);
    gateway.metric_is("stream_sessions", &[], DUE, 0.0).await;
    Client::resume(gateway.public, Transport::Ws, "a", None).await;
}

#[tokio::test]
async fn entries_that_come_over_http_are_stored_read_and_expire() {
    let redis = RedisServer::start().await;
    let gateway = builder()
        .redis(&redis)
        .set("listen.publish_key", &format!("'{KEY}'"))
        .set("streams.ttl", "'1m'")
        .start()
        .await;
    let words = json!([{ "event": "token", "data": "0" }, { "event": "token", "data": "1" }]);
    for refused in ["", "another"] {
        assert_eq!(post(&gateway, "/streams/a", refused, &words).await.head.status, 401, "{refused:?}");
    }
    assert_eq!(post(&gateway, "/streams/a%20b", KEY, &words).await.head.status, 400);
    assert_eq!(post(&gateway, "/streams/a", KEY, &json!({})).await.head.status, 400);
    let mut client = Client::resume(gateway.public, Transport::Ws, "a", None).await;
    let answer = post(&gateway, "/streams/a", KEY, &words).await;
    assert_eq!(answer.head.status, 200, "{answer:?}");
    let first = ids(&answer);
    assert_eq!(client.texts(2).await, texts(0..2));
    assert_eq!(client.cursor.as_ref(), first.last());
    let ttl: u64 = redis.cmd(&["PTTL", &key("a")]).await;
    assert!((50_000..=60_000).contains(&ttl), "{ttl}");

    let own = json!({ "id": "9999999999999-0", "data": "2" });
    for _ in 0..3 {
        let answer = post(&gateway, "/streams/a", KEY, &own).await;
        assert_eq!((answer.head.status, ids(&answer)), (200, vec!["9999999999999-0".to_owned()]));
    }
    let earlier = json!([{ "id": "5-0", "data": "x" }, { "data": "y" }]);
    let answer = post(&gateway, "/streams/a", KEY, &earlier).await;
    assert_eq!((answer.head.status, ids(&answer).len()), (409, 0), "{answer:?}");
    assert_eq!(answer.json()["reason"], json!("id_too_small"));
    let end = post(&gateway, "/streams/a", KEY, &json!({ "end": "done" })).await;
    assert_eq!(end.head.status, 200);
    assert_eq!(client.texts(1).await, texts(2..3), "it was added once");
    // Nor was what came behind the refused one.
    client.next_of("end").await;
}

/// Both ways to a demo stream, with Redis and without.
#[tokio::test]
async fn a_demo_answer_has_fifty_words_and_an_end() {
    let redis = RedisServer::start().await;
    let with = || builder().set("listen.publish_key", &format!("'{KEY}'")).set("demo.streams", "2");
    for gateway in [with().redis(&redis).start().await, with().set("redis.mode", "'embedded'").start().await]
    {
        let public = request(gateway.public, "POST", "/stream/demo", &[], "").await;
        let admin = post(&gateway, "/streams/demo", KEY, &json!({})).await;
        assert_eq!(post(&gateway, "/streams/demo", "another", &json!({})).await.head.status, 401);
        for (answer, transport) in [public, admin].into_iter().zip(BOTH) {
            assert_eq!(answer.head.status, 200, "{answer:?}");
            let id = answer.json()["id"].as_str().unwrap().to_owned();
            let mut client = Client::resume(gateway.public, transport, &id, None).await;
            let words = client.texts(50).await.concat();
            assert_eq!(words.split(' ').count(), 50, "{words}");
            assert_eq!(client.next_of("end").await["status"], json!("done"));
            closed_normally(&mut client).await;
        }
        wait_for("two are written and a third is refused", DUE, || async {
            let full = request(gateway.public, "POST", "/stream/demo", &[], "").await;
            (full.head.status == 503 && full.head.header("retry-after") == "1").then_some(())
        })
        .await;
    }
    let off = builder().set("redis.mode", "'embedded'").start().await;
    assert_eq!(request(off.public, "POST", "/stream/demo", &[], "").await.head.status, 404);
}

#[tokio::test]
async fn without_redis_streams_are_kept_and_resumed_all_the_same() {
    let gateway = builder()
        .set("redis.mode", "'embedded'")
        .set("listen.publish_key", &format!("'{KEY}'"))
        .set("streams.max_entries", "100")
        .start()
        .await;
    let tokens = |range: std::ops::Range<usize>| {
        json!(texts(range).iter().map(|n| json!({ "data": n })).collect::<Vec<_>>())
    };
    let first = ids(&post(&gateway, "/streams/a", KEY, &tokens(0..150)).await);
    for transport in BOTH {
        let mut whole = Client::resume(gateway.public, transport, "a", None).await;
        assert_eq!(whole.next_of("gap").await["missing"], json!(50));
        assert_eq!(whole.texts(100).await, texts(50..150));
        let mut rest = Client::resume(gateway.public, transport, "a", Some(&first[99])).await;
        assert_eq!(rest.texts(50).await, texts(100..150));
    }
    let mut live = Client::open(gateway.public, Transport::Sse, "id=a&from=$", &[]).await.unwrap();
    live.next_of("begin").await;
    post(&gateway, "/streams/a", KEY, &tokens(150..160)).await;
    assert_eq!(live.texts(10).await, texts(150..160));
    post(&gateway, "/streams/a", KEY, &json!({ "end": "done" })).await;
    live.next_of("end").await;
    closed_normally(&mut live).await;
}

#[tokio::test]
async fn heartbeats_come_while_nothing_else_does() {
    let redis = RedisServer::start().await;
    let gateway = builder()
        .redis(&redis)
        .set("session.heartbeat_interval", "'200ms'")
        .set("session.pong_timeout", "'1s'")
        .start()
        .await;
    for transport in BOTH {
        let mut client = Client::resume(gateway.public, transport, "a", None).await;
        let nothing = client.next_within(Duration::from_secs(4)).await;
        assert_eq!(nothing, None, "a client that answers pings stays");
        // One comes with the beginning over SSE.
        assert!(client.n_heartbeats > 3, "{transport:?}: {}", client.n_heartbeats);
    }
    let silent = Client::resume(gateway.public, Transport::Ws, "a", None).await;
    let reason = [("reason", "pong_timeout")];
    gateway.metric_is("stream_sessions_closed_total", &reason, DUE, 1.0).await;
    drop(silent);
}
