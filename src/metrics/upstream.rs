//! Metrics of the Redis side.

use super::Registry;

/// Counted by `upstream`.
pub struct UpstreamMetrics {}

impl UpstreamMetrics {
    pub(super) fn register(_registry: &Registry<'_>) -> Self {
        Self {}
    }
}
