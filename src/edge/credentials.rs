//! Where a request may carry what proves its sender: a bearer token, a one-time ticket, a cookie.
//!
//! The first kind that is present decides, in this order; one that is present and not good is never made up
//! for by another. Nothing of it is logged.

use super::entrance::Entrance;
use super::origin::Allowed;
use super::query::Query;
use crate::clock::Now;
use crate::metrics::edge::{Refusal, TicketUse};
use crate::session::Principal;
use crate::session::tickets::is_plausible;
use axum::http::{HeaderMap, header};

impl Entrance {
    /// Who the request proves to come from; `None` where it carries nothing and needn't.
    ///
    /// # Errors
    /// Nothing that proves anything, where something is needed.
    pub async fn identify(&self, headers: &HeaderMap, query: &Query) -> Result<Option<Principal>, Refusal> {
        if let Some(token) = bearer(headers) {
            return self.verify(token).map(Some);
        }
        if let Some(principal) = self.redeem(query).await? {
            return Ok(Some(principal));
        }
        match self.cookie(headers)? {
            Some(token) => self.verify(token).map(Some),
            None if self.anonymous => Ok(None),
            None => Err(Refusal::NoToken),
        }
    }

    /// Judges the request's bearer token.
    ///
    /// # Errors
    /// There is none, or it proves nothing.
    pub fn identify_by_token(&self, headers: &HeaderMap) -> Result<Principal, Refusal> {
        self.verify(bearer(headers).ok_or(Refusal::NoToken)?)
    }

    /// Who the query's ticket stands for; `None` without one.
    ///
    /// # Errors
    /// A ticket that stands for nobody any more, or a store that can't tell.
    pub async fn redeem(&self, query: &Query) -> Result<Option<Principal>, Refusal> {
        let Some(ticket) = query.first("ticket") else { return Ok(None) };
        let now = Now::read();
        let taken = match is_plausible(ticket) {
            true => self.tickets.take(ticket.to_owned(), now).await,
            false => Ok(None),
        };
        // A ticket outlives neither itself nor the token that it was issued for.
        let good =
            taken.map(|principal| principal.filter(|p| p.expires_at.is_none_or(|t| t > now.unix_secs())));
        let (used, answer) = match good {
            Ok(Some(principal)) => (TicketUse::Redeemed, Ok(Some(principal))),
            Ok(None) => (TicketUse::Unknown, Err(Refusal::Ticket)),
            Err(_) => (TicketUse::Unavailable, Err(Refusal::Unavailable)),
        };
        self.metrics.edge.tickets.count(used);
        answer
    }

    fn verify(&self, token: &str) -> Result<Principal, Refusal> {
        self.authenticator.verify(token, Now::read()).map_err(|_| Refusal::Token)
    }

    /// The token in the configured cookie, if the page that makes the browser send it is known by name.
    fn cookie<'a>(&self, headers: &'a HeaderMap) -> Result<Option<&'a str>, Refusal> {
        let Some(name) = &self.cookie else { return Ok(None) };
        let trusted = match self.origin(headers)? {
            Some(allowed) => allowed == Allowed::Named,
            // Browsers leave the origin out for a page of the same site, but then say so.
            None => headers.get("sec-fetch-site").is_none_or(|site| site == "same-origin" || site == "none"),
        };
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        Ok(pairs.find(|(n, _)| n == name).map(|(_, value)| value.trim_matches('"')).filter(|_| trusted))
    }
}

/// The token behind `Authorization: Bearer`. Another scheme is some proxy's business, not ours.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}
