//! The browser side up to the hand-over: sockets, HTTP, tokens, limits, and the operators' pages.
//!
//! A connection is accepted, speaks HTTP with the router, and either ends or leaves for a lane with its socket,
//! its principal and its place in the limits. From there on nothing here knows it.
//!
//! Invariants:
//! - What a client can make us hold before it is a session is bounded: connections, heads, time.
//! - Only `error` chooses a status; only enums label a metric.
//!
//! Not here: sessions and what they are sent (`lane`), Redis (`upstream`).

pub mod auth;
pub mod connection;
pub mod ops;
pub mod origin;
pub mod sessions;
pub mod stream;

mod accept;
mod address;
mod bucket;
mod credentials;
mod descriptors;
mod entrance;
mod error;
mod limits;
mod page;
mod prices;
mod publish;
mod query;
mod refuse;
mod router;
mod socket;
mod sse;
mod takeover;
mod ticket;
mod ws;

use crate::catch_up::CatchUp;
use crate::clock::Now;
use crate::config::Config;
use crate::config::live::LiveLimits;
use crate::metrics::Metrics;
use crate::publish::QuotePublisher;
use crate::session::Authenticator;
use crate::session::tickets::Tickets;
use crate::session::user_places::UserPlaces;
use accept::{Acceptor, Kind};
use address::TrustedProxies;
use auth::Verifier;
use axum::Router;
use bucket::Bucket;
use connection::{Admit, AdmitStream, Connections, Deadlines};
use descriptors::Budget;
use entrance::Entrance;
use limits::Places;
use ops::Health;
use origin::{LiveOrigins, Origins};
use publish::Publishing;
use sessions::ListSessions;
use socket::Options;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections in the HTTP stage at most. Two seconds of the default accept rate; each takes about 20 KiB.
const MAX_UNADMITTED: usize = 4096;

/// The same on the admin listener, where a handful of probes and scrapers call.
const MAX_ADMIN: usize = 64;

/// Time for connections to notice that the process stops.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// What the edge needs from the rest of the process.
pub struct Services {
    /// Takes admitted sessions to the lanes.
    pub admit: Admit,
    /// Judges tokens; its keys are kept fresh while the edge serves.
    pub authenticator: Arc<Verifier>,
    /// Keeps tickets.
    pub tickets: Arc<dyn Tickets>,
    /// Knows how many sessions each user has.
    pub user_places: Arc<dyn UserPlaces>,
    /// The limits that can change.
    pub limits: Arc<LiveLimits>,
    /// Reads current prices.
    pub catch_up: Arc<CatchUp>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Answers the health pages.
    pub health: Health,
    /// Lists sessions.
    pub sessions: ListSessions,
    /// Takes quotes over HTTP.
    pub publisher: Arc<dyn QuotePublisher>,
    /// Serves lossless streams, where they are served.
    pub streams: Option<stream::Streams>,
}

/// When the edge ends.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Cancelled when no session may begin any more: the public listener closes.
    pub draining: CancellationToken,
    /// Cancelled when everything ends, the admin listener included.
    pub stopped: CancellationToken,
}

/// Where the edge listens.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Browsers.
    pub public: SocketAddr,
    /// Operators.
    pub admin: SocketAddr,
}

/// The browser side with its sockets bound, not yet accepting.
pub struct Edge {
    config: Config,
    public: TcpListener,
    admin: TcpListener,
    addresses: Addresses,
    origins: Arc<LiveOrigins>,
    proxies: TrustedProxies,
    n_descriptors: usize,
}

