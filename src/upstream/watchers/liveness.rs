//! Which replicas are alive, and the removal of what dead ones have left behind.
//!
//! Each replica has a heartbeat key, `tickbridge:{replica}:<id>`, whose time to live is shorter than a
//! renewal interval, and is a member of the set `tickbridge:{replica}`. One that is a member and has no
//! heartbeat is dead; a survivor claims it, goes over all watcher keys, and takes its members out.
//!
//! Invariants:
//! - All these keys lie in one slot, so that they are lost and found together.
//! - Nobody is judged by somebody whose own heartbeat was not whole for as long as a heartbeat lives:
//!   after an outage of Redis every replica gets the time to show that it lives.
//! - A replica that finds its own heartbeat gone writes all its watchers again.
//!
//! Without the right to use these keys nothing is judged, and leftovers go with the TTL of their keys.

use super::super::commands::failure::{Failure, Kind};
use super::super::commands::{Answer, Commands, Routed};
use super::super::slots::{NodeAddr, slot};
use crate::metrics::watchers::WatcherMetrics;
use redis::{Cmd, FromRedisValue, Value, cmd};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

/// The set of replicas; the beginning of the heartbeats' names, so that all share its hash tag.
const REPLICAS: &str = "tickbridge:{replica}";

/// Every watcher key.
const WATCHER_KEYS: &str = "market:current-watcher:*";

/// Keys looked at, and members looked at, per answer; and the pause in between. Bounds how long a server
/// is kept from others, and what a survivor costs them.
const PAGE: usize = 500;
const PAGE_PAUSE: Duration = Duration::from_millis(5);

/// Members of dead replicas removed per command.
const MAX_REMOVED: usize = 500;

/// The heartbeat of one replica.
pub struct Liveness<'a> {
    commands: &'a Commands,
    replica: &'a str,
    beat: Duration,
    life: Duration,
}

impl<'a> Liveness<'a> {
    /// Beats a few times per `renew_interval`; a dead replica is found out within one.
    pub fn new(commands: &'a Commands, replica: &'a str, renew_interval: Duration) -> Self {
        let beat = (renew_interval / 6).max(Duration::from_millis(1));
        Self { commands, replica, beat, life: renew_interval * 3 / 4 }
    }

    /// Beats, and cleans up after the dead, until `stop`. Calls `lost` when others may have taken this
    /// replica for dead.
    pub async fn run(&self, lost: impl Fn(), metrics: &WatcherMetrics, stop: &CancellationToken) {
        let mut ticks = interval(self.beat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Since when the heartbeat is whole.
        let mut whole_since: Option<Instant> = None;
        let mut failing = false;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let now = Instant::now();
            match self.beat().await {
                Ok(was_alive) => {
                    failing = false;
                    if !was_alive && whole_since.is_some() {
                        tracing::warn!(
                            "this replica's heartbeat had expired; its watchers are written again"
                        );
                        lost();
                    }
                    whole_since = whole_since.filter(|_| was_alive).or(Some(now));
                    if whole_since.is_some_and(|since| now - since >= self.life) {
                        stop.run_until_cancelled(self.clean_up(metrics)).await;
                    }
                }
                Err(failure) => {
                    // Kept: the next beat shows whether the heartbeat outlived the failure.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = %failure, "this replica can't show that it lives");
                    }
                }
            }
        }
    }

    /// Renews the heartbeat. Gives whether it was there still.
    async fn beat(&self) -> Result<bool, Failure> {
        let mut beat = cmd("SET");
        beat.arg(heartbeat(self.replica)).arg(1).arg("PX").arg(millis(self.life)).arg("GET");
        let join = cmd("SADD").arg(REPLICAS).arg(self.replica).to_owned();
        let mut answers = self.run_all(vec![beat, join]).await.into_iter();
        let before = answers.next().expect("an answer per command")?;
        answers.next().expect("an answer per command")?;
        Ok(before != Value::Nil)
    }

    /// Finds dead replicas and takes out what they left.
    async fn clean_up(&self, metrics: &WatcherMetrics) {
        let Ok(dead) = self.dead().await else { return };
        for replica in dead {
            // One survivor is enough; if it dies over it, the claim expires and another goes on.
            let life_ms = millis(self.life * 4);
            let name = format!("{REPLICAS}:claim:{replica}");
            let claim = cmd("SET").arg(&name).arg(self.replica).arg("NX").arg("PX").arg(life_ms).to_owned();
            if !matches!(self.run_all(vec![claim]).await.pop(), Some(Ok(Value::Okay))) {
                continue;
            }
            let mut done = vec![cmd("DEL").arg(&name).to_owned()];
            match remove_members(self.commands, &replica).await {
                Ok(n_removed) => {
                    tracing::info!(
                        replica.id = replica,
                        watchers.removed = n_removed,
                        "a replica died; its watchers are removed"
                    );
                    metrics.dead_replicas.increment(1);
                    metrics.leftovers.increment(n_removed);
                    done.push(cmd("SREM").arg(REPLICAS).arg(&replica).to_owned());
                }
                Err(error) => {
                    let why = "a dead replica's watchers can't be removed yet";
                    tracing::warn!(replica.id = replica, %error, "{why}");
                }
            }
            self.run_all(done).await;
        }
    }

    /// Replicas without a heartbeat.
    async fn dead(&self) -> Result<Vec<String>, Failure> {
        let members = self.run_all(vec![cmd("SMEMBERS").arg(REPLICAS).to_owned()]).await.remove(0)?;
        let replicas = Vec::<String>::from_redis_value(members).unwrap_or_default();
        let others: Vec<_> = replicas.into_iter().filter(|replica| replica != self.replica).collect();
        let ask = others.iter().map(|replica| cmd("EXISTS").arg(heartbeat(replica)).to_owned());
        let answers = self.run_all(ask.collect()).await;
        let dead = others.into_iter().zip(answers).filter(|(_, alive)| *alive == Ok(Value::Int(0)));
        Ok(dead.map(|(replica, _)| replica).collect())
    }

    async fn run_all(&self, commands: Vec<Cmd>) -> Vec<Answer> {
        run_all(self.commands, commands).await
    }
}

