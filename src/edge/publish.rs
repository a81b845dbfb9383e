//! `POST /publish`: takes payloads over HTTP, one object or an array of them, and publishes them as `feed` does.
//!
//! Needs the key of `listen.publish_key` as a bearer token; where none is configured nobody can publish. The
//! answer is 200 when every payload was judged, 503 when some may succeed later; it counts what became of
//! them and names, by place, those that were not published.

use super::credentials::bearer;
use crate::config::Secret;
use crate::metrics::edge::Refusal;
use crate::publish::{Published, QuotePublisher};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Payloads of one request. A whole market fits; more would hold a connection for seconds.
const MAX_PAYLOADS: usize = 10_000;

/// About 400 bytes for each of them.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// How long a body may take to arrive.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// What the path works with.
#[derive(Clone)]
pub struct Publishing {
    /// Compared by digest, so that the comparison's time tells nothing about the key.
    key: Option<[u8; 32]>,
    publisher: Arc<dyn QuotePublisher>,
}

impl Publishing {
    /// Publishes to `publisher` for those who present `key`.
    pub fn new(key: Option<Secret>, publisher: Arc<dyn QuotePublisher>) -> Self {
        Self { key: key.map(|key| Sha256::digest(key.expose()).into()), publisher }
    }

    /// Whether a request with these headers presents the key.
    pub(super) fn allows(&self, headers: &HeaderMap) -> bool {
        let given: Option<[u8; 32]> = bearer(headers).map(|key| Sha256::digest(key).into());
        self.key.is_some() && given == self.key
    }

    async fn publish(&self, request: Request) -> Result<Response, Refusal> {
        let (parts, body) = request.into_parts();
        if !self.allows(&parts.headers) {
            return Err(Refusal::PublishKey);
        }
        let payloads = payloads(&read(body).await?).ok_or(Refusal::Payloads)?;
        Ok(render(&self.publisher.publish(payloads).await))
    }
}

/// The path.
pub fn router(publishing: Publishing) -> Router {
    let answer = move |request: Request| {
        let publishing = publishing.clone();
        async move { publishing.publish(request).await }
    };
    Router::new().route("/publish", post(answer))
}

/// A body within bounds of size and time.
///
/// # Errors
/// It is too large or takes too long.
pub(super) async fn read(body: Body) -> Result<Vec<u8>, Refusal> {
    let read = timeout(BODY_DEADLINE, to_bytes(body, MAX_BODY)).await;
    read.ok().and_then(Result::ok).map(Vec::from).ok_or(Refusal::Body)
}

fn payloads(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let whole: &RawValue = serde_json::from_slice(body).ok()?;
    let each: Vec<&RawValue> = match whole.get().as_bytes().first()? {
        b'{' => vec![whole],
        b'[' => serde_json::from_str(whole.get()).ok()?,
        _ => return None,
    };
    let bounded = !each.is_empty() && each.len() <= MAX_PAYLOADS;
    bounded.then(|| each.into_iter().map(|payload| payload.get().as_bytes().to_vec()).collect())
}

fn render(outcomes: &[Published]) -> Response {
    let count = |kind: &dyn Fn(&Published) -> bool| outcomes.iter().filter(|outcome| kind(outcome)).count();
    let places: Vec<Value> = outcomes
        .iter()
        .enumerate()
        .filter_map(|(at, outcome)| {
            let why = match outcome {
                Published::Done => return None,
                Published::Older => "older",
                Published::Unusable(reason) => reason,
                Published::Failed { .. } => "failed",
            };
            Some(json!({ "at": at, "reason": why }))
        })
        .collect();
    let failed = count(&|o| matches!(o, Published::Failed { .. }));
    let status = if failed == 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "published": count(&|o| matches!(o, Published::Done)),
        "not_published": places,
        "retry": outcomes.iter().any(|o| matches!(o, Published::Failed { retry: true })),
    });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_payload_or_an_array() {
        assert_eq!(payloads(br#" {"stockId":1} "#), Some(vec![br#"{"stockId":1}"#.to_vec()]));
        assert_eq!(payloads(br#"[{"a":1.10},7]"#), Some(vec![br#"{"a":1.10}"#.to_vec(), b"7".to_vec()]));
        for body in ["", "[]", "7", "{", "\"x\""] {
            assert_eq!(payloads(body.as_bytes()), None, "{body}");
        }
        let many = format!("[{}]", vec!["1"; MAX_PAYLOADS + 1].join(","));
        assert_eq!(payloads(many.as_bytes()), None);
    }
}
