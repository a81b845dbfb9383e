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

/// Of 64 bits.
const LONGEST_VARINT: usize = 10;

/// Format and fingerprint.
const HEAD: usize = 5;

/// Room for a topic's version: tag, a `seq` up to 2^21, a `ts` within eleven days of the base.
const USUAL: usize = 9;

/// What the client of a session has seen of each of its topics, kept as the id says it: 9 bytes a topic where a list
/// of versions takes 40, and an id is written with every quote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The id before base64url; empty where there are too many topics.
    bytes: Vec<u8>,
}

impl Cursor {
    /// Of a client that has seen nothing yet of `instruments`, in ascending order. The nearer `base_ms` is to the `ts`
    /// of their quotes, the shorter are the ids.
    pub fn new(instruments: &[InstrumentId], base_ms: i64) -> Self {
        let mut bytes = Vec::new();
        if instruments.len() <= EXACT_TOPICS {
            bytes.reserve_exact(HEAD + 6 + USUAL * instruments.len());
            bytes.push(FORMAT);
            bytes.extend_from_slice(&fingerprint(instruments).to_le_bytes());
            push_varint(zigzag(base_ms), |byte| bytes.push(byte));
            bytes.resize(bytes.len() + instruments.len(), 0);
        }
        Self { bytes }
    }

    /// Reads an id back for the same `instruments`. `None` means that the id says nothing about them, and a full
    /// snapshot is due.
    pub fn resume(id: &str, instruments: &[InstrumentId], base_ms: i64) -> Option<Self> {
        if id.len() > MAX_TEXT || instruments.len() > EXACT_TOPICS {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(id).ok()?;
        let mut cursor = Self::new(instruments, base_ms);
        // The id's own base ages, and its varints may be longer than they need be, so its bytes aren't kept.
        let mut rest = bytes.strip_prefix(&cursor.bytes[..HEAD])?;
        let base = unzigzag(take_varint(&mut rest)?);
        for place in 0..instruments.len() {
            let version = take_version(&mut rest, base)?;
            cursor.replace(place, version);
        }
        rest.is_empty().then_some(cursor)
    }

    /// The version last sent of the topic at `place`; `None` where nothing was or nobody keeps count.
    pub fn seen(&self, place: usize) -> Option<Version> {
        let (base, mut rest) = self.find(place)?;
        take_version(&mut rest, base)?
    }

    /// Takes another version as the one last sent of the topic at `place`, and gives the one before.
    pub fn replace(&mut self, place: usize, version: Option<Version>) -> Option<Version> {
        let (base, rest) = self.find(place)?;
        let at = self.bytes.len() - rest.len();
        let mut after = rest;
        let before = take_version(&mut after, base)?;
        let end = self.bytes.len() - after.len();
        let entry = Entry::of(version, base);
        let entry = &entry.bytes[..entry.n];
        if let Some(more) = entry.len().checked_sub(end - at) {
            // Not twice as much as before: there are as many cursors as sessions.
            self.bytes.reserve_exact(more);
        }
        self.bytes.splice(at..end, entry.iter().copied());
        before
    }

    /// Appends the id.
    pub fn push_id(&self, out: &mut Vec<u8>) {
        if self.bytes.is_empty() {
            return out.extend_from_slice(INEXACT.as_bytes());
        }
        let at = out.len();
        out.resize(at + self.bytes.len().div_ceil(3) * 4, 0);
        let n = URL_SAFE_NO_PAD.encode_slice(&self.bytes, &mut out[at..]).expect("there is room for it");
        out.truncate(at + n);
    }

    /// The base, and what begins with the topic at `place`.
    fn find(&self, place: usize) -> Option<(i64, &[u8])> {
        let mut rest = self.bytes.get(HEAD..)?;
        let base = unzigzag(take_varint(&mut rest)?);
        for _ in 0..place {
            let (&tag, after) = rest.split_first()?;
            rest = after;
            for _ in 0..(tag & (HAS_SEQ | HAS_TS)).count_ones() {
                let last = rest.iter().position(|b| b & 0x80 == 0)?;
                rest = &rest[last + 1..];
            }
        }
        (!rest.is_empty()).then_some((base, rest))
    }
}

/// One topic's version, as a cursor holds it.
#[derive(Default)]
struct Entry {
    bytes: [u8; 1 + 2 * LONGEST_VARINT],
    n: usize,
}

impl Entry {
    fn of(version: Option<Version>, base: i64) -> Self {
        let mut entry = Self::default();
        let Some(Version { seq, ts, of_write }) = version else {
            entry.push(0);
            return entry;
        };
        let flag = |set, flag| if set { flag } else { 0 };
        entry.push(
            SEEN | flag(seq.is_some(), HAS_SEQ) | flag(ts.is_some(), HAS_TS) | flag(of_write, OF_WRITE),
        );
        for number in [seq, ts.map(|ts| zigzag(ts.wrapping_sub(base)))].into_iter().flatten() {
            push_varint(number, |byte| entry.push(byte));
        }
        entry
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.n] = byte;
        self.n += 1;
    }
}

