//! Whether a stream still goes on where it was read to.
//!
//! A read after a place brings what follows in the stream as it is now. Whether that follows what was read before
//! shows only by the entry at the place: as long as it is there, nothing between was trimmed, and the server is none
//! that lost it.

use crate::entry::EntryId;
use crate::stream::Info;

/// What became of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// What is read after it follows it.
    Whole,
    /// Entries after it may have been trimmed unread. This is the newest id.
    Gap(EntryId),
    /// The stream has lost it. This is the newest that is left of what was read.
    Cut(EntryId),
}

/// Judges the place `at` by the newest entry at or before it and by what is known of the stream.
pub fn check(at: EntryId, before: Option<EntryId>, info: Option<&Info>) -> Check {
    let Some(info) = info else {
        return if at == EntryId::START { Check::Whole } else { Check::Cut(EntryId::START) };
    };
    match before {
        Some(before) if before == at => Check::Whole,
        Some(before) => Check::Cut(before),
        None if at == EntryId::START && info.n_trimmed().unwrap_or(0) == 0 => Check::Whole,
        None if info.last_id < at => Check::Cut(info.last_id),
        None if info.last_id == at => Check::Whole,
        None => Check::Gap(info.last_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    #[test]
    fn a_place_is_whole_trimmed_or_lost() {
        let known = |last, length, added| Info { last_id: id(last), length, added, ..Info::default() };
        let full = known(9, 9, Some(9));
        for (at, before, info, expected) in [
            (5, Some(5), Some(&full), Check::Whole),
            (9, Some(9), Some(&full), Check::Whole),
            (7, Some(6), Some(&full), Check::Cut(id(6))),
            (12, Some(9), Some(&full), Check::Cut(id(9))),
            (0, None, Some(&full), Check::Whole),
            (0, None, Some(&known(9, 3, Some(9))), Check::Gap(id(9))),
            (0, None, Some(&known(9, 3, None)), Check::Whole),
            (5, None, Some(&known(9, 3, Some(9))), Check::Gap(id(9))),
            (9, None, Some(&known(9, 0, Some(9))), Check::Whole),
            (12, None, Some(&known(9, 0, Some(9))), Check::Cut(id(9))),
            (5, None, None, Check::Cut(id(0))),
            (0, None, None, Check::Whole),
        ] {
            assert_eq!(check(id(at), before.map(id), info), expected, "{at} {before:?} {info:?}");
        }
    }
}
