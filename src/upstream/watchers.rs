//! Tells the publisher what is watched: sets of (user, replica) per instrument, kept as they are wanted.
//!
//! Invariants:
//! - Callers never wait: they change the wanted state in memory, and one task brings Redis to it.
//! - Changes of all sessions are gathered into one pipeline per node. The more of them come, the longer
//!   they are gathered, so that a storm costs tens of round trips.
//! - A write that fails is repeated until Redis holds what is wanted. One without an answer may overtake
//!   its repetition when its server thaws, and is therefore followed by another one later.
//! - Every member is renewed once per interval, a slice at a time. Ticks that were missed are not made up
//!   for.
//!
//! Not here: who else is alive (`liveness`), the state itself (`wanted`).

mod liveness;
mod wanted;

use super::commands::failure::{Class, Failure, Kind};
use super::commands::{Answer, Commands, Routed};
use super::keys;
use super::slots::slot;
use crate::config;
use crate::instrument::InstrumentId;
use crate::metrics::Metrics;
use crate::session::WatchRegistry;
use liveness::Liveness;
use redis::cmd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use wanted::{Change, Wanted};

/// Instruments whose changes go into one batch. Its pipelines must fit into a command timeout.
const MAX_BATCH: usize = 2_000;

/// Members per command. Bounds how long one command keeps a server from the others.
const MAX_MEMBERS: usize = 1_000;

/// How many times `watchers.batch_interval` changes are gathered at most while they keep coming.
const LONGEST_GATHER: u32 = 32;

/// Renewal slices per interval. More make smaller slices and cost more round trips.
const N_SLICES: u32 = 60;

/// A command that nobody waits for any more is executed within this time after its server, or the network,
/// works again. Those that stood in the queue of a frozen process are executed at once when it goes on.
const SETTLING: Duration = Duration::from_secs(2);

/// Pauses after a batch that failed: the first, which doubles, and the longest; and the longest after a
/// refusal that only an operator can end.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE_FATAL: Duration = Duration::from_secs(10);

/// The watcher registry of this replica.
pub struct Watchers {
    wanted: Mutex<Wanted>,
    changed: Notify,
    /// Held by whoever writes.
    writing: tokio::sync::Mutex<()>,
    /// Held by `run`.
    running: tokio::sync::Mutex<()>,
    closing: CancellationToken,
    config: config::Watchers,
    replica: Arc<str>,
    commands: Arc<Commands>,
    metrics: Arc<Metrics>,
}

impl WatchRegistry for Watchers {
    fn watched(&self, user: &Arc<str>, id: InstrumentId) {
        let mut wanted = self.wanted();
        let first = !wanted.has_changes();
        wanted.watched(user, id);
        self.wake(wanted, first);
    }

    fn unwatched(&self, user: &Arc<str>, id: InstrumentId) {
        let mut wanted = self.wanted();
        let first = !wanted.has_changes();
        if !wanted.unwatched(user, id) {
            self.metrics.watchers.forgotten.increment(1);
        }
        self.wake(wanted, first);
    }
}

