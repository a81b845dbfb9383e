//! Where quotes come from: Redis, or the bus inside the process.
//!
//! Not here: what either does (`upstream`).

use super::schema;
use crate::catch_up::SnapshotSource;
use crate::config::live::LiveLimits;
use crate::config::{Config, Ingest, RedisMode};
use crate::fanout::{Fanout, QuoteFeed};
use crate::metrics::Metrics;
use crate::publish::QuotePublisher;
use crate::session::WatchRegistry;
use crate::session::tickets::{MemoryTickets, Tickets};
use crate::session::user_places::{MemoryPlaces, UserPlaces};
use crate::stream::hub::Hub;
use crate::stream::{StreamSource, StreamWriter};
use crate::upstream::commands::Commands;
use crate::upstream::connection::Connector;
use crate::upstream::coverage::Resync;
use crate::upstream::embedded::{Embedded, EmbeddedPublisher};
use crate::upstream::feed::Feed;
use crate::upstream::publish::Publisher;
use crate::upstream::readiness::Readiness;
use crate::upstream::snapshot::RedisSnapshots;
use crate::upstream::streams::RedisStreams;
use crate::upstream::streams::embedded::EmbeddedStreams;
use crate::upstream::streams::reader::Reader;
use crate::upstream::subscriber::{Parts, Subscriber, Timing};
use crate::upstream::tickets::RedisTickets;
use crate::upstream::topology::Topology;
use crate::upstream::topology::poll::Poller;
use crate::upstream::user_places::RedisUserPlaces;
use crate::upstream::watchers::Watchers;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The parts of the Redis side, or what stands for them.
pub enum Source {
    /// No Redis.
    Embedded(Arc<Embedded>, Arc<MemoryPlaces>),
    /// Redis in one of its modes.
    Redis(Box<Redis>),
}

/// What talks to Redis.
pub struct Redis {
    feed: Arc<Feed>,
    connector: Arc<Connector>,
    topology: Arc<Topology>,
    commands: Arc<Commands>,
    readiness: Arc<Readiness>,
    watchers: Option<Arc<Watchers>>,
    user_places: Arc<RedisUserPlaces>,
    publisher: Arc<Publisher>,
    metrics: Arc<Metrics>,
    ingest: Ingest,
}

/// What brings the entries of streams to those who watch.
pub enum StreamReading {
    /// From inside the process.
    Embedded(Arc<EmbeddedStreams>, Arc<Hub>),
    /// From Redis.
    Redis(Reader),
}

impl StreamReading {
    /// Reads until `end`.
    pub async fn run(self, end: CancellationToken) {
        match self {
            Self::Embedded(streams, hub) => streams.run(hub, end).await,
            Self::Redis(reader) => reader.run(end).await,
        }
    }
}

impl Source {
    /// The source that is configured. Nothing is connected yet.
    pub fn new(config: &Config, limits: &Arc<LiveLimits>, metrics: &Arc<Metrics>) -> Self {
        if config.redis.mode == RedisMode::Embedded {
            let places = MemoryPlaces::new(Arc::clone(limits));
            return Self::Embedded(Arc::new(Embedded::new(&config.ingest)), Arc::new(places));
        }
        let connector = Arc::new(Connector::new(&config.redis));
        let topology = Arc::new(Topology::of_config(&config.redis));
        let commands = Arc::new(Commands::new(
            Arc::clone(&connector),
            Arc::clone(&topology),
            &config.redis,
            Arc::clone(metrics),
        ));
        // Tells this process from others that share the servers; nobody has to guess it.
        let replica = format!("{:016x}", rand::random::<u64>());
        // As many as all sessions together may watch.
        let max_leaving = config.limits.max_sessions.saturating_mul(config.session.max_topics);
        let watchers = config.watchers.enabled.then(|| {
            Arc::new(Watchers::new(
                &config.watchers,
                &replica,
                max_leaving,
                Arc::clone(&commands),
                Arc::clone(metrics),
            ))
        });
        let user_places = RedisUserPlaces::new(
            Arc::clone(limits),
            config.limits.user_lease,
            &replica,
            Arc::clone(&commands),
            Arc::clone(metrics),
        );
        let publisher = Publisher::new(
            Arc::clone(&commands),
            Arc::clone(&connector),
            &config.redis,
            config.ingest.max_payload_bytes,
        );
        Self::Redis(Box::new(Redis {
            feed: Arc::new(Feed::new(&config.redis, &replica)),
            connector,
            topology,
            commands,
            watchers,
            user_places: Arc::new(user_places),
            publisher: Arc::new(publisher),
            readiness: Arc::new(Readiness::new(metrics.upstream.not_ready())),
            metrics: Arc::clone(metrics),
            ingest: config.ingest.clone(),
        }))
    }

    /// The live stream.
    pub fn feed(&self) -> Arc<dyn QuoteFeed> {
        match self {
            Self::Embedded(bus, _) => Arc::clone(bus) as _,
            Self::Redis(redis) => Arc::clone(&redis.feed) as _,
        }
    }

