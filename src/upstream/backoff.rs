//! Growing pauses between attempts, each with jitter, so that replicas that lost the same server don't
//! come back to it in step.

use std::time::Duration;

/// A sequence of pauses that doubles up to a cap.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses of about `first`, then twice that, and so on up to `cap`.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, next: first }
    }

    /// The next pause: between half of the present step and all of it.
    pub fn pause(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.cap);
        step.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// It worked; the next pause is a short one again.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_with_jitter_below() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(300));
        for step in [50, 100, 200, 300, 300] {
            let pause = backoff.pause().as_millis();
            assert!((step / 2..=step).contains(&pause), "{pause} of {step}");
        }
        backoff.reset();
        assert!(backoff.pause().as_millis() <= 50);
    }
}
