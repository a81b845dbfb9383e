//! What every request to the public listener is judged by.

use super::address::TrustedProxies;
use super::connection::Peer;
use super::limits::{Permit, Places};
use super::origin::{Allowed, Origins};
use crate::catch_up::CatchUp;
use crate::metrics::Metrics;
use crate::metrics::edge::Refusal;
use crate::session::Authenticator;
use crate::session::tickets::Tickets;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
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
    /// Topics of one session, and instruments of one request for prices.
    pub max_topics: usize,
    /// A read of prices takes no longer.
    pub read_deadline: Duration,
    /// Allowed origins.
    pub origins: Arc<Origins>,
    /// Believed proxies.
    pub proxies: TrustedProxies,
    /// Places for sessions.
    pub places: Arc<Places>,
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
    /// A place for a session that `request` asks for.
    ///
    /// # Errors
    /// The limit that is reached, or the drain.
    pub fn place(&self, request: &Parts) -> Result<Permit, Refusal> {
        if self.draining.is_cancelled() {
            return Err(Refusal::Draining);
        }
        self.places.take(self.client(request))
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
