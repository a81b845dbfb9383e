//! A cluster under traffic, on which faults are played.

use super::listener::{Listener, cluster};
use super::traffic::Traffic;
use crate::support::cluster::{NodeAt, RedisCluster};
use crate::support::publisher::{CHANNEL, price_key, slot};
use crate::support::wait::wait_until;
use std::time::{Duration, Instant};
use tickbridge::config;
use tickbridge::instrument::InstrumentId;

/// Enough for several channels per shard.
pub const PARTITIONS: u32 = 16;

/// After the fault is over, on a machine that has hardly any time for us. What a healthy one takes is printed.
pub const SOON: Duration = Duration::from_secs(20);

/// What such a machine may hold up anything, fault or not. A stream that is dead until a restart is silent for
/// longer.
pub const HICCUP: Duration = Duration::from_secs(10);

/// Shown by `--nocapture`: what the table of faults in the operator's documents is made of.
pub fn measured(fault: &str, silence: Duration) {
    eprintln!("measured {fault}: {silence:.2?}");
}

/// Which of three shards a name belongs to at the start.
pub fn shard_of(name: &str) -> usize {
    usize::from(slot(name)) * 3 / 16_384
}

/// A cluster, a listener and traffic on one instrument per partition.
pub struct Scene {
    pub servers: RedisCluster,
    pub listener: Listener,
    pub traffic: Traffic,
    pub ids: Vec<i64>,
}

impl Scene {
    /// Three primaries and so many replicas.
    pub async fn new(replicas: usize) -> Self {
        Self::new_as(replicas, &[], |_| {}).await
    }

    /// [`Scene::new`] with further settings of the servers, and with what `configure` sets for the listener.
    pub async fn new_as(replicas: usize, conf: &[&str], configure: impl FnOnce(&mut config::Redis)) -> Self {
        // Otherwise all publishers stop for the time in which one shard has no primary.
        let conf = [&["--cluster-require-full-coverage", "no"], conf].concat();
        let servers = RedisCluster::start_with(3, replicas, &conf).await;
        let mut config = cluster(servers.addresses(), PARTITIONS);
        configure(&mut config);
        let listener = Listener::start(&config).ready().await;
        // An instrument per partition whose key is in the same shard as its channel: a publisher stops
        // when either is gone.
        let in_one_shard = |id: &i64| shard_of(&price_key(*id)) == shard_of(&Self::channel(*id));
        let of = |p: i64| (0..).map(|n| p + n * i64::from(PARTITIONS)).find(in_one_shard);
        let ids: Vec<i64> = (0..i64::from(PARTITIONS)).filter_map(of).collect();
        listener.join(ids.iter().copied());
        let traffic = Traffic::start(&servers, PARTITIONS, &ids);
        let scene = Self { servers, listener, traffic, ids };
        scene.all_move(SOON).await;
        scene
    }

    /// The channel of an instrument.
    pub fn channel(id: i64) -> String {
        format!("{CHANNEL}:{{{}}}", InstrumentId::new(id).partition(PARTITIONS))
    }

    /// Instruments whose partition is in the slots of a shard of the start, and the others.
    pub fn behind(&self, shard: usize) -> (Vec<i64>, Vec<i64>) {
        self.ids.iter().partition(|id| shard_of(&Self::channel(**id)) == shard)
    }

    /// A shard without the base channel.
    pub fn shard() -> usize {
        (shard_of(CHANNEL) + 1) % 3
    }

    /// Waits until every instrument shows a quote that was published after now.
    pub async fn all_move(&self, within: Duration) {
        let published: Vec<_> = self.ids.iter().map(|&id| (id, self.traffic.newest(id))).collect();
        for (id, newest) in published {
            let what = format!("instrument {id} moves past {newest}");
            wait_until(&what, within, || self.listener.seen(id).newest() > newest).await;
        }
    }

    /// The longest that any of `ids` was without a quote since `since`.
    pub fn longest_gap(&self, ids: &[i64], since: Instant) -> Duration {
        ids.iter().map(|&id| self.listener.seen(id).longest_gap(since)).max().unwrap_or_default()
    }

    /// Ends the traffic; all instruments end on their newest price, live, with nothing left to complain.
    pub async fn settles(self) {
        self.all_move(SOON).await;
        self.listener.is_ready(SOON).await;
        for (id, newest) in self.traffic.stop().await {
            // One that its publisher gave up may have been published all the same.
            let what = format!("instrument {id} ends at {newest} or later");
            wait_until(&what, SOON, || self.listener.seen(id).newest() >= newest).await;
            let stale = self.listener.seen(id).stale;
            assert!(stale.last().is_none_or(|(broken, _)| !broken), "{id} is still stale: {stale:?}");
        }
    }

    /// A node that doesn't own a slot.
    pub async fn other_than_owner(&self, slot: u16) -> NodeAt {
        let owner = self.servers.owner(slot).await;
        (0..3).find(|at| *at != owner).unwrap()
    }
}
