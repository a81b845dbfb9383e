//! The composition root: builds every part, binds the sockets, starts and ends everything in order.
//!
//! The only place that sees both the Redis side and the browser side. Start and end are each one function,
//! to be read from top to bottom.

pub mod live;
mod memory;
mod schema;
mod source;
mod streams;

use crate::catch_up::CatchUp;
use crate::clock::Now;
use crate::config::Config;
use crate::config::live::LiveLimits;
use crate::edge::auth::Verifier;
use crate::edge::ops::Health;
use crate::edge::sessions::Page;
use crate::edge::{Addresses, Edge, Services, Shutdown};
use crate::fanout::{Fanout, MAX_LANES};
use crate::lane::delivery::Shared;
use crate::lane::{LaneThreads, Lanes, ListFrom};
use crate::metrics::Metrics;
use crate::publish::QuotePublisher;
use crate::session::standing::Timers;
use crate::session::sweep;
use crate::shutdown::{Phase, Phases, Requests};
use crate::stream::sessions::Sessions;
use anyhow::Context;
use live::Live;
use source::Source;
use std::sync::Arc;
use std::time::Duration;
use streams::Streams;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often recorded histogram values are moved into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// A lane turns ten times a second; one that hasn't for this long is stuck and not busy.
const STALLED: Duration = Duration::from_secs(10);

/// How often the drain looks whether all sessions are gone.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// Time that the last steps of an end get, whatever the deadline of the drain was.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// A gateway with its sockets bound, not yet serving.
pub struct App {
    config: Config,
    edge: Edge,
    source: Source,
    fanout: Arc<Fanout>,
    catch_up: Arc<CatchUp>,
    streams: Streams,
    lanes: Arc<Lanes>,
    threads: LaneThreads,
    metrics: Arc<Metrics>,
    phases: Phases,
    services: Services,
    live: Live,
    ends: Ends,
}

/// What ends the parts, in the order in which they end.
#[derive(Clone, Default)]
struct Ends {
    edge: Shutdown,
    core: CancellationToken,
    source: CancellationToken,
}

/// How a gateway ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As it was asked to.
    Clean,
    /// A core task failed; its error is in the log.
    Failed,
}

