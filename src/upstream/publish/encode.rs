//! The commands that a quote becomes.

use super::batch::Entry;
use super::resp;
use super::statement::push_signed;
use crate::config;
use crate::instrument::InstrumentId;
use crate::upstream::channels::{Channel, ChannelNames};
use crate::upstream::slots::slot;
use redis::Cmd;

/// Time to live of the price keys, in seconds, as the contract says.
const KEY_TTL: &[u8] = b"300";

/// What stands before the tag in the names of `keys`.
const PRICE: &[u8] = b"market:current-price:";
const UPDATED_AT: &[u8] = b"market:current-price-updated-at:";

/// The function of `migrations/` that stores and announces in one step.
pub const FUNCTION: &[u8] = b"tickbridge_publish_1";

/// What [`FUNCTION`] answers for a quote that is older than what is stored. Otherwise its answer is the
/// quote's `seq`.
pub const REFUSED: i64 = 0;

/// What commands are written to: the buffer of a link, or commands of the redis crate.
pub trait Words {
    /// Begins a command of `n_words`.
    fn command(&mut self, n_words: u64);

    /// Adds a word to it, given in pieces.
    fn word(&mut self, pieces: &[&[u8]]);

    /// Begins a command, or adds words to it, that are always the same.
    fn fixed(&mut self, fixed: &Fixed);
}

/// Words that are the same in every command, and the bytes that they become. A command has many short
/// pieces, and copying them one by one is most of what it costs.
#[derive(Debug)]
pub struct Fixed {
    /// How many words the command has that begins here.
    begins: Option<u64>,
    words: Vec<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Fixed {
    fn new(begins: Option<u64>, words: &[&[u8]]) -> Self {
        let mut bytes = Vec::new();
        if let Some(n_words) = begins {
            resp::command(&mut bytes, n_words);
        }
        words.iter().for_each(|word| resp::arg(&mut bytes, &[word]));
        Self { begins, words: words.iter().map(|word| word.to_vec()).collect(), bytes }
    }
}

impl Words for Vec<u8> {
    fn command(&mut self, n_words: u64) {
        resp::command(self, n_words);
    }

    fn word(&mut self, pieces: &[&[u8]]) {
        resp::arg(self, pieces);
    }

    fn fixed(&mut self, fixed: &Fixed) {
        self.extend_from_slice(&fixed.bytes);
    }
}

impl Words for Vec<Cmd> {
    fn command(&mut self, _: u64) {
        self.push(Cmd::new());
    }

    fn word(&mut self, pieces: &[&[u8]]) {
        self.last_mut().expect("a command was begun").arg(pieces.concat());
    }

    fn fixed(&mut self, fixed: &Fixed) {
        if let Some(n_words) = fixed.begins {
            self.command(n_words);
        }
        fixed.words.iter().for_each(|word| self.word(&[word]));
    }
}

/// Where and how quotes are written.
#[derive(Debug)]
pub struct Encoder {
    verb: &'static [u8],
    base: String,
    /// Beginnings of announcements and slots of the channels, by partition; of the base channel alone where
    /// there are none.
    channels: Vec<(Fixed, u16)>,
    per_instrument: bool,
    set: Fixed,
    expiry: Fixed,
    call: Fixed,
}

impl Encoder {
    /// Writes as `config` says.
    pub fn new(config: &config::Redis) -> Self {
        // Probes play no part in publishing, so that the replica's name doesn't matter.
        let names = ChannelNames::new(config, "");
        let channels: Vec<_> = match names.partitions() {
            1 => vec![Channel::Base],
            n => (0..n).map(Channel::Partition).collect(),
        };
        let verb = names.publish().as_bytes();
        let announcement = |channel| Fixed::new(Some(3), &[verb, names.name(channel).as_bytes()]);
        Self {
            verb,
            base: config.channel.name.clone(),
            channels: channels.into_iter().map(|c| (announcement(c), names.slot(c))).collect(),
            per_instrument: names.per_instrument(),
            set: Fixed::new(Some(5), &[b"SET"]),
            expiry: Fixed::new(None, &[b"EX", KEY_TTL]),
            call: Fixed::new(Some(12), &[b"FCALL", FUNCTION, b"2"]),
        }
    }

    /// Whether storing and announcing are one step.
    pub const fn is_atomic(&self) -> bool {
        self.per_instrument
    }

    /// Answers that the commands of [`Encoder::store`] bring per quote.
    pub const fn n_store_answers(&self) -> u32 {
        if self.per_instrument { 1 } else { 2 }
    }

    /// The slot of the channel that announces an instrument.
    pub fn channel_slot(&self, id: InstrumentId) -> u16 {
        self.channel(id).1
    }

    fn channel(&self, id: InstrumentId) -> &(Fixed, u16) {
        let n = self.channels.len() as u32;
        &self.channels[if n == 1 { 0 } else { id.partition(n) as usize }]
    }

