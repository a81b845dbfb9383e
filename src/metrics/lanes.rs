//! Metrics of delivery, taken from the lanes' books when somebody asks.
//!
//! Lanes count in plain integers; the totals are set here. The latency of each delivery would cost the
//! exporter's histogram memory per value, so lanes keep buckets of their own, rendered here in the same
//! format.

use super::Registry;
use crate::fanout::stages::{StageCounter, Stages};
use crate::lane::books::{Books, DropReason, STAGE_BOUNDS_US, Stage};
use crate::protocol::close::CloseReason;
use metrics::{Counter, Gauge};
use std::fmt::Write;

const TRANSPORTS: [&str; 2] = ["ws", "sse"];

/// `publishedAt` to arrival, arrival to encoding, encoding to write.
const STAGES: [&str; 3] = ["published_to_arrived", "arrived_to_emitted", "emitted_to_written"];

/// Counted by `lane` and `fanout`.
pub struct LaneMetrics {
    stage_name: String,
    offered: Counter,
    delivered: Counter,
    conflated: Counter,
    dropped: Vec<Counter>,
    pending: Gauge,
    sessions: Vec<Gauge>,
    opened: Vec<Counter>,
    closed: Vec<Counter>,
    subscriptions: Gauge,
    writes: Counter,
    written_bytes: Counter,
    inbound: Counter,
    backlog_age: Gauge,
    anomalies: Vec<[Counter; 2]>,
}

/// What is told of each delivery thread by itself.
pub(super) struct PerLane {
    imbalance: Vec<Gauge>,
    sessions: Vec<Gauge>,
}

impl PerLane {
    pub(super) fn register(registry: &Registry<'_>, n_lanes: usize) -> Self {
        let per_lane = |name, help| -> Vec<Gauge> {
            (0..n_lanes).map(|lane| registry.numbered_gauge(name, help, "lane", lane)).collect()
        };
        Self {
            imbalance: per_lane(
                "deliveries_imbalance",
                "Offered less delivered, conflated, dropped and pending. Anything but 0 is a fault.",
            ),
            sessions: per_lane("lane_sessions", "Sessions per delivery thread."),
        }
    }

    pub(super) fn collect(&self, books: &[Books]) {
        for ((books, imbalance), sessions) in books.iter().zip(&self.imbalance).zip(&self.sessions) {
            imbalance.set(books.imbalance() as f64);
            sessions.set(books.sessions.iter().sum::<u64>() as f64);
        }
    }
}

