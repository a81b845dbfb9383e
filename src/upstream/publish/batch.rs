//! Quotes on their way into Redis, and what became of each.

use crate::instrument::InstrumentId;
use crate::quote::Version;
use crate::upstream::commands::failure::Failure;

/// Quotes that are sent together. Quotes of one instrument keep their order.
#[derive(Clone, Default, Debug)]
pub struct Batch {
    text: Vec<u8>,
    items: Vec<Item>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    id: InstrumentId,
    ms: i64,
    version: Version,
    end: usize,
}

/// One quote of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The instrument.
    pub id: InstrumentId,
    /// When it is published, milliseconds since the Unix epoch.
    pub ms: i64,
    /// What the JSON says of its version.
    pub version: Version,
    /// The JSON that is stored and announced.
    pub json: &'a [u8],
}

impl Batch {
    /// Adds a quote of this version, whose JSON `write` appends to what it is given. It is published at
    /// `ms`, milliseconds since the Unix epoch.
    pub fn push(&mut self, id: InstrumentId, ms: i64, version: Version, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.text);
        self.items.push(Item { id, ms, version, end: self.text.len() });
    }

    /// How many quotes.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no quote.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.items.clear();
    }

    /// The quote at `at`, counted from 0 in the order of adding.
    pub fn entry(&self, at: usize) -> Entry<'_> {
        let Item { id, ms, version, end } = self.items[at];
        let start = at.checked_sub(1).map_or(0, |before| self.items[before].end);
        Entry { id, ms, version, json: &self.text[start..end] }
    }
}

/// What became of a batch. What isn't named was stored and announced.
#[derive(Default, Debug)]
pub struct Outcome {
    /// Quotes that were not published, or only stored.
    pub failed: Vec<(usize, Failure)>,
    /// Quotes that the store-and-publish function refused: what is stored is newer.
    pub older: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_their_place() {
        let mut batch = Batch::default();
        for (id, json) in [(1, "{}"), (2, ""), (3, "{\"a\":1}")] {
            batch.push(InstrumentId::new(id), id, Version::default(), |out| {
                out.extend_from_slice(json.as_bytes())
            });
        }
        let entries: Vec<_> = (0..batch.len()).map(|at| batch.entry(at)).collect();
        assert_eq!(entries.iter().map(|e| e.json).collect::<Vec<_>>(), [b"{}".as_slice(), b"", b"{\"a\":1}"]);
        assert_eq!(entries[2].id, InstrumentId::new(3));
        batch.clear();
        assert!(batch.is_empty());
    }
}