    /// The stored quotes.
    pub fn snapshots(&self) -> Arc<dyn SnapshotSource> {
        match self {
            Self::Embedded(bus, _) => Arc::clone(bus) as _,
            Self::Redis(redis) => Arc::new(RedisSnapshots::new(
                Arc::clone(&redis.commands),
                redis.ingest.max_payload_bytes,
                Arc::clone(&redis.metrics),
            )),
        }
    }

    /// The store of tickets.
    pub fn tickets(&self) -> Arc<dyn Tickets> {
        match self {
            Self::Embedded(..) => Arc::new(MemoryTickets::default()),
            Self::Redis(redis) => Arc::new(RedisTickets::new(Arc::clone(&redis.commands))),
        }
    }

    /// The count of sessions per user.
    pub fn user_places(&self) -> Arc<dyn UserPlaces> {
        match self {
            Self::Embedded(_, places) => Arc::clone(places) as _,
            Self::Redis(redis) => Arc::clone(&redis.user_places) as _,
        }
    }

    /// Says that the sessions of this replica are about to go to others.
    pub fn leave(&self) {
        if let Self::Redis(redis) = self {
            redis.user_places.leave();
        }
    }

    /// Who wants to know what is watched, if anybody.
    pub fn watchers(&self) -> Option<Arc<dyn WatchRegistry>> {
        match self {
            Self::Embedded(..) => None,
            Self::Redis(redis) => redis.watchers.clone().map(|watchers| watchers as _),
        }
    }

    /// Where quotes that come over HTTP are published.
    pub fn publisher(&self, fanout: &Arc<Fanout>) -> Arc<dyn QuotePublisher> {
        match self {
            Self::Embedded(bus, _) => Arc::new(EmbeddedPublisher::new(Arc::clone(bus), Arc::clone(fanout))),
            Self::Redis(redis) => Arc::clone(&redis.publisher) as _,
        }
    }

    /// Where streams are kept, how entries are added, and what brings them to those who watch in `hub`. To be asked
    /// for once: streams inside the process are new each time.
    pub fn streams(
        &self,
        config: &Config,
        hub: &Arc<Hub>,
    ) -> (Arc<dyn StreamSource>, Arc<dyn StreamWriter>, StreamReading) {
        match self {
            Self::Embedded(..) => {
                let streams = Arc::new(EmbeddedStreams::new(&config.streams));
                let reading = StreamReading::Embedded(Arc::clone(&streams), Arc::clone(hub));
                (Arc::clone(&streams) as _, streams, reading)
            }
            Self::Redis(redis) => {
                let streams = RedisStreams::new(Arc::clone(&redis.commands), config.streams.clone());
                let streams = Arc::new(streams);
                let reader = Reader::new(
                    Arc::clone(hub),
                    Arc::clone(&redis.connector),
                    Arc::clone(&redis.topology),
                    Arc::clone(&redis.commands),
                    Arc::clone(&redis.metrics.streams),
                    config,
                );
                (Arc::clone(&streams) as _, streams, StreamReading::Redis(reader))
            }
        }
    }

    /// Says why quotes can't be relied on at the moment.
    pub fn reasons(&self) -> Arc<dyn Fn() -> Vec<String> + Send + Sync> {
        match self {
            Self::Embedded(..) => Arc::new(Vec::new),
            Self::Redis(redis) => {
                let readiness = Arc::clone(&redis.readiness);
                Arc::new(move || {
                    readiness.reasons().into_iter().map(|(reason, why)| format!("{reason}: {why}")).collect()
                })
            }
        }
    }

    /// Brings quotes to `fanout` until `end`.
    pub fn run(
        &self,
        fanout: Arc<Fanout>,
        resync: Resync,
        end: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let Self::Redis(redis) = self else {
            return Box::pin(async move { end.cancelled().await });
        };
        let poller = Poller {
            topology: Arc::clone(&redis.topology),
            connector: Arc::clone(&redis.connector),
            readiness: Arc::clone(&redis.readiness),
            metrics: Arc::clone(&redis.metrics),
        };
        let parts = Parts {
            feed: Arc::clone(&redis.feed),
            fanout,
            resync,
            connector: Arc::clone(&redis.connector),
            topology: Arc::clone(&redis.topology),
            readiness: Arc::clone(&redis.readiness),
            metrics: Arc::clone(&redis.metrics),
            timing: Timing::default(),
        };
        let subscriber = Subscriber::new(parts, &redis.ingest);
        let (watchers, commands) = (redis.watchers.clone(), Arc::clone(&redis.commands));
        let metrics = Arc::clone(&redis.metrics);
        let user_places = Arc::clone(&redis.user_places);
        Box::pin(async move {
            let watching = async {
                if let Some(watchers) = watchers {
                    end.run_until_cancelled(watchers.run()).await;
                }
            };
            let counting = end.run_until_cancelled(user_places.run());
            // Whichever ends first ends the source, which is a failure unless it was told to.
            tokio::select! {
                () = async { tokio::join!(poller.run(end.clone()), subscriber.run(end.clone()), watching, counting); } => {}
                () = schema::watch(&commands, &metrics.upstream, &end) => {}
            }
        })
    }

    /// Writes down that nobody here watches anything any more, until `deadline`.
    pub async fn close(&self, deadline: Instant) {
        if let Self::Redis(redis) = self
            && let Some(watchers) = &redis.watchers
        {
            watchers.close(deadline).await;
        }
    }
}
