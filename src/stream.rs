//! Lossless streams: every entry, once, in order, to each session that watches, from where its client stopped.
//!
//! Invariants:
//! - What a session is sent is decided by its cursor, the last entry that was written to it, and never by a
//!   queue. A slow session is served later from the source and holds one write's bytes meanwhile.
//! - One reader per stream and replica, however many sessions watch: `hub` keeps its newest entries for all.
//! - What was trimmed before a session got it, and what a session got and the source lost, is told and counted.
//!
//! Not here: Redis (`upstream::streams`), requests (`edge::stream`), quotes, which may replace each other.

pub mod demo;
pub mod hub;
pub mod output;
pub mod sessions;

mod session;

use crate::entry::{Content, Entry, EntryId};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Longest id of a stream. Long enough for any UUID with a prefix, short enough for a key.
const MAX_ID_BYTES: usize = 128;

/// The name of a stream, without what surrounds it in a key. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(Arc<str>);

impl StreamId {
    /// Reads a name: 1 to 128 letters, digits, and `. _ ~ : -`, so that it needs no escaping in a URL and can't
    /// end the hash tag of its key.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"._~:-".contains(&b);
        ((1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(fits)).then(|| Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What follows a place in a stream, as far as one read brings it, and what the source knows of the stream.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The entries after the place, in order.
    pub entries: Vec<Entry>,
    /// The newest entry that is kept at or before the place; read later than `entries`, so that the place's own entry
    /// proves that nothing between was trimmed.
    pub before: Option<Entry>,
    /// What the source knows; `None` where there is no such stream.
    pub info: Option<Info>,
}

/// What a source knows of a stream.
#[derive(Clone, Debug, Default)]
pub struct Info {
    /// The newest id that was ever given out.
    pub last_id: EntryId,
    /// The oldest entry that is kept.
    pub first_id: Option<EntryId>,
    /// The newest entry that is kept, if it ends the stream.
    pub ended: bool,
    /// Entries that are kept.
    pub length: u64,
    /// Entries that were ever added, where the source counts them.
    pub added: Option<u64>,
}

impl Info {
    /// Entries that were there and are not any more, where that is known.
    pub fn n_trimmed(&self) -> Option<u64> {
        self.added.map(|added| added.saturating_sub(self.length))
    }
}

/// The source can't be asked at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the source of streams can't be asked")]
pub struct SourceUnavailable;

/// A future of a source.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, SourceUnavailable>> + Send + 'a>>;

/// Keeps streams. Everything ends within a deadline of the source.
pub trait StreamSource: Send + Sync + 'static {
    /// Reads up to `n` entries after `after`, and the entry there or before.
    fn page<'a>(&'a self, id: &'a StreamId, after: EntryId, n: usize) -> Answer<'a, Page>;

    /// What is known of a stream, if there is one.
    fn info<'a>(&'a self, id: &'a StreamId) -> Answer<'a, Option<Info>>;
}

/// An entry to be added.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewEntry {
    /// Its id, where the producer chose it; adding it again adds nothing.
    pub id: Option<EntryId>,
    /// Its event, text and end.
    pub content: Content,
}

/// What became of entries that were to be added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Appended {
    /// The ids of those that are stored, in order, up to the first that isn't.
    pub ids: Vec<EntryId>,
    /// Why the next one isn't, if any.
    pub failed: Option<AppendFailure>,
}

/// Why an entry isn't stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendFailure {
    /// It has an id that isn't above those that are there.
    IdTooSmall,
    /// The store can't be reached, or there is no room; the entry may be stored all the same.
    Unavailable,
}

/// Adds entries to streams.
pub trait StreamWriter: Send + Sync + 'static {
    /// Adds `entries` in order and renews the stream's time to live.
    fn append<'a>(
        &'a self,
        id: &'a StreamId,
        entries: Vec<NewEntry>,
    ) -> Pin<Box<dyn Future<Output = Appended> + Send + 'a>>;
}

#[cfg(test)]
mod tests {
    use super::StreamId;

    #[test]
    fn a_name_fits_a_url_and_a_hash_tag() {
        for good in ["a", "demo-3f2a", "chat:42_1.~", &"x".repeat(128)] {
            assert_eq!(StreamId::parse(good).expect("a name").as_str(), good);
        }
        for bad in ["", "a b", "a}", "{a", "a/b", "é", "a%20", "a\n", &"x".repeat(129)] {
            assert_eq!(StreamId::parse(bad), None, "{bad:?}");
        }
    }
}
