//! Metrics of commands to Redis: routing, snapshots, watchers, publishing.

use super::Registry;
use crate::upstream::commands::failure::Kind;
use metrics::Counter;

/// Counted by `upstream::commands` and what sends commands through it.
pub struct CommandMetrics {
    failures: [Counter; Kind::ALL.len()],
    /// Round trips: pipelines that were sent to a node.
    pub pipelines: Counter,
    /// MOVED answers that were followed.
    pub moved: Counter,
    /// ASK answers that were followed.
    pub asked: Counter,
    /// Batches sent again because their connection had been closed while idle.
    pub quiet_retries: Counter,
}

impl CommandMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        const REDIRECTS: &str = "Redirects that were followed.";
        Self {
            failures: Kind::ALL.map(|kind| {
                let labels = [("reason", kind.text())];
                registry.counter("redis_commands_failed_total", "Commands that failed for good.", &labels)
            }),
            pipelines: registry.counter(
                "redis_pipelines_total",
                "Pipelines of commands sent to a node.",
                &[],
            ),
            moved: registry.counter("redis_redirects_total", REDIRECTS, &[("kind", "moved")]),
            asked: registry.counter("redis_redirects_total", REDIRECTS, &[("kind", "ask")]),
            quiet_retries: registry.counter(
                "redis_quiet_retries_total",
                "Batches repeated on a fresh connection because a pooled one had been closed.",
                &[],
            ),
        }
    }

    /// Commands that failed for good, by reason.
    pub fn failure(&self, kind: Kind) -> &Counter {
        &self.failures[kind as usize]
    }
}
