//! Metrics of the watcher registry.

use super::Registry;
use metrics::{Counter, Gauge};

/// Counted by `upstream::watchers`.
pub struct WatcherMetrics {
    /// Members that this replica has in Redis, or is about to have or remove.
    pub members: Gauge,
    /// Changes of one instrument that were written.
    pub written: Counter,
    /// Changes of one instrument that could not be written at that time.
    pub failed: Counter,
    /// Instruments that were renewed.
    pub renewed: Counter,
    /// Members whose removal was forgotten, because too many waited to be written.
    pub forgotten: Counter,
    /// Replicas that died and were cleaned up after by this one.
    pub dead_replicas: Counter,
    /// Members of dead replicas that were removed by this one.
    pub leftovers: Counter,
}

impl WatcherMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        let counter = |name, help| registry.counter(name, help, &[]);
        let writes = |result| {
            let help = "Changes of an instrument's watchers, by what became of writing them.";
            registry.counter("watcher_writes_total", help, &[("result", result)])
        };
        Self {
            members: registry.gauge("watcher_members", "Members of this replica in watcher keys.", &[]),
            written: writes("written"),
            failed: writes("failed"),
            renewed: counter("watcher_renewals_total", "Instruments whose watchers were renewed."),
            forgotten: counter(
                "watcher_removals_forgotten_total",
                "Removals of members that were forgotten.",
            ),
            dead_replicas: counter("watcher_dead_replicas_total", "Dead replicas cleaned up after."),
            leftovers: counter("watcher_leftovers_removed_total", "Members of dead replicas removed."),
        }
    }
}
