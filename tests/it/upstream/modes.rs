//! Ways of being connected besides the plain ones: TLS, classic Pub/Sub in a cluster, sentinels, a
//! channel per instrument.

use super::listener::{Listener, cluster, standalone};
use crate::support::cluster::RedisCluster;
use crate::support::ports;
use crate::support::process::Process;
use crate::support::publisher::{CHANNEL, Publisher, Statement};
use crate::support::redis::{RedisServer, query};
use crate::support::tls::{TlsServer, certificates, path};
use crate::support::wait::{wait_for, wait_until};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tickbridge::config::{self, Channel, ChannelKind, ChannelLayout, RedisMode};
use tickbridge::upstream::subscriber::Timing;

/// On a machine that has hardly any time for us.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_server_behind_tls_is_heard_if_the_configured_ca_vouches_for_it() {
    let server = TlsServer::start(&[]).await;
    let config =
        |tls_ca| config::Redis { tls: true, tls_ca: Some(tls_ca), ..standalone(server.tls_address(), 1) };
    let listener = Listener::start(&config(server.ca())).ready().await;
    listener.join([101]);
    Publisher::standalone(server.plain(), 1).announce(&Statement::new(101, "71000.10", 1)).await;
    listener.sees(101, 1, SOON).await;

    let stranger = certificates();
    let refused = Listener::start(&config(path(&stranger, "ca.pem")));
    refused.is_unready("node_unreachable", SOON).await;
}

#[tokio::test]
async fn a_cluster_behind_tls_is_heard_also_after_its_password_has_changed() {
    let certificates = certificates();
    let user = ["--user", "svc", "on", ">old", "~*", "&*", "+@all"];
    let servers = RedisCluster::start_tls(3, &certificates, &user).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "old\n").unwrap();
    let config = config::Redis {
        tls: true,
        tls_ca: Some(path(&certificates, "ca.pem")),
        username: Some("svc".into()),
        password_file: Some(file.path().to_str().unwrap().to_owned()),
        ..cluster(servers.tls_addresses(), 16)
    };
    let listener = Listener::start(&config).ready().await;
    let mut publisher = Publisher::sharded(&servers, 16);
    listener.join(0..16);
    for id in 0..16 {
        publisher.announce(&Statement::new(id, "1.0", 1)).await;
        listener.sees(id, 1, SOON).await;
    }
    for at in 0..3 {
        servers.cmd::<()>(at, &["ACL", "SETUSER", "svc", "resetpass", ">new"]).await;
        servers.cmd::<u64>(at, &["CLIENT", "KILL", "USER", "svc"]).await;
    }
    listener.is_unready("auth_failed", SOON).await;
    for id in 0..16 {
        publisher.store(&Statement::new(id, "2.0", 2)).await;
    }
    std::fs::write(file.path(), "new\n").unwrap();
    // Subscribed again, and read again: both with the new password.
    listener.is_ready(SOON).await;
    for id in 0..16 {
        listener.sees(id, 2, SOON).await;
    }
}

#[tokio::test]
async fn classic_channels_of_a_cluster_come_through_any_node_that_is_left() {
    let servers = RedisCluster::start(3, 0).await;
    let mut config = cluster(servers.addresses(), 4);
    config.channel.kind = ChannelKind::Classic;
    let listener = Listener::start(&config).ready().await;
    listener.join(1..=4);
    let chosen = subscribed_node(&servers, &[0, 1, 2]).await;
    let other = (chosen + 1) % 3;
    publish_classic(&servers, other, 1, 1).await;
    listener.sees(1, 1, SOON).await;

    servers.freeze(chosen);
    let left: Vec<_> = (0..3).filter(|at| *at != chosen).collect();
    // The frozen node is noticed by its probe, and left because it can't be connected to.
    let heir = wait_for("another node is subscribed to", SOON * 2, || async {
        subscribed_node_now(&servers, &left).await
    })
    .await;
    publish_classic(&servers, other, 1, 2).await;
    listener.sees(1, 2, SOON).await;
    servers.thaw(chosen);
    assert_ne!(heir, chosen);
}

