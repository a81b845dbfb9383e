//! How requests become sessions.

use super::stand::{HANDSHAKE, Stand, config, token, write};
use crate::session::Transport;
use socket2::SockRef;
use tokio::io::AsyncReadExt;

#[tokio::test]
async fn a_handshake_becomes_a_session_with_what_was_read_ahead() {
    let mut stand = Stand::start(&config());
    let mut client = stand.connect().await;
    client.send(&format!("{HANDSHAKE}\r\nearly frames")).await;
    let admission = stand.admitted().await;
    assert!(matches!(admission.transport, Transport::Ws));
    assert_eq!(admission.principal, None);
    let (mut stream, admission) = write(admission, b"from the lane").await;

    let mut read_ahead = admission.read_ahead.to_vec();
    while read_ahead.len() < "early frames".len() {
        stream.read_buf(&mut read_ahead).await.expect("reads");
    }
    assert_eq!(read_ahead, b"early frames");

    drop((stream, admission));
    let text = client.read_to_end().await;
    let (head, rest) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    let head = head.to_ascii_lowercase();
    for line in
        ["upgrade: websocket", "connection: upgrade", "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="]
    {
        assert!(head.lines().any(|l| l == line), "{line} in {head}");
    }
    assert!(!head.contains("content-length") && !head.contains("extensions"), "{head}");
    assert_eq!(rest, "from the lane");
    assert_eq!(stand.metric("t_http_requests_total{route=\"ws\",status=\"1xx\"}"), 1);
}

#[tokio::test]
async fn a_session_gets_its_socket_with_small_buffers_and_without_delay() {
    let mut stand = Stand::start(&config());
    let mut client = stand.connect().await;
    client.send(&format!("{HANDSHAKE}\r\n")).await;
    let admission = stand.admitted().await;
    let socket = SockRef::from(&admission.stream);
    assert!(socket.tcp_nodelay().expect("readable"));
    assert!(socket.keepalive().expect("readable"));
    assert_eq!(socket.send_buffer_size().expect("readable"), 2 * config().session.send_buffer_bytes);
    assert!(
        socket.tcp_user_timeout().expect("readable").expect("set") > config().session.slow_consumer_grace
    );
}

#[tokio::test]
async fn a_kept_alive_connection_may_become_a_session_later() {
    let mut config = config();
    config.auth.anonymous = true;
    let mut stand = Stand::start(&config);
    let mut client = stand.connect().await;
    client.send("GET /market/prices?ids=5,6 HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let answer = client.read_answer().await;
    assert!(answer.contains("\r\n\r\n{\"5\":{\"stockId\":5,"), "{answer}");
    assert!(answer.contains("\"price\":71000.10"), "{answer}");
    assert!(!answer.contains("\"6\""), "{answer}");
    client.send(&format!("{HANDSHAKE}\r\n")).await;
    assert!(matches!(stand.admitted().await.transport, Transport::Ws));
}

#[tokio::test]
async fn a_stream_of_events_becomes_a_session_with_what_the_request_says() {
    let mut stand = Stand::start(&config());
    let mut client = stand.connect().await;
    let token = token();
    client
        .send(&format!(
            "GET /market/sse?topics=quote:005,quote:1%0Adata:x HTTP/1.1\r\nHost: x\r\nLast-Event-ID: abc\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        ))
        .await;
    let admission = stand.admitted().await;
    assert_eq!(admission.principal.as_ref().map(|p| &*p.user_id), Some("42"));
    let Transport::Sse { request, last_event_id, chunked, .. } = &admission.transport else {
        panic!("not SSE")
    };
    assert_eq!(request.topics.iter().map(ToString::to_string).collect::<Vec<_>>(), ["quote:5"]);
    assert_eq!(request.rejected, [r#""quote:1\ndata:x""#]);
    assert_eq!((last_event_id.as_deref(), *chunked), (Some("abc"), true));
    let head = String::from_utf8(admission.head).expect("text");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    for line in [
        "content-type: text/event-stream",
        "cache-control: no-cache, no-transform",
        "x-accel-buffering: no",
        "transfer-encoding: chunked",
    ] {
        assert!(head.lines().any(|l| l == line), "{line} in {head}");
    }
    assert!(!head.contains("content-length"), "{head}");
}

#[tokio::test]
async fn an_old_client_gets_its_events_until_the_end_of_the_connection() {
    let mut config = config();
    config.auth.anonymous = true;
    let mut stand = Stand::start(&config);
    let mut client = stand.connect().await;
    client.send("GET /market/sse?topics=quote:5 HTTP/1.0\r\n\r\n").await;
    let admission = stand.admitted().await;
    assert!(matches!(admission.transport, Transport::Sse { chunked: false, .. }));
    let head = String::from_utf8(admission.head).expect("text");
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert!(head.contains("connection: close") && !head.contains("chunked"), "{head}");
}
