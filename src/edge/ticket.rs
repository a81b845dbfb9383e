//! `POST /market/ticket`: a one-time ticket for the bearer of a token.

use super::entrance::Entrance;
use crate::clock::Now;
use crate::metrics::edge::{Refusal, TicketUse};
use crate::session::tickets;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Issues a ticket. The request's body is not read.
///
/// # Errors
/// The token proves nothing, or the store can't be reached.
pub async fn issue(State(entrance): State<Arc<Entrance>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let principal = entrance.identify_by_token(&headers)?;
    let ticket = tickets::fresh();
    let kept = entrance.tickets.put(ticket.clone(), principal, Now::read()).await;
    let used = if kept.is_ok() { TicketUse::Issued } else { TicketUse::Unavailable };
    entrance.metrics.edge.tickets.count(used);
    kept.map_err(|_| Refusal::Unavailable)?;
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    let body = format!(r#"{{"ticket":"{ticket}","expires_in":{}}}"#, tickets::TTL.as_secs());
    Ok((headers, body).into_response())
}
