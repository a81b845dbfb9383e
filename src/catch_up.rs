//! Reads stored quotes for sessions that join before memory is complete, and after broken streams.
//!
//! Invariants:
//! - A session joins its topic before the key is read. Pub/Sub keeps nothing for late subscribers, so
//!   the other order would lose what is published in between; the overlap is judged by the gate.
//! - Requests of a few milliseconds go out together, each instrument once; while they keep coming, those of
//!   some ten milliseconds.
//! - A failed read is repeated while somebody waits for it.
//!
//! Not here: how a key is read (`upstream::snapshot`), what is newer (`quote`).

use crate::clock::Now;
use crate::fanout::Fanout;
use crate::instrument::InstrumentId;
use crate::protocol::event::EncodedQuote;
use crate::quote::Quote;
use indexmap::IndexMap;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What one key held.
#[derive(Debug)]
pub enum Stored {
    /// A quote.
    Quote(Box<Quote>),
    /// No such key.
    Absent,
    /// Something that is no price: counted by the source, and no more to be had by asking again.
    Unusable,
    /// The read failed; worth another try.
    Failed,
}

/// Answers of one read, in the order asked.
pub type StoredQuotes = Vec<(InstrumentId, Stored)>;

/// Where stored quotes are read from.
pub trait SnapshotSource: Send + Sync + 'static {
    /// Reads the price keys of `ids`, each given once. Ends within the command timeout of the source
    /// whatever happens; what could not be read by then is [`Stored::Failed`].
    fn read(&self, ids: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>>;
}

/// Instruments read by one call of the source. A few thousand keys come back in milliseconds; more at
/// once would let one slow answer hold all of them up.
const READ_AT_ONCE: usize = 2_000;

/// Calls of the source under way at once. One that waits for a dead node must not hold up the rest.
const READS_AT_ONCE: usize = 8;

/// How many times `catch_up.gather` lies between two reads at least. A session that comes alone waits for one
/// gather; those of a reconnect storm go out together, which costs them what nobody sees.
const READS_APART: u32 = 16;

/// Pause before a failed read is repeated, and its bound; it doubles in between.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After a stream was restored its keys are read at once and then again after these times: a publisher
/// that lost the same server may store its newest prices only now, and may announce nothing.
const SECOND_LOOKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// Why an instrument's key is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A session waits for its first quote.
    Joined,
    /// The stream was broken and is subscribed again.
    Restored,
}

/// A read under way: what was asked, why, and in which epoch of its stream.
#[derive(Debug)]
pub struct Read {
    asked: IndexMap<InstrumentId, (Reason, u32)>,
}

impl Read {
    /// The instruments whose keys are to be read.
    pub fn ids(&self) -> Vec<InstrumentId> {
        self.asked.keys().copied().collect()
    }
}

/// Reads stored quotes into the fan-out when asked to. What waits is bounded by the instruments.
pub struct CatchUp {
    fanout: Arc<Fanout>,
    source: Arc<dyn SnapshotSource>,
    gather: Duration,
    wanted: Mutex<Wanted>,
    /// Read in vain, to be read again after a pause.
    failed: Mutex<Wanted>,
    wake: Notify,
}

type Wanted = IndexMap<InstrumentId, Reason>;

