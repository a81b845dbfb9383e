//! Carries statements from a source into Redis, on schedule.
//!
//! Invariants:
//! - Batches go through the publisher's steps one after the other, several at a time, each step in the
//!   order in which the batches were made.
//! - What failed is published again once nothing newer of its instrument is on its way, so that in the
//!   end every instrument's last statement is stored and announced, or counted as lost.
//! - All of it runs in one task, so that a quote costs no hand-over between threads.

use super::schedule::Schedule;
use super::tally::Tally;
use crate::clock::Now;
use crate::instrument::InstrumentId;
use crate::quote::Version;
use crate::upstream::commands::failure::Class;
use crate::upstream::publish::batch::{Batch, Entry, Outcome};
use crate::upstream::publish::statement::{Stamp, Statement};
use crate::upstream::publish::{InFlight, Publisher};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Quotes per batch at most. Pipelines of a few hundred commands per node keep every server busy; larger
/// ones only add delay.
const MAX_BATCH: usize = 512;

/// Batches between two steps.
const WINDOW: usize = 3;

/// Between two attempts at what failed. Each waits until nothing is in flight, which holds up the feed.
const REPAIR_PAUSE: Duration = Duration::from_secs(1);

/// Attempts at what is left when the source has ended. A failover takes seconds.
const LAST_REPAIRS: u32 = 10;

/// What a flow needs.
pub struct Flow<'a> {
    publisher: &'a Publisher,
    tally: &'a Tally,
    stop: &'a CancellationToken,
    /// Whether statements are numbered here, and not by the store-and-publish function.
    numbered: bool,
    lost: RefCell<HashMap<InstrumentId, Lost>>,
    n_in_flight: Cell<usize>,
    settled: Notify,
    spare: RefCell<Vec<Batch>>,
    last_seq: Cell<u64>,
}

/// A quote that is not published yet, though it was tried.
struct Lost {
    ms: i64,
    version: Version,
    json: Vec<u8>,
}

impl Lost {
    fn of(entry: Entry<'_>) -> Self {
        Self { ms: entry.ms, version: entry.version, json: entry.json.to_vec() }
    }
}

impl<'a> Flow<'a> {
    /// A flow into `publisher`, counted in `tally`, until `stop` is cancelled.
    pub fn new(
        publisher: &'a Publisher,
        tally: &'a Tally,
        stop: &'a CancellationToken,
        numbered: bool,
    ) -> Self {
        Self {
            publisher,
            tally,
            stop,
            numbered,
            lost: RefCell::default(),
            n_in_flight: Cell::new(0),
            settled: Notify::new(),
            spare: RefCell::default(),
            last_seq: Cell::new(0),
        }
    }

    /// Publishes `source` until it ends, `duration` is over, or the flow is stopped. Gives how many
    /// instruments are left whose last statement could not be published.
    pub async fn run(
        &self,
        source: impl Iterator<Item = Statement>,
        schedule: Schedule,
        duration: Option<Duration>,
    ) -> usize {
        let (stored, mut storing) = mpsc::channel(WINDOW);
        let (announced, mut announcing) = mpsc::channel(WINDOW);
        let announce = async {
            while let Some(flight) = storing.recv().await {
                // The receiver lives until all are in.
                let _ = announced.send(self.publisher.announce(flight).await).await;
            }
            drop(announced);
        };
        let finish = async {
            while let Some(flight) = announcing.recv().await {
                let (batch, outcome) = self.publisher.finish(flight).await;
                self.settle(batch, &outcome);
            }
        };
        tokio::join!(self.make(source, schedule, duration, stored), announce, finish);
        for attempt in 0..LAST_REPAIRS {
            if self.lost.borrow().is_empty() || attempt > 0 && self.stop.is_cancelled() {
                break;
            }
            if attempt > 0 {
                sleep(REPAIR_PAUSE).await;
            }
            if !self.repair().await {
                break;
            }
        }
        self.lost.borrow().len()
    }

