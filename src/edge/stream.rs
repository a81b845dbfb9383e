//! `GET /stream/sse`, `GET /ws/stream` and `POST /stream/demo`: requests for lossless streams.
//!
//! A browser shows a page the status of a refused `fetch`, but not of a refused WebSocket: there whatever makes no sense
//! to try again is told as a close code after the handshake.
//!
//! Not here: sessions and what they are sent (`stream`), adding entries (`admin`).

pub mod admin;

use super::entrance::{Entrance, without_body};
use super::query::Query;
use super::router::method_unknown;
use super::takeover::{Kind, Start, Takeover};
use super::{sse, ws};
use crate::entry::EntryId;
use crate::metrics::edge::Refusal;
use crate::protocol::close::CloseReason;
use crate::session::Principal;
use crate::stream::demo::Demo;
use crate::stream::output::Wire;
use crate::stream::sessions::{self, From, Opened, Opening, Sessions};
use crate::stream::{StreamId, StreamWriter};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::any::Any;
use std::sync::Arc;

/// What requests for streams are answered with.
#[derive(Clone)]
pub struct Streams {
    /// Takes sessions.
    pub sessions: Arc<Sessions>,
    /// Takes entries over HTTP.
    pub writer: Arc<dyn StreamWriter>,
    /// Begins demo streams for operators.
    pub demo: Arc<Demo>,
    /// Whether anybody who may read streams may begin one.
    pub public_demo: bool,
}

/// The state of the public paths.
#[derive(Clone)]
struct Served {
    entrance: Arc<Entrance>,
    streams: Streams,
}

/// The public paths.
pub fn router<S: Clone + Send + Sync + 'static>(entrance: Arc<Entrance>, streams: Streams) -> Router<S> {
    let public_demo = streams.public_demo;
    let router = Router::new()
        .route("/stream/sse", get(open_sse).head(method_unknown))
        .route("/ws/stream", get(open_ws).head(method_unknown));
    let router = if public_demo { router.route("/stream/demo", post(begin_demo)) } else { router };
    router.with_state(Served { entrance, streams })
}

/// What a request asks for.
struct Wanted {
    id: StreamId,
    from: From,
    principal: Option<Principal>,
}

impl Served {
    async fn judge(&self, parts: &Parts) -> Result<Wanted, Refusal> {
        without_body(&parts.headers)?;
        let query = Query::parse(parts.uri.query());
        let id = query.first("id").and_then(StreamId::parse).ok_or(Refusal::StreamId)?;
        let from = from(&parts.headers, &query).ok_or(Refusal::StreamPlace)?;
        let principal = self.entrance.identify(&parts.headers, &query).await?;
        if principal.as_ref().is_some_and(|principal| !principal.permissions.streams.allows(id.as_str())) {
            return Err(Refusal::Forbidden);
        }
        Ok(Wanted { id, from, principal })
    }

    async fn open(&self, id: StreamId, from: From) -> Result<Opened, Refusal> {
        self.streams.sessions.open(id, from).await.map_err(|_| Refusal::Unavailable)
    }

    fn begin(
        mut response: Response,
        wire: Wire,
        opening: Result<Box<Opening>, CloseReason>,
        principal: Option<Principal>,
        permit: Box<dyn Any + Send>,
    ) -> Response {
        let kind = Kind::Stream(sessions::Start { wire, opening });
        Takeover::mark(&mut response, Start { kind, principal, permit });
        response
    }
}

/// Opens a stream of server-sent events.
///
/// # Errors
/// What the request lacks, or the limit that is reached.
async fn open_sse(State(served): State<Served>, request: Request) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let Wanted { id, from, principal } = served.judge(&parts).await?;
    let permit = served.entrance.place(&parts, principal.as_ref()).await?;
    match served.open(id, from).await? {
        Opened::Begin(opening) => {
            let chunked = parts.version == Version::HTTP_11;
            let response = sse::response(chunked);
            Ok(Served::begin(response, Wire::Sse { chunked }, Ok(opening), principal, permit))
        }
        // Tells an `EventSource` to stop.
        Opened::Finished => {
            Ok((StatusCode::NO_CONTENT, [(header::CACHE_CONTROL, "no-store")]).into_response())
        }
        Opened::Unknown => Err(Refusal::UnknownStream),
    }
}

