//! The published contract against what the gateway really says and takes.

use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tickbridge::clock::Now;
use tickbridge::entry::{Content, EntryId};
use tickbridge::instrument::InstrumentId;
use tickbridge::protocol::client::{ClientMessage, TopicRequest};
use tickbridge::protocol::close::CloseReason;
use tickbridge::protocol::event::EncodedQuote;
use tickbridge::protocol::server::{self, ErrorCode, Rejection, Subscribed};
use tickbridge::protocol::stream::{self, Silent};
use tickbridge::quote::{Field, Origin, Quote, Version};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

/// A schema with the files that it refers to put in their places.
fn schema(file: &str) -> Value {
    let text = std::fs::read_to_string(docs().join("schemas").join(file));
    let mut schema = serde_json::from_str(&text.unwrap_or_else(|e| panic!("{file}: {e}"))).unwrap();
    inline(&mut schema);
    schema
}

fn inline(value: &mut Value) {
    if let Some(file) = value.get("$ref").and_then(Value::as_str) {
        *value = schema(file);
        value.as_object_mut().unwrap().remove("$schema");
    }
    match value {
        Value::Object(map) => map.values_mut().for_each(inline),
        Value::Array(items) => items.iter_mut().for_each(inline),
        _ => {}
    }
}

/// Checks a message, also that the schema names each of its fields: what is sent is documented.
fn assert_documented(file: &str, message: &Value) {
    let schema = schema(file);
    let validator = jsonschema::validator_for(&schema).unwrap();
    let problems: Vec<String> = validator.iter_errors(message).map(|e| e.to_string()).collect();
    assert!(problems.is_empty(), "{file}: {message}: {problems:?}");
    assert_named(file, &schema, message);
}

fn assert_named(file: &str, schema: &Value, message: &Value) {
    for (field, value) in message.as_object().unwrap() {
        let named = &schema["properties"][field];
        assert!(!named.is_null(), "{file} lacks `{field}` of {message}");
        if value.is_object() {
            assert_named(file, named, value);
        }
    }
}

fn quote(every_field: bool) -> Quote {
    let text = r#"71000.10 ["2026",7] "2026-07-06T09:00:01""#;
    let (seq, ts) = (every_field.then_some(42), every_field.then_some(1_700_000_000_100));
    let version = Version { seq, ts, ..Version::default() };
    let mut quote = Quote::new(InstrumentId::new(5930), version, Origin::Live, text.into());
    if every_field {
        Field::ALL.iter().for_each(|&field| quote.set(field, 0..8));
        quote.set(Field::At, 20..text.len());
        quote.published_at = Some(1_700_000_000_110);
    }
    quote
}

/// Everything that the gateway says, by the schema that describes it.
fn said() -> Vec<(&'static str, Vec<u8>)> {
    let mut request = TopicRequest::from_query("quote:1,quote:-2,x");
    request.request_id = "\"r1\"".into();
    let [first, second] = request.topics[..] else { panic!("two topics") };
    let refused = vec![(second, Rejection::Limit), (second, Rejection::Forbidden)];
    let outcome = Subscribed { active: vec![first], already: vec![first], refused };
    let mut said = vec![
        ("server.auth.json", server::auth_ok(1)),
        ("server.subscribe.json", server::subscribed(&request, &outcome)),
        ("server.subscribe.json", server::subscribed(&TopicRequest::from_query(""), &Subscribed::default())),
        ("server.unsubscribe.json", server::unsubscribed(&request, &[first], &[second])),
        ("server.ping.json", server::ping(1)),
        ("server.pong.json", server::pong("null", 1)),
        ("server.pong.json", server::pong("17.5", 1)),
        ("server.status.json", server::status(first, Some(1))),
        ("server.status.json", server::status(first, None)),
        ("server.revoked.json", server::revoked(&[first, second])),
        ("server.reconnect.json", server::reconnect(1_500)),
    ];
    for code in
        [ErrorCode::BadRequest, ErrorCode::Unauthorized, ErrorCode::LimitExceeded, ErrorCode::Internal]
    {
        said.push(("server.error.json", server::error("7", code, "because")));
    }
    said.extend(of_streams());
    said.extend(CloseReason::ALL.map(|reason| ("server.close.json", server::close(reason))));
    let mut said: Vec<_> = said.into_iter().map(|(file, json)| (file, json.into_bytes())).collect();

    for every_field in [true, false] {
        let now = Now { mono: Duration::ZERO, unix_us: 1_700_000_000_123_000 };
        let encoded = EncodedQuote::new(&quote(every_field), 1, now);
        said.push(("server.event.json", encoded.json().to_vec()));
        let mut snapshot = Vec::new();
        encoded.push_sse_data(&mut snapshot, true);
        said.push(("server.event.json", snapshot["data: ".len()..].to_vec()));
    }
    said
}

/// What it says of streams.
fn of_streams() -> Vec<(&'static str, String)> {
    let [first, second] = [1, 2].map(|ms| EntryId { ms, seq: 0 });
    let text = |bytes: &'static [u8]| Some(Bytes::from_static(bytes));
    let content = |data, end| Content { event: text(b"token"), data, end };
    vec![
        ("server.begin.json", stream::begin(first)),
        ("server.entry.json", stream::entry(first, &Content::default())),
        ("server.entry.json", stream::entry(first, &content(text(b"a"), None))),
        (
            "server.entry.json",
            stream::entry(first, &Content { event: text(b"\xff"), data: text(b"\xff"), end: None }),
        ),
        ("server.end.json", stream::entry(first, &content(text(b"a"), text(b"done")))),
        ("server.end.json", stream::entry(first, &content(text(b"\xff"), text(b"\xff")))),
        ("server.gap.json", stream::gap(first, Some(second), first, Some(3))),
        ("server.gap.json", stream::gap(first, None, second, None)),
        ("server.gap.json", stream::too_large(first)),
        ("server.lost.json", stream::lost(first, second, Some(1))),
        ("server.lost.json", stream::lost(first, second, None)),
        ("server.stream-status.json", stream::stalled(Silent::Producer, 1)),
        ("server.stream-status.json", stream::stalled(Silent::Redis, 1)),
        ("server.stream-status.json", stream::live().to_owned()),
    ]
}

