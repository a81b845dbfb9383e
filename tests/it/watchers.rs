//! The watcher registry against real servers: what the publisher sees of it.
//!
//! Not here: what a storm of sessions costs (`alone::storm`).

use super::redis_commands::Client;
use super::support::chaos::ChaosProxy;
use super::support::cluster::RedisCluster;
use super::support::publisher::watcher_key;
use super::support::redis::RedisServer;
use super::support::wait::{wait_for, wait_until};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tickbridge::config;
use tickbridge::instrument::InstrumentId;
use tickbridge::session::WatchRegistry;
use tickbridge::upstream::watchers::Watchers;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(1);

/// A registry at work, as a replica has one.
struct Replica {
    watchers: Arc<Watchers>,
    task: JoinHandle<()>,
    client: Client,
}

impl Replica {
    fn start(address: &str, name: &str, renew_interval: Duration) -> Self {
        Self::with(Client::of(address), name, renew_interval)
    }

    fn with(client: Client, name: &str, renew_interval: Duration) -> Self {
        let config = config::Watchers { renew_interval, ..Default::default() };
        let (commands, metrics) = (Arc::clone(&client.commands), Arc::clone(&client.metrics));
        let watchers = Arc::new(Watchers::new(&config, name, 1_000_000, commands, metrics));
        let running = Arc::clone(&watchers);
        let task = tokio::spawn(async move { running.run().await });
        Self { watchers, task, client }
    }

    fn watch(&self, user: &str, ids: impl IntoIterator<Item = i64>) {
        let user = user.into();
        ids.into_iter().for_each(|id| self.watchers.watched(&user, InstrumentId::new(id)));
    }

    fn unwatch(&self, user: &str, ids: impl IntoIterator<Item = i64>) {
        let user = user.into();
        ids.into_iter().for_each(|id| self.watchers.unwatched(&user, InstrumentId::new(id)));
    }

    async fn close(self) {
        self.watchers.close(Instant::now() + Duration::from_secs(5)).await;
        self.task.await.unwrap();
    }

    /// Ends it as a killed process would.
    fn die(self) {
        self.task.abort();
    }
}

async fn members(server: &RedisServer, id: i64) -> BTreeSet<String> {
    server.cmd(&["SMEMBERS", &watcher_key(id)]).await
}

async fn until_members(server: &RedisServer, id: i64, expected: &[&str], within: Duration) {
    let expected: BTreeSet<String> = expected.iter().map(|member| (*member).to_owned()).collect();
    // A machine that has hardly any time for us takes longer than the registry does.
    wait_for(&format!("{expected:?} watch {id}"), within.max(SOON * 20), || async {
        (members(server, id).await == expected).then_some(())
    })
    .await;
}

const CALM: Duration = Duration::from_secs(120);

/// R19: three tabs of one user on two replicas.
#[tokio::test]
async fn a_user_watches_until_the_last_session_of_the_last_replica_leaves() {
    let server = RedisServer::start().await;
    let [x, y] = ["x", "y"].map(|name| Replica::start(&server.address(), name, CALM));
    for replica in [&x, &x, &y] {
        replica.watch("7", [101]);
    }
    until_members(&server, 101, &["7@x", "7@y"], SOON).await;
    let ttl: u64 = server.cmd(&["TTL", &watcher_key(101)]).await;
    assert!((590..=600).contains(&ttl), "{ttl}");
    // Another change shows when the registry has seen the one that must change nothing.
    x.unwatch("7", [101]);
    x.watch("8", [102]);
    until_members(&server, 102, &["8@x"], SOON).await;
    assert_eq!(members(&server, 101).await.len(), 2);
    x.unwatch("7", [101]);
    until_members(&server, 101, &["7@y"], SOON).await;
    y.unwatch("7", [101]);
    until_members(&server, 101, &[], SOON).await;
}

#[tokio::test]
async fn what_could_not_be_written_is_written_as_soon_as_it_can() {
    let server = RedisServer::start().await;
    let proxy = ChaosProxy::start(&server.address()).await;
    let replica = Replica::start(&proxy.address(), "x", CALM);
    replica.watch("1", [1, 2]);
    until_members(&server, 1, &["1@x"], SOON).await;
    proxy.cut();
    replica.unwatch("1", [1]);
    replica.watch("2", [2, 3]);
    wait_for("a write has failed", SOON * 3, || async {
        let name = r#"tickbridge_watcher_writes_total{result="failed"}"#;
        (replica.client.metric(name) > 0.0).then_some(())
    })
    .await;
    proxy.restore();
    until_members(&server, 1, &[], SOON * 3).await;
    until_members(&server, 2, &["1@x", "2@x"], SOON).await;
    until_members(&server, 3, &["2@x"], SOON).await;
}

