//! What an error of connecting or subscribing means, and how long to wait after it.

use crate::upstream::readiness::Reason;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use std::time::Duration;

/// Every reason that [`of_connecting`] gives.
pub(super) const CONNECTING: [Reason; 3] = [Reason::NodeUnreachable, Reason::AuthFailed, Reason::Loading];

/// Why a node can't be connected to.
pub(super) fn of_connecting(error: &RedisError) -> Reason {
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("WRONGPASS" | "NOAUTH" | "NOPERM")) => {
            Reason::AuthFailed
        }
        (_, Some("LOADING" | "MASTERDOWN")) => Reason::Loading,
        _ => Reason::NodeUnreachable,
    }
}

/// Why a channel can't be subscribed to. A redirect is no refusal, and is not to be asked about here.
pub(super) fn of_subscribing(error: &RedisError) -> Reason {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => Reason::ChannelDenied,
        ErrorKind::Server(ServerErrorKind::ClusterDown) => Reason::ClusterDown,
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown) => Reason::Loading,
        ErrorKind::Server(ServerErrorKind::ReadOnly) => Reason::ReadOnly,
        _ => Reason::ChannelsNotSubscribed,
    }
}

/// The longest pause after a refusal. What heals by itself is asked about more often than what only a
/// person can mend.
pub(super) const fn longest_pause(reason: Reason) -> Duration {
    match reason {
        Reason::ClusterDown | Reason::Loading | Reason::ReadOnly => Duration::from_millis(250),
        _ => Duration::from_secs(2),
    }
}
