use super::*;
use crate::config;
use crate::fanout::inbox::{Batch, Inbox};
use crate::quote::{Origin, Quote, Version};

const CHANNELS: [Channel; 3] = [Channel::Base, Channel::Partition(0), Channel::Partition(1)];

struct Bench {
    coverage: Coverage,
    fanout: Arc<Fanout>,
    inbox: Arc<Inbox>,
    resynced: Arc<Mutex<Vec<InstrumentId>>>,
}

fn id(id: i64) -> InstrumentId {
    InstrumentId::new(id)
}

fn node(text: &str) -> NodeAddr {
    NodeAddr::parse(text).expect("valid")
}

fn at(ms: u64) -> Now {
    Now { mono: Duration::from_millis(ms), unix_us: ms as i64 * 1_000 }
}

/// A lane that wants instrument 2 (partition 0) and 3 (partition 1), all channels assigned to `a`.
fn bench() -> Bench {
    let channel = config::Channel { partitions: 2, ..Default::default() };
    let bench = bench_of(&config::Redis { channel, ..Default::default() }, &CHANNELS);
    bench.fanout.join(0, id(2), at(0));
    bench.fanout.join(0, id(3), at(0));
    bench
}

fn bench_of(config: &config::Redis, channels: &[Channel]) -> Bench {
    let feed = Arc::new(Feed::new(config, "r1"));
    let inbox = Arc::new(Inbox::default());
    let fanout = Arc::new(Fanout::new(vec![Arc::clone(&inbox)], Arc::clone(&feed) as _, 100));
    let resynced = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&resynced);
    let resync: Resync = Arc::new(move |ids| seen.lock().expect("no panic").extend(ids));
    let metrics = Arc::new(Metrics::new("t"));
    let coverage = Coverage::new(feed, Arc::clone(&fanout), resync, metrics);
    let assigned: Vec<_> = channels.iter().map(|&channel| (channel, Some(node("a:1")))).collect();
    coverage.assign(&assigned, at(0));
    Bench { coverage, fanout, inbox, resynced }
}

impl Bench {
    fn live_on_a(self) -> Self {
        self.coverage.gained(&node("a:1"), 1, &CHANNELS);
        self.resynced();
        for each in [2, 3] {
            self.was_read(id(each));
        }
        self.statuses();
        self
    }

    fn was_read(&self, id: InstrumentId) {
        let epoch = self.fanout.epoch(id).expect("it is wanted");
        self.fanout.read_done(id, epoch);
    }

    fn resynced(&self) -> Vec<InstrumentId> {
        let mut ids = std::mem::take(&mut *self.resynced.lock().expect("no panic"));
        ids.sort_unstable();
        ids
    }

    fn statuses(&self) -> Vec<(InstrumentId, Option<i64>)> {
        let mut batch = Batch::default();
        self.inbox.take(&mut batch);
        let mut statuses: Vec<_> = batch.statuses.into_iter().collect();
        statuses.sort_unstable();
        statuses
    }
}

#[test]
fn instruments_are_read_again_once_all_their_channels_are_live() {
    let bench = bench();
    bench.coverage.gained(&node("a:1"), 1, &[Channel::Partition(0)]);
    assert!(bench.resynced().is_empty());
    bench.coverage.gained(&node("a:1"), 1, &[Channel::Base]);
    assert_eq!(bench.resynced(), [id(2)]);
    bench.coverage.gained(&node("a:1"), 1, &[Channel::Partition(1)]);
    assert_eq!(bench.resynced(), [id(3)]);
    bench.coverage.gained(&node("a:1"), 1, &CHANNELS);
    assert!(bench.resynced().is_empty(), "an acknowledgement again is no news");
}

#[test]
fn a_loss_marks_the_instruments_behind_it_and_no_others() {
    let bench = bench().live_on_a();
    bench.coverage.lost(1, &[Channel::Partition(1)], at(7));
    assert_eq!(bench.statuses(), [(id(3), Some(7))]);
    let mut quote = Quote::new(id(3), Version::default(), Origin::Live, "".into());
    quote.arrived_us = 8;
    bench.fanout.offer(quote, at(8));
    assert!(!bench.fanout.peek(id(3), at(9)).1, "no memory of a broken stream is complete");
    assert_eq!(bench.coverage.n_missing(Duration::ZERO, at(8)), 1);
    assert_eq!(bench.coverage.n_missing(Duration::from_millis(5), at(8)), 0);
}

