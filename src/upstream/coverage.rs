//! Which channel is live on which connection, and what follows for the instruments behind it.
//!
//! Invariants:
//! - A channel is live only on the node that it is assigned to; a late word of another node or of a
//!   connection that is gone changes nothing.
//! - A channel that is assigned to another node is lost at once, however well the old one looks.
//! - Losses and gains reach the fan-out in the order in which they happened, a loss only after the feed
//!   says so, as the fan-out demands.
//!
//! Not here: subscribing (`node`), deciding who owns a channel (`subscriber`).

use super::channels::Channel;
use super::feed::Feed;
use super::slots::NodeAddr;
use crate::clock::Now;
use crate::fanout::{Fanout, QuoteFeed};
use crate::instrument::InstrumentId;
use crate::metrics::Metrics;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Told which wanted instruments' keys are to be read again, after their stream was restored. Must not
/// block.
pub type Resync = Arc<dyn Fn(Vec<InstrumentId>) + Send + Sync>;

/// One life of one connection. Never used twice in a process.
pub type Incarnation = u64;

/// What is known of a wanted channel.
struct Place {
    node: Option<NodeAddr>,
    live_on: Option<Incarnation>,
    /// Since when it is not live, on the monotonic clock.
    lost_at: Duration,
    /// Whether it has been live at all, on any node.
    seen_live: bool,
    /// The fan-out takes it for whole until it is told otherwise, because nobody has wanted it until now.
    presumed: bool,
}

/// The state of every wanted channel.
pub struct Coverage {
    feed: Arc<Feed>,
    fanout: Arc<Fanout>,
    resync: Resync,
    metrics: Arc<Metrics>,
    /// Held while the fan-out is told, so that what is told keeps its order.
    places: Mutex<HashMap<Channel, Place>>,
    changed: Notify,
}

impl Coverage {
    /// No channel is wanted.
    pub fn new(feed: Arc<Feed>, fanout: Arc<Fanout>, resync: Resync, metrics: Arc<Metrics>) -> Self {
        Self { feed, fanout, resync, metrics, places: Mutex::default(), changed: Notify::new() }
    }

    /// Wants each channel on its node, or on none while nobody owns its slot.
    pub fn assign(&self, channels: &[(Channel, Option<NodeAddr>)], now: Now) {
        let mut places = self.places();
        let mut lost = Vec::new();
        for (channel, node) in channels {
            let place = places.entry(*channel).or_insert_with(|| {
                self.feed.set_live(*channel, false);
                let presumed = matches!(channel, Channel::Instrument(_));
                Place { node: None, live_on: None, lost_at: now.mono, seen_live: false, presumed }
            });
            if place.node != *node {
                place.node.clone_from(node);
                if place.live_on.take().is_some() {
                    place.lost_at = now.mono;
                    lost.push(*channel);
                }
            }
        }
        self.tell_lost(&places, &lost, now);
    }

    /// Wants channels no more.
    pub fn forget(&self, channels: &[Channel], now: Now) {
        let mut places = self.places();
        let was_live = |channel: &&Channel| places.remove(channel).is_some_and(|p| p.live_on.is_some());
        let lost: Vec<_> = channels.iter().filter(was_live).copied().collect();
        self.tell_lost(&places, &lost, now);
        channels.iter().for_each(|&channel| self.feed.forget(channel));
    }

    /// Channels that somebody has begun to want longer than `grace` ago, and that still aren't live, count
    /// as lost from now on.
    pub fn presume_no_more(&self, grace: Duration, now: Now) {
        let mut places = self.places();
        let is_late = |place: &Place| place.presumed && now.mono.saturating_sub(place.lost_at) >= grace;
        let late = places.iter_mut().filter(|(_, place)| is_late(place));
        let late: Vec<_> = late
            .map(|(&channel, place)| {
                place.presumed = false;
                channel
            })
            .collect();
        if !late.is_empty() {
            self.tell_lost(&places, &late, now);
        }
    }