impl App {
    /// Builds every part. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// A socket that can't be bound, a key that can't be used, a thread that can't be started.
    pub fn build(config: Config) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new(&config.metrics.prefix));
        let edge = Edge::bind(&config)?;
        let limits = LiveLimits::new(&config);
        let source = Source::new(&config, &limits, &metrics);

        let inboxes: Vec<_> = (0..n_lanes(&config)).map(|_| Arc::default()).collect();
        let fanout = Arc::new(Fanout::new(inboxes.clone(), source.feed(), config.ingest.max_instruments));
        let catch_up =
            Arc::new(CatchUp::new(Arc::clone(&fanout), source.snapshots(), config.catch_up.gather));
        let verifier = Verifier::new(&config.auth.jwt, Arc::clone(&metrics)).context("auth.jwt")?;
        let authenticator = Arc::new(verifier);

        let live = Live {
            limits: Arc::clone(&limits),
            origins: edge.origins(),
            verifier: Arc::clone(&authenticator),
            metrics: Arc::clone(&metrics),
        };
        let ends = Ends::default();
        let shared = Shared {
            fanout: Arc::clone(&fanout),
            catch_up: Arc::clone(&catch_up),
            authenticator: authenticator.clone(),
            watchers: source.watchers(),
            timers: Timers::new(&config, Arc::clone(&limits)),
            anonymous: config.auth.anonymous,
            limits: Arc::clone(&limits),
            user_places: Some(source.user_places()),
            max_message_bytes: config.session.max_message_bytes,
            flush_interval: config.session.flush_interval,
        };
        let (lanes, threads) =
            Lanes::start(inboxes, &Arc::new(shared), &ends.core).context("delivery threads")?;
        let lanes = Arc::new(lanes);
        metrics.attach(Arc::clone(&lanes), Arc::clone(&fanout));

        let streams = Streams::new(&config, &source, &limits, &metrics, &ends.core);
        let phases = Phases::new();
        let admitting = Arc::clone(&lanes);
        let services = Services {
            admit: Arc::new(move |admission| admitting.admit(admission)),
            authenticator,
            tickets: source.tickets(),
            user_places: source.user_places(),
            limits: Arc::clone(&limits),
            catch_up: Arc::clone(&catch_up),
            metrics: Arc::clone(&metrics),
            health: health(&lanes, &phases, &source),
            sessions: {
                let (lanes, streams) = (Arc::clone(&lanes), Arc::clone(&streams.sessions));
                Arc::new(move |from, n| {
                    let (lanes, streams) = (Arc::clone(&lanes), Arc::clone(&streams));
                    Box::pin(async move { list(&lanes, &streams, from, n).await })
                })
            },
            publisher: source.publisher(&fanout),
            streams: config.streams.enabled.then(|| streams.edge.clone()),
        };
        let app = Self {
            config,
            edge,
            source,
            fanout,
            catch_up,
            streams,
            lanes,
            threads,
            metrics,
            phases,
            services,
            live,
            ends,
        };
        Ok(app)
    }

    /// Where the gateway listens.
    pub fn addresses(&self) -> Addresses {
        self.edge.addresses()
    }

    /// What takes another configuration while the gateway runs.
    pub fn live(&self) -> Live {
        self.live.clone()
    }

    /// Where quotes can be published to.
    pub fn publisher(&self) -> Arc<dyn QuotePublisher> {
        self.source.publisher(&self.fanout)
    }

    /// The phase, for whoever waits for one.
    pub fn phases(&self) -> Phases {
        self.phases.clone()
    }

    /// Serves until `requests` ask for the end or a core task fails, and then drains.
    pub async fn run(self, requests: Requests) -> Outcome {
        let Self { config, edge, source, fanout, catch_up, lanes, threads, metrics, phases, .. } = self;
        let Self { services, streams, ends, .. } = self;
        let failed = CancellationToken::new();
        let core = TaskTracker::new();
        let upstream = TaskTracker::new();

        let guard =
            |name, end: &CancellationToken| CoreTask { name, failed: failed.clone(), end: end.clone() };
        // The source comes first, so that the first sessions find it whole.
        let restored = Arc::clone(&catch_up);
        let resync = Arc::new(move |ids| restored.restored(ids));
        let feeding = source.run(Arc::clone(&fanout), resync, ends.source.clone());
        guard("source", &ends.source).spawn(&upstream, feeding);
        let Streams { sessions, reading, .. } = streams;
        guard("streams", &ends.source).spawn(&upstream, reading.run(ends.source.clone()));
        guard("catch-up", &ends.core).spawn(&core, catch_up.run(ends.core.clone()));
        guard("sweep", &ends.core).spawn(&core, sweep::run(Arc::clone(&lanes), ends.core.clone()));
        guard("upkeep", &ends.core).spawn(&core, upkeep(Arc::clone(&metrics), ends.core.clone()));
        let counted = Arc::clone(&lanes);
        let trimming = memory::run(move || counted.n_sessions(), ends.core.clone());
        guard("memory", &ends.core).spawn(&core, trimming);
        let shutdown = ends.edge.clone();
        guard("edge", &ends.edge.stopped).spawn(&core, async move {
            if let Err(error) = edge.serve(services, shutdown).await {
                tracing::error!(%error, "the listeners ended");
            }
        });

        let outcome = tokio::select! {
            () = requests.draining() => Outcome::Clean,
            () = failed.cancelled() => Outcome::Failed,
            () = lanes.failed().cancelled() => Outcome::Failed,
        };
        if outcome == Outcome::Failed {
            tracing::error!("a core task failed; draining");
        }

        tokio::select! {
            () = drain(&config, (&lanes, &sessions), &source, &phases, &ends) => {}
            () = requests.stopping() => tracing::warn!("asked twice: stopping at once"),
        }

        phases.advance(Phase::Flushing);
        let last = Instant::now() + LAST_STEPS;
        // Lanes close what is left and write down what nobody watches any more; the registry sends it.
        ends.core.cancel();
        let joined = tokio::task::spawn_blocking(|| threads.join());
        let _ = timeout_at(last, joined).await;
        sessions.ended(last).await;
        source.close(last).await;
        ends.source.cancel();
        ends.edge.draining.cancel();
        ends.edge.stopped.cancel();
        for tasks in [core, upstream] {
            tasks.close();
            let _ = timeout_at(last, tasks.wait()).await;
        }
        phases.advance(Phase::Stopped);
        outcome
    }
}

