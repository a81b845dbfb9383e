//! Faults of a cluster, under traffic. Each test says how long the instruments behind the fault may be
//! without quotes, that the others don't notice, and that all end on the newest price.

use super::listener::{Listener, cluster};
use super::packets::{DroppedPackets, port_of};
use super::traffic::Traffic;
use crate::support::cluster::{NodeAt, RedisCluster};
use crate::support::ports;
use crate::support::publisher::{CHANNEL, price_key, slot};
use crate::support::wait::{let_pass, wait_for, wait_until};
use std::process::Command;
use std::time::{Duration, Instant};
use tickbridge::instrument::InstrumentId;

const PARTITIONS: u32 = 16;

/// After the fault is over.
const SOON: Duration = Duration::from_secs(2);

/// What a busy machine may hold up anything, fault or not.
const HICCUP: Duration = Duration::from_millis(900);

/// Shown by `--nocapture`: what the table of faults in the operator's documents is made of.
fn measured(fault: &str, silence: Duration) {
    eprintln!("measured {fault}: {silence:.2?}");
}

/// Which of three shards a name belongs to at the start.
fn shard_of(name: &str) -> usize {
    usize::from(slot(name)) * 3 / 16_384
}

/// A cluster, a listener and traffic on one instrument per partition.
struct Scene {
    servers: RedisCluster,
    listener: Listener,
    traffic: Traffic,
    ids: Vec<i64>,
}

impl Scene {
    async fn new(replicas: usize) -> Self {
        // Otherwise all publishers stop for the time in which one shard has no primary.
        let conf = ["--cluster-require-full-coverage", "no"];
        let servers = RedisCluster::start_with(3, replicas, &conf).await;
        let listener = Listener::start(&cluster(servers.addresses(), PARTITIONS)).ready().await;
        // An instrument per partition whose key is in the same shard as its channel: a publisher stops
        // when either is gone.
        let in_one_shard = |id: &i64| shard_of(&price_key(*id)) == shard_of(&Self::channel(*id));
        let of = |p: i64| (0..).map(|n| p + n * i64::from(PARTITIONS)).find(in_one_shard);
        let ids: Vec<i64> = (0..i64::from(PARTITIONS)).filter_map(of).collect();
        listener.join(ids.iter().copied());
        let traffic = Traffic::start(&servers, PARTITIONS, &ids);
        let scene = Self { servers, listener, traffic, ids };
        scene.all_move(Duration::from_secs(10)).await;
        scene
    }

    fn channel(id: i64) -> String {
        format!("{CHANNEL}:{{{}}}", InstrumentId::new(id).partition(PARTITIONS))
    }

    /// Instruments whose partition is in the slots of a shard of the start, and the others.
    fn behind(&self, shard: usize) -> (Vec<i64>, Vec<i64>) {
        self.ids.iter().partition(|id| shard_of(&Self::channel(**id)) == shard)
    }

    /// The shard without the base channel, whose loss makes everything stale (but stops nothing).
    fn shard() -> usize {
        (shard_of(CHANNEL) + 1) % 3
    }

    /// Waits until every instrument shows a quote that was published after now.
    async fn all_move(&self, within: Duration) {
        let published: Vec<_> = self.ids.iter().map(|&id| (id, self.traffic.newest(id))).collect();
        for (id, newest) in published {
            let what = format!("instrument {id} moves past {newest}");
            wait_until(&what, within, || self.listener.seen(id).newest() > newest).await;
        }
    }

    /// The longest that any of `ids` was without a quote since `since`.
    fn longest_gap(&self, ids: &[i64], since: Instant) -> Duration {
        ids.iter().map(|&id| self.listener.seen(id).longest_gap(since)).max().unwrap_or_default()
    }

    /// Ends the traffic; all instruments end on their newest price, live, with nothing left to complain.
    async fn settles(self) {
        self.all_move(SOON).await;
        self.listener.is_ready(SOON).await;
        for (id, newest) in self.traffic.stop().await {
            let what = format!("instrument {id} ends at {newest}");
            wait_until(&what, SOON, || self.listener.seen(id).newest() == newest).await;
            let stale = self.listener.seen(id).stale;
            assert!(stale.last().is_none_or(|(broken, _)| !broken), "{id} is still stale: {stale:?}");
        }
    }
}

