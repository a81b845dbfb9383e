//! When the statements of a feed are due.
//!
//! Invariant: the schedule is absolute. A statement that is late stays due, however late it is, and how
//! late the last ones were is known; the rate that was asked for never sinks quietly.
//!
//! Not here: the demo's pace, which forgets what it missed (`cli::pace`).

use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

/// How fast a feed publishes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    /// Statements per second.
    PerSecond(NonZeroU64),
    /// As fast as they are taken.
    Max,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(rate) => Ok(Self::PerSecond(rate)),
            Err(_) if text == "max" => Ok(Self::Max),
            Err(_) => Err("must be a whole number of quotes per second above 0, or max".into()),
        }
    }
}

/// Counts what was sent against what is due.
#[derive(Debug)]
pub struct Schedule {
    rate: Rate,
    n_sent: u64,
}

impl Schedule {
    /// Nothing was sent yet; the first statement is due at once.
    pub const fn new(rate: Rate) -> Self {
        Self { rate, n_sent: 0 }
    }

    /// How many statements are due at `elapsed` since the start, at most `most`.
    pub fn due(&self, elapsed: Duration, most: usize) -> usize {
        let Rate::PerSecond(rate) = self.rate else { return most };
        let scheduled = u128::from(rate.get()) * elapsed.as_nanos() / 1_000_000_000 + 1;
        usize::try_from(scheduled.saturating_sub(u128::from(self.n_sent))).unwrap_or(most).min(most)
    }

    /// Notes that `n` were sent.
    pub fn sent(&mut self, n: usize) {
        self.n_sent += n as u64;
    }

    /// When the next statement is due, since the start.
    pub fn next(&self) -> Duration {
        let Rate::PerSecond(rate) = self.rate else { return Duration::ZERO };
        let nanos = u128::from(self.n_sent) * 1_000_000_000 / u128::from(rate.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How late the next statement is.
    pub fn behind(&self, elapsed: Duration) -> Duration {
        if self.rate == Rate::Max { Duration::ZERO } else { elapsed.saturating_sub(self.next()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(per_second: u64) -> Schedule {
        Schedule::new(Rate::PerSecond(NonZeroU64::new(per_second).expect("not zero")))
    }

    #[test]
    fn what_is_late_stays_due() {
        let mut schedule = schedule(1_000);
        assert_eq!(schedule.due(Duration::ZERO, 500), 1);
        schedule.sent(1);
        assert_eq!(schedule.due(Duration::from_micros(999), 500), 0);
        assert_eq!(schedule.due(Duration::from_millis(1), 500), 1);
        assert_eq!(schedule.due(Duration::from_secs(3_600), 500), 500);
        schedule.sent(500);
        assert_eq!(schedule.next(), Duration::from_millis(501));
        assert_eq!(schedule.behind(Duration::from_millis(801)), Duration::from_millis(300));
        assert_eq!(schedule.due(Duration::from_millis(801), 500), 301);
    }

    #[test]
    fn the_rate_is_kept_exactly_over_a_day() {
        let mut schedule = schedule(3);
        schedule.sent(3 * 86_400);
        assert_eq!(schedule.next(), Duration::from_secs(86_400));
    }

    #[test]
    fn rates_are_read() {
        assert_eq!("max".parse(), Ok(Rate::Max));
        assert_eq!("450000".parse(), Ok(Rate::PerSecond(NonZeroU64::new(450_000).expect("not zero"))));
        for bad in ["", "0", "-1", "1.5", "fast"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }
}
