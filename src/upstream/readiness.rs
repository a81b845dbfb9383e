//! Why the Redis side can't be relied on at this moment: a closed set of reasons, each with those that
//! it is about.
//!
//! Invariant: whoever sets a reason clears it, for the same subject. Subjects are nodes and a few fixed
//! words, so that the set is bounded.
//!
//! Not here: how a reason becomes an answer of `/readyz` (`edge`).

use metrics::Gauge;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A kind of trouble.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// A node that owns a channel can't be connected to.
    NodeUnreachable,
    /// A node refuses the user or the password.
    AuthFailed,
    /// A wanted channel isn't subscribed.
    ChannelsNotSubscribed,
    /// The ACL refuses a channel.
    ChannelDenied,
    /// A node loads its data.
    Loading,
    /// The cluster calls itself down, or nobody owns the slot of a channel.
    ClusterDown,
    /// The server is a replica: it takes no writes, and may be about to be left behind.
    ReadOnly,
    /// Nothing came through a subscription within the probe's deadline.
    ProbeSilent,
    /// Probes can't be sent, so that delivery isn't proven.
    ProbeFailing,
    /// Nobody says who owns which slot, or who the primary is.
    TopologyUnknown,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::NodeUnreachable,
        Self::AuthFailed,
        Self::ChannelsNotSubscribed,
        Self::ChannelDenied,
        Self::Loading,
        Self::ClusterDown,
        Self::ReadOnly,
        Self::ProbeSilent,
        Self::ProbeFailing,
        Self::TopologyUnknown,
    ];

    /// Its name, in `/readyz` and as a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NodeUnreachable => "node_unreachable",
            Self::AuthFailed => "auth_failed",
            Self::ChannelsNotSubscribed => "channels_not_subscribed",
            Self::ChannelDenied => "channel_denied",
            Self::Loading => "loading",
            Self::ClusterDown => "cluster_down",
            Self::ReadOnly => "read_only",
            Self::ProbeSilent => "probe_silent",
            Self::ProbeFailing => "probe_failing",
            Self::TopologyUnknown => "topology_unknown",
        }
    }
}

/// The reasons that hold now.
pub struct Readiness {
    current: Mutex<BTreeMap<(Reason, String), String>>,
    gauges: [Gauge; Reason::ALL.len()],
}

impl Readiness {
    /// No reason holds. `gauges` show the number of subjects per reason, in the order of [`Reason::ALL`].
    pub fn new(gauges: [Gauge; Reason::ALL.len()]) -> Self {
        Self { current: Mutex::default(), gauges }
    }

    /// `reason` holds for `subject`, as `detail` explains to an operator. Gives whether that is news.
    pub fn set(&self, reason: Reason, subject: &str, detail: String) -> bool {
        let mut current = self.current();
        let news = current.insert((reason, subject.to_owned()), detail).is_none();
        self.show(&current, reason);
        news
    }

    /// `reason` holds no more for `subject`. Gives whether it did.
    pub fn clear(&self, reason: Reason, subject: &str) -> bool {
        let mut current = self.current();
        let held = current.remove(&(reason, subject.to_owned())).is_some();
        self.show(&current, reason);
        held
    }

    /// No reason holds any more for `subject`, which is no concern any more.
    pub fn clear_all(&self, subject: &str) {
        for reason in Reason::ALL {
            self.clear(reason, subject);
        }
    }

    /// Each reason that holds, with whom and why. Empty while all is well.
    pub fn reasons(&self) -> Vec<(&'static str, String)> {
        let describe = |((reason, subject), detail): (&(Reason, String), &String)| {
            (reason.label(), format!("{subject}: {detail}"))
        };
        self.current().iter().map(describe).collect()
    }

    fn show(&self, current: &BTreeMap<(Reason, String), String>, reason: Reason) {
        let n = current.keys().filter(|(held, _)| *held == reason).count();
        self.gauges[reason as usize].set(n as f64);
    }

    fn current(&self) -> MutexGuard<'_, BTreeMap<(Reason, String), String>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_holds_until_it_is_cleared_for_each_subject() {
        let readiness = Readiness::new(Reason::ALL.map(|_| Gauge::noop()));
        assert!(readiness.set(Reason::Loading, "a:1", "loads".into()));
        assert!(!readiness.set(Reason::Loading, "a:1", "still loads".into()));
        assert!(readiness.set(Reason::Loading, "b:1", "loads".into()));
        assert!(readiness.clear(Reason::Loading, "b:1"));
        assert_eq!(readiness.reasons(), [("loading", "a:1: still loads".to_owned())]);
        readiness.clear_all("a:1");
        assert!(readiness.reasons().is_empty());
    }

    #[test]
    fn the_order_of_all_is_that_of_the_gauges() {
        for (i, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
        }
    }
}
