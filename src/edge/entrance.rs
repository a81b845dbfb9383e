//! What every request to the public listener is judged by.

use super::address::TrustedProxies;
use super::connection::Peer;
use super::limits::Places;
use super::origin::{Allowed, LiveOrigins};
use crate::catch_up::CatchUp;
use crate::config::live::LiveLimits;
use crate::metrics::Metrics;
use crate::metrics::edge::Refusal;
use crate::session::tickets::Tickets;
use crate::session::user_places::UserPlaces;
use crate::session::{Authenticator, Principal};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use std::any::Any;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// The public listener's rules and the services behind them.
pub struct Entrance {
    /// Whether sessions need no token.
    pub anonymous: bool,
    /// Name of the cookie that may carry a token.
    pub cookie: Option<String>,
    /// Topics of one session, which are the instruments of one request for prices.
    pub limits: Arc<LiveLimits>,
    /// A read of prices takes no longer.
    pub read_deadline: Duration,
    /// Allowed origins.
    pub origins: Arc<LiveOrigins>,
    /// Believed proxies.
    pub proxies: TrustedProxies,
    /// Places for sessions.
    pub places: Arc<Places>,
    /// Places for the sessions of each user.
    pub user_places: Arc<dyn UserPlaces>,
    /// Judges tokens.
    pub authenticator: Arc<dyn Authenticator>,
    /// Keeps tickets.
    pub tickets: Arc<dyn Tickets>,
    /// Reads current prices.
    pub catch_up: Arc<CatchUp>,
    /// Reads of prices under way.
    pub reads: Semaphore,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Cancelled when no session may begin any more.
    pub draining: CancellationToken,
}

impl Entrance {
    /// A place for a session that `request` asks for, and for its user where that is known already.
    ///
    /// # Errors
    /// The limit that is reached, or the drain.
    pub async fn place(
        &self,
        request: &Parts,
        who: Option<&Principal>,
    ) -> Result<Box<dyn Any + Send>, Refusal> {
        if self.draining.is_cancelled() {
            return Err(Refusal::Draining);
        }
        let permit = self.places.take(self.client(request))?;
        let Some(who) = who else { return Ok(Box::new(permit)) };
        let place = self.user_places.take(&who.user_id).verdict().await.map_err(|_| Refusal::User)?;
        Ok(Box::new((permit, place)))
    }

    fn client(&self, request: &Parts) -> IpAddr {
        let peer = request.extensions.get::<Peer>();
        let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(address)| address.ip());
        self.proxies.client(peer, &request.headers)
    }

    /// Whether the request's origin, if it has one, may talk to us; and if so, whether by its name.
    ///
    /// # Errors
    /// An origin that no rule allows.
    pub fn origin(&self, headers: &HeaderMap) -> Result<Option<Allowed>, Refusal> {
        // Two origins are none that a browser would send.
        let mut origins = headers.get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(None),
            (Some(origin), None) => self.origins.judge(origin.as_bytes()).map(Some).ok_or(Refusal::Origin),
            _ => Err(Refusal::Origin),
        }
    }
}

/// Refuses a request that brings a body where none belongs: its bytes would be taken for the session's.
///
/// # Errors
/// There is one, or one may follow.
pub fn without_body(headers: &HeaderMap) -> Result<(), Refusal> {
    let empty = headers.get_all(header::CONTENT_LENGTH).iter().all(|length| length == "0");
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    if empty && !chunked { Ok(()) } else { Err(Refusal::Body) }
}