/// R07: after a reconnect all channels come back, and none of them by way of a refused command.
#[tokio::test]
async fn all_channels_of_one_node_come_back_although_they_are_in_different_slots() {
    let servers = RedisCluster::start(1, 0).await;
    let listener = Listener::start(&cluster(servers.addresses(), 4)).ready().await;
    let ids = [100, 101, 102, 103];
    listener.join(ids);
    servers.cmd::<String>(0, &["CONFIG", "RESETSTAT"]).await;
    assert_eq!(servers.client_kill_pubsub().await, 1);
    wait_for("all channels and the probe are subscribed again", SOON, || async {
        let channels: Vec<String> = servers.cmd(0, &["PUBSUB", "SHARDCHANNELS"]).await;
        (channels.len() == 6).then_some(())
    })
    .await;
    let traffic = Traffic::start(&servers, 4, &ids);
    for id in ids {
        wait_until("quotes come", SOON, || listener.seen(id).newest() > 1).await;
    }
    drop(traffic.stop().await);
    let errors: String = servers.cmd(0, &["INFO", "errorstats"]).await;
    assert!(!errors.contains("CROSSSLOT"), "{errors}");
}

#[tokio::test]
async fn killed_connections_come_back_at_once() {
    let scene = Scene::new(0).await;
    let before = Instant::now();
    assert_eq!(scene.servers.client_kill_pubsub().await, 3);
    scene.all_move(SOON).await;
    let gap = scene.longest_gap(&scene.ids, before);
    measured("CLIENT KILL on all nodes", gap);
    assert!(gap < HICCUP, "{gap:?}");
    scene.settles().await;
}

#[tokio::test]
async fn a_manual_failover_is_followed() {
    let scene = Scene::new(3).await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let before = Instant::now();
    scene.servers.fail_over(shard).await;
    scene.all_move(SOON).await;
    let (gap, undisturbed) = (scene.longest_gap(&behind, before), scene.longest_gap(&others, before));
    measured("manual failover", gap);
    assert!(gap < SOON && undisturbed < HICCUP, "{gap:?}, others {undisturbed:?}");
    scene.settles().await;
}

#[tokio::test]
async fn the_heir_of_a_killed_primary_is_followed_as_soon_as_there_is_one() {
    let mut scene = Scene::new(3).await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let before = Instant::now();
    let killed = scene.servers.kill_primary(shard).await;
    scene.listener.is_unready("node_unreachable", SOON).await;
    let heir = scene.servers.succeeded(shard, killed).await;
    let promoted = Instant::now();
    scene.all_move(SOON).await;
    assert!(promoted.elapsed() < SOON);
    measured("primary killed, promotion included", scene.longest_gap(&behind, before));
    let undisturbed = scene.longest_gap(&others, before);
    assert!(undisturbed < HICCUP * 2, "{undisturbed:?}");
    assert_ne!(heir, killed);
    scene.servers.revive(killed).await;
    scene.settles().await;
}

/// R05
#[tokio::test]
async fn a_moved_slot_is_followed_and_let_go_where_it_was() {
    let scene = Scene::new(0).await;
    let channel = format!("{CHANNEL}:{{0}}");
    let slot = slot(&channel);
    let id = scene.ids.iter().copied().find(|&id| Scene::channel(id) == channel).unwrap();
    let others: Vec<_> = scene.ids.iter().copied().filter(|other| *other != id).collect();
    let (from, to) = (scene.servers.owner(slot).await, scene.shard_other_than(slot).await);
    let before = Instant::now();
    scene.servers.migrate_slot(slot, from, to).await;
    scene.all_move(SOON).await;
    let (gap, undisturbed) = (scene.longest_gap(&[id], before), scene.longest_gap(&others, before));
    measured("slot moved", gap);
    assert!(gap < HICCUP && undisturbed < HICCUP, "{gap:?}, others {undisturbed:?}");
    let left: (String, u64) = scene.servers.cmd(from, &["PUBSUB", "SHARDNUMSUB", &channel]).await;
    assert_eq!(left.1, 0);
    scene.settles().await;
}

impl Scene {
    async fn shard_other_than(&self, slot: u16) -> NodeAt {
        let owner = self.servers.owner(slot).await;
        (0..3).find(|at| *at != owner).unwrap()
    }
}

