//! `GET /market/prices`: current prices as one JSON object, from the same place as snapshots.

use super::entrance::Entrance;
use super::query::Query;
use crate::instrument::InstrumentId;
use crate::metrics::edge::Refusal;
use crate::topic::Topic;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::timeout;

/// Reads under way at a time. Each may ask Redis for `session.max_topics` keys; sessions need that capacity
/// more.
pub const MAX_READS: usize = 64;

/// Answers with the newest quote of each instrument that has one.
///
/// # Errors
/// The request isn't allowed, names nothing, or asks for too much.
pub async fn read(State(entrance): State<Arc<Entrance>>, request: Request) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let query = Query::parse(parts.uri.query());
    let principal = entrance.identify(&parts.headers, &query).await?;
    let mut ids = instruments(&query.list("ids"), entrance.limits.max_topics())?;
    if let Some(principal) = principal {
        ids.retain(|&id| principal.permissions.allow(Topic::of(id)));
    }
    if ids.is_empty() {
        return Err(Refusal::Forbidden);
    }
    let _read = entrance.reads.try_acquire().map_err(|_| Refusal::Busy)?;
    let quotes = timeout(entrance.read_deadline, entrance.catch_up.current(&ids));
    let quotes = quotes.await.map_err(|_| Refusal::Unavailable)?;
    let mut body = Vec::with_capacity(2 + 256 * quotes.len());
    for quote in quotes {
        body.push(if body.is_empty() { b'{' } else { b',' });
        body.extend_from_slice(format!("\"{}\":", quote.id).as_bytes());
        body.extend_from_slice(quote.data());
    }
    if body.is_empty() {
        body.push(b'{');
    }
    body.push(b'}');
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

/// The valid ids of a list, each once, in the order given.
fn instruments(list: &str, max: usize) -> Result<Vec<InstrumentId>, Refusal> {
    let mut seen = HashSet::new();
    let ids = list.split(',').filter_map(InstrumentId::parse).filter(|&id| seen.insert(id));
    let ids: Vec<_> = ids.take(max + 1).collect();
    match ids.len() {
        0 => Err(Refusal::NoInstrument),
        n if n > max => Err(Refusal::TooManyInstruments),
        _ => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_once_and_are_bounded() {
        let ids = |list| instruments(list, 2).map(|ids| ids.iter().map(|id| id.get()).collect::<Vec<_>>());
        assert_eq!(ids("5,x,005,+7,-1,"), Ok(vec![5, -1]));
        assert_eq!(ids("1,2,3"), Err(Refusal::TooManyInstruments));
        assert_eq!(ids("x\n,"), Err(Refusal::NoInstrument));
    }
}
