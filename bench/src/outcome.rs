//! What one run found, as it is kept in `results/`.

use crate::scenario::Scenario;
use crate::tally::Percentiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Resident memory of the server under test, in KiB.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Before the first session.
    pub empty: u64,
    /// All sessions connected and subscribed, nothing published yet.
    pub idle: u64,
    /// After the load.
    pub end: u64,
    /// (idle − empty) per session.
    pub per_session: f64,
}

/// The gateway's own counters beside what was received.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Accounting {
    /// What the counters rose by while publishing.
    pub gateway: BTreeMap<String, f64>,
    /// Live events received.
    pub received: u64,
    /// Versions skipped.
    pub skipped: u64,
    /// Versions after the last received.
    pub lost: u64,
    /// Whether offered, delivered and conflated agree one by one; absent where they can't be compared.
    pub agrees: Option<bool>,
}

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// What was run.
    pub scenario: Scenario,
    /// Which repetition, from 1.
    pub run: u32,
    /// When, seconds since the Unix epoch.
    pub started_s: u64,
    /// Processor and kernel.
    pub machine: String,
    /// Why the measurement can't be trusted; empty when it can.
    pub invalid: Vec<String>,
    /// What the server did wrong; empty when nothing.
    pub faults: Vec<String>,
    /// Deliveries owed per second of the window.
    pub offered_per_s: f64,
    /// Those that arrived, per second of the window.
    pub fresh_per_s: f64,
    /// Share of the owed that arrived.
    pub fresh: f64,
    /// Share of the owed that a newer version replaced.
    pub conflated: f64,
    /// Share of the owed that neither arrived nor was replaced by one that did.
    pub lost: f64,
    /// Subscriptions that never showed the newest version.
    pub unconverged: u64,
    /// The same version twice.
    pub duplicates: u64,
    /// A lower version after a higher one.
    pub backwards: u64,
    /// Intended send time to receipt.
    pub latency: Percentiles,
    /// Intended send time of the oldest replaced version to receipt.
    pub staleness: Percentiles,
    /// Kernel receive stamp to the load generator's look.
    pub own_lag: Percentiles,
    /// Intended send time to the publisher's write.
    pub publisher_lag: Percentiles,
    /// Publisher's stamp to the gateway's arrival stamp, sampled, whole milliseconds.
    pub stage_arrive: Percentiles,
    /// The gateway's encoding to receipt, sampled, whole milliseconds.
    pub stage_deliver: Percentiles,
    /// TCP connect to the response's head.
    pub handshake: Percentiles,
    /// TCP connect to the last first price.
    pub first_price: Percentiles,
    /// Until all sessions were connected, authenticated, subscribed and had every first price, seconds.
    pub connect_s: f64,
    /// The same after a reconnect storm under load.
    pub storm_s: Option<f64>,
    /// Attempts to connect that were answered with 503 and made again.
    #[serde(default)]
    pub put_off: u64,
    /// Events per read of the load generator: what the server put into one write, or more.
    pub events_per_read: f64,
    /// Microseconds of CPU per delivered event, by role.
    pub cpu_us: BTreeMap<String, f64>,
    /// Cores in use during the window, by role.
    pub cores: BTreeMap<String, f64>,
    /// Cores that others used.
    pub foreign_cores: f64,
    /// Memory.
    pub memory: Memory,
    /// The gateway's counters.
    pub accounting: Option<Accounting>,
    /// Ends of sessions that the load generator didn't cause.
    pub ends: BTreeMap<String, u64>,
}

impl Outcome {
    /// One line for the terminal.
    pub fn line(&self) -> String {
        let cpu = |role: &str| self.cpu_us.get(role).copied().unwrap_or(0.0);
        let served: f64 = ["gateway", "nchan", "nats"].iter().map(|r| cpu(r)).sum();
        let mut line = format!(
            "{:<26} #{} offered {:>9.0}/s fresh {:5.1} % confl {:4.1} % lost {:.2} % | p50 {:.1} p95 {:.1} p99 {:.1} \
             p99.9 {:.1} max {:.0} stale99 {:.1} ms | srv {:.2} us redis {:.2} client {:.2} ev/read {:.1} | rss {:.1} \
             MiB {:.2} KiB/s | connect {:.1} s hs50 {:.2} ms | own {:.1} pub {:.1} ms foreign {:.2}",
            self.scenario.name,
            self.run,
            self.offered_per_s,
            self.fresh * 100.0,
            self.conflated * 100.0,
            self.lost * 100.0,
            self.latency.p50,
            self.latency.p95,
            self.latency.p99,
            self.latency.p999,
            self.latency.max,
            self.staleness.p99,
            served,
            cpu("redis"),
            cpu("client"),
            self.events_per_read,
            self.memory.idle as f64 / 1024.0,
            self.memory.per_session,
            self.connect_s,
            self.handshake.p50,
            self.own_lag.p99,
            self.publisher_lag.p99,
            self.foreign_cores,
        );
        if let Some(seconds) = self.storm_s {
            line += &format!(" | all back in {seconds:.1} s, {} put off", self.put_off);
        }
        for (name, list) in [("INVALID", &self.invalid), ("FAULT", &self.faults)] {
            if !list.is_empty() {
                line += &format!("\n    {name}: {}", list.join("; "));
            }
        }
        line
    }
}