/// Not ready, then no new sessions and the old ones told to leave one after the other.
async fn drain(
    config: &Config,
    (lanes, streams): (&Lanes, &Sessions),
    source: &Source,
    phases: &Phases,
    ends: &Ends,
) {
    let began = Instant::now();
    phases.advance(Phase::NotReady);
    tracing::info!(sessions = lanes.n_sessions(), stream.sessions = streams.n_sessions(), "draining");
    tokio::time::sleep(config.drain.notice).await;

    phases.advance(Phase::Draining);
    ends.edge.draining.cancel();
    source.leave();
    let deadline = began + config.drain.deadline;
    let margin = LAST_STEPS.min(config.drain.deadline / 4);
    let within = deadline.saturating_duration_since(Instant::now()).saturating_sub(margin);
    let (of_lanes, of_streams) = share(config.drain.reconnect_rate, lanes.n_sessions(), streams.n_sessions());
    let gone = async {
        lanes.drain(of_lanes, within).await;
        while lanes.n_sessions() > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    let all_gone = async { tokio::join!(gone, streams.drain(of_streams, within, Now::read())) };
    if timeout_at(deadline, all_gone).await.is_err() {
        let (sessions, of_streams) = (lanes.n_sessions(), streams.n_sessions());
        tracing::warn!(
            sessions,
            stream.sessions = of_streams,
            "the drain's deadline passed with sessions left"
        );
    }
}

/// Shares the rate of reconnects among the two kinds of sessions by their number. Neither gets none: a session of
/// either may still be on its way in.
fn share(rate: u32, n_in_lanes: u64, n_of_streams: usize) -> (u32, u32) {
    let (lanes, streams) = (n_in_lanes as f64, n_of_streams as f64);
    let of_streams = f64::from(rate) * streams / (lanes + streams).max(1.0);
    let of_streams = of_streams.round() as u32;
    (rate.saturating_sub(of_streams).max(1), of_streams.max(1))
}

/// Lists sessions, those of streams as if they were in a lane behind the last.
async fn list(lanes: &Lanes, streams: &Sessions, from: ListFrom, n: usize) -> Page {
    let (quotes, next) = lanes.list(from, n).await;
    if next.is_some() {
        return Page { quotes, streams: Vec::new(), next };
    }
    let lane = lanes.n_lanes();
    let place = if from.lane < lane { 0 } else { from.place };
    let (streams, place) = streams.list(place, n - quotes.len());
    Page { quotes, streams, next: place.map(|place| ListFrom { lane, place }) }
}

fn health(lanes: &Arc<Lanes>, phases: &Phases, source: &Source) -> Health {
    let turning = Arc::clone(lanes);
    let stalled = move || {
        let silence = turning.longest_silence(Now::read().mono);
        if silence > STALLED { vec![format!("a lane has not turned for {silence:.0?}")] } else { Vec::new() }
    };
    let (phases, upstream) = (phases.clone(), source.reasons());
    let unready = move || {
        let mut reasons = upstream();
        if phases.now() != Phase::Running {
            reasons.push("draining".to_owned());
        }
        reasons
    };
    Health { stalled: Arc::new(stalled), unready: Arc::new(unready) }
}

/// Core tasks: if one ends, by itself or by a panic, before it was told to, the gateway has failed.
struct CoreTask {
    name: &'static str,
    failed: CancellationToken,
    end: CancellationToken,
}

impl CoreTask {
    fn spawn(self, tasks: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
        tasks.spawn(async move {
            // Moved in, so that a panic drops it too.
            let _this = self;
            task.await;
        });
    }
}

impl Drop for CoreTask {
    fn drop(&mut self) {
        if !self.end.is_cancelled() {
            tracing::error!(task = self.name, "a core task ended");
            self.failed.cancel();
        }
    }
}

async fn upkeep(metrics: Arc<Metrics>, end: CancellationToken) {
    let mut ticks = tokio::time::interval(UPKEEP);
    while end.run_until_cancelled(ticks.tick()).await.is_some() {
        metrics.upkeep();
    }
}

fn n_lanes(config: &Config) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.lanes.threads.unwrap_or(cores).clamp(1, MAX_LANES)
}
