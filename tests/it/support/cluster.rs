//! A real Redis Cluster of one's own, with its faults as verbs.
//!
//! Shards are counted from 0 in the order of their slots at the start; a shard keeps its number when
//! another node becomes its primary.

use super::ports;
use super::redis::{RedisServer, query};
use super::tls::tls_settings;
use super::wait::wait_for;
use redis::FromRedisValue;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// How long the nodes are silent to each other before one is declared failed. Short, so that
/// promotions fit into a test; shorter ones make a busy machine promote by mistake.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(2);

const N_SLOTS: u16 = 16_384;
const FORM_TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster on this machine; its servers end with it.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    /// Behind TLS, where the nodes speak it.
    tls_ports: Vec<u16>,
    /// Slots of each shard at the start.
    shards: Vec<Range<u16>>,
}

/// Which server, counted from 0: the first primaries, then their replicas.
pub type NodeAt = usize;

impl RedisCluster {
    /// Starts `primaries` servers that share the slots evenly, and `replicas` more in all, given to the
    /// shards in turn.
    pub async fn start(primaries: usize, replicas: usize) -> Self {
        Self::start_with(primaries, replicas, &[]).await
    }

    /// [`RedisCluster::start`] with further settings, such as `["--cluster-require-full-coverage", "no"]`.
    pub async fn start_with(primaries: usize, replicas: usize, conf: &[&str]) -> Self {
        Self::launch(None, primaries, replicas, conf, None).await
    }

    /// Starts three primaries of another program.
    pub async fn start_as(binary: &Path) -> Self {
        Self::launch(Some(binary), 3, 0, &[], None).await
    }

    /// Starts `primaries` servers that speak TLS to each other and to clients, and listen without it too, for
    /// the tests themselves.
    pub async fn start_tls(primaries: usize, certificates: &TempDir, conf: &[&str]) -> Self {
        Self::launch(None, primaries, 0, conf, Some(certificates)).await
    }

