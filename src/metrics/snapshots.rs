//! Metrics of reading price keys.

use super::Registry;
use crate::upstream::payload::Unusable;
use metrics::{Counter, Histogram};

/// Counted by `upstream::snapshot`.
pub struct SnapshotMetrics {
    /// Keys that held a quote.
    pub quotes: Counter,
    /// Keys that don't exist.
    pub absent: Counter,
    /// Reads that failed.
    pub failed: Counter,
    /// Keys of another type than string.
    pub wrong_type: Counter,
    unusable: [Counter; Unusable::ALL.len()],
    /// Time of a whole read, all nodes.
    pub read_seconds: Histogram,
}

impl SnapshotMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        let keys = |result| {
            const HELP: &str = "Price keys that were read, by what became of them.";
            registry.counter("snapshot_keys_total", HELP, &[("result", result)])
        };
        let unusable = |reason| {
            const HELP: &str = "Price keys that hold no usable price, by reason.";
            registry.counter("snapshot_keys_unusable_total", HELP, &[("reason", reason)])
        };
        Self {
            quotes: keys("quote"),
            absent: keys("absent"),
            failed: keys("failed"),
            wrong_type: unusable("wrong_type"),
            unusable: Unusable::ALL.map(|reason| unusable(reason.label())),
            read_seconds: registry.histogram("snapshot_read_seconds", "Time of one read of price keys.", &[]),
        }
    }

    /// Price keys that hold no usable price, by reason.
    pub fn unusable(&self, reason: Unusable) -> &Counter {
        &self.unusable[reason as usize]
    }
}