    async fn make(
        &self,
        mut source: impl Iterator<Item = Statement>,
        mut schedule: Schedule,
        duration: Option<Duration>,
        stored: mpsc::Sender<InFlight>,
    ) {
        let start = Instant::now();
        let end = duration.map(|duration| start + duration);
        let mut next_repair = start + REPAIR_PAUSE;
        loop {
            let now = Instant::now();
            if self.stop.is_cancelled() || end.is_some_and(|end| now >= end) {
                return;
            }
            if now >= next_repair && !self.lost.borrow().is_empty() {
                self.repair().await;
                next_repair = Instant::now() + REPAIR_PAUSE;
                continue;
            }
            let n_due = schedule.due(now - start, MAX_BATCH);
            if n_due == 0 {
                let due = start + schedule.next();
                tokio::select! {
                    () = sleep_until(end.map_or(due, |end| end.min(due))) => {}
                    () = self.stop.cancelled() => {}
                }
                continue;
            }
            self.tally.note_behind(schedule.behind(now - start));
            let batch = self.fill(&mut source, n_due);
            let n_made = batch.len();
            schedule.sent(n_made);
            if n_made > 0 {
                self.n_in_flight.set(self.n_in_flight.get() + 1);
                let flight = self.publisher.store(batch).await;
                // The receiver lives until this sender is dropped.
                let _ = stored.send(flight).await;
            }
            if n_made < n_due {
                return;
            }
        }
    }

    fn fill(&self, source: &mut impl Iterator<Item = Statement>, n: usize) -> Batch {
        let mut batch = self.spare.borrow_mut().pop().unwrap_or_default();
        // Once per batch: its quotes leave together.
        let now = Now::read();
        for statement in source.take(n) {
            let stamp = Stamp { ms: now.unix_ms(), seq: self.numbered.then(|| self.next_seq(now)) };
            batch.push(statement.id, stamp.ms, stamp.version(), |out| statement.write_json(stamp, out));
        }
        batch
    }

    /// Numbers rise by the clock, so that those of the next run, or of the store-and-publish function,
    /// are higher.
    fn next_seq(&self, now: Now) -> u64 {
        let seq = (self.last_seq.get() + 1).max(u64::try_from(now.unix_us).unwrap_or_default());
        self.last_seq.set(seq);
        seq
    }

    /// Notes what became of a batch.
    fn settle(&self, mut batch: Batch, outcome: &Outcome) {
        self.tally.note(batch.len(), outcome);
        let mut lost = self.lost.borrow_mut();
        if !outcome.failed.is_empty() || !lost.is_empty() {
            let failed: HashSet<usize> = outcome.failed.iter().map(|(at, _)| *at).collect();
            for at in 0..batch.len() {
                let entry = batch.entry(at);
                if failed.contains(&at) {
                    lost.insert(entry.id, Lost::of(entry));
                } else {
                    // Whatever failed of this instrument before is overtaken.
                    lost.remove(&entry.id);
                }
            }
        }
        batch.clear();
        self.spare.borrow_mut().push(batch);
        self.n_in_flight.set(self.n_in_flight.get() - 1);
        self.settled.notify_one();
    }

    /// Waits until nothing is in flight, and tries what is lost once more. Gives whether trying again may
    /// help.
    async fn repair(&self) -> bool {
        while self.n_in_flight.get() > 0 {
            self.settled.notified().await;
        }
        let mut batch = Batch::default();
        for (id, quote) in self.lost.take() {
            batch.push(id, quote.ms, quote.version, |out| out.extend_from_slice(&quote.json));
        }
        let all: Vec<_> = (0..batch.len()).collect();
        let outcome = self.publisher.repair(&batch, &all).await;
        self.tally.note_repair(batch.len(), &outcome);
        let mut lost = self.lost.borrow_mut();
        let mut may_help = false;
        for (at, failure) in outcome.failed {
            let entry = batch.entry(at);
            lost.insert(entry.id, Lost::of(entry));
            may_help |= failure.kind.class() != Class::Fatal;
        }
        may_help
    }
}
