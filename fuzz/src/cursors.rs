//! SSE event ids: what is written is read back, for the same topics and no others, and nonsense says nothing.

use super::Choices;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tickbridge::instrument::InstrumentId;
use tickbridge::protocol::cursor::{EXACT_TOPICS, Entry, INEXACT, Seen, Topics, decode, encode};
use tickbridge::quote::Version;

/// Format and fingerprint, which a fuzzer can't guess.
const HEAD: usize = 5;

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
            let mut bytes =
                URL_SAFE_NO_PAD.decode(encode(Topics::of(&topics), &vec![Entry::default(); topics.len()]));
            if let (Ok(bytes), true) = (&mut bytes, topics.len() <= EXACT_TOPICS) {
                bytes.truncate(HEAD);
                bytes.extend_from_slice(choices.0);
                read(&URL_SAFE_NO_PAD.encode(bytes), &topics);
            }
        }
        _ => {
            let seen: Seen =
                topics.iter().map(|_| version(&mut choices).map(Entry::from).unwrap_or_default()).collect();
            let id = encode(Topics::of(&topics), &seen);
            if topics.len() > EXACT_TOPICS {
                assert_eq!(id, INEXACT);
            } else {
                assert_eq!(decode(&id, Topics::of(&topics)).as_ref(), Some(&seen));
            }
            read(&id, &topics);
        }
    }
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
    let same = Topics::of(topics);
    let Some(seen) = decode(text, same) else { return };
    assert_eq!(seen.len(), topics.len());
    let again = encode(same, &seen);
    assert!(again.len() <= LONGEST, "{} characters", again.len());
    assert!(again.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{again}");
    assert_eq!(decode(&again, same), Some(seen), "{text} says something else as {again}");
    // The fingerprint is of 32 bits: it tells a change of one topic for certain.
    if let Some((first, others)) = topics.split_first() {
        let other = InstrumentId::new(first.get() ^ 1);
        let others: Vec<_> = std::iter::once(other).chain(others.iter().copied()).collect();
        assert_eq!(decode(text, Topics::of(&others)), None, "{text} is read for other topics");
        assert_eq!(decode(text, Topics::of(&topics[1..])), None, "{text} is read for fewer topics");
    }
}
