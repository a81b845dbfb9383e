//! The streams that sessions of this replica watch, each with its newest entries, shared by all who watch it.
//!
//! Invariants:
//! - The tail of a stream is whole: every entry after its floor, up to the reader's position, is in it, in order and
//!   once. Whoever can't vouch for that resets it.
//! - A tail is bounded in entries and bytes. Dropping its oldest entry raises the floor; a session below the floor
//!   reads the source.
//! - A stream is watched as long as a session holds a [`Watch`], and not longer.
//!
//! Not here: sessions (`stream::session`), who reads (`upstream`).

use super::StreamId;
use crate::entry::EntryId;
use crate::metrics::streams::StreamMetrics;
use crate::protocol::stream::Encoded;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Entries of a tail. At 30 per second this covers a session that is eight seconds behind.
const TAIL_ENTRIES: usize = 256;

/// Bytes of a tail, so that large entries don't multiply with the streams.
const TAIL_BYTES: usize = 64 * 1024;

/// Losses that a stream remembers for sessions that haven't been told of them. More in one life are one.
const MAX_CUTS: usize = 16;

/// See the module.
pub struct Hub {
    streams: Mutex<HashMap<StreamId, Arc<Watched>>>,
    /// Streams that nobody reads yet.
    joined: Mutex<Vec<Arc<Watched>>>,
    given: Notify,
    metrics: Arc<StreamMetrics>,
}

impl Hub {
    /// Nothing is watched.
    pub fn new(metrics: Arc<StreamMetrics>) -> Arc<Self> {
        let (streams, joined, given) = Default::default();
        Arc::new(Self { streams, joined, given, metrics })
    }

    /// Begins to watch. `newest` is an id that the source told to be the stream's newest; where nobody watches yet,
    /// the reader begins there.
    pub fn join(self: &Arc<Self>, id: &StreamId, newest: EntryId, now: Duration) -> Watch {
        let mut streams = lock(&self.streams);
        let mut begins = false;
        let watched = streams.entry(id.clone()).or_insert_with(|| {
            begins = true;
            Arc::new(Watched::new(id.clone(), newest, now))
        });
        // Counted before the reader learns of it: it lets go of a stream without sessions.
        watched.state().n_sessions += 1;
        if begins {
            self.give_back([Arc::clone(watched)]);
            self.metrics.watched.increment(1.0);
        }
        Watch { hub: Arc::clone(self), stream: Arc::clone(watched) }
    }

