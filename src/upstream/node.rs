//! Keeps the subscriptions of one node: one connection, opened again for as long as the node is needed.
//!
//! Invariants:
//! - Nodes are isolated: this task waits for nothing but its own node.
//! - One channel per command, many commands per write. A command over two slots is refused as a whole.
//! - A refused channel is asked for again after a pause that grows; a redirected one where it points.
//! - A connection that ends loses all of its channels at once, before anything else is tried.
//!
//! Not here: which channels belong to the node (`subscriber`), what their loss means (`coverage`), when
//! a connection counts as dead (`probe`).

mod line;
mod refusal;

use super::backoff::Backoff;
use super::channels::Channel;
use super::connection::Connector;
use super::coverage::{Coverage, Incarnation};
use super::feed::Feed;
use super::probe::ProbeTiming;
use super::readiness::{Readiness, Reason};
use super::sink::Sink;
use super::slots::NodeAddr;
use super::topology::Topology;
use super::wire::Wire;
use crate::metrics::Metrics;
use line::{End, Line};
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Pauses between attempts to connect. The first spreads the replicas that lost the same server; the
/// longest is what a node that came back may have to wait for us, well within `catch_up.deadline`.
const CONNECT_PAUSES: Backoff = Backoff::new(Duration::from_millis(40), Duration::from_millis(500));

/// A connection that lasted this long worked. One that is cut off again and again is opened with
/// growing pauses, as one that can't be opened is.
const LASTING: Duration = Duration::from_secs(2);

/// What all node tasks share.
pub(super) struct Shared {
    pub(super) feed: Arc<Feed>,
    pub(super) connector: Arc<Connector>,
    pub(super) topology: Arc<Topology>,
    pub(super) coverage: Arc<Coverage>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) sink: Arc<Sink>,
    pub(super) probes: ProbeTiming,
    pub(super) incarnations: AtomicU64,
}

/// What a node is to be subscribed to, as changes since the task looked.
#[derive(Default)]
pub(super) struct Orders {
    changes: Mutex<Changes>,
    given: Notify,
}

#[derive(Default)]
struct Changes {
    /// The last word per channel: to be asked for (again), or not wanted here any more.
    channels: HashMap<Channel, bool>,
    probe: Option<Channel>,
}

impl Orders {
    /// Adds changes. A channel that is wanted again after it was lost is asked for again, even if the
    /// node's connection thinks that it has it.
    pub(super) fn give(&self, channels: impl IntoIterator<Item = (Channel, bool)>, probe: Option<Channel>) {
        let mut changes = self.changes();
        changes.channels.extend(channels);
        changes.probe = probe;
        drop(changes);
        self.given.notify_one();
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of one node.
pub(super) struct Node {
    pub(super) addr: NodeAddr,
    pub(super) shared: Arc<Shared>,
    pub(super) orders: Arc<Orders>,
    /// Told when the node can't be connected to, for those who could go elsewhere.
    pub(super) unreachable: Arc<Notify>,
    /// Whether there is a connection.
    pub(super) connected: Arc<AtomicBool>,
    pub(super) wanted: BTreeSet<Channel>,
}

impl Node {
    /// Runs until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.keep() => {}
        }
    }

    async fn keep(&mut self) {
        let mut pauses = CONNECT_PAUSES;
        let subject = self.addr.to_string();
        loop {
            match self.connect().await {
                Ok((mut line, _open)) => {
                    self.connected.store(true, Ordering::Relaxed);
                    let opened = Instant::now();
                    let end = line.serve().await;
                    if opened.elapsed() >= LASTING {
                        pauses.reset();
                    }
                    line.give_up();
                    self.connected.store(false, Ordering::Relaxed);
                    self.wanted = line.into_wanted();
                    self.ended(&subject, end);
                }
                Err(error) => {
                    self.shared.metrics.upstream.connects_failed.increment(1);
                    let reason = refusal::of_connecting(&error);
                    self.clear_connecting(&subject, Some(reason));
                    if self.shared.readiness.set(reason, &subject, error.to_string()) {
                        tracing::warn!(redis.node = subject, %error, reason = reason.label(), "can't connect");
                    }
                    self.unreachable.notify_one();
                }
            }
            self.shared.topology.request_refresh();
            sleep(pauses.pause()).await;
        }
    }

    async fn connect(&mut self) -> redis::RedisResult<(Line, OpenConnection)> {
        let shared = &self.shared;
        let (sink, metrics) = (Arc::clone(&shared.sink), Arc::clone(&shared.metrics));
        let wire = Arc::new(Wire::new(Arc::clone(&shared.feed), sink, metrics));
        let far = Arc::clone(&wire);
        let connection = shared.connector.open_subscription(&self.addr, move |info| far.push(info)).await?;
        let subject = self.addr.to_string();
        if self.clear_connecting(&subject, None) {
            tracing::info!(redis.node = subject, "connected again");
        }
        let incarnation: Incarnation = shared.incarnations.fetch_add(1, Ordering::Relaxed);
        let wanted = mem::take(&mut self.wanted);
        let open = OpenConnection::count(&shared.metrics);
        let orders = Arc::clone(&self.orders);
        let line =
            Line::new(self.addr.clone(), incarnation, wire, connection, Arc::clone(shared), orders, wanted);
        Ok((line, open))
    }

    /// Clears what connecting may have run into, except for `but`. Gives whether there was something.
    fn clear_connecting(&self, subject: &str, but: Option<Reason>) -> bool {
        let others = refusal::CONNECTING.into_iter().filter(|reason| Some(*reason) != but);
        others.filter(|reason| self.shared.readiness.clear(*reason, subject)).count() > 0
    }

    fn ended(&self, subject: &str, end: End) {
        self.shared.metrics.upstream.connections_lost.increment(1);
        if let End::Dead(verdict) = end {
            let detail = format!("gave up a connection: {verdict:?}");
            self.shared.readiness.set(Reason::ProbeSilent, subject, detail);
        }
        tracing::warn!(redis.node = subject, reason = ?end, "lost the subscription connection");
    }
}

/// Counts an open connection for as long as it lives.
struct OpenConnection(metrics::Gauge);

impl OpenConnection {
    fn count(metrics: &Metrics) -> Self {
        metrics.upstream.connections.increment(1.0);
        Self(metrics.upstream.connections.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