/// Says that `replica` is no more, and if `nothing_left` that nobody needs to look for its members.
pub async fn leave(commands: &Commands, replica: &str, nothing_left: bool) {
    let mut leave = vec![cmd("DEL").arg(heartbeat(replica)).to_owned()];
    if nothing_left {
        leave.push(cmd("SREM").arg(REPLICAS).arg(replica).to_owned());
    }
    // Where this fails, a survivor looks for leftovers and finds none.
    run_all(commands, leave).await;
}

fn heartbeat(replica: &str) -> String {
    format!("{REPLICAS}:{replica}")
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Runs commands on the keys of this module.
async fn run_all(commands: &Commands, all: Vec<Cmd>) -> Vec<Answer> {
    let slot = slot(REPLICAS.as_bytes());
    let routed: Vec<_> = all.into_iter().map(|command| Routed { slot, command }).collect();
    commands.run(routed).await
}

/// Takes the members of `replica` out of every watcher key, and says how many those were.
async fn remove_members(commands: &Commands, replica: &str) -> Result<u64, Failure> {
    let mut n_removed = 0;
    for node in commands.topology().all_primaries() {
        let mut cursor = START.to_owned();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(WATCHER_KEYS).arg("COUNT").arg(PAGE);
            let page = page(commands.run_on(&node, vec![scan]).await.remove(0)?, &node)?;
            n_removed += remove_from(commands, page.items, replica).await?;
            cursor = page.cursor;
            if cursor == START {
                break;
            }
            sleep(PAGE_PAUSE).await;
        }
    }
    Ok(n_removed)
}

/// The cursor with which a scan begins and ends.
const START: &str = "0";

struct Page {
    cursor: String,
    items: Vec<String>,
}

fn page(answer: Value, node: &NodeAddr) -> Result<Page, Failure> {
    match <(String, Vec<String>)>::from_redis_value(answer) {
        Ok((cursor, items)) => Ok(Page { cursor, items }),
        Err(error) => Err(Failure::new(Kind::Other, node, error.to_string())),
    }
}

/// Takes the members of `replica` out of `keys`.
async fn remove_from(commands: &Commands, keys: Vec<String>, replica: &str) -> Result<u64, Failure> {
    let end = format!("@{replica}");
    let mut n_removed = 0;
    let mut open: Vec<_> = keys.into_iter().map(|key| (key, START.to_owned())).collect();
    while !open.is_empty() {
        let routed =
            |key: &str, command: &Cmd| Routed { slot: slot(key.as_bytes()), command: command.clone() };
        let scans = open.iter().map(|(key, cursor)| {
            let pattern = format!("*{end}");
            routed(key, cmd("SSCAN").arg(key).arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(PAGE))
        });
        let scans: Vec<_> = scans.collect();
        let mut removals = Vec::new();
        let mut next = Vec::new();
        for ((key, _), answer) in open.into_iter().zip(commands.run(scans).await) {
            let answer = match answer {
                Err(failure) if failure.kind == Kind::WrongType => continue,
                answer => answer?,
            };
            let (cursor, members) = <(String, Vec<String>)>::from_redis_value(answer).unwrap_or_default();
            let left: Vec<_> = members.into_iter().filter(|member| member.ends_with(&end)).collect();
            for members in left.chunks(MAX_REMOVED) {
                removals.push(routed(&key, cmd("SREM").arg(&key).arg(members)));
            }
            if cursor != START && !cursor.is_empty() {
                next.push((key, cursor));
            }
        }
        for answer in commands.run(removals).await {
            n_removed += u64::from_redis_value(answer?).unwrap_or_default();
        }
        open = next;
    }
    Ok(n_removed)
}
