//! Commands to real servers: routing, redirects, isolation of nodes, connections that break.

use super::support::chaos::ChaosProxy;
use super::support::cluster::RedisCluster;
use super::support::publisher::{Publisher, Statement, price_key, slot, updated_at_key};
use super::support::redis::RedisServer;
use super::support::wait::{in_time, let_pass};
use redis::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickbridge::catch_up::{SnapshotSource, Stored};
use tickbridge::config;
use tickbridge::instrument::InstrumentId;
use tickbridge::metrics::Metrics;
use tickbridge::quote::{Field, Version};
use tickbridge::upstream::commands::failure::Kind;
use tickbridge::upstream::commands::{Commands, Routed};
use tickbridge::upstream::connection::Connector;
use tickbridge::upstream::slots::NodeAddr;
use tickbridge::upstream::snapshot::RedisSnapshots;
use tickbridge::upstream::topology::Topology;

/// Longer than any answer takes on a machine that has hardly any time for us.
const TIMEOUT: Duration = Duration::from_secs(2);

pub struct Client {
    pub commands: Arc<Commands>,
    pub metrics: Arc<Metrics>,
    snapshots: RedisSnapshots,
}

impl Client {
    /// A client that believes `address` to own every slot.
    pub fn of(address: &str) -> Self {
        Self::with(address, &config::Redis { command_timeout: TIMEOUT, ..Default::default() })
    }

    pub fn with(address: &str, config: &config::Redis) -> Self {
        let topology = Arc::new(Topology::single(NodeAddr::parse(address).unwrap()));
        let metrics = Arc::new(Metrics::new("tickbridge"));
        let connector = Arc::new(Connector::new(config));
        let commands = Arc::new(Commands::new(connector, topology, config, Arc::clone(&metrics)));
        let snapshots = RedisSnapshots::new(Arc::clone(&commands), 1_000, Arc::clone(&metrics));
        Self { commands, metrics, snapshots }
    }

    async fn read(&self, ids: &[i64]) -> Vec<(i64, Stored)> {
        let ids = ids.iter().copied().map(InstrumentId::new).collect();
        let stored = in_time("a read", TIMEOUT * 3, self.snapshots.read(ids)).await;
        stored.into_iter().map(|(id, stored)| (id.get(), stored)).collect()
    }

    /// Prices by id; `None` where there is no quote.
    async fn prices(&self, ids: &[i64]) -> Vec<(i64, Option<String>)> {
        let price = |stored| match stored {
            Stored::Quote(quote) => Some(quote.field(Field::Price)?.to_owned()),
            _ => None,
        };
        self.read(ids).await.into_iter().map(|(id, stored)| (id, price(stored))).collect()
    }

    /// The value of a metric's line that begins with `name`, labels included.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.render();
        let line =
            text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
    }
}

fn get(id: i64) -> Routed {
    let key = price_key(id);
    Routed { slot: slot(&key), command: redis::cmd("GET").arg(key).to_owned() }
}

fn priced(prices: &[(i64, &str)]) -> Vec<(i64, Option<String>)> {
    prices.iter().map(|&(id, price)| (id, Some(price.to_owned()))).collect()
}