/// A frozen server executes what nobody waits for any more, after the repetition and after the opposite.
#[tokio::test]
async fn a_write_that_comes_late_changes_nothing_in_the_end() {
    let server = RedisServer::start().await;
    let proxy = ChaosProxy::start(&server.address()).await;
    // No renewal and no heartbeat comes in between, so that the counts are those of the writes.
    let config = config::Redis { command_timeout: Duration::from_millis(500), ..Default::default() };
    let client = Client::with(&proxy.address(), &config);
    let replica = Replica::with(client, "x", Duration::from_secs(86_400));
    replica.watch("2", [2]);
    until_members(&server, 2, &["2@x"], SOON * 3).await;
    wait_for("the replica shows that it lives", SOON * 3, || async {
        server.cmd::<bool>(&["SISMEMBER", "tickbridge:{replica}", "x"]).await.then_some(())
    })
    .await;
    let n_sent = || replica.client.metric("tickbridge_redis_pipelines_total");
    let before = n_sent();
    proxy.delay(Duration::from_secs(1));
    replica.watch("1", [1]);
    replica.unwatch("2", [2]);
    wait_until("the changes are on their way", SOON * 3, || n_sent() > before).await;
    replica.unwatch("1", [1]);
    replica.watch("2", [2]);
    wait_until("nobody waits for them any more", SOON * 5, || {
        replica.client.metric(r#"tickbridge_watcher_writes_total{result="failed"}"#) > 0.0
    })
    .await;
    proxy.restore();
    wait_for("the changes and their opposites are executed", SOON * 5, || async {
        (server.n_calls("srem").await >= 2).then_some(())
    })
    .await;
    until_members(&server, 1, &[], SOON * 10).await;
    until_members(&server, 2, &["2@x"], SOON * 10).await;
    replica.close().await;
    assert_eq!(server.cmd::<Vec<String>>(&["KEYS", "*"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn members_that_were_lost_come_back_with_the_renewal() {
    let server = RedisServer::start().await;
    let replica = Replica::start(&server.address(), "x", SOON);
    replica.watch("1", 1..=100);
    until_members(&server, 100, &["1@x"], SOON).await;
    server.cmd::<()>(&["DEL", &watcher_key(50)]).await;
    server.cmd::<()>(&["EXPIRE", &watcher_key(51), "5"]).await;
    until_members(&server, 50, &["1@x"], SOON * 3).await;
    wait_for("the time to live is renewed", SOON * 3, || async {
        (server.cmd::<i64>(&["TTL", &watcher_key(51)]).await > 5).then_some(())
    })
    .await;
}

/// A renewal of everything at once would be a burst; each tick of a sixtieth takes a sixtieth.
#[tokio::test]
async fn renewal_is_spread_over_its_interval() {
    let server = RedisServer::start().await;
    let replica = Replica::start(&server.address(), "x", Duration::from_secs(6));
    replica.watch("1", 1..=600);
    until_members(&server, 600, &["1@x"], SOON).await;
    let before = server.n_calls("expire").await;
    let (mut last, mut looked) = (before, Instant::now());
    let end = looked + Duration::from_secs(3);
    while looked < end {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (n, now) = (server.n_calls("expire").await, Instant::now());
        let due = (now - looked).as_millis() as u64 / 10;
        assert!(n - last <= 2 * due + 50, "{} renewals where {due} are due", n - last);
        (last, looked) = (n, now);
    }
    assert!(last - before >= 50, "{} renewals in half of the interval", last - before);
}

#[tokio::test]
async fn a_clean_stop_leaves_nothing() {
    let cluster = RedisCluster::start(3, 0).await;
    let replica = Replica::start(&cluster.node(0).address(), "x", CALM);
    for user in 0..10 {
        replica.watch(&user.to_string(), 1..=200);
    }
    wait_for("members are written", SOON * 5, || async {
        (cluster.cmd::<i64>(0, &["DBSIZE"]).await > 50).then_some(())
    })
    .await;
    replica.close().await;
    for at in 0..3 {
        assert_eq!(cluster.cmd::<Vec<String>>(at, &["KEYS", "*"]).await, Vec::<String>::new());
    }
}

/// What a dead replica left would count as watched for as long as others renew the same keys.
#[tokio::test]
async fn the_members_of_a_dead_replica_are_removed_by_another() {
    let server = RedisServer::start().await;
    let renew = Duration::from_secs(2);
    let [x, y, z] = ["x", "y", "z"].map(|name| Replica::start(&server.address(), name, renew));
    x.watch("1", [101, 102]);
    y.watch("2", [101]);
    z.watch("3@y", [103]);
    until_members(&server, 101, &["1@x", "2@y"], SOON).await;
    until_members(&server, 102, &["1@x"], SOON).await;
    x.die();
    until_members(&server, 101, &["2@y"], renew * 2).await;
    until_members(&server, 102, &[], renew).await;
    until_members(&server, 103, &["3@y@z"], SOON).await;
    wait_for("the dead one is forgotten", SOON, || async {
        let replicas: BTreeSet<String> = server.cmd(&["SMEMBERS", "tickbridge:{replica}"]).await;
        (replicas == BTreeSet::from(["y".into(), "z".into()])).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_replica_without_the_right_to_a_heartbeat_still_writes_its_watchers() {
    let server = RedisServer::start().await;
    server.cmd::<()>(&["ACL", "SETUSER", "svc", "on", ">pw", "~market:*", "+@all"]).await;
    let config = config::Redis {
        username: Some("svc".into()),
        password: Some(config::Secret::new("pw".into())),
        ..Default::default()
    };
    let replica = Replica::with(Client::with(&server.address(), &config), "x", SOON);
    replica.watch("1", [1]);
    until_members(&server, 1, &["1@x"], SOON).await;
}

/// R14, as far as commands go: a name that leads to a demoted server, and then to the promoted one.
#[tokio::test]
async fn a_demoted_server_is_left_for_the_one_that_the_name_leads_to_now() {
    let [a, b] = [RedisServer::start().await, RedisServer::start().await];
    let name = ChaosProxy::start(&a.address()).await;
    let replica = Replica::start(&name.address(), "x", CALM);
    replica.watch("1", [101]);
    until_members(&a, 101, &["1@x"], SOON).await;
    a.cmd::<()>(&["REPLICAOF", "127.0.0.1", &b.port().to_string()]).await;
    name.lead_to(&b.address());
    replica.watch("7", [102]);
    until_members(&b, 102, &["7@x"], SOON * 10).await;
}
