//! Reads what follows the newest entries of every watched stream: one task and one connection per node.
//!
//! Invariants:
//! - A stream is read by one task at a time, however many sessions watch it.
//! - Nodes are isolated: a dead one holds up its own streams and nobody else's.
//!
//! Not here: how a node is read (`streams::node`), who gets the entries (`stream::hub`).

use super::key;
use super::node::Node;
use super::orders::{Orders, Reading};
use crate::config::{Config, RedisMode};
use crate::metrics::streams::StreamMetrics;
use crate::stream::hub::{Hub, Watched};
use crate::upstream::commands::Commands;
use crate::upstream::connection::Connector;
use crate::upstream::slots::{NodeAddr, slot};
use crate::upstream::topology::Topology;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Pause before a stream is looked at again whose slot nobody owns.
const UNOWNED_PAUSE: Duration = Duration::from_millis(100);

/// What all node tasks share.
pub(super) struct Shared {
    pub(super) hub: Arc<Hub>,
    pub(super) connector: Arc<Connector>,
    pub(super) topology: Arc<Topology>,
    pub(super) commands: Arc<Commands>,
    pub(super) metrics: Arc<StreamMetrics>,
    /// Whether one command may name keys of several slots.
    pub(super) one_command: bool,
    /// How long a read may wait at the server: well within the deadline of a command.
    pub(super) block: Duration,
}

/// See the module.
pub struct Reader {
    shared: Arc<Shared>,
    prefix: String,
}

/// Longest wait of a read at the server. A stream that begins to be watched waits for the read under way, so this
/// is what it may wait; its first page is read over another connection meanwhile.
const MAX_BLOCK: Duration = Duration::from_millis(50);

impl Reader {
    /// Reads for the sessions of `hub`.
    pub fn new(
        hub: Arc<Hub>,
        connector: Arc<Connector>,
        topology: Arc<Topology>,
        commands: Arc<Commands>,
        metrics: Arc<StreamMetrics>,
        config: &Config,
    ) -> Self {
        let one_command = config.redis.mode != RedisMode::Cluster;
        let block = MAX_BLOCK.min(config.redis.command_timeout / 2);
        let shared = Shared { hub, connector, topology, commands, metrics, one_command, block };
        Self { shared: Arc::new(shared), prefix: config.streams.prefix.clone() }
    }

    /// Reads until `end`.
    pub async fn run(self, end: CancellationToken) {
        let tasks = TaskTracker::new();
        let mut nodes: HashMap<NodeAddr, Arc<Orders>> = HashMap::new();
        let mut unowned: Vec<Arc<Watched>> = Vec::new();
        loop {
            let joined = tokio::select! {
                () = end.cancelled() => break,
                joined = self.shared.hub.joined() => joined,
                () = sleep(UNOWNED_PAUSE), if !unowned.is_empty() => Vec::new(),
            };
            let all: Vec<_> = unowned.drain(..).chain(joined).filter(|stream| !stream.is_over()).collect();
            for stream in all {
                let key = key(&self.prefix, &stream.id);
                let slot = slot(key.as_bytes());
                let Some(owner) = self.shared.topology.owner(slot) else {
                    stream.set_interrupted(true);
                    self.shared.topology.request_refresh();
                    unowned.push(stream);
                    continue;
                };
                let reading = Reading::new(stream, key, slot);
                let refused = match nodes.get(&owner) {
                    Some(orders) => orders.give(reading).err(),
                    None => Some(reading),
                };
                if let Some(reading) = refused {
                    let orders = Orders::with(reading);
                    // The task before it, if any, has ended.
                    nodes.insert(owner.clone(), Arc::clone(&orders));
                    let node = Node::new(owner, Arc::clone(&self.shared), orders);
                    let end = end.clone();
                    tasks.spawn(async move { end.run_until_cancelled(node.run()).await });
                }
            }
            nodes.retain(|_, orders| !orders.is_closed());
        }
        tasks.close();
        tasks.wait().await;
    }
}
