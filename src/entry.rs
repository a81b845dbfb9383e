//! One entry of a stream: its place and what it says.
//!
//! Not here: its bytes on the wire (`protocol::stream`), who keeps it (`stream`).

use bytes::Bytes;
use std::fmt;

/// The place of an entry: its milliseconds and its number within them. Orders as Redis orders.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EntryId {
    /// Usually the server's milliseconds since the Unix epoch.
    pub ms: u64,
    /// Counts within a millisecond.
    pub seq: u64,
}

impl EntryId {
    /// Before every entry.
    pub const START: Self = Self { ms: 0, seq: 0 };

    /// Reads `<ms>-<seq>` in plain decimal, as Redis writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let (ms, seq) = text.split_once('-')?;
        let number = |text: &str| {
            let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
            plain.then(|| text.parse().ok()).flatten()
        };
        Some(Self { ms: number(ms)?, seq: number(seq)? })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// What an entry says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Content {
    /// The name that the producer gave it.
    pub event: Option<Bytes>,
    /// Its text.
    pub data: Option<Bytes>,
    /// The status with which it ends the stream.
    pub end: Option<Bytes>,
}

/// An entry as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place.
    pub id: EntryId,
    /// What it says.
    pub content: Content,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_redis_writes_it_and_orders_like_it() {
        for text in ["0-0", "0-1", "1700000000123-0", "18446744073709551615-18446744073709551615"] {
            assert_eq!(EntryId::parse(text).expect("an id").to_string(), text);
        }
        for text in ["", "0", "1-", "-1", "1-2-3", "01-0", "1-00", "+1-0", " 1-0", "18446744073709551616-0"] {
            assert_eq!(EntryId::parse(text), None, "{text:?}");
        }
        let id = |text| EntryId::parse(text).expect("an id");
        assert!(id("2-9") < id("2-10") && id("9-9") < id("10-0"));
    }
}
