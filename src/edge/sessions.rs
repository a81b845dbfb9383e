//! `GET /debug/sessions`: the sessions of this replica, page by page.
//!
//! `?limit=` (100 by default, at most 1000) and `?from=` with the `next` of the answer before; sessions of streams come
//! last. Nothing personal is told but the user's id.

use super::query::Query;
use crate::lane::ListFrom;
use crate::lane::delivery::SessionView;
use crate::metrics::edge::Refusal;
use crate::stream::{StreamId, sessions as stream};
use axum::Router;
use axum::extract::RawQuery;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1_000;

/// One page.
#[derive(Default)]
pub struct Page {
    /// Sessions of quotes.
    pub quotes: Vec<SessionView>,
    /// Sessions of streams.
    pub streams: Vec<stream::SessionView>,
    /// Where to go on.
    pub next: Option<ListFrom>,
}

/// Lists sessions from a place on, at most so many. Ends within a deadline of its own.
pub type ListSessions =
    Arc<dyn Fn(ListFrom, usize) -> Pin<Box<dyn Future<Output = Page> + Send>> + Send + Sync>;

/// The path.
pub fn router(list: ListSessions) -> Router {
    let answer = move |RawQuery(query): RawQuery| {
        let list = Arc::clone(&list);
        async move {
            let query = Query::parse(query.as_deref());
            let (from, limit) = page(&query)?;
            Ok::<Response, Refusal>(render(&list(from, limit).await))
        }
    };
    Router::new().route("/debug/sessions", get(answer))
}

fn page(query: &Query) -> Result<(ListFrom, usize), Refusal> {
    let from = match query.first("from") {
        None => ListFrom::default(),
        Some(text) => {
            let (lane, place) = text.split_once('.').ok_or(Refusal::Page)?;
            let number = |text: &str| text.parse().map_err(|_| Refusal::Page);
            ListFrom { lane: number(lane)?, place: number(place)? }
        }
    };
    let limit = query.first("limit").map_or(Ok(DEFAULT_LIMIT), str::parse).map_err(|_| Refusal::Page)?;
    if (1..=MAX_LIMIT).contains(&limit) { Ok((from, limit)) } else { Err(Refusal::Page) }
}

const fn transport(is_ws: bool) -> &'static str {
    if is_ws { "ws" } else { "sse" }
}

fn render(page: &Page) -> Response {
    let of_quotes = |s: &SessionView| -> Value {
        json!({
            "id": format!("{}.{}", s.lane, s.place),
            "transport": transport(s.transport == 0),
            "user_id": s.user_id.as_deref(),
            "subscriptions": s.n_subscriptions,
            "pending": s.n_pending,
            "backlog_age_ms": s.backlog_age.as_millis() as u64,
            "blocked": s.blocked,
        })
    };
    let of_a_stream = |s: &stream::SessionView| -> Value {
        json!({
            "id": format!("stream.{}", s.place),
            "transport": transport(s.is_ws),
            "user_id": s.user_id.as_deref(),
            "stream": s.stream.as_ref().map(StreamId::as_str),
        })
    };
    let sessions: Vec<Value> =
        page.quotes.iter().map(of_quotes).chain(page.streams.iter().map(of_a_stream)).collect();
    let next = page.next.map(|next| format!("{}.{}", next.lane, next.place));
    let body = json!({ "sessions": sessions, "next": next });
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_bounded_and_goes_on_where_it_ended() {
        let read = |query| page(&Query::parse(Some(query)));
        assert_eq!(read(""), Ok((ListFrom::default(), DEFAULT_LIMIT)));
        assert_eq!(read("from=1.20&limit=5"), Ok((ListFrom { lane: 1, place: 20 }, 5)));
        for query in ["limit=0", "limit=1001", "limit=x", "from=1", "from=1.x", "from=-1.0"] {
            assert_eq!(read(query), Err(Refusal::Page), "{query}");
        }
    }
}
