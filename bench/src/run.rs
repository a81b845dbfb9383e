//! One run of one scenario, from the first process to the verdict.
//!
//! Not here: what a run is made of (`rig`, `client`, `publisher`), what is wrong with one (`verdict`).

use crate::client::Command;
use crate::client::session::{Behind, Plan};
use crate::clock::{drift_us, now_us};
use crate::crowd::Crowd;
use crate::interest::Watch;
use crate::outcome::{Accounting, Memory, Outcome};
use crate::process;
use crate::publisher::{Publisher, Sent};
use crate::rig::Rig;
use crate::scenario::Scenario;
use crate::schedule::Schedule;
use crate::tally::Tally;
use crate::verdict;
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

/// CPU use of everything at one moment.
struct Reading {
    at_us: u64,
    machine: Option<u64>,
    roles: BTreeMap<String, u64>,
    delivered: u64,
}

impl Reading {
    fn take(rig: &Rig, crowd: &Crowd) -> Self {
        let mut roles = rig.cpu_ns();
        let client = crowd.cpu_ns();
        roles.insert("publisher".into(), process::cpu_ns(std::process::id()).saturating_sub(client));
        roles.insert("client".into(), client);
        roles.insert("softirq".into(), process::softirq_cpu_ns());
        let machine = process::machine_cpu_ns();
        Self { at_us: now_us(), machine, roles, delivered: crowd.delivered() }
    }
}

/// What a run needs besides the scenario.
pub struct Options<'a> {
    /// The gateway's binary.
    pub binary: &'a Path,
    /// Logs and scratch files.
    pub dir: &'a Path,
    /// Load-generating threads.
    pub threads: usize,
    /// Which repetition.
    pub run: u32,
}

/// Runs a scenario.
///
/// # Errors
/// When it can't be carried out; what is merely measured badly becomes part of the outcome.
pub fn run(scenario: &Scenario, options: &Options<'_>) -> Result<Outcome> {
    let seed = u64::from(options.run);
    let watch = Watch::new(scenario.interest, scenario.sessions, scenario.topics, scenario.instruments, seed);
    let seconds = scenario.warm_s + scenario.window_s;
    let schedule = Arc::new(Schedule::new(&watch, scenario.arrival, scenario.rate, seconds, seed));
    let rig = Rig::start(scenario, options.binary, options.dir)?;
    let mut publisher = Publisher::connect(rig.feed.clone(), scenario.publishers)?;
    if scenario.dialect.has_snapshots() {
        publisher.seed(scenario.instruments)?;
    }
    let mut memory = Memory { empty: rig.rss_kib(), ..Memory::default() };

    let crowd = Crowd::start(scenario.dialect, &rig.entrances, &watch, None, options.threads);
    let begun_us = now_us();
    let cap = scenario.in_flight.div_ceil(options.threads);
    crowd.tell(|| Command::Connect(cap));
    let connect_s = crowd.wait_live(scenario.sessions, begun_us)?;
    sleep(Duration::from_secs(3));
    memory.idle = rig.rss_kib();
    memory.per_session = memory.idle.saturating_sub(memory.empty) as f64 / scenario.sessions as f64;
    if scenario.disturbance.slow > 0.0 {
        crowd.tell(|| Command::Slow(scenario.disturbance.slow));
    }

    let counters = rig.accounting().unwrap_or_default();
    let start_us = now_us() + 200_000;
    let from_us = start_us + (scenario.warm_s * 1e6) as u64;
    let to_us = from_us + (scenario.window_s * 1e6) as u64;
    let plan = Arc::new(Plan::new(Arc::clone(&schedule), start_us, from_us, to_us));
    crowd.tell(|| Command::Begin(Arc::clone(&plan)));
    crowd.tell(|| Command::Churn(scenario.disturbance.churn / options.threads as f64));
    let stop = Arc::new(AtomicBool::new(false));
    let publishing = {
        let (schedule, stop) = (Arc::clone(&schedule), Arc::clone(&stop));
        std::thread::spawn(move || publisher.run(&schedule, start_us, &stop))
    };

    sleep_until(from_us);
    let before = Reading::take(&rig, &crowd);
    let storm_s = disturb(scenario, &rig, &crowd, from_us, cap)?;
    sleep_until(to_us);
    let after = Reading::take(&rig, &crowd);
    crowd.tell(|| Command::Churn(0.0));
    stop_late(&stop, &publishing);
    let sent = publishing.join().map_err(|_| anyhow::anyhow!("the publisher panicked"))?;
    let sent = sent.context("publish")?;

    let converged_by = now_us() + 10_000_000;
    let mut behind = crowd.behind();
    while behind.topics > 0 && now_us() < converged_by {
        sleep(Duration::from_millis(200));
        behind = crowd.behind();
    }
    // The counters are read by another path than the events; let both settle.
    sleep(Duration::from_millis(300));
    let tally = crowd.tally();
    let counters_after = rig.accounting().unwrap_or_default();
    memory.end = rig.rss_kib();
    let drift = drift_us();
    crowd.stop()?;
    let accounting = (!rig.gateways.is_empty()).then(|| {
        let rise = |name: &String| counters_after[name] - counters.get(name).copied().unwrap_or(0.0);
        let gateway = counters_after.keys().map(|name| (name.clone(), rise(name))).collect();
        account(scenario, gateway, &tally, behind)
    });
    drop(rig);
    let measured = Measured { before, after, tally, behind, sent, connect_s, storm_s, memory, accounting };
    Ok(conclude(scenario, options.run, begun_us, drift, measured))
}

