//! What is refused, and with which answer; what needs a token.

use super::stand::{HANDSHAKE, Stand, config, token};
use crate::config::Config;

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (head, _) = answer.split_once("\r\n\r\n").expect("a head");
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn code(answer: &str) -> String {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let json: serde_json::Value =
        serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON in {answer:?}"));
    assert!(json["message"].is_string(), "{answer}");
    json["code"].as_str().expect("a code").to_owned()
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}")
}

#[tokio::test]
async fn refusals_are_json_with_status_and_code() {
    let mut stand = Stand::start(&config());
    let bearer = format!("Authorization: Bearer {}\r\n", token());
    let ws = |headers: &str| HANDSHAKE.replace("Connection: Upgrade\r\n", headers);
    for (request, expected_status, expected_code, reason) in [
        (get("/nowhere", ""), 404, "BAD_REQUEST", "path"),
        (get("/", ""), 404, "BAD_REQUEST", "path"),
        (get("/market/ws/", ""), 404, "BAD_REQUEST", "path"),
        ("POST /market/sse HTTP/1.1\r\nHost: x\r\n".into(), 405, "BAD_REQUEST", "method"),
        ("GET /market/ticket HTTP/1.1\r\nHost: x\r\n".into(), 405, "BAD_REQUEST", "method"),
        (get("/market/ws", ""), 426, "BAD_REQUEST", "not_websocket"),
        // The request's last header says `Connection: close`.
        (ws(""), 400, "BAD_REQUEST", "handshake"),
        (ws("Connection: Upgrade\r\nContent-Length: 5\r\n"), 413, "LIMIT_EXCEEDED", "body"),
        (ws("Connection: Upgrade\r\nTransfer-Encoding: chunked\r\n"), 413, "LIMIT_EXCEEDED", "body"),
        (ws("Connection: Upgrade\r\nOrigin: https://evil.test\r\n"), 403, "UNAUTHORIZED", "origin"),
        (ws("Connection: Upgrade\r\n").replace("/ws", "/ws?ticket=x"), 401, "UNAUTHORIZED", "ticket"),
        (get("/market/sse?topics=quote:1", ""), 401, "UNAUTHORIZED", "no_token"),
        (get("/market/sse?topics=quote:1", "Authorization: Basic eA==\r\n"), 401, "UNAUTHORIZED", "no_token"),
        (get("/market/sse?topics=quote:1", "Authorization: Bearer a.b.c\r\n"), 401, "UNAUTHORIZED", "token"),
        (get("/market/sse?topics=quote:1", "Origin: null\r\n"), 403, "UNAUTHORIZED", "origin"),
        (get("/market/sse?topics=quote:%0A,%00", &bearer), 400, "BAD_REQUEST", "no_topic"),
        (get("/market/sse", &bearer), 400, "BAD_REQUEST", "no_topic"),
        (get("/market/prices?ids=1", ""), 401, "UNAUTHORIZED", "no_token"),
        (get("/market/prices?ids=x", &bearer), 400, "BAD_REQUEST", "no_instrument"),
        (
            get("/market/prices?ids=x", &format!("{bearer}Content-Length: 16385\r\n")),
            413,
            "LIMIT_EXCEEDED",
            "body",
        ),
    ] {
        let series = format!("t_refusals_total{{reason=\"{reason}\"}}");
        let before = stand.metric(&series);
        let answer = stand.ask(&request).await;
        assert_eq!(
            (status(&answer), &*code(&answer)),
            (expected_status, expected_code),
            "{request}\n{answer}"
        );
        assert_eq!(header(&answer, "content-type"), Some("application/json"), "{answer}");
        assert_eq!(stand.metric(&series), before + 1, "{request}");
        let challenge = header(&answer, "www-authenticate");
        assert_eq!(challenge.is_some(), expected_status == 401, "{answer}");
    }
    assert!(stand.nobody_is_admitted());
}

#[tokio::test]
async fn a_head_request_never_becomes_a_session() {
    let mut config = config();
    config.auth.anonymous = true;
    let mut stand = Stand::start(&config);
    for request in [
        "HEAD /market/sse?topics=quote:1 HTTP/1.1\r\nHost: x\r\n".to_owned(),
        HANDSHAKE.replace("GET", "HEAD"),
    ] {
        assert_eq!(status(&stand.ask(&request).await), 405, "{request}");
    }
    assert!(stand.nobody_is_admitted());
}

fn with_origins(origins: &[&str]) -> Config {
    let mut config = config();
    config.listen.allowed_origins = origins.iter().map(|&origin| origin.to_owned()).collect();
    config
}

#[tokio::test]
async fn an_allowed_page_is_told_so_and_no_other() {
    let stand = Stand::start(&with_origins(&["https://app.example.com", "https://*.example.org"]));
    let prices = |origin: &str| {
        let bearer = format!("Authorization: Bearer {}\r\n", token());
        get("/market/prices?ids=5", &format!("Origin: {origin}\r\n{bearer}"))
    };
    for origin in ["https://app.example.com", "https://a.example.org"] {
        let answer = stand.ask(&prices(origin)).await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert_eq!(header(&answer, "access-control-allow-origin"), Some(origin));
        assert_eq!(header(&answer, "vary"), Some("origin"));
        assert_eq!(header(&answer, "access-control-allow-credentials"), None);
    }
    for origin in [
        "https://app.example.com.evil.test",
        "https://evilapp.example.com",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com@evil.test",
    ] {
        let answer = stand.ask(&prices(origin)).await;
        assert_eq!(status(&answer), 403, "{answer}");
        assert_eq!(header(&answer, "access-control-allow-origin"), None, "{origin}");
        assert_eq!(header(&answer, "vary"), Some("origin"), "{origin}");
    }
    // A refusal must be readable by the page, or its client can't tell it from a broken network.
    let refused = stand.ask(&get("/market/prices", "Origin: https://app.example.com\r\n")).await;
    assert_eq!(status(&refused), 401);
    assert_eq!(header(&refused, "access-control-allow-origin"), Some("https://app.example.com"));
}

