//! Judges a page of history: whether it follows its place without a hole, and what is missing if not.

use crate::entry::EntryId;
use crate::stream::Page;

/// How a page follows the place after which it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing is missing.
    Whole,
    /// What came between was trimmed, or may have been.
    Gap {
        /// The first entry that follows, if any does.
        before: Option<EntryId>,
        /// Where to go on.
        go_on: EntryId,
        /// How many, where it can be known.
        missing: Option<u64>,
    },
    /// The stream no longer has the place itself, although it has older entries or never came so far.
    Lost {
        /// The newest that both have.
        kept: EntryId,
    },
}

/// Judges `page`, asked for after `at`, up to which the stream had had `index` entries.
pub(super) fn judge(at: EntryId, page: &Page, index: Option<u64>) -> Verdict {
    let Some(info) = &page.info else {
        return if at == EntryId::START { Verdict::Whole } else { Verdict::Lost { kept: EntryId::START } };
    };
    match &page.before {
        Some(entry) if entry.id == at => return Verdict::Whole,
        Some(entry) => return Verdict::Lost { kept: entry.id },
        None if info.last_id < at => return Verdict::Lost { kept: info.last_id },
        None => {}
    }
    // What was trimmed between the two reads of the page is in the page, and not missing.
    let first = page.entries.first().map(|entry| entry.id);
    let saved = info
        .first_id
        .map_or(page.entries.len(), |kept| page.entries.iter().take_while(|entry| entry.id < kept).count());
    let n_trimmed = info.n_trimmed().map(|n| n.saturating_sub(saved as u64));
    let missing = n_trimmed.zip(index).map(|(n_trimmed, index)| n_trimmed.saturating_sub(index));
    match missing {
        Some(0) => Verdict::Whole,
        // A source that doesn't count can't tell a trimmed start from a whole one.
        None if at == EntryId::START => Verdict::Whole,
        // Nothing was ever added after the place.
        None if first.is_none() && info.last_id == at => Verdict::Whole,
        _ => Verdict::Gap { before: first, go_on: if first.is_some() { at } else { info.last_id }, missing },
    }
}

/// How many entries the stream had had up to `at`, if `page` tells: it reaches the newest entry, and the source counts.
pub(super) fn index(page: &Page, at: EntryId) -> Option<u64> {
    let info = page.info.as_ref()?;
    (info.last_id == at).then_some(info.added).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;
    use crate::stream::Info;

    fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    fn entry(ms: u64) -> Entry {
        Entry { id: id(ms), content: Default::default() }
    }

    /// The stream 1..=10 of which those from `first` on are kept, read after `at`.
    fn page(first: u64, at: u64) -> Page {
        let kept = first..=10;
        let length = kept.clone().count() as u64;
        Page {
            entries: kept.clone().filter(|&ms| ms > at).take(3).map(entry).collect(),
            before: kept.clone().filter(|&ms| ms <= at).max().map(entry),
            info: Some(Info {
                last_id: id(10),
                first_id: kept.min().map(id),
                ended: false,
                length,
                added: Some(10),
            }),
        }
    }

    #[test]
    fn a_place_that_is_still_there_proves_the_page_whole() {
        for at in 1..=10 {
            assert_eq!(judge(id(at), &page(1, at), None), Verdict::Whole, "{at}");
        }
        assert_eq!(judge(EntryId::START, &page(1, 0), Some(0)), Verdict::Whole);
        assert_eq!(index(&page(8, 7), id(10)), Some(10));
        assert_eq!(index(&page(1, 0), id(3)), None);
    }

    #[test]
    fn what_was_trimmed_is_counted_where_the_place_is() {
        let gap = |missing| Verdict::Gap { before: Some(id(5)), go_on: id(2), missing };
        assert_eq!(judge(id(2), &page(5, 2), Some(2)), gap(Some(2)));
        assert_eq!(judge(id(2), &page(5, 2), None), gap(None));
        assert_eq!(
            judge(id(4), &page(5, 4), Some(4)),
            Verdict::Whole,
            "the place itself was the last trimmed"
        );
        let from_start = Verdict::Gap { before: Some(id(5)), go_on: EntryId::START, missing: Some(4) };
        assert_eq!(judge(EntryId::START, &page(5, 0), Some(0)), from_start);
        let nothing_left = Verdict::Gap { before: None, go_on: id(10), missing: Some(8) };
        assert_eq!(judge(id(2), &page(11, 2), Some(2)), nothing_left);
        assert_eq!(judge(id(10), &page(11, 10), None), Verdict::Whole);
    }

    #[test]
    fn what_is_trimmed_while_the_page_is_read_is_not_missing() {
        let mut read = page(4, 0);
        // Entries 4 and 5 were read and trimmed before the counters were.
        let info = read.info.as_mut().expect("known");
        (info.first_id, info.length) = (Some(id(6)), 5);
        let gap = Verdict::Gap { before: Some(id(4)), go_on: EntryId::START, missing: Some(3) };
        assert_eq!(judge(EntryId::START, &read, Some(0)), gap);
    }

    #[test]
    fn a_place_that_the_stream_does_not_know_was_lost() {
        assert_eq!(judge(id(12), &page(1, 12), None), Verdict::Lost { kept: id(10) });
        assert_eq!(judge(id(12), &page(11, 12), None), Verdict::Lost { kept: id(10) });
        let mut replaced = page(1, 7);
        replaced.before = Some(entry(5));
        assert_eq!(judge(id(7), &replaced, None), Verdict::Lost { kept: id(5) });
        assert_eq!(judge(id(7), &Page::default(), None), Verdict::Lost { kept: EntryId::START });
        assert_eq!(judge(EntryId::START, &Page::default(), None), Verdict::Whole);
    }
}