async fn subscribed_node(servers: &RedisCluster, among: &[usize]) -> usize {
    wait_for("a node is subscribed to", SOON, || subscribed_node_now(servers, among)).await
}

async fn subscribed_node_now(servers: &RedisCluster, among: &[usize]) -> Option<usize> {
    for &at in among {
        if servers.node(at).n_subscribers(CHANNEL).await == 1 {
            return Some(at);
        }
    }
    None
}

async fn publish_classic(servers: &RedisCluster, at: usize, id: i64, ts: i64) {
    let message = Statement::new(id, "1.0", ts).message();
    servers.cmd::<i64>(at, &["PUBLISH", &format!("{CHANNEL}:{}", id % 4), &message]).await;
}

/// A sentinel that watches `primary` alone, so that its own word is enough.
fn sentinel(primary: &RedisServer, folder: &Path) -> (Process, u16) {
    let port = ports::free();
    let conf = folder.join("sentinel.conf");
    let lines = [
        format!("port {port}"),
        "bind 127.0.0.1".to_owned(),
        format!("dir {}", folder.display()),
        format!("sentinel monitor mymaster 127.0.0.1 {} 1", primary.port()),
        "sentinel down-after-milliseconds mymaster 1000".to_owned(),
        "sentinel failover-timeout mymaster 3000".to_owned(),
    ];
    std::fs::write(&conf, lines.join("\n")).unwrap();
    let mut command = Command::new("redis-server");
    (Process::spawn(command.arg(conf).arg("--sentinel").stdout(Stdio::null())), port)
}

#[tokio::test]
async fn the_primary_that_the_sentinels_name_is_followed() {
    let (mut old, new) = (RedisServer::start().await, RedisServer::start().await);
    new.cmd::<String>(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]).await;
    let folder = tempfile::tempdir().unwrap();
    let (_sentinel, port) = sentinel(&old, folder.path());
    let config = config::Redis {
        mode: RedisMode::Sentinel,
        nodes: vec![format!("127.0.0.1:{port}")],
        ..config::Redis::default()
    };
    let listener = Listener::start(&config).ready().await;
    listener.join([101]);
    Publisher::standalone(&old, 1).announce(&Statement::new(101, "1", 1)).await;
    listener.sees(101, 1, SOON).await;
    wait_for("the sentinel knows the replica", Duration::from_secs(15), || async {
        let replicas: Vec<redis::Value> = query(port, &["SENTINEL", "REPLICAS", "mymaster"]).await.ok()?;
        (replicas.len() == 1).then_some(())
    })
    .await;

    old.kill9();
    wait_for("the replica is promoted", Duration::from_secs(20), || async {
        let role: (String, redis::Value, redis::Value) = new.try_cmd(&["ROLE"]).await.ok()?;
        (role.0 == "master").then_some(())
    })
    .await;
    wait_for("the heir is subscribed to", SOON, || async {
        (new.n_subscribers(CHANNEL).await == 1).then_some(())
    })
    .await;
    listener.is_ready(SOON).await;
    Publisher::standalone(&new, 1).announce(&Statement::new(101, "2", 2)).await;
    listener.sees(101, 2, SOON).await;
}

fn per_instrument(redis: config::Redis) -> config::Redis {
    let channel = Channel { layout: ChannelLayout::PerInstrument, ..redis.channel };
    config::Redis { channel, ..redis }
}

fn own_channel(id: i64) -> String {
    format!("{CHANNEL}:{{stock:{id}}}")
}

#[tokio::test]
async fn with_a_channel_per_instrument_only_what_is_wanted_comes() {
    let servers = RedisCluster::start(3, 0).await;
    let config = per_instrument(cluster(servers.addresses(), 1));
    let listener = Listener::start(&config).ready().await;
    let wanted: Vec<i64> = (1..=5_000).filter(|id| id % 100 == 7).collect();
    listener.join(wanted.iter().copied());
    let n_wanted = wanted.len() as f64;
    wait_until("all wanted channels are live", SOON, || {
        (listener.metric("upstream_channels_live") - n_wanted).abs() < 0.1
    })
    .await;
    let mut publisher = Publisher::sharded(&servers, 1);
    let mut n_bytes = 0;
    for id in 1..=5_000 {
        let message = Statement::new(id, "71000.10", 1).message();
        n_bytes += message.len();
        publisher.announce_raw(&own_channel(id), message.as_bytes()).await;
    }
    for id in wanted {
        listener.sees(id, 1, SOON).await;
    }
    assert!((listener.metric("upstream_messages_total") - n_wanted).abs() < 0.1);
    let share = listener.metric("upstream_message_bytes_total") / n_bytes as f64;
    assert!((0.009..0.011).contains(&share), "{share}");
}