#[test]
fn what_the_gateway_says_is_documented_field_by_field() {
    for (file, json) in said() {
        let message = serde_json::from_slice(&json).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_documented(file, &message);
    }
}

#[test]
fn every_field_of_a_quote_that_is_documented_is_sent() {
    let sent: BTreeSet<String> = said()
        .iter()
        .filter(|(file, _)| *file == "server.event.json")
        .flat_map(|(_, json)| {
            let event: Value = serde_json::from_slice(json).unwrap();
            event["data"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        })
        .collect();
    let documented = schema("quote.json")["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(sent, documented);
}

#[test]
fn the_gateway_takes_what_is_documented_and_refuses_what_is_not() {
    for (message, good) in [
        (json!({"type": "auth", "token": "x"}), true),
        (json!({"type": "auth"}), false),
        (json!({"type": "auth", "token": 7}), false),
        (json!({"type": "subscribe", "topics": ["quote:1", "x"]}), true),
        (json!({"type": "subscribe", "request_id": 7, "topics": [], "max_rate_hz": 0.5}), true),
        (json!({"type": "subscribe", "request_id": {}, "topics": []}), false),
        (json!({"type": "subscribe", "topics": [], "max_rate_hz": 0}), false),
        (json!({"type": "subscribe", "topics": [], "max_rate_hz": "2"}), false),
        (json!({"type": "subscribe", "topics": "quote:1"}), false),
        (json!({"type": "unsubscribe", "request_id": "r", "topics": ["quote:1"]}), true),
        (json!({"type": "unsubscribe"}), false),
        (json!({"type": "pong"}), true),
        (json!({"type": "ping"}), true),
        (json!({"type": "ping", "ts": 1.5}), true),
    ] {
        let file = format!("client.{}.json", message["type"].as_str().unwrap());
        let documented = jsonschema::validator_for(&schema(&file)).unwrap().is_valid(&message);
        assert_eq!(documented, good, "{file} on {message}");
        assert_eq!(ClientMessage::parse(&message.to_string()).is_ok(), good, "the gateway on {message}");
    }
    assert!(ClientMessage::parse(r#"{"type":"close","code":1000,"reason":""}"#).is_err());
}

/// Every `$ref` below `node`.
fn references(node: &Value, into: &mut Vec<String>) {
    match node {
        Value::Object(map) => map.iter().for_each(|(key, value)| match (key.as_str(), value.as_str()) {
            ("$ref", Some(target)) => into.push(target.to_owned()),
            _ => references(value, into),
        }),
        Value::Array(items) => items.iter().for_each(|item| references(item, into)),
        _ => {}
    }
}

#[test]
fn the_document_refers_to_what_exists_and_names_every_type() {
    let text = std::fs::read_to_string(docs().join("asyncapi.yaml")).unwrap();
    let document: Value = serde_yaml_ng::from_str(&text).unwrap();
    assert_eq!(document["asyncapi"], "3.0.0");

    let mut targets = Vec::new();
    references(&document, &mut targets);
    for target in &targets {
        match target.strip_prefix('#') {
            Some(pointer) => assert!(document.pointer(pointer).is_some(), "{target}"),
            None => assert!(docs().join(target).is_file(), "{target}"),
        }
    }

    // The name of a message is the `type` that its schema demands.
    let mut documented = BTreeSet::new();
    for (key, message) in document["components"]["messages"].as_object().unwrap() {
        let file = message["payload"]["$ref"].as_str().unwrap().trim_start_matches("./schemas/");
        let name = message["name"].as_str().unwrap();
        assert_eq!(schema(file)["properties"]["type"]["const"], name, "{key}");
        let reference = format!("#/components/messages/{key}");
        assert!(targets.contains(&reference), "no channel carries {reference}");
        documented.insert((file.split('.').next().unwrap().to_owned(), name.to_owned()));
    }
    let of =
        |side: &str| documented.iter().filter(|(s, _)| s == side).map(|(_, name)| name.clone()).collect();
    let said: BTreeSet<String> = said()
        .iter()
        .map(|(_, json)| serde_json::from_slice::<Value>(json).unwrap()["type"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said, of("server"));
    assert_eq!(written_types(), said, "a message that this test doesn't make");
    assert_eq!(
        BTreeSet::from(["auth", "subscribe", "unsubscribe", "ping", "pong"].map(String::from)),
        of("client")
    );
}

/// The types that the source writes, so that a new message can't stay out of this test.
fn written_types() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol");
    let mut types = BTreeSet::new();
    for file in ["server.rs", "event.rs", "stream.rs"] {
        let text = std::fs::read_to_string(source.join(file)).unwrap().replace('\\', "");
        let code = text.split("#[cfg(test)]").next().unwrap();
        let found = code.split(r#""type":""#).skip(1).filter_map(|rest| rest.split('"').next());
        types.extend(found.map(str::to_owned));
    }
    types
}