#[tokio::test]
async fn a_stored_price_has_the_time_of_its_updated_at_key_unless_it_has_its_own() {
    let server = RedisServer::start().await;
    let client = Client::of(&server.address());
    for (id, value) in [(1, r#"{"stockId":1,"price":1.50}"#), (2, r#"{"price":2.0,"ts":5,"seq":9}"#)] {
        server.cmd::<()>(&["SET", &price_key(id), value]).await;
        server.cmd::<()>(&["SET", &updated_at_key(id), "1700000000123"]).await;
    }
    let version = |stored: &Stored| match stored {
        Stored::Quote(quote) => quote.version,
        other => panic!("{other:?}"),
    };
    let read = client.read(&[1, 2]).await;
    assert_eq!(version(&read[0].1), Version { seq: None, ts: Some(1_700_000_000_123), of_write: true });
    assert_eq!(version(&read[1].1), Version { seq: Some(9), ts: Some(5), of_write: false });
}

#[tokio::test]
async fn what_is_no_price_is_counted_by_reason_and_disturbs_nobody() {
    let server = RedisServer::start().await;
    let client = Client::of(&server.address());
    server.cmd::<()>(&["HSET", &price_key(1), "a", "1"]).await;
    server.cmd::<()>(&["SET", &price_key(2), "nonsense"]).await;
    server.cmd::<()>(&["SET", &price_key(3), &format!(r#"{{"price":{}}}"#, "1".repeat(5_000))]).await;
    server.cmd::<()>(&["SET", &price_key(5), r#"{"stockId":5,"price":5.0}"#]).await;
    let read = client.read(&[1, 2, 3, 4, 5]).await;
    let kinds: Vec<_> = read.iter().map(|(_, stored)| std::mem::discriminant(stored)).collect();
    let [unusable, absent] = [Stored::Unusable, Stored::Absent].map(|stored| std::mem::discriminant(&stored));
    assert_eq!(kinds[..4], [unusable, unusable, unusable, absent]);
    assert!(matches!(read[4].1, Stored::Quote(_)));
    for reason in ["wrong_type", "not_json", "too_large"] {
        let name = format!(r#"tickbridge_snapshot_keys_unusable_total{{reason="{reason}"}}"#);
        assert_eq!(client.metric(&name), 1.0, "{reason}");
    }
}

/// R12: after an error inside a pipeline every later answer still reaches its own question.
#[tokio::test]
async fn an_error_inside_a_pipeline_shifts_no_answer() {
    let server = RedisServer::start().await;
    let client = Arc::new(Client::of(&server.address()));
    for id in [101, 103, 104] {
        server.cmd::<()>(&["SET", &price_key(id), &format!(r#"{{"price":{}.5}}"#, id * 10)]).await;
    }
    server.cmd::<()>(&["HSET", &price_key(102), "a", "1"]).await;
    let rounds = (0..50).map(|_| {
        let client = Arc::clone(&client);
        tokio::spawn(async move {
            for _ in 0..40 {
                let mut expected = priced(&[(101, "1010.5"), (102, ""), (103, "1030.5")]);
                expected[1].1 = None;
                assert_eq!(client.prices(&[101, 102, 103]).await, expected);
                assert_eq!(client.prices(&[104]).await, priced(&[(104, "1040.5")]));
            }
        })
    });
    for round in rounds.collect::<Vec<_>>() {
        round.await.unwrap();
    }
    let counted = client.metric(r#"tickbridge_snapshot_keys_unusable_total{reason="wrong_type"}"#);
    assert_eq!(counted, 2_000.0);
}

/// R18: keys of three primaries, found by redirects alone; then a primary that is frozen.
#[tokio::test]
async fn one_read_spans_all_primaries_and_a_dead_one_costs_its_own_keys_only() {
    let cluster = RedisCluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]).await;
    let mut publisher = Publisher::sharded(&cluster, 4);
    for id in [101, 102, 201] {
        publisher.store(&Statement::new(id, "1.0", 1)).await;
    }
    let client = Client::of(&cluster.node(0).address());
    let all = priced(&[(101, "1.0"), (102, "1.0"), (201, "1.0")]);
    assert_eq!(client.prices(&[101, 102, 201]).await, all);
    let moved = client.metric(r#"tickbridge_redis_redirects_total{kind="moved"}"#);
    assert_eq!(moved, 4.0, "two keys of two foreign slots");
    assert_eq!(client.prices(&[101, 102, 201]).await, all);
    assert_eq!(client.metric(r#"tickbridge_redis_redirects_total{kind="moved"}"#), moved);

    let frozen = cluster.owner(slot(&price_key(102))).await;
    cluster.freeze(frozen);
    let read = client.read(&[101, 102, 201]).await;
    cluster.thaw(frozen);
    assert!(matches!(read[0].1, Stored::Quote(_)) && matches!(read[2].1, Stored::Quote(_)), "{read:?}");
    assert!(matches!(read[1].1, Stored::Failed), "{read:?}");
}

#[tokio::test]
async fn ask_is_followed_for_the_key_that_has_left_already() {
    let cluster = RedisCluster::start(3, 0).await;
    let mut publisher = Publisher::sharded(&cluster, 1);
    publisher.store(&Statement::new(101, "1.0", 1)).await;
    let number = slot(&price_key(101)).to_string();
    let (from, to) = (cluster.owner(slot(&price_key(101))).await, cluster.primary(0).await);
    let id = async |at| cluster.cmd::<String>(at, &["CLUSTER", "MYID"]).await;
    let (source, target) = (id(from).await, id(to).await);
    cluster.cmd::<()>(to, &["CLUSTER", "SETSLOT", &number, "IMPORTING", &source]).await;
    cluster.cmd::<()>(from, &["CLUSTER", "SETSLOT", &number, "MIGRATING", &target]).await;
    let port = cluster.node(to).port().to_string();
    for key in [price_key(101), updated_at_key(101)] {
        cluster.cmd::<()>(from, &["MIGRATE", "127.0.0.1", &port, &key, "0", "1000"]).await;
    }

    let client = Client::of(&cluster.node(from).address());
    assert_eq!(client.prices(&[101]).await, priced(&[(101, "1.0")]));
    assert_eq!(client.metric(r#"tickbridge_redis_redirects_total{kind="ask"}"#), 2.0);
    let owner = client.commands.topology().owner(slot(&price_key(101))).unwrap();
    assert_eq!(owner.port(), cluster.node(from).port(), "ASK changes no owner");
}

/// R62: a server or middlebox that closes idle connections goes unnoticed.
#[tokio::test]
async fn connections_that_were_closed_while_idle_are_replaced_quietly() {
    let server = RedisServer::start().await;
    let client = Arc::new(Client::of(&server.address()));
    server.cmd::<()>(&["SET", &price_key(1), r#"{"price":1.0}"#]).await;
    assert_eq!(client.prices(&[1]).await, priced(&[(1, "1.0")]));
    server.cmd::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    assert_eq!(client.prices(&[1]).await, priced(&[(1, "1.0")]));

    server.cmd::<()>(&["CONFIG", "SET", "timeout", "1"]).await;
    for _ in 0..2 {
        let_pass(Duration::from_secs(3)).await;
        let sessions = (0..20).map(|_| {
            let client = Arc::clone(&client);
            tokio::spawn(async move { client.prices(&[1]).await })
        });
        for session in sessions.collect::<Vec<_>>() {
            assert_eq!(session.await.unwrap(), priced(&[(1, "1.0")]));
        }
    }
}

/// R10: an answer that comes late must not reach the next question, and nothing waits for ever.
#[tokio::test]
async fn a_call_that_ended_early_leaves_no_answer_behind() {
    let server = RedisServer::start().await;
    let proxy = ChaosProxy::start(&server.address()).await;
    let config = config::Redis { command_timeout: TIMEOUT, pool_size: 1, ..Default::default() };
    let client = Client::with(&proxy.address(), &config);
    for id in [1, 2] {
        server.cmd::<()>(&["SET", &price_key(id), &format!(r#"{{"price":{id}.0}}"#)]).await;
    }
    assert_eq!(client.prices(&[1]).await, priced(&[(1, "1.0")]));
    // Cancelled by its caller while the answer is on its way.
    proxy.hold_responses(Duration::from_millis(200));
    let read = client.read(&[1]);
    assert!(tokio::time::timeout(Duration::from_millis(50), read).await.is_err());
    assert_eq!(client.prices(&[2]).await, priced(&[(2, "2.0")]));
    // Given up at its deadline.
    proxy.hold_responses(TIMEOUT * 3);
    let started = Instant::now();
    assert!(matches!(client.read(&[1]).await[0].1, Stored::Failed));
    assert!(started.elapsed() < TIMEOUT * 2);
    proxy.restore();
    assert_eq!(client.prices(&[2]).await, priced(&[(2, "2.0")]));
}

#[tokio::test]
async fn refusals_are_told_apart() {
    let server = RedisServer::start().await;
    let client = Client::of(&server.address());
    let set = || Routed { slot: 0, command: redis::cmd("SET").arg("a").arg("1").to_owned() };
    let kind = async |command: Routed| match client.commands.run(vec![command]).await.remove(0) {
        Ok(Value::Okay) => None,
        Ok(other) => panic!("{other:?}"),
        Err(failure) => Some(failure.kind),
    };
    assert_eq!(kind(set()).await, None);
    server.cmd::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_eq!(kind(set()).await, Some(Kind::ReadOnly));
    server.cmd::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(kind(set()).await, None);
    server.cmd::<()>(&["ACL", "SETUSER", "default", "-set"]).await;
    assert_eq!(kind(set()).await, Some(Kind::NoPermission));
    server.cmd::<()>(&["ACL", "SETUSER", "default", "+set"]).await;
    server.cmd::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(kind(set()).await, Some(Kind::OutOfMemory));
}

#[tokio::test]
async fn a_password_that_changed_is_read_again() {
    let server = RedisServer::start().await;
    server.cmd::<()>(&["ACL", "SETUSER", "svc", "on", ">old", "~*", "+@all"]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let config = config::Redis {
        username: Some("svc".into()),
        password_file: Some(path.clone()),
        ..Default::default()
    };
    let client = Client::with(&server.address(), &config);
    let kind = async || client.commands.run(vec![get(1)]).await.remove(0).map_err(|failure| failure.kind);
    std::fs::write(&path, "old\n").unwrap();
    assert_eq!(kind().await, Ok(Value::Nil));
    server.cmd::<()>(&["ACL", "SETUSER", "svc", "resetpass", ">new"]).await;
    server.cmd::<u64>(&["CLIENT", "KILL", "USER", "svc"]).await;
    assert_eq!(kind().await, Err(Kind::NoPermission));
    std::fs::write(&path, "new\n").unwrap();
    assert_eq!(kind().await, Ok(Value::Nil));
}
