//! Who may have a session, and for how long: the same verdicts over both transports.

use super::support::http::Answer;
use super::support::publisher::watcher_key;
use super::support::sse::{Item, Sse};
use super::support::token::{
    ISSUER, SECRET, claims, expiring, forged, signed, signed_with, token, unix_secs,
};
use super::support::wait::{let_pass, wait_for};
use super::support::world::World;
use super::support::ws::{Heard, Ws};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(15);

fn with(claim: &str, value: Value) -> String {
    let mut claims = claims("7");
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
        value => claims[claim] = value,
    }
    signed(&claims)
}

/// What must never pass, with the reason under which it is counted.
fn bad_tokens() -> Vec<(&'static str, String, &'static str)> {
    let good = token("7");
    let (body, signature) = good.rsplit_once('.').unwrap();
    let none = |alg: &str| forged(&json!({ "alg": alg, "typ": "JWT" }), &claims("7"), b"");
    // Good as HS256, so that only the name of the algorithm is wrong.
    let rs256_over_hmac = {
        let header = URL_SAFE_NO_PAD.encode(json!({ "alg": "RS256", "typ": "JWT" }).to_string());
        let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims("7").to_string()));
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
        format!("{message}.{signature}")
    };
    let cut = |signature: &str| {
        let bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        URL_SAFE_NO_PAD.encode(&bytes[..bytes.len() - 1])
    };
    vec![
        ("nothing", String::new(), "malformed"),
        ("no token", "abc".into(), "malformed"),
        ("two segments", body.into(), "malformed"),
        ("a fourth segment", format!("{good}.x"), "malformed"),
        ("blanks around", format!(" {good} "), "malformed"),
        ("a signature cut by a byte", format!("{body}.{}", cut(signature)), "signature"),
        ("the empty key", signed_with(Algorithm::HS256, "", &claims("7")), "signature"),
        ("another key", signed_with(Algorithm::HS256, "another secret", &claims("7")), "signature"),
        ("alg none", none("none"), "algorithm"),
        ("alg None", none("None"), "algorithm"),
        ("alg nOnE", none("nOnE"), "algorithm"),
        ("an RS256 header over an HMAC", rs256_over_hmac, "algorithm"),
        ("expired", expiring("7", -10), "expired"),
        ("no expiry", with("exp", Value::Null), "expired"),
        ("not yet valid", with("nbf", json!(unix_secs() + 60)), "not_yet_valid"),
        ("another issuer", with("iss", json!("somebody")), "issuer"),
        ("no issuer", with("iss", Value::Null), "issuer"),
        ("no subject", with("sub", Value::Null), "subject"),
        ("an empty subject", with("sub", json!("")), "subject"),
    ]
}

/// A header can't carry every text; what it can't is judged over WebSocket only.
fn fits_a_header(token: &str) -> bool {
    !token.is_empty() && token.trim() == token
}

/// HS384 and HS512 with the right secret are good: the key decides, and it allows all three.
#[tokio::test]
async fn r38_bad_tokens_are_refused_alike_over_both_transports() {
    let world = World::start().await;
    for (name, bad, _) in bad_tokens() {
        let mut ws = Ws::open(&world.gateway).await;
        ws.send(json!({ "type": "auth", "token": bad }).to_string());
        let error = ws.next_text().await;
        assert!(
            error.starts_with(r#"{"type":"error""#) && error.contains(r#""code":"UNAUTHORIZED""#),
            "{name}: {error}"
        );
        assert_eq!(ws.closed(Duration::from_secs(2)).await, (1008, "auth_error".into()), "{name}");
        if fits_a_header(&bad) {
            let bearer = format!("Bearer {bad}");
            let headers = [("Authorization", bearer.as_str())];
            let refused = Sse::connect(world.gateway.public, "/market/sse?topics=quote:1", &headers).await;
            let answer = refused.err().unwrap_or_else(|| panic!("{name}: a stream is given"));
            assert_eq!((answer.head.status, &answer.json()["code"]), (401, &json!("UNAUTHORIZED")), "{name}");
        }
    }
    let metrics = world.gateway.metrics().await;
    for reason in ["malformed", "algorithm", "signature", "expired", "not_yet_valid", "issuer", "subject"] {
        let of_reason = |token: &&(&str, String, &str)| token.2 == reason;
        let tokens = bad_tokens();
        let over_ws = tokens.iter().filter(of_reason).count();
        let over_sse = tokens.iter().filter(of_reason).filter(|token| fits_a_header(&token.1)).count();
        let counted = metrics.sum("auth_failures_total", &[("reason", reason)]);
        assert_eq!(counted, (over_ws + over_sse) as f64, "{reason}");
    }
    let closed = [("reason", "auth_error")];
    world.gateway.metric_is("sessions_closed_total", &closed, SOON, bad_tokens().len() as f64).await;
    // The control: what is refused says nothing of what is good.
    Ws::open_as(&world.gateway, "7").await.subscribe(&["quote:1"]).await;
    Sse::open(&world.gateway, &token("7"), "quote:1").await.acknowledgement().await;
}

#[tokio::test]
async fn every_hmac_of_the_right_secret_passes() {
    let world = World::start().await;
    for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
        let token = signed_with(algorithm, SECRET, &claims("7"));
        Ws::open(&world.gateway).await.auth(&token).await;
        Sse::open(&world.gateway, &token, "quote:1").await.acknowledgement().await;
    }
}