    /// Appends the commands that store a quote, and announce it too if that is one step. `tag` is that of
    /// its instrument.
    pub fn store(&self, tag: &Tag, quote: Entry<'_>, out: &mut impl Words) {
        let tag = tag.bytes();
        let mut ms = Vec::with_capacity(20);
        push_signed(&mut ms, quote.ms);
        if self.per_instrument {
            let [ts, seq] =
                [quote.version.ts.map(|ts| ts.to_string()), quote.version.seq.map(|seq| seq.to_string())]
                    .map(Option::unwrap_or_default);
            out.fixed(&self.call);
            for prefix in [PRICE, UPDATED_AT] {
                out.word(&[prefix, tag]);
            }
            out.word(&[self.verb]);
            out.word(&[self.base.as_bytes(), b":", tag]);
            for part in [&ms, KEY_TTL, ts.as_bytes(), seq.as_bytes(), quote.json] {
                out.word(&[part]);
            }
            return;
        }
        for (prefix, value) in [(PRICE, quote.json), (UPDATED_AT, &ms)] {
            out.fixed(&self.set);
            out.word(&[prefix, tag]);
            out.word(&[value]);
            out.fixed(&self.expiry);
        }
    }

    /// Appends the command that announces a quote.
    pub fn announce(&self, quote: Entry<'_>, out: &mut impl Words) {
        out.fixed(&self.channel(quote.id).0);
        out.word(&[quote.json]);
    }
}

/// The hash tag of an instrument's keys, `{stock:<id>}`, made once per quote.
#[derive(Default)]
pub struct Tag {
    text: Vec<u8>,
}

impl Tag {
    const OPEN: &[u8] = b"{stock:";

    /// The tag of an instrument.
    pub fn of(id: InstrumentId) -> Self {
        let mut tag = Self::default();
        tag.set(id);
        tag
    }

    /// The tag of another instrument, in the same memory.
    pub fn set(&mut self, id: InstrumentId) {
        self.text.clear();
        self.text.extend_from_slice(Self::OPEN);
        push_signed(&mut self.text, id.get());
        self.text.push(b'}');
    }

    fn bytes(&self) -> &[u8] {
        &self.text
    }

    /// The slot of the instrument's keys.
    pub fn slot(&self) -> u16 {
        slot(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ChannelLayout, RedisMode};
    use crate::quote::Version;
    use crate::upstream::keys;

    fn encoder(mode: RedisMode, partitions: u32, layout: ChannelLayout) -> Encoder {
        let channel = config::Channel { partitions, layout, ..Default::default() };
        Encoder::new(&config::Redis { mode, channel, ..Default::default() })
    }

    /// The words of the commands, without their lengths.
    fn words(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        let text = String::from_utf8(out).expect("text");
        let words = text.split("\r\n").filter(|word| !word.starts_with(['$', '*']));
        words.collect::<Vec<_>>().join(" ")
    }

    const QUOTE: Entry<'static> = Entry {
        id: InstrumentId::new(-5),
        ms: 1_700_000_000_123,
        version: Version { seq: None, ts: Some(7), of_write: false },
        json: b"{}",
    };

    #[test]
    fn keys_come_with_their_time_to_live_and_announcements_go_to_the_partition() {
        let encoder = encoder(RedisMode::Cluster, 64, ChannelLayout::Partitioned);
        assert_eq!(
            words(|out| encoder.store(&Tag::of(QUOTE.id), QUOTE, out)),
            "SET market:current-price:{stock:-5} {} EX 300 \
             SET market:current-price-updated-at:{stock:-5} 1700000000123 EX 300 "
        );
        assert_eq!(words(|out| encoder.announce(QUOTE, out)), "SPUBLISH market:price-updated:{4} {} ");
        assert_eq!(encoder.channel_slot(QUOTE.id), slot(b"4"));
    }

    /// What goes over the links, and what is sent again through the redis crate.
    #[test]
    fn both_ways_of_writing_say_the_same() {
        for layout in [ChannelLayout::Partitioned, ChannelLayout::PerInstrument] {
            let encoder = encoder(RedisMode::Cluster, 64, layout);
            let (mut bytes, mut commands) = (Vec::new(), Vec::<Cmd>::new());
            encoder.store(&Tag::of(QUOTE.id), QUOTE, &mut bytes);
            encoder.store(&Tag::of(QUOTE.id), QUOTE, &mut commands);
            encoder.announce(QUOTE, &mut bytes);
            encoder.announce(QUOTE, &mut commands);
            let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
            assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&packed));
        }
    }

    #[test]
    fn one_partition_is_the_base_channel() {
        let encoder = encoder(RedisMode::Standalone, 1, ChannelLayout::Partitioned);
        assert_eq!(words(|out| encoder.announce(QUOTE, out)), "PUBLISH market:price-updated {} ");
    }

    #[test]
    fn a_channel_per_instrument_takes_one_call() {
        let encoder = encoder(RedisMode::Cluster, 64, ChannelLayout::PerInstrument);
        assert_eq!(
            words(|out| encoder.store(&Tag::of(QUOTE.id), QUOTE, out)),
            "FCALL tickbridge_publish_1 2 market:current-price:{stock:-5} \
             market:current-price-updated-at:{stock:-5} SPUBLISH market:price-updated:{stock:-5} \
             1700000000123 300 7  {} "
        );
    }

    #[test]
    fn the_tag_is_that_of_the_keys() {
        for id in [i64::MIN, -1, 0, 5930, i64::MAX].map(InstrumentId::new) {
            assert!(keys::price(id).as_bytes().ends_with(Tag::of(id).bytes()));
            assert_eq!(Tag::of(id).slot(), slot(keys::price(id).as_bytes()));
        }
    }
}
