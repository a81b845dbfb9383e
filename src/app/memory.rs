//! Gives memory back that a storm of connections left behind.
//!
//! What HTTP, tokens and pipelines need for a moment lies between what sessions keep, and glibc returns only the
//! end of a heap by itself. With 10,000 sessions that came at once it was a fifth of all memory: 1 of 4.8 KiB each.
//!
//! Where the allocator isn't glibc's nothing is done.

use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_secs(1);

/// Sessions that came or went before it is worth the walk over the heaps, which takes their locks for some
/// milliseconds.
const MANY: u64 = 1_000;

/// When so few came or went within a period, the storm is over.
const FEW: u64 = 50;

/// Looks at the number of sessions until `stop`.
pub async fn run(n_sessions: impl Fn() -> u64, stop: CancellationToken) {
    let mut storm = Storm::default();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if storm.is_over(n_sessions())
            && stop.run_until_cancelled(tokio::task::spawn_blocking(trim)).await.is_none()
        {
            return;
        }
    }
}

/// What the number of sessions says about storms.
#[derive(Default, Debug)]
struct Storm {
    before: u64,
    n_moved: u64,
}

impl Storm {
    /// Whether a storm ended within the period that ended with `n` sessions.
    fn is_over(&mut self, n: u64) -> bool {
        let moved = n.abs_diff(std::mem::replace(&mut self.before, n));
        self.n_moved += moved;
        let over = moved < FEW && self.n_moved >= MANY;
        if over {
            self.n_moved = 0;
        }
        over
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    #[expect(unsafe_code, reason = "only C has a name for it")]
    // SAFETY: malloc_trim(3) takes the allocator's own locks, and touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_over_once_and_a_trickle_is_none() {
        let mut storm = Storm::default();
        let over: Vec<_> = [0, 600, 1_200, 1_210, 1_215, 200, 190].map(|n| storm.is_over(n)).into();
        assert_eq!(over, [false, false, false, true, false, false, true]);
        let mut storm = Storm::default();
        assert!((0..100).all(|i| !storm.is_over(i % 2 * 9)));
    }
}
