//! Streams on their way to the task of a node, and when each is read.
//!
//! Not here: reading them (`node`).

use crate::stream::hub::Watched;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Between two reads while something comes. Gathers what many streams bring into one answer: with a thousand streams
/// of 30 entries per second each, 150 come together.
pub(super) const GATHER: Duration = Duration::from_millis(5);

/// Longest pause between two reads of a stream that brings nothing, where reads can't wait at the server.
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(50);

/// A stream and when it is read.
pub(super) struct Reading {
    pub(super) stream: Arc<Watched>,
    pub(super) key: String,
    pub(super) slot: u16,
    /// Whether what is read next is known to follow the position.
    pub(super) vouched: bool,
    /// The server refused a command that named it among others. It has one of its own, so that a key that is no
    /// stream holds up nobody else.
    pub(super) alone: bool,
    pub(super) last_read: Instant,
    pub(super) next: Instant,
    pause: Duration,
}

impl Reading {
    /// To be read at once.
    pub(super) fn new(stream: Arc<Watched>, key: String, slot: u16) -> Self {
        let now = Instant::now();
        Self { stream, key, slot, vouched: false, alone: false, last_read: now, next: now, pause: GATHER }
    }

    /// Waits for its next turn, longer while it brings nothing.
    pub(super) fn rest(&mut self, brought: bool) {
        self.pause = if brought { GATHER } else { (self.pause * 3 / 2).min(MAX_PAUSE) };
        self.last_read = Instant::now();
        self.next = self.last_read + self.pause;
    }
}

/// Streams for a node's task.
pub(super) struct Orders {
    given: Mutex<Given>,
    pub(super) wake: Notify,
}

struct Given {
    streams: Vec<Reading>,
    closed: bool,
}

impl Orders {
    /// A first stream.
    pub(super) fn with(reading: Reading) -> Arc<Self> {
        let given = Mutex::new(Given { streams: vec![reading], closed: false });
        Arc::new(Self { given, wake: Notify::new() })
    }

    /// Adds a stream, or gives it back if the task has ended.
    pub(super) fn give(&self, reading: Reading) -> Result<(), Reading> {
        let mut given = self.given();
        if given.closed {
            return Err(reading);
        }
        given.streams.push(reading);
        drop(given);
        self.wake.notify_one();
        Ok(())
    }

    /// Whether the task has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.given().closed
    }

    /// Takes what was given.
    pub(super) fn take(&self) -> Vec<Reading> {
        std::mem::take(&mut self.given().streams)
    }

    /// Ends the task's orders unless a stream has just come.
    pub(super) fn may_end(&self) -> bool {
        let mut given = self.given();
        given.closed = given.streams.is_empty();
        given.closed
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