    /// Waits for streams that nobody reads yet and takes them. For the reader alone.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn joined(&self) -> Vec<Arc<Watched>> {
        loop {
            let joined = std::mem::take(&mut *lock(&self.joined));
            if !joined.is_empty() {
                return joined;
            }
            self.given.notified().await;
        }
    }

    /// Gives back streams that somebody else has to read.
    pub fn give_back(&self, streams: impl IntoIterator<Item = Arc<Watched>>) {
        lock(&self.joined).extend(streams);
        self.given.notify_one();
    }

    /// The counters.
    pub fn metrics(&self) -> &StreamMetrics {
        &self.metrics
    }

    fn leave(&self, stream: &Arc<Watched>) {
        let mut streams = lock(&self.streams);
        let mut state = stream.state();
        state.n_sessions -= 1;
        if state.n_sessions == 0 {
            streams.remove(&stream.id);
            self.metrics.watched.decrement(1.0);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream that sessions watch.
pub struct Watched {
    /// Its name.
    pub id: StreamId,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    tail: VecDeque<Arc<Encoded>>,
    bytes: usize,
    /// Every entry after this, up to the newest of the tail, is in the tail.
    floor: EntryId,
    /// What the source lost, oldest first. A session knows how many of them it has been told.
    cuts: Vec<Cut>,
    n_sessions: usize,
    ended: bool,
    /// Whether the source can't be read.
    interrupted: bool,
    last_entry: Duration,
}

/// The source has nothing after `to` that was read before.
struct Cut {
    to: EntryId,
    removed: Vec<EntryId>,
    /// Whether `removed` is all that was read.
    whole: bool,
}

impl Watched {
    fn new(id: StreamId, newest: EntryId, now: Duration) -> Self {
        let state = State {
            tail: VecDeque::new(),
            bytes: 0,
            floor: newest,
            cuts: Vec::new(),
            n_sessions: 0,
            ended: false,
            interrupted: false,
            last_entry: now,
        };
        Self { id, state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The id after which the reader reads.
    pub fn position(&self) -> EntryId {
        self.state().position()
    }

    /// Whether there is nothing more to be read for anybody.
    pub fn is_over(&self) -> bool {
        let state = self.state();
        state.ended || state.n_sessions == 0
    }

    /// Adds what was read after the position, in order. Gives how many entries were new.
    pub fn append(&self, entries: impl IntoIterator<Item = Encoded>, now: Duration) -> usize {
        let mut state = self.state();
        let mut n_new = 0;
        for entry in entries {
            if state.ended || entry.id <= state.position() {
                continue;
            }
            n_new += 1;
            state.ended = entry.is_end;
            state.bytes += entry.size();
            state.tail.push_back(Arc::new(entry));
        }
        // The newest entry stays, whatever its size.
        while state.tail.len() > TAIL_ENTRIES || (state.bytes > TAIL_BYTES && state.tail.len() > 1) {
            let Some(oldest) = state.tail.pop_front() else { break };
            state.bytes -= oldest.size();
            state.floor = oldest.id;
        }
        state.interrupted = false;
        if n_new > 0 {
            state.last_entry = now;
            drop(state);
            self.changed.notify_waiters();
        }
        n_new
    }

    /// Goes on from `position`, because entries before it were not read. Sessions read them from the source, or
    /// learn there what is gone.
    pub fn reset(&self, position: EntryId, now: Duration) {
        let mut state = self.state();
        if position <= state.position() {
            return;
        }
        state.tail.clear();
        (state.bytes, state.floor, state.last_entry) = (0, position, now);
        drop(state);
        self.changed.notify_waiters();
    }

    /// The source lost what came after `kept`, although it was read: goes on from there. Gives how many entries of
    /// the tail that were.
    pub fn cut(&self, kept: EntryId) -> usize {
        let mut state = self.state();
        // An entry between two that were read came after the loss; what is certainly common ends before it.
        let mut removed: Vec<EntryId> = Vec::new();
        while state.tail.back().is_some_and(|entry| entry.id > kept) {
            let entry = state.tail.pop_back().expect("it was just seen");
            state.bytes -= entry.size();
            removed.push(entry.id);
        }
        let whole = kept >= state.floor;
        let to = if whole { state.tail.back().map_or(state.floor, |entry| entry.id) } else { kept };
        if !whole {
            state.floor = kept;
        }
        state.ended = false;
        if state.cuts.len() == MAX_CUTS {
            let oldest = state.cuts.remove(0);
            let next = &mut state.cuts[0];
            next.to = next.to.min(oldest.to);
            next.whole = false;
        }
        let n_removed = removed.len();
        state.cuts.push(Cut { to, removed, whole });
        drop(state);
        self.changed.notify_waiters();
        n_removed
    }

    /// Notes whether the source can be read.
    pub fn set_interrupted(&self, interrupted: bool) {
        self.state().interrupted = interrupted;
    }
}

impl State {
    fn position(&self) -> EntryId {
        self.tail.back().map_or(self.floor, |entry| entry.id)
    }
}

/// Where a session stands in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The last entry that was written to it, or where it began.
    pub at: EntryId,
    /// Losses of the stream that it has been told or that it need not know.
    n_cuts: usize,
}

/// What follows a cursor.
#[derive(Debug)]
pub enum Next {
    /// These entries; there may be more.
    Entries(Vec<Arc<Encoded>>),
    /// What the source has: the tail begins later.
    History,
    /// Entries up to the cursor are no longer in the stream; the cursor is moved back to what is.
    Lost {
        /// Where the cursor was.
        through: EntryId,
        /// How many, where it is known.
        missing: Option<u64>,
    },
    /// Nothing yet.
    Nothing,
}

/// A session's hold on a stream.
pub struct Watch {
    hub: Arc<Hub>,
    stream: Arc<Watched>,
}

impl Watch {
    /// A cursor at `at`, for a session that knows of no loss until now.
    pub fn cursor(&self, at: EntryId) -> Cursor {
        Cursor { at, n_cuts: self.stream.state().cuts.len() }
    }

    /// What follows `cursor`, about `max_bytes` of it but at least one entry. Doesn't move the cursor but back.
    pub fn next(&self, cursor: &mut Cursor, max_bytes: usize) -> Next {
        let state = self.stream.state();
        let untold = state.cuts.get(cursor.n_cuts..).unwrap_or_default();
        cursor.n_cuts = state.cuts.len();
        if let Some(to) = untold.iter().map(|cut| cut.to).min().filter(|&to| to < cursor.at) {
            let through = std::mem::replace(&mut cursor.at, to);
            let known = untold.iter().all(|cut| cut.whole);
            let removed = untold.iter().flat_map(|cut| &cut.removed);
            let missing = removed.filter(|&&id| id <= through).count() as u64;
            return Next::Lost { through, missing: known.then_some(missing) };
        }
        if cursor.at < state.floor {
            return Next::History;
        }
        let first = state.tail.partition_point(|entry| entry.id <= cursor.at);
        let mut bytes = 0;
        let fits = |entry: &&Arc<Encoded>| {
            let fits = bytes < max_bytes;
            bytes += entry.size();
            fits
        };
        let entries: Vec<_> = state.tail.range(first..).take_while(fits).cloned().collect();
        if entries.is_empty() { Next::Nothing } else { Next::Entries(entries) }
    }

    /// Resolves when something has changed since it was made. To be made before [`Watch::next`] is asked.
    pub fn changed(&self) -> Notified<'_> {
        self.stream.changed.notified()
    }

    /// When the newest entry came, or the stream began to be watched, and whether the source can be read.
    pub fn last_entry(&self) -> (Duration, bool) {
        let state = self.stream.state();
        (state.last_entry, !state.interrupted)
    }

    /// The stream's name.
    pub fn id(&self) -> &StreamId {
        &self.stream.id
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.hub.leave(&self.stream);
    }
}

#[cfg(test)]
mod tests;
