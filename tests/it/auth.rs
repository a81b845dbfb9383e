//! Who may have a session, and for how long: the same verdicts over both transports.

use super::support::sse::Sse;
use super::support::token::{
    ISSUER, SECRET, claims, expiring, forged, signed, signed_with, token, unix_secs,
};
use super::support::world::World;
use super::support::ws::Ws;
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

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
    vec![
        ("nothing", String::new(), "malformed"),
        ("no token", "abc".into(), "malformed"),
        ("two segments", body.into(), "malformed"),
        ("a fourth segment", format!("{good}.x"), "malformed"),
        ("blanks around", format!(" {good} "), "malformed"),
        ("a signature cut by a byte", format!("{body}.{}", &signature[..signature.len() - 2]), "signature"),
        ("the empty key", signed_with(Algorithm::HS256, "", &claims("7")), "signature"),
        ("another key", signed_with(Algorithm::HS256, "another secret", &claims("7")), "signature"),
        ("alg none", none("none"), "algorithm"),
        ("alg None", none("None"), "algorithm"),
        ("an RS256 header", forged(&json!({ "alg": "RS256" }), &claims("7"), b"x"), "algorithm"),
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

#[tokio::test]
async fn bad_tokens_are_refused_alike_over_both_transports() {
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
    metrics.sum("sessions_closed_total", &[("reason", "auth_error")]);
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
async fn a_session_ends_with_its_token_unless_a_fresh_one_comes() {
    let mut world = World::start().await;
    let mut ends = Ws::open(&world.gateway).await;
    ends.auth(&expiring("7", 3)).await;
    let mut stays = Ws::open(&world.gateway).await;
    stays.auth(&expiring("8", 3)).await;
    let mut stream = Sse::open(&world.gateway, &expiring("9", 3), "quote:1").await;
    for ws in [&mut ends, &mut stays] {
        ws.subscribe(&["quote:1"]).await;
    }
    stays.auth(&token("8")).await;
    // Expiry, a second of leeway, and a sweep.
    assert_eq!(ends.closed(Duration::from_secs(8)).await, (1008, "token_expired".into()));
    stream.ended(Duration::from_secs(4)).await;
    world.announce(1, "71000.10", 1).await;
    assert!(stays.next_event().await.contains("71000.10"));
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