fn lock(wanted: &Mutex<Wanted>) -> MutexGuard<'_, Wanted> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CatchUp {
    /// Reads from `source` into `fanout`; requests are gathered for `gather`.
    pub fn new(fanout: Arc<Fanout>, source: Arc<dyn SnapshotSource>, gather: Duration) -> Self {
        Self {
            fanout,
            source,
            gather,
            wanted: Mutex::default(),
            failed: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Asks for the stored quotes of instruments that sessions have just joined.
    pub fn request(&self, ids: Vec<InstrumentId>) {
        self.want(ids, Reason::Joined);
    }

    /// Asks for the stored quotes of instruments whose stream was broken and is subscribed again. Their keys
    /// are looked at more than once.
    pub fn restored(&self, ids: Vec<InstrumentId>) {
        self.want(ids, Reason::Restored);
    }

    fn want(&self, ids: Vec<InstrumentId>, reason: Reason) {
        let mut wanted = lock(&self.wanted);
        for id in ids {
            let entry = wanted.entry(id).or_insert(reason);
            if reason == Reason::Restored {
                *entry = reason;
            }
        }
        drop(wanted);
        self.wake.notify_one();
    }

    /// Reads what is asked for until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(READS_AT_ONCE));
        let reads = TaskTracker::new();
        let mut pause = FIRST_PAUSE;
        let mut not_before = Instant::now();
        loop {
            let anything_failed = !lock(&self.failed).is_empty();
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.wake.notified() => sleep_until((Instant::now() + self.gather).max(not_before)).await,
                () = sleep(pause.mul_f64(rand::random_range(0.5..1.0))), if anything_failed => {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    let again = std::mem::take(&mut *lock(&self.failed));
                    self.again(again.into_iter().collect());
                }
            }
            if !anything_failed {
                pause = FIRST_PAUSE;
            }
            not_before = Instant::now() + self.gather * READS_APART;
            loop {
                let chunk = self.take_wanted(READ_AT_ONCE);
                if chunk.is_empty() {
                    break;
                }
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
                let (this, stop) = (Arc::clone(&self), stop.clone());
                reads.spawn(async move {
                    stop.run_until_cancelled(this.read(chunk, place)).await;
                });
            }
        }
        reads.close();
        reads.wait().await;
    }

    async fn read(self: Arc<Self>, chunk: Vec<(InstrumentId, Reason)>, place: OwnedSemaphorePermit) {
        let restored: Vec<_> =
            chunk.iter().filter(|(_, reason)| *reason == Reason::Restored).copied().collect();
        let failed = self.read_once(chunk).await;
        drop(place);
        if !failed.is_empty() {
            lock(&self.failed).extend(failed);
            self.wake.notify_one();
        }
        if restored.is_empty() {
            return;
        }
        let began = Instant::now();
        for look in SECOND_LOOKS {
            sleep_until(began + look).await;
            // A failure now means that the stream is about to break again, which leads back here.
            self.read_once(restored.clone()).await;
        }
    }

    /// Reads the keys of those of `chunk` that some lane wants, and gives those whose read failed.
    async fn read_once(&self, chunk: Vec<(InstrumentId, Reason)>) -> Vec<(InstrumentId, Reason)> {
        let read = self.begin(chunk);
        if read.asked.is_empty() {
            return Vec::new();
        }
        let answers = self.source.read(read.ids()).await;
        self.finish(&read, answers, Now::read())
    }

    /// Takes what is asked for, at most `n` instruments.
    pub fn take_wanted(&self, n: usize) -> Vec<(InstrumentId, Reason)> {
        let mut wanted = lock(&self.wanted);
        let n = wanted.len().min(n);
        wanted.drain(..n).collect()
    }

    /// Begins a read of those of `chunk` that some lane wants. The epochs are asked now, before the read is
    /// sent: if a stream breaks in between, the answer proves nothing.
    pub fn begin(&self, chunk: Vec<(InstrumentId, Reason)>) -> Read {
        let with_epoch = |(id, reason)| Some((id, (reason, self.fanout.epoch(id)?)));
        Read { asked: chunk.into_iter().filter_map(with_epoch).collect() }
    }

    /// Puts the answers of a read into the fan-out. Gives what failed and is to be asked for again.
    pub fn finish(&self, read: &Read, answers: StoredQuotes, now: Now) -> Vec<(InstrumentId, Reason)> {
        let mut failed = Vec::new();
        for (id, stored) in answers {
            let Some(&(reason, epoch)) = read.asked.get(&id) else { continue };
            match stored {
                Stored::Failed => {
                    // What memory has is better than nothing, and is marked stale while the stream is broken.
                    self.fanout.read_failed(id);
                    failed.push((id, reason));
                    continue;
                }
                Stored::Quote(quote) => {
                    self.fanout.offer(*quote, now);
                }
                Stored::Absent | Stored::Unusable => {}
            }
            self.fanout.read_done(id, epoch);
        }
        failed
    }

    /// Asks again for what failed.
    pub fn again(&self, failed: Vec<(InstrumentId, Reason)>) {
        for (id, reason) in failed {
            self.want(vec![id], reason);
        }
    }

    /// The newest quote of each of `ids` that has one: from memory where the stream is unbroken,
    /// otherwise from its key, through the version gate.
    pub async fn current(&self, ids: &[InstrumentId]) -> Vec<Arc<EncodedQuote>> {
        let now = Now::read();
        let missing: Vec<_> = ids.iter().copied().filter(|&id| !self.fanout.peek(id, now).1).collect();
        let mut read = HashMap::new();
        if !missing.is_empty() {
            for (id, stored) in self.source.read(missing).await {
                if let Stored::Quote(quote) = stored {
                    read.insert(id, *quote);
                }
            }
        }
        let now = Now::read();
        ids.iter().filter_map(|&id| self.fanout.newest_of(id, read.remove(&id), now)).collect()
    }
}
