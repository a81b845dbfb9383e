//! Why a command failed, and what that calls for.

use crate::upstream::slots::NodeAddr;
use redis::RedisError;
use std::fmt;

/// What a failed command calls for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The node is there and will answer later.
    Retry,
    /// Somebody else may own the slot by now: look again, then retry.
    RefreshTopology,
    /// Trying again changes nothing until somebody acts.
    Fatal,
}

/// Kinds of failures; a closed set, because they label a metric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The node can't be connected to, or the connection broke.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// Every connection of the node's pool was in use for too long.
    PoolBusy,
    /// Nobody is known to own the slot.
    Unowned,
    /// Redirected more often than is followed.
    Redirected,
    /// TRYAGAIN: the slot is being moved and the command's keys are on both sides.
    TryAgain,
    /// LOADING: the node reads its data.
    Loading,
    /// CLUSTERDOWN, MASTERDOWN: the cluster has not made up its mind.
    ClusterDown,
    /// READONLY: the node is a primary no longer.
    ReadOnly,
    /// NOPERM, NOAUTH, WRONGPASS: the ACL user may not.
    NoPermission,
    /// WRONGTYPE: the key holds something else.
    WrongType,
    /// OOM: the node's memory is full.
    OutOfMemory,
    /// Anything else.
    Other,
}

impl Kind {
    /// Every kind, in the order of the metric's labels.
    pub const ALL: [Kind; 13] = [
        Kind::Unreachable,
        Kind::Timeout,
        Kind::PoolBusy,
        Kind::Unowned,
        Kind::Redirected,
        Kind::TryAgain,
        Kind::Loading,
        Kind::ClusterDown,
        Kind::ReadOnly,
        Kind::NoPermission,
        Kind::WrongType,
        Kind::OutOfMemory,
        Kind::Other,
    ];

    /// The value of the metric's `reason` label.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::PoolBusy => "pool_busy",
            Self::Unowned => "unowned",
            Self::Redirected => "redirected",
            Self::TryAgain => "try_again",
            Self::Loading => "loading",
            Self::ClusterDown => "cluster_down",
            Self::ReadOnly => "read_only",
            Self::NoPermission => "no_permission",
            Self::WrongType => "wrong_type",
            Self::OutOfMemory => "out_of_memory",
            Self::Other => "other",
        }
    }

    /// What it calls for.
    pub const fn class(self) -> Class {
        match self {
            Self::PoolBusy | Self::TryAgain | Self::Loading => Class::Retry,
            Self::Unreachable
            | Self::Timeout
            | Self::Unowned
            | Self::Redirected
            | Self::ClusterDown
            | Self::ReadOnly => Class::RefreshTopology,
            Self::NoPermission | Self::WrongType | Self::OutOfMemory | Self::Other => Class::Fatal,
        }
    }

    /// Whether the command may have been executed, or may still be: it was sent, and nobody answered.
    pub const fn is_in_doubt(self) -> bool {
        matches!(self, Self::Unreachable | Self::Timeout)
    }

    /// The kind of an error answer by its first word.
    pub fn of_code(code: &str) -> Self {
        match code {
            "MOVED" | "ASK" => Self::Redirected,
            "TRYAGAIN" => Self::TryAgain,
            "LOADING" => Self::Loading,
            "CLUSTERDOWN" | "MASTERDOWN" => Self::ClusterDown,
            "READONLY" => Self::ReadOnly,
            "NOPERM" | "NOAUTH" | "WRONGPASS" => Self::NoPermission,
            "WRONGTYPE" => Self::WrongType,
            "OOM" => Self::OutOfMemory,
            _ => Self::Other,
        }
    }

    /// The kind of the redis crate's error.
    pub fn of(error: &RedisError) -> Self {
        if error.kind() == redis::ErrorKind::AuthenticationFailed {
            return Self::NoPermission;
        }
        match error.code() {
            Some(code) => Self::of_code(code),
            None if error.is_timeout() => Self::Timeout,
            None if error.is_io_error() => Self::Unreachable,
            None => Self::Other,
        }
    }
}

/// A failed command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Why.
    pub kind: Kind,
    /// Where, if it got that far.
    pub node: Option<NodeAddr>,
    /// What the server or the operating system said. Not for browsers.
    pub text: String,
}

impl Failure {
    /// A failure at `node`.
    pub fn new(kind: Kind, node: &NodeAddr, text: impl Into<String>) -> Self {
        Self { kind, node: Some(node.clone()), text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Some(node) => write!(f, "{} at {node}: {}", self.kind.text(), self.text),
            None => write!(f, "{}: {}", self.kind.text(), self.text),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_classed_by_their_first_word() {
        for (answer, kind, class) in [
            ("MOVED 1 h:1", Kind::Redirected, Class::RefreshTopology),
            ("TRYAGAIN Multiple keys request", Kind::TryAgain, Class::Retry),
            ("LOADING Redis is loading", Kind::Loading, Class::Retry),
            ("CLUSTERDOWN The cluster is down", Kind::ClusterDown, Class::RefreshTopology),
            ("READONLY You can't write", Kind::ReadOnly, Class::RefreshTopology),
            ("NOPERM no", Kind::NoPermission, Class::Fatal),
            ("WRONGTYPE Operation", Kind::WrongType, Class::Fatal),
            ("OOM command not allowed", Kind::OutOfMemory, Class::Fatal),
            ("ERR unknown command", Kind::Other, Class::Fatal),
        ] {
            let parsed = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).expect("parses");
            let error = parsed.extract_error().expect_err("an error");
            assert_eq!(Kind::of(&error), kind, "{answer}");
            assert_eq!(Kind::of(&error).class(), class, "{answer}");
        }
    }

    #[test]
    fn io_errors_are_told_apart() {
        let of = |kind: std::io::ErrorKind| Kind::of(&RedisError::from(std::io::Error::from(kind)));
        assert_eq!(of(std::io::ErrorKind::BrokenPipe), Kind::Unreachable);
        assert_eq!(of(std::io::ErrorKind::TimedOut), Kind::Timeout);
    }
}
