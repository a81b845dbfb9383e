//! The study of SSE against WebSocket, repeated on the gateway: streams of 50 tokens, one every 30 ms.
//!
//! A token is a quote of an instrument that one session alone watches, so that each session has a stream of its
//! own through the gateway's lanes. The tokens come through Redis; the study's generator was in process.
//! Two parts: up to 1,000 streams at the same time, held for 30 s, each session beginning
//! the next stream when one is complete; and 100 sessions that connect and disconnect 50 times.

use crate::client::dialect::Dialect;
use crate::client::session::Plan;
use crate::client::{Command, Cycle};
use crate::clock::now_us;
use crate::crowd::Crowd;
use crate::interest::Watch;
use crate::process;
use crate::publisher::Publisher;
use crate::rig::Rig;
use crate::scenario::Scenario;
use crate::schedule::{Arrival, Schedule};
use crate::tally::{Percentiles, Tally};
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

const TOKENS: u32 = 50;
const TOKEN_EVERY_S: f64 = 0.03;
const CONCURRENT: usize = 1_000;
/// Sessions begin over this long before all are there.
const RAMP_S: f64 = 10.0;
const HELD_S: f64 = 30.0;
const ROUNDS: u32 = 50;
const CLIENTS: usize = 100;
const THREADS: usize = 2;

/// One row of the table.
#[derive(Serialize)]
struct Row {
    machine: String,
    transport: &'static str,
    part: &'static str,
    runs: u32,
    success_percent: f64,
    handshake_p50_ms: f64,
    handshake_p95_ms: f64,
    completion_p50_s: f64,
    completion_p95_s: f64,
    received_mb: f64,
    sent_mb: f64,
    tokens_per_s: f64,
    tokens_skipped: u64,
    server_us_per_token: f64,
}

struct Found {
    tally: Tally,
    seconds: f64,
    cpu_us: f64,
}

/// Runs both parts over both transports, prints the table, and keeps it in `out`.
///
/// # Errors
/// When a part can't be carried out.
pub fn study(gateway: &Path, runs: u32, out: Option<&Path>) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("tb-streams-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let gateway = gateway.canonicalize().with_context(|| format!("find {}", gateway.display()))?;
    let mut rows = Vec::new();
    for (part, sessions, events, rounds) in
        [("1,000 streams, 30 s", CONCURRENT, TOKENS, u32::MAX), ("100 × 50 connections", CLIENTS, 0, ROUNDS)]
    {
        for (transport, dialect) in [("SSE", Dialect::GatewaySse), ("WebSocket", Dialect::GatewayWs)] {
            let found: Result<Vec<_>> =
                (0..runs).map(|_| once(dialect, sessions, events, rounds, &gateway, &dir)).collect();
            let row = row(transport, part, runs, &found?);
            println!("{}", serde_json::to_string(&row)?);
            rows.push(row);
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    if let Some(out) = out {
        std::fs::write(out, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

fn row(transport: &'static str, part: &'static str, runs: u32, found: &[Found]) -> Row {
    let median = |what: &dyn Fn(&Found) -> f64| {
        let mut values: Vec<f64> = found.iter().map(what).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let handshake = |f: &Found| -> Percentiles { f.tally.handshake.percentiles() };
    let completion = |f: &Found| -> Percentiles { f.tally.completion.percentiles() };
    Row {
        machine: process::machine(),
        transport,
        part,
        runs,
        success_percent: median(&|f| {
            let failed: u64 = f.tally.ends.values().sum();
            100.0 * f.tally.completed as f64 / (f.tally.completed + failed).max(1) as f64
        }),
        handshake_p50_ms: median(&|f| handshake(f).p50),
        handshake_p95_ms: median(&|f| handshake(f).p95),
        completion_p50_s: median(&|f| completion(f).p50 / 1e3),
        completion_p95_s: median(&|f| completion(f).p95 / 1e3),
        received_mb: median(&|f| f.tally.bytes as f64 / 1e6),
        sent_mb: median(&|f| f.tally.sent_bytes as f64 / 1e6),
        tokens_per_s: median(&|f| f.tally.delivered as f64 / f.seconds),
        tokens_skipped: median(&|f| f.tally.conflated as f64) as u64,
        server_us_per_token: median(&|f| f.cpu_us),
    }
}

fn once(
    dialect: Dialect,
    sessions: usize,
    events: u32,
    rounds: u32,
    gateway: &Path,
    dir: &Path,
) -> Result<Found> {
    let mut scenario = Scenario::new("streams", sessions, 0.0, Arrival::Regular);
    scenario.dialect = dialect;
    let watch = Watch {
        topics: (0..sessions).map(|n| [n as u16].into()).collect(),
        watchers: vec![1; sessions],
        popularity: (1..=sessions).map(|n| n as f64 / sessions as f64).collect(),
    };
    let seconds = RAMP_S + HELD_S;
    let rate = if events > 0 { sessions as f64 / TOKEN_EVERY_S } else { 0.0 };
    let schedule = Arc::new(Schedule::new(&watch, Arrival::Regular, rate, seconds + 3.0, 1));
    let rig = Rig::start(&scenario, gateway, dir)?;
    let mut publisher = Publisher::connect(rig.feed.clone(), scenario.publishers)?;
    publisher.seed(sessions)?;
    let start_us = now_us() + 100_000;
    let until_us = start_us + (seconds * 1e6) as u64;
    let cycle = Cycle { events, rounds, until_us };
    let crowd = Crowd::start(dialect, &rig.entrances, &watch, Some(cycle), THREADS);
    let plan = Arc::new(Plan::new(Arc::clone(&schedule), start_us, start_us, until_us));
    crowd.tell(|| Command::Begin(Arc::clone(&plan)));
    let stop = Arc::new(AtomicBool::new(false));
    let publishing = {
        let (publisher, schedule, stop) =
            (publisher.without_keys(), Arc::clone(&schedule), Arc::clone(&stop));
        std::thread::spawn(move || publisher.run(&schedule, start_us, &stop))
    };
    let cpu = |rig: &Rig| rig.cpu_ns().get("gateway").copied().unwrap_or(0);
    let (cpu_before, began_us) = (cpu(&rig), now_us());
    if events > 0 {
        // The ramp: the number that may be in flight grows, and the rest waits.
        for step in 1..=100usize {
            crowd.tell(|| Command::Widen(sessions * step / 100 / THREADS));
            sleep(Duration::from_secs_f64(RAMP_S / 100.0));
        }
        sleep(Duration::from_micros((until_us + 2_500_000).saturating_sub(now_us())));
    } else {
        crowd.tell(|| Command::Connect(sessions));
        let wanted = sessions as u64 * u64::from(rounds);
        while crowd.tally().completed < wanted && now_us() < until_us {
            sleep(Duration::from_millis(20));
        }
    }
    let seconds = (now_us() - began_us) as f64 / 1e6;
    let tally = crowd.tally();
    // Infinite where there are no tokens, which JSON writes as null.
    let cpu_us = (cpu(&rig) - cpu_before) as f64 / 1_000.0 / tally.delivered as f64;
    stop.store(true, Ordering::Relaxed);
    let _ = publishing.join();
    crowd.stop()?;
    Ok(Found { tally, seconds, cpu_us })
}
