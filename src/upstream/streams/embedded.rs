//! Streams inside the process, for the demo and for tests.
//!
//! Bounded in streams and in entries of each. The oldest stream goes when there is no room for another; there is no
//! clock that expires one.

use super::check::{Check, check};
use crate::clock::Now;
use crate::config::streams::Streams;
use crate::entry::{Entry, EntryId};
use crate::protocol::stream::Encoded;
use crate::stream::hub::{Hub, Watched};
use crate::stream::{
    Answer, AppendFailure, Appended, Info, NewEntry, Page, StreamId, StreamSource, StreamWriter,
};
use indexmap::IndexMap;
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Streams that are kept.
const MAX_STREAMS: usize = 1_024;

/// Entries that are read at once for all who watch.
const READ_ENTRIES: usize = 256;

/// See the module.
pub struct EmbeddedStreams {
    logs: Mutex<IndexMap<StreamId, Log>>,
    /// Streams to which something was added since they were read for those who watch.
    dirty: Mutex<HashSet<StreamId>>,
    added: Notify,
    max_entries: usize,
}

#[derive(Default)]
struct Log {
    entries: VecDeque<Entry>,
    last_id: EntryId,
    added: u64,
}

impl Log {
    fn add(&mut self, entry: NewEntry, max_entries: usize, now: Now) -> Result<EntryId, AppendFailure> {
        let ms = u64::try_from(now.unix_ms()).unwrap_or_default();
        let id = match entry.id {
            Some(id) if self.entries.iter().any(|entry| entry.id == id) => return Ok(id),
            Some(id) if id <= self.last_id => return Err(AppendFailure::IdTooSmall),
            Some(id) => id,
            None if ms > self.last_id.ms => EntryId { ms, seq: 0 },
            None => EntryId { seq: self.last_id.seq + 1, ..self.last_id },
        };
        self.entries.push_back(Entry { id, content: entry.content });
        if self.entries.len() > max_entries {
            self.entries.pop_front();
        }
        self.last_id = id;
        self.added += 1;
        Ok(id)
    }

    fn info(&self) -> Info {
        Info {
            last_id: self.last_id,
            first_id: self.entries.front().map(|entry| entry.id),
            ended: self.entries.back().is_some_and(|entry| entry.content.end.is_some()),
            length: self.entries.len() as u64,
            added: Some(self.added),
        }
    }

    fn page(&self, after: EntryId, n: usize) -> Page {
        let first = self.entries.partition_point(|entry| entry.id <= after);
        Page {
            entries: self.entries.range(first..).take(n).cloned().collect(),
            before: first.checked_sub(1).map(|before| self.entries[before].clone()),
            info: Some(self.info()),
        }
    }
}

impl EmbeddedStreams {
    /// No stream.
    pub fn new(config: &Streams) -> Self {
        let (logs, dirty, added) = Default::default();
        Self { logs, dirty, added, max_entries: config.max_entries }
    }

    fn logs(&self) -> MutexGuard<'_, IndexMap<StreamId, Log>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dirty(&self) -> MutexGuard<'_, HashSet<StreamId>> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, id: &StreamId, after: EntryId, n: usize) -> Page {
        self.logs().get(id).map(|log| log.page(after, n)).unwrap_or_default()
    }

    /// Brings what is added to those who watch, until `end`.
    pub async fn run(&self, hub: Arc<Hub>, end: CancellationToken) {
        let mut watched: HashMap<StreamId, Arc<Watched>> = HashMap::new();
        loop {
            let joined = tokio::select! {
                () = end.cancelled() => return,
                joined = hub.joined() => joined,
                () = self.added.notified() => Vec::new(),
            };
            let mut dirty = std::mem::take(&mut *self.dirty());
            for stream in joined {
                dirty.insert(stream.id.clone());
                watched.insert(stream.id.clone(), stream);
            }
            for stream in dirty.iter().filter_map(|id| watched.get(id)) {
                self.bring(stream, &hub);
            }
            watched.retain(|_, stream| !stream.is_over());
        }
    }

    fn bring(&self, stream: &Watched, hub: &Hub) {
        loop {
            let position = stream.position();
            let page = self.read(&stream.id, position, READ_ENTRIES);
            let now = Now::read().mono;
            match check(position, page.before.map(|entry| entry.id), page.info.as_ref()) {
                Check::Whole => {}
                Check::Gap(newest) => {
                    stream.reset(newest, now);
                    continue;
                }
                Check::Cut(kept) => {
                    stream.cut(kept);
                    continue;
                }
            }
            let n = page.entries.len();
            hub.metrics().reads.increment(1);
            hub.metrics().entries_read.increment(n as u64);
            stream.append(page.entries.iter().map(Encoded::new), now);
            if n < READ_ENTRIES {
                return;
            }
        }
    }
}

impl StreamSource for EmbeddedStreams {
    fn page<'a>(&'a self, id: &'a StreamId, after: EntryId, n: usize) -> Answer<'a, Page> {
        Box::pin(ready(Ok(self.read(id, after, n))))
    }

    fn info<'a>(&'a self, id: &'a StreamId) -> Answer<'a, Option<Info>> {
        Box::pin(ready(Ok(self.logs().get(id).map(Log::info))))
    }
}

impl StreamWriter for EmbeddedStreams {
    fn append<'a>(
        &'a self,
        id: &'a StreamId,
        entries: Vec<NewEntry>,
    ) -> Pin<Box<dyn Future<Output = Appended> + Send + 'a>> {
        let mut appended = Appended { ids: Vec::with_capacity(entries.len()), failed: None };
        {
            let mut logs = self.logs();
            if !logs.contains_key(id) && logs.len() >= MAX_STREAMS {
                logs.shift_remove_index(0);
            }
            let log = logs.entry(id.clone()).or_default();
            for entry in entries {
                match log.add(entry, self.max_entries, Now::read()) {
                    Ok(id) => appended.ids.push(id),
                    Err(failure) => {
                        appended.failed = Some(failure);
                        break;
                    }
                }
            }
        }
        self.dirty().insert(id.clone());
        self.added.notify_one();
        Box::pin(ready(appended))
    }
}
