//! Versions in every session: rising, and ending at the newest.

use crate::support::publisher::{CHANNEL, Statement};
use crate::support::redis::connect;
use crate::support::swarm::{Swarm, settled};
use crate::support::world::World;
use std::time::Duration;

const SESSIONS: usize = 600;
const VERSIONS: i64 = 5_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_hundred_sessions_see_versions_rise_and_end_at_the_newest() {
    let mut world = World::start().await;
    let topics = |_| vec![101, 999];
    let swarm = Swarm::connect(&world.gateway, SESSIONS, topics).await;
    let mut connection = connect(world.redis.port()).await.unwrap();
    // As fast as Redis takes them: pipelines, no pause.
    for versions in (1..=VERSIONS).collect::<Vec<_>>().chunks(250) {
        let mut pipeline = redis::pipe();
        for &version in versions {
            let message = Statement::new(101, "71000.10", version).message();
            pipeline.cmd("PUBLISH").arg(CHANNEL).arg(message).ignore();
        }
        pipeline.query_async::<()>(&mut connection).await.unwrap();
    }
    // An old one at the end, and another instrument to know that it has been read.
    world.announce(101, "1.0", 1).await;
    world.announce(999, "1.0", VERSIONS).await;
    swarm.all_at(VERSIONS, topics, Duration::from_secs(60)).await;
    settled(&swarm).await;

    assert_eq!(swarm.sum(|seen| &seen.n_went_back), 0);
    assert_eq!(swarm.n_closed(), 0);
    let metrics = world.gateway.metrics().await;
    let offered = metrics.sum("deliveries_offered_total", &[]);
    assert!((offered - ((VERSIONS + 1) as f64 * SESSIONS as f64)).abs() < 0.5, "{offered} offered");
    assert!(metrics.sum("deliveries_imbalance", &[]).abs() < 0.5);
    let delivered = metrics.sum("deliveries_delivered_total", &[]);
    let seen = swarm.sum(|seen| &seen.n_events);
    assert!((delivered - seen as f64).abs() < 0.5, "{delivered} delivered, {seen} seen");
    println!("{SESSIONS} sessions, {VERSIONS} versions: {delivered} delivered of {offered}");
}
