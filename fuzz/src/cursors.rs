//! SSE event ids: what is written is read back, for the same topics and no others, and nonsense says nothing.

use super::Choices;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tickbridge::instrument::InstrumentId;
use tickbridge::protocol::cursor::{Cursor, EXACT_TOPICS, INEXACT};
use tickbridge::quote::Version;

/// Format and fingerprint, which a fuzzer can't guess.
const HEAD: usize = 5;

/// Some time, in milliseconds since the Unix epoch.
const BASE: i64 = 1_760_000_000_000;

/// Longest id, in characters. Browsers send it back in a header.
const LONGEST: usize = 1_200;

/// See the module.
pub fn check(input: &[u8]) {
    let mut choices = Choices(input);
    let (kind, n) = (choices.byte(), usize::from(choices.byte()) % (EXACT_TOPICS + 3));
    let mut topics: Vec<_> = (0..n).map(|_| InstrumentId::new(choices.number() as i64)).collect();
    topics.sort();
    topics.dedup();
    match kind % 3 {
        0 => {
            let text = String::from_utf8_lossy(choices.0);
            read(&text, &topics);
        }
        1 => {
            let mut bytes = URL_SAFE_NO_PAD.decode(id(&Cursor::new(&topics, BASE)));
            if let (Ok(bytes), true) = (&mut bytes, topics.len() <= EXACT_TOPICS) {
                bytes.truncate(HEAD);
                bytes.extend_from_slice(choices.0);
                read(&URL_SAFE_NO_PAD.encode(bytes), &topics);
            }
        }
        _ => {
            let seen: Vec<_> = topics.iter().map(|_| version(&mut choices)).collect();
            let mut cursor = Cursor::new(&topics, BASE);
            for (place, version) in seen.iter().enumerate() {
                cursor.replace(place, *version);
            }
            let id = id(&cursor);
            if topics.len() > EXACT_TOPICS {
                assert_eq!(id, INEXACT);
            } else {
                assert_eq!(all(&cursor, &topics), seen);
                assert_eq!(Cursor::resume(&id, &topics, BASE), Some(cursor));
            }
            read(&id, &topics);
        }
    }
}

fn id(cursor: &Cursor) -> String {
    let mut out = Vec::new();
    cursor.push_id(&mut out);
    String::from_utf8(out).expect("an id is ASCII")
}

fn all(cursor: &Cursor, topics: &[InstrumentId]) -> Vec<Option<Version>> {
    (0..topics.len()).map(|place| cursor.seen(place)).collect()
}

fn version(choices: &mut Choices<'_>) -> Option<Version> {
    let tag = choices.byte();
    (tag & 1 != 0).then(|| Version {
        seq: (tag & 2 != 0).then(|| choices.number()),
        ts: (tag & 4 != 0).then(|| choices.number() as i64),
        of_write: tag & 8 != 0,
    })
}

fn read(text: &str, topics: &[InstrumentId]) {
    let Some(cursor) = Cursor::resume(text, topics, BASE) else { return };
    let (again, seen) = (id(&cursor), all(&cursor, topics));
    assert!(again.len() <= LONGEST, "{} characters", again.len());
    assert!(again.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{again}");
    let later = Cursor::resume(&again, topics, BASE + 1).expect("what is written is read");
    assert_eq!(all(&later, topics), seen, "{text} says something else as {again}");
    // The fingerprint is of 32 bits: it tells a change of one topic for certain.
    if let Some((first, others)) = topics.split_first() {
        let other = InstrumentId::new(first.get() ^ 1);
        let others: Vec<_> = std::iter::once(other).chain(others.iter().copied()).collect();
        assert_eq!(Cursor::resume(text, &others, BASE), None, "{text} is read for other topics");
        assert_eq!(Cursor::resume(text, &topics[1..], BASE), None, "{text} is read for fewer topics");
    }
}
