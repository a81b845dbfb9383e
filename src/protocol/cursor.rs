//! SSE event ids: what a session has seen, in a form that every replica can read.
//!
//! A cursor holds the version last sent of each of the session's topics, so that a reconnecting
//! client gets exactly what changed. It grows with the topics; above [`EXACT_TOPICS`] an id only
//! says that events were sent, and the client gets a full snapshot.
//!
//! Layout before base64url: a format byte, a fingerprint of the topics, the base time, then a tag
//! byte per topic in ascending order of ids, followed by the `seq` and the difference of `ts` to the
//! base that the tag announces, as LEB128 varints.

use crate::instrument::InstrumentId;
use crate::quote::Version;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Up to so many topics a cursor is exact. 32 topics take about 150 characters per event.
pub const EXACT_TOPICS: usize = 32;

/// Longest id worth decoding: 32 topics with the longest varints.
const MAX_TEXT: usize = 1_200;

/// The id sent to sessions with more topics than a cursor holds.
pub const INEXACT: &str = "w";

const FORMAT: u8 = 1;
const HAS_SEQ: u8 = 1;
const HAS_TS: u8 = 2;
const OF_WRITE: u8 = 4;
/// Tells a version with neither from nothing seen.
const SEEN: u8 = 8;

/// What a client has seen, in ascending order of instruments.
pub type Seen = Vec<Entry>;

/// What a client has seen of one topic, as the id says it: 24 bytes where `Option<Version>` takes 40, of which
/// each session of server-sent events holds one per topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    seq: u64,
    ts: i64,
    tag: u8,
}

impl From<Version> for Entry {
    fn from(Version { seq, ts, of_write }: Version) -> Self {
        let flag = |set, flag| if set { flag } else { 0 };
        let tag = SEEN | flag(seq.is_some(), HAS_SEQ) | flag(ts.is_some(), HAS_TS) | flag(of_write, OF_WRITE);
        Self { seq: seq.unwrap_or(0), ts: ts.unwrap_or(0), tag }
    }
}

impl Entry {
    /// The version last sent; `None` where nothing was.
    pub fn version(self) -> Option<Version> {
        (self.tag != 0).then(|| Version {
            seq: self.has(HAS_SEQ).then_some(self.seq),
            ts: self.has(HAS_TS).then_some(self.ts),
            of_write: self.has(OF_WRITE),
        })
    }

    fn has(self, flag: u8) -> bool {
        self.tag & flag != 0
    }
}

/// Which topics a cursor is of, as it says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Topics {
    n: usize,
    fingerprint: u32,
}

impl Topics {
    /// Instruments in ascending order.
    pub fn of(instruments: &[InstrumentId]) -> Self {
        Self { n: instruments.len(), fingerprint: fingerprint(instruments) }
    }

    /// Whether a cursor can say what was seen of each.
    pub fn are_exact(self) -> bool {
        self.n <= EXACT_TOPICS
    }
}

/// Writes the id for `seen`, in ascending order of the instruments of `topics`.
pub fn encode(topics: Topics, seen: &[Entry]) -> String {
    if !topics.are_exact() {
        return INEXACT.to_owned();
    }
    let mut bytes = Vec::with_capacity(8 + 8 * seen.len());
    bytes.push(FORMAT);
    bytes.extend_from_slice(&topics.fingerprint.to_le_bytes());
    let base = seen.iter().find(|entry| entry.has(HAS_TS)).map_or(0, |entry| entry.ts);
    push_varint(&mut bytes, zigzag(base));
    for entry in seen {
        bytes.push(entry.tag);
        if entry.has(HAS_SEQ) {
            push_varint(&mut bytes, entry.seq);
        }
        if entry.has(HAS_TS) {
            push_varint(&mut bytes, zigzag(entry.ts.wrapping_sub(base)));
        }
    }
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads an id back for the same `topics`. `None` means that the id says nothing
/// about these topics, and a full snapshot is due.
pub fn decode(text: &str, topics: Topics) -> Option<Seen> {
    if text.len() > MAX_TEXT || !topics.are_exact() {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (&format, rest) = bytes.split_first()?;
    let (print, mut rest) = rest.split_at_checked(4)?;
    if format != FORMAT || print != topics.fingerprint.to_le_bytes() {
        return None;
    }
    let base = unzigzag(take_varint(&mut rest)?);
    let mut seen = Vec::with_capacity(topics.n);
    for _ in 0..topics.n {
        let (&tag, after) = rest.split_first()?;
        rest = after;
        let mut entry = Entry { tag, ..Entry::default() };
        if entry.has(HAS_SEQ) {
            entry.seq = take_varint(&mut rest)?;
        }
        if entry.has(HAS_TS) {
            entry.ts = base.wrapping_add(unzigzag(take_varint(&mut rest)?));
        }
        seen.push(entry);
    }
    rest.is_empty().then_some(seen)
}

/// FNV-1a, 32 bits: the same on every replica, which the standard library's hasher doesn't promise.
fn fingerprint(topics: &[InstrumentId]) -> u32 {
    let bytes = topics.iter().flat_map(|t| t.get().to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

const fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

const fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

fn push_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (&b, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(b & 0x7f) << shift;
        if b & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(n: i64) -> Topics {
        Topics::of(&(0..n).map(InstrumentId::new).collect::<Vec<_>>())
    }

    #[test]
    fn a_cursor_survives_the_journey() {
        let topics = topics(5);
        let seen = vec![
            Some(Version { seq: Some(u64::MAX), ts: Some(i64::MIN), of_write: true }),
            None,
            Some(Version { ts: Some(1_760_000_000_001), ..Version::default() }),
            Some(Version { seq: Some(0), ..Version::default() }),
            Some(Version { ts: Some(1_760_000_000_000), ..Version::default() }),
        ];
        let entries: Seen = seen.iter().map(|version| version.map(Entry::from).unwrap_or_default()).collect();
        let read = decode(&encode(topics, &entries), topics).expect("an id of these topics");
        assert_eq!(read.into_iter().map(Entry::version).collect::<Vec<_>>(), seen);
    }

    #[test]
    fn a_cursor_of_other_topics_says_nothing() {
        let id = encode(topics(2), &[Entry::default(); 2]);
        assert_eq!(decode(&id, topics(3)), None);
        assert_eq!(decode(&id, Topics::of(&[InstrumentId::new(0), InstrumentId::new(2)])), None);
    }

    #[test]
    fn the_longest_cursor_is_still_read() {
        let topics = topics(EXACT_TOPICS as i64);
        let far = |i: usize| if i.is_multiple_of(2) { i64::MIN } else { i64::MAX };
        let seen: Seen = (0..EXACT_TOPICS)
            .map(|i| Version { seq: Some(u64::MAX), ts: Some(far(i)), of_write: true }.into())
            .collect();
        assert_eq!(decode(&encode(topics, &seen), topics), Some(seen));
    }

    #[test]
    fn nonsense_says_nothing() {
        for text in ["", "w", "x", "AQ", "////", "é", &"A".repeat(5_000)] {
            assert_eq!(decode(text, topics(1)), None, "{text}");
        }
    }
}
