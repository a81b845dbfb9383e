use super::*;
use crate::entry::{Content, Entry};
use crate::metrics::Metrics;
use bytes::Bytes;

const NOW: Duration = Duration::from_secs(1);

fn at(ms: u64) -> EntryId {
    EntryId { ms, seq: 0 }
}

fn entry(ms: u64, n_bytes: usize) -> Encoded {
    let data = Some(Bytes::from(vec![b'x'; n_bytes]));
    Encoded::new(&Entry { id: at(ms), content: Content { data, ..Content::default() } })
}

fn entries(ms: std::ops::RangeInclusive<u64>) -> Vec<Encoded> {
    ms.map(|ms| entry(ms, 1)).collect()
}

fn hub() -> Arc<Hub> {
    Hub::new(Arc::clone(&Metrics::new("t").streams))
}

fn id() -> StreamId {
    StreamId::parse("a").expect("a name")
}

/// The ids that follow `cursor`, which is moved along as a session does.
fn follow(watch: &Watch, cursor: &mut Cursor) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        match watch.next(cursor, 200) {
            Next::Entries(entries) => {
                seen.extend(entries.iter().map(|entry| entry.id.ms));
                cursor.at = entries.last().expect("at least one").id;
            }
            Next::Nothing => return seen,
            other => panic!("{other:?} after {seen:?}"),
        }
    }
}

#[tokio::test]
async fn each_watcher_gets_each_entry_once_whenever_it_looks() {
    let hub = hub();
    let (early, late) = (hub.join(&id(), at(2), NOW), hub.join(&id(), at(99), NOW));
    let [stream] = hub.joined().await.try_into().ok().expect("one stream for two watchers");
    assert_eq!(stream.position(), at(2), "the second watcher doesn't move it");
    let (mut first, mut second) = (early.cursor(at(2)), late.cursor(at(4)));
    assert_eq!(stream.append(entries(3..=5), NOW), 3);
    assert_eq!(follow(&early, &mut first), [3, 4, 5]);
    assert_eq!(stream.append(entries(4..=6), NOW), 1, "what is known already is not new");
    assert_eq!(follow(&early, &mut first), [6]);
    assert_eq!(follow(&late, &mut second), [5, 6]);
    assert!(matches!(late.next(&mut late.cursor(at(1)), 1), Next::History));
}

#[tokio::test]
async fn a_watcher_is_woken_by_what_comes_after_it_began_to_wait() {
    let hub = hub();
    let watch = hub.join(&id(), at(0), NOW);
    let stream = hub.joined().await.remove(0);
    let mut changed = std::pin::pin!(watch.changed());
    changed.as_mut().enable();
    stream.append(entries(1..=1), NOW);
    tokio::time::timeout(Duration::from_secs(5), changed).await.expect("woken");
}

#[tokio::test]
async fn a_tail_is_bounded_and_older_entries_are_history() {
    let hub = hub();
    let watch = hub.join(&id(), at(0), NOW);
    let stream = hub.joined().await.remove(0);
    stream.append(entries(1..=1_000), NOW);
    assert!(matches!(watch.next(&mut watch.cursor(at(743)), 1), Next::History));
    assert_eq!(follow(&watch, &mut watch.cursor(at(744))).len(), TAIL_ENTRIES);
    stream.append([entry(1_001, TAIL_BYTES)], NOW);
    assert!(matches!(watch.next(&mut watch.cursor(at(999)), 1), Next::History));
    assert_eq!(follow(&watch, &mut watch.cursor(at(1_000))), [1_001], "the newest stays, however large");
}

#[tokio::test]
async fn a_reset_sends_who_is_behind_to_the_source() {
    let hub = hub();
    let watch = hub.join(&id(), at(0), NOW);
    let stream = hub.joined().await.remove(0);
    stream.append(entries(1..=5), NOW);
    stream.reset(at(9), NOW);
    assert!(matches!(watch.next(&mut watch.cursor(at(5)), 1), Next::History));
    stream.append(entries(10..=10), NOW);
    assert_eq!(follow(&watch, &mut watch.cursor(at(9))), [10]);
}

#[tokio::test]
async fn a_loss_is_told_to_those_who_had_it_and_new_entries_follow() {
    let hub = hub();
    let watch = hub.join(&id(), at(0), NOW);
    let stream = hub.joined().await.remove(0);
    stream.append(entries(1..=9), NOW);
    let (mut ahead, mut behind) = (watch.cursor(at(8)), watch.cursor(at(3)));
    assert_eq!(stream.cut(at(5)), 4);
    assert_eq!(stream.position(), at(5));
    stream.append(entries(6..=7), NOW);
    match watch.next(&mut ahead, 1) {
        Next::Lost { through, missing } => assert_eq!((through, missing), (at(8), Some(3))),
        other => panic!("{other:?}"),
    }
    assert_eq!(ahead.at, at(5));
    assert_eq!(follow(&watch, &mut ahead), [6, 7], "they are new, although their ids are not");
    assert_eq!(follow(&watch, &mut behind), [4, 5, 6, 7], "who had nothing of it is told nothing");
    assert_eq!(follow(&watch, &mut watch.cursor(at(6))), [7], "nor is who comes later");
}

#[tokio::test]
async fn a_loss_beyond_the_tail_has_no_number() {
    let hub = hub();
    let watch = hub.join(&id(), at(20), NOW);
    let stream = hub.joined().await.remove(0);
    stream.append(entries(21..=22), NOW);
    let mut cursor = watch.cursor(at(22));
    stream.cut(at(10));
    assert_eq!(stream.position(), at(10));
    assert!(matches!(watch.next(&mut cursor, 1), Next::Lost { missing: None, .. }));
    assert_eq!(cursor.at, at(10));
}

/// An entry that was put between two known ones after the loss is new, and what follows the last common one.
#[tokio::test]
async fn a_loss_goes_back_to_what_is_certainly_common() {
    let hub = hub();
    let watch = hub.join(&id(), at(0), NOW);
    let stream = hub.joined().await.remove(0);
    stream.append([entry(1, 1), entry(4, 1), entry(8, 1)], NOW);
    let mut cursor = watch.cursor(at(8));
    stream.cut(at(6));
    assert_eq!(stream.position(), at(4));
    stream.append([entry(6, 1), entry(9, 1)], NOW);
    assert!(matches!(watch.next(&mut cursor, 1), Next::Lost { missing: Some(1), .. }));
    assert_eq!(follow(&watch, &mut cursor), [6, 9]);
}

#[tokio::test]
async fn a_stream_is_over_with_its_end_or_its_last_watcher() {
    let hub = hub();
    let watch = hub.join(&id(), at(0), NOW);
    let stream = hub.joined().await.remove(0);
    assert!(!stream.is_over());
    let end = Some(Bytes::from_static(b"done"));
    let last = Encoded::new(&Entry { id: at(2), content: Content { end, ..Content::default() } });
    stream.append([entry(1, 1), last, entry(3, 1)], NOW);
    assert!(stream.is_over());
    assert_eq!(follow(&watch, &mut watch.cursor(at(0))), [1, 2], "nothing follows an end");
    drop(watch);
    let again = hub.join(&id(), at(7), NOW);
    let stream = hub.joined().await.remove(0);
    assert_eq!(stream.position(), at(7), "another watch, another life");
    drop(again);
    assert!(stream.is_over());
}
