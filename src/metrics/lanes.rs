//! Metrics of delivery.

use super::Registry;

/// Counted by `lane` and `fanout`.
pub struct LaneMetrics {}

impl LaneMetrics {
    pub(super) fn register(_registry: &Registry<'_>) -> Self {
        Self {}
    }
}
