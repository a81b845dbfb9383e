//! Metrics of lossless streams.

use super::Registry;
use crate::protocol::close::CloseReason;
use metrics::{Counter, Gauge, Histogram};

/// Why an entry didn't reach a session, or is no longer what the session got it from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// It was trimmed before the session got it.
    Trimmed,
    /// It is larger than what is delivered.
    TooLarge,
    /// The session got it, and the source lost it.
    Failover,
}

impl Missing {
    const ALL: [Self; 3] = [Self::Trimmed, Self::TooLarge, Self::Failover];

    const fn text(self) -> &'static str {
        match self {
            Self::Trimmed => "trimmed",
            Self::TooLarge => "too_large",
            Self::Failover => "failover",
        }
    }
}

/// Counted by `stream` and those who read for it.
pub struct StreamMetrics {
    /// Streams that some session watches.
    pub watched: Gauge,
    /// Entries that the readers brought.
    pub entries_read: Counter,
    /// Entries that were written to sessions.
    pub entries_delivered: Counter,
    /// Reads of what follows the newest entries.
    pub reads: Counter,
    /// Reads of older entries for single sessions.
    pub pages: Counter,
    /// Reads that failed.
    pub reads_failed: Counter,
    /// From an entry's own time to its arrival here; the latest of each read.
    pub source_lag: Histogram,
    /// Sessions that were told of a silence.
    pub stalled: Counter,
    sessions: [Gauge; 2],
    opened: [Counter; 2],
    closed: [Counter; CloseReason::ALL.len()],
    gaps: [Counter; Missing::ALL.len()],
    lost: [Counter; Missing::ALL.len()],
}

const TRANSPORTS: [&str; 2] = ["ws", "sse"];

impl StreamMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        let counter = |name, help| registry.counter(name, help, &[]);
        Self {
            watched: registry.gauge("streams_watched", "Streams that some session watches.", &[]),
            entries_read: counter("stream_entries_read_total", "Entries that the readers brought."),
            entries_delivered: counter(
                "stream_entries_delivered_total",
                "Entries that were written to sessions.",
            ),
            reads: counter("stream_reads_total", "Reads of what follows the newest entries."),
            pages: counter("stream_pages_total", "Reads of older entries for single sessions."),
            reads_failed: counter("stream_reads_failed_total", "Reads of streams that failed."),
            source_lag: registry.histogram(
                "stream_source_lag_seconds",
                "From the time in an entry's id to its arrival here, the latest of each read.",
                &[],
            ),
            stalled: counter("stream_stalled_total", "Sessions that were told of a silence."),
            sessions: TRANSPORTS.map(|transport| {
                registry.gauge(
                    "stream_sessions",
                    "Sessions that watch a stream.",
                    &[("transport", transport)],
                )
            }),
            opened: TRANSPORTS.map(|transport| {
                const HELP: &str = "Sessions of streams that were opened.";
                registry.counter("stream_sessions_opened_total", HELP, &[("transport", transport)])
            }),
            closed: CloseReason::ALL.map(|reason| {
                const HELP: &str = "Sessions of streams that ended.";
                registry.counter("stream_sessions_closed_total", HELP, &[("reason", reason.text())])
            }),
            gaps: Missing::ALL.map(|reason| {
                const HELP: &str = "Times that a session was told that entries are missing.";
                registry.counter("stream_gaps_total", HELP, &[("reason", reason.text())])
            }),
            lost: Missing::ALL.map(|reason| {
                const HELP: &str = "Entries that are missing, as far as they can be counted.";
                registry.counter("stream_entries_lost_total", HELP, &[("reason", reason.text())])
            }),
        }
    }

    /// Counts a session for as long as what it gives lives.
    pub fn opened(&self, is_ws: bool) -> OpenSession {
        let transport = usize::from(!is_ws);
        self.opened[transport].increment(1);
        self.sessions[transport].increment(1.0);
        OpenSession(self.sessions[transport].clone())
    }

    /// Counts an end.
    pub fn closed(&self, reason: CloseReason) {
        self.closed[reason as usize].increment(1);
    }

    /// Counts that a session was told of missing entries; `n` is 0 where their number isn't known.
    pub fn missing(&self, reason: Missing, n: u64) {
        self.gaps[reason as usize].increment(1);
        self.lost[reason as usize].increment(n);
    }
}

/// A session that is counted.
pub struct OpenSession(Gauge);

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