#[test]
fn late_words_of_old_connections_change_nothing() {
    let bench = bench().live_on_a();
    bench.coverage.lost(1, &CHANNELS, at(1));
    bench.coverage.gained(&node("a:1"), 2, &CHANNELS);
    bench.resynced();
    bench.coverage.lost(1, &CHANNELS, at(2));
    assert_eq!(bench.coverage.n_missing(Duration::ZERO, at(2)), 0);
}

#[test]
fn a_channel_that_moves_is_lost_until_its_new_node_has_it() {
    let bench = bench().live_on_a();
    bench.coverage.assign(&[(Channel::Partition(1), Some(node("b:1")))], at(5));
    assert_eq!(bench.statuses(), [(id(3), Some(5))]);
    bench.coverage.gained(&node("a:1"), 1, &[Channel::Partition(1)]);
    assert!(bench.resynced().is_empty(), "the old node has no say");
    bench.coverage.gained(&node("b:1"), 2, &[Channel::Partition(1)]);
    assert_eq!(bench.resynced(), [id(3)]);
    bench.was_read(id(3));
    assert_eq!(bench.statuses(), [(id(3), None)]);
    bench.coverage.assign(&CHANNELS.map(|channel| (channel, None)), at(6));
    assert_eq!(bench.coverage.n_missing(Duration::ZERO, at(6)), 3);
}

#[test]
fn a_forgotten_channel_is_broken_and_not_missing() {
    let bench = bench().live_on_a();
    bench.coverage.forget(&[Channel::Partition(1)], at(5));
    assert_eq!(bench.statuses(), [(id(3), Some(5))]);
    assert_eq!((bench.coverage.n_missing(Duration::ZERO, at(6)), bench.coverage.n_wanted()), (0, 2));
}

#[test]
fn the_base_channel_is_no_loss_where_all_quotes_come_through_partitions() {
    let bench = bench().live_on_a();
    bench.coverage.feed.spoke(b"market:price-updated:1");
    bench.coverage.lost(1, &[Channel::Base], at(5));
    assert_eq!(bench.statuses(), []);
    assert_eq!(bench.coverage.n_missing(Duration::ZERO, at(5)), 1, "it is still missing");
    bench.coverage.gained(&node("a:1"), 2, &[Channel::Base]);
    assert_eq!(bench.resynced(), [id(2), id(3)]);
    bench.coverage.feed.spoke(b"market:price-updated");
    bench.coverage.lost(2, &[Channel::Base], at(6));
    assert_eq!(bench.statuses(), [(id(2), Some(6)), (id(3), Some(6))]);
}

#[test]
fn a_channel_that_somebody_begins_to_want_is_stale_only_if_it_does_not_come() {
    let channel =
        config::Channel { layout: config::ChannelLayout::PerInstrument, ..config::Channel::default() };
    let bench = bench_of(&config::Redis { channel, ..Default::default() }, &[]);
    let own = [2, 3].map(|n| Channel::Instrument(id(n)));
    for n in [2, 3] {
        assert_eq!(bench.fanout.join(0, id(n), at(0)).stale_since_ms, None);
    }
    bench.coverage.assign(&own.map(|channel| (channel, Some(node("a:1")))), at(0));
    bench.coverage.gained(&node("a:1"), 1, &own[..1]);
    bench.was_read(id(2));
    let grace = Duration::from_millis(10);
    bench.coverage.presume_no_more(grace, at(9));
    assert_eq!(bench.statuses(), []);
    bench.coverage.presume_no_more(grace, at(10));
    assert_eq!(bench.statuses(), [(id(3), Some(10))]);
    bench.coverage.presume_no_more(grace, at(99));
    assert_eq!(bench.statuses(), [], "once is enough");
    // What was let go of is a beginning again, and what was lost is not.
    bench.coverage.lost(1, &own[..1], at(100));
    assert_eq!(bench.statuses(), [(id(2), Some(100))]);
    bench.fanout.leave(0, id(2));
    assert!(bench.fanout.join(0, id(2), at(101)).stale_since_ms.is_some());
    bench.fanout.leave(0, id(2));
    bench.coverage.forget(&own[..1], at(102));
    assert_eq!(bench.fanout.join(0, id(2), at(103)).stale_since_ms, None);
}
