//! What clients say: every answer to it is JSON on one line, every topic counts once, and what was understood can
//! be said again.

use super::assert_one_line_of_json;
use serde_json::Value;
use tickbridge::protocol::client::{ClientMessage, TopicRequest};
use tickbridge::protocol::server::{self, ErrorCode, Rejection, Subscribed};
use tickbridge::topic::Topic;

/// Longest stamp that a client may have echoed.
const LONGEST_ECHO: usize = 64;

/// See the module.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let message = match ClientMessage::parse(text) {
        Err(bad) => {
            request_id(&bad.request_id);
            let answer = server::error(&bad.request_id, ErrorCode::BadRequest, bad.problem);
            assert_one_line_of_json(answer.as_bytes());
            return;
        }
        Ok(message) => message,
    };
    let json: Option<Value> = serde_json::from_str(text).ok();
    assert!(json.as_ref().is_none_or(Value::is_object), "understood, and no object: {text:?}");
    match &message {
        ClientMessage::Pong => {}
        ClientMessage::Auth { token } => {
            assert!(json.is_none_or(|json| json["token"] == token.as_str()));
        }
        ClientMessage::Ping { ts } => {
            assert!(ts.len() <= LONGEST_ECHO);
            assert_one_line_of_json(server::pong(ts, 1).as_bytes());
        }
        ClientMessage::Subscribe { request, max_rate_hz } => {
            assert!(max_rate_hz.is_none_or(|hz| hz.is_finite() && hz > 0.0));
            topics(request, text);
        }
        ClientMessage::Unsubscribe(request) => topics(request, text),
    }
    let again = written(&message);
    assert_eq!(ClientMessage::parse(&again).as_ref(), Ok(&message), "{text:?} as {again:?}");
}

fn request_id(json: &str) {
    assert_one_line_of_json(json.as_bytes());
    let is_scalar = json.starts_with(['"', '-']) || json.starts_with(|c: char| c.is_ascii_digit());
    assert!(is_scalar, "{json:?} is echoed");
}

fn topics(request: &TopicRequest, text: &str) {
    request_id(&request.request_id);
    for (i, topic) in request.topics.iter().enumerate() {
        assert!(!request.topics[..i].contains(topic), "{topic} counts twice");
    }
    for refused in &request.rejected {
        assert_one_line_of_json(refused.as_bytes());
        let name: Option<String> = serde_json::from_str(refused).ok();
        assert_eq!(name.and_then(|name| Topic::parse(&name)), None, "{refused} is a topic");
    }
    // An answer is at most so many times as long as the question: a word of reason for each element.
    let refused = request.topics.iter().map(|&topic| (topic, Rejection::Limit)).collect();
    let outcome = Subscribed { refused, ..Subscribed::default() };
    for answer in [
        server::subscribed(request, &outcome),
        server::unsubscribed(request, &request.topics, &[]),
        server::unsubscribed(request, &[], &request.topics),
    ] {
        assert_one_line_of_json(answer.as_bytes());
        assert!(answer.len() <= 11 * text.len() + 200, "{} bytes for {}", answer.len(), text.len());
    }
}

/// The message as another client may write it.
fn written(message: &ClientMessage) -> String {
    let request = |kind: &str, request: &TopicRequest, more: &str| {
        let topics = request.topics.iter().map(|topic| format!("\"{topic}\""));
        let elements: Vec<_> = topics.chain(request.rejected.iter().cloned()).collect();
        let (id, elements) = (&request.request_id, elements.join(", "));
        format!("{{\"topics\": [{elements}], \"type\": \"{kind}\"{more}, \"request_id\": {id}}}")
    };
    match message {
        ClientMessage::Auth { token } => {
            format!("{{\"token\":{},\"type\":\"auth\"}}", Value::from(token.as_str()))
        }
        ClientMessage::Pong => "{\"type\":\"pong\"}".into(),
        ClientMessage::Ping { ts } => format!("{{\"ts\":{ts},\"type\":\"ping\"}}"),
        ClientMessage::Subscribe { request: topics, max_rate_hz } => {
            let rate = max_rate_hz.map(|hz| format!(", \"max_rate_hz\": {hz:e}")).unwrap_or_default();
            request("subscribe", topics, &rate)
        }
        ClientMessage::Unsubscribe(topics) => request("unsubscribe", topics, ""),
    }
}
