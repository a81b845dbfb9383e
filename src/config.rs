//! The typed configuration: what every part is told, with its defaults and why they are what they are.
//!
//! Invariants:
//! - A value in here is within the bounds of its key (`config::keys`) and the rules between keys hold.
//! - Nobody but `config::load` reads a configuration file or the environment.
//!
//! Not here: files, the environment and their raw spelling (`config::raw`), rules (`config::rules`).

pub mod check;
pub mod file;
pub mod keys;
pub mod kind;
pub mod legacy;
pub mod live;
pub mod load;
pub mod log;
pub mod print;
pub mod problem;
pub mod raw;
pub mod rules;
pub mod streams;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

/// A secret, which never shows itself in logs or printed configuration.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The secret itself. Never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Everything that can be configured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// Sockets and origins.
    pub listen: Listen,
    /// Tokens.
    pub auth: Auth,
    /// Sessions and their timers.
    pub session: Session,
    /// What a process accepts.
    pub limits: Limits,
    /// What a payload may be.
    pub ingest: Ingest,
    /// Where quotes come from.
    pub redis: Redis,
    /// Reading stored quotes.
    pub catch_up: CatchUp,
    /// Telling the publisher what is watched.
    pub watchers: Watchers,
    /// Lossless streams.
    pub streams: streams::Streams,
    /// Ending.
    pub drain: Drain,
    /// Delivery threads.
    pub lanes: Lanes,
    /// Names of metrics.
    pub metrics: Metrics,
    /// Logs.
    pub log: log::Log,
    /// The demo page.
    pub demo: Demo,
}

/// `listen.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Listen {
    /// Browsers, by way of the proxies.
    pub public: SocketAddr,
    /// Operators. Never forwarded by the proxies.
    pub admin: SocketAddr,
    /// Exact origins, or `https://*.example.com`; `*` for any. Empty refuses every browser origin.
    pub allowed_origins: Vec<String>,
    /// A request's headers must be complete within this; slower senders hold a descriptor for nothing.
    pub header_timeout: Duration,
    /// Bearer key of `POST /publish` on the admin listener; without one nothing can be published there.
    pub publish_key: Option<Secret>,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            public: SocketAddr::from(([0, 0, 0, 0], 8080)),
            admin: SocketAddr::from(([0, 0, 0, 0], 8081)),
            allowed_origins: Vec::new(),
            header_timeout: Duration::from_secs(10),
            publish_key: None,
        }
    }
}

/// `auth.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Auth {
    /// Whether sessions without a token may subscribe.
    pub anonymous: bool,
    /// An unauthenticated session is closed after this, unless anonymous ones are allowed.
    pub timeout: Duration,
    /// Name of the cookie that may carry a token for SSE; none by default.
    pub cookie: Option<String>,
    /// `auth.jwt.*`
    pub jwt: Jwt,
}

impl Default for Auth {
    fn default() -> Self {
        Self { anonymous: false, timeout: Duration::from_secs(30), cookie: None, jwt: Jwt::default() }
    }
}

/// `auth.jwt.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Jwt {
    /// Shared secret for HS256, HS384 and HS512.
    pub secret: Option<Secret>,
    /// File with the shared secret; what it holds becomes `secret` when the configuration is loaded.
    pub secret_file: Option<String>,
    /// PEM files with public keys for RS, ES and EdDSA.
    pub public_keys: Vec<String>,
    /// Where to fetch a JSON Web Key Set.
    pub jwks_url: Option<String>,
    /// The `iss` that tokens must carry.
    pub issuer: String,
    /// The `aud` that tokens must contain, if any.
    pub audience: Option<String>,
    /// Tolerated difference between clocks.
    pub leeway: Duration,
    /// Claim with the instruments that a token's bearer may see; where absent, every token shows them all.
    pub topics_claim: Option<String>,
    /// Claim with the streams that a token's bearer may read; where absent, every token reads them all.
    pub streams_claim: Option<String>,
}

