//! Keeps the slot table true: asks the nodes of a cluster, or the sentinels, all the time.
//!
//! Invariants:
//! - All known nodes are asked, so that one that is cut off can't hide that it is.
//! - A node that doesn't answer holds up nobody: what came a moment after a majority is enough.
//! - Polls follow at a slow pace while all is well, at a quick one while something is lost, at once when
//!   somebody asks, and never without a pause.
//!
//! Not here: judging what the nodes say (`view`).

use super::Topology;
use super::sentinel::Sentinels;
use super::view::{Merged, View, merge};
use crate::config::RedisMode;
use crate::metrics::Metrics;
use crate::upstream::connection::Connector;
use crate::upstream::readiness::{Readiness, Reason};
use crate::upstream::slots::{NodeAddr, SlotTable};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// Between two polls while all is well. An isolated primary is noticed by nothing else.
const CALM: Duration = Duration::from_secs(1);

/// Between two polls while something is lost, and at least between any two. A promotion is noticed this
/// much late; shorter would only load nodes that are in trouble.
const URGENT: Duration = Duration::from_millis(60);

/// Between two polls when something has been lost for a long time.
const URGENT_FOR_LONG: Duration = Duration::from_millis(250);

/// What is a long time: longer than any promotion with common settings takes.
const LONG: Duration = Duration::from_secs(30);

/// How long late answers are waited for once a majority has answered.
const STRAGGLERS: Duration = Duration::from_millis(40);

/// The subject of reasons set here.
const SUBJECT: &str = "topology";

/// What a poll needs.
pub struct Poller {
    /// Where the table goes.
    pub topology: Arc<Topology>,
    /// How to connect.
    pub connector: Arc<Connector>,
    /// Where trouble is told.
    pub readiness: Arc<Readiness>,
    /// Where polls are counted.
    pub metrics: Arc<Metrics>,
}

impl Poller {
    /// Polls until `stop`. Returns at once for a server that stands alone.
    pub async fn run(self, stop: CancellationToken) {
        let mut source = match self.connector.config().mode {
            RedisMode::Cluster => Source::Cluster(Box::new(Cluster::new(Arc::clone(&self.connector)))),
            RedisMode::Sentinel => Source::Sentinels(Box::new(Sentinels::new(Arc::clone(&self.connector)))),
            RedisMode::Standalone | RedisMode::Embedded => return,
        };
        let mut urgent_since = None;
        loop {
            let begun = Instant::now();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.poll(&mut source) => {}
            }
            urgent_since = self.topology.is_urgent().then(|| urgent_since.unwrap_or(begun));
            let pause = match urgent_since {
                None => CALM,
                Some(since) if begun - since < LONG => URGENT,
                Some(_) => URGENT_FOR_LONG,
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(begun + pause) => {}
                () = self.topology.refresh_requested() => sleep_until(begun + URGENT).await,
            }
        }
    }

    async fn poll(&self, source: &mut Source) {
        self.metrics.upstream.topology_polls.increment(1);
        let poll = self.topology.begin_poll();
        let found = match source {
            Source::Cluster(cluster) => cluster.ask().await,
            Source::Sentinels(sentinels) => sentinels.ask().await.map(|primary| Merged {
                table: SlotTable::single(primary),
                nodes: Vec::new(),
                aliases: HashMap::new(),
            }),
        };
        match found {
            Ok(merged) => {
                if self.readiness.clear(Reason::TopologyUnknown, SUBJECT) {
                    tracing::info!("the topology is known again");
                }
                if self.topology.end_poll(poll, merged.table, merged.aliases) {
                    self.metrics.upstream.topology_changes.increment(1);
                    let primaries = self.topology.all_primaries().len();
                    tracing::info!(redis.primaries = primaries, "the owners of slots changed");
                }
            }
            Err(error) => {
                if self.readiness.set(Reason::TopologyUnknown, SUBJECT, error.to_string()) {
                    tracing::warn!(%error, "the topology is unknown");
                }
            }
        }
    }
}

enum Source {
    Cluster(Box<Cluster>),
    Sentinels(Box<Sentinels>),
}

