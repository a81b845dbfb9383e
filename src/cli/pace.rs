//! Pacing: how many statements are due at a moment.
//!
//! Invariant: open-loop. What is due depends on the time alone and never on how fast the last ones went, so
//! that a slow receiver shows up as lateness and not as a lower rate.

use std::time::Duration;

/// So much lateness is caught up with; more, as after the machine slept, is forgotten.
const MAX_LATENESS: Duration = Duration::from_secs(1);

/// Hands out statements at a steady rate.
#[derive(Debug)]
pub struct Pace {
    per_second: f64,
    last: Duration,
    owed: f64,
}

impl Pace {
    /// So many per second from the moment zero on.
    pub const fn new(per_second: f64) -> Self {
        Self { per_second, last: Duration::ZERO, owed: 0.0 }
    }

    /// How many have become due since the last call. `now` counts from the start.
    pub fn due(&mut self, now: Duration) -> usize {
        let passed = now.saturating_sub(self.last).min(MAX_LATENESS);
        self.last = now;
        self.owed += passed.as_secs_f64() * self.per_second;
        let whole = self.owed.floor();
        self.owed -= whole;
        whole as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Pace};

    fn total(pace: &mut Pace, step: Duration, n_steps: u32) -> usize {
        (1..=n_steps).map(|n| pace.due(step * n)).sum()
    }

    #[test]
    fn the_rate_is_kept_whatever_the_steps() {
        for step_ms in [1, 7, 20, 250] {
            let n_steps = 7_000 / step_ms;
            let found = total(&mut Pace::new(3.0), Duration::from_millis(step_ms), n_steps as u32);
            let expected = (n_steps * step_ms * 3 / 1_000) as usize;
            assert!(found.abs_diff(expected) <= 1, "{found} instead of {expected} in steps of {step_ms} ms");
        }
    }

    #[test]
    fn a_late_call_gets_what_was_missed_up_to_a_second() {
        let mut pace = Pace::new(100.0);
        assert_eq!(pace.due(Duration::from_millis(500)), 50);
        assert_eq!(pace.due(Duration::from_secs(3_600)), 100);
        assert_eq!(pace.due(Duration::from_secs(3_600)), 0);
    }
}
