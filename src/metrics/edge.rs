//! Metrics of the browser side.

use super::Registry;

/// Counted by `edge`.
pub struct EdgeMetrics {}

impl EdgeMetrics {
    pub(super) fn register(_registry: &Registry<'_>) -> Self {
        Self {}
    }
}
