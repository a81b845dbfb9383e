//! The admin listener.

use super::stand::{Stand, config};
use crate::config::Secret;

#[tokio::test]
async fn readiness_follows_its_reasons_and_liveness_does_not() {
    let stand = Stand::start(&config());
    assert!(stand.ask_admin("/readyz").await.starts_with("HTTP/1.1 200 "));
    assert!(stand.ask_admin("/actuator/health").await.ends_with(r#"{"reasons":[],"status":"UP"}"#));
    stand.unready.lock().expect("not poisoned").push("redis: \"n1\" can't be reached".into());
    let answer = stand.ask_admin("/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.ends_with(r#"{"reasons":["redis: \"n1\" can't be reached"],"status":"unready"}"#),
        "{answer}"
    );
    let answer = stand.ask_admin("/actuator/health").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\"status\":\"DOWN\"}"), "{answer}");
    assert!(stand.ask_admin("/livez").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn the_exposition_stands_on_the_admin_listener_only() {
    let stand = Stand::start(&config());
    for path in ["/metrics", "/actuator/prometheus"] {
        let answer = stand.ask_admin(path).await;
        assert!(answer.contains("\r\ncontent-type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.contains("\nt_refusals_total{reason=\"origin\"} 0\n"), "{answer}");
        let public = stand.ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n")).await;
        assert!(public.starts_with("HTTP/1.1 404 "), "{public}");
    }
    assert_eq!(stand.metric("t_http_requests_total{route=\"ops\",status=\"2xx\"}"), 2);
}

#[tokio::test]
async fn quotes_come_over_http_only_with_the_key() {
    let mut with_key = config();
    with_key.listen.publish_key = Some(Secret::new("a key".into()));
    let payloads = r#"[{"stockId":1},{"stockId":2}]"#;
    let post = |authorization: &str, body: &str| {
        let length = body.len();
        format!(
            "POST /publish HTTP/1.1\r\nHost: x\r\n{authorization}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    };
    let stand = Stand::start(&with_key);
    for authorization in ["", "Authorization: Bearer another\r\n", "Authorization: Bearer \r\n"] {
        let answer = stand.ask_admin_raw(&post(authorization, payloads)).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    let good = "Authorization: Bearer a key\r\n";
    let answer = stand.ask_admin_raw(&post(good, payloads)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(r#"{"not_published":[],"published":2,"retry":false}"#), "{answer}");
    let answer = stand.ask_admin_raw(&post(good, "nonsense")).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");

    let without = Stand::start(&config());
    let answer = without.ask_admin_raw(&post(good, payloads)).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "nobody can publish where no key is configured: {answer}");
}
