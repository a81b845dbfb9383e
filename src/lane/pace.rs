//! `max_rate_hz`: at most so many updates per second and subscription, and then the newest.
//!
//! A quote that comes too early is held: it stays a bit in the outbox, newer ones replace it, and one ordered
//! set per lane says whose turn is next. There is no timer per subscription, and a subscription without a
//! limit costs nothing.

use super::delivery::Key;
use std::collections::BTreeSet;
use std::time::Duration;

/// Slower than once a minute is no update rate but a forgotten subscription.
const LONGEST: Duration = Duration::from_secs(60);

/// The pace of one subscription.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Between two updates; zero is no limit.
    interval: Duration,
    /// When the last one took its turn, on the monotonic clock.
    last: Option<Duration>,
}

impl Pace {
    /// At most `hz` updates per second; `None` for any number.
    pub fn new(hz: Option<f64>) -> Self {
        let interval = hz.map_or(Duration::ZERO, |hz| {
            Duration::try_from_secs_f64(1.0 / hz).map_or(LONGEST, |interval| interval.min(LONGEST))
        });
        Self { interval, last: None }
    }

    /// Whether there is a limit.
    pub fn is_limited(&self) -> bool {
        !self.interval.is_zero()
    }

    /// The same subscription at another pace. What went out before counts.
    pub fn changed_to(&self, new: Self) -> Self {
        Self { last: self.last, ..new }
    }

    /// Takes the turn at `now`, or gives when it will be.
    pub fn take_turn(&mut self, now: Duration) -> Result<(), Duration> {
        let next_at = self.next_at();
        if now < next_at {
            return Err(next_at);
        }
        self.last = Some(now);
        Ok(())
    }

    fn next_at(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| last + self.interval)
    }
}

/// Held subscriptions in the order of their turns. Each is in it at most once.
#[derive(Default, Debug)]
pub struct Turns(BTreeSet<(Duration, Key, u16)>);

impl Turns {
    /// Waits for the turn at `at`.
    pub fn hold(&mut self, at: Duration, key: Key, sub: u16) {
        self.0.insert((at, key, sub));
    }

    /// No longer waits.
    pub fn release(&mut self, pace: &Pace, key: Key, sub: u16) {
        self.0.remove(&(pace.next_at(), key, sub));
    }

    /// The next whose turn has come.
    pub fn pop(&mut self, now: Duration) -> Option<(Key, u16)> {
        let &(at, ..) = self.0.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first().map(|(_, key, sub)| (key, sub))
    }

    /// When the next turn comes.
    pub fn next(&self) -> Option<Duration> {
        self.0.first().map(|&(at, ..)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_an_interval_apart() {
        let mut pace = Pace::new(Some(2.0));
        let ms = Duration::from_millis;
        assert_eq!(pace.take_turn(ms(1_000)), Ok(()));
        assert_eq!(pace.take_turn(ms(1_200)), Err(ms(1_500)));
        assert_eq!(pace.take_turn(ms(1_500)), Ok(()));
        let mut faster = pace.changed_to(Pace::new(Some(10.0)));
        assert_eq!(faster.take_turn(ms(1_550)), Err(ms(1_600)));
        let mut free = faster.changed_to(Pace::new(None));
        assert_eq!((free.take_turn(ms(1_550)), free.is_limited()), (Ok(()), false));
    }

    #[test]
    fn absurd_rates_are_bounded() {
        assert_eq!(Pace::new(Some(1e-300)).interval, LONGEST);
        assert!(Pace::new(Some(1e300)).interval < Duration::from_nanos(1));
    }
}