#[tokio::test]
async fn a_frozen_primary_is_left_for_its_heir_and_a_pause_is_waited_out() {
    let scene = Scene::new(3).await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let primary = scene.servers.primary(shard).await;
    let n_lost = scene.listener.metric("upstream_connections_lost_total");
    scene.servers.freeze(primary);
    let_pass(Duration::from_secs(1)).await;
    scene.servers.thaw(primary);
    scene.all_move(SOON).await;
    assert!((scene.listener.metric("upstream_connections_lost_total") - n_lost).abs() < 0.1);

    let before = Instant::now();
    scene.servers.freeze(primary);
    scene.servers.succeeded(shard, primary).await;
    scene.all_move(SOON).await;
    measured("primary frozen for 10 s, promotion included", scene.longest_gap(&behind, before));
    let undisturbed = scene.longest_gap(&others, before);
    assert!(undisturbed < HICCUP * 2, "{undisturbed:?}");
    let_pass(Duration::from_secs(10).saturating_sub(before.elapsed())).await;
    scene.servers.thaw(primary);
    scene.settles().await;
}

/// A primary that is cut off from the others, but not from us, goes on believing in itself.
#[tokio::test]
async fn an_isolated_primary_is_left_for_its_heir() {
    let scene = Scene::new(3).await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let isolated = scene.servers.primary(shard).await;
    let Some(rules) = isolate(&scene.servers, isolated).await else {
        return eprintln!("NOT RUN: dropping packets needs root and iptables");
    };
    let before = Instant::now();
    wait_for("a replica takes over", Duration::from_secs(20), || async {
        (scene.servers.primary(shard).await != isolated).then_some(())
    })
    .await;
    scene.all_move(SOON).await;
    measured("primary isolated, promotion included", scene.longest_gap(&behind, before));
    let undisturbed = scene.longest_gap(&others, before);
    assert!(undisturbed < HICCUP * 2, "{undisturbed:?}");
    drop(rules);
    scene.settles().await;
}

/// Cuts a node's bus off: what comes to its own port, what it opens from now on, and what is open.
async fn isolate(servers: &RedisCluster, at: NodeAt) -> Option<Vec<DroppedPackets>> {
    const ALIAS: &str = "127.0.9.9";
    servers.cmd::<String>(at, &["CONFIG", "SET", "bind-source-addr", ALIAS]).await;
    let bus = |node: NodeAt| servers.node(node).port() + ports::BUS_OFFSET;
    let mut ports = vec![bus(at)];
    let pid = format!("pid={},", servers.node(at).process().pid());
    let open = Command::new("ss").args(["-tnpH"]).output().ok()?;
    for line in String::from_utf8_lossy(&open.stdout).lines().filter(|line| line.contains(&pid)) {
        let fields: Vec<_> = line.split_whitespace().collect();
        if (0..servers.ports().len()).any(|node| node != at && bus(node) == port_of(fields[4])) {
            ports.push(port_of(fields[3]));
        }
    }
    let rules = ports.into_iter().map(DroppedPackets::of_port);
    rules.chain([DroppedPackets::of_address(ALIAS)]).collect()
}

#[tokio::test]
async fn a_cluster_that_calls_itself_down_is_asked_until_it_is_up() {
    let conf = ["--cluster-allow-pubsubshard-when-down", "no"];
    let mut servers = RedisCluster::start_with(3, 0, &conf).await;
    let listener = Listener::start(&cluster(servers.addresses(), PARTITIONS)).ready().await;
    let killed = servers.kill_primary(Scene::shard()).await;
    listener.is_unready("node_unreachable", SOON).await;
    wait_for("the others call the cluster down", Duration::from_secs(10), || async {
        let state: String = servers.cmd((killed + 1) % 3, &["CLUSTER", "INFO"]).await;
        state.contains("cluster_state:fail").then_some(())
    })
    .await;
    servers.node((killed + 1) % 3).client_kill_pubsub().await;
    listener.is_unready("cluster_down", SOON).await;
    servers.revive(killed).await;
    servers.healthy().await;
    listener.is_ready(SOON).await;
}

#[tokio::test]
async fn a_restart_of_the_whole_cluster_is_survived() {
    let mut scene = Scene::new(0).await;
    scene.servers.restart_all().await;
    let healed = Instant::now();
    scene.all_move(SOON).await;
    measured("whole cluster restarted, after it is healthy", healed.elapsed());
    assert!(healed.elapsed() < SOON);
    scene.settles().await;
}
