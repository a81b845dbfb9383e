//! Reads stored quotes from their price keys, one pipeline per node.
//!
//! Invariants:
//! - A node that fails costs the reads of its own keys only.
//! - A read transfers at most `ingest.max_payload_bytes` and one byte per key, whatever it holds.
//! - A quote without a time of its own has that of its updated-at key.
//!
//! Not here: gathering and repeating reads (`catch_up`), routing (`commands`).

use super::commands::failure::Kind;
use super::commands::{Answer, Commands, Routed};
use super::slots::slot;
use super::{keys, payload};
use crate::catch_up::{SnapshotSource, Stored, StoredQuotes};
use crate::clock::Now;
use crate::instrument::InstrumentId;
use crate::metrics::Metrics;
use redis::{Cmd, Value};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Answers per instrument: the price key's, and the updated-at key's.
const ANSWERS: usize = 2;

/// Price keys in Redis.
pub struct RedisSnapshots {
    commands: Arc<Commands>,
    max_bytes: usize,
    metrics: Arc<Metrics>,
}

impl RedisSnapshots {
    /// Reads through `commands`; values above `max_bytes` are unusable.
    pub fn new(commands: Arc<Commands>, max_bytes: usize, metrics: Arc<Metrics>) -> Self {
        Self { commands, max_bytes, metrics }
    }

    fn reads(&self, id: InstrumentId, bound: &str) -> [Routed; ANSWERS] {
        let key = keys::price(id);
        let slot = slot(key.as_bytes());
        // GETRANGE is GET with a bound; of a missing key it gives the empty string.
        let price = command(&["GETRANGE", &key, "0", bound]);
        let updated_at = command(&["GET", &keys::updated_at(id)]);
        [Routed { slot, command: price }, Routed { slot, command: updated_at }]
    }

    fn stored(&self, id: InstrumentId, price: Answer, updated_at: Answer, read_us: i64) -> Stored {
        let counted = &self.metrics.snapshots;
        let value = match price {
            Ok(Value::BulkString(value)) if !value.is_empty() => value,
            Ok(Value::BulkString(_) | Value::Nil) => {
                counted.absent.increment(1);
                return Stored::Absent;
            }
            Err(failure) if failure.kind != Kind::WrongType => {
                counted.failed.increment(1);
                return Stored::Failed;
            }
            Ok(_) | Err(_) => {
                counted.wrong_type.increment(1);
                return Stored::Unusable;
            }
        };
        let updated_at = match updated_at {
            Ok(Value::BulkString(text)) => {
                std::str::from_utf8(&text).ok().and_then(|t| t.trim().parse().ok())
            }
            _ => None,
        };
        match payload::stored(id, value, updated_at, self.max_bytes, read_us) {
            Ok(mut quote) => {
                if quote.version.ts.is_none() {
                    quote.version.ts = updated_at;
                    quote.version.of_write = updated_at.is_some();
                }
                counted.quotes.increment(1);
                Stored::Quote(Box::new(quote))
            }
            Err(reason) => {
                counted.unusable(reason).increment(1);
                Stored::Unusable
            }
        }
    }
}

impl SnapshotSource for RedisSnapshots {
    fn read(&self, ids: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>> {
        Box::pin(async move {
            let started = Now::read();
            let bound = self.max_bytes.to_string();
            let mut reads = Vec::with_capacity(ids.len() * ANSWERS);
            ids.iter().for_each(|&id| reads.extend(self.reads(id, &bound)));
            let mut answers = self.commands.run(reads).await.into_iter();
            let mut next = || answers.next().expect("an answer per command");
            let stored = ids.into_iter().map(|id| {
                let (price, updated_at) = (next(), next());
                (id, self.stored(id, price, updated_at, started.unix_us))
            });
            let stored = stored.collect();
            let took = Now::read().mono.saturating_sub(started.mono);
            self.metrics.snapshots.read_seconds.record(took);
            stored
        })
    }
}

/// A command in as few allocations as it can have: thousands are made at once after a fault.
fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::with_capacity(words.len(), words.iter().map(|word| word.len()).sum());
    for word in words {
        command.arg(word);
    }
    command
}