/// What [`Entry::of`] wrote. The outer `None` means that it didn't.
fn take_version(bytes: &mut &[u8], base: i64) -> Option<Option<Version>> {
    let (&tag, rest) = bytes.split_first()?;
    *bytes = rest;
    let mut number = |flag| if tag & flag == 0 { Some(None) } else { take_varint(bytes).map(Some) };
    let (seq, ts) = (number(HAS_SEQ)?, number(HAS_TS)?);
    let ts = ts.map(|ts| base.wrapping_add(unzigzag(ts)));
    Some((tag != 0).then_some(Version { seq, ts, of_write: tag & OF_WRITE != 0 }))
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

fn push_varint(mut n: u64, mut push: impl FnMut(u8)) {
    while n >= 0x80 {
        push(n as u8 | 0x80);
        n >>= 7;
    }
    push(n as u8);
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

    fn topics(n: i64) -> Vec<InstrumentId> {
        (0..n).map(InstrumentId::new).collect()
    }

    fn id(cursor: &Cursor) -> String {
        let mut out = b"id: ".to_vec();
        cursor.push_id(&mut out);
        String::from_utf8(out).expect("ASCII").split_off(4)
    }

    fn all(cursor: &Cursor, n: usize) -> Vec<Option<Version>> {
        (0..n).map(|place| cursor.seen(place)).collect()
    }

    /// Extremes, and a version without anything beside nothing at all.
    fn versions() -> [Option<Version>; 6] {
        let version = Version::default();
        [
            Some(Version { seq: Some(u64::MAX), ts: Some(i64::MIN), of_write: true }),
            None,
            Some(Version { ts: Some(1_760_000_000_001), ..version }),
            Some(Version { seq: Some(0), ..version }),
            Some(Version { ts: Some(1_760_000_000_000), ..version }),
            Some(version),
        ]
    }

    #[test]
    fn a_cursor_survives_the_journey() {
        let (topics, versions) = (topics(6), versions());
        let mut cursor = Cursor::new(&topics, 1_760_000_000_000);
        for (place, version) in versions.into_iter().enumerate() {
            assert_eq!(cursor.replace(place, version), None);
        }
        assert_eq!(all(&cursor, 6), versions);
        let resumed =
            Cursor::resume(&id(&cursor), &topics, 1_770_000_000_000).expect("an id of these topics");
        assert_eq!(all(&resumed, 6), versions, "and from another base");
    }

    #[test]
    fn what_is_replaced_can_be_put_back() {
        let (topics, versions) = (topics(6), versions());
        let mut cursor = Cursor::new(&topics, 0);
        for version in versions {
            for place in 0..6 {
                let (whole, was) = (cursor.clone(), cursor.seen(place));
                assert_eq!(cursor.replace(place, version), was);
                assert_eq!(cursor.seen(place), version);
                cursor.replace(place, was);
                assert_eq!(cursor, whole);
                cursor.replace(place, version);
            }
            assert_eq!(all(&cursor, 6), [version; 6]);
        }
    }

    #[test]
    fn a_cursor_of_other_topics_says_nothing() {
        let id = id(&Cursor::new(&topics(2), 0));
        assert_eq!(Cursor::resume(&id, &topics(3), 0), None);
        assert_eq!(Cursor::resume(&id, &[InstrumentId::new(0), InstrumentId::new(2)], 0), None);
    }

    #[test]
    fn too_many_topics_are_not_counted() {
        let topics = topics(EXACT_TOPICS as i64 + 1);
        let mut cursor = Cursor::new(&topics, 0);
        assert_eq!(cursor.replace(0, Some(Version::default())), None);
        assert_eq!(cursor.seen(0), None);
        assert_eq!(id(&cursor), INEXACT);
        assert_eq!(Cursor::resume(INEXACT, &topics, 0), None);
    }

    #[test]
    fn the_longest_cursor_is_still_read() {
        let topics = topics(EXACT_TOPICS as i64);
        let mut cursor = Cursor::new(&topics, i64::MAX);
        for place in 0..EXACT_TOPICS {
            let far = if place.is_multiple_of(2) { i64::MIN } else { i64::MAX / 2 };
            cursor.replace(place, Some(Version { seq: Some(u64::MAX), ts: Some(far), of_write: true }));
        }
        assert_eq!(Cursor::resume(&id(&cursor), &topics, i64::MAX), Some(cursor));
    }

    #[test]
    fn a_varint_longer_than_it_need_be_is_not_kept() {
        let (topics, fresh) = (topics(1), Cursor::new(&topics(1), 0));
        let mut bytes = fresh.bytes[..HEAD].to_vec();
        bytes.extend_from_slice(&[0x80, 0x80, 0x80, 0x00, SEEN | HAS_SEQ, 0x85, 0x80, 0x00]);
        let cursor = Cursor::resume(&URL_SAFE_NO_PAD.encode(bytes), &topics, 0).expect("it can be read");
        assert_eq!(cursor.bytes[HEAD..], [0, SEEN | HAS_SEQ, 5]);
    }

    #[test]
    fn nonsense_says_nothing() {
        for text in ["", "w", "x", "AQ", "////", "é", &"A".repeat(5_000)] {
            assert_eq!(Cursor::resume(text, &topics(1), 0), None, "{text}");
        }
    }
}
