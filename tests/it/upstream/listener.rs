//! The Redis side of a gateway, with one lane that writes down what it gets.

use crate::support::wait::{wait_for, wait_until};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickbridge::catch_up::{CatchUp, SnapshotSource};
use tickbridge::clock::Now;
use tickbridge::config;
use tickbridge::fanout::Fanout;
use tickbridge::fanout::inbox::{Batch, Inbox};
use tickbridge::instrument::InstrumentId;
use tickbridge::metrics::Metrics;
use tickbridge::upstream::commands::Commands;
use tickbridge::upstream::connection::Connector;
use tickbridge::upstream::feed::Feed;
use tickbridge::upstream::readiness::Readiness;
use tickbridge::upstream::snapshot::RedisSnapshots;
use tickbridge::upstream::subscriber::{Parts, Subscriber, Timing};
use tickbridge::upstream::topology::{Topology, poll::Poller};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// For starting, on a machine that is busy with other tests.
const START: Duration = Duration::from_secs(20);

/// Everything that came of one instrument, in order.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// `ts` of each quote, when it came, and its JSON.
    pub quotes: Vec<(i64, Instant, String)>,
    /// Whether the stream is broken, and every change of that.
    pub stale: Vec<(bool, Instant)>,
    /// A quote came that was not newer than the one before.
    disordered: Option<String>,
}

impl Seen {
    /// The newest `ts`.
    pub fn newest(&self) -> i64 {
        self.quotes.last().map_or(0, |(ts, ..)| *ts)
    }