impl Default for Jwt {
    fn default() -> Self {
        Self {
            secret: None,
            secret_file: None,
            public_keys: Vec::new(),
            jwks_url: None,
            issuer: "finvibe-user".into(),
            audience: None,
            leeway: Duration::from_secs(30),
            topics_claim: None,
            streams_claim: None,
        }
    }
}

/// `session.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Session {
    /// Time between two pings to one session. Shorter than any proxy's idle timeout.
    pub heartbeat_interval: Duration,
    /// A ping that nothing follows for this long counts as missed.
    pub pong_timeout: Duration,
    /// So many missed in a row end the session.
    pub max_missed_pongs: u32,
    /// Age of the oldest unsent quote that ends the session.
    pub slow_consumer_grace: Duration,
    /// How long a woken lane gathers before it writes. Zero: quotes are gathered only while the lane is
    /// busy, which measured best (fixed delays of 1–10 ms gained nothing).
    pub flush_interval: Duration,
    /// Subscriptions per session. Bounds a session's memory.
    pub max_topics: usize,
    /// Size of a client's message over all its fragments, in bytes.
    pub max_message_bytes: usize,
    /// Messages per second and session; a burst of twice that is tolerated.
    pub max_inbound_per_second: u32,
    /// Kernel send buffer per session, in bytes. Larger ones hide a slow reader behind stale quotes.
    pub send_buffer_bytes: usize,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(20),
            pong_timeout: Duration::from_secs(45),
            max_missed_pongs: 4,
            slow_consumer_grace: Duration::from_secs(10),
            flush_interval: Duration::ZERO,
            max_topics: 200,
            max_message_bytes: 64 * 1024,
            max_inbound_per_second: 20,
            send_buffer_bytes: 16 * 1024,
        }
    }
}

/// `limits.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// Sessions in all.
    pub max_sessions: usize,
    /// Sessions per client address; 0 is off.
    pub max_sessions_per_ip: usize,
    /// Sessions per user over all replicas; 0 is off.
    pub max_sessions_per_user: usize,
    /// How long a replica's sessions count for their users after its last sign of life. Three renewals fit into it:
    /// shorter costs Redis more, longer keeps the places of a dead replica.
    pub user_lease: Duration,
    /// New connections per second.
    pub accepts_per_second: u32,
    /// Proxies (CIDR) whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_sessions: 20_000,
            max_sessions_per_ip: 0,
            max_sessions_per_user: 0,
            user_lease: Duration::from_secs(30),
            accepts_per_second: 2_000,
            trusted_proxies: Vec::new(),
        }
    }
}

/// `ingest.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Ingest {
    /// Largest payload or price key, in bytes. A real one has about 220.
    pub max_payload_bytes: usize,
    /// Instruments kept in memory; bounds what a publisher can make the process hold.
    pub max_instruments: usize,
}

impl Default for Ingest {
    fn default() -> Self {
        Self { max_payload_bytes: 16 * 1024, max_instruments: 200_000 }
    }
}

/// `redis.mode`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedisMode {
    /// One server.
    Standalone,
    /// Redis Cluster.
    Cluster,
    /// A primary watched by Sentinel.
    Sentinel,
    /// No Redis: an in-process bus and store, for the demo and tests.
    Embedded,
}

/// `redis.channel.kind`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelKind {
    /// `SSUBSCRIBE` in a cluster, `SUBSCRIBE` elsewhere.
    Auto,
    /// `SSUBSCRIBE`.
    Sharded,
    /// `SUBSCRIBE`.
    Classic,
}

/// `redis.channel.layout`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelLayout {
    /// The base channel and its partitions carry everything.
    Partitioned,
    /// A channel per instrument, subscribed while some session wants it.
    PerInstrument,
}

