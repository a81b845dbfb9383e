//! What a client may send, read from JSON.
//!
//! A request is judged topic by topic: what isn't a topic is set aside for the answer, and never
//! spoils the rest.

use crate::topic::Topic;
use indexmap::IndexSet;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashSet;

/// One message from a client.
#[derive(Debug, PartialEq)]
pub enum ClientMessage {
    /// Presents a token.
    Auth {
        /// The JWT.
        token: String,
    },
    /// Asks for the quotes of topics.
    Subscribe {
        /// The request's own name and topics.
        request: TopicRequest,
        /// At most so many updates per second and topic.
        max_rate_hz: Option<f64>,
    },
    /// Takes topics back.
    Unsubscribe(TopicRequest),
    /// Answers a heartbeat.
    Pong,
    /// Asks for the server's time; `ts` is echoed.
    Ping {
        /// The client's stamp as JSON, `null` when absent.
        ts: String,
    },
}

/// The common part of `subscribe` and `unsubscribe`.
#[derive(Debug, PartialEq, Default)]
pub struct TopicRequest {
    /// JSON of the request's id, echoed as sent; `""` when absent.
    pub request_id: String,
    /// Valid topics, each once, in the order given.
    pub topics: Vec<Topic>,
    /// JSON of the elements that are not topics, each once, in the order given. Each costs the answer a reason, and
    /// the shortest are shorter than that: the same one as often as a message holds it would be answered tenfold.
    pub rejected: Vec<String>,
}

/// Why a message can't be used, with the `request_id` to answer under.
#[derive(Debug, PartialEq)]
pub struct BadMessage {
    /// JSON of the request's id, `""` where none could be read.
    pub request_id: String,
    /// What is wrong, for the client's developer.
    pub problem: &'static str,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    request_id: Option<&'a RawValue>,
    #[serde(borrow)]
    token: Option<&'a RawValue>,
    #[serde(borrow)]
    topics: Option<&'a RawValue>,
    #[serde(borrow)]
    max_rate_hz: Option<&'a RawValue>,
    #[serde(borrow)]
    ts: Option<&'a RawValue>,
}

impl ClientMessage {
    /// Reads one message.
    ///
    /// # Errors
    /// A [`BadMessage`] when the text is no JSON object, the type is unknown, or a field has a shape
    /// that leaves nothing to do.
    pub fn parse(text: &str) -> Result<Self, BadMessage> {
        let raw: Raw<'_> =
            serde_json::from_str(text).map_err(|_| bad("\"\"", "the message is not a JSON object"))?;
        let request_id = match raw.request_id.map(RawValue::get) {
            None | Some("null") => "\"\"",
            Some(id) if id.starts_with(['"', '-']) || id.starts_with(|c: char| c.is_ascii_digit()) => id,
            Some(_) => return Err(bad("\"\"", "request_id must be a string")),
        };
        let text_of =
            |value: Option<&RawValue>| value.and_then(|v| serde_json::from_str::<String>(v.get()).ok());
        let kind = text_of(raw.kind).ok_or_else(|| bad(request_id, "type is missing or not a string"))?;
        match kind.as_str() {
            "auth" => match text_of(raw.token) {
                Some(token) => Ok(Self::Auth { token }),
                None => Err(bad(request_id, "token is missing or not a string")),
            },
            "subscribe" => {
                let request = TopicRequest::read(request_id, raw.topics)?;
                let max_rate_hz = match raw.max_rate_hz.map(RawValue::get) {
                    None | Some("null") => None,
                    Some(json) => match json.parse::<f64>() {
                        Ok(hz) if hz.is_finite() && hz > 0.0 => Some(hz),
                        _ => return Err(bad(request_id, "max_rate_hz must be a number above 0")),
                    },
                };
                Ok(Self::Subscribe { request, max_rate_hz })
            }
            "unsubscribe" => TopicRequest::read(request_id, raw.topics).map(Self::Unsubscribe),
            "pong" => Ok(Self::Pong),
            "ping" => match raw.ts.map_or_else(|| "null".to_owned(), compact) {
                // An echo of anything larger would let a client make the server talk for it.
                ts if ts.len() > 64 => Err(bad(request_id, "ts is too long")),
                ts => Ok(Self::Ping { ts }),
            },
            _ => Err(bad(request_id, "unknown message type")),
        }
    }
}

