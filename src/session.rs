//! What a session is, apart from its socket: who it belongs to, how it was admitted, what ends it.
//!
//! Not here: delivery (`lane`), HTTP and token verification (`edge`).

pub mod linger;
pub mod permission;
pub mod standing;
pub mod sweep;
pub mod tickets;
pub mod user_places;

use crate::clock::Now;
use crate::instrument::InstrumentId;
use crate::protocol::client::TopicRequest;
use bytes::Bytes;
use permission::Permissions;
use std::any::Any;
use std::net::TcpStream;
use std::sync::Arc;

/// Who a session acts for, as far as a token proves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    /// The token's subject.
    pub user_id: Arc<str>,
    /// When the token stops being good, seconds since the Unix epoch, leeway included.
    pub expires_at: Option<i64>,
    /// What it may see.
    pub permissions: Permissions,
}

/// Why a token isn't good. The reasons are a closed set, because they label a metric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AuthFailure {
    /// Not three segments of base64url JSON, or longer than any token.
    Malformed,
    /// The key that is configured doesn't allow the token's algorithm.
    Algorithm,
    /// No configured key matches the token's `kid`.
    UnknownKey,
    /// The signature doesn't fit.
    Signature,
    /// `exp` is missing or past.
    Expired,
    /// `nbf` or `iat` lies in the future.
    NotYetValid,
    /// `iss` is another than the configured one.
    Issuer,
    /// `aud` lacks the configured one.
    Audience,
    /// `sub` is missing, empty or unusable.
    Subject,
    /// The claim with permissions can't be read.
    Permissions,
}

impl AuthFailure {
    /// Every failure, in the order of the metric's labels.
    pub const ALL: [AuthFailure; 10] = [
        AuthFailure::Malformed,
        AuthFailure::Algorithm,
        AuthFailure::UnknownKey,
        AuthFailure::Signature,
        AuthFailure::Expired,
        AuthFailure::NotYetValid,
        AuthFailure::Issuer,
        AuthFailure::Audience,
        AuthFailure::Subject,
        AuthFailure::Permissions,
    ];

    /// The value of the metric's `reason` label.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Subject => "subject",
            Self::Permissions => "permissions",
        }
    }
}

/// Judges tokens. Implementations must not block.
pub trait Authenticator: Send + Sync + 'static {
    /// Who the token proves its bearer to be.
    ///
    /// # Errors
    /// The one reason why it proves nothing.
    fn verify(&self, token: &str, now: Now) -> Result<Principal, AuthFailure>;
}

/// Learns which instruments users watch, for the registry that tells the publisher what to feed.
pub trait WatchRegistry: Send + Sync + 'static {
    /// A session of `user` subscribed to `id`. Called once per session and topic. Must not block.
    fn watched(&self, user: &Arc<str>, id: InstrumentId);

    /// A session of `user` no longer subscribes to `id`. Must not block.
    fn unwatched(&self, user: &Arc<str>, id: InstrumentId);
}

/// How a session talks to its browser.
#[derive(Debug)]
pub enum Transport {
    /// WebSocket, after the upgrade.
    Ws,
    /// Server-sent events, with what the request already said.
    Sse {
        /// The topics of the request; `rejected` holds what wasn't a topic.
        request: TopicRequest,
        /// `Last-Event-ID`, as sent.
        last_event_id: Option<String>,
        /// Whether the body is written in chunks (HTTP/1.1) or until the end of the connection.
        chunked: bool,
        /// At most so many updates per second and topic.
        max_rate_hz: Option<f64>,
    },
}

/// A connection that the edge has judged and hands over to a lane, socket and all.
pub struct Admission {
    /// The connection, in non-blocking mode.
    pub stream: TcpStream,
    /// What was read from it beyond the request.
    pub read_ahead: Bytes,
    /// The head of the HTTP response, still to be written.
    pub head: Vec<u8>,
    /// How to go on from there.
    pub transport: Transport,
    /// Who the request proved to come from, if it did.
    pub principal: Option<Principal>,
    /// Held until the session ends; counts it against the limits.
    pub permit: Box<dyn Any + Send>,
}
