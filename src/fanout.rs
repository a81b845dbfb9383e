//! Carries each quote to every lane that has a session subscribed to its topic.
//!
//! Invariants:
//! - The version gate is here and nowhere else: live quotes and stored ones pass it, and what it lets
//!   through of one instrument only ever gets newer.
//! - A quote is encoded once, however many sessions receive it, and only if somebody is to see it.
//! - Offering never waits for a session. A lane that is behind conflates in its inbox.
//! - Joining a topic and learning its newest quote is one step: nothing falls in between.
//!
//! Not here: sockets and sessions (`lane`), Redis (`upstream`), reading stored quotes (`catch_up`).

pub mod inbox;
pub mod stages;

use crate::clock::Now;
use crate::instrument::InstrumentId;
use crate::protocol::event::EncodedQuote;
use crate::quote::{Origin, Quote, Verdict};
use inbox::Inbox;
use indexmap::IndexMap;
use indexmap::map::Entry as Slot;
use stages::Stages;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks over the instruments. Feeds of several shards and joining lanes rarely meet in one of them;
/// more would only cost memory.
const STRIPES: usize = 64;

/// Which lane, counted from 0.
pub type LaneId = usize;

/// Most lanes: an instrument's interested lanes are one bit each of a word.
pub const MAX_LANES: usize = 64;

/// Where live quotes come from, seen from the core.
pub trait QuoteFeed: Send + Sync + 'static {
    /// Whether the instrument's stream is whole at this moment: subscribed, and proven alive.
    ///
    /// A feed that loses a stream must answer `false` before it calls [`Fanout::stream_broken`].
    fn is_live(&self, id: InstrumentId) -> bool;

    /// Whether the instrument isn't live for no other reason than that nobody has wanted it. A feed that
    /// can't make it so within a moment calls [`Fanout::stream_broken`].
    fn is_starting(&self, _: InstrumentId) -> bool {
        false
    }

    /// The first session of this process wants the instrument. Must not block.
    fn wanted(&self, id: InstrumentId);

    /// The last session of this process that wanted the instrument is gone. Must not block.
    fn unwanted(&self, id: InstrumentId);
}

/// What became of an offered quote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offered {
    /// It is the newest now.
    Accepted,
    /// Known already.
    Duplicate,
    /// Older than what is known.
    Older,
    /// The instrument is new and the table is full.
    TableFull,
}

/// What a lane learns when it joins an instrument.
#[derive(Debug)]
pub struct Joined {
    /// The newest quote known, good as a snapshot if `complete`.
    pub latest: Option<Arc<EncodedQuote>>,
    /// The stream is unbroken since `latest`, or since the key was found empty: no read is needed.
    pub complete: bool,
    /// The stream is broken since then, milliseconds since the Unix epoch.
    pub stale_since_ms: Option<i64>,
}

struct Entry {
    latest: Option<Quote>,
    /// `latest` as encoded; absent while nobody has wanted it.
    encoded: Option<Arc<EncodedQuote>>,
    lanes: u64,
    complete: bool,
    /// Counts accepted quotes, so that a lane can tell a late word of an earlier interest from news.
    serial: u64,
    /// Rises whenever the stream breaks or comes back, so that a read begun before can't complete after.
    epoch: u32,
    stale_since_ms: Option<i64>,
}

impl Entry {
    fn encoded(&mut self, now: Now) -> Option<Arc<EncodedQuote>> {
        let quote = self.latest.as_ref()?;
        let serial = self.serial;
        Some(Arc::clone(self.encoded.get_or_insert_with(|| Arc::new(EncodedQuote::new(quote, serial, now)))))
    }

    fn lanes(&self) -> impl Iterator<Item = LaneId> + use<> {
        let lanes = self.lanes;
        (0..MAX_LANES).filter(move |lane| lanes & (1 << lane) != 0)
    }
}

/// Iterated in an order that doesn't change from run to run, so that a simulation can be repeated.
type Table = IndexMap<InstrumentId, Entry>;

