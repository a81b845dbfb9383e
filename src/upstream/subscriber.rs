//! The live stream: keeps every wanted channel subscribed on the node that owns it.
//!
//! Invariants:
//! - One task decides which node each channel belongs to; a task per node does what it is told, and
//!   none of them waits for another.
//! - A channel follows its slot's owner as soon as the table changes, and the old node is told to let go.
//! - With a channel per instrument, one stays subscribed for a while after the last session left, so
//!   that a reloading browser costs nothing.
//!
//! Not here: one node's connection (`node`), the table (`topology`), what a loss means (`coverage`).

use super::channels::Channel;
use super::connection::Connector;
use super::coverage::{Coverage, Resync};
use super::feed::Feed;
use super::node::{Node, Orders, Shared};
use super::probe::ProbeTiming;
use super::readiness::{Readiness, Reason};
use super::sink::Sink;
use super::slots::{NodeAddr, SlotTable};
use super::topology::Topology;
use crate::clock::Now;
use crate::config::{self, RedisMode};
use crate::fanout::Fanout;
use crate::instrument::InstrumentId;
use crate::metrics::Metrics;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

/// Between two looks at what is missing, besides those that a loss or gain causes: time alone makes a
/// fresh channel a missing one, and ends a linger.
const LOOK: Duration = Duration::from_millis(100);

/// How long wishes are gathered. A session's topics, and those of a reconnect storm, come in bursts.
const GATHER: Duration = Duration::from_millis(2);

/// An instrument's own channel that has just been asked for isn't missing yet.
const FRESH: Duration = Duration::from_secs(1);

/// The subject of reasons set here.
const SUBJECT: &str = "channels";

/// Times that tests shorten.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Of probes.
    pub probes: ProbeTiming,
    /// How long an instrument's own channel stays subscribed after its last session left. Longer than a
    /// page takes to reload, shorter than traffic for nobody would matter.
    pub linger: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { probes: ProbeTiming::default(), linger: Duration::from_secs(30) }
    }
}

/// What the subscriber works with.
pub struct Parts {
    /// What the fan-out asks.
    pub feed: Arc<Feed>,
    /// Where quotes go.
    pub fanout: Arc<Fanout>,
    /// Told which keys to read again.
    pub resync: Resync,
    /// How to connect.
    pub connector: Arc<Connector>,
    /// Who owns which slot; polled elsewhere (`topology::poll`).
    pub topology: Arc<Topology>,
    /// Where trouble is told.
    pub readiness: Arc<Readiness>,
    /// Where things are counted.
    pub metrics: Arc<Metrics>,
    /// How often and how long.
    pub timing: Timing,
}

/// The task that assigns channels to nodes.
pub struct Subscriber {
    shared: Arc<Shared>,
    fixed: Vec<Channel>,
    per_instrument: bool,
    /// One node for all channels, whoever owns their slots.
    one_node: bool,
    linger: Duration,
    assigned: HashMap<Channel, Option<NodeAddr>>,
    /// Instruments that nobody wants any more, and until when their channels stay.
    lingering: HashMap<InstrumentId, Instant>,
    nodes: HashMap<NodeAddr, Handle>,
    tasks: JoinSet<()>,
    /// A node can't be connected to.
    unreachable: Arc<Notify>,
    /// The last one that couldn't, if any one will do.
    avoid: Option<NodeAddr>,
    stop: CancellationToken,
}

/// The supervisor's end of a node task.
struct Handle {
    orders: Arc<Orders>,
    probe: Option<Channel>,
    connected: Arc<AtomicBool>,
    stop: CancellationToken,
}

impl Handle {
    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}

impl Subscriber {
    /// A live stream that is yet to be run. From here on the Redis side counts as not ready.
    pub fn new(parts: Parts, ingest: &config::Ingest) -> Self {
        let Parts { feed, fanout, resync, connector, topology, readiness, metrics, timing } = parts;
        let sink = Sink::new(Arc::clone(&fanout), Arc::clone(&metrics), ingest.max_payload_bytes);
        let coverage = Coverage::new(Arc::clone(&feed), fanout, resync, Arc::clone(&metrics));
        // Until the task has looked, nobody may believe that all is well.
        readiness.set(Reason::ChannelsNotSubscribed, SUBJECT, "starting".into());
        let names = feed.names();
        let one_node = connector.config().mode == RedisMode::Cluster && !names.sharded();
        let (fixed, per_instrument) = (names.fixed(), names.per_instrument());
        Self {
            shared: Arc::new(Shared {
                feed,
                connector,
                topology,
                coverage: Arc::new(coverage),
                readiness,
                metrics,
                sink: Arc::new(sink),
                probes: timing.probes,
                incarnations: AtomicU64::new(1),
            }),
            fixed,
            per_instrument,
            one_node,
            linger: timing.linger,
            assigned: HashMap::new(),
            lingering: HashMap::new(),
            nodes: HashMap::new(),
            tasks: JoinSet::new(),
            unreachable: Arc::new(Notify::new()),
            avoid: None,
            stop: CancellationToken::new(),
        }
    }

