//! What the load generator counts: latency histograms, and each version's fate.
//!
//! Delivered, conflated and lost are told apart by versions alone. A version between two that arrived
//! was conflated; one after the last that arrived is lost; the same again is a duplicate; a lower one
//! went backwards.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest latency that is told apart, in microseconds.
const MAX_US: u64 = 120_000_000;

/// A histogram of microseconds from 1 µs to two minutes with three digits.
#[derive(Clone)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, MAX_US, 3).expect("the bounds are constants and valid"))
    }
}

/// A histogram's summary, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many values.
    pub n: u64,
    /// Half of the values are at most this.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

impl Latency {
    /// Takes a value in.
    pub fn record(&mut self, us: u64) {
        self.0.record(us.clamp(1, MAX_US)).expect("the value was clamped to the bounds");
    }

    /// Takes another histogram in.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The usual percentiles.
    pub fn percentiles(&self) -> Percentiles {
        let at = |p: f64| if self.0.is_empty() { 0.0 } else { self.0.value_at_quantile(p) as f64 / 1_000.0 };
        Percentiles {
            n: self.0.len(),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: if self.0.is_empty() { 0.0 } else { self.0.max() as f64 / 1_000.0 },
        }
    }
}

/// Counts and histograms of one load-generating thread, and their sum.
#[derive(Clone, Default)]
pub struct Tally {
    /// Live events received, whenever they were sent.
    pub delivered: u64,
    /// Versions that a newer one replaced before they were sent to a session.
    pub conflated: u64,
    /// The same version again.
    pub duplicates: u64,
    /// A version lower than one seen before.
    pub backwards: u64,
    /// Initial events.
    pub snapshots: u64,
    /// Events of instruments that the session doesn't watch.
    pub strangers: u64,
    /// Live events whose intended time lies in the measured window.
    pub fresh_in_window: u64,
    /// Versions of the window that were conflated.
    pub conflated_in_window: u64,
    /// Intended time to receipt, of the window.
    pub latency: Latency,
    /// Intended time of the oldest version that an event replaces, to its receipt: how long a browser
    /// was shown something overtaken. Conflation can't hide in it.
    pub staleness: Latency,
    /// Kernel receive stamp to the load generator's look at the event, sampled.
    pub own_lag: Latency,
    /// Publisher's stamp to the gateway's arrival stamp, in whole milliseconds, sampled.
    pub stage_arrive: Latency,
    /// The gateway's encoding to receipt, in whole milliseconds, sampled.
    pub stage_deliver: Latency,
    /// TCP connect to the end of the response's head.
    pub handshake: Latency,
    /// TCP connect to the last first price.
    pub first_price: Latency,
    /// TCP connect to the last token of a stream.
    pub completion: Latency,
    /// Connections that came to their planned end.
    pub completed: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Reads that gave data.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Heartbeats answered.
    pub pings: u64,
    /// Attempts answered with 503, which are made again.
    pub put_off: u64,
    /// Sessions that were live once.
    pub connected: u64,
    /// Ends of sessions that this side didn't cause, by what was said.
    pub ends: BTreeMap<String, u64>,
}

impl Tally {
    /// Takes another thread's counts in.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.delivered, other.delivered),
            (&mut self.conflated, other.conflated),
            (&mut self.duplicates, other.duplicates),
            (&mut self.backwards, other.backwards),
            (&mut self.snapshots, other.snapshots),
            (&mut self.strangers, other.strangers),
            (&mut self.fresh_in_window, other.fresh_in_window),
            (&mut self.conflated_in_window, other.conflated_in_window),
            (&mut self.completed, other.completed),
            (&mut self.sent_bytes, other.sent_bytes),
            (&mut self.reads, other.reads),
            (&mut self.bytes, other.bytes),
            (&mut self.pings, other.pings),
            (&mut self.put_off, other.put_off),
            (&mut self.connected, other.connected),
        ] {
            *mine += theirs;
        }
        for (mine, theirs) in [
            (&mut self.latency, &other.latency),
            (&mut self.staleness, &other.staleness),
            (&mut self.own_lag, &other.own_lag),
            (&mut self.stage_arrive, &other.stage_arrive),
            (&mut self.stage_deliver, &other.stage_deliver),
            (&mut self.handshake, &other.handshake),
            (&mut self.first_price, &other.first_price),
            (&mut self.completion, &other.completion),
        ] {
            mine.add(theirs);
        }
        for (reason, n) in &other.ends {
            *self.ends.entry(reason.clone()).or_default() += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_histogram_keeps_long_and_short_values() {
        let mut latency = Latency::default();
        for us in [0, 50, 1_000, 1_000_000, u64::MAX] {
            latency.record(us);
        }
        let percentiles = latency.percentiles();
        assert_eq!(percentiles.n, 5);
        assert!((percentiles.p50 - 1.0).abs() < 0.01, "{percentiles:?}");
        assert!(percentiles.max >= 119_000.0, "{percentiles:?}");
    }
}