/// The table of instruments and the way to the lanes.
pub struct Fanout {
    stripes: Box<[Mutex<Table>]>,
    lanes: Box<[Arc<Inbox>]>,
    feed: Arc<dyn QuoteFeed>,
    max_per_stripe: usize,
    stages: Stages,
}

impl Fanout {
    /// A table for at most about `max_instruments`, offering to `lanes` (at most [`MAX_LANES`]).
    pub fn new(lanes: Vec<Arc<Inbox>>, feed: Arc<dyn QuoteFeed>, max_instruments: usize) -> Self {
        assert!(lanes.len() <= MAX_LANES, "at most {MAX_LANES} lanes");
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            lanes: lanes.into(),
            feed,
            max_per_stripe: max_instruments.div_ceil(STRIPES),
            stages: Stages::default(),
        }
    }

    fn stripe(&self, id: InstrumentId) -> MutexGuard<'_, Table> {
        // Fibonacci hashing: neighbouring ids go to different stripes.
        let at = (id.get() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - STRIPES.ilog2());
        // A panic inside the lock would leave an entry that is merely older; carrying on is right.
        self.stripes[at as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh_entry(&self, id: InstrumentId, now: Now) -> Entry {
        let stale_since_ms = (!self.feed.is_live(id)).then(|| now.unix_ms());
        Entry { latest: None, encoded: None, lanes: 0, complete: false, serial: 0, epoch: 0, stale_since_ms }
    }

    /// Judges a quote and, if it is newer, offers it to the lanes that want it.
    pub fn offer(&self, quote: Quote, now: Now) -> Offered {
        let id = quote.id;
        let mut stripe = self.stripe(id);
        let n_instruments = stripe.len();
        let entry = match stripe.entry(id) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(_) if n_instruments >= self.max_per_stripe => return Offered::TableFull,
            Slot::Vacant(slot) => slot.insert(self.fresh_entry(id, now)),
        };
        match entry.latest.as_ref().map_or(Verdict::Newer, |latest| quote.judge(latest)) {
            Verdict::Newer => {}
            Verdict::Duplicate => return Offered::Duplicate,
            Verdict::Older => return Offered::Older,
        }
        // A live quote of a whole stream is the newest there is, whatever the key says.
        entry.complete |= quote.origin == Origin::Live && entry.stale_since_ms.is_none();
        entry.latest = Some(quote);
        entry.encoded = None;
        entry.serial += 1;
        if let (true, Some(quote)) = (entry.lanes != 0, &entry.latest) {
            self.stages.record(quote, now);
            let encoded = entry.encoded(now).expect("latest was set above");
            for lane in entry.lanes() {
                self.lanes[lane].offer(Arc::clone(&encoded));
            }
        }
        Offered::Accepted
    }

    /// How long quotes took to get here.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Registers a lane's interest; from here on the lane's inbox gets every newer quote.
    pub fn join(&self, lane: LaneId, id: InstrumentId, now: Now) -> Joined {
        let mut stripe = self.stripe(id);
        let entry = stripe.entry(id).or_insert_with(|| self.fresh_entry(id, now));
        if entry.lanes == 0 {
            if self.feed.is_starting(id) {
                // What nobody has received yet can't be stale.
                entry.stale_since_ms = None;
            }
            self.feed.wanted(id);
        }
        entry.lanes |= 1 << lane;
        Joined { latest: entry.encoded(now), complete: entry.complete, stale_since_ms: entry.stale_since_ms }
    }

    /// Takes a lane's interest back.
    pub fn leave(&self, lane: LaneId, id: InstrumentId) {
        let mut stripe = self.stripe(id);
        let Some(entry) = stripe.get_mut(&id) else { return };
        let had = entry.lanes;
        entry.lanes &= !(1 << lane);
        self.lanes[lane].forget(id);
        if entry.lanes == 0 && had != 0 {
            self.feed.unwanted(id);
            if entry.latest.is_none() {
                stripe.swap_remove(&id);
            }
        }
    }

    /// The newest quote of an instrument, and whether it can stand for the stored one.
    pub fn peek(&self, id: InstrumentId, now: Now) -> (Option<Arc<EncodedQuote>>, bool) {
        let mut stripe = self.stripe(id);
        stripe.get_mut(&id).map_or((None, false), |entry| (entry.encoded(now), entry.complete))
    }

    /// The epoch to hand to [`Fanout::read_done`]; to be asked before the key is read.
    pub fn epoch(&self, id: InstrumentId) -> Option<u32> {
        self.stripe(id).get(&id).filter(|entry| entry.lanes != 0).map(|entry| entry.epoch)
    }

    /// The instrument's key was read, and what it held was offered. Lanes are told that no more is to be
    /// waited for. If the stream is whole and neither broke nor came back since `epoch` was asked, memory is
    /// complete from here on, and sessions that were told that it is stale are told that it is live.
    pub fn read_done(&self, id: InstrumentId, epoch: u32) {
        let mut stripe = self.stripe(id);
        let Some(entry) = stripe.get_mut(&id) else { return };
        for lane in entry.lanes() {
            self.lanes[lane].read_done(id);
        }
        if entry.epoch == epoch && self.feed.is_live(id) {
            entry.complete = true;
            if entry.stale_since_ms.take().is_some() {
                self.tell_status(id, entry);
            }
        }
    }

    /// The instrument's key could not be read. Lanes give what they have to those who wait.
    pub fn read_failed(&self, id: InstrumentId) {
        let stripe = self.stripe(id);
        for lane in stripe.get(&id).into_iter().flat_map(Entry::lanes) {
            self.lanes[lane].read_done(id);
        }
    }

    /// The newer of what memory has and `stored`. A quote that nobody subscribes to isn't kept.
    pub fn newest_of(&self, id: InstrumentId, stored: Option<Quote>, now: Now) -> Option<Arc<EncodedQuote>> {
        let known = self.peek(id, now).0;
        match stored {
            Some(quote) if known.is_none() => Some(Arc::new(EncodedQuote::new(&quote, 0, now))),
            Some(quote) => {
                self.offer(quote, now);
                self.peek(id, now).0
            }
            None => known,
        }
    }

    /// The stream of the instruments that `covers` names is broken since `now`: what is known of them
    /// may be out of date, and their sessions are told so.
    pub fn stream_broken(&self, covers: &dyn Fn(InstrumentId) -> bool, now: Now) {
        self.for_each(covers, |id, entry| {
            entry.complete = false;
            entry.epoch = entry.epoch.wrapping_add(1);
            if entry.stale_since_ms.is_none() {
                entry.stale_since_ms = Some(now.unix_ms());
                self.tell_status(id, entry);
            }
        });
    }

    /// The stream of the instruments that `covers` names is subscribed again. Gives those that are
    /// wanted: their keys are to be read, and then [`Fanout::read_done`] called.
    pub fn stream_restored(&self, covers: &dyn Fn(InstrumentId) -> bool) -> Vec<InstrumentId> {
        let mut wanted = Vec::new();
        self.for_each(covers, |id, entry| {
            entry.complete = false;
            // A read that was begun before this moment may have missed what came before it.
            entry.epoch = entry.epoch.wrapping_add(1);
            if entry.lanes != 0 {
                wanted.push(id);
            } else {
                entry.stale_since_ms = None;
            }
        });
        wanted
    }

    /// Every instrument that some lane wants.
    pub fn interest(&self) -> Vec<InstrumentId> {
        let mut wanted = Vec::new();
        self.for_each(&|_| true, |id, entry| {
            if entry.lanes != 0 {
                wanted.push(id);
            }
        });
        wanted
    }

    fn tell_status(&self, id: InstrumentId, entry: &Entry) {
        for lane in entry.lanes() {
            self.lanes[lane].status(id, entry.stale_since_ms);
        }
    }

    fn for_each(&self, covers: &dyn Fn(InstrumentId) -> bool, mut act: impl FnMut(InstrumentId, &mut Entry)) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
            for (&id, entry) in stripe.iter_mut().filter(|(id, _)| covers(**id)) {
                act(id, entry);
            }
        }
    }
}