impl Edge {
    /// Binds both listeners; port 0 lets the system choose. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// An address that can't be had, or an origin or a network that can't be read.
    pub fn bind(config: &Config) -> io::Result<Self> {
        let invalid =
            |key: &str, rule: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{key}: {rule}"));
        let origins = Origins::parse(&config.listen.allowed_origins)
            .map_err(|rule| invalid("listen.allowed_origins", rule.to_string()))?;
        let proxies = TrustedProxies::parse(&config.limits.trusted_proxies)
            .map_err(|text| invalid("limits.trusted_proxies", format!("`{text}` is not a network")))?;
        let listen = |key: &str, address| {
            socket::listen(address)
                .map_err(|e| io::Error::new(e.kind(), format!("can't listen on {address} ({key}): {e}")))
        };
        let public = listen("listen.public", config.listen.public)?;
        let admin = listen("listen.admin", config.listen.admin)?;
        let addresses = Addresses { public: public.local_addr()?, admin: admin.local_addr()? };
        let n_descriptors = descriptors::raise_limit();
        let (config, origins) = (config.clone(), Arc::new(LiveOrigins::new(origins)));
        Ok(Self { config, public, admin, addresses, origins, proxies, n_descriptors })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The origins that are allowed, to be replaced while it serves.
    pub fn origins(&self) -> Arc<LiveOrigins> {
        Arc::clone(&self.origins)
    }

    /// Accepts and answers until `shutdown.stopped`.
    ///
    /// # Errors
    /// An accept loop that died.
    pub async fn serve(self, services: Services, shutdown: Shutdown) -> io::Result<()> {
        let Self { config, public, admin, origins, proxies, n_descriptors, .. } = self;
        let Services { admit, authenticator, tickets, user_places, limits, .. } = services;
        let Services { catch_up, metrics, health, sessions, publisher, streams, .. } = services;
        let publishing = Publishing::new(config.listen.publish_key.clone(), publisher);
        let Shutdown { draining, stopped } = shutdown;
        let options = Options::new(&config.session);
        let places = Places::new(Arc::clone(&limits));
        let entrance = Arc::new(Entrance {
            anonymous: config.auth.anonymous,
            cookie: config.auth.cookie.clone(),
            limits: Arc::clone(&limits),
            read_deadline: config.catch_up.deadline,
            origins,
            proxies,
            places: Arc::clone(&places),
            user_places,
            authenticator: Arc::clone(&authenticator) as Arc<dyn Authenticator>,
            tickets,
            catch_up,
            reads: Semaphore::new(prices::MAX_READS),
            metrics: Arc::clone(&metrics),
            draining: draining.clone(),
        });
        let budget = Budget::of(n_descriptors);
        if budget.max_open < config.limits.max_sessions {
            tracing::warn!(
                descriptors.limit = n_descriptors,
                sessions.max = config.limits.max_sessions,
                "the descriptor limit (ulimit -n) allows fewer sessions than limits.max_sessions"
            );
        }
        let accepts = Bucket::new(limits.accepts_per_second(), Now::read().mono);

        let admit_stream: AdmitStream = match streams.clone() {
            Some(streams) => Arc::new(move |admission| streams.sessions.admit(admission)),
            None => Arc::new(|_| Ok(())),
        };
        let connections = |router: Router, draining: &CancellationToken| {
            let ends = (draining.clone(), stopped.clone());
            let deadlines = Deadlines::new(config.listen.header_timeout);
            Connections::new(
                router,
                deadlines,
                options,
                (Arc::clone(&admit), Arc::clone(&admit_stream)),
                ends,
                Arc::clone(&metrics),
            )
        };
        let tasks = TaskTracker::new();
        let acceptor = |listener, kind, connections, max_unadmitted| {
            let (tasks, metrics) = (tasks.clone(), Arc::clone(&metrics));
            Acceptor::new(listener, kind, connections, options, max_unadmitted, tasks, metrics)
        };
        let public_connections =
            connections(router::public(entrance, streams.clone(), config.demo.page), &draining);
        let health = health.with_lack(Arc::clone(&authenticator));
        let admin_connections =
            connections(ops::admin(health, sessions, publishing, streams, Arc::clone(&metrics)), &stopped);
        let kind = Kind::Public { accepts, limits, budget, places };
        let public = acceptor(public, kind, public_connections, MAX_UNADMITTED);
        let admin = acceptor(admin, Kind::Admin, admin_connections, MAX_ADMIN);

        let loops = async {
            tokio::try_join!(tasks.spawn(public.run(draining)), tasks.spawn(admin.run(stopped.clone())))
        };
        tokio::select! {
            ended = loops => ended.map(drop).map_err(io::Error::other)?,
            () = authenticator.keep_keys() => {}
        }
        stopped.cancelled().await;
        tasks.close();
        // Connections end on the token; one that doesn't ends with the process.
        let _ = timeout(LAST_BREATH, tasks.wait()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
