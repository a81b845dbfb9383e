//! Names of Pub/Sub channels.
//!
//! Not here: names of keys, and who owns a channel's slot (`slots`, `topology`).

use super::slots::{SLOTS, slot};
use crate::config::{self, ChannelKind, ChannelLayout, RedisMode};
use crate::instrument::InstrumentId;

/// One channel, or our own probe channel in some slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Channel {
    /// The base channel.
    Base,
    /// A partition.
    Partition(u32),
    /// An instrument's own channel.
    Instrument(InstrumentId),
    /// This replica's probe channel with this hash tag.
    Probe(u16),
}

/// How channels are called, and by which commands they are subscribed.
#[derive(Clone, Debug)]
pub struct ChannelNames {
    base: String,
    /// Partitions; 1 where there are none.
    partitions: u32,
    per_instrument: bool,
    sharded: bool,
    /// Beginning of probe channels, and their end, which differs between replicas.
    probe: (String, String),
}

impl ChannelNames {
    /// Names as configured. `replica` tells this process from others that share the servers.
    pub fn new(config: &config::Redis, replica: &str) -> Self {
        let channel = &config.channel;
        let sharded = match channel.kind {
            ChannelKind::Auto => config.mode == RedisMode::Cluster,
            ChannelKind::Sharded => true,
            ChannelKind::Classic => false,
        };
        Self {
            base: channel.name.clone(),
            partitions: channel.partitions.max(1),
            per_instrument: channel.layout == ChannelLayout::PerInstrument,
            sharded,
            probe: (format!("{}:probe:{{", channel.name), format!("}}:{replica}")),
        }
    }

    /// Whether `SSUBSCRIBE` and `SPUBLISH` are used.
    pub const fn sharded(&self) -> bool {
        self.sharded
    }

    /// Whether each instrument has a channel of its own.
    pub const fn per_instrument(&self) -> bool {
        self.per_instrument
    }

    /// Partitions; 1 where the base channel is the only one.
    pub const fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Channels that are wanted whatever the sessions want.
    pub fn fixed(&self) -> Vec<Channel> {
        let partitions = (self.partitions > 1).then_some(0..self.partitions).into_iter().flatten();
        match self.per_instrument {
            true => Vec::new(),
            false => std::iter::once(Channel::Base).chain(partitions.map(Channel::Partition)).collect(),
        }
    }

    /// The name.
    pub fn name(&self, channel: Channel) -> String {
        let base = &self.base;
        match channel {
            Channel::Base => base.clone(),
            Channel::Partition(p) if self.sharded => format!("{base}:{{{p}}}"),
            Channel::Partition(p) => format!("{base}:{p}"),
            Channel::Instrument(id) => format!("{base}:{{stock:{id}}}"),
            Channel::Probe(tag) => format!("{}{tag}{}", self.probe.0, self.probe.1),
        }
    }

    /// The channel with this name, if it is one of ours.
    pub fn parse(&self, name: &str) -> Option<Channel> {
        if let Some(tag) = name.strip_prefix(&self.probe.0) {
            return tag.strip_suffix(&self.probe.1)?.parse().ok().map(Channel::Probe);
        }
        let rest = name.strip_prefix(&self.base)?;
        let Some(rest) = rest.strip_prefix(':') else {
            return rest.is_empty().then_some(Channel::Base);
        };
        let tag = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        match tag.and_then(|tag| tag.strip_prefix("stock:")) {
            Some(id) => InstrumentId::parse(id).map(Channel::Instrument),
            None => tag.unwrap_or(rest).parse().ok().map(Channel::Partition),
        }
    }

    /// Whether a name is that of the base channel. Cheaper than [`ChannelNames::parse`].
    pub fn is_base(&self, name: &[u8]) -> bool {
        name == self.base.as_bytes()
    }

    /// Whether a name is that of a probe channel of this or another replica.
    pub fn is_probe(&self, name: &[u8]) -> bool {
        name.starts_with(self.probe.0.as_bytes())
    }

    /// The hash slot of a channel.
    pub fn slot(&self, channel: Channel) -> u16 {
        slot(self.name(channel).as_bytes())
    }

    /// A probe channel whose slot satisfies `owned`, if there is one: a base name with a hash tag of its
    /// own puts all of them into one slot.
    pub fn probe_in(&self, owned: impl Fn(u16) -> bool) -> Option<Channel> {
        (0..SLOTS).map(Channel::Probe).find(|&probe| owned(self.slot(probe)))
    }

    /// The command that subscribes to one channel.
    pub const fn subscribe(&self) -> &'static str {
        if self.sharded { "SSUBSCRIBE" } else { "SUBSCRIBE" }
    }

    /// The command that takes one subscription back.
    pub const fn unsubscribe(&self) -> &'static str {
        if self.sharded { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" }
    }

    /// The command that publishes.
    pub const fn publish(&self) -> &'static str {
        if self.sharded { "SPUBLISH" } else { "PUBLISH" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(mode: RedisMode, partitions: u32) -> ChannelNames {
        let channel = config::Channel { partitions, ..Default::default() };
        ChannelNames::new(&config::Redis { mode, channel, ..Default::default() }, "r1")
    }

    #[test]
    fn names_follow_the_contract() {
        let sharded = names(RedisMode::Cluster, 64);
        assert_eq!(sharded.name(Channel::Base), "market:price-updated");
        assert_eq!(sharded.name(Channel::Partition(3)), "market:price-updated:{3}");
        let stock = Channel::Instrument(InstrumentId::new(-5));
        assert_eq!(sharded.name(stock), "market:price-updated:{stock:-5}");
        assert_eq!(sharded.slot(stock), slot(b"market:current-price:{stock:-5}"));
        let classic = names(RedisMode::Standalone, 64);
        assert_eq!(classic.name(Channel::Partition(3)), "market:price-updated:3");
        assert_eq!((sharded.fixed().len(), names(RedisMode::Cluster, 1).fixed()), (65, vec![Channel::Base]));
    }

    #[test]
    fn every_name_is_recognised() {
        for names in [names(RedisMode::Cluster, 64), names(RedisMode::Standalone, 64)] {
            let stock = Channel::Instrument(InstrumentId::new(5930));
            for channel in [Channel::Base, Channel::Partition(63), stock, Channel::Probe(7)] {
                assert_eq!(names.parse(&names.name(channel)), Some(channel));
            }
            for other in ["", "market", "market:price-updatedx", "market:price-updated:x", "other:3"] {
                assert_eq!(names.parse(other), None, "{other}");
            }
            let foreign = "market:price-updated:probe:{7}:r2";
            assert_eq!((names.parse(foreign), names.is_probe(foreign.as_bytes())), (None, true));
        }
    }

    #[test]
    fn a_probe_channel_is_found_for_any_range_of_slots() {
        let names = names(RedisMode::Cluster, 1);
        let probe = names.probe_in(|slot| (100..110).contains(&slot)).expect("16384 tags");
        assert!((100..110).contains(&names.slot(probe)));
        let channel = config::Channel { name: "{market}".into(), ..Default::default() };
        let names = ChannelNames::new(&config::Redis { channel, ..Default::default() }, "r1");
        assert_eq!(names.probe_in(|slot| slot == 0), None);
    }
}
