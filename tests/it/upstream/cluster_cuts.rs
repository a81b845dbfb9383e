//! Faults of one node's connections, and of what it allows, under traffic: the others don't notice, and
//! all end on the newest price.

use super::packets::{DroppedPackets, port_of};
use super::scene::{HICCUP, SOON, Scene, measured};
use crate::support::cluster::NodeAt;
use crate::support::publisher::{Publisher, price_key};
use crate::support::redis::connect;
use crate::support::wait::{wait_for, wait_until};
use std::time::{Duration, Instant};
use tickbridge::config::Secret;

/// Addresses of the connections with subscriptions at a node.
async fn subscriptions(scene: &Scene, at: NodeAt) -> Vec<String> {
    let list: String = scene.servers.cmd(at, &["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    let address =
        |line: &str| line.split(' ').find_map(|field| field.strip_prefix("addr=").map(str::to_owned));
    list.lines().filter_map(address).collect()
}

#[tokio::test]
async fn killed_connections_come_back_at_once() {
    let scene = Scene::new(0).await;
    let before = Instant::now();
    assert_eq!(scene.servers.client_kill_pubsub().await, 3);
    scene.all_move(SOON).await;
    let gap = scene.longest_gap(&scene.ids, before);
    measured("CLIENT KILL on all nodes", gap);
    assert!(gap < SOON, "{gap:?}");
    scene.settles().await;
}

#[tokio::test]
async fn a_connection_that_is_cut_off_for_its_backlog_comes_back() {
    let scene = Scene::new(0).await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let primary = scene.servers.primary(shard).await;
    let limit = async |limit: &str| {
        let set = ["CONFIG", "SET", "client-output-buffer-limit", limit];
        scene.servers.cmd::<String>(primary, &set).await;
    };
    limit("pubsub 64kb 0 0").await;
    let mut publisher = Publisher::sharded(&scene.servers, super::scene::PARTITIONS);
    let before = Instant::now();
    publisher.announce_raw(&Scene::channel(behind[0]), &vec![b'x'; 256 * 1024]).await;
    limit("pubsub 32mb 8mb 60").await;
    let is_lost = || scene.listener.metric("upstream_connections_lost_total") > 0.5;
    wait_until("the connection is lost", SOON, is_lost).await;
    scene.all_move(SOON).await;
    let (gap, undisturbed) = (scene.longest_gap(&behind, before), scene.longest_gap(&others, before));
    measured("output buffer overflow", gap);
    assert!(gap < SOON && undisturbed < HICCUP, "{gap:?}, others {undisturbed:?}");
    scene.settles().await;
}

/// The kernel would go on waiting for hours: nothing is sent that could be missed.
#[tokio::test]
async fn a_half_open_connection_is_replaced() {
    let scene = Scene::new(0).await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let primary = scene.servers.primary(shard).await;
    let open = subscriptions(&scene, primary).await;
    assert_eq!(open.len(), 1, "{open:?}");
    let before = Instant::now();
    let Some(_dropped) = DroppedPackets::of_port(port_of(&open[0])) else {
        return eprintln!("NOT RUN: dropping packets needs root and iptables");
    };
    wait_for("another connection is subscribed", SOON, || async {
        subscriptions(&scene, primary).await.iter().any(|address| *address != open[0]).then_some(())
    })
    .await;
    scene.all_move(SOON).await;
    let (gap, undisturbed) = (scene.longest_gap(&behind, before), scene.longest_gap(&others, before));
    measured("half-open connection, packets dropped", gap);
    assert!(gap > Duration::from_secs(1), "a pause is no death: {gap:?}");
    assert!(undisturbed < HICCUP, "{undisturbed:?}");
    scene.settles().await;
}

#[tokio::test]
async fn channels_that_one_node_denies_cost_the_others_nothing_and_come_back_with_the_grant() {
    let user = ["--user", "svc", "on", ">pw", "~*", "&*", "+@all"];
    let scene = Scene::new_as(0, &user, |config| {
        config.username = Some("svc".into());
        config.password = Some(Secret::new("pw".into()));
    })
    .await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let primary = scene.servers.primary(shard).await;
    let acl = async |rule: &str| {
        scene.servers.cmd::<String>(primary, &["ACL", "SETUSER", "svc", rule]).await;
    };
    let before = Instant::now();
    acl("resetchannels").await;
    scene.listener.is_unready("channel_denied", SOON).await;
    for &id in &behind {
        let is_stale = || scene.listener.seen(id).stale.last().is_some_and(|(broken, _)| *broken);
        wait_until("what is behind is stale", SOON, is_stale).await;
    }
    let granted = Instant::now();
    acl("&*").await;
    scene.all_move(SOON).await;
    measured("channel denied, from the grant on", granted.elapsed());
    let undisturbed = scene.longest_gap(&others, before);
    assert!(undisturbed < HICCUP, "{undisturbed:?}");
    scene.settles().await;
}

/// Subscriptions work while a server loads its data, and keys don't: only half of a stream is there.
#[tokio::test]
async fn a_server_that_loads_its_data_is_named_and_waited_for() {
    const KEYS: usize = 2_000;
    // A millisecond per key, during which it answers now and then.
    let slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let mut scene = Scene::new_as(0, &slow, |_| {}).await;
    let shard = Scene::shard();
    let (behind, others) = scene.behind(shard);
    let primary = scene.servers.primary(shard).await;
    let tag = price_key(behind[0]);
    let mut connection = connect(scene.servers.node(primary).port()).await.unwrap();
    let mut fill = redis::pipe();
    for n in 0..KEYS {
        fill.cmd("SET").arg(format!("filler:{n}:{tag}")).arg("x".repeat(200)).ignore();
    }
    fill.query_async::<()>(&mut connection).await.unwrap();
    scene.servers.cmd::<String>(primary, &["SAVE"]).await;
    let before = Instant::now();
    assert_eq!(scene.servers.kill_primary(shard).await, primary);
    scene.listener.is_unready("node_unreachable", SOON).await;
    let Scene { servers, listener, .. } = &mut scene;
    tokio::join!(servers.revive(primary), listener.is_unready("loading", SOON));
    servers.healthy().await;
    let loaded = Instant::now();
    scene.all_move(SOON).await;
    measured("server that loads its data, after the cluster is healthy", loaded.elapsed());
    let undisturbed = scene.longest_gap(&others, before);
    assert!(undisturbed < HICCUP, "{undisturbed:?}");
    scene.settles().await;
}
