//! The stream while all is well.

use super::listener::{Listener, cluster, standalone};
use crate::support::cluster::RedisCluster;
use crate::support::publisher::{CHANNEL, Publisher, Statement};
use crate::support::redis::RedisServer;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_standalone_server_is_heard_on_the_base_channel_and_every_partition() {
    let server = RedisServer::start().await;
    let listener = Listener::start(&standalone(server.address(), 4)).ready().await;
    let mut publisher = Publisher::standalone(&server, 4);
    listener.join(1..=8);
    for id in 1..=8 {
        assert_eq!(publisher.announce(&Statement::new(id, "71000.10", 1)).await, 1);
        listener.sees(id, 1, SOON).await;
    }
    let message = Statement::new(1, "0.0", 2).message();
    publisher.announce_raw(CHANNEL, message.as_bytes()).await;
    listener.sees(1, 2, SOON).await;
    assert!(listener.seen(1).quotes[0].2.contains(r#""price":71000.10,"#));
}

#[tokio::test]
async fn a_cluster_is_heard_on_every_shard() {
    let servers = RedisCluster::start(3, 0).await;
    let listener = Listener::start(&cluster(servers.addresses(), 64)).ready().await;
    assert!((listener.metric("upstream_connections") - 3.0).abs() < 0.1);
    let mut publisher = Publisher::sharded(&servers, 64);
    listener.join(0..64);
    for id in 0..64 {
        publisher.announce(&Statement::new(id, "1.50", 1)).await;
    }
    for id in 0..64 {
        listener.sees(id, 1, SOON).await;
    }
    let channels: Vec<String> = servers.cmd(0, &["PUBSUB", "SHARDCHANNELS"]).await;
    let probes = channels.iter().filter(|name| name.contains(":probe:")).count();
    assert_eq!(probes, 1, "{channels:?}");
}
