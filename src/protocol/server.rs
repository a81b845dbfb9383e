//! What the server says besides events: acknowledgements, errors, heartbeats, advice.
//!
//! Each function gives one message as JSON on one line.

use super::client::TopicRequest;
use super::close::CloseReason;
use crate::topic::Topic;
use std::fmt::Write;

/// The vocabulary of errors, shared by both transports and by HTTP refusals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorCode {
    /// The request can't be understood.
    BadRequest,
    /// No token yet, or one that isn't good.
    Unauthorized,
    /// The session asks for more than it may have.
    LimitExceeded,
    /// The server's fault.
    Internal,
}

impl ErrorCode {
    /// The code as it stands on the wire.
    pub const fn text(self) -> &'static str {
        match self {
            Self::BadRequest => "BAD_REQUEST",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::LimitExceeded => "LIMIT_EXCEEDED",
            Self::Internal => "INTERNAL",
        }
    }
}

/// Why a topic was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// Not a topic.
    Invalid,
    /// Over `session.max_topics`.
    Limit,
    /// The token doesn't allow it.
    Forbidden,
}

impl Rejection {
    const fn text(self) -> &'static str {
        match self {
            Self::Invalid => "invalid_topic",
            Self::Limit => "limit_exceeded",
            Self::Forbidden => "forbidden",
        }
    }
}

/// What became of a `subscribe`.
#[derive(Debug, Default)]
pub struct Subscribed {
    /// Topics of the request that are active now.
    pub active: Vec<Topic>,
    /// The part of them that was active before.
    pub already: Vec<Topic>,
    /// Valid topics that were refused.
    pub refused: Vec<(Topic, Rejection)>,
}

/// Accepts a token.
pub fn auth_ok(unix_ms: i64) -> String {
    format!(r#"{{"type":"auth","ok":true,"ts":{unix_ms}}}"#)
}

/// Acknowledges a `subscribe`. `rejected_reasons` stands beside `rejected`, element by element.
pub fn subscribed(request: &TopicRequest, outcome: &Subscribed) -> String {
    let mut out = format!(r#"{{"type":"subscribe","request_id":{}"#, request.request_id);
    push_topics(&mut out, "subscribed", &outcome.active);
    push_topics(&mut out, "already_subscribed", &outcome.already);
    let refused = outcome.refused.iter().map(|(topic, _)| format!("\"{topic}\""));
    push_list(&mut out, "rejected", request.rejected.iter().cloned().chain(refused));
    let reasons =
        request.rejected.iter().map(|_| Rejection::Invalid).chain(outcome.refused.iter().map(|r| r.1));
    let reasons: Vec<_> = reasons.map(|r| format!("\"{}\"", r.text())).collect();
    if !reasons.is_empty() {
        push_list(&mut out, "rejected_reasons", reasons.into_iter());
    }
    out.push('}');
    out
}

/// Acknowledges an `unsubscribe`.
pub fn unsubscribed(request: &TopicRequest, ended: &[Topic], not_active: &[Topic]) -> String {
    let mut out = format!(r#"{{"type":"unsubscribe","request_id":{},"ok":true"#, request.request_id);
    push_topics(&mut out, "unsubscribed", ended);
    push_topics(&mut out, "not_subscribed", not_active);
    push_list(&mut out, "rejected", request.rejected.iter().cloned());
    out.push('}');
    out
}

/// Says that subscriptions ended because the session's new token doesn't allow them.
pub fn revoked(topics: &[Topic]) -> String {
    let mut out = r#"{"type":"revoked""#.to_owned();
    push_topics(&mut out, "topics", topics);
    out.push('}');
    out
}

/// Refuses a request. `request_id` is JSON.
pub fn error(request_id: &str, code: ErrorCode, message: &str) -> String {
    let message = serde_json::Value::from(message);
    format!(r#"{{"type":"error","request_id":{request_id},"code":"{}","message":{message}}}"#, code.text())
}

/// The heartbeat.
pub fn ping(unix_ms: i64) -> String {
    format!(r#"{{"type":"ping","ts":{unix_ms}}}"#)
}

/// Answers a client's ping; `ts` is the client's JSON.
pub fn pong(ts: &str, unix_ms: i64) -> String {
    format!(r#"{{"type":"pong","ts":{ts},"server_ts":{unix_ms}}}"#)
}

/// Says that a topic's quotes may be out of date since `since_ms`, or are live again.
pub fn status(topic: Topic, stale_since_ms: Option<i64>) -> String {
    match stale_since_ms {
        Some(since) => format!(r#"{{"type":"status","topic":"{topic}","state":"stale","since":{since}}}"#),
        None => format!(r#"{{"type":"status","topic":"{topic}","state":"live"}}"#),
    }
}

/// Advises to connect again after a pause.
pub fn reconnect(after_ms: u64) -> String {
    format!(r#"{{"type":"reconnect","after_ms":{after_ms}}}"#)
}

/// The last event of an SSE session, in place of a close frame.
pub fn close(reason: CloseReason) -> String {
    format!(r#"{{"type":"close","code":{},"reason":"{}"}}"#, reason.code(), reason.text())
}

fn push_topics(out: &mut String, name: &str, topics: &[Topic]) {
    push_list(out, name, topics.iter().map(|t| format!("\"{t}\"")));
}

fn push_list(out: &mut String, name: &str, items: impl Iterator<Item = String>) {
    let _ = write!(out, ",\"{name}\":[");
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(&item);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::client::ClientMessage;

    #[test]
    fn acknowledgement_has_the_fixed_order() {
        let mut request = TopicRequest::from_query("quote:1,quote:2,x\ny");
        request.request_id = "\"r1\"".into();
        let outcome = Subscribed {
            active: vec![request.topics[0]],
            already: vec![request.topics[0]],
            refused: vec![(request.topics[1], Rejection::Limit)],
        };
        assert_eq!(
            subscribed(&request, &outcome),
            concat!(
                r#"{"type":"subscribe","request_id":"r1","subscribed":["quote:1"],"#,
                r#""already_subscribed":["quote:1"],"rejected":["x\ny","quote:2"],"#,
                r#""rejected_reasons":["invalid_topic","limit_exceeded"]}"#
            )
        );
    }

    /// The reason is longer than the shortest elements, so that it is how often one counts that bounds the answer.
    #[test]
    fn what_is_no_topic_is_not_answered_tenfold() {
        let answered = |elements: &[String]| {
            let text = format!(r#"{{"type":"subscribe","topics":[{}]}}"#, elements.join(","));
            let Ok(ClientMessage::Subscribe { request, .. }) = ClientMessage::parse(&text) else {
                panic!("not a subscribe")
            };
            let answer = subscribed(&request, &Subscribed::default());
            assert!(answer.len() < 5 * text.len(), "{} bytes for {}", answer.len(), text.len());
            request.rejected.len()
        };
        assert_eq!(answered(&vec!["1".to_owned(); 32_000]), 1);
        let different: Vec<_> = (0..14_000).map(|n| n.to_string()).collect();
        assert_eq!(answered(&different), different.len());
    }

    #[test]
    fn nothing_ever_spans_two_lines() {
        let request = TopicRequest::from_query("a\r\nb,\0");
        assert!(!subscribed(&request, &Subscribed::default()).contains(['\n', '\r', '\0']));
        assert!(!error("\"\"", ErrorCode::BadRequest, "a\nb").contains('\n'));
    }
}