    /// The longest time between two quotes after `since`, the time until now included.
    pub fn longest_gap(&self, since: Instant) -> Duration {
        let times = self.quotes.iter().map(|(_, at, _)| *at).filter(|at| *at >= since);
        let times: Vec<_> = [since].into_iter().chain(times).chain([Instant::now()]).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

type Log = Arc<Mutex<HashMap<i64, Seen>>>;

/// A running Redis side. It ends with its owner, which checks then that no quote came twice or after a
/// newer one.
pub struct Listener {
    pub fanout: Arc<Fanout>,
    pub readiness: Arc<Readiness>,
    pub metrics: Arc<Metrics>,
    log: Log,
    stop: CancellationToken,
    _tasks: JoinSet<()>,
}

impl Listener {
    /// Starts with the usual times.
    pub fn start(config: &config::Redis) -> Self {
        Self::start_with(config, Timing::default())
    }

    /// Starts with other times.
    pub fn start_with(config: &config::Redis, timing: Timing) -> Self {
        let metrics = Arc::new(Metrics::new("t"));
        let replica = format!("{:08x}", rand::random::<u32>());
        let feed = Arc::new(Feed::new(config, &replica));
        let inbox = Arc::new(Inbox::default());
        let fanout = Arc::new(Fanout::new(vec![Arc::clone(&inbox)], Arc::clone(&feed) as _, 100_000));
        let connector = Arc::new(Connector::new(config));
        let topology = Arc::new(Topology::of_config(config));
        let readiness = Arc::new(Readiness::new(metrics.upstream.not_ready()));
        let commands =
            Commands::new(Arc::clone(&connector), Arc::clone(&topology), config, Arc::clone(&metrics));
        let snapshots = RedisSnapshots::new(Arc::new(commands), 16_384, Arc::clone(&metrics));
        let gather = config::CatchUp::default().gather;
        let catch_up = Arc::new(CatchUp::new(
            Arc::clone(&fanout),
            Arc::new(snapshots) as Arc<dyn SnapshotSource>,
            gather,
        ));

        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        let restored = Arc::clone(&catch_up);
        let subscriber = Subscriber::new(
            Parts {
                feed,
                fanout: Arc::clone(&fanout),
                resync: Arc::new(move |ids| restored.restored(ids)),
                connector: Arc::clone(&connector),
                topology: Arc::clone(&topology),
                readiness: Arc::clone(&readiness),
                metrics: Arc::clone(&metrics),
                timing,
            },
            &config::Ingest::default(),
        );
        let poller =
            Poller { topology, connector, readiness: Arc::clone(&readiness), metrics: Arc::clone(&metrics) };
        tasks.spawn(poller.run(stop.clone()));
        tasks.spawn(subscriber.run(stop.clone()));
        tasks.spawn(catch_up.run(stop.clone()));
        let log = Log::default();
        tasks.spawn(write_down(inbox, Arc::clone(&log)));
        Self { fanout, readiness, metrics, log, stop, _tasks: tasks }
    }

    /// Waits until no reason is left not to be ready.
    pub async fn ready(self) -> Self {
        self.is_ready(START).await;
        self
    }

    /// Waits until no reason is left not to be ready.
    pub async fn is_ready(&self, within: Duration) {
        wait_for("the Redis side is ready", within, || async {
            let reasons = self.readiness.reasons();
            if reasons.is_empty() { Some(()) } else { None }
        })
        .await;
    }

    /// Waits until a reason holds.
    pub async fn is_unready(&self, reason: &str, within: Duration) {
        wait_until(reason, within, || self.readiness.reasons().iter().any(|(label, _)| *label == reason))
            .await;
    }

    /// Lets the lane want instruments. One that is stale from the beginning counts as one that became so.
    pub fn join(&self, ids: impl IntoIterator<Item = i64>) {
        for id in ids {
            let joined = self.fanout.join(0, InstrumentId::new(id), Now::read());
            if joined.stale_since_ms.is_some() {
                self.log.lock().unwrap().entry(id).or_default().stale.push((true, Instant::now()));
            }
        }
    }

    /// Lets the lane want instruments no more.
    pub fn leave(&self, ids: impl IntoIterator<Item = i64>) {
        for id in ids {
            self.fanout.leave(0, InstrumentId::new(id));
        }
    }

    /// What has come of an instrument.
    pub fn seen(&self, id: i64) -> Seen {
        self.log.lock().unwrap().get(&id).cloned().unwrap_or_default()
    }

    /// Waits until the newest quote of an instrument is of time `ts`.
    pub async fn sees(&self, id: i64, ts: i64, within: Duration) {
        let what = format!("instrument {id} is at {ts}");
        wait_until(&what, within, || self.seen(id).newest() == ts).await;
    }

    /// A metric without labels, or the sum over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.render();
        let lines = text.lines().filter(|line| {
            line.strip_prefix("t_")
                .and_then(|l| l.strip_prefix(name))
                .is_some_and(|l| l.starts_with([' ', '{']))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.cancel();
        if !std::thread::panicking() {
            for (id, seen) in &*self.log.lock().unwrap() {
                assert_eq!(seen.disordered, None, "instrument {id}");
            }
        }
    }
}

/// The lane.
async fn write_down(inbox: Arc<Inbox>, log: Log) {
    let mut batch = Batch::default();
    loop {
        inbox.filled().await;
        inbox.take(&mut batch);
        let now = Instant::now();
        let mut log = log.lock().unwrap();
        for (id, incoming) in &batch.quotes {
            let seen = log.entry(id.get()).or_default();
            let ts = incoming.quote.version.ts.unwrap_or_default();
            if let Some((last, ..)) = seen.quotes.last().filter(|(last, ..)| *last >= ts) {
                seen.disordered = Some(format!("{ts} after {last}"));
            }
            let json = String::from_utf8(incoming.quote.json().to_vec()).unwrap();
            seen.quotes.push((ts, now, json));
        }
        for (id, since) in &batch.statuses {
            log.entry(id.get()).or_default().stale.push((since.is_some(), now));
        }
        drop(log);
        batch.clear();
    }
}

/// Configuration for a server that stands alone.
pub fn standalone(address: String, partitions: u32) -> config::Redis {
    configured(config::RedisMode::Standalone, vec![address], partitions)
}

/// Configuration for a cluster.
pub fn cluster(nodes: Vec<String>, partitions: u32) -> config::Redis {
    configured(config::RedisMode::Cluster, nodes, partitions)
}

fn configured(mode: config::RedisMode, nodes: Vec<String>, partitions: u32) -> config::Redis {
    let channel = config::Channel { partitions, ..Default::default() };
    config::Redis { mode, nodes, channel, ..Default::default() }
}