    /// Keeps the stream up until `stop`. Ends earlier only by a panic in one of its parts.
    pub async fn run(mut self, stop: CancellationToken) {
        self.stop = stop.clone();
        let mut changes = self.shared.topology.changes();
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (feed, coverage) = (Arc::clone(&self.shared.feed), Arc::clone(&self.shared.coverage));
        let unreachable = Arc::clone(&self.unreachable);
        self.place_all();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                changed = changes.changed() => {
                    changed.expect("the topology outlives its subscriber");
                    changes.mark_unchanged();
                    self.place_all();
                }
                () = feed.wished() => {
                    sleep(GATHER).await;
                    self.take_wishes();
                }
                () = unreachable.notified(), if self.one_node => self.go_elsewhere(),
                () = coverage.changed() => self.look(),
                _ = looks.tick() => self.look(),
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    }
                }
            }
        }
        self.tasks.shutdown().await;
    }

    /// Gives every wanted channel to the node that owns it by now.
    fn place_all(&mut self) {
        let wanted: BTreeSet<_> = self.fixed.iter().chain(self.assigned.keys()).copied().collect();
        self.place(wanted);
    }

    /// Gives each of `channels` to the node that owns it.
    fn place(&mut self, channels: impl IntoIterator<Item = Channel>) {
        let table = self.shared.topology.table();
        let only = if self.one_node { self.one_of(&table) } else { None };
        let names = self.shared.feed.names();
        let owner = |channel: Channel| match self.one_node {
            true => only.clone(),
            false => table.owner(names.slot(channel)).cloned(),
        };
        let moves: Vec<_> = channels
            .into_iter()
            .map(|channel| (channel, owner(channel)))
            .filter(|(channel, node)| self.assigned.get(channel) != Some(node))
            .collect();
        // Lost first, so that no word of the new node can come before the loss.
        self.shared.coverage.assign(&moves, Now::read());
        let mut orders: HashMap<NodeAddr, Vec<(Channel, bool)>> = HashMap::new();
        for (channel, node) in moves {
            let before = self.assigned.insert(channel, node.clone()).flatten();
            for (node, wanted) in [(before, false), (node, true)] {
                if let Some(node) = node {
                    orders.entry(node).or_default().push((channel, wanted));
                }
            }
        }
        self.keep_nodes(&table, only.as_ref(), orders);
    }

    /// Starts the tasks of nodes that are needed, ends the others, and hands out orders.
    fn keep_nodes(
        &mut self,
        table: &SlotTable,
        only: Option<&NodeAddr>,
        mut orders: HashMap<NodeAddr, Vec<(Channel, bool)>>,
    ) {
        let mut needed: BTreeSet<NodeAddr> = self.assigned.values().flatten().cloned().collect();
        if self.per_instrument {
            // Kept and proven while nothing is wanted from them, so that the first wish is quick.
            needed.extend(only.map_or_else(|| table.primaries(), |node| vec![node.clone()]));
        }
        self.nodes.retain(|addr, handle| {
            let keep = needed.contains(addr);
            if !keep {
                handle.stop.cancel();
                self.shared.readiness.clear_all(&addr.to_string());
            }
            keep
        });
        for addr in needed {
            let probe = self.probe_for(table, &addr);
            let changes = orders.remove(&addr).unwrap_or_default();
            if let Some(handle) = self.nodes.get_mut(&addr) {
                if !changes.is_empty() || handle.probe != probe {
                    handle.probe = probe;
                    handle.orders.give(changes, probe);
                }
                continue;
            }
            let handle = Handle {
                orders: Arc::default(),
                probe,
                connected: Arc::default(),
                stop: self.stop.child_token(),
            };
            handle.orders.give(changes, probe);
            let node = Node {
                addr: addr.clone(),
                shared: Arc::clone(&self.shared),
                orders: Arc::clone(&handle.orders),
                connected: Arc::clone(&handle.connected),
                unreachable: Arc::clone(&self.unreachable),
                wanted: BTreeSet::new(),
            };
            self.tasks.spawn(node.run(handle.stop.clone()));
            self.nodes.insert(addr, handle);
        }
    }

    /// A probe channel in a slot of the node: the one it has while that slot stays there.
    fn probe_for(&self, table: &SlotTable, addr: &NodeAddr) -> Option<Channel> {
        let names = self.shared.feed.names();
        let owned = |slot| self.one_node || table.owner(slot) == Some(addr);
        let present = self.nodes.get(addr).and_then(|handle| handle.probe);
        present.filter(|&probe| owned(names.slot(probe))).or_else(|| names.probe_in(owned))
    }

    /// The node for all channels of a cluster with classic Pub/Sub, where any one will do: the present
    /// one while the cluster counts on it.
    fn one_of(&self, table: &SlotTable) -> Option<NodeAddr> {
        let sound = |node: &&NodeAddr| !table.is_failed(node);
        let primaries = table.primaries();
        let present = self.nodes.keys().next();
        let keep = present.filter(|node| primaries.contains(node)).filter(sound);
        keep.or_else(|| {
            let reachable = |node: &&NodeAddr| Some(*node) != self.avoid.as_ref();
            let sound: Vec<_> = primaries.iter().filter(sound).filter(reachable).collect();
            // Replicas of the gateway that all chose the first would load one node with everything.
            sound.get(rand::random_range(0..sound.len().max(1))).copied().or(primaries.first())
        })
        .cloned()
    }

    /// The one node can't be connected to; another one will do as well.
    fn go_elsewhere(&mut self) {
        let Some(present) = self.nodes.keys().next().cloned() else { return };
        let others = self.shared.topology.all_primaries();
        if others.iter().any(|node| *node != present) {
            tracing::warn!(redis.node = %present, "subscribing on another node");
            if let Some(handle) = self.nodes.remove(&present) {
                handle.stop.cancel();
                self.shared.readiness.clear_all(&present.to_string());
            }
            self.avoid = Some(present);
            self.place_all();
        }
    }

    fn take_wishes(&mut self) {
        let until = Instant::now() + self.linger;
        let mut added = Vec::new();
        for (id, wanted) in self.shared.feed.take_wishes() {
            if !wanted {
                self.lingering.insert(id, until);
            } else if self.lingering.remove(&id).is_none()
                && !self.assigned.contains_key(&Channel::Instrument(id))
            {
                added.push(Channel::Instrument(id));
            }
        }
        if !added.is_empty() {
            self.place(added);
        }
    }

    fn look(&mut self) {
        let now = Instant::now();
        let expired: Vec<_> = self
            .lingering
            .extract_if(|_, until| *until <= now)
            .map(|(id, _)| Channel::Instrument(id))
            .collect();
        if !expired.is_empty() {
            self.let_go(&expired);
        }
        let grace = if self.per_instrument { FRESH } else { Duration::ZERO };
        let coverage = &self.shared.coverage;
        if self.per_instrument {
            coverage.presume_no_more(FRESH, Now::read());
        }
        let (n_missing, n_wanted) = (coverage.n_missing(grace, Now::read()), coverage.n_wanted());
        // With a channel per instrument there may be none, and all is well only if some could be had.
        let is_connected = !self.nodes.is_empty() && self.nodes.values().all(Handle::is_connected);
        let is_lacking = n_missing > 0 || !is_connected;
        self.shared.topology.set_urgent(is_lacking);
        let readiness = &self.shared.readiness;
        if is_lacking {
            let detail = format!("{n_missing} of {n_wanted} not subscribed");
            readiness.set(Reason::ChannelsNotSubscribed, SUBJECT, detail);
        } else {
            readiness.clear(Reason::ChannelsNotSubscribed, SUBJECT);
        }
        let n_homeless = self.assigned.values().filter(|node| node.is_none()).count();
        if n_homeless > 0 && !self.nodes.is_empty() {
            let detail = format!("nobody owns the slots of {n_homeless} channels");
            readiness.set(Reason::ClusterDown, SUBJECT, detail);
        } else {
            readiness.clear(Reason::ClusterDown, SUBJECT);
        }
    }

    /// Takes subscriptions back that nobody wants any more.
    fn let_go(&mut self, channels: &[Channel]) {
        self.shared.coverage.forget(channels, Now::read());
        let mut orders: HashMap<NodeAddr, Vec<(Channel, bool)>> = HashMap::new();
        for channel in channels {
            if let Some(Some(node)) = self.assigned.remove(channel) {
                orders.entry(node).or_default().push((*channel, false));
            }
        }
        for (node, changes) in orders {
            if let Some(handle) = self.nodes.get(&node) {
                handle.orders.give(changes, handle.probe);
            }
        }
    }
}
