//! Three replicas rolled one after the other under load: at most so many reconnect at once, nobody is away for
//! long, and nobody is left on an old price.

use crate::support::gateway::Gateway;
use crate::support::publisher::{CHANNEL, Statement, price_key};
use crate::support::redis::{RedisServer, connect};
use crate::support::swarm::{Delays, Seen, follow, open, raise_descriptors};
use crate::support::wait::{wait_for, wait_until};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const CLIENTS: usize = 5_000;
const REPLICAS: usize = 3;
const INSTRUMENTS: i64 = 200;
const TOPICS: i64 = 3;

/// As deployed.
const RECONNECT_RATE: usize = 500;

/// Quotes between two pauses of the publisher, and the pause.
const AT_ONCE: usize = 10;
const PAUSE: Duration = Duration::from_millis(50);

fn topics(client: usize) -> Vec<i64> {
    (0..TOPICS).map(|k| (client as i64 * TOPICS + k) % INSTRUMENTS + 1).collect()
}

/// What all clients note.
#[derive(Default)]
struct Notes {
    /// When a client was back, and for how long it was away.
    returns: Mutex<Vec<(Instant, Duration)>>,
    /// Clients per replica.
    connected: [AtomicUsize; REPLICAS],
}

impl Notes {
    /// Whether every client is connected, and none to a replica that is `gone`: one that has yet to notice its end
    /// would go to a peer that is next.
    fn all_connected(&self, gone: Option<usize>) -> bool {
        let on = |i: usize| self.connected[i].load(Ordering::Relaxed);
        (0..REPLICAS).map(on).sum::<usize>() == CLIENTS && gone.is_none_or(|gone| on(gone) == 0)
    }
}

/// Stays connected to one of the replicas: after the end of a session it goes to the next one, not before it was
/// told to.
async fn client(
    i: usize,
    replicas: [SocketAddr; REPLICAS],
    seen: Arc<Seen>,
    notes: Arc<Notes>,
    turn: Arc<Semaphore>,
) {
    let (ids, user, delays) = (topics(i), format!("user-{i}"), Delays::default());
    let mut at = i % REPLICAS;
    let opening = turn.acquire_owned().await.unwrap();
    let mut ws = open(replicas[at], &user, &ids).await;
    drop(opening);
    loop {
        notes.connected[at].fetch_add(1, Ordering::Relaxed);
        follow(ws, &seen, &delays).await;
        let ended = Instant::now();
        notes.connected[at].fetch_sub(1, Ordering::Relaxed);
        seen.forget();
        let not_before = seen.not_before.lock().unwrap().take().expect("a drain tells before it closes");
        tokio::time::sleep_until(not_before.into()).await;
        // Spread over the peers whichever replica it leaves.
        at = (at + 1 + i / REPLICAS % (REPLICAS - 1)) % REPLICAS;
        ws = open(replicas[at], &user, &ids).await;
        notes.returns.lock().unwrap().push((Instant::now(), ended.elapsed()));
    }
}

/// The newest version of each instrument in its key.
type Stored = Arc<Vec<AtomicI64>>;

/// Stores and announces until told to stop.
async fn publish(port: u16, stored: Stored, stop: Arc<AtomicBool>) {
    let mut connection = connect(port).await.unwrap();
    let mut id = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut pipeline = redis::pipe();
        for _ in 0..AT_ONCE {
            id = (id + 77) % INSTRUMENTS;
            let version = stored[id as usize].fetch_add(1, Ordering::Relaxed) + 1;
            let statement = Statement {
                more: format!(r#""ts":{version}"#),
                ts: None,
                ..Statement::new(id + 1, "71000.10", 0)
            };
            pipeline.cmd("SET").arg(price_key(id + 1)).arg(statement.stored()).ignore();
            pipeline.cmd("PUBLISH").arg(CHANNEL).arg(statement.message()).ignore();
        }
        pipeline.query_async::<()>(&mut connection).await.unwrap();
        tokio::time::sleep(PAUSE).await;
    }
}

