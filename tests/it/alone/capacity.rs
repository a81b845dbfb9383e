//! Five thousand sessions with twenty topics each while quotes flow.

use crate::support::publisher::{CHANNEL, Statement};
use crate::support::redis::connect;
use crate::support::swarm::{Swarm, settled};
use crate::support::world::World;
use std::time::{Duration, Instant};

const SESSIONS: usize = 5_000;
const TOPICS: i64 = 20;
const INSTRUMENTS: i64 = 1_000;

/// Rounds over the instruments: so many quotes come per second that sessions are never idle and a
/// debug build still keeps up on two cores.
const ROUND: Duration = Duration::from_millis(1_500);
const ROUNDS: i64 = 10;

fn topics(session: usize) -> Vec<i64> {
    // Seven shares no factor with a thousand, so that every instrument has the same number of sessions.
    (0..TOPICS).map(|k| (session as i64 * TOPICS + k) * 7 % INSTRUMENTS + 1).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_sessions_all_end_on_the_newest_versions() {
    let world = World::start_with(|builder| {
        // Timers as deployed; the short ones of other tests would measure the client's machine.
        let builder = builder.set("auth.timeout", "'30s'").set("session.heartbeat_interval", "'20s'");
        let builder = builder.set("session.pong_timeout", "'45s'").set("session.max_missed_pongs", "4");
        builder.set("session.slow_consumer_grace", "'10s'")
    })
    .await;
    let mut world = world;
    let before_rss = world.gateway.process().rss();
    let started = Instant::now();
    let swarm = Swarm::connect(&world.gateway, SESSIONS, topics).await;
    let connected_in = started.elapsed();
    let idle_rss = world.gateway.process().rss();
    world
        .gateway
        .metric_is("subscriptions", &[], Duration::from_secs(5), (SESSIONS as i64 * TOPICS) as f64)
        .await;

    let mut connection = connect(world.redis.port()).await.unwrap();
    for version in 1..=ROUNDS {
        let round = tokio::time::sleep(ROUND);
        for ids in (1..=INSTRUMENTS).collect::<Vec<_>>().chunks(50) {
            let mut pipeline = redis::pipe();
            for &id in ids {
                let message = Statement::new(id, "71000.10", version).message();
                pipeline.cmd("PUBLISH").arg(CHANNEL).arg(message).ignore();
            }
            pipeline.query_async::<()>(&mut connection).await.unwrap();
            tokio::time::sleep(ROUND / 25).await;
        }
        round.await;
    }
    swarm.all_at(ROUNDS, topics, Duration::from_secs(30)).await;
    settled(&swarm).await;

    assert_eq!(swarm.n_closed(), 0, "no session is closed");
    assert_eq!(swarm.sum(|seen| &seen.n_went_back), 0, "no version goes back");
    let metrics = world.gateway.metrics().await;
    let sum = |name| metrics.sum(name, &[]);
    assert!((sum("sessions") - SESSIONS as f64).abs() < 0.5);
    assert!(sum("sessions_closed_total") < 0.5);
    let offered = sum("deliveries_offered_total");
    let (delivered, conflated) = (sum("deliveries_delivered_total"), sum("deliveries_conflated_total"));
    assert!((offered - (SESSIONS as i64 * TOPICS * ROUNDS) as f64).abs() < 0.5, "{offered} offered");
    assert!((offered - delivered - conflated).abs() < 0.5, "{offered} = {delivered} + {conflated}?");
    assert!(sum("deliveries_dropped_total") < 0.5 && sum("deliveries_pending") < 0.5);
    assert!(sum("deliveries_imbalance").abs() < 0.5);
    assert!((delivered - swarm.sum(|seen| &seen.n_events) as f64).abs() < 0.5, "what is delivered is seen");
    println!(
        "{SESSIONS} sessions x {TOPICS} topics: connected in {connected_in:.1?}, {offered} offered, \
         {delivered} delivered, {conflated} conflated, {} bytes per subscribed session",
        (idle_rss - before_rss) / SESSIONS as u64
    );
}
