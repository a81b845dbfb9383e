//! The one periodic pass over all sessions: auth timeouts, heartbeats, missed pongs, token expiry, slow
//! consumers.
//!
//! Each tick asks every lane to look at a slice of its sessions, so that all are seen once per
//! [`ROUND`] and nobody gets a burst. After a stall the missed ticks are not made up for, and the time
//! that the process stood still doesn't count against any client: lanes advance their sweep clock by at
//! most two ticks per tick.

use crate::lane::Lanes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Time between two ticks.
pub const TICK: Duration = Duration::from_millis(100);

/// Every session is seen once in this time. Finer would cost more than a second's precision is worth.
pub const ROUND: Duration = Duration::from_secs(1);

const N_SLICES: usize = (ROUND.as_millis() / TICK.as_millis()) as usize;

/// Ticks until `stop` is cancelled.
pub async fn run(lanes: Arc<Lanes>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for slice in (0..N_SLICES).cycle() {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => lanes.sweep(slice, N_SLICES, TICK),
        }
    }
}
