//! Another configuration for a running process.

use super::support::gateway::{Gateway, GatewayBuilder};
use super::support::http;
use super::support::raw_ws::RawWs;
use super::support::sse::Sse;
use super::support::token::{SECRET, claims, signed_with, token};
use super::support::wait::{wait_for, wait_until};
use super::support::ws::Ws;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const SOON: Duration = Duration::from_secs(10);

fn embedded() -> GatewayBuilder {
    Gateway::builder().set("redis.mode", "'embedded'")
}

async fn outcomes(gateway: &Gateway) -> (f64, f64) {
    let metrics = gateway.metrics().await;
    let of = |outcome| metrics.sum("config_reloads_total", &[("outcome", outcome)]);
    (of("applied"), of("refused"))
}

/// The status of a request for a stream.
async fn status(gateway: &Gateway, token: &str, headers: &[(&str, &str)]) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [&[("Authorization", bearer.as_str())], headers].concat();
    match Sse::connect(gateway.public, "/market/sse?topics=quote:1", &headers).await {
        Ok(stream) => stream.head.status,
        Err(answer) => answer.head.status,
    }
}

#[tokio::test]
async fn limits_change_for_who_comes_after_and_throw_nobody_out() {
    let mut gateway = embedded().set("session.max_topics", "2").start().await;
    let mut ws = Ws::open_as(&gateway, "7").await;
    ws.subscribe(&["quote:1", "quote:2"]).await;
    assert!(ws.subscribe(&["quote:3"]).await.contains(r#""rejected":["quote:3"]"#));
    gateway.reload(&[("session.max_topics", "3"), ("limits.max_sessions_per_user", "1")]).await;
    assert!(ws.subscribe(&["quote:3"]).await.contains(r#""subscribed":["quote:3"]"#));

    // The session from before doesn't count for its user, and stays.
    let _counted = Ws::open_as(&gateway, "7").await;
    assert_eq!(status(&gateway, &token("7"), &[]).await, 429);
    assert_eq!(status(&gateway, &token("8"), &[]).await, 200);

    // The sessions from before do count for their address and in all.
    gateway.reload(&[("limits.max_sessions_per_user", "0"), ("limits.max_sessions_per_ip", "1")]).await;
    assert_eq!(status(&gateway, &token("7"), &[]).await, 429);
    gateway.reload(&[("limits.max_sessions_per_ip", "0"), ("limits.max_sessions", "1")]).await;
    assert_eq!(status(&gateway, &token("7"), &[]).await, 503);
    gateway.reload(&[("limits.max_sessions", "10"), ("session.max_topics", "1")]).await;
    assert_eq!(status(&gateway, &token("7"), &[]).await, 200);
    assert!(ws.subscribe(&["quote:1", "quote:4"]).await.contains(r#""rejected":["quote:4"]"#));
    assert!(outcomes(&gateway).await.1 < 0.5);
}

#[tokio::test]
async fn rates_change_at_once() {
    let mut gateway = embedded().set("session.max_inbound_per_second", "1").start().await;
    let flood = async |gateway: &Gateway| {
        let mut ws = RawWs::connect(gateway.public).await;
        for _ in 0..20 {
            ws.send(r#"{"type":"pong"}"#).await;
        }
        ws.send(r#"{"type":"ping","ts":7}"#).await;
        ws.next().await.expect("a frame")
    };
    assert_eq!(flood(&gateway).await.close(), (1008, "rate_limited"));
    gateway.reload(&[("session.max_inbound_per_second", "100000")]).await;
    assert!(flood(&gateway).await.text().starts_with(r#"{"type":"pong","ts":7"#));

    gateway.reload(&[("limits.accepts_per_second", "1")]).await;
    let refused = wait_for("one connection too many", SOON, || async {
        let answer = http::try_request(gateway.public, "GET", "/market/prices?ids=1", &[], "").await.ok()?;
        (answer.head.status == 503).then_some(answer)
    })
    .await;
    assert_eq!(refused.head.header("retry-after"), "1", "{refused:?}");
    gateway.reload(&[("limits.accepts_per_second", "100000")]).await;
    for _ in 0..20 {
        let answer = http::get(gateway.public, "/market/prices?ids=1", &[]).await;
        assert_eq!(answer.head.status, 401, "{answer:?}");
    }
}

#[tokio::test]
async fn origins_change_at_once() {
    let mut gateway = embedded().set("listen.allowed_origins", "['https://old.example']").start().await;
    let of =
        async |gateway: &Gateway, origin: &str| status(gateway, &token("7"), &[("Origin", origin)]).await;
    assert_eq!(of(&gateway, "https://old.example").await, 200);
    assert_eq!(of(&gateway, "https://new.example").await, 403);
    gateway.reload(&[("listen.allowed_origins", "['https://new.example']")]).await;
    assert_eq!(of(&gateway, "https://old.example").await, 403);
    let bearer = format!("Bearer {}", token("7"));
    let headers = [("Authorization", bearer.as_str()), ("Origin", "https://new.example")];
    let allowed = http::get(gateway.public, "/market/prices?ids=1", &headers).await;
    assert_eq!(allowed.head.header("access-control-allow-origin"), "https://new.example", "{allowed:?}");
}

fn testdata(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/edge/auth/testdata");
    folder.join(name).to_str().unwrap().to_owned()
}

/// A token of user 7 signed with the Ed25519 key.
fn with_key_pair() -> String {
    let key = EncodingKey::from_ed_pem(&std::fs::read(testdata("ed25519.private.pem")).unwrap()).unwrap();
    jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims("7"), &key).unwrap()
}

#[tokio::test]
async fn keys_are_read_again_also_from_files_of_the_same_name() {
    let folder = tempfile::tempdir().unwrap();
    let [secret, pem] = ["secret", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
    std::fs::copy(testdata("p256.pem"), &pem).unwrap();
    let quoted = |path: &Path| format!("'{}'", path.display());
    let builder = embedded().unset("auth.jwt.secret").set("auth.jwt.secret_file", &quoted(&secret));
    let mut gateway = builder.set("auth.jwt.public_keys", &format!("[{}]", quoted(&pem))).start().await;
    let rotated = signed_with(Algorithm::HS256, "another secret, also longer than 32 bytes", &claims("7"));
    let mut before = Ws::open_as(&gateway, "7").await;
    assert_eq!(status(&gateway, &token("7"), &[]).await, 200);
    assert_eq!(status(&gateway, &rotated, &[]).await, 401);
    assert_eq!(status(&gateway, &with_key_pair(), &[]).await, 401);

    std::fs::write(&secret, "another secret, also longer than 32 bytes").unwrap();
    std::fs::copy(testdata("ed25519.pem"), &pem).unwrap();
    gateway.reload(&[]).await;
    assert_eq!(status(&gateway, &token("7"), &[]).await, 401);
    assert_eq!(status(&gateway, &rotated, &[]).await, 200);
    assert_eq!(status(&gateway, &with_key_pair(), &[]).await, 200);
    // Who was let in before stays until the token expires.
    assert!(before.subscribe(&["quote:1"]).await.contains(r#""subscribed":["quote:1"]"#));
}

#[tokio::test]
async fn a_configuration_with_problems_changes_nothing_and_each_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("key.pem");
    std::fs::copy(testdata("p256.pem"), &pem).unwrap();
    let public_keys = format!("['{}']", pem.display());
    let mut gateway =
        embedded().set("auth.jwt.public_keys", &public_keys).set("session.max_topics", "1").start().await;
    let mut ws = Ws::open_as(&gateway, "7").await;

    let settings =
        [("session.max_topics", "0"), ("limits.accepts_per_second", "'many'"), ("log.filter", "'warn'")];
    gateway.reload(&settings).await;
    assert_eq!(outcomes(&gateway).await, (0.0, 1.0));
    let log = gateway.log();
    for key in ["session.max_topics = 0", "limits.accepts_per_second = "] {
        assert!(log.contains(key), "{key} is not named: {log}");
    }
    // What is wrong with files shows only when the rest is right.
    std::fs::write(&pem, "no key").unwrap();
    let settings =
        [("session.max_topics", "5"), ("limits.accepts_per_second", "100000"), ("log.filter", "'info'")];
    gateway.reload(&settings).await;
    assert_eq!(outcomes(&gateway).await, (0.0, 2.0));
    assert!(gateway.log().contains("key.pem holds no public key"), "{}", gateway.log());
    let acknowledgement = ws.subscribe(&["quote:1", "quote:2"]).await;
    assert!(acknowledgement.contains(r#""rejected":["quote:2"]"#), "{acknowledgement}");

    std::fs::write(&pem, " ".repeat(2 << 20)).unwrap();
    gateway.reload(&[]).await;
    assert_eq!(outcomes(&gateway).await, (0.0, 3.0));
    assert!(gateway.log().contains("key.pem: it is longer than"), "{}", gateway.log());

    std::fs::copy(testdata("p256.pem"), &pem).unwrap();
    gateway.reload(&[("session.heartbeat_interval", "'1s'")]).await;
    assert_eq!(outcomes(&gateway).await, (1.0, 3.0));
    wait_until("what has to wait is named", SOON, || {
        let log = gateway.log();
        log.contains("config.pending=[\"session.heartbeat_interval\"]")
            && log.contains("\"session.max_topics\"]")
    })
    .await;
    assert!(ws.subscribe(&["quote:2"]).await.contains(r#""subscribed":["quote:2"]"#));
    assert!(!gateway.log().contains(SECRET));
}

/// Says that its set of keys holds user 7's, or none yet, and counts how often it was asked.
async fn key_set(jwk: Arc<Mutex<Option<Value>>>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let n_asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&n_asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|n| n > 0) {}
            let keys: Vec<Value> = jwk.lock().unwrap().iter().cloned().collect();
            let body = json!({ "keys": keys }).to_string();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes()).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    (url, n_asked)
}

/// The next refresh is minutes away, and no token of the new key has come: whoever rotates keys needn't wait.
#[tokio::test]
async fn the_key_set_is_fetched_again_as_soon_as_its_pace_allows() {
    let jwk = Arc::new(Mutex::new(None));
    let (url, n_asked) = key_set(Arc::clone(&jwk)).await;
    let mut gateway = embedded().set("auth.jwt.jwks_url", &format!("'{url}'")).start().await;
    let asked = async |n: usize, within| {
        wait_until("the set was asked for", within, || n_asked.load(Ordering::Relaxed) >= n).await;
    };
    asked(1, SOON).await;
    let pem = std::fs::read_to_string(testdata("ed25519.pem")).unwrap();
    let der: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = STANDARD.decode(der).unwrap();
    let x = URL_SAFE_NO_PAD.encode(&der[der.len() - 32..]);
    *jwk.lock().unwrap() = Some(json!({ "kty": "OKP", "crv": "Ed25519", "x": x }));
    gateway.reload(&[]).await;
    asked(2, 3 * SOON).await;
    wait_for("the new key is known", SOON, || async {
        (status(&gateway, &with_key_pair(), &[]).await == 200).then_some(())
    })
    .await;
}