/// The nodes of a cluster, with a connection to each.
struct Cluster {
    connector: Arc<Connector>,
    seeds: Vec<NodeAddr>,
    /// Those of the last poll that succeeded; empty if none did.
    known: Vec<NodeAddr>,
    idle: HashMap<NodeAddr, MultiplexedConnection>,
    /// Nodes with a question open, maybe from an earlier poll.
    busy: HashSet<NodeAddr>,
    questions: JoinSet<Answer>,
    round: u64,
}

struct Answer {
    round: u64,
    node: NodeAddr,
    /// The connection, if it is still good.
    connection: Option<MultiplexedConnection>,
    view: RedisResult<View>,
}

impl Cluster {
    fn new(connector: Arc<Connector>) -> Self {
        let seeds = connector.config().nodes.iter().filter_map(|node| NodeAddr::parse(node)).collect();
        Self {
            connector,
            seeds,
            known: Vec::new(),
            idle: HashMap::new(),
            busy: HashSet::new(),
            questions: JoinSet::new(),
            round: 0,
        }
    }

    async fn ask(&mut self) -> RedisResult<Merged> {
        self.round += 1;
        let asked = if self.known.is_empty() { self.seeds.clone() } else { self.known.clone() };
        for node in &asked {
            self.ask_node(node);
        }
        let views = self.answers(asked.len()).await;
        let merged = views.and_then(|views| {
            let disagree = "the nodes that answer don't know each other";
            merge(&views).ok_or_else(|| RedisError::from((redis::ErrorKind::Client, disagree)))
        });
        match merged {
            Ok(merged) => {
                self.known.clone_from(&merged.nodes);
                self.idle.retain(|node, _| merged.nodes.contains(node));
                Ok(merged)
            }
            Err(error) => {
                // All known nodes may have new addresses; the seeds are names that may know them.
                self.known = if self.known.is_empty() { Vec::new() } else { self.with_seeds() };
                Err(error)
            }
        }
    }

    fn with_seeds(&self) -> Vec<NodeAddr> {
        let mut nodes = self.known.clone();
        nodes.extend(self.seeds.iter().filter(|seed| !self.known.contains(seed)).cloned());
        nodes
    }

    fn ask_node(&mut self, node: &NodeAddr) {
        if !self.busy.insert(node.clone()) {
            return;
        }
        let (connector, node, round) = (Arc::clone(&self.connector), node.clone(), self.round);
        let idle = self.idle.remove(&node);
        self.questions.spawn(async move {
            let (connection, view) = question(&connector, &node, idle).await;
            Answer { round, node, connection, view }
        });
    }

    /// The views of this round. An error if there is none, the last one that a node gave.
    async fn answers(&mut self, n_asked: usize) -> RedisResult<Vec<View>> {
        let patience = self.connector.config().command_timeout;
        let mut deadline = Instant::now() + patience;
        let mut views = Vec::new();
        let mut error = RedisError::from((redis::ErrorKind::Client, "no node answers"));
        // Nodes that are busy with an older question are as good as silent in this round.
        while !self.questions.is_empty() {
            let Ok(Some(answer)) = timeout_at(deadline, self.questions.join_next()).await else { break };
            let answer = answer.expect("a question neither panics nor is aborted");
            self.busy.remove(&answer.node);
            if let Some(connection) = answer.connection {
                self.idle.insert(answer.node.clone(), connection);
            }
            match answer.view {
                _ if answer.round != self.round => continue,
                Ok(view) => views.push(view),
                Err(e) => error = e,
            }
            if views.len() * 2 > n_asked {
                deadline = deadline.min(Instant::now() + STRAGGLERS);
            }
        }
        if views.is_empty() { Err(error) } else { Ok(views) }
    }
}

async fn question(
    connector: &Connector,
    node: &NodeAddr,
    idle: Option<MultiplexedConnection>,
) -> (Option<MultiplexedConnection>, RedisResult<View>) {
    let mut connection = match idle {
        Some(connection) => connection,
        None => match connector.open(node).await {
            Ok(connection) => connection,
            Err(error) => return (None, Err(error)),
        },
    };
    let answer: RedisResult<String> = redis::cmd("CLUSTER").arg("NODES").query_async(&mut connection).await;
    let view = answer.and_then(|text| {
        let malformed = || RedisError::from((redis::ErrorKind::Parse, "CLUSTER NODES is malformed"));
        View::parse(&text, node, connector.config().tls).ok_or_else(malformed)
    });
    // After an error the connection may be dead or an answer may still be on its way.
    (view.is_ok().then_some(connection), view)
}