/// Whoever opens a page would see every price called stale for a moment otherwise.
#[tokio::test]
async fn a_channel_that_somebody_begins_to_want_is_called_stale_only_if_it_does_not_come() {
    let server = RedisServer::start().await;
    let listener = Listener::start(&per_instrument(standalone(server.address(), 1))).ready().await;
    let mut publisher = Publisher::standalone(&server, 1);
    publisher.store(&Statement::new(101, "1", 1)).await;
    listener.join([101]);
    listener.sees(101, 1, SOON).await;
    wait_until("its channel is live", SOON, || listener.metric("upstream_channels_live") > 0.5).await;
    server.freeze();
    listener.join([102]);
    let is_stale = || listener.seen(102).stale.last().is_some_and(|(broken, _)| *broken);
    wait_until("the other is called stale", Duration::from_secs(1) + SOON, is_stale).await;
    server.thaw();
    wait_until("it is live after all", SOON, || !is_stale()).await;
    publisher.announce_raw(&own_channel(101), Statement::new(101, "2", 2).message().as_bytes()).await;
    listener.sees(101, 2, SOON).await;
    // The freeze may have taken its stream; its beginning has not made it stale.
    let first = listener.seen(101).stale.first().copied();
    assert!(first.is_none_or(|(_, at)| at > listener.seen(101).quotes[0].1), "{first:?}");
}

#[tokio::test]
async fn a_channel_of_its_own_lingers_and_is_let_go() {
    let server = RedisServer::start().await;
    let config = per_instrument(standalone(server.address(), 1));
    let linger = Duration::from_secs(1);
    let listener = Listener::start_with(&config, Timing { linger, ..Timing::default() }).ready().await;
    let mut publisher = Publisher::standalone(&server, 1);
    listener.join([101, 102]);
    let subscribed = async |id| server.n_subscribers(&own_channel(id)).await;
    wait_for("both are subscribed to", SOON, || async {
        (subscribed(101).await + subscribed(102).await == 2).then_some(())
    })
    .await;
    publisher.announce_raw(&own_channel(101), Statement::new(101, "1", 1).message().as_bytes()).await;
    listener.sees(101, 1, SOON).await;

    // One comes back within the linger, as after a reload; the other doesn't.
    let left = Instant::now();
    listener.leave([101, 102]);
    listener.join([102]);
    wait_for("the one that nobody wants is let go", linger + SOON, || async {
        (subscribed(101).await == 0).then_some(())
    })
    .await;
    assert!(left.elapsed() >= linger);
    assert_eq!(subscribed(102).await, 1);
    listener.is_ready(SOON).await;

    // What was missed meanwhile comes from the key, although an older quote is in memory.
    publisher.store(&Statement::new(101, "5", 5)).await;
    listener.join([101]);
    listener.sees(101, 5, SOON).await;
}

#[tokio::test]
async fn thousands_of_channels_are_asked_for_in_few_writes_and_survive_a_cut() {
    let servers = RedisCluster::start(3, 0).await;
    let config = per_instrument(cluster(servers.addresses(), 1));
    let listener = Listener::start(&config).ready().await;
    listener.join(1..=5_000);
    let all_live = || (listener.metric("upstream_channels_live") - 5_000.0).abs() < 0.1;
    wait_until("all channels are live", SOON, all_live).await;
    assert_eq!(servers.client_kill_pubsub().await, 3);
    wait_until("they are lost", SOON, || !all_live()).await;
    wait_until("all channels are live again", SOON, all_live).await;
    listener.is_ready(SOON).await;
}
