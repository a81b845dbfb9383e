//! How long quotes take from stamp to stamp, before they reach a lane.
//!
//! Differences that can't be true are counted apart and never clipped into a bucket: a negative one says
//! that two clocks disagree, a huge one that a stamp isn't a time.

use crate::clock::Now;
use crate::lane::books::{STAGE_BOUNDS_US, Stage};
use crate::quote::{Origin, Quote};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Longer than this is no latency but a wrong stamp.
const ABSURD_US: i64 = 3_600_000_000;

/// One stage, counted from several threads.
#[derive(Debug, Default)]
pub struct StageCounter {
    buckets: [AtomicU64; STAGE_BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
    negative: AtomicU64,
    absurd: AtomicU64,
}

impl StageCounter {
    fn record(&self, us: i64) {
        match u64::try_from(us) {
            Err(_) => self.negative.fetch_add(1, Relaxed),
            Ok(_) if us > ABSURD_US => self.absurd.fetch_add(1, Relaxed),
            Ok(us) => {
                self.sum_us.fetch_add(us, Relaxed);
                self.buckets[Stage::bucket(Duration::from_micros(us))].fetch_add(1, Relaxed)
            }
        };
    }

    /// A copy of the buckets.
    pub fn read(&self) -> Stage {
        let mut stage = Stage { sum_us: self.sum_us.load(Relaxed), ..Stage::default() };
        for (count, cell) in stage.buckets.iter_mut().zip(&self.buckets) {
            *count = cell.load(Relaxed);
        }
        stage
    }

    /// Differences below zero, and those too large to be true.
    pub fn anomalies(&self) -> (u64, u64) {
        (self.negative.load(Relaxed), self.absurd.load(Relaxed))
    }
}

/// The stages that end in the fan-out.
#[derive(Debug, Default)]
pub struct Stages {
    /// From the publisher's stamp to the arrival here. Compares two machines' clocks.
    pub published_to_arrived: StageCounter,
    /// From the arrival to the encoding.
    pub arrived_to_emitted: StageCounter,
}

impl Stages {
    /// Counts a live quote that is encoded at `now`.
    pub fn record(&self, quote: &Quote, now: Now) {
        if quote.origin != Origin::Live {
            return;
        }
        if let Some(ms) = quote.published_at {
            self.published_to_arrived.record(quote.arrived_us.saturating_sub(ms.saturating_mul(1_000)));
        }
        self.arrived_to_emitted.record(now.unix_us - quote.arrived_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_differences_are_counted_and_not_clipped() {
        let stage = StageCounter::default();
        for us in [-1, 0, 50, 51, ABSURD_US, ABSURD_US + 1] {
            stage.record(us);
        }
        assert_eq!(stage.anomalies(), (1, 1));
        let read = stage.read();
        assert_eq!((read.buckets[0], read.buckets[1]), (2, 1));
        assert_eq!(read.buckets.iter().sum::<u64>(), 4);
    }
}
