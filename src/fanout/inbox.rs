//! A lane's inbox: a conflating queue with at most one entry per instrument, newest wins, place kept.
//!
//! It can't grow past the number of instruments that the lane wants, and putting something in never
//! waits for the lane. The one lock is held for a map operation, once per quote and lane; the lane
//! takes everything out in one exchange.

use crate::instrument::InstrumentId;
use crate::protocol::event::EncodedQuote;
use indexmap::{IndexMap, IndexSet};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A quote on its way to a lane.
#[derive(Debug)]
pub struct Incoming {
    /// The newest quote of its instrument.
    pub quote: Arc<EncodedQuote>,
    /// How many older ones it replaced here; sessions were never offered those one by one, but the
    /// accounting must know them.
    pub n_replaced: u32,
}

/// Everything that waits for a lane.
#[derive(Default, Debug)]
pub struct Batch {
    /// Quotes, in the order in which their instruments came up.
    pub quotes: IndexMap<InstrumentId, Incoming>,
    /// Instruments whose keys were read.
    pub read_done: IndexSet<InstrumentId>,
    /// Streams that broke (since when, milliseconds since the Unix epoch) or are live again.
    pub statuses: IndexMap<InstrumentId, Option<i64>>,
}

impl Batch {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.quotes.is_empty() && self.read_done.is_empty() && self.statuses.is_empty()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.quotes.clear();
        self.read_done.clear();
        self.statuses.clear();
    }
}

/// The queue between the fan-out and one lane.
#[derive(Default, Debug)]
pub struct Inbox {
    batch: Mutex<Batch>,
    wake: Notify,
}

impl Inbox {
    /// Puts a quote in, in place of an older one of its instrument.
    pub fn offer(&self, quote: Arc<EncodedQuote>) {
        let mut batch = self.batch();
        match batch.quotes.entry(quote.id) {
            indexmap::map::Entry::Occupied(mut slot) => {
                let incoming = slot.get_mut();
                incoming.quote = quote;
                incoming.n_replaced += 1;
            }
            indexmap::map::Entry::Vacant(slot) => {
                slot.insert(Incoming { quote, n_replaced: 0 });
            }
        }
        self.wake_unless_woken(batch);
    }

    /// Says that an instrument's key was read.
    pub fn read_done(&self, id: InstrumentId) {
        let mut batch = self.batch();
        batch.read_done.insert(id);
        self.wake_unless_woken(batch);
    }

    /// Says that an instrument's stream broke or is live again; the last word counts.
    pub fn status(&self, id: InstrumentId, stale_since_ms: Option<i64>) {
        let mut batch = self.batch();
        batch.statuses.insert(id, stale_since_ms);
        self.wake_unless_woken(batch);
    }

    /// The lane no longer wants the instrument. A word that waits must not reach who may come to want it.
    pub fn forget(&self, id: InstrumentId) {
        let mut batch = self.batch();
        batch.quotes.shift_remove(&id);
        batch.read_done.shift_remove(&id);
        batch.statuses.shift_remove(&id);
    }

    /// Exchanges what waits for `empty`, which must be empty.
    pub fn take(&self, empty: &mut Batch) {
        debug_assert!(empty.is_empty());
        mem::swap(&mut *self.batch(), empty);
    }

    /// Waits until something was put in.
    ///
    /// # Cancel safety
    /// A wake-up that arrives while nobody waits is kept for the next call.
    pub async fn filled(&self) {
        self.wake.notified().await;
    }

    /// Quotes that wait.
    pub fn n_quotes(&self) -> usize {
        self.batch().quotes.len()
    }

    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_unless_woken(&self, batch: MutexGuard<'_, Batch>) {
        let first = batch.quotes.len() + batch.read_done.len() + batch.statuses.len() == 1;
        drop(batch);
        // The first entry wakes the lane, which takes all that have come by then.
        if first {
            self.wake.notify_one();
        }
    }
}
