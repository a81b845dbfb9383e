//! Where payloads go: parsed, judged by the fan-out, counted.
//!
//! It runs inside the push closure of a subscription connection, so that a message is done with before
//! the next one is read and nothing can pile up behind it.
//!
//! Not here: which messages are payloads (`wire`), how they are read (`payload`).

use super::payload::{self, Unusable};
use crate::clock::Now;
use crate::fanout::{Fanout, Offered};
use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Between two log lines about unusable payloads, in milliseconds. A publisher that sends nothing else
/// would fill the disk.
const COMPLAIN_EVERY_MS: u64 = 10_000;

/// The way from a connection into the fan-out.
pub struct Sink {
    fanout: Arc<Fanout>,
    metrics: Arc<Metrics>,
    max_bytes: usize,
    /// When the next complaint may be logged, monotonic milliseconds.
    complain_at: AtomicU64,
}

impl Sink {
    /// Offers to `fanout` what is at most `max_bytes` long.
    pub const fn new(fanout: Arc<Fanout>, metrics: Arc<Metrics>, max_bytes: usize) -> Self {
        Self { fanout, metrics, max_bytes, complain_at: AtomicU64::new(0) }
    }

    /// Takes one payload.
    pub fn take(&self, bytes: Vec<u8>) {
        let now = Now::read();
        let n_bytes = bytes.len();
        let metrics = &self.metrics.upstream;
        metrics.messages.increment(1);
        metrics.message_bytes.increment(n_bytes as u64);
        match payload::live(bytes, self.max_bytes, now.unix_us).map(|quote| self.fanout.offer(quote, now)) {
            Ok(Offered::Accepted) => metrics.accepted.increment(1),
            Ok(Offered::Duplicate) => metrics.duplicates.increment(1),
            Ok(Offered::Older) => metrics.older.increment(1),
            Ok(Offered::TableFull) => metrics.table_full.increment(1),
            Err(reason) => {
                metrics.unusable(reason).increment(1);
                self.complain(reason, n_bytes, now);
            }
        }
    }

    fn complain(&self, reason: Unusable, n_bytes: usize, now: Now) {
        let ms = now.mono.as_millis() as u64;
        let may = |at| (at <= ms).then_some(ms + COMPLAIN_EVERY_MS);
        if self.complain_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, may).is_ok() {
            tracing::warn!(%reason, payload.bytes = n_bytes, "a payload can't be used; the metric counts further ones");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::upstream::feed::Feed;

    #[test]
    fn each_payload_is_counted_once_by_what_became_of_it() {
        let feed = Arc::new(Feed::new(&config::Redis::default(), "r1"));
        let fanout = Arc::new(Fanout::new(Vec::new(), feed, 64));
        let metrics = Arc::new(Metrics::new("t"));
        let sink = Sink::new(fanout, Arc::clone(&metrics), 100);
        let messages = [
            r#"{"stockId":1,"ts":2,"close":5}"#,
            r#"{"stockId":1,"ts":2,"close":5}"#,
            r#"{"stockId":1,"ts":1,"close":4}"#,
            r#"{"stockId":1,"ts":3,"close":6}"#,
            "{",
        ];
        for message in messages {
            sink.take(message.into());
        }
        sink.take(vec![b' '; 101]);
        let text = metrics.render();
        for line in [
            "t_upstream_messages_total 6",
            "t_upstream_quotes_accepted_total 2",
            "t_upstream_quotes_duplicate_total 1",
            "t_upstream_quotes_older_total 1",
            "t_upstream_payloads_dropped_total{reason=\"not_json\"} 1",
            "t_upstream_payloads_dropped_total{reason=\"too_large\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
