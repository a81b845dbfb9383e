//! The accept loop of a listener.
//!
//! Invariants:
//! - Accepting never ends before the drain, and never spins: out of descriptors, the surplus is accepted into a
//!   spare one and closed, so that the peers learn it at once; other errors are waited out for a moment.
//! - Connections that aren't sessions are bounded in number; so are those that are being refused.
//!
//! Not here: what is spoken on a connection (`edge::connection`).

use super::bucket::Bucket;
use super::connection::{Connections, Slot};
use super::descriptors::Budget;
use super::limits::Places;
use super::refuse;
use super::socket::Options;
use crate::clock::Now;
use crate::config::live::LiveLimits;
use crate::metrics::Metrics;
use crate::metrics::edge::{AcceptError, Refusal};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Refused connections that are waited for at a time on the admin listener; beyond, they are closed at once.
const MAX_ADMIN_LINGERING: usize = 4;

/// Pause after a connection that was shed for want of descriptors: keeps the loop under a thousand a second
/// while it can do nothing useful.
const SHED_PAUSE: Duration = Duration::from_millis(1);

/// Pause after errors that retrying at once can't mend. Longer would delay the recovery noticeably.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// Accept errors are logged at most this often.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Which listener, and what limits it alone has.
pub enum Kind {
    /// Browsers.
    Public {
        /// New connections per second.
        accepts: Bucket,
        /// How many of them there may be.
        limits: Arc<LiveLimits>,
        /// What the connections may use of the process's descriptors.
        budget: Budget,
        /// The sessions.
        places: Arc<Places>,
    },
    /// Operators.
    Admin,
}

/// Accepts connections until the drain.
pub struct Acceptor {
    listener: TcpListener,
    kind: Kind,
    connections: Arc<Connections>,
    options: Options,
    unadmitted: Arc<Semaphore>,
    max_unadmitted: usize,
    lingering: Arc<Semaphore>,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
    spare: Option<File>,
    log: ErrorLog,
}

impl Acceptor {
    /// An acceptor for `listener` with at most `max_unadmitted` connections in the HTTP stage.
    pub fn new(
        listener: TcpListener,
        kind: Kind,
        connections: Arc<Connections>,
        options: Options,
        max_unadmitted: usize,
        tasks: TaskTracker,
        metrics: Arc<Metrics>,
    ) -> Self {
        let max_lingering = match &kind {
            Kind::Public { budget, .. } => budget.max_lingering,
            Kind::Admin => MAX_ADMIN_LINGERING,
        };
        Self {
            listener,
            kind,
            connections,
            options,
            unadmitted: Arc::new(Semaphore::new(max_unadmitted)),
            max_unadmitted,
            lingering: Arc::new(Semaphore::new(max_lingering)),
            tasks,
            metrics,
            spare: spare(),
            log: ErrorLog::default(),
        }
    }

    /// Accepts until `end`, then closes the listener.
    pub async fn run(mut self, end: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = end.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.take(stream, peer),
                Err(error) => self.recover(&error).await,
            }
        }
    }

    fn take(&mut self, stream: TcpStream, peer: SocketAddr) {
        // Fails only when the peer is gone already, which the connection finds out by itself.
        let _ = self.options.apply(&stream);
        match self.slot() {
            Ok(slot) => {
                let connections = Arc::clone(&self.connections);
                self.tasks.spawn(connections.serve(stream, peer, slot));
            }
            Err(refusal) => self.refuse(stream, refusal),
        }
    }

    fn slot(&mut self) -> Result<Slot, Refusal> {
        let gauge = match &mut self.kind {
            Kind::Admin => None,
            Kind::Public { accepts, limits, budget, places } => {
                self.metrics.edge.connections_accepted.increment(1);
                if !accepts.take(limits.accepts_per_second(), Now::read().mono) {
                    return Err(Refusal::AcceptRate);
                }
                let n_unadmitted = self.max_unadmitted - self.unadmitted.available_permits();
                if n_unadmitted + places.n_sessions() >= budget.max_open {
                    return Err(Refusal::Descriptors);
                }
                Some(self.metrics.edge.connections_unadmitted.clone())
            }
        };
        let permit = Arc::clone(&self.unadmitted).try_acquire_owned().map_err(|_| Refusal::Unadmitted)?;
        Ok(Slot::new(permit, gauge))
    }

    fn refuse(&self, stream: TcpStream, refusal: Refusal) {
        self.metrics.edge.refusals.count(refusal);
        match Arc::clone(&self.lingering).try_acquire_owned() {
            Ok(permit) => {
                self.tasks.spawn(async move {
                    refuse::politely(stream, refusal).await;
                    drop(permit);
                });
            }
            Err(_) => refuse::curtly(&stream, refusal),
        }
    }

    async fn recover(&mut self, error: &io::Error) {
        let kind = classify(error);
        self.metrics.edge.accept_errors.count(kind);
        self.log.note(error, Now::read().mono);
        match kind {
            AcceptError::Connection => {}
            AcceptError::Descriptors => self.shed().await,
            AcceptError::Memory | AcceptError::Other => sleep(ERROR_PAUSE).await,
        }
    }

    /// Gives the spare descriptor to a waiting connection, to tell it that there is none.
    async fn shed(&mut self) {
        if self.spare.take().is_none() {
            // The one before couldn't be had back; somebody else must close something first.
            sleep(ERROR_PAUSE).await;
        } else if let Ok(Ok((stream, _))) = tokio::time::timeout(SHED_PAUSE, self.listener.accept()).await {
            self.metrics.edge.refusals.count(Refusal::Descriptors);
            refuse::curtly(&stream, Refusal::Descriptors);
        }
        self.spare = spare();
        sleep(SHED_PAUSE).await;
    }
}

/// A descriptor to give up when there is no other.
fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

fn classify(error: &io::Error) -> AcceptError {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => AcceptError::Descriptors,
        Some(libc::ENOMEM | libc::ENOBUFS) => AcceptError::Memory,
        // The errors that accept(2) passes on from the new connection's network, plus a firewall's veto.
        Some(
            libc::ECONNABORTED
            | libc::ECONNRESET
            | libc::EPERM
            | libc::EPROTO
            | libc::ENETDOWN
            | libc::ENOPROTOOPT
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EHOSTUNREACH
            | libc::EOPNOTSUPP
            | libc::ENETUNREACH,
        ) => AcceptError::Connection,
        _ => AcceptError::Other,
    }
}

/// Says that accepting fails, but not each time.
#[derive(Default)]
struct ErrorLog {
    next_at: Duration,
    n_unsaid: u64,
}

impl ErrorLog {
    fn note(&mut self, error: &io::Error, now: Duration) {
        self.n_unsaid += 1;
        if now < self.next_at {
            return;
        }
        tracing::warn!(accept.errors = self.n_unsaid, error = %error, "can't accept connections");
        self.next_at = now + LOG_INTERVAL;
        self.n_unsaid = 0;
    }
}

#[cfg(test)]
mod tests;
