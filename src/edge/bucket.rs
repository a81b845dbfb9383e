//! A token bucket for the accept rate.

use std::time::Duration;

/// Holds at most one second's worth of tokens, so that a pause is followed by a burst of that size and no
/// more.
#[derive(Debug)]
pub struct Bucket {
    /// In millionths of a token, so that a microsecond is worth a whole number of them.
    micro_tokens: u64,
    filled_at: Duration,
}

const TOKEN: u64 = 1_000_000;

impl Bucket {
    /// A full bucket at the monotonic time `now`.
    pub fn new(per_second: u32, now: Duration) -> Self {
        Self { micro_tokens: u64::from(per_second) * TOKEN, filled_at: now }
    }

    /// Takes a token, if there is one at the rate of `per_second`.
    pub fn take(&mut self, per_second: u32, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.filled_at).as_micros().min(1_000_000) as u64;
        let per_second = u64::from(per_second);
        self.micro_tokens = (self.micro_tokens + elapsed * per_second).min(per_second * TOKEN);
        self.filled_at = now;
        let taken = self.micro_tokens >= TOKEN;
        if taken {
            self.micro_tokens -= TOKEN;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, rate: u32, from: Duration, step: Duration, n: u32) -> usize {
        (0..n).filter(|&i| bucket.take(rate, from + step * i)).count()
    }

    #[test]
    fn a_burst_is_one_second_long_and_refills_at_the_rate() {
        let mut bucket = Bucket::new(100, Duration::ZERO);
        assert_eq!(taken(&mut bucket, 100, Duration::ZERO, Duration::ZERO, 1_000), 100);
        // Ten attempts per token, half a second long.
        assert_eq!(taken(&mut bucket, 100, Duration::from_millis(1), Duration::from_millis(1), 500), 50);
        assert_eq!(taken(&mut bucket, 100, Duration::from_secs(3_600), Duration::ZERO, 1_000), 100);
        // Another rate holds at once, with what is left of the tokens.
        assert_eq!(taken(&mut bucket, 7, Duration::from_secs(7_200), Duration::ZERO, 1_000), 7);
    }

    #[test]
    fn a_slow_rate_is_kept_over_frequent_attempts() {
        let mut bucket = Bucket::new(1, Duration::ZERO);
        assert!(bucket.take(1, Duration::ZERO));
        assert_eq!(taken(&mut bucket, 1, Duration::from_micros(10), Duration::from_micros(10), 99_999), 0);
        assert!(bucket.take(1, Duration::from_secs(1)));
    }
}
