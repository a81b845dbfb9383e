//! Faults of a cluster, under traffic. Each test says how long the instruments behind the fault may be
//! without quotes, that the others don't notice, and that all end on the newest price.

use super::listener::{Listener, cluster};
use super::packets::{DroppedPackets, port_of};
use super::scene::{HICCUP, PARTITIONS, SOON, Scene, measured, shard_of};
use super::traffic::Traffic;
use crate::support::cluster::{NodeAt, RedisCluster};
use crate::support::ports;
use crate::support::publisher::{CHANNEL, price_key, slot};
use crate::support::wait::{let_pass, wait_for, wait_until};
use std::process::Command;
use std::time::{Duration, Instant};

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
    scene.all_move(SOON).await;
    measured("primary killed, promotion included", scene.longest_gap(&behind, before));
    let undisturbed = scene.longest_gap(&others, before);
    assert!(undisturbed < HICCUP, "{undisturbed:?}");
    assert_ne!(heir, killed);
    scene.servers.revive(killed).await;
    scene.settles().await;
}

/// The base channel is for publishers that don't use partitions.
#[tokio::test]
async fn the_loss_of_the_base_channel_marks_nobody_whose_quotes_come_elsewhere() {
    let mut scene = Scene::new(0).await;
    let shard = shard_of(CHANNEL);
    let (behind, others) = scene.behind(shard);
    let before = Instant::now();
    let is_stale =
        |scene: &Scene, id| scene.listener.seen(id).stale.iter().any(|(broken, at)| *broken && *at >= before);
    let killed = scene.servers.kill_primary(shard).await;
    for &id in &behind {
        wait_until("what is behind is stale", SOON, || is_stale(&scene, id)).await;
    }
    for &id in &others {
        let newest = scene.traffic.newest(id);
        wait_until("the others go on", SOON, || scene.listener.seen(id).newest() > newest).await;
        assert!(!is_stale(&scene, id), "{id} is called stale");
    }
    scene.servers.revive(killed).await;
    scene.servers.healthy().await;
    scene.settles().await;
}

/// R05: first the slot of a channel moves, then that of an instrument's keys, both with what is in them.
#[tokio::test]
async fn moved_slots_are_followed_and_let_go_where_they_were() {
    const KEYS: usize = 300;
    let scene = Scene::new(0).await;
    let channel = format!("{CHANNEL}:{{0}}");
    let id = scene.ids.iter().copied().find(|&id| Scene::channel(id) == channel).unwrap();
    let others: Vec<_> = scene.ids.iter().copied().filter(|other| *other != id).collect();
    let of_channel = slot(&channel);
    let (from, to) = (scene.servers.owner(of_channel).await, scene.other_than_owner(of_channel).await);
    for n in 0..KEYS {
        scene.servers.cmd::<()>(from, &["SET", &format!("filler:{n}:{{0}}"), "x"]).await;
    }
    let before = Instant::now();
    scene.servers.migrate_slot(of_channel, from, to).await;
    scene.all_move(SOON).await;
    let (gap, undisturbed) = (scene.longest_gap(&[id], before), scene.longest_gap(&others, before));
    measured("slot of a channel moved", gap);
    assert!(gap < SOON && undisturbed < HICCUP, "{gap:?}, others {undisturbed:?}");
    let left: (String, u64) = scene.servers.cmd(from, &["PUBSUB", "SHARDNUMSUB", &channel]).await;
    assert_eq!(left.1, 0);
    let count = ["CLUSTER", "COUNTKEYSINSLOT", &of_channel.to_string()];
    assert_eq!(scene.servers.cmd::<usize>(to, &count).await, KEYS);

    let other = others[0];
    let of_key = slot(&price_key(other));
    let (from, to) = (scene.servers.owner(of_key).await, scene.other_than_owner(of_key).await);
    let before = Instant::now();
    scene.servers.migrate_slot(of_key, from, to).await;
    scene.all_move(SOON).await;
    let gap = scene.longest_gap(&scene.ids, before);
    measured("slot of price keys moved", gap);
    assert!(gap < SOON, "{gap:?}");
    assert!(scene.servers.cmd::<Option<String>>(to, &["GET", &price_key(other)]).await.is_some());
    scene.settles().await;
}

#[tokio::test]
async fn a_frozen_primary_is_left_for_its_heir_and_a_pause_is_waited_out() {
    let scene = Scene::new(3).await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let primary = scene.servers.primary(shard).await;
    let n_lost = scene.listener.metric("upstream_connections_lost_total");
    let before = Instant::now();
    scene.servers.freeze(primary);
    let_pass(Duration::from_secs(1)).await;
    scene.servers.thaw(primary);
    scene.all_move(SOON).await;
    measured("primary frozen for 1 s", scene.longest_gap(&behind, before));
    assert!((scene.listener.metric("upstream_connections_lost_total") - n_lost).abs() < 0.1);

    let before = Instant::now();
    scene.servers.freeze(primary);
    scene.servers.succeeded(shard, primary).await;
    scene.all_move(SOON).await;
    measured("primary frozen for 10 s, promotion included", scene.longest_gap(&behind, before));
    let undisturbed = scene.longest_gap(&others, before);
    assert!(undisturbed < HICCUP, "{undisturbed:?}");
    let_pass(Duration::from_secs(10).saturating_sub(before.elapsed())).await;
    let thawed = Instant::now();
    scene.servers.thaw(primary);
    scene.settles().await;
    measured("thawed, until all is settled", thawed.elapsed());
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
    assert!(undisturbed < HICCUP, "{undisturbed:?}");
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
    wait_for("the others call the cluster down", SOON, || async {
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
    scene.settles().await;
}
