//! The admin listener.

use super::stand::{Stand, config};

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
