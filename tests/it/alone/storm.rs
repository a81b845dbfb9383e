//! A reconnect storm: everybody comes at once, and goes at once. What it costs Redis is counted on the wire.

use crate::support::cluster::RedisCluster;
use crate::support::gateway::Gateway;
use crate::support::ports;
use crate::support::publisher::{Publisher, Statement};
use crate::support::swarm::Swarm;
use crate::support::wait::wait_for;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::task::JoinSet;

const USERS: usize = 2_500;
const TOPICS: i64 = 20;
const INSTRUMENTS: i64 = 1_000;

fn topics(user: usize) -> Vec<i64> {
    // 37 and 49 share no factor with a thousand, so that instruments are watched evenly.
    (0..TOPICS).map(|n| 1 + (user as i64 * 37 + n * 49) % INSTRUMENTS).collect()
}

/// Round trips through a proxy: requests that follow an answer, by what the first of them is about.
#[derive(Default)]
struct RoundTrips {
    watchers: AtomicU64,
    snapshots: AtomicU64,
}

impl RoundTrips {
    fn all(&self) -> (u64, u64) {
        (self.watchers.load(Ordering::Relaxed), self.snapshots.load(Ordering::Relaxed))
    }

    fn count(&self, request: &[u8]) {
        let about = |words: &[u8]| request.windows(words.len()).any(|window| window == words);
        if about(b"current-watcher:") {
            self.watchers.fetch_add(1, Ordering::Relaxed);
        } else if about(b"current-price:") {
            self.snapshots.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A proxy in front of each node, which the nodes call their address.
struct Counted {
    addresses: Vec<String>,
    trips: Arc<RoundTrips>,
    _tasks: JoinSet<()>,
}

impl Counted {
    async fn in_front_of(cluster: &RedisCluster) -> Self {
        let (mut addresses, mut tasks) = (Vec::new(), JoinSet::new());
        let trips = Arc::<RoundTrips>::default();
        for at in 0..cluster.ports().len() {
            let port = ports::free();
            let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
            tasks.spawn(accept(listener, cluster.node(at).port(), Arc::clone(&trips)));
            cluster.cmd::<()>(at, &["CONFIG", "SET", "cluster-announce-port", &port.to_string()]).await;
            addresses.push(format!("127.0.0.1:{port}"));
        }
        for at in 0..addresses.len() {
            wait_for("every node knows the new addresses", Duration::from_secs(20), || async {
                let view: String = cluster.cmd(at, &["CLUSTER", "NODES"]).await;
                addresses.iter().all(|address| view.contains(&format!("{address}@"))).then_some(())
            })
            .await;
        }
        Self { addresses, trips, _tasks: tasks }
    }
}

async fn accept(listener: TcpListener, to: u16, trips: Arc<RoundTrips>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let trips = Arc::clone(&trips);
        connections.spawn(async move {
            let server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            let asking = AtomicBool::new(false);
            let requests = carry(from_client, to_server, |chunk| {
                if !asking.swap(true, Ordering::SeqCst) {
                    trips.count(chunk);
                }
            });
            let answers = carry(from_server, to_client, |_| asking.store(false, Ordering::SeqCst));
            tokio::join!(requests, answers);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, mut see: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        see(&buffer[..n]);
        if to.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
}

async fn n_members(cluster: &RedisCluster) -> usize {
    let script = "local n = 0 for _, key in ipairs(redis.call('KEYS', 'market:current-watcher:*')) do \
                  n = n + redis.call('SCARD', key) end return n";
    let mut n = 0;
    for at in 0..cluster.ports().len() {
        n += cluster.cmd::<usize>(at, &["EVAL", script, "0"]).await;
    }
    n
}

/// The service that this replaces needed 135,000 round trips, its best version one or two per user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnect_storm_costs_redis_tens_of_round_trips() {
    let cluster = RedisCluster::start(3, 0).await;
    let mut publisher = Publisher::sharded(&cluster, 4);
    for id in 1..=INSTRUMENTS {
        publisher.store(&Statement::new(id, "71000.10", 1)).await;
    }
    let counted = Counted::in_front_of(&cluster).await;
    let builder = Gateway::builder().cluster(&cluster).partitions(4);
    // Timers as deployed: short ones would measure the clients' machine.
    let builder = builder.set("auth.timeout", "'30s'").set("session.heartbeat_interval", "'20s'");
    let builder = builder.set("session.pong_timeout", "'45s'").set("redis.command_timeout", "'2s'");
    let gateway = builder.set("redis.nodes", &format!("{:?}", counted.addresses)).start().await;
    let before = counted.trips.all();
    let since = |(watchers, snapshots): (u64, u64)| {
        let (w, s) = counted.trips.all();
        (w - watchers, s - snapshots)
    };

    let started = Instant::now();
    let swarm = Swarm::connect(&gateway, USERS, topics).await;
    let connected = started.elapsed();
    swarm.all_at(1, topics, Duration::from_secs(30)).await;
    let priced = started.elapsed();
    wait_for("all members are written", Duration::from_secs(20), || async {
        (n_members(&cluster).await == USERS * TOPICS as usize).then_some(())
    })
    .await;
    let come = since(before);
    let before_end = counted.trips.all();
    drop(swarm);
    wait_for("all members are gone", Duration::from_secs(30), || async {
        (n_members(&cluster).await == 0).then_some(())
    })
    .await;
    let gone = since(before_end);
    println!(
        "{USERS} users x {TOPICS} instruments: connected and subscribed in {connected:.2?}, all prices in \
         {priced:.2?}; round trips to come: {} for watchers, {} for snapshots; to go: {} for watchers",
        come.0, come.1, gone.0
    );
    // What is spread over a longer time can't be gathered: three pipelines each third of a second, and as many
    // for the renewal, each two seconds.
    let all = come.0 + come.1 + gone.0 + gone.1;
    let slow = 15 * started.elapsed().as_secs().saturating_sub(5);
    assert!(all < 200 + slow, "{come:?} to come, {gone:?} to go, {:?}", started.elapsed());
    // Of the snapshots alone most users need none, because another has had them read.
    assert!(come.1 <= 3 * INSTRUMENTS as u64 / 10, "{} reads", come.1);
}
