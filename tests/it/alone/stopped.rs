//! A thousand readers that stopped among five thousand that read: nobody else notices, nothing grows, and each is
//! closed under its reason.

use crate::support::publisher::{CHANNEL, Statement};
use crate::support::raw_ws::RawWs;
use crate::support::redis::connect;
use crate::support::swarm::{Swarm, raise_descriptors, settled, stamp};
use crate::support::token::token;
use crate::support::wait::wait_for;
use crate::support::world::World;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const READERS: usize = 5_000;
const STOPPED: usize = 1_000;
const INSTRUMENTS: i64 = 500;

/// Of a reader, and of one that stopped, who must get enough to fill its connection.
const TOPICS: [i64; 2] = [4, 20];

/// One version of every instrument.
const ROUND: Duration = Duration::from_secs(1);

/// How long readers that read are measured without those that don't.
const ROUNDS_BEFORE: usize = 8;

const GRACE: Duration = Duration::from_secs(5);

/// What a stopped reader may add from the moment at which it has subscribed: the rest of a torn frame, and the
/// allocator's ways in a debug build. Queued, its quotes would be a hundred kilobytes and more.
const MOST_PER_STOPPED: u64 = 12 * 1024;

fn topics(session: usize, n: i64) -> Vec<i64> {
    // Seven shares no factor with five hundred, so that every instrument has the same number of sessions.
    (0..n).map(|k| (session as i64 * n + k) * 7 % INSTRUMENTS + 1).collect()
}

/// Publishes one version of every instrument, spread over a round, and gives the last version of each.
async fn round(connection: &mut MultiplexedConnection) -> Vec<i64> {
    let mut versions = vec![0; INSTRUMENTS as usize + 1];
    let mut ticks = tokio::time::interval(ROUND / 20);
    for ids in (1..=INSTRUMENTS).collect::<Vec<_>>().chunks(INSTRUMENTS as usize / 20) {
        ticks.tick().await;
        let mut pipeline = redis::pipe();
        for &id in ids {
            versions[id as usize] = stamp();
            let message = Statement::new(id, "71000.10", versions[id as usize]).message();
            pipeline.cmd("PUBLISH").arg(CHANNEL).arg(message).ignore();
        }
        pipeline.query_async::<()>(connection).await.unwrap();
    }
    ticks.tick().await;
    versions
}

/// Sessions that subscribe and never read again.
async fn stopped(world: &World) -> Vec<RawWs> {
    let (permits, mut opening) = (Arc::new(Semaphore::new(50)), JoinSet::new());
    for i in 0..STOPPED {
        let (to, permits) = (world.gateway.public, Arc::clone(&permits));
        opening.spawn(async move {
            let _permit = permits.acquire_owned().await.unwrap();
            let mut ws = RawWs::connect_with(to, Some(4_096), &[]).await;
            ws.send(&json!({ "type": "auth", "token": token(&format!("stopped-{i}")) }).to_string()).await;
            let topics: Vec<_> = topics(i, TOPICS[1]).iter().map(|id| format!("quote:{id}")).collect();
            ws.send(&json!({ "type": "subscribe", "topics": topics }).to_string()).await;
            ws
        });
    }
    opening.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_stopped_readers_are_closed_and_five_thousand_others_notice_nothing() {
    raise_descriptors((READERS + STOPPED + 1_000) as u64);
    let mut world = World::start_with(|builder| {
        let builder = builder.set("auth.timeout", "'30s'").set("session.heartbeat_interval", "'20s'");
        let builder = builder.set("session.pong_timeout", "'45s'").set("session.max_missed_pongs", "4");
        let builder = builder.set("session.send_buffer_bytes", "4096");
        builder.set("session.slow_consumer_grace", &format!("'{}s'", GRACE.as_secs()))
    })
    .await;
    let swarm = Swarm::connect(&world.gateway, READERS, |i| topics(i, TOPICS[0])).await;
    let mut connection = connect(world.redis.port()).await.unwrap();
    // The first rounds pay for what all share.
    for _ in 0..2 {
        round(&mut connection).await;
    }
    swarm.delays.take([50, 99]);
    for _ in 0..ROUNDS_BEFORE {
        round(&mut connection).await;
    }
    let (n_before, before) = swarm.delays.take([50, 99]);

    let readers_stopped = stopped(&world).await;
    let all = (READERS as i64 * TOPICS[0] + STOPPED as i64 * TOPICS[1]) as f64;
    world.gateway.metric_is("subscriptions", &[], Duration::from_secs(60), all).await;
    let rss = world.gateway.process().rss();
    swarm.delays.take([50, 99]);
    let (since, mut most, mut rounds) = (Instant::now(), rss, 0);
    let by_slowness = [("reason", "slow_consumer")];
    let versions = loop {
        let versions = round(&mut connection).await;
        rounds += 1;
        most = most.max(world.gateway.process().rss());
        let closed = world.gateway.metrics().await.sum("sessions_closed_total", &by_slowness);
        if closed > STOPPED as f64 - 0.5 {
            break versions;
        }
        assert!(since.elapsed() < Duration::from_secs(40), "{closed} of {STOPPED} are closed");
    };
    let closed_in = since.elapsed();
    let (n_with, with) = swarm.delays.take([50, 99]);
    let grown = most.saturating_sub(rss) / STOPPED as u64;
    println!(
        "{READERS} readers: p50 {:?}, p99 {:?} of {n_before} events alone; p50 {:?}, p99 {:?} of {n_with} beside \
         {STOPPED} that stopped, which were all closed within {closed_in:.1?} and {rounds} rounds; \
         at most {grown} bytes more for each",
        before[0], before[1], with[0], with[1]
    );

    wait_for("every reader has the last version of each instrument", Duration::from_secs(20), || {
        let at = |(i, seen): (usize, &Arc<_>)| {
            let seen: &crate::support::swarm::Seen = seen;
            topics(i, TOPICS[0]).iter().all(|id| seen.newest(*id) == versions[*id as usize])
        };
        std::future::ready(swarm.sessions().iter().enumerate().all(at).then_some(()))
    })
    .await;
    settled(&swarm).await;
    assert_eq!((swarm.n_closed(), swarm.sum(|seen| &seen.n_went_back)), (0, 0));
    let metrics = world.gateway.metrics().await;
    let is = |name, labels: &[(&str, &str)], value: usize| {
        let found = metrics.sum(name, labels);
        assert!((found - value as f64).abs() < 0.5, "{name} {labels:?} is {found}, not {value}");
    };
    is("sessions_closed_total", &by_slowness, STOPPED);
    is("sessions_closed_total", &[], STOPPED);
    is("sessions", &[], READERS);
    is("deliveries_imbalance", &[], 0);
    is("deliveries_pending", &[], 0);
    let dropped = metrics.sum("deliveries_dropped_total", &by_slowness);
    assert!(dropped > STOPPED as f64, "{dropped} quotes were due to those who stopped");
    assert!(grown <= MOST_PER_STOPPED, "{grown} bytes more for each that stopped");
    // Both runs share two cores with five thousand clients; what this would see is everybody waiting for those
    // who don't read.
    assert!(
        with[1] <= 3 * before[1] + Duration::from_millis(500),
        "p99 {:?} became {:?}",
        before[1],
        with[1]
    );
    drop(readers_stopped);
}
