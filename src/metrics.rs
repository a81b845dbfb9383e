//! Every metric of the process: name, help, unit, closed label sets.
//!
//! Invariants:
//! - Each metric is registered at zero for every label value when the process starts, so that a rate
//!   over the first event is right.
//! - Label values come from enums; nothing that a client sends becomes one.
//! - Histograms have explicit buckets; summaries can't be added across replicas.
//!
//! Not here: when to count. Names carry the configured prefix; the tables of `docs/operations.md` are
//! checked against what is rendered.

pub mod commands;
pub mod edge;
pub mod lanes;
pub mod process;
pub mod snapshots;
pub mod streams;
pub mod upstream;
pub mod user_places;
pub mod watchers;

use crate::fanout::Fanout;
use crate::lane::Lanes;
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::sync::{Arc, OnceLock};

/// Bounds of latency buckets in seconds: from a tenth of a millisecond to the longest timeout in use.
pub const LATENCY_BUCKETS: [f64; 18] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

const METADATA: Metadata<'static> = Metadata::new("tickbridge", Level::INFO, Some(module_path!()));

/// The metrics of one gateway. Each gateway has its own recorder, so that several in one process (as in
/// tests) don't mix.
pub struct Metrics {
    /// Commands to Redis.
    pub commands: commands::CommandMetrics,
    /// The browser side.
    pub edge: edge::EdgeMetrics,
    /// Delivery.
    pub lanes: lanes::LaneMetrics,
    /// The process itself.
    pub process: process::ProcessMetrics,
    /// Reading price keys.
    pub snapshots: snapshots::SnapshotMetrics,
    /// Lossless streams.
    pub streams: Arc<streams::StreamMetrics>,
    /// The Redis side.
    pub upstream: upstream::UpstreamMetrics,
    /// The limit of sessions per user.
    pub user_places: user_places::UserPlaceMetrics,
    /// The watcher registry.
    pub watchers: watchers::WatcherMetrics,
    handle: PrometheusHandle,
    recorder: PrometheusRecorder,
    prefix: String,
    delivery: OnceLock<Delivery>,
}

/// What the metrics of delivery are taken from.
struct Delivery {
    lanes: Arc<Lanes>,
    fanout: Arc<Fanout>,
    per_lane: lanes::PerLane,
}

impl Metrics {
    /// Registers everything under `prefix`.
    ///
    /// # Panics
    /// Never: the bucket table is a constant and not empty.
    pub fn new(prefix: &str) -> Self {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &LATENCY_BUCKETS)
            .expect("the bucket table is not empty")
            .build_recorder();
        let registry = Registry { recorder: &recorder, prefix };
        Self {
            commands: commands::CommandMetrics::register(&registry),
            edge: edge::EdgeMetrics::register(&registry),
            lanes: lanes::LaneMetrics::register(&registry),
            process: process::ProcessMetrics::register(&registry),
            snapshots: snapshots::SnapshotMetrics::register(&registry),
            streams: Arc::new(streams::StreamMetrics::register(&registry)),
            upstream: upstream::UpstreamMetrics::register(&registry),
            user_places: user_places::UserPlaceMetrics::register(&registry),
            watchers: watchers::WatcherMetrics::register(&registry),
            handle: recorder.handle(),
            recorder,
            prefix: prefix.to_owned(),
            delivery: OnceLock::new(),
        }
    }

    /// Takes the metrics of delivery from these from now on. The first call counts.
    pub fn attach(&self, lanes: Arc<Lanes>, fanout: Arc<Fanout>) {
        let registry = Registry { recorder: &self.recorder, prefix: &self.prefix };
        let per_lane = lanes::PerLane::register(&registry, lanes.books().len());
        let _ = self.delivery.set(Delivery { lanes, fanout, per_lane });
    }

    /// The text exposition of everything.
    pub fn render(&self) -> String {
        self.process.collect();
        let delivery = self.delivery.get().map(|delivery| (delivery, delivery.lanes.books()));
        if let Some((Delivery { fanout, per_lane, .. }, books)) = &delivery {
            self.lanes.collect(books, fanout.stages());
            per_lane.collect(books);
        }
        let mut text = self.handle.render();
        self.process.render_processor(&mut text);
        if let Some((Delivery { fanout, .. }, books)) = &delivery {
            self.lanes.render_stages(books, fanout.stages(), &mut text);
        }
        text
    }

    /// Moves recorded histogram values into their buckets. To be called every few seconds: between two
    /// calls each recorded value takes memory.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// Registers metrics under the prefix, with their help.
pub struct Registry<'a> {
    recorder: &'a PrometheusRecorder,
    prefix: &'a str,
}

impl Registry<'_> {
    fn key(&self, name: &str, labels: &[(&'static str, &'static str)]) -> Key {
        let labels: Vec<_> = labels.iter().map(|&(k, v)| Label::from_static_parts(k, v)).collect();
        Key::from_parts(format!("{}_{name}", self.prefix), labels)
    }

    fn name(&self, name: &str) -> KeyName {
        KeyName::from(format!("{}_{name}", self.prefix))
    }

    /// A counter; `name` ends in `_total`.
    pub fn counter(
        &self,
        name: &str,
        help: &'static str,
        labels: &[(&'static str, &'static str)],
    ) -> Counter {
        self.recorder.describe_counter(self.name(name), None, SharedString::const_str(help));
        let counter = self.recorder.register_counter(&self.key(name, labels), &METADATA);
        counter.increment(0);
        counter
    }

    /// A gauge, at zero.
    pub fn gauge(&self, name: &str, help: &'static str, labels: &[(&'static str, &'static str)]) -> Gauge {
        self.recorder.describe_gauge(self.name(name), None, SharedString::const_str(help));
        let gauge = self.recorder.register_gauge(&self.key(name, labels), &METADATA);
        gauge.set(0.0);
        gauge
    }

    /// A gauge, at zero, with a number as its label. The numbers must be few and fixed at start.
    pub fn numbered_gauge(
        &self,
        name: &str,
        help: &'static str,
        label: &'static str,
        number: usize,
    ) -> Gauge {
        self.recorder.describe_gauge(self.name(name), None, SharedString::const_str(help));
        let labels = vec![Label::new(label, number.to_string())];
        let key = Key::from_parts(format!("{}_{name}", self.prefix), labels);
        let gauge = self.recorder.register_gauge(&key, &METADATA);
        gauge.set(0.0);
        gauge
    }

    /// A latency histogram; `name` ends in `_seconds`.
    pub fn histogram(
        &self,
        name: &str,
        help: &'static str,
        labels: &[(&'static str, &'static str)],
    ) -> Histogram {
        self.recorder.describe_histogram(self.name(name), Some(Unit::Seconds), SharedString::const_str(help));
        self.recorder.register_histogram(&self.key(name, labels), &METADATA)
    }
}
