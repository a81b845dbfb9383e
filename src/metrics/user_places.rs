//! Metrics of the limit of sessions per user.

use super::Registry;
use metrics::Counter;

/// Counted by `upstream::user_places`.
pub struct UserPlaceMetrics {
    /// Sessions that got a place by the count of all replicas.
    pub granted: Counter,
    /// Sessions that got none.
    pub refused: Counter,
    /// Sessions that got one by the count of this replica alone, because Redis couldn't be asked.
    pub unchecked: Counter,
}

impl UserPlaceMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        let asked = |verdict| {
            let help = "Sessions that asked for a place of their user, by the verdict.";
            registry.counter("user_places_total", help, &[("verdict", verdict)])
        };
        Self { granted: asked("granted"), refused: asked("refused"), unchecked: asked("unchecked") }
    }
}