    async fn launch(
        binary: Option<&Path>,
        primaries: usize,
        replicas: usize,
        conf: &[&str],
        tls: Option<&TempDir>,
    ) -> Self {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let mut settings = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout];
        // A replica of an empty primary may always stand for election, and syncs without delay.
        settings.extend(["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"]);
        settings.extend(conf);
        let (mut nodes, mut tls_ports) = (Vec::new(), Vec::new());
        for _ in 0..primaries + replicas {
            let port = ports::free_with_bus();
            let Some(certificates) = tls else {
                nodes.push(match binary {
                    Some(binary) => RedisServer::start_as(binary, port, &settings).await,
                    None => RedisServer::start_on(port, &settings).await,
                });
                continue;
            };
            // The bus follows the port behind TLS.
            let behind_tls = tls_settings(certificates, port);
            let mut settings = settings.clone();
            settings.extend(["--tls-cluster", "yes"]);
            settings.extend(behind_tls.iter().map(String::as_str));
            nodes.push(RedisServer::start_on(ports::free(), &settings).await);
            tls_ports.push(port);
        }
        let bound = |i: usize| (usize::from(N_SLOTS) * i / primaries) as u16;
        let shards = (0..primaries).map(|i| bound(i)..bound(i + 1)).collect();
        let cluster = Self { nodes, tls_ports, shards };
        cluster.form().await;
        cluster
    }

    async fn form(&self) {
        for (node, slots) in self.nodes.iter().zip(&self.shards) {
            let (first, last) = (slots.start.to_string(), (slots.end - 1).to_string());
            node.cmd::<String>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
        }
        for (i, node) in self.nodes.iter().enumerate() {
            // Equal epochs would have to be resolved by a collision first.
            node.cmd::<String>(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]).await;
            let port = self.tls_ports.first().copied().unwrap_or(self.nodes[0].port()).to_string();
            if i > 0 {
                node.cmd::<String>(&["CLUSTER", "MEET", "127.0.0.1", &port]).await;
            }
        }
        self.know_each_other().await;
        let n_primaries = self.shards.len();
        for (i, replica) in self.nodes[n_primaries..].iter().enumerate() {
            let primary = self.node_id(i % n_primaries).await;
            wait_for("the replica accepts its primary", FORM_TIMEOUT, || async {
                replica.try_cmd::<String>(&["CLUSTER", "REPLICATE", &primary]).await.ok()
            })
            .await;
        }
        self.healthy().await;
    }

    async fn know_each_other(&self) {
        for node in &self.nodes {
            wait_for("all nodes know each other", FORM_TIMEOUT, || async {
                let known: String = node.cmd(&["CLUSTER", "NODES"]).await;
                let n = known.lines().filter(|line| !line.contains("handshake")).count();
                (n == self.nodes.len()).then_some(())
            })
            .await;
        }
    }

    /// Waits until every node calls the cluster's state ok, knows all replicas, and is in step.
    pub async fn healthy(&self) {
        let n_replicas = self.nodes.len() - self.shards.len();
        for node in &self.nodes {
            wait_for("cluster_state:ok and replicas linked", FORM_TIMEOUT, || async {
                let state: String = node.try_cmd(&["CLUSTER", "INFO"]).await.ok()?;
                let view: String = node.try_cmd(&["CLUSTER", "NODES"]).await.ok()?;
                let link: String = node.try_cmd(&["INFO", "replication"]).await.ok()?;
                let complete = view.matches("slave").count() == n_replicas && !view.contains("fail");
                let in_step = !link.contains("master_link_status:down");
                (state.contains("cluster_state:ok") && complete && in_step).then_some(())
            })
            .await;
        }
    }

    /// Ports of all nodes.
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(RedisServer::port).collect()
    }

    /// `host:port` of all nodes, as `redis.nodes` takes them.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::address).collect()
    }

    /// `host:port` of all nodes behind TLS.
    pub fn tls_addresses(&self) -> Vec<String> {
        self.tls_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// A node.
    pub fn node(&self, at: NodeAt) -> &RedisServer {
        &self.nodes[at]
    }

    /// Runs one command on a node.
    pub async fn cmd<T: FromRedisValue>(&self, at: NodeAt, args: &[&str]) -> T {
        self.nodes[at].cmd(args).await
    }

    async fn node_id(&self, at: NodeAt) -> String {
        self.cmd(at, &["CLUSTER", "MYID"]).await
    }

    /// The node that owns `slot` in the view with the highest epoch that can be had.
    ///
    /// # Panics
    /// When no node answers or none owns the slot.
    pub async fn owner(&self, slot: u16) -> NodeAt {
        let mut newest = None;
        for port in self.ports() {
            let asked = tokio::time::timeout(NODE_TIMEOUT, query::<String>(port, &["CLUSTER", "NODES"]));
            let Ok(Ok(view)) = asked.await else { continue };
            for (epoch, owner) in owners(&view, slot) {
                newest = newest.max(Some((epoch, owner)));
            }
        }
        let (_, port) = newest.expect("a living owner of the slot");
        self.nodes.iter().position(|node| node.port() == port).expect("one of our nodes")
    }

    /// The node that is the primary of `shard` at the moment.
    pub async fn primary(&self, shard: usize) -> NodeAt {
        self.owner(self.shards[shard].start).await
    }

    /// The shard of `key`.
    pub fn shard_of(&self, key: &str) -> usize {
        let slot = tickbridge::upstream::slots::slot(key.as_bytes());
        self.shards.iter().position(|slots| slots.contains(&slot)).expect("the shards cover all slots")
    }

    /// A replica of `shard`'s primary.
    pub async fn replica(&self, shard: usize) -> NodeAt {
        let primary = self.primary(shard).await;
        let id = self.node_id(primary).await;
        let listed: Vec<String> = self.cmd(primary, &["CLUSTER", "REPLICAS", &id]).await;
        let port = listed.iter().find_map(|line| port_of(line)).expect("the shard has a replica");
        self.nodes.iter().position(|node| node.port() == port).expect("one of our nodes")
    }

    /// Lets a replica of `shard` take over while its primary is well, and gives the new primary.
    pub async fn fail_over(&self, shard: usize) -> NodeAt {
        let replica = self.replica(shard).await;
        self.cmd::<String>(replica, &["CLUSTER", "FAILOVER"]).await;
        self.owned_everywhere(self.shards[shard].start, replica).await;
        replica
    }

    /// Keeps `replica` from following its primary any further, for good.
    pub async fn cut_off(&self, replica: NodeAt, primary: NodeAt) {
        self.cmd::<String>(replica, &["CONFIG", "SET", "masterauth", "a password that is refused"]).await;
        self.cmd::<u64>(primary, &["CLIENT", "KILL", "TYPE", "replica"]).await;
        wait_for("the replica has lost its primary", FORM_TIMEOUT, || async {
            let link: String = self.cmd(replica, &["INFO", "replication"]).await;
            link.contains("master_link_status:down").then_some(())
        })
        .await;
    }

    /// Waits until a node other than `former` is the primary of `shard` in every answering node's eyes.
    pub async fn succeeded(&self, shard: usize, former: NodeAt) -> NodeAt {
        let heir = wait_for("a replica takes over", FORM_TIMEOUT, || async {
            Some(self.primary(shard).await).filter(|at| *at != former)
        })
        .await;
        self.owned_everywhere(self.shards[shard].start, heir).await;
        heir
    }

    /// Nodes that are down or frozen have no say.
    async fn owned_everywhere(&self, slot: u16, node: NodeAt) {
        for port in self.ports() {
            wait_for("every node names the new owner", FORM_TIMEOUT, || async {
                let asked = tokio::time::timeout(NODE_TIMEOUT, query::<String>(port, &["CLUSTER", "NODES"]));
                let Ok(Ok(view)) = asked.await else { return Some(()) };
                let owner = owners(&view, slot).max()?.1;
                (owner == self.nodes[node].port()).then_some(())
            })
            .await;
        }
    }

    /// Ends the primary of `shard` at once and says which node that was.
    pub async fn kill_primary(&mut self, shard: usize) -> NodeAt {
        let primary = self.primary(shard).await;
        self.nodes[primary].kill9();
        primary
    }

    /// Starts a killed node again.
    pub async fn revive(&mut self, at: NodeAt) {
        self.nodes[at].restart().await;
    }

    /// Stops a node from answering.
    pub fn freeze(&self, at: NodeAt) {
        self.nodes[at].freeze();
    }

    /// Lets a node answer again.
    pub fn thaw(&self, at: NodeAt) {
        self.nodes[at].thaw();
    }

    /// Cuts every connection with a subscription, on all nodes, and says how many those are.
    pub async fn client_kill_pubsub(&self) -> u64 {
        let mut n_killed = 0;
        for node in &self.nodes {
            n_killed += node.client_kill_pubsub().await;
        }
        n_killed
    }

    /// Moves a slot with its keys while both nodes serve, in the order that Redis documents.
    pub async fn migrate_slot(&self, slot: u16, from: NodeAt, to: NodeAt) {
        let (source, target) = (self.node_id(from).await, self.node_id(to).await);
        let (text, port) = (slot.to_string(), self.nodes[to].port().to_string());
        self.cmd::<String>(to, &["CLUSTER", "SETSLOT", &text, "IMPORTING", &source]).await;
        self.cmd::<String>(from, &["CLUSTER", "SETSLOT", &text, "MIGRATING", &target]).await;
        loop {
            let keys: Vec<String> = self.cmd(from, &["CLUSTER", "GETKEYSINSLOT", &text, "100"]).await;
            if keys.is_empty() {
                break;
            }
            let mut args = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            args.extend(keys.iter().map(String::as_str));
            self.cmd::<String>(from, &args).await;
        }
        for at in [to, from] {
            self.cmd::<String>(at, &["CLUSTER", "SETSLOT", &text, "NODE", &target]).await;
        }
        self.owned_everywhere(slot, to).await;
    }

    /// Ends all nodes at once and starts them again; keys are lost, the topology is kept.
    pub async fn restart_all(&mut self) {
        for node in &mut self.nodes {
            node.kill9();
        }
        for node in &mut self.nodes {
            node.launch();
        }
        for node in &mut self.nodes {
            node.ready().await;
        }
        self.healthy().await;
    }
}

/// Epoch and port of each primary that owns `slot` in one node's view.
fn owners(view: &str, slot: u16) -> impl Iterator<Item = (u64, u16)> {
    view.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let covers = |range: &&str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bounds = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            bounds.is_some_and(|(first, last)| (first..=last).contains(&slot))
        };
        let owns = fields.get(2)?.contains("master") && fields[8..].iter().any(covers);
        owns.then(|| Some((fields[6].parse().ok()?, port_of(line)?))).flatten()
    })
}

/// Port of the node that a line of `CLUSTER NODES` is about: `<id> <host>:<port>@<bus> …`.
fn port_of(line: &str) -> Option<u16> {
    line.split_whitespace().nth(1)?.split('@').next()?.rsplit(':').next()?.parse().ok()
}