#[tokio::test]
async fn a_stream_answers_its_page_with_its_origin() {
    let mut stand = Stand::start(&with_origins(&["https://app.example.com"]));
    let mut client = stand.connect().await;
    let bearer = format!("Authorization: Bearer {}\r\n", token());
    let headers = format!("Origin: https://app.example.com\r\n{bearer}\r\n");
    client.send(&get("/market/sse?topics=quote:5", &headers)).await;
    let head = String::from_utf8(stand.admitted().await.head).expect("text");
    assert_eq!(header(&head, "access-control-allow-origin"), Some("https://app.example.com"));
    assert_eq!(header(&head, "vary"), Some("origin"));
}

#[tokio::test]
async fn a_preflight_is_answered_for_allowed_pages_only() {
    let stand = Stand::start(&with_origins(&["https://app.example.com"]));
    let preflight = |origin: &str| {
        format!(
            "OPTIONS /market/ticket HTTP/1.1\r\nHost: x\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n"
        )
    };
    let allowed = stand.ask(&preflight("https://app.example.com")).await;
    assert_eq!(status(&allowed), 200);
    assert_eq!(header(&allowed, "access-control-allow-origin"), Some("https://app.example.com"));
    assert_eq!(header(&allowed, "access-control-allow-methods"), Some("GET,POST"));
    let refused = stand.ask(&preflight("https://evil.test")).await;
    assert_eq!(header(&refused, "access-control-allow-origin"), None);
}

#[tokio::test]
async fn a_cookie_counts_only_for_a_page_known_by_name() {
    let mut config = with_origins(&["https://app.example.com", "*"]);
    config.auth.cookie = Some("session".into());
    let stand = Stand::start(&config);
    let cookie = format!("Cookie: other=1; session={}\r\n", token());
    for (headers, expected) in [
        ("Origin: https://app.example.com\r\n", 200),
        ("", 200),
        ("Sec-Fetch-Site: same-origin\r\n", 200),
        ("Sec-Fetch-Site: cross-site\r\n", 401),
        ("Origin: https://evil.test\r\n", 401),
    ] {
        let answer = stand.ask(&get("/market/prices?ids=5", &format!("{headers}{cookie}"))).await;
        assert_eq!(status(&answer), expected, "{headers}");
        let credentials = header(&answer, "access-control-allow-credentials");
        assert_eq!(credentials.is_some(), headers.contains("app.example.com"), "{headers}");
    }
}

#[tokio::test]
async fn a_ticket_stands_for_its_bearer_once() {
    let mut stand = Stand::start(&config());
    let answer = stand
        .ask(&format!("POST /market/ticket HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n", token()))
        .await;
    assert_eq!((status(&answer), header(&answer, "cache-control")), (200, Some("no-store")), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(json["expires_in"], 30);
    let request =
        HANDSHAKE.replace("/ws", &format!("/ws?ticket={}", json["ticket"].as_str().expect("a ticket")));
    let mut client = stand.connect().await;
    client.send(&format!("{request}\r\n")).await;
    let admission = stand.admitted().await;
    assert_eq!(admission.principal.as_ref().map(|p| &*p.user_id), Some("42"));
    assert_eq!(status(&stand.ask(&request).await), 401);
    for (used, n) in [("issued", 1), ("redeemed", 1), ("unknown", 1), ("unavailable", 0)] {
        assert_eq!(stand.metric(&format!("t_tickets_total{{use=\"{used}\"}}")), n, "{used}");
    }

    let refused = stand.ask("POST /market/ticket HTTP/1.1\r\nHost: x\r\n").await;
    assert_eq!((status(&refused), &*code(&refused)), (401, "UNAUTHORIZED"));
}

#[tokio::test]
async fn what_clients_make_up_never_becomes_a_series() {
    let mut config = config();
    config.auth.anonymous = true;
    let stand = Stand::start(&config);
    stand.ask(&get("/first", "")).await;
    let before = stand.metrics.render().lines().count();
    for n in 0..50 {
        let headers = format!("Origin: https://o{n}.test\r\nUser-Agent: a{n}\r\n");
        stand.ask(&get(&format!("/p{n}?topics=quote:{n}"), &headers)).await;
        stand.ask(&format!("M{n} /market/ws HTTP/1.1\r\nHost: h{n}\r\n")).await;
    }
    assert_eq!(stand.metrics.render().lines().count(), before);
    assert_eq!(stand.metric("t_http_requests_total{route=\"unknown\",status=\"4xx\"}"), 51);
}

#[tokio::test]
async fn the_page_is_served_only_where_it_is_wanted() {
    let mut config = config();
    config.demo.page = true;
    let answer = Stand::start(&config).ask(&get("/", "")).await;
    assert_eq!(status(&answer), 200);
    assert_eq!(header(&answer, "content-type"), Some("text/html; charset=utf-8"));
    assert!(answer.ends_with(include_str!("../page/index.html")));
}