impl LaneMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        let reasons = |name, help, texts: &[&'static str]| -> Vec<Counter> {
            texts.iter().map(|text| registry.counter(name, help, &[("reason", text)])).collect()
        };
        Self {
            stage_name: registry.name("stage_seconds").as_str().to_owned(),
            offered: registry.counter(
                "deliveries_offered_total",
                "Quotes times the sessions that they were meant for.",
                &[],
            ),
            delivered: registry.counter(
                "deliveries_delivered_total",
                "Quotes written to a session completely.",
                &[],
            ),
            conflated: registry.counter(
                "deliveries_conflated_total",
                "Quotes that a newer one of the same instrument replaced before they were written.",
                &[],
            ),
            dropped: reasons(
                "deliveries_dropped_total",
                "Quotes that were due to a session when it or its subscription ended.",
                &DropReason::ALL.map(DropReason::text),
            ),
            pending: registry.gauge("deliveries_pending", "Quotes due to sessions and not written yet.", &[]),
            sessions: TRANSPORTS
                .map(|t| registry.gauge("sessions", "Sessions that live.", &[("transport", t)]))
                .into(),
            opened: TRANSPORTS
                .map(|t| registry.counter("sessions_opened_total", "Sessions opened.", &[("transport", t)]))
                .into(),
            closed: reasons(
                "sessions_closed_total",
                "Sessions ended.",
                &CloseReason::ALL.map(CloseReason::text),
            ),
            subscriptions: registry.gauge("subscriptions", "Subscriptions of all sessions.", &[]),
            writes: registry.counter("writes_total", "Writes to session sockets.", &[]),
            written_bytes: registry.counter("written_bytes_total", "Bytes that session sockets took.", &[]),
            inbound: registry.counter("inbound_messages_total", "Messages from clients.", &[]),
            backlog_age: registry.gauge(
                "outbox_backlog_age_seconds",
                "Age of the oldest unsent quote of any session.",
                &[],
            ),
            anomalies: STAGES[..2]
                .iter()
                .map(|stage| {
                    ["negative", "absurd"].map(|kind| {
                        let help = "Differences between two stamps that can't be true, by stage.";
                        registry.counter("stage_anomalies_total", help, &[("stage", stage), ("kind", kind)])
                    })
                })
                .collect(),
        }
    }

    pub(super) fn collect(&self, books: &[Books], stages: &Stages) {
        let sum = |part: &dyn Fn(&Books) -> u64| books.iter().map(part).sum::<u64>();
        self.offered.absolute(sum(&|b| b.offered));
        self.delivered.absolute(sum(&|b| b.delivered));
        self.conflated.absolute(sum(&|b| b.conflated));
        for (i, counter) in self.dropped.iter().enumerate() {
            counter.absolute(sum(&|b| b.dropped[i]));
        }
        self.pending.set(sum(&|b| b.pending) as f64);
        for i in 0..TRANSPORTS.len() {
            self.sessions[i].set(sum(&|b| b.sessions[i]) as f64);
            self.opened[i].absolute(sum(&|b| b.opened[i]));
        }
        for (i, counter) in self.closed.iter().enumerate() {
            counter.absolute(sum(&|b| b.closed[i]));
        }
        self.subscriptions.set(sum(&|b| b.subscriptions) as f64);
        self.writes.absolute(sum(&|b| b.writes));
        self.written_bytes.absolute(sum(&|b| b.written_bytes));
        self.inbound.absolute(sum(&|b| b.inbound));
        let oldest_ms = books.iter().map(|b| b.backlog_age_ms).max().unwrap_or(0);
        self.backlog_age.set(oldest_ms as f64 / 1e3);
        for (counters, stage) in
            self.anomalies.iter().zip([&stages.published_to_arrived, &stages.arrived_to_emitted])
        {
            let (negative, absurd) = StageCounter::anomalies(stage);
            counters[0].absolute(negative);
            counters[1].absolute(absurd);
        }
    }

    pub(super) fn render_stages(&self, books: &[Books], stages: &Stages, out: &mut String) {
        let mut written = Stage::default();
        for books in books {
            written.add(&books.emitted_to_written);
        }
        let name = &self.stage_name;
        let _ = writeln!(out, "# HELP {name} Time that quotes spend between two stamps, by stage.");
        let _ = writeln!(out, "# TYPE {name} histogram");
        let values = [stages.published_to_arrived.read(), stages.arrived_to_emitted.read(), written];
        for (stage, value) in STAGES.iter().zip(values) {
            let mut n = 0;
            for (count, bound) in value.buckets.iter().zip(STAGE_BOUNDS_US) {
                n += count;
                let bound = bound as f64 / 1e6;
                let _ = writeln!(out, "{name}_bucket{{stage=\"{stage}\",le=\"{bound}\"}} {n}");
            }
            n += value.buckets[STAGE_BOUNDS_US.len()];
            let _ = writeln!(out, "{name}_bucket{{stage=\"{stage}\",le=\"+Inf\"}} {n}");
            let _ = writeln!(out, "{name}_sum{{stage=\"{stage}\"}} {}", value.sum_us as f64 / 1e6);
            let _ = writeln!(out, "{name}_count{{stage=\"{stage}\"}} {n}");
        }
        out.push('\n');
    }
}
