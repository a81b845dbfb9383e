//! Faults of a server that stands alone.

use super::listener::{Listener, cluster, standalone};
use super::packets::{DroppedPackets, port_of};
use crate::support::chaos::ChaosProxy;
use crate::support::ports;
use crate::support::publisher::{CHANNEL, Publisher, Statement};
use crate::support::redis::{RedisServer, connect};
use crate::support::wait::{let_pass, wait_for};
use std::time::{Duration, Instant};
use tickbridge::config;
use tickbridge::upstream::probe::ProbeTiming;
use tickbridge::upstream::subscriber::Timing;

/// On a machine that has hardly any time for us.
const SOON: Duration = Duration::from_secs(10);

/// Address and id of the connection that is subscribed to the base channel.
async fn subscription(server: &RedisServer) -> Option<(String, String)> {
    let list: String = server.try_cmd(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.ok()?;
    let field = |name: &str| {
        let fields = list.lines().next()?.split(' ');
        fields.into_iter().find_map(|field| field.strip_prefix(name)).map(str::to_owned)
    };
    Some((field("addr=")?, field("id=")?))
}

/// R01
#[tokio::test]
async fn a_killed_subscription_comes_back_and_a_price_of_the_gap_is_read_from_its_key() {
    let mut server = RedisServer::start().await;
    let listener = Listener::start(&standalone(server.address(), 1)).ready().await;
    let mut publisher = Publisher::standalone(&server, 1);
    listener.join([101]);
    publisher.announce(&Statement::new(101, "71000.10", 1)).await;
    listener.sees(101, 1, SOON).await;

    assert_eq!(server.client_kill_pubsub().await, 1);
    wait_for("the channel has its subscriber again", SOON, || async {
        (server.n_subscribers(CHANNEL).await == 1).then_some(())
    })
    .await;
    publisher.announce(&Statement::new(101, "71500", 2)).await;
    listener.sees(101, 2, SOON).await;
    assert!((listener.metric("upstream_connections_lost_total") - 1.0).abs() < 0.1);

    server.kill9();
    listener.is_unready("node_unreachable", SOON).await;
    listener.is_unready("channels_not_subscribed", SOON).await;
    server.restart().await;
    publisher.store(&Statement::new(101, "72000", 3)).await;
    listener.sees(101, 3, SOON).await;
    listener.is_ready(SOON).await;
    publisher.announce(&Statement::new(101, "72500", 4)).await;
    listener.sees(101, 4, SOON).await;
    assert!(listener.metric("upstream_resubscribes_total") >= 2.0);
    let stale = listener.seen(101).stale;
    assert!(stale.iter().any(|(broken, _)| *broken) && stale.last().is_some_and(|(broken, _)| !broken));
}

/// R03: the kernel would go on retransmitting for many minutes.
#[tokio::test]
async fn a_connection_whose_packets_are_dropped_is_replaced() {
    let server = RedisServer::start().await;
    let listener = Listener::start(&standalone(server.address(), 1)).ready().await;
    let mut publisher = Publisher::standalone(&server, 1);
    listener.join([101]);
    let (address, _) = subscription(&server).await.unwrap();
    let Some(_drop) = DroppedPackets::of_port(port_of(&address)) else {
        return eprintln!("NOT RUN: dropping packets needs root and iptables");
    };
    let dropped = Instant::now();
    wait_for("another connection is subscribed", SOON, || async {
        let list: String = server.cmd(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        list.lines().any(|line| !line.contains(&address)).then_some(())
    })
    .await;
    eprintln!("measured packets dropped: {:.2?}", dropped.elapsed());
    assert!(dropped.elapsed() > Duration::from_secs(1), "a pause is no death");
    publisher.announce(&Statement::new(101, "71000.10", 1)).await;
    listener.sees(101, 1, SOON).await;
    listener.is_ready(SOON).await;
}

/// R09
#[tokio::test]
async fn bad_messages_are_counted_and_stop_nothing() {
    let server = RedisServer::start().await;
    let listener = Listener::start(&standalone(server.address(), 1)).ready().await;
    let mut publisher = Publisher::standalone(&server, 1);
    listener.join([101]);
    let before = subscription(&server).await;
    let huge = vec![b'x'; 5 * 1024 * 1024];
    let bad: [&[u8]; 9] = [
        b"",
        b"foo",
        b"{",
        &[0xff, 0xfe, 0],
        b"[]",
        b"null",
        br#"{"stockId":"101","close":1}"#,
        br#"{"stockId":101.5,"close":1}"#,
        &huge,
    ];
    for payload in bad {
        publisher.announce_raw(CHANNEL, payload).await;
    }
    // An instrument alone is valid, and says nothing.
    publisher.announce_raw(CHANNEL, br#"{"stockId":101}"#).await;
    publisher.announce(&Statement::new(101, "71000.10", 1_760_000_000_001)).await;
    listener.sees(101, 1_760_000_000_001, SOON).await;
    assert!((listener.metric("upstream_payloads_dropped_total") - 9.0).abs() < 0.1);
    assert_eq!(subscription(&server).await, before);
}

#[tokio::test]
async fn a_server_that_pauses_loses_nothing_and_one_that_stays_frozen_is_given_up() {
    let server = RedisServer::start().await;
    let listener = Listener::start(&standalone(server.address(), 1)).ready().await;
    let mut publisher = Publisher::standalone(&server, 1);
    listener.join([101]);
    server.freeze();
    let_pass(Duration::from_secs(1)).await;
    server.thaw();
    publisher.announce(&Statement::new(101, "1", 1)).await;
    listener.sees(101, 1, SOON).await;
    assert!(listener.metric("upstream_connections_lost_total") < 0.1);

    server.freeze();
    let frozen = Instant::now();
    listener.is_unready("probe_silent", SOON).await;
    assert!(frozen.elapsed() > Duration::from_secs(1));
    server.thaw();
    listener.is_ready(SOON).await;
    publisher.announce(&Statement::new(101, "2", 2)).await;
    listener.sees(101, 2, SOON).await;
}

/// R14, the Pub/Sub side of it.
#[tokio::test]
async fn a_demoted_server_is_left_for_the_one_that_its_name_leads_to() {
    let (old, new) = (RedisServer::start().await, RedisServer::start().await);
    let name = ChaosProxy::start(&old.address()).await;
    let listener = Listener::start(&standalone(name.address(), 1)).ready().await;
    listener.join([101]);
    old.cmd::<String>(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).await;
    listener.is_unready("read_only", SOON).await;
    assert_eq!(old.n_subscribers(CHANNEL).await, 1, "nothing better is known yet");

    let named = Instant::now();
    name.lead_to(&new.address());
    wait_for("the new primary is subscribed to", SOON, || async {
        (new.n_subscribers(CHANNEL).await == 1).then_some(())
    })
    .await;
    eprintln!("measured demoted server, from the moment its name leads on: {:.2?}", named.elapsed());
    listener.is_ready(SOON).await;
    assert_eq!(old.n_subscribers(CHANNEL).await, 0);
    Publisher::standalone(&new, 1).announce(&Statement::new(101, "1", 1)).await;
    listener.sees(101, 1, SOON).await;
}

#[tokio::test]
async fn a_name_that_leads_to_another_server_is_noticed_by_the_probe() {
    let (old, new) = (RedisServer::start().await, RedisServer::start().await);
    let name = ChaosProxy::start(&old.address()).await;
    let probes = ProbeTiming { publisher_age: Duration::from_secs(2), ..ProbeTiming::default() };
    let timing = Timing { probes, ..Timing::default() };
    let listener = Listener::start_with(&standalone(name.address(), 1), timing).ready().await;
    name.lead_to(&new.address());
    wait_for("the other server is subscribed to", SOON, || async {
        (new.n_subscribers(CHANNEL).await == 1).then_some(())
    })
    .await;
    listener.is_ready(SOON).await;
}

/// Nothing on the connections tells that they lead to another server by now.
#[tokio::test]
async fn a_proxy_that_reconnects_to_the_wrong_server_is_noticed_by_the_probe() {
    let (old, new) = (RedisServer::start().await, RedisServer::start().await);
    let proxy = ChaosProxy::start(&old.address()).await;
    let listener = Listener::start(&standalone(proxy.address(), 1)).ready().await;
    listener.join([101]);
    let led = Instant::now();
    proxy.reconnect_to(&new.address());
    wait_for("the other server is subscribed to", SOON, || async {
        (new.n_subscribers(CHANNEL).await == 1).then_some(())
    })
    .await;
    eprintln!("measured proxy that reconnects to another server: {:.2?}", led.elapsed());
    Publisher::standalone(&new, 1).announce(&Statement::new(101, "1", 1)).await;
    listener.sees(101, 1, SOON).await;
    listener.is_ready(SOON).await;
}

#[tokio::test]
async fn probes_that_can_not_be_sent_and_owners_that_nobody_knows_are_named() {
    let server = RedisServer::start().await;
    let probes = ProbeTiming { publisher_age: Duration::from_secs(1), ..ProbeTiming::default() };
    let timing = Timing { probes, ..Timing::default() };
    let mut control = connect(server.port()).await.unwrap();
    let mut admit = async |n: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg(&["SET", "maxclients", n]).query_async::<()>(&mut control).await.unwrap();
    };
    let listener = Listener::start_with(&standalone(server.address(), 1), timing).ready().await;
    admit("1").await;
    listener.is_unready("probe_failing", SOON).await;
    admit("10000").await;
    listener.is_ready(SOON).await;
    assert!(
        listener.metric("upstream_connections_lost_total") < 0.1,
        "the subscription was well all the time"
    );

    let nobody = Listener::start(&cluster(vec![format!("127.0.0.1:{}", ports::free())], 4));
    nobody.is_unready("topology_unknown", SOON).await;
}

/// R16
#[tokio::test]
async fn refused_channels_are_named_and_come_back_with_the_grant() {
    let server = RedisServer::start().await;
    let acl = async |rule: &str| server.cmd::<String>(&["ACL", "SETUSER", "svc", rule]).await;
    for rule in ["on", ">pw", "~market:*", "+@all", "resetchannels"] {
        acl(rule).await;
    }
    let password = Some(config::Secret::new("pw".into()));
    let username = Some("svc".into());
    let config = config::Redis { username, password, ..standalone(server.address(), 1) };
    let listener = Listener::start(&config);
    listener.join([101]);
    listener.is_unready("channel_denied", SOON).await;
    let named = listener.readiness.reasons().iter().any(|(_, detail)| detail.contains(CHANNEL));
    assert!(named, "{:?}", listener.readiness.reasons());
    let_pass(Duration::from_secs(3)).await;

    acl("&market:*").await;
    listener.is_ready(SOON).await;
    let mut publisher = Publisher::standalone(&server, 1);
    publisher.announce(&Statement::new(101, "1", 1)).await;
    listener.sees(101, 1, SOON).await;

    acl("resetchannels").await;
    listener.is_unready("channel_denied", SOON).await;
    acl("&market:*").await;
    listener.is_ready(SOON).await;
    publisher.announce(&Statement::new(101, "2", 2)).await;
    listener.sees(101, 2, SOON).await;
}

#[tokio::test]
async fn an_acl_that_allows_our_channels_by_name_costs_the_proof_and_nothing_else() {
    let server = RedisServer::start().await;
    for rule in ["on", ">pw", "~market:*", "+@all", "resetchannels", "&market:price-updated"] {
        server.cmd::<String>(&["ACL", "SETUSER", "svc", rule]).await;
    }
    let password = Some(config::Secret::new("pw".into()));
    let username = Some("svc".into());
    let config = config::Redis { username, password, ..standalone(server.address(), 1) };
    let listener = Listener::start(&config).ready().await;
    listener.join([101]);
    Publisher::standalone(&server, 1).announce(&Statement::new(101, "1", 1)).await;
    listener.sees(101, 1, SOON).await;
    server.freeze();
    listener.is_unready("probe_silent", SOON).await;
    server.thaw();
    listener.is_ready(SOON).await;
}

#[tokio::test]
async fn a_refused_password_is_named_and_the_file_is_read_again() {
    let server = RedisServer::start().await;
    server.cmd::<String>(&["CONFIG", "SET", "requirepass", "right"]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "wrong\n").unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let config = config::Redis { password_file: Some(path), ..standalone(server.address(), 1) };
    let listener = Listener::start(&config);
    listener.is_unready("auth_failed", SOON).await;
    std::fs::write(file.path(), "right\n").unwrap();
    listener.is_ready(SOON).await;
}