#[tokio::test]
async fn without_a_token_nothing_but_auth_is_answered() {
    let world = World::start().await;
    let mut ws = Ws::open(&world.gateway).await;
    ws.send(r#"{"type":"subscribe","request_id":"r1","topics":["quote:1"]}"#);
    let error = ws.next_text().await;
    assert!(
        error.starts_with(r#"{"type":"error","request_id":"r1","code":"UNAUTHORIZED","message":"#),
        "{error}"
    );
    // The session stays open until the time for a token is over.
    ws.auth(&token("7")).await;
    assert!(ws.subscribe(&["quote:1"]).await.contains(r#""subscribed":["quote:1"]"#));

    let refused = Sse::connect(world.gateway.public, "/market/sse?topics=quote:1", &[]).await;
    assert_eq!(refused.err().expect("no stream").head.status, 401);
}

#[tokio::test]
async fn a_silent_newcomer_is_closed_after_the_auth_timeout() {
    let world = World::start().await;
    let connected = Instant::now();
    let mut ws = Ws::open(&world.gateway).await;
    assert_eq!(ws.closed(Duration::from_secs(6)).await, (1008, "auth_timeout".into()));
    // The sweep's clock ticks ten times a second.
    let early = Duration::from_secs(3).saturating_sub(connected.elapsed());
    assert!(early < Duration::from_millis(200), "{early:?} before its time");
}

#[tokio::test]
async fn anonymous_sessions_subscribe_and_may_sign_in_later() {
    let mut world = World::start_with(|builder| builder.set("auth.anonymous", "true")).await;
    let mut ws = Ws::open(&world.gateway).await;
    ws.subscribe(&["quote:1"]).await;
    let path = "/market/sse?topics=quote:1";
    let mut sse = Sse::connect(world.gateway.public, path, &[]).await.expect("a stream without a token");
    sse.acknowledgement().await;
    world.announce(1, "71000.10", 1).await;
    assert!(ws.next_event().await.contains("71000.10"));
    assert!(sse.next_event().await.contains("71000.10"));
    ws.auth(&token("7")).await;
    world.announce(1, "71000.20", 2).await;
    assert!(ws.next_event().await.contains("71000.20"));
}

#[tokio::test]
async fn r40_sessions_end_with_their_token_unless_a_fresh_one_comes() {
    let mut world = World::start().await;
    let mut ends = Ws::open(&world.gateway).await;
    ends.auth(&expiring("7", 4)).await;
    let mut stays = Ws::open(&world.gateway).await;
    stays.auth(&expiring("8", 4)).await;
    let mut stream = Sse::open(&world.gateway, &expiring("9", 4), "quote:1").await;
    stream.acknowledgement().await;
    for ws in [&mut ends, &mut stays] {
        ws.subscribe(&["quote:1"]).await;
    }
    stays.auth(&token("8")).await;

    // Quotes flow all the time, so that nobody ends for want of them.
    let begun = Instant::now();
    let (mut n, mut last) = (0, [0, 0]);
    let mut over: [Option<Duration>; 2] = [None, None];
    while over.iter().any(Option::is_none) {
        n += 1;
        world.announce(1, "71000.10", n).await;
        assert!(stays.next_event().await.contains(&format!(r#""eventTs":{n},"#)), "the third goes on");
        let heard = ends.all_within(Duration::from_millis(100)).await;
        last[0] += heard.iter().filter(|heard| matches!(heard, Heard::Text(_))).count();
        if heard.contains(&Heard::Close(1008, "token_expired".into())) {
            over[0].get_or_insert(begun.elapsed());
        }
        while let Some(item) = stream.next_within(Duration::from_millis(100)).await {
            match item {
                Item::Event { data, .. } if data.contains("eventTs") => last[1] += 1,
                Item::Event { name, data, .. } if name == "close" => {
                    assert!(data.contains(r#""code":1008,"reason":"token_expired""#), "{data}");
                }
                Item::End => {
                    over[1].get_or_insert(begun.elapsed());
                    break;
                }
                _ => {}
            }
        }
        assert!(begun.elapsed() < 2 * SOON, "still open: {over:?}");
    }
    assert!(last.iter().all(|&n| n > 0), "{last:?} events before the end");
    // Expiry is in whole seconds, a second of leeway follows.
    assert!(over.iter().flatten().all(|&at| at > Duration::from_secs(3)), "{over:?}");
    let key = watcher_key(1);
    wait_for("only the third watches", SOON, || async {
        let members: Vec<String> = world.redis.cmd(&["SMEMBERS", &key]).await;
        (members.len() == 1 && members[0].starts_with("8@")).then_some(())
    })
    .await;
    let_pass(Duration::from_secs(1)).await;
    world.announce(1, "71000.20", n + 1).await;
    assert!(stays.next_event().await.contains("71000.20"));
    let closed = [("reason", "token_expired")];
    world.gateway.metric_is("sessions_closed_total", &closed, SOON, 2.0).await;
}

#[tokio::test]
async fn r42_an_origin_is_compared_as_a_whole_before_the_upgrade() {
    let world = World::start_with(|b| b.set("listen.allowed_origins", "['https://app.example.com']")).await;
    let bearer = format!("Bearer {}", token("7"));
    let stream = async |origin: &str| {
        let headers = [("Authorization", bearer.as_str()), ("Origin", origin)];
        Sse::connect(world.gateway.public, "/market/sse?topics=quote:1", &headers).await
    };
    let refused = |answer: &Answer, origin: &str| {
        assert_eq!((answer.head.status, &answer.json()["code"]), (403, &json!("UNAUTHORIZED")), "{origin}");
        assert_eq!(answer.head.header("access-control-allow-origin"), "", "{origin}");
        assert_eq!(answer.head.header("vary"), "origin", "{origin}");
    };
    for origin in [
        "https://app.example.com.evil.test",
        "https://evilapp.example.com",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com@evil.test",
    ] {
        let ws = Ws::connect(world.gateway.public, "/market/ws", &[("Origin", origin)]).await;
        refused(&ws.err().expect("no upgrade"), origin);
        refused(&stream(origin).await.err().expect("no stream"), origin);
    }
    let allowed = "https://app.example.com";
    let mut ws =
        Ws::connect(world.gateway.public, "/market/ws", &[("Origin", allowed)]).await.expect("upgraded");
    ws.auth(&token("7")).await;
    let stream = stream(allowed).await.expect("a stream");
    assert_eq!(stream.head.header("access-control-allow-origin"), allowed);
    assert_eq!(stream.head.header("vary"), "origin");
}

#[tokio::test]
async fn a_token_of_somebody_else_ends_the_session() {
    let world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.send(json!({ "type": "auth", "token": token("8") }).to_string());
    assert!(ws.next_text().await.contains(r#""code":"UNAUTHORIZED""#));
    assert_eq!(ws.closed(Duration::from_secs(2)).await, (1008, "auth_error".into()));
}

#[tokio::test]
async fn r45_a_subject_with_line_breaks_makes_no_lines() {
    let world = World::start().await;
    let subject = "7\n\nevent: forged\ndata: {}\r\n";
    let token = signed(&json!({ "sub": subject, "iss": ISSUER, "exp": unix_secs() + 60 }));
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str())];
    match Sse::connect(world.gateway.public, "/market/sse?topics=quote:1", &headers).await {
        // Either verdict on such a subject is right, as long as it stays a subject.
        Ok(mut stream) => drop(stream.acknowledgement().await),
        Err(answer) => assert_eq!(answer.head.status, 401, "{answer:?}"),
    }
    let log = world.gateway.log();
    assert!(!log.lines().any(|line| line.starts_with("event: forged")), "{log}");
}
