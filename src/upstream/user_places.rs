//! The limit of sessions per user over all replicas, counted in Redis.
//!
//! Each user has a hash, `tickbridge:sessions:<user>`, with one field per replica: how many sessions it has there
//! and until when that counts. A script adds the others' up and grants as many places as are left, in one step.
//!
//! Invariants:
//! - Callers never wait: those that need the others' count are answered later, and one task asks for all of them
//!   in one pipeline per node. Nothing is asked per message.
//! - A replica writes how many sessions it has, never a difference, so that a command may be sent twice.
//! - What a replica wrote counts for a lease and is renewed three times in it. A dead one's sessions are
//!   forgotten with the lease, by the server's clock alone.
//! - Where Redis can't be asked, each replica keeps the limit by its own count. Nobody waits for longer than the
//!   one command that found that out.
//! - Users in memory are those who have sessions here, or ask for one.

mod counts;

use super::commands::failure::Failure;
use super::commands::{Answer, Commands, Routed};
use super::keys;
use super::slots::slot;
use crate::config::live::LiveLimits;
use crate::metrics::Metrics;
use crate::session::user_places::{Asked, LimitReached, UserPlaces, Verdict};
use counts::{Counts, Question};
use redis::{FromRedisValue, cmd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

/// How long questions are gathered. Somebody waits for the answer, so it is less than a round trip costs.
const GATHER: Duration = Duration::from_millis(2);

/// Users per batch. Its pipelines must fit into a command timeout.
const MAX_BATCH: usize = 500;

/// Renewals per lease: one may fail.
const RENEWALS: u32 = 3;

/// Slices of a renewal, so that it is no burst.
const N_SLICES: u32 = 20;

/// Pause after a batch that Redis didn't answer. Nobody waits for the next one: it only finds out when Redis is
/// back.
const PAUSE: Duration = Duration::from_millis(250);

/// Key: the user's hash. Arguments: the replica, its sessions, places asked for, the limit, the lease in ms.
/// Gives the places granted. A field whose time has come is nobody's any more.
const SCRIPT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local key, me, lease = KEYS[1], ARGV[1], tonumber(ARGV[5])
local held, others = tonumber(ARGV[2]), 0
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local n, till = string.match(all[i + 1], '^(%d+):(%d+)$')
  if all[i] == me or not n or tonumber(till) <= now then
    redis.call('HDEL', key, all[i])
  else
    others = others + tonumber(n)
  end
end
local granted = math.max(0, math.min(tonumber(ARGV[3]), tonumber(ARGV[4]) - others - held))
if held + granted > 0 then
  redis.call('HSET', key, me, string.format('%.0f:%.0f', held + granted, now + lease))
  if redis.call('PTTL', key) < lease then redis.call('PEXPIRE', key, lease) end
end
return granted";

/// The places of all users, as far as this replica has to do with them.
pub struct RedisUserPlaces {
    counts: Arc<Mutex<Counts>>,
    changed: Arc<Notify>,
    limits: Arc<LiveLimits>,
    lease: Duration,
    replica: Arc<str>,
    commands: Arc<Commands>,
    metrics: Arc<Metrics>,
}

impl UserPlaces for RedisUserPlaces {
    fn take(&self, user: &Arc<str>) -> Asked {
        let limit = self.limits.max_sessions_per_user();
        if limit == 0 {
            return Asked::uncounted();
        }
        let asked = lock(&self.counts).ask(user, limit);
        match &asked {
            counts::Asked::Full => {
                self.metrics.user_places.refused.increment(1);
                return Asked::Now(Err(LimitReached));
            }
            counts::Asked::Alone => self.metrics.user_places.unchecked.increment(1),
            counts::Asked::Later(_) => {}
        }
        self.changed.notify_one();
        match asked {
            counts::Asked::Later(verdict) => Asked::Later(verdict),
            _ => Asked::Now(Ok(Box::new(self.held(user)))),
        }
    }
}

impl RedisUserPlaces {
    /// Nobody has a session. `replica` is this process's name among those that share the servers, and must not
    /// be used again after a restart.
    pub fn new(
        limits: Arc<LiveLimits>,
        lease: Duration,
        replica: &str,
        commands: Arc<Commands>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (counts, changed) = Default::default();
        Self { counts, changed, limits, lease, replica: replica.into(), commands, metrics }
    }

    /// Asks and renews for ever.
    ///
    /// # Cancel safety
    /// Questions under way count as not asked.
    pub async fn run(&self) {
        tokio::join!(self.ask_all(), self.renew());
    }

    /// This replica's sessions count no longer, because they are about to go elsewhere: they must find their
    /// places free there, although they are here until the last moment.
    pub fn leave(&self) {
        lock(&self.counts).leave();
        self.changed.notify_one();
    }

    async fn ask_all(&self) {
        loop {
            while !lock(&self.counts).has_questions() {
                self.changed.notified().await;
            }
            sleep(GATHER).await;
            let Some(failure) = self.ask_once().await else { continue };
            if lock(&self.counts).alone(true) {
                let why =
                    "Redis can't be asked for sessions per user; the limit holds for each replica alone";
                tracing::warn!(error = %failure, "{why}");
            }
            sleep(PAUSE).await;
        }
    }

    /// Asks for one batch. Gives the failure if Redis answered nothing of it.
    async fn ask_once(&self) -> Option<Failure> {
        let questions = lock(&self.counts).questions(MAX_BATCH);
        let commands: Vec<_> = questions.iter().map(|question| self.command(question)).collect();
        let answers = self.commands.run(commands).await;
        let mut last_failure = None;
        let mut n_answered = 0;
        for (question, answer) in questions.into_iter().zip(answers) {
            match granted(answer) {
                Ok(n) => {
                    n_answered += 1;
                    self.answer(question, Some(n));
                }
                Err(failure) => {
                    last_failure = Some(failure);
                    self.answer(question, None);
                }
            }
        }
        if n_answered > 0 && lock(&self.counts).alone(false) {
            tracing::info!("sessions per user are counted over all replicas again");
        }
        last_failure.filter(|_| n_answered == 0)
    }

    /// Tells who waits, given how many places Redis granted.
    fn answer(&self, question: Question, granted: Option<usize>) {
        let limit = self.limits.max_sessions_per_user();
        let (n, waiting) = lock(&self.counts).answered(&question, granted, limit);
        let counted = &self.metrics.user_places;
        let good = if granted.is_some() { &counted.granted } else { &counted.unchecked };
        good.increment(n as u64);
        counted.refused.increment((waiting.len() - n) as u64);
        for (at, asker) in waiting.into_iter().enumerate() {
            let verdict: Verdict =
                if at < n { Ok(Box::new(self.held(&question.user))) } else { Err(LimitReached) };
            // Who has gone gives the place back by dropping it.
            let _ = asker.send(verdict);
        }
    }

    fn command(&self, question: &Question) -> Routed {
        let key = keys::user_sessions(&question.user);
        let mut command = cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg(&key).arg(&*self.replica).arg(question.n_held).arg(question.n_asked);
        // A limit that was turned off meanwhile leaves nobody outside.
        let limit = match self.limits.max_sessions_per_user() {
            0 => i64::MAX,
            limit => i64::try_from(limit).unwrap_or(i64::MAX),
        };
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        Routed { slot: slot(key.as_bytes()), command: command.arg(limit).arg(lease_ms).to_owned() }
    }

    async fn renew(&self) {
        let period = (self.lease / RENEWALS / N_SLICES).max(Duration::from_millis(1));
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if lock(&self.counts).renew_slice(N_SLICES as usize) {
                self.changed.notify_one();
            }
        }
    }

    fn held(&self, user: &Arc<str>) -> Held {
        let (counts, changed) = (Arc::clone(&self.counts), Arc::clone(&self.changed));
        Held { counts, changed, user: Arc::clone(user) }
    }
}

/// A session's place.
struct Held {
    counts: Arc<Mutex<Counts>>,
    changed: Arc<Notify>,
    user: Arc<str>,
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.counts).give_back(&self.user);
        self.changed.notify_one();
    }
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn granted(answer: Answer) -> Result<usize, Failure> {
    // Nothing else comes from the script.
    Ok(usize::from_redis_value(answer?).unwrap_or_default())
}