impl TopicRequest {
    fn read(request_id: &str, topics: Option<&RawValue>) -> Result<Self, BadMessage> {
        let problem = || bad(request_id, "topics must be an array of strings");
        let elements: Vec<&RawValue> =
            serde_json::from_str(topics.ok_or_else(problem)?.get()).map_err(|_| problem())?;
        let mut request = Self { request_id: request_id.to_owned(), ..Self::default() };
        let (mut seen, mut rejected) = (HashSet::new(), IndexSet::new());
        for element in elements {
            match serde_json::from_str::<String>(element.get()).ok().and_then(|t| Topic::parse(&t)) {
                Some(topic) if seen.insert(topic) => request.topics.push(topic),
                Some(_) => {}
                None => drop(rejected.insert(compact(element))),
            }
        }
        request.rejected = rejected.into_iter().collect();
        Ok(request)
    }

    /// Reads the comma-separated topics of a query parameter; empty parts are left out.
    pub fn from_query(topics: &str) -> Self {
        let mut request = Self { request_id: "\"\"".to_owned(), ..Self::default() };
        let (mut seen, mut rejected) = (HashSet::new(), IndexSet::new());
        for part in topics.split(',').filter(|part| !part.is_empty()) {
            match Topic::parse(part) {
                Some(topic) if seen.insert(topic) => request.topics.push(topic),
                Some(_) => {}
                None => drop(rejected.insert(serde_json::Value::from(part).to_string())),
            }
        }
        request.rejected = rejected.into_iter().collect();
        request
    }
}

/// The value on one line: SSE data must not contain a line break, and JSON allows them between tokens, where
/// nothing is lost with them.
fn compact(value: &RawValue) -> String {
    value.get().replace(['\n', '\r'], "")
}

fn bad(request_id: &str, problem: &'static str) -> BadMessage {
    BadMessage { request_id: request_id.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_twice_counts_once_and_a_bad_one_spoils_nothing() {
        let text =
            r#"{"type":"subscribe","request_id":"r1","topics":["quote:005","x",7,"quote:5","x"],"new":1}"#;
        let Ok(ClientMessage::Subscribe { request, max_rate_hz: None }) = ClientMessage::parse(text) else {
            panic!("not a subscribe");
        };
        assert_eq!(request.request_id, r#""r1""#);
        assert_eq!(request.topics.iter().map(ToString::to_string).collect::<Vec<_>>(), ["quote:5"]);
        assert_eq!(request.rejected, [r#""x""#, "7"]);
    }

    #[test]
    fn request_id_is_echoed_as_sent() {
        for (id, echoed) in [(r#""é\n""#, r#""é\n""#), ("7", "7"), ("null", r#""""#)] {
            let text = format!(r#"{{"type":"unsubscribe","request_id":{id},"topics":[]}}"#);
            let Ok(ClientMessage::Unsubscribe(request)) = ClientMessage::parse(&text) else {
                panic!("{text}")
            };
            assert_eq!(request.request_id, echoed);
        }
    }

    #[test]
    fn what_is_echoed_stands_on_one_line_with_its_own_digits() {
        let text = "{\"type\":\"ping\",\"ts\":[1.50,\r\n2]}";
        assert_eq!(ClientMessage::parse(text), Ok(ClientMessage::Ping { ts: "[1.50,2]".into() }));
        let text = "{\"type\":\"unsubscribe\",\"topics\":[{\"a\":\n1e999}]}";
        let Ok(ClientMessage::Unsubscribe(request)) = ClientMessage::parse(text) else { panic!("{text}") };
        assert_eq!(request.rejected, [r#"{"a":1e999}"#]);
    }

    #[test]
    fn unusable_messages_name_the_problem() {
        for text in [
            "",
            "foo",
            "[]",
            "null",
            "{}",
            r#"{"type":7}"#,
            r#"{"type":"nope"}"#,
            r#"{"type":"auth"}"#,
            r#"{"type":"auth","token":1}"#,
            r#"{"type":"subscribe"}"#,
            r#"{"type":"subscribe","topics":"quote:1"}"#,
            r#"{"type":"subscribe","topics":[],"max_rate_hz":0}"#,
            r#"{"type":"subscribe","topics":[],"max_rate_hz":"2"}"#,
            r#"{"type":"subscribe","topics":[],"request_id":{}}"#,
        ] {
            assert!(ClientMessage::parse(text).is_err(), "{text}");
        }
    }
}
