//! Where quotes come from: Redis, or the bus inside the process.
//!
//! Not here: what either does (`upstream`).

use crate::catch_up::SnapshotSource;
use crate::config::{Config, RedisMode};
use crate::fanout::{Fanout, QuoteFeed};
use crate::instrument::InstrumentId;
use crate::metrics::Metrics;
use crate::session::WatchRegistry;
use crate::session::tickets::{MemoryTickets, Tickets};
use crate::upstream::embedded::{Embedded, EmbeddedPublisher};
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Takes the instruments whose keys are to be read, because their stream was broken and is back.
pub type Resync = Arc<dyn Fn(Vec<InstrumentId>) + Send + Sync>;

/// The parts of the Redis side, or what stands for them.
pub enum Source {
    /// No Redis.
    Embedded {
        /// Bus and store.
        bus: Arc<Embedded>,
        /// Tickets of this process.
        tickets: Arc<MemoryTickets>,
    },
}

impl Source {
    /// The source that is configured.
    ///
    /// # Errors
    /// The configuration names something that can't be used.
    pub fn new(config: &Config, _metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        if config.redis.mode != RedisMode::Embedded {
            anyhow::bail!("only redis.mode = \"embedded\" can be served");
        }
        Ok(Self::Embedded { bus: Arc::new(Embedded::new(&config.ingest)), tickets: Arc::default() })
    }

    /// The live stream.
    pub fn feed(&self) -> Arc<dyn QuoteFeed> {
        let Self::Embedded { bus, .. } = self;
        Arc::clone(bus) as _
    }

    /// The stored quotes.
    pub fn snapshots(&self) -> Arc<dyn SnapshotSource> {
        let Self::Embedded { bus, .. } = self;
        Arc::clone(bus) as _
    }

    /// The store of tickets.
    pub fn tickets(&self) -> Arc<dyn Tickets> {
        let Self::Embedded { tickets, .. } = self;
        Arc::clone(tickets) as _
    }

    /// Who wants to know what is watched, if anybody.
    pub fn watchers(&self) -> Option<Arc<dyn WatchRegistry>> {
        None
    }

    /// Says why quotes can't be relied on at the moment.
    pub fn reasons(&self) -> Arc<dyn Fn() -> Vec<String> + Send + Sync> {
        Arc::new(Vec::new)
    }

    /// Publishes into the bus, where there is one.
    pub fn embedded_publisher(&self, fanout: &Arc<Fanout>) -> Option<EmbeddedPublisher> {
        let Self::Embedded { bus, .. } = self;
        Some(EmbeddedPublisher::new(Arc::clone(bus), Arc::clone(fanout)))
    }

    /// Brings quotes to `fanout` until `end`.
    pub fn run(
        &self,
        _fanout: Arc<Fanout>,
        _resync: Resync,
        end: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        async move { end.cancelled().await }
    }

    /// Writes down what is still to be written, until `deadline`.
    pub async fn close(self, _deadline: Instant) {}
}
