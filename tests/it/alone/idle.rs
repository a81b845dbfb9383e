//! What an idle session costs.

use crate::support::swarm::Swarm;
use crate::support::world::World;

const SESSIONS: usize = 4_000;

/// The aim is 4 KiB; the bound has room for a debug build and for an allocator that keeps what the
/// handshakes needed.
const MOST_PER_SESSION: u64 = 12 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_session_costs_a_few_kilobytes() {
    let mut world = World::start_with(|builder| {
        builder.set("session.heartbeat_interval", "'20s'").set("session.pong_timeout", "'45s'")
    })
    .await;
    // The first sessions pay for what all share.
    let _warm = Swarm::connect(&world.gateway, 200, |_| vec![]).await;
    let before = world.gateway.process().rss();
    let swarm = Swarm::connect(&world.gateway, SESSIONS, |_| vec![]).await;
    let each = world.gateway.process().rss().saturating_sub(before) / SESSIONS as u64;
    println!("{each} bytes per idle session, {SESSIONS} sessions");
    assert!(each <= MOST_PER_SESSION, "{each} bytes per idle session");
    assert_eq!(swarm.n_closed(), 0);
}
