//! Reads stored quotes for sessions that join before memory is complete, and after broken streams.
//!
//! Invariants:
//! - A session joins its topic before the key is read. Pub/Sub keeps nothing for late subscribers, so
//!   the other order would lose what is published in between; the overlap is judged by the gate.
//! - Requests of a few milliseconds go out together, each instrument once.
//! - A failed read is repeated while somebody waits for it.
//!
//! Not here: how a key is read (`upstream::snapshot`), what is newer (`quote`).

use crate::instrument::InstrumentId;
use crate::quote::Quote;
use std::future::Future;
use std::pin::Pin;

/// What one key held.
#[derive(Debug)]
pub enum Stored {
    /// A quote.
    Quote(Box<Quote>),
    /// No such key.
    Absent,
    /// Something that is no price: counted by the source, and no more to be had by asking again.
    Unusable,
    /// The read failed; worth another try.
    Failed,
}

/// Answers of one read, in the order asked.
pub type StoredQuotes = Vec<(InstrumentId, Stored)>;

/// Where stored quotes are read from.
pub trait SnapshotSource: Send + Sync + 'static {
    /// Reads the price keys of `ids`, each given once. Ends within the command timeout of the source
    /// whatever happens; what could not be read by then is [`Stored::Failed`].
    fn read(&self, ids: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>>;
}

/// The current prices, as snapshots show them.
pub struct CatchUp {
    fanout: std::sync::Arc<crate::fanout::Fanout>,
    source: std::sync::Arc<dyn SnapshotSource>,
}

impl CatchUp {
    /// Reads stored quotes from `source` into `fanout`.
    pub fn new(
        fanout: std::sync::Arc<crate::fanout::Fanout>,
        source: std::sync::Arc<dyn SnapshotSource>,
    ) -> Self {
        Self { fanout, source }
    }

    /// The newest quote of each of `ids` that has one: from memory where the stream is unbroken,
    /// otherwise from its key, through the version gate.
    pub async fn current(
        &self,
        ids: &[InstrumentId],
        now: crate::clock::Now,
    ) -> Vec<std::sync::Arc<crate::protocol::event::EncodedQuote>> {
        let missing: Vec<_> = ids.iter().copied().filter(|&id| !self.fanout.peek(id, now).1).collect();
        if !missing.is_empty() {
            for (_, stored) in self.source.read(missing).await {
                if let Stored::Quote(quote) = stored {
                    self.fanout.offer(*quote, now);
                }
            }
        }
        ids.iter().filter_map(|&id| self.fanout.peek(id, now).0).collect()
    }
}
