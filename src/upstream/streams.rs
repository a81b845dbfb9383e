//! Streams in Redis: reading pages of them and adding to them. What follows the newest entries is read by `reader`.
//!
//! Invariants:
//! - A page is read before what proves it: the entry at its place, then the stream's counters. Whatever is trimmed
//!   meanwhile shows as missing, never as nothing.
//! - An entry is never added twice by a retry of ours: only commands that were certainly not executed are sent again.
//!
//! Not here: who watches (`stream::hub`), what a hole means to a session (`stream::session`).

pub mod embedded;
pub mod reader;

mod answer;
mod check;
mod node;
mod orders;

use super::commands::failure::{Class, Failure, Kind};
use super::commands::{Answer as Answered, Commands, Routed};
use super::slots::slot;
use crate::config::streams::Streams;
use crate::entry::EntryId;
use crate::stream::{
    Answer, AppendFailure, Appended, Info, NewEntry, Page, SourceUnavailable, StreamId, StreamSource,
    StreamWriter,
};
use redis::{Cmd, Value, cmd};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The key of a stream.
fn key(prefix: &str, id: &StreamId) -> String {
    format!("{prefix}{{{id}}}")
}

/// What lies at or before a place, newest first.
fn newest_before(key: &str, at: EntryId) -> Cmd {
    cmd("XREVRANGE").arg(key).arg(at.to_string()).arg("-").arg("COUNT").arg(1).to_owned()
}

/// What is known of a stream. Answered with an error where there is none.
fn info(key: &str) -> Cmd {
    cmd("XINFO").arg("STREAM").arg(key).to_owned()
}

/// Between two complaints of the same kind. Whoever asks for streams that can't be read must not fill the log.
const COMPLAIN_EVERY: Duration = Duration::from_secs(30);

/// Lets a complaint pass now and then.
#[derive(Default)]
struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    fn due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Streams behind a pool of command connections.
pub struct RedisStreams {
    commands: Arc<Commands>,
    config: Streams,
    complaints: Seldom,
}

impl RedisStreams {
    /// Reads and writes through `commands`.
    pub fn new(commands: Arc<Commands>, config: Streams) -> Self {
        Self { commands, config, complaints: Seldom::default() }
    }

    async fn read(&self, key: &str, commands: Vec<Cmd>) -> Result<Vec<Value>, SourceUnavailable> {
        let slot = slot(key.as_bytes());
        let commands: Vec<_> = commands.into_iter().map(|command| Routed { slot, command }).collect();
        let answers = self.commands.run(commands).await;
        answers.into_iter().collect::<Result<_, Failure>>().map_err(|failure| {
            if failure.kind.class() == Class::Fatal && self.complaints.due() {
                tracing::warn!(%failure, "Redis refuses to let a stream be read");
            } else {
                tracing::debug!(%failure, "a stream can't be read");
            }
            SourceUnavailable
        })
    }

    async fn read_page(&self, id: &StreamId, after: EntryId, n: usize) -> Result<Page, SourceUnavailable> {
        let key = key(&self.config.prefix, id);
        let follows =
            cmd("XRANGE").arg(&key).arg(format!("({after}")).arg("+").arg("COUNT").arg(n).to_owned();
        let answers = self.read(&key, vec![follows, newest_before(&key, after), info(&key)]).await?;
        let [follows, before, info] = answers.try_into().map_err(|_| SourceUnavailable)?;
        Ok(Page {
            entries: answer::entries(follows).ok_or(SourceUnavailable)?,
            before: answer::entries(before).ok_or(SourceUnavailable)?.pop(),
            info: answer::info(info),
        })
    }

    async fn add(&self, id: &StreamId, entries: Vec<NewEntry>) -> Appended {
        let key = key(&self.config.prefix, id);
        let slot = slot(key.as_bytes());
        let routed = |command| Routed { slot, command };
        let add = |entry: &NewEntry| {
            let mut add = cmd("XADD");
            add.arg(&key).arg("MAXLEN").arg("~").arg(self.config.max_entries);
            add.arg(entry.id.map_or("*".to_owned(), |id| id.to_string()));
            let content = &entry.content;
            let fields = [("event", &content.event), ("data", &content.data), ("end", &content.end)];
            for (name, value) in fields {
                if let Some(value) = value {
                    add.arg(name).arg(&value[..]);
                }
            }
            routed(add)
        };
        let ttl = i64::try_from(self.config.ttl.as_millis()).unwrap_or(i64::MAX);
        let expire = routed(cmd("PEXPIRE").arg(&key).arg(ttl).to_owned());
        // An entry with an id of its own may be refused, and those behind it must not be added then.
        let own_ids = entries.iter().any(|entry| entry.id.is_some());
        let step = if own_ids { 1 } else { entries.len().max(1) };
        let mut appended = Appended { ids: Vec::with_capacity(entries.len()), failed: None };
        for together in entries.chunks(step) {
            let mut commands: Vec<Routed> = together.iter().map(add).collect();
            commands.push(expire.clone());
            let answers = self.commands.run_once(commands).await;
            for (entry, answer) in together.iter().zip(answers) {
                match self.added(&key, entry, answer).await {
                    Ok(id) => appended.ids.push(id),
                    Err(failure) => {
                        appended.failed = Some(failure);
                        return appended;
                    }
                }
            }
        }
        appended
    }

    /// What became of one entry.
    async fn added(&self, key: &str, entry: &NewEntry, answer: Answered) -> Result<EntryId, AppendFailure> {
        match (answer, entry.id) {
            (Ok(value), _) => answer::id(&value).ok_or(AppendFailure::Unavailable),
            (Err(failure), Some(id))
                if failure.kind == Kind::Other && failure.text.contains("equal or smaller") =>
            {
                // It may be there already, from the request that this one repeats.
                let look = newest_before(key, id);
                let there = self.read(key, vec![look]).await.map_err(|_| AppendFailure::Unavailable)?;
                let there = there.into_iter().next().and_then(answer::entries).and_then(|mut e| e.pop());
                there.filter(|there| there.id == id).map(|_| id).ok_or(AppendFailure::IdTooSmall)
            }
            (Err(failure), _) => {
                tracing::debug!(%failure, "an entry can't be added");
                Err(AppendFailure::Unavailable)
            }
        }
    }
}

impl StreamSource for RedisStreams {
    fn page<'a>(&'a self, id: &'a StreamId, after: EntryId, n: usize) -> Answer<'a, Page> {
        Box::pin(self.read_page(id, after, n))
    }

    fn info<'a>(&'a self, id: &'a StreamId) -> Answer<'a, Option<Info>> {
        Box::pin(async move {
            let key = key(&self.config.prefix, id);
            let known = self.read(&key, vec![info(&key)]).await?;
            Ok(known.into_iter().next().and_then(answer::info))
        })
    }
}

impl StreamWriter for RedisStreams {
    fn append<'a>(
        &'a self,
        id: &'a StreamId,
        entries: Vec<NewEntry>,
    ) -> Pin<Box<dyn Future<Output = Appended> + Send + 'a>> {
        Box::pin(self.add(id, entries))
    }
}