impl Watchers {
    /// Nobody watches anything. `replica` is this process's name among those that share the servers, and
    /// must not be used again after a restart. At most `max_leaving` removals wait to be written.
    pub fn new(
        config: &config::Watchers,
        replica: &str,
        max_leaving: usize,
        commands: Arc<Commands>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            wanted: Mutex::new(Wanted::new(max_leaving)),
            changed: Notify::new(),
            writing: tokio::sync::Mutex::default(),
            running: tokio::sync::Mutex::default(),
            closing: CancellationToken::new(),
            config: config.clone(),
            replica: replica.into(),
            commands,
            metrics,
        }
    }

    /// Brings Redis to what is wanted, until [`Watchers::close`].
    ///
    /// # Cancel safety
    /// What was being written counts as not written.
    pub async fn run(&self) {
        let _running = self.running.lock().await;
        let liveness = Liveness::new(&self.commands, &self.replica, self.config.renew_interval);
        let stop = &self.closing;
        tokio::join!(
            self.write_changes(stop),
            self.renew(stop),
            self.settle(stop),
            liveness.run(|| self.write_all_again(), &self.metrics.watchers, stop),
        );
    }

    /// Ends `run` and removes everything of this replica, until `deadline`. To be called when no session
    /// is left.
    pub async fn close(&self, deadline: Instant) {
        self.closing.cancel();
        let removed = timeout_at(deadline, async {
            // A write that has begun is ended first: two pipelines have no order.
            let _ended = self.running.lock().await;
            self.wanted().none_wanted();
            let mut pause = FIRST_PAUSE;
            while self.wanted().has_changes() {
                if self.write(|wanted| wanted.take_changes(MAX_BATCH)).await.is_err() {
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            let is_certain = self.wanted().is_certain();
            liveness::leave(&self.commands, &self.replica, is_certain).await;
        });
        if removed.await.is_err() {
            let n_left = self.wanted().n_pairs();
            tracing::warn!(watchers.left = n_left, "watchers could not be removed in time; they will expire");
        }
    }

    async fn write_changes(&self, stop: &CancellationToken) {
        let mut gather = self.config.batch_interval;
        let mut pause = FIRST_PAUSE;
        let mut failing = false;
        loop {
            let idle_since = Instant::now();
            let changed = async {
                while !self.wanted().has_changes() {
                    self.changed.notified().await;
                }
                // Changes that follow one batch within the time of the next are a storm.
                let is_storm = idle_since.elapsed() < gather;
                let longest = self.config.batch_interval * LONGEST_GATHER;
                gather = if is_storm { (gather * 2).min(longest) } else { self.config.batch_interval };
                sleep(gather).await;
            };
            if stop.run_until_cancelled(changed).await.is_none() {
                return;
            }
            match self.write(|wanted| wanted.take_changes(MAX_BATCH)).await {
                Ok(()) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!("watchers are written again");
                    }
                    pause = FIRST_PAUSE;
                }
                Err(failure) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = %failure, "watchers can't be written");
                    }
                    if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                        return;
                    }
                    let fatal = failure.kind.class() == Class::Fatal;
                    pause = (pause * 2).min(if fatal { LONGEST_PAUSE_FATAL } else { LONGEST_PAUSE });
                }
            }
        }
    }

    /// Writes the changes that `take` chooses, and notes those that failed.
    async fn write(&self, take: impl FnOnce(&mut Wanted) -> Vec<Change>) -> Result<(), Failure> {
        // One after the other: a removal and a renewal of one member in two pipelines have no order.
        let _writing = self.writing.lock().await;
        // What is taken but not written when this future is dropped would be lost otherwise.
        let mut taken = Taken { changes: take(&mut self.wanted()), wanted: &self.wanted };
        let commands: Vec<_> = taken.changes.iter().map(|change| self.commands_of(change)).collect();
        let lengths: Vec<_> = commands.iter().map(Vec::len).collect();
        let commands: Vec<_> = commands.into_iter().flatten().collect();
        let mut answers = self.commands.run(commands).await.into_iter();
        let changes = std::mem::take(&mut taken.changes);
        let mut first_failure = None;
        let mut wanted = self.wanted();
        for (change, n_answers) in changes.into_iter().zip(lengths) {
            let failures: Vec<_> = answers.by_ref().take(n_answers).filter_map(Answer::err).collect();
            let in_doubt = failures.iter().any(|failure| failure.kind.is_in_doubt());
            let failure = failures.into_iter().last();
            let counted = &self.metrics.watchers;
            (if failure.is_none() { &counted.written } else { &counted.failed }).increment(1);
            match failure {
                Some(failure) if failure.kind != Kind::WrongType => {
                    wanted.failed(&change, in_doubt);
                    first_failure.get_or_insert(failure);
                }
                // A key of another type is somebody else's. It is tried again with the next renewal.
                None | Some(_) => wanted.written(&change),
            }
        }
        self.metrics.watchers.members.set(wanted.n_pairs() as f64);
        first_failure.map_or(Ok(()), Err)
    }

    fn commands_of(&self, change: &Change) -> Vec<Routed> {
        let key = keys::watchers(change.id);
        let slot = slot(key.as_bytes());
        let mut commands = Vec::new();
        for (verb, users) in [("SADD", &change.add), ("SREM", &change.remove)] {
            for users in users.chunks(MAX_MEMBERS) {
                let mut command = cmd(verb);
                command.arg(&key);
                for user in users {
                    command.arg(format!("{user}@{}", self.replica));
                }
                commands.push(Routed { slot, command });
            }
        }
        if !change.add.is_empty() {
            let command = cmd("EXPIRE").arg(&key).arg(self.config.ttl.as_secs().max(1)).to_owned();
            commands.push(Routed { slot, command });
        }
        commands
    }

    async fn renew(&self, stop: &CancellationToken) {
        let period = (self.config.renew_interval / N_SLICES).max(Duration::from_millis(1));
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let take = |wanted: &mut Wanted| {
                let slice = wanted.take_renewal(wanted.n_instruments().div_ceil(N_SLICES as usize));
                self.metrics.watchers.renewed.increment(slice.len() as u64);
                slice
            };
            if self.wanted().n_instruments() > 0 && self.write(take).await.is_err() {
                // What failed is to be written by that, and `write_changes` goes on with it.
                self.changed.notify_one();
            }
        }
    }

    /// Has what was in doubt written once more.
    async fn settle(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(sleep(SETTLING)).await.is_some() {
            self.wanted().settle();
            if self.wanted().has_changes() {
                self.changed.notify_one();
            }
        }
    }

    fn write_all_again(&self) {
        self.wanted().all_dirty();
        self.changed.notify_one();
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first change wakes the task, which takes all that have come by then.
    fn wake(&self, wanted: MutexGuard<'_, Wanted>, first: bool) {
        let wake = first && wanted.has_changes();
        drop(wanted);
        if wake {
            self.changed.notify_one();
        }
    }
}

/// Changes that are being written. Dropped before their answers are known, they count as failed.
struct Taken<'a> {
    wanted: &'a Mutex<Wanted>,
    changes: Vec<Change>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.changes.is_empty() {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            self.changes.iter().for_each(|change| wanted.failed(change, true));
        }
    }
}
