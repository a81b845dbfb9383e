//! Limits of connections and sessions.

use super::stand::{Client, HANDSHAKE, Stand, config, write};
use crate::config::Config;
use crate::session::tickets::MemoryTickets;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

fn handshake(forwarded: &str) -> String {
    format!("{HANDSHAKE}X-Forwarded-For: {forwarded}\r\n\r\n")
}

async fn ask_for_session(stand: &Stand, request: &str) -> Client {
    let mut client = stand.connect().await;
    client.send(request).await;
    client
}

#[tokio::test]
async fn a_session_too_many_waits_for_a_place() {
    let mut config = config();
    config.limits.max_sessions = 1;
    let mut stand = Stand::start(&config);
    let request = handshake("");
    let _client = ask_for_session(&stand, &request).await;
    let first = stand.admitted().await;
    let answer = ask_for_session(&stand, &request).await.read_answer().await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\r\nretry-after: ") && answer.contains("LIMIT_EXCEEDED"), "{answer}");
    drop(first);
    let _client = ask_for_session(&stand, &request).await;
    stand.admitted().await;
}

#[tokio::test]
async fn an_address_has_its_own_limit_behind_a_trusted_proxy() {
    let mut config = config();
    config.limits.max_sessions_per_ip = 1;
    config.limits.trusted_proxies = vec!["127.0.0.0/8".into()];
    let mut stand = Stand::start(&config);
    let _first = ask_for_session(&stand, &handshake("1.1.1.1")).await;
    let _held = stand.admitted().await;
    // What stands left of the client's address is its own invention.
    let answer = ask_for_session(&stand, &handshake("2.2.2.2, 1.1.1.1")).await.read_answer().await;
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\r\nretry-after: "), "{answer}");
    let _other = ask_for_session(&stand, &handshake("2.2.2.2")).await;
    stand.admitted().await;
}

#[tokio::test]
async fn a_session_that_no_lane_takes_is_told_to_come_back() {
    let stand = Stand::with(&config(), 1, Arc::new(MemoryTickets::default()));
    let _first = ask_for_session(&stand, &handshake("")).await;
    let answer = ask_for_session(&stand, &handshake("")).await.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nretry-after: "), "{answer}");
    assert_eq!(stand.metric("t_refusals_total{reason=\"lanes\"}"), 1);
}

fn with_accepts(per_second: u32) -> Config {
    let mut config = config();
    config.limits.accepts_per_second = per_second;
    config
}

/// The answer must arrive although the request is never read.
#[tokio::test]
async fn a_burst_beyond_the_accept_rate_is_refused_readably() {
    let stand = Stand::start(&with_accepts(5));
    let mut n_refused = 0;
    for _ in 0..20 {
        let answer = stand.ask("GET /market/prices HTTP/1.1\r\nHost: x\r\n").await;
        if answer.starts_with("HTTP/1.1 503 ") {
            assert!(answer.contains("\r\nretry-after: 1\r\n") && answer.ends_with('}'), "{answer}");
            n_refused += 1;
        } else {
            assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        }
    }
    // Within a second or two, a few tokens come back.
    assert!((5..=15).contains(&n_refused), "{n_refused}");
    assert_eq!(stand.metric("t_refusals_total{reason=\"accept_rate\"}"), n_refused);
    assert_eq!(stand.metric("t_connections_accepted_total"), 20);
}

#[tokio::test]
async fn heads_that_never_end_are_cut_off_and_disturb_nobody() {
    let mut config = config();
    config.listen.header_timeout = Duration::from_millis(300);
    let mut stand = Stand::start(&config);
    let begun = Instant::now();
    let mut slow = Vec::new();
    for n in 0..20 {
        let mut client = stand.connect().await;
        // Half of them don't even begin.
        if n % 2 == 0 {
            client.send("GET /market/ws HTTP/1.1\r\nHost: x\r\nUpg").await;
        }
        slow.push(client);
    }
    stand.wait_for("all are being spoken with", |s| s.metric("t_connections_unadmitted") == 20).await;
    let _client = ask_for_session(&stand, &handshake("")).await;
    stand.admitted().await;
    for mut client in slow {
        client.read_to_end().await;
    }
    assert!(begun.elapsed() >= Duration::from_millis(300));
    stand.wait_for("no place is held", |s| s.metric("t_connections_unadmitted") == 0).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let stand = Stand::start(&config());
    let huge = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n", "a".repeat(20 * 1024));
    let answer = stand.ask(&huge).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn a_session_leaves_the_places_of_the_http_stage() {
    let mut stand = Stand::start(&config());
    let client = ask_for_session(&stand, &handshake("")).await;
    let admission = stand.admitted().await;
    stand.wait_for("the slot is given back", |s| s.metric("t_connections_unadmitted") == 0).await;
    let (stream, admission) = write(admission, b"").await;
    drop((stream, admission, client));
}
