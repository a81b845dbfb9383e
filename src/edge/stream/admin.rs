//! `POST /streams/<id>` and `POST /streams/demo` on the admin listener: adds entries to a stream.
//!
//! The same key as for `POST /publish`. The answer names the ids of what is stored, in order, up to the first entry
//! that isn't.

use super::{Streams, demo};
use crate::edge::publish::{self, Publishing};
use crate::entry::{Content, EntryId};
use crate::metrics::edge::Refusal;
use crate::protocol::stream::MAX_DATA_BYTES;
use crate::stream::{AppendFailure, Appended, NewEntry, StreamId};
use axum::Router;
use axum::extract::{Path, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

/// Entries of one request. A whole answer fits.
const MAX_ENTRIES: usize = 1_000;

/// An entry as a producer writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: Option<String>,
    event: Option<String>,
    data: Option<String>,
    data64: Option<String>,
    end: Option<String>,
}

/// One, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Body {
    One(Box<Written>),
    Several(Vec<Written>),
}

/// The paths, for those whom `publishing` allows.
pub fn router(publishing: Publishing, streams: Streams) -> Router {
    let (gate, demos) = (publishing.clone(), streams.demo.clone());
    let begin = move |request: Request| {
        let (allowed, demos) = (gate.allows(request.headers()), demos.clone());
        async move { if allowed { demo(&demos) } else { Err(Refusal::PublishKey) } }
    };
    let add = move |Path(id): Path<String>, request: Request| {
        let (publishing, streams) = (publishing.clone(), streams.clone());
        async move { add(&publishing, &streams, &id, request).await }
    };
    Router::new().route("/streams/demo", post(begin)).route("/streams/{id}", post(add))
}

async fn add(
    publishing: &Publishing,
    streams: &Streams,
    id: &str,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    if !publishing.allows(&parts.headers) {
        return Err(Refusal::PublishKey);
    }
    let id = StreamId::parse(id).ok_or(Refusal::StreamId)?;
    let entries = entries(&publish::read(body).await?).ok_or(Refusal::Entries)?;
    Ok(render(&streams.writer.append(&id, entries).await))
}

fn entries(body: &[u8]) -> Option<Vec<NewEntry>> {
    let written = match serde_json::from_slice(body).ok()? {
        Body::One(one) => vec![*one],
        Body::Several(all) => all,
    };
    let bounded = !written.is_empty() && written.len() <= MAX_ENTRIES;
    bounded.then(|| written.into_iter().map(entry).collect())?
}

fn entry(written: Written) -> Option<NewEntry> {
    let Written { id, event, data, data64, end } = written;
    let id = id.map(|id| EntryId::parse(&id).filter(|&id| id > EntryId::START).ok_or(())).transpose().ok()?;
    let data = match (data, data64) {
        (Some(_), Some(_)) => return None,
        (data, None) => data.map(Bytes::from),
        (None, Some(base64)) => Some(STANDARD.decode(base64).ok()?.into()),
    };
    let content = Content { event: event.map(Bytes::from), data, end: end.map(Bytes::from) };
    let size: usize =
        [&content.event, &content.data, &content.end].into_iter().flatten().map(Bytes::len).sum();
    let says_something = content != Content::default();
    (says_something && size <= MAX_DATA_BYTES).then_some(NewEntry { id, content })
}

fn render(appended: &Appended) -> Response {
    let ids: Vec<String> = appended.ids.iter().map(EntryId::to_string).collect();
    let (status, body) = match appended.failed {
        None => (StatusCode::OK, json!({ "ids": ids })),
        Some(AppendFailure::IdTooSmall) => {
            (StatusCode::CONFLICT, json!({ "ids": ids, "retry": false, "reason": "id_too_small" }))
        }
        Some(AppendFailure::Unavailable) => {
            (StatusCode::SERVICE_UNAVAILABLE, json!({ "ids": ids, "retry": true, "reason": "unavailable" }))
        }
    };
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_entry_or_an_array_of_them() {
        let one = entries(br#"{"event":"token","data":"a"}"#).expect("an entry");
        assert_eq!(one[0].content.data.as_deref(), Some(&b"a"[..]));
        let two = entries(br#"[{"data64":"/wA=","id":"7-1"},{"end":""}]"#).expect("two");
        assert_eq!(two[0].content.data.as_deref(), Some(&b"\xff\x00"[..]));
        assert_eq!(two[0].id, Some(EntryId { ms: 7, seq: 1 }));
        assert_eq!(two[1].content.end.as_deref(), Some(&b""[..]));
        let large = format!(r#"{{"data":"{}"}}"#, "x".repeat(MAX_DATA_BYTES + 1));
        for bad in [
            "",
            "[]",
            "{}",
            "7",
            r#"{"x":1}"#,
            r#"[{"data":"a"},{}]"#,
            r#"{"data":"a","id":"x"}"#,
            r#"{"data":"a","id":"0-0"}"#,
            r#"{"data":"a","data64":"YQ=="}"#,
            r#"{"data64":"%"}"#,
            &large,
        ] {
            assert_eq!(entries(bad.as_bytes()), None, "{bad:.40}");
        }
        let many = format!("[{}]", vec![r#"{"data":"a"}"#; MAX_ENTRIES + 1].join(","));
        assert_eq!(entries(many.as_bytes()), None);
    }
}
