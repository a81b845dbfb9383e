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
///
/// `None` is a topic of which nothing was sent.
pub type Seen = Vec<Option<Version>>;

/// Writes the id for `seen`, whose instruments are `topics` in ascending order.
pub fn encode(topics: &[InstrumentId], seen: &[Option<Version>]) -> String {
    if topics.len() > EXACT_TOPICS {
        return INEXACT.to_owned();
    }
    let mut bytes = Vec::with_capacity(8 + 8 * seen.len());
    bytes.push(FORMAT);
    bytes.extend_from_slice(&fingerprint(topics).to_le_bytes());
    let base = seen.iter().flatten().find_map(|v| v.ts).unwrap_or(0);
    push_varint(&mut bytes, zigzag(base));
    for version in seen {
        let Some(Version { seq, ts, of_write }) = *version else {
            bytes.push(0);
            continue;
        };
        let flag = |set, flag| if set { flag } else { 0 };
        bytes.push(
            SEEN | flag(seq.is_some(), HAS_SEQ) | flag(ts.is_some(), HAS_TS) | flag(of_write, OF_WRITE),
        );
        if let Some(seq) = seq {
            push_varint(&mut bytes, seq);
        }
        if let Some(ts) = ts {
            push_varint(&mut bytes, zigzag(ts.wrapping_sub(base)));
        }
    }
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads an id back for the same `topics`, in ascending order. `None` means that the id says nothing
/// about these topics, and a full snapshot is due.
pub fn decode(text: &str, topics: &[InstrumentId]) -> Option<Seen> {
    if text.len() > MAX_TEXT || topics.len() > EXACT_TOPICS {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (&format, rest) = bytes.split_first()?;
    let (print, mut rest) = rest.split_at_checked(4)?;
    if format != FORMAT || print != fingerprint(topics).to_le_bytes() {
        return None;
    }
    let base = unzigzag(take_varint(&mut rest)?);
    let mut seen = Vec::with_capacity(topics.len());
    for _ in topics {
        let (&tag, after) = rest.split_first()?;
        rest = after;
        let seq = if tag & HAS_SEQ != 0 { Some(take_varint(&mut rest)?) } else { None };
        let ts =
            if tag & HAS_TS != 0 { Some(base.wrapping_add(unzigzag(take_varint(&mut rest)?))) } else { None };
        seen.push((tag != 0).then_some(Version { seq, ts, of_write: tag & OF_WRITE != 0 }));
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

    fn topics(n: i64) -> Vec<InstrumentId> {
        (0..n).map(InstrumentId::new).collect()
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
        assert_eq!(decode(&encode(&topics, &seen), &topics), Some(seen));
    }

    #[test]
    fn a_cursor_of_other_topics_says_nothing() {
        let id = encode(&topics(2), &[None, None]);
        assert_eq!(decode(&id, &topics(3)), None);
        assert_eq!(decode(&id, &[InstrumentId::new(0), InstrumentId::new(2)]), None);
    }

    #[test]
    fn the_longest_cursor_is_still_read() {
        let topics = topics(EXACT_TOPICS as i64);
        let far = |i: usize| if i.is_multiple_of(2) { i64::MIN } else { i64::MAX };
        let seen: Seen = (0..EXACT_TOPICS)
            .map(|i| Some(Version { seq: Some(u64::MAX), ts: Some(far(i)), of_write: true }))
            .collect();
        assert_eq!(decode(&encode(&topics, &seen), &topics), Some(seen));
    }

    #[test]
    fn nonsense_says_nothing() {
        for text in ["", "w", "x", "AQ", "////", "é", &"A".repeat(5_000)] {
            assert_eq!(decode(text, &topics(1)), None, "{text}");
        }
    }
}