    /// A connection to `node` is subscribed to channels. Their instruments are read again.
    pub fn gained(&self, node: &NodeAddr, incarnation: Incarnation, channels: &[Channel]) {
        let mut gained = Vec::new();
        let mut places = self.places();
        for channel in channels {
            let Some(place) = places.get_mut(channel) else { continue };
            if place.node.as_ref() == Some(node) && place.live_on != Some(incarnation) {
                place.live_on = Some(incarnation);
                if place.seen_live {
                    self.metrics.upstream.resubscribes.increment(1);
                }
                place.seen_live = true;
                place.presumed = false;
                gained.push(*channel);
            }
        }
        if gained.is_empty() {
            return;
        }
        for &channel in &gained {
            self.feed.set_live(channel, true);
        }
        self.show(&places);
        let reach = Reach::of(&gained, self.feed.names().partitions());
        // An instrument that still lacks its other channel is restored when that one comes.
        let wanted = self.fanout.stream_restored(&|id| reach.covers(id) && self.feed.is_live(id));
        drop(places);
        if !wanted.is_empty() {
            (self.resync)(wanted);
        }
    }

    /// A connection lost channels. Those that are not live on it by now are none of its business.
    pub fn lost(&self, incarnation: Incarnation, channels: &[Channel], now: Now) {
        let mut places = self.places();
        let mut lost = Vec::new();
        for channel in channels {
            if let Some(place) = places.get_mut(channel).filter(|p| p.live_on == Some(incarnation)) {
                place.live_on = None;
                place.lost_at = now.mono;
                lost.push(*channel);
            }
        }
        self.tell_lost(&places, &lost, now);
    }

    /// How many wanted channels have not been live for longer than `grace`.
    pub fn n_missing(&self, grace: Duration, now: Now) -> usize {
        let missing = |p: &&Place| p.live_on.is_none() && now.mono.saturating_sub(p.lost_at) >= grace;
        self.places().values().filter(missing).count()
    }

    /// Waits until a channel was lost or gained.
    ///
    /// # Cancel safety
    /// A change while nobody waits is kept for the next call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// How many channels are wanted.
    pub fn n_wanted(&self) -> usize {
        self.places().len()
    }

    fn tell_lost(&self, places: &HashMap<Channel, Place>, lost: &[Channel], now: Now) {
        for &channel in lost {
            self.feed.set_live(channel, false);
        }
        self.show(places);
        if !lost.is_empty() {
            let mut reach = Reach::of(lost, self.feed.names().partitions());
            reach.all &= self.feed.needs_base();
            self.fanout.stream_broken(&|id| reach.covers(id), now);
        }
    }

    fn show(&self, places: &HashMap<Channel, Place>) {
        let n_live = places.values().filter(|place| place.live_on.is_some()).count();
        self.metrics.upstream.channels_wanted.set(places.len() as f64);
        self.metrics.upstream.channels_live.set(n_live as f64);
        self.changed.notify_one();
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Channel, Place>> {
        // A panic while the fan-out is told ends the process's core task anyway.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The instruments behind a set of channels.
#[derive(Default)]
struct Reach {
    all: bool,
    partitions: Vec<bool>,
    instruments: HashSet<InstrumentId>,
}

impl Reach {
    fn of(channels: &[Channel], n_partitions: u32) -> Self {
        let mut reach = Self { partitions: vec![false; n_partitions as usize], ..Self::default() };
        for &channel in channels {
            match channel {
                Channel::Base => reach.all = true,
                Channel::Partition(p) => reach.partitions[p as usize] = true,
                Channel::Instrument(id) => {
                    reach.instruments.insert(id);
                }
                Channel::Probe(_) => {}
            }
        }
        reach
    }

    fn covers(&self, id: InstrumentId) -> bool {
        self.all
            || self.partitions[id.partition(self.partitions.len() as u32) as usize]
            || self.instruments.contains(&id)
    }
}

#[cfg(test)]
mod tests;