/// `redis.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Redis {
    /// Standalone, cluster, sentinel or embedded.
    pub mode: RedisMode,
    /// `host:port` of servers to start from.
    pub nodes: Vec<String>,
    /// ACL user; the default user where absent.
    pub username: Option<String>,
    /// Password.
    pub password: Option<Secret>,
    /// File with the password, read again on every connect.
    pub password_file: Option<String>,
    /// Database number; a cluster has only 0.
    pub database: u32,
    /// TLS to every node.
    pub tls: bool,
    /// PEM file with the CA to trust instead of the system's.
    pub tls_ca: Option<String>,
    /// Name of the primary at the sentinels.
    pub sentinel_primary: String,
    /// Deadline of every command.
    pub command_timeout: Duration,
    /// Deadline of every connection attempt.
    pub connect_timeout: Duration,
    /// Connections per node for commands.
    pub pool_size: usize,
    /// `redis.channel.*`
    pub channel: Channel,
}

impl Default for Redis {
    fn default() -> Self {
        Self {
            mode: RedisMode::Standalone,
            nodes: vec!["127.0.0.1:6379".into()],
            username: None,
            password: None,
            password_file: None,
            database: 0,
            tls: false,
            tls_ca: None,
            sentinel_primary: "mymaster".into(),
            command_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(1),
            pool_size: 4,
            channel: Channel::default(),
        }
    }
}

/// `redis.channel.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Channel {
    /// Base name.
    pub name: String,
    /// Partitions; 1 means the base channel alone.
    pub partitions: u32,
    /// Sharded or classic Pub/Sub.
    pub kind: ChannelKind,
    /// Partitioned or per instrument.
    pub layout: ChannelLayout,
}

impl Default for Channel {
    fn default() -> Self {
        Self {
            name: "market:price-updated".into(),
            partitions: 1,
            kind: ChannelKind::Auto,
            layout: ChannelLayout::Partitioned,
        }
    }
}

/// `catch_up.*`
#[derive(Clone, PartialEq, Debug)]
pub struct CatchUp {
    /// Within this after a fault heals, every live subscription shows the newest stored price.
    pub deadline: Duration,
    /// How long requests are gathered into one read per node.
    pub gather: Duration,
}

impl Default for CatchUp {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(2), gather: Duration::from_millis(2) }
    }
}

/// `watchers.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Watchers {
    /// Whether the registry is written.
    pub enabled: bool,
    /// Every member is renewed once in this time, spread over it.
    pub renew_interval: Duration,
    /// Time to live of a watcher key.
    pub ttl: Duration,
    /// How long writes are gathered into one pipeline per node.
    pub batch_interval: Duration,
}

impl Default for Watchers {
    fn default() -> Self {
        Self {
            enabled: true,
            renew_interval: Duration::from_secs(120),
            ttl: Duration::from_secs(600),
            batch_interval: Duration::from_millis(10),
        }
    }
}

/// `drain.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Drain {
    /// Between not ready and the first closing, so that load balancers notice.
    pub notice: Duration,
    /// From the signal to the exit.
    pub deadline: Duration,
    /// Sessions told to reconnect per second at most.
    pub reconnect_rate: u32,
}

impl Default for Drain {
    fn default() -> Self {
        Self { notice: Duration::from_secs(2), deadline: Duration::from_secs(30), reconnect_rate: 500 }
    }
}

/// `lanes.*`
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Lanes {
    /// Delivery threads; one per core where absent.
    pub threads: Option<usize>,
}

/// `metrics.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Metrics {
    /// First part of every metric's name.
    pub prefix: String,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { prefix: "tickbridge".into() }
    }
}

/// `demo.*`
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Demo {
    /// Whether `GET /` serves the live page.
    pub page: bool,
    /// Demo streams that are written at the same time; 0 serves no `POST /stream/demo`. Whoever may read streams can
    /// have them written, so that this bounds what a stranger can make Redis hold.
    pub streams: usize,
}