/// A publisher whose receiving side has stalled is told to stop ten seconds after its schedule.
fn stop_late(stop: &AtomicBool, publishing: &JoinHandle<Result<Sent>>) {
    let deadline = now_us() + 10_000_000;
    while !publishing.is_finished() && now_us() < deadline {
        sleep(Duration::from_millis(10));
    }
    stop.store(true, Ordering::Relaxed);
}

fn sleep_until(at_us: u64) {
    sleep(Duration::from_micros(at_us.saturating_sub(now_us())));
}

fn disturb(scenario: &Scenario, rig: &Rig, crowd: &Crowd, from_us: u64, cap: usize) -> Result<Option<f64>> {
    let middle_us = from_us + (scenario.window_s * 0.4e6) as u64;
    if scenario.disturbance.stall_ms > 0 {
        sleep_until(middle_us);
        rig.subjects().iter().for_each(|p| p.signal(Signal::SIGSTOP));
        sleep(Duration::from_millis(scenario.disturbance.stall_ms));
        rig.subjects().iter().for_each(|p| p.signal(Signal::SIGCONT));
    }
    if scenario.disturbance.storm {
        sleep_until(middle_us);
        let since_us = now_us();
        crowd.tell(|| Command::Reconnect(cap));
        while crowd.live() == scenario.sessions {
            sleep(Duration::from_millis(1));
        }
        return crowd.wait_live(scenario.sessions, since_us).map(Some);
    }
    Ok(None)
}

fn account(scenario: &Scenario, gateway: BTreeMap<String, f64>, tally: &Tally, behind: Behind) -> Accounting {
    let disturbance = scenario.disturbance;
    let comparable = disturbance.churn == 0.0 && disturbance.slow == 0.0 && !disturbance.storm;
    let is = |name: &str, value: u64| gateway.get(name).is_some_and(|&v| v as u64 == value);
    let agrees = comparable.then(|| {
        is("offered", tally.delivered + tally.conflated + behind.versions)
            && is("delivered", tally.delivered)
            && is("conflated", tally.conflated)
            && is("dropped", 0)
    });
    let (received, skipped, lost) = (tally.delivered, tally.conflated, behind.versions);
    Accounting { gateway, received, skipped, lost, agrees }
}

struct Measured {
    before: Reading,
    after: Reading,
    tally: Tally,
    behind: Behind,
    sent: Sent,
    connect_s: f64,
    storm_s: Option<f64>,
    memory: Memory,
    accounting: Option<Accounting>,
}

fn conclude(scenario: &Scenario, run: u32, begun_us: u64, drift: i64, m: Measured) -> Outcome {
    let ns = (m.after.at_us - m.before.at_us) as f64 * 1_000.0;
    let deliveries = m.after.delivered - m.before.delivered;
    let used = |role: &String| m.after.roles[role].saturating_sub(m.before.roles[role]) as f64;
    let cores: BTreeMap<_, _> = m.after.roles.keys().map(|r| (r.clone(), used(r) / ns)).collect();
    let per_delivery = |role: &String| used(role) / 1_000.0 / deliveries.max(1) as f64;
    let cpu_us = m.after.roles.keys().map(|r| (r.clone(), per_delivery(r))).collect();
    let machine = m.after.machine.zip(m.before.machine).map(|(a, b)| a.saturating_sub(b) as f64 / ns);
    let foreign_cores = machine.map_or(-1.0, |all| (all - cores.values().sum::<f64>()).max(0.0));
    let owed = m.behind.owed_in_window.max(1) as f64;
    let tally = m.tally;
    let events = tally.delivered + tally.snapshots;
    let mut outcome = Outcome {
        scenario: scenario.clone(),
        run,
        started_s: begun_us / 1_000_000,
        machine: process::machine(),
        invalid: Vec::new(),
        faults: Vec::new(),
        offered_per_s: m.behind.owed_in_window as f64 / scenario.window_s,
        fresh_per_s: tally.fresh_in_window as f64 / scenario.window_s,
        fresh: tally.fresh_in_window as f64 / owed,
        conflated: tally.conflated_in_window as f64 / owed,
        lost: m.behind.in_window as f64 / owed,
        unconverged: m.behind.topics,
        duplicates: tally.duplicates,
        backwards: tally.backwards,
        latency: tally.latency.percentiles(),
        staleness: tally.staleness.percentiles(),
        own_lag: tally.own_lag.percentiles(),
        publisher_lag: m.sent.lag.percentiles(),
        stage_arrive: tally.stage_arrive.percentiles(),
        stage_deliver: tally.stage_deliver.percentiles(),
        handshake: tally.handshake.percentiles(),
        first_price: tally.first_price.percentiles(),
        connect_s: m.connect_s,
        storm_s: m.storm_s,
        put_off: tally.put_off,
        events_per_read: events as f64 / tally.reads.max(1) as f64,
        cpu_us,
        cores,
        foreign_cores,
        memory: m.memory,
        accounting: m.accounting,
        ends: tally.ends,
    };
    outcome.invalid = verdict::invalid(&outcome, m.sent.errors, drift);
    outcome.faults = verdict::faults(&outcome, tally.strangers);
    outcome
}
