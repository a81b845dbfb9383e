//! The two readings of time that the core works with, taken once and passed along.
//!
//! Nothing in the core asks the operating system for the time: `now` is an argument, so that a
//! simulation can run hours of it in milliseconds.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One moment, on both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Monotonic time since the process started. Timers and ages use it.
    pub mono: Duration,
    /// Microseconds since the Unix epoch. Stamps on the wire and token expiry use it.
    pub unix_us: i64,
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Now {
    /// Reads both clocks.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    pub fn read() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { mono: START.elapsed(), unix_us: i64::try_from(unix.as_micros()).unwrap_or(i64::MAX) }
    }

    /// Milliseconds since the Unix epoch, the unit of every stamp in the protocol.
    pub const fn unix_ms(self) -> i64 {
        self.unix_us.div_euclid(1_000)
    }

    /// Whole seconds since the Unix epoch, the unit of token claims.
    pub const fn unix_secs(self) -> i64 {
        self.unix_us.div_euclid(1_000_000)
    }
}