/// The most returns within any second.
fn highest_rate(returns: &[(Instant, Duration)]) -> usize {
    let mut moments: Vec<Instant> = returns.iter().map(|(at, _)| *at).collect();
    moments.sort();
    let within =
        |(i, from): (usize, &Instant)| moments.partition_point(|at| *at < *from + Duration::from_secs(1)) - i;
    moments.iter().enumerate().map(within).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_three_replicas_leaves_nobody_on_an_old_price() {
    raise_descriptors(2 * CLIENTS as u64 + 1_000);
    let server = RedisServer::start().await;
    let mut gateways = Vec::new();
    for _ in 0..REPLICAS {
        let builder = Gateway::builder().redis(&server).set("auth.timeout", "'30s'");
        let builder = builder.set("session.heartbeat_interval", "'20s'").set("session.pong_timeout", "'45s'");
        let builder = builder.set("session.slow_consumer_grace", "'20s'").set("drain.notice", "'500ms'");
        let rate = RECONNECT_RATE.to_string();
        gateways
            .push(builder.set("drain.deadline", "'25s'").set("drain.reconnect_rate", &rate).start().await);
    }
    let replicas: [SocketAddr; REPLICAS] = std::array::from_fn(|i| gateways[i].public);
    let (notes, opening) = (Arc::new(Notes::default()), Arc::new(Semaphore::new(100)));
    let sessions: Vec<Arc<Seen>> = (0..CLIENTS).map(|_| Arc::default()).collect();
    let mut clients = JoinSet::new();
    for (i, seen) in sessions.iter().enumerate() {
        clients.spawn(client(i, replicas, Arc::clone(seen), Arc::clone(&notes), Arc::clone(&opening)));
    }
    let mut all_connected = async |gone, within| {
        wait_until("every client is connected", within, || {
            while let Some(ended) = clients.try_join_next() {
                ended.unwrap();
            }
            notes.all_connected(gone)
        })
        .await;
    };
    all_connected(None, Duration::from_secs(120)).await;

    let stored: Stored = Arc::new((0..INSTRUMENTS).map(|_| AtomicI64::new(0)).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let publishing = tokio::spawn(publish(server.port(), Arc::clone(&stored), Arc::clone(&stop)));
    let rolled = Instant::now();
    for (i, gateway) in gateways.iter_mut().enumerate() {
        gateway.process().stop();
        if i == REPLICAS - 1 {
            // Nothing comes any more that would correct what a client of the other half misses.
            let half = notes.connected[i].load(Ordering::Relaxed) / 2;
            wait_until("half of the last replica's clients have left", Duration::from_secs(30), || {
                notes.connected[i].load(Ordering::Relaxed) <= half
            })
            .await;
            stop.store(true, Ordering::Relaxed);
        }
        let status = gateway.process().ended(Duration::from_secs(30)).await;
        assert_eq!(status.code(), Some(0), "{status:?}");
        all_connected(Some(i), Duration::from_secs(60)).await;
        gateway.start_again().await;
    }
    let rolled = rolled.elapsed();
    publishing.await.unwrap();
    let newest = |id: i64| stored[id as usize - 1].load(Ordering::Relaxed);
    let on_old = || {
        let old =
            |(i, seen): &(usize, &Arc<Seen>)| topics(*i).iter().any(|id| seen.newest(*id) != newest(*id));
        sessions.iter().enumerate().filter(old).count()
    };
    wait_for("nobody is on an old price", Duration::from_secs(10), || {
        std::future::ready((on_old() == 0).then_some(()))
    })
    .await;

    let returns = std::mem::take(&mut *notes.returns.lock().unwrap());
    let mut away: Vec<Duration> = returns.iter().map(|(_, away)| *away).collect();
    away.sort();
    let (median, longest) = (away[away.len() / 2], away[away.len() - 1]);
    let rate = highest_rate(&returns);
    println!(
        "{CLIENTS} clients, {REPLICAS} replicas rolled in {rolled:.1?}: {} reconnects, at most {rate} within a \
         second; away for {median:.1?} in the median and {longest:.1?} at most; nobody on an old price",
        returns.len()
    );
    assert!(returns.len() >= CLIENTS, "each replica's clients went elsewhere");
    // Turns that fell into a pause of a busy machine are taken together; without turns all would come at once.
    assert!(rate <= 4 * RECONNECT_RATE, "{rate} reconnects within a second");
    assert!(longest < Duration::from_secs(15), "away for {longest:?}");
}
