//! Metrics of the live stream from Redis.

use super::Registry;
use crate::upstream::migrate::Standing;
use crate::upstream::payload::Unusable;
use crate::upstream::readiness::Reason;
use metrics::{Counter, Gauge, Histogram};

/// Counted by `upstream`, except for its commands.
pub struct UpstreamMetrics {
    /// Messages received from Pub/Sub, probes not among them.
    pub messages: Counter,
    /// Bytes of their payloads.
    pub message_bytes: Counter,
    /// Quotes that were the newest of their instrument.
    pub accepted: Counter,
    /// Quotes that said what was known already.
    pub duplicates: Counter,
    /// Quotes that were overtaken.
    pub older: Counter,
    /// Quotes of instruments for which there is no room.
    pub table_full: Counter,
    unusable: [Counter; Unusable::ALL.len()],
    /// Subscription connections that were lost.
    pub connections_lost: Counter,
    /// Attempts to open a subscription connection that failed.
    pub connects_failed: Counter,
    /// Subscription connections that are open.
    pub connections: Gauge,
    /// Channels that came back after they were lost.
    pub resubscribes: Counter,
    /// Channels that are wanted.
    pub channels_wanted: Gauge,
    /// Channels among them whose stream is whole.
    pub channels_live: Gauge,
    /// Polls of who owns which slot.
    pub topology_polls: Counter,
    /// Polls that ended with another table than before.
    pub topology_changes: Counter,
    /// From publishing a probe until it comes back through the subscription.
    pub probe_seconds: Histogram,
    /// Probes that didn't come back in time.
    pub probes_lost: Counter,
    not_ready: [Gauge; Reason::ALL.len()],
    schema: [Gauge; Standing::LABELS.len()],
}

impl UpstreamMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        let counter = |name, help| registry.counter(name, help, &[]);
        let gauge = |name, help| registry.gauge(name, help, &[]);
        let dropped = |reason| {
            let help = "Payloads that could not be used, by reason.";
            registry.counter("upstream_payloads_dropped_total", help, &[("reason", reason)])
        };
        Self {
            messages: counter("upstream_messages_total", "Messages received from Pub/Sub."),
            message_bytes: counter("upstream_message_bytes_total", "Bytes of received payloads."),
            accepted: counter("upstream_quotes_accepted_total", "Quotes that were the newest known."),
            duplicates: counter("upstream_quotes_duplicate_total", "Quotes that were known already."),
            older: counter("upstream_quotes_older_total", "Quotes that a newer one had overtaken."),
            table_full: dropped("table_full"),
            unusable: Unusable::ALL.map(|reason| dropped(reason.label())),
            connections_lost: counter(
                "upstream_connections_lost_total",
                "Subscription connections that were lost or given up.",
            ),
            connects_failed: counter(
                "upstream_connects_failed_total",
                "Attempts to open a subscription connection that failed.",
            ),
            connections: gauge("upstream_connections", "Open subscription connections."),
            resubscribes: counter(
                "upstream_resubscribes_total",
                "Channels that were lost and are subscribed again.",
            ),
            channels_wanted: gauge("upstream_channels_wanted", "Channels that should be subscribed."),
            channels_live: gauge("upstream_channels_live", "Channels whose stream is whole."),
            topology_polls: counter("upstream_topology_polls_total", "Polls of who owns which slot."),
            topology_changes: counter(
                "upstream_topology_changes_total",
                "Polls that found another owner of some slot.",
            ),
            probe_seconds: registry.histogram(
                "upstream_probe_seconds",
                "From publishing a probe until it came back through the subscription.",
                &[],
            ),
            probes_lost: counter("upstream_probes_lost_total", "Probes that did not come back in time."),
            not_ready: Reason::ALL.map(|reason| {
                let help = "For how many nodes or parts a reason not to be ready holds.";
                registry.gauge("upstream_not_ready", help, &[("reason", reason.label())])
            }),
            schema: Standing::LABELS.map(|standing| {
                let help = "Primaries, by how their functions stand to those that this program knows.";
                registry.gauge("schema_primaries", help, &[("standing", standing)])
            }),
        }
    }

    /// Payloads dropped for `reason`.
    pub fn unusable(&self, reason: Unusable) -> &Counter {
        &self.unusable[reason as usize]
    }

    /// The gauges of [`Reason`], in the order of [`Reason::ALL`].
    pub fn not_ready(&self) -> [Gauge; Reason::ALL.len()] {
        self.not_ready.clone()
    }

    /// How the functions of every primary stand; `None` for one that has no functions.
    pub fn set_schema<'a>(&self, standings: impl Iterator<Item = Option<&'a Standing>> + Clone) {
        for (label, gauge) in Standing::LABELS.iter().zip(&self.schema) {
            let n = standings.clone().filter(|&standing| Standing::label_of(standing) == *label).count();
            gauge.set(n as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;
    use crate::upstream::payload::Unusable;

    #[test]
    fn every_reason_is_there_at_zero_and_counts_under_its_own_name() {
        let metrics = Metrics::new("t");
        for reason in Unusable::ALL {
            let line =
                |n| format!("t_upstream_payloads_dropped_total{{reason=\"{}\"}} {n}\n", reason.label());
            assert!(metrics.render().contains(&line(0)));
            metrics.upstream.unusable(reason).increment(1);
            assert!(metrics.render().contains(&line(1)));
        }
    }
}