/// Opens a WebSocket.
///
/// # Errors
/// What is wrong with the handshake or the request, or the limit that is reached.
async fn open_ws(State(served): State<Served>, request: Request) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let accept = ws::accept_key(parts.version, &parts.headers)?;
    let (wanted, principal) = match served.judge(&parts).await {
        Ok(Wanted { id, from, principal }) => (Ok((id, from)), principal),
        Err(refusal) => (Err(close_reason(refusal).ok_or(refusal)?), None),
    };
    let permit = served.entrance.place(&parts, principal.as_ref()).await?;
    let opening = match wanted {
        Ok((id, from)) => match served.open(id, from).await? {
            Opened::Begin(opening) => Ok(opening),
            Opened::Finished => Err(CloseReason::Normal),
            Opened::Unknown => Err(CloseReason::UnknownStream),
        },
        Err(reason) => Err(reason),
    };
    Ok(Served::begin(ws::response(accept), Wire::Ws, opening, principal, permit))
}

/// What a WebSocket is closed with in place of a refusal that a page has to know.
const fn close_reason(refusal: Refusal) -> Option<CloseReason> {
    match refusal {
        Refusal::NoToken | Refusal::Token | Refusal::Ticket => Some(CloseReason::AuthError),
        Refusal::Forbidden => Some(CloseReason::Forbidden),
        Refusal::StreamId | Refusal::StreamPlace => Some(CloseReason::BadRequest),
        _ => None,
    }
}

/// Begins a demo stream.
///
/// # Errors
/// Nothing that proves anything, or too many at once.
async fn begin_demo(State(served): State<Served>, request: Request) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let query = Query::parse(parts.uri.query());
    served.entrance.identify(&parts.headers, &query).await?;
    demo(&served.streams.demo)
}

fn demo(demo: &Demo) -> Result<Response, Refusal> {
    let id = demo.begin().ok_or(Refusal::Busy)?;
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    // The id needs no escaping.
    Ok((headers, format!(r#"{{"id":"{id}"}}"#)).into_response())
}

/// Where to begin: what the browser says of its own, otherwise what the page says. `None` for what is no place: to
/// begin at the start instead would double what the client has.
fn from(headers: &HeaderMap, query: &Query) -> Option<From> {
    if let Some(id) = headers.get("last-event-id").filter(|id| !id.is_empty()) {
        return id.to_str().ok().and_then(EntryId::parse).map(From::After);
    }
    if let Some(id) = query.first("last_event_id").filter(|id| !id.is_empty()) {
        return EntryId::parse(id).map(From::After);
    }
    match query.first("from") {
        None | Some("0" | "") => Some(From::After(EntryId::START)),
        Some("$") => Some(From::Now),
        Some(id) => EntryId::parse(id).map(From::After),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn the_browsers_own_place_comes_first_and_what_is_none_is_refused() {
        let after = |ms| Some(From::After(EntryId { ms, seq: 0 }));
        for (header, query, expected) in [
            (None, "", after(0)),
            (None, "from=0", after(0)),
            (None, "from=%24", Some(From::Now)),
            (None, "from=$", Some(From::Now)),
            (None, "from=7-0", after(7)),
            (None, "from=7", None),
            (None, "from=x", None),
            (None, "last_event_id=8-0&from=7-0", after(8)),
            (Some("9-0"), "last_event_id=8-0&from=0", after(9)),
            (Some(""), "from=7-0", after(7)),
            (Some("x"), "from=7-0", None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(id) = header {
                headers.insert("last-event-id", HeaderValue::from_static(id));
            }
            assert_eq!(from(&headers, &Query::parse(Some(query))), expected, "{header:?} {query}");
        }
    }
}
