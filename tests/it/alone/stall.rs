//! A process that stood still must not make up for it all at once.

use crate::support::swarm::Swarm;
use crate::support::wait::{let_pass, wait_for};
use crate::support::world::World;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SESSIONS: usize = 200;
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Thirty heartbeats, as in the report; the timers are shorter, so that the test is.
const STALL: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r57_after_a_stall_sessions_get_one_ping_and_live_on() {
    let mut world = World::start_with(|builder| {
        let builder =
            builder.set("session.heartbeat_interval", "'500ms'").set("session.pong_timeout", "'750ms'");
        builder.set("watchers.renew_interval", "'2s'")
    })
    .await;
    let swarm = Swarm::connect(&world.gateway, SESSIONS, |_| vec![101]).await;
    let_pass(4 * HEARTBEAT).await;
    let calls = async || {
        let info: String = world.redis.cmd(&["INFO", "commandstats"]).await;
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        let asked_by_us = |line: &&str| !line.contains("info") && !line.contains("hello");
        info.lines().filter(asked_by_us).filter_map(calls).sum::<u64>()
    };
    let quiet_from = calls().await;
    let_pass(4 * HEARTBEAT).await;
    let quiet = calls().await - quiet_from;

    world.gateway.process().freeze();
    let_pass(STALL).await;
    let pings_before: Vec<u64> =
        swarm.sessions().iter().map(|seen| seen.n_pings.load(Ordering::Relaxed)).collect();
    let calls_before = calls().await;
    world.gateway.process().thaw();
    let_pass(HEARTBEAT * 9 / 10).await;
    for (seen, before) in swarm.sessions().iter().zip(pings_before) {
        let pings = seen.n_pings.load(Ordering::Relaxed) - before;
        assert!(pings <= 1, "{pings} pings within one heartbeat");
    }
    let_pass(4 * HEARTBEAT - HEARTBEAT * 9 / 10).await;
    let burst = calls().await - calls_before;
    // What is due once more: a renewal and the repair of the subscription; not thirty of them.
    assert!(burst <= 3 * quiet + 60, "{burst} commands in two seconds after the stall, {quiet} before it");
    assert!(swarm.n_closed() <= 1, "{} sessions closed", swarm.n_closed());
    world.announce(101, "71000.10", 1).await;
    let at = |seen: &std::sync::Arc<crate::support::swarm::Seen>| seen.newest(101) == 1;
    crate::support::wait::wait_until("every session is served", Duration::from_secs(3), || {
        swarm.sessions().iter().filter(|seen| at(seen)).count() >= SESSIONS - 1
    })
    .await;
}

/// Watchers are renewed all the time, a slice at a time. After a stall of more than three renewals there is one:
/// its heartbeat was gone, so that others may have taken its members away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r57_after_a_stall_watchers_are_renewed_once() {
    const INSTRUMENTS: u64 = 600;
    const RENEWAL: Duration = Duration::from_secs(6);
    const WATCHERS_STALL: Duration = Duration::from_secs(20);
    let mut world = World::start_with(|builder| builder.set("watchers.renew_interval", "'6s'")).await;
    let topics = |i: usize| (i as i64 * 60..i as i64 * 60 + 60).collect::<Vec<i64>>();
    let swarm = Swarm::connect(&world.gateway, 10, topics).await;
    wait_for("all are registered", Duration::from_secs(10), || async {
        (world.redis.n_calls("expire").await >= INSTRUMENTS).then_some(())
    })
    .await;
    let from = world.redis.n_calls("expire").await;
    let_pass(RENEWAL).await;
    let calm = world.redis.n_calls("expire").await - from;
    assert!((INSTRUMENTS / 2..=INSTRUMENTS * 3 / 2).contains(&calm), "{calm} renewals per interval");

    world.gateway.process().freeze();
    let_pass(WATCHERS_STALL).await;
    // What was on its way when the process stopped is done.
    let before = world.redis.n_calls("expire").await;
    world.gateway.process().thaw();
    let_pass(RENEWAL / 3).await;
    let burst = world.redis.n_calls("expire").await - before;
    // All once, and the slices of two seconds. Missed ticks made up for would be three times as many.
    assert!((INSTRUMENTS..=INSTRUMENTS * 2).contains(&burst), "{burst} renewals in two seconds");
    let_pass(RENEWAL).await;
    let after = world.redis.n_calls("expire").await - before - burst;
    assert!((INSTRUMENTS / 2..=INSTRUMENTS * 3 / 2).contains(&after), "{after} renewals per interval");
    assert!(swarm.n_closed() <= 1, "{} sessions closed", swarm.n_closed());
    println!(
        "renewals of {INSTRUMENTS} instruments: {calm} in a calm interval, {burst} in the 2 s after a stall"
    );
}
