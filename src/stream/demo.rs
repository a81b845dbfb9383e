//! A source of answers to look at: words written into a stream at a steady pace, with an end.
//!
//! Not here: who may begin one (`edge::stream`).

use super::{Appended, NewEntry, StreamId, StreamWriter};
use crate::entry::{Content, EntryId};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Words of an answer, as in the study that the page repeats.
pub const WORDS: usize = 50;

/// Time between two of them.
pub const INTERVAL: Duration = Duration::from_millis(30);

const TEXT: &str = "A price may be replaced by a newer one before anybody has seen it, and nobody is the poorer. \
    The words of an answer may not: whoever loses one has a broken sentence for good, so each of them is kept, \
    numbered, and sent once, in order, wherever the reader comes back.";

/// The words of the text, over and over. Each but the first begins with its blank, as tokens do.
pub fn words(n: usize) -> impl Iterator<Item = String> {
    let all = TEXT.split_whitespace().cycle().take(n);
    all.enumerate().map(|(i, word)| if i == 0 { word.to_owned() } else { format!(" {word}") })
}

/// A token.
pub fn token(text: String) -> NewEntry {
    let event = Some(Bytes::from_static(b"token"));
    NewEntry { id: None, content: Content { event, data: Some(text.into()), end: None } }
}

/// The end of an answer.
pub fn done() -> NewEntry {
    NewEntry { id: None, content: Content { end: Some(Bytes::from_static(b"done")), ..Content::default() } }
}

/// Writes an answer of `n_words`, one each `pace`. Gives the ids of its words and of the end; fewer where the store
/// refused one, after which nothing is written: a hole in an answer is worse than none.
pub async fn write(writer: &dyn StreamWriter, id: &StreamId, n_words: usize, pace: Duration) -> Vec<EntryId> {
    let mut turns = interval(pace.max(Duration::from_millis(1)));
    // A late word isn't made up for by haste.
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ids = Vec::with_capacity(n_words + 1);
    for entry in words(n_words).map(token).chain([done()]) {
        let is_end = entry.content.end.is_some();
        if !is_end {
            turns.tick().await;
        }
        let Appended { ids: stored, failed } = writer.append(id, vec![entry]).await;
        ids.extend(stored);
        if failed.is_some() {
            break;
        }
    }
    ids
}

/// Begins demo streams, a bounded number at the same time.
pub struct Demo {
    writer: Arc<dyn StreamWriter>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Demo {
    /// At most `n` at the same time, until `end`.
    pub fn new(writer: Arc<dyn StreamWriter>, n: usize, end: CancellationToken) -> Arc<Self> {
        let (places, tasks) = (Arc::new(Semaphore::new(n)), TaskTracker::new());
        Arc::new(Self { writer, places, tasks, end })
    }

    /// Begins one and gives its id; `None` if as many are being written as may be.
    pub fn begin(&self) -> Option<StreamId> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let id =
            StreamId::parse(&format!("demo-{:016x}", rand::random::<u64>())).expect("letters and digits");
        let (writer, end, begun) = (Arc::clone(&self.writer), self.end.clone(), id.clone());
        self.tasks.spawn(async move {
            let _place = place;
            end.run_until_cancelled(write(&*writer, &begun, WORDS, INTERVAL)).await;
        });
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_its_words_whatever_their_number() {
        assert_eq!(words(WORDS).count(), 50);
        let text: String = words(200).collect();
        assert_eq!(text.split(' ').count(), 200);
        assert!(!text.starts_with(' '));
    }
}
