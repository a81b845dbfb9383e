//! Wires the parts of lossless streams.

use super::source::{Source, StreamReading};
use crate::config::Config;
use crate::config::live::LiveLimits;
use crate::edge;
use crate::metrics::Metrics;
use crate::stream::demo::Demo;
use crate::stream::hub::Hub;
use crate::stream::sessions::Sessions;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Demo streams at the same time that operators may begin where the public may begin none.
const OPERATORS_DEMOS: usize = 64;

/// The parts of streams.
pub struct Streams {
    /// All sessions.
    pub sessions: Arc<Sessions>,
    /// What the edge needs.
    pub edge: edge::stream::Streams,
    /// What brings entries.
    pub reading: StreamReading,
}

impl Streams {
    /// Builds them over `source`. Sessions and demo streams end with `end`.
    pub fn new(
        config: &Config,
        source: &Source,
        limits: &Arc<LiveLimits>,
        metrics: &Metrics,
        end: &CancellationToken,
    ) -> Self {
        let hub = Hub::new(Arc::clone(&metrics.streams));
        let (store, writer, reading) = source.streams(config, &hub);
        let sessions = Sessions::new(hub, store, config, Arc::clone(limits), end.clone());
        let public_demo = config.demo.streams > 0;
        let n_demos = if public_demo { config.demo.streams } else { OPERATORS_DEMOS };
        let demo = Demo::new(Arc::clone(&writer), n_demos, end.clone());
        let edge = edge::stream::Streams { sessions: Arc::clone(&sessions), writer, demo, public_demo };
        Self { sessions, edge, reading }
    }
}
