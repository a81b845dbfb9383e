//! How the process is asked to end, and how far it got.
//!
//! Invariants:
//! - Phases only move forward, so whoever waits for one never misses it.
//! - The handlers are installed before anything is announced as ready: a signal that comes right after
//!   must drain and not kill.
//! - The first SIGTERM or SIGINT asks for a drain, the second stops at once.
//!
//! Not here: what is done in each phase (`app`).

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// How far the end of the process has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Serving.
    Running,
    /// Still serving, no longer ready: load balancers get time to notice.
    NotReady,
    /// New sessions are refused, the others are told to reconnect, one after the other.
    Draining,
    /// All sessions are gone; what is to be written upstream is written.
    Flushing,
    /// Nothing runs any more.
    Stopped,
}

/// The phase of one gateway.
#[derive(Clone, Debug)]
pub struct Phases(Arc<watch::Sender<Phase>>);

impl Phases {
    /// Running.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Running)))
    }

    /// Enters a phase. A phase that is over already is not entered again.
    pub fn advance(&self, to: Phase) {
        self.0.send_if_modified(|phase| {
            let is_later = to > *phase;
            if is_later {
                *phase = to;
            }
            is_later
        });
    }

    /// The present phase.
    pub fn now(&self) -> Phase {
        *self.0.borrow()
    }

    /// Waits until the phase, or a later one, is entered.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn reached(&self, phase: Phase) {
        let mut watched = self.0.subscribe();
        let reached = watched.wait_for(|now| *now >= phase).await;
        reached.expect("the sender lives in self");
    }

    /// A receiver that sees each change.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }
}

impl Default for Phases {
    fn default() -> Self {
        Self::new()
    }
}

/// What the operator asks of the running process.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    drain: CancellationToken,
    stop: CancellationToken,
    reload: Arc<Notify>,
}

impl Requests {
    /// Requests that nobody makes but the holder, as in tests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests made by signals. To be called within a runtime, before readiness is announced.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn from_signals() -> io::Result<Self> {
        let [mut terminate, mut interrupt, mut hangup] = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        let requests = Self::new();
        let listener = requests.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "has to outlive every tracked task, to hear the second signal"
        )]
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    Some(()) = terminate.recv() => listener.end("SIGTERM"),
                    Some(()) = interrupt.recv() => listener.end("SIGINT"),
                    Some(()) = hangup.recv() => listener.reload(),
                    else => return,
                }
            }
        });
        Ok(requests)
    }

    fn end(&self, name: &str) {
        tracing::info!(signal = name, "asked to end");
        self.end_once_more();
    }

    /// Asks for a drain; where that was asked already, for a stop at once.
    pub fn end_once_more(&self) {
        if self.drain.is_cancelled() {
            self.stop.cancel();
        }
        self.drain.cancel();
    }

    /// Asks for a drain, however often.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Asks for the configuration to be read again.
    pub fn reload(&self) {
        self.reload.notify_one();
    }

    /// Waits until a drain or a stop is asked for.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn draining(&self) {
        self.drain.cancelled().await;
    }

    /// Waits until the process is to stop at once.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Waits until the configuration is to be read again. For one waiter; requests that come while it
    /// is busy count as one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn reloading(&self) {
        self.reload.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::{Phase, Phases, Requests};

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn phases_never_go_back() {
        let phases = Phases::new();
        phases.advance(Phase::Flushing);
        phases.advance(Phase::NotReady);
        assert_eq!(phases.now(), Phase::Flushing);
    }

    #[tokio::test]
    async fn waiting_for_a_phase_ends_with_a_later_one_too() {
        let phases = Phases::new();
        let waiter = phases.clone();
        let (reached, ()) = tokio::join!(timeout(SOON, waiter.reached(Phase::Draining)), async {
            phases.advance(Phase::Stopped);
        });
        assert!(reached.is_ok());
    }

    #[tokio::test]
    async fn the_second_request_to_end_is_a_stop() {
        let requests = Requests::new();
        requests.end_once_more();
        assert!(timeout(SOON, requests.draining()).await.is_ok());
        assert!(!requests.stop.is_cancelled());
        requests.end_once_more();
        assert!(timeout(SOON, requests.stopping()).await.is_ok());
    }

    #[tokio::test]
    async fn draining_twice_is_no_stop() {
        let requests = Requests::new();
        requests.drain();
        requests.drain();
        assert!(!requests.stop.is_cancelled());
    }

    #[tokio::test]
    async fn a_reload_asked_for_before_the_wait_is_not_lost() {
        let requests = Requests::new();
        requests.reload();
        assert!(timeout(SOON, requests.reloading()).await.is_ok());
    }
}
