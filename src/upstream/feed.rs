//! What the core sees of the live stream: whether an instrument's stream is whole, and a place to leave
//! wishes.
//!
//! Made before the fan-out, which asks it under its own locks: nothing here waits or calls back.
//!
//! Not here: making it true (`coverage`, `subscriber`).

use super::channels::{Channel, ChannelNames};
use crate::config;
use crate::fanout::QuoteFeed;
use crate::instrument::InstrumentId;
use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use tokio::sync::Notify;

/// The live stream from Redis, as the fan-out asks about it.
pub struct Feed {
    names: ChannelNames,
    base: AtomicBool,
    partitions: Box<[AtomicBool]>,
    /// Whether a quote has ever come through the base channel, and through a partition.
    base_spoke: AtomicBool,
    partition_spoke: AtomicBool,
    /// Instruments whose own channel is subscribed or to be, and whether it is live. Written once per
    /// subscription; the partitioned layout doesn't use it.
    instruments: RwLock<HashMap<InstrumentId, bool>>,
    /// The last word on each instrument since the subscriber looked, so that a flapping interest takes
    /// no more room than a steady one.
    wishes: Mutex<HashMap<InstrumentId, bool>>,
    wished: Notify,
}

impl Feed {
    /// A feed of which nothing is live yet. `replica` tells this process from others that share the
    /// servers.
    pub fn new(config: &config::Redis, replica: &str) -> Self {
        let names = ChannelNames::new(config, replica);
        Self {
            base: AtomicBool::new(false),
            partitions: (0..names.partitions()).map(|_| AtomicBool::new(false)).collect(),
            base_spoke: AtomicBool::new(false),
            partition_spoke: AtomicBool::new(false),
            instruments: RwLock::default(),
            wishes: Mutex::default(),
            wished: Notify::new(),
            names,
        }
    }

    /// How the channels are called.
    pub const fn names(&self) -> &ChannelNames {
        &self.names
    }

    /// Marks a channel. Probes are nobody's stream.
    pub(super) fn set_live(&self, channel: Channel, live: bool) {
        match channel {
            Channel::Base => self.base.store(live, Ordering::SeqCst),
            Channel::Partition(p) => {
                if let Some(flag) = self.partitions.get(p as usize) {
                    flag.store(live, Ordering::SeqCst);
                }
            }
            Channel::Instrument(id) => {
                self.instruments.write().unwrap_or_else(PoisonError::into_inner).insert(id, live);
            }
            Channel::Probe(_) => {}
        }
    }

    /// A channel isn't wanted any more.
    pub(super) fn forget(&self, channel: Channel) {
        if let Channel::Instrument(id) = channel {
            self.instruments.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }

    /// A quote came through a channel of this name.
    pub(super) fn spoke(&self, name: &[u8]) {
        // Partitions have longer names. Loaded first, because this is asked for every quote.
        let spoke = if self.names.is_base(name) { &self.base_spoke } else { &self.partition_spoke };
        if !spoke.load(Ordering::Relaxed) {
            spoke.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a stream needs the base channel besides its partition. Publishers use either, and which they
    /// use shows in what they have sent.
    pub(super) fn needs_base(&self) -> bool {
        self.base_spoke.load(Ordering::SeqCst) || !self.partition_spoke.load(Ordering::SeqCst)
    }

    /// Which of the instruments' wishes changed since the last call: wanted, or not any more.
    pub(super) fn take_wishes(&self) -> HashMap<InstrumentId, bool> {
        mem::take(&mut *self.wishes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until a wish was left.
    ///
    /// # Cancel safety
    /// A wish that is left while nobody waits is kept for the next call.
    pub(super) async fn wished(&self) {
        self.wished.notified().await;
    }

    /// Whether the instrument's own channel is live; `None` while nobody has asked for it.
    fn own_channel(&self, id: InstrumentId) -> Option<bool> {
        self.instruments.read().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
    }

    fn wish(&self, id: InstrumentId, wanted: bool) {
        if self.names.per_instrument() {
            self.wishes.lock().unwrap_or_else(PoisonError::into_inner).insert(id, wanted);
            self.wished.notify_one();
        }
    }
}

impl QuoteFeed for Feed {
    fn is_live(&self, id: InstrumentId) -> bool {
        if self.names.per_instrument() {
            return self.own_channel(id) == Some(true);
        }
        let n = self.names.partitions();
        let partition = n == 1 || self.partitions[id.partition(n) as usize].load(Ordering::SeqCst);
        partition && (self.base.load(Ordering::SeqCst) || !self.needs_base())
    }

    fn is_starting(&self, id: InstrumentId) -> bool {
        self.names.per_instrument() && self.own_channel(id).is_none()
    }

    fn wanted(&self, id: InstrumentId) {
        self.wish(id, true);
    }

    fn unwanted(&self, id: InstrumentId) {
        self.wish(id, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ChannelLayout;

    fn feed(partitions: u32, layout: ChannelLayout) -> Feed {
        let channel = config::Channel { partitions, layout, ..Default::default() };
        Feed::new(&config::Redis { channel, ..Default::default() }, "r1")
    }

    #[test]
    fn an_instrument_is_live_while_both_its_channels_are() {
        let feed = feed(4, ChannelLayout::Partitioned);
        let id = InstrumentId::new(102);
        for (channel, live) in
            [(Channel::Partition(2), false), (Channel::Partition(1), false), (Channel::Base, true)]
        {
            feed.set_live(channel, true);
            assert_eq!(feed.is_live(id), live, "{channel:?}");
        }
        feed.set_live(Channel::Partition(2), false);
        assert!(!feed.is_live(id));
        assert!(feed.is_live(InstrumentId::new(101)));
    }

    #[test]
    fn the_base_channel_is_needed_until_the_publisher_is_known_to_use_the_partitions_alone() {
        let feed = feed(4, ChannelLayout::Partitioned);
        let id = InstrumentId::new(102);
        feed.set_live(Channel::Partition(2), true);
        assert!(feed.needs_base() && !feed.is_live(id), "nothing is known yet");
        feed.spoke(b"market:price-updated:2");
        assert!(!feed.needs_base() && feed.is_live(id));
        feed.spoke(b"market:price-updated");
        assert!(feed.needs_base() && !feed.is_live(id), "some quotes come there");
    }

    #[test]
    fn without_partitions_the_base_channel_is_enough() {
        let feed = feed(1, ChannelLayout::Partitioned);
        feed.set_live(Channel::Base, true);
        assert!(feed.is_live(InstrumentId::new(-7)));
        feed.wanted(InstrumentId::new(1));
        assert!(feed.take_wishes().is_empty(), "nobody would take them");
    }

    #[tokio::test]
    async fn the_last_wish_counts() {
        let feed = feed(1, ChannelLayout::PerInstrument);
        let id = InstrumentId::new(1);
        feed.wanted(id);
        feed.unwanted(id);
        feed.wanted(id);
        feed.wished().await;
        assert_eq!(feed.take_wishes(), HashMap::from([(id, true)]));
        assert!(feed.is_starting(id));
        feed.set_live(Channel::Instrument(id), false);
        assert!(!feed.is_starting(id) && !feed.is_live(id), "asked for, and not there yet");
        feed.set_live(Channel::Instrument(id), true);
        assert!(feed.is_live(id) && !feed.is_live(InstrumentId::new(2)));
        feed.forget(Channel::Instrument(id));
        assert!(feed.is_starting(id) && !feed.is_live(id));
    }
}
