//! `GET /market/sse`: the beginning of a stream of server-sent events.

use super::entrance::{Entrance, without_body};
use super::query::Query;
use super::takeover::{Kind, Start, Takeover};
use crate::metrics::edge::Refusal;
use crate::protocol::client::TopicRequest;
use crate::session::Transport;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Version, header};
use axum::response::Response;
use std::sync::Arc;

/// Longest event id worth handing on; ours have at most about 1,100 characters.
const MAX_EVENT_ID: usize = 1_200;

/// Opens a stream of the query's topics.
///
/// # Errors
/// What the request lacks, or the limit that is reached.
pub async fn open(State(entrance): State<Arc<Entrance>>, request: Request) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    without_body(&parts.headers)?;
    let query = Query::parse(parts.uri.query());
    let principal = entrance.identify(&parts.headers, &query).await?;
    let request = TopicRequest::from_query(&query.list("topics"));
    if request.topics.is_empty() {
        return Err(Refusal::NoTopic);
    }
    // Some allowed: the first event names those that aren't.
    let permissions = principal.as_ref().map(|principal| &principal.permissions);
    if permissions.is_some_and(|permissions| !request.topics.iter().any(|topic| permissions.allow(*topic))) {
        return Err(Refusal::Forbidden);
    }
    let max_rate_hz = match query.first("max_rate_hz").map(str::parse::<f64>) {
        None => None,
        Some(Ok(hz)) if hz.is_finite() && hz > 0.0 => Some(hz),
        Some(_) => return Err(Refusal::Rate),
    };
    let permit = entrance.place(&parts, principal.as_ref()).await?;

    let chunked = parts.version == Version::HTTP_11;
    let last_event_id = last_event_id(&parts.headers, &query);
    let mut response = response(chunked);
    let transport = Transport::Sse { request, last_event_id, chunked, max_rate_hz };
    Takeover::mark(&mut response, Start { kind: Kind::Market(transport), principal, permit });
    Ok(response)
}

/// The answer that a stream of events begins with.
pub(super) fn response(chunked: bool) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    // No request can follow on a connection that left HTTP.
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if chunked {
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    response
}

/// The id of the last event seen: what the browser says of this stream, otherwise what the page says. One that
/// can't be ours counts as none, which means a full snapshot.
fn last_event_id(headers: &HeaderMap, query: &Query) -> Option<String> {
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let id = header.filter(|id| !id.is_empty()).or_else(|| query.first("last_event_id"))?;
    let usable = !id.is_empty() && id.len() <= MAX_EVENT_ID && id.bytes().all(|b| b.is_ascii_graphic());
    usable.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_browsers_own_id_comes_first_and_an_unusable_one_is_none() {
        for (header, query, expected) in [
            (None, None, None),
            (Some("a"), None, Some("a")),
            (Some("a"), Some("last_event_id=b"), Some("a")),
            (Some(""), Some("last_event_id=b"), Some("b")),
            (None, Some("last_event_id=b"), Some("b")),
            (None, Some("last_event_id="), None),
            (None, Some("last_event_id=b%0Adata:x"), None),
            (None, Some("last_event_id=b%00"), None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(id) = header {
                headers.insert("last-event-id", HeaderValue::from_static(id));
            }
            let id = last_event_id(&headers, &Query::parse(query));
            assert_eq!(id.as_deref(), expected, "{header:?} {query:?}");
        }
        let long = format!("last_event_id={}", "a".repeat(MAX_EVENT_ID + 1));
        assert_eq!(last_event_id(&HeaderMap::new(), &Query::parse(Some(&long))), None);
    }
}
