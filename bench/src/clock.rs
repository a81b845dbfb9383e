//! One clock for intended send times and receive times: microseconds since the Unix epoch, monotonic.
//!
//! The wall clock is read once and then carried on by the monotonic one, so that a step of the wall
//! clock during a run can't bend a latency.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

static START: LazyLock<(Instant, u64)> = LazyLock::new(|| {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), u64::try_from(unix.as_micros()).unwrap_or(u64::MAX))
});

/// Microseconds since the Unix epoch.
pub fn now_us() -> u64 {
    let (start, unix) = &*START;
    unix + start.elapsed().as_micros() as u64
}

/// How far the wall clock has drifted from this one since the start, in microseconds. Kernel receive
/// stamps are wall-clock time, so more than a little voids them.
pub fn drift_us() -> i64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    unix.as_micros() as i64 - now_us() as i64
}
