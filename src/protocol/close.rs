//! Why a session ends: the close codes of the protocol as one enum.

/// The reason a session ends, from the server's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloseReason {
    /// The client closed.
    Normal,
    /// The token is not good, or belongs to somebody else than the session's user.
    AuthError,
    /// No `auth` in time.
    AuthTimeout,
    /// The session's token expired.
    TokenExpired,
    /// Messages came faster than the session may send.
    RateLimited,
    /// The client broke the WebSocket protocol.
    ProtocolError,
    /// A text message was not UTF-8.
    InvalidText,
    /// A frame or message over the size limit.
    MessageTooBig,
    /// The server's fault.
    Internal,
    /// The server drains.
    ServiceRestart,
    /// The server is over its capacity.
    TryAgainLater,
    /// The oldest unsent quote is older than the grace.
    SlowConsumer,
    /// Nothing was heard from the client for too long.
    PongTimeout,
    /// Answers that the client doesn't read filled the session's output bound.
    QueueOverflow,
    /// The connection broke without a close.
    Gone,
    /// There is no such stream.
    UnknownStream,
    /// Nothing was written to the stream for too long.
    ProducerTimeout,
    /// The token doesn't allow the stream.
    Forbidden,
    /// The request names no stream, or no place in it.
    BadRequest,
}

impl CloseReason {
    /// Every reason, in the order of the metric's labels.
    pub const ALL: [CloseReason; 19] = [
        CloseReason::Normal,
        CloseReason::AuthError,
        CloseReason::AuthTimeout,
        CloseReason::TokenExpired,
        CloseReason::RateLimited,
        CloseReason::ProtocolError,
        CloseReason::InvalidText,
        CloseReason::MessageTooBig,
        CloseReason::Internal,
        CloseReason::ServiceRestart,
        CloseReason::TryAgainLater,
        CloseReason::SlowConsumer,
        CloseReason::PongTimeout,
        CloseReason::QueueOverflow,
        CloseReason::Gone,
        CloseReason::UnknownStream,
        CloseReason::ProducerTimeout,
        CloseReason::Forbidden,
        CloseReason::BadRequest,
    ];

    /// The WebSocket close code. `Gone` has none on the wire; 1006 is what the peer's API shows.
    pub const fn code(self) -> u16 {
        match self {
            Self::Normal => 1000,
            Self::ProtocolError => 1002,
            Self::Gone => 1006,
            Self::InvalidText => 1007,
            Self::AuthError | Self::AuthTimeout | Self::TokenExpired | Self::RateLimited => 1008,
            Self::MessageTooBig => 1009,
            Self::Internal => 1011,
            Self::ServiceRestart => 1012,
            Self::TryAgainLater => 1013,
            Self::BadRequest => 4400,
            Self::Forbidden => 4403,
            Self::UnknownStream => 4404,
            Self::ProducerTimeout => 4408,
            Self::SlowConsumer | Self::PongTimeout | Self::QueueOverflow => 4500,
        }
    }

    /// The reason text of the close frame, also the value of the metric's `reason` label.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::AuthError => "auth_error",
            Self::AuthTimeout => "auth_timeout",
            Self::TokenExpired => "token_expired",
            Self::RateLimited => "rate_limited",
            Self::ProtocolError => "protocol_error",
            Self::InvalidText => "invalid_text",
            Self::MessageTooBig => "message_too_big",
            Self::Internal => "internal",
            Self::ServiceRestart => "service_restart",
            Self::TryAgainLater => "try_again_later",
            Self::SlowConsumer => "slow_consumer",
            Self::PongTimeout => "pong_timeout",
            Self::QueueOverflow => "queue_overflow",
            Self::Gone => "gone",
            Self::UnknownStream => "unknown_stream",
            Self::ProducerTimeout => "producer_timeout",
            Self::Forbidden => "forbidden",
            Self::BadRequest => "bad_request",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CloseReason;

    #[test]
    fn every_reason_has_its_own_text_and_is_listed_once() {
        for (i, reason) in CloseReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
            assert_eq!(CloseReason::ALL.iter().filter(|r| r.text() == reason.text()).count(), 1);
        }
    }
}
