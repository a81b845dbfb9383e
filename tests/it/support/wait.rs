//! Bounded waiting: the only place where a test pauses.

use std::future::Future;
use std::time::{Duration, Instant};

/// Often enough to measure recoveries of a tenth of a second, seldom enough not to load the machine.
const POLL: Duration = Duration::from_millis(20);

/// Asks `probe` until it gives something, and fails the test with `what` after `within`.
pub async fn wait_for<T, F>(what: &str, within: Duration, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        // A probe that hangs must not outlast the wait that it belongs to.
        let left = within.saturating_sub(started.elapsed()).max(POLL);
        if let Ok(Some(found)) = tokio::time::timeout(left, probe()).await {
            return found;
        }
        assert!(started.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// [`wait_for`] with a plain condition.
pub async fn wait_until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, within, || std::future::ready(condition().then_some(()))).await;
}

/// Gives what `future` gives, and fails the test with `what` after `within`.
pub async fn in_time<F: Future>(what: &str, within: Duration, future: F) -> F::Output {
    match tokio::time::timeout(within, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {within:?}: {what}"),
    }
}

/// Lets time pass where passing time is the input itself (a silence, a grace that must not be cut
/// short), never to wait for something to become true.
pub async fn let_pass(time: Duration) {
    tokio::time::sleep(time).await;
}
