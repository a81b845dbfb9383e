//! Reads the watched streams of one node.
//!
//! Outside a cluster one `XREAD` names all streams and waits at the server until something comes; after it the task
//! rests, so that a read brings what many streams have and not one entry. In a cluster a
//! command may not name keys of different slots, and of several waiting commands on a connection only the first is
//! looked at: there each slot has its own `XREAD`, all in one round trip, that doesn't wait; a stream is asked for
//! again soon after it brought something and ever later while it doesn't.
//!
//! Invariants:
//! - What is appended follows the position, proven by the entry there (`check`), whenever a hole is possible: at the
//!   first read over a connection, after a pause, and when a read brings many entries. A stream keeps at least its
//!   newest [`PROOF_ENTRIES`] (the contract), so a read that brings fewer can't have missed any.
//! - A connection that fails takes nothing with it but time: each stream goes on from its position.
//!
//! Not here: which streams there are (`reader`), how they get here (`orders`).

use super::check::{Check, check};
use super::orders::{GATHER, MAX_PAUSE, Orders, Reading};
use super::reader::Shared;
use super::{Seldom, answer, info, newest_before};
use crate::clock::Now;
use crate::entry::{Entry, EntryId};
use crate::protocol::stream::Encoded;
use crate::upstream::backoff::Backoff;
use crate::upstream::commands::Routed;
use crate::upstream::connection::redirect;
use crate::upstream::slots::{NodeAddr, SlotTable};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, ServerErrorKind, Value, cmd};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// A read that brings as many may have missed some. Part of the contract: producers keep at least so many.
const PROOF_ENTRIES: usize = 16;

/// Entries of one stream in one read: as many as fit [`ANSWER_ENTRIES`], within these bounds. Never fewer than need
/// a proof.
const READ_ENTRIES: [usize; 2] = [PROOF_ENTRIES, 64];

/// Entries of all streams in one answer, about. Bounds what it makes us hold.
const ANSWER_ENTRIES: usize = 16_384;

/// Streams in one command, and commands in one round trip.
const MAX_TOGETHER: usize = 2_048;

/// More streams than this rest longer, in proportion: each read costs the server a look at every one of them.
const GATHERED: u32 = 1_000;

/// What is due within this goes along.
const TOGETHER: Duration = Duration::from_millis(2);

/// A stream that wasn't read for this long may have been trimmed past what was read.
const DOUBT: Duration = Duration::from_secs(1);

/// A task without streams keeps its connection for this long.
const LINGER: Duration = Duration::from_secs(5);

/// Pauses between attempts to connect.
const CONNECT_PAUSES: Backoff = Backoff::new(Duration::from_millis(40), Duration::from_millis(500));

/// The task of one node.
pub(super) struct Node {
    addr: NodeAddr,
    shared: Arc<Shared>,
    orders: Arc<Orders>,
    streams: Vec<Reading>,
    table: Arc<SlotTable>,
    complaints: Seldom,
}

impl Node {
    pub(super) fn new(addr: NodeAddr, shared: Arc<Shared>, orders: Arc<Orders>) -> Self {
        let table = shared.topology.table();
        Self { addr, shared, orders, streams: Vec::new(), table, complaints: Seldom::default() }
    }

    /// Reads until there has been nothing to read for a while.
    pub(super) async fn run(mut self) {
        let mut connection: Option<MultiplexedConnection> = None;
        let mut pauses = CONNECT_PAUSES;
        loop {
            self.take_orders();
            if self.streams.is_empty() {
                if timeout(LINGER, self.orders.wake.notified()).await.is_err() && self.orders.may_end() {
                    return;
                }
                continue;
            }
            let read = match &mut connection {
                Some(open) => self.round(open).await,
                None => match self.shared.connector.open(&self.addr).await {
                    Ok(open) => {
                        connection = Some(open);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match read {
                Ok(()) => {
                    pauses.reset();
                    self.rest().await;
                }
                Err(error) => {
                    tracing::warn!(redis.node = %self.addr, %error, "can't read streams");
                    connection = None;
                    self.shared.metrics.reads_failed.increment(1);
                    for reading in &mut self.streams {
                        reading.vouched = false;
                        reading.stream.set_interrupted(true);
                    }
                    self.shared.topology.request_refresh();
                    sleep(pauses.pause()).await;
                }
            }
        }
    }

    /// Takes new streams, lets go of those that are over, and gives back those that belong to another node by now.
    fn take_orders(&mut self) {
        let mut given = self.orders.take();
        let table = self.shared.topology.table();
        // The table may have changed on their way here.
        let moved = !given.is_empty() || !Arc::ptr_eq(&table, &self.table);
        self.streams.append(&mut given);
        self.streams.retain(|reading| !reading.stream.is_over());
        if moved {
            self.table = table;
            let (mine, others) = std::mem::take(&mut self.streams)
                .into_iter()
                .partition(|reading| self.table.owner(reading.slot) == Some(&self.addr));
            self.streams = mine;
            let others: Vec<Reading> = others;
            self.shared.hub.give_back(others.into_iter().map(|reading| reading.stream));
        }
    }

    /// Waits until a stream is due or a new one comes.
    async fn rest(&self) {
        let Some(next) = self.streams.iter().map(|reading| reading.next).min() else { return };
        tokio::select! {
            () = sleep_until(next) => {}
            () = self.orders.wake.notified() => {}
        }
    }

    /// Reads once what is due.
    async fn round(&mut self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let now = Instant::now();
        for reading in &mut self.streams {
            reading.vouched &= now - reading.last_read < DOUBT;
        }
        let soon = now + TOGETHER;
        let unsure: Vec<usize> = (0..self.streams.len())
            .filter(|&at| !self.streams[at].vouched && self.streams[at].next <= soon)
            .collect();
        for chunk in unsure.chunks(MAX_TOGETHER) {
            self.prove(connection, chunk).await?;
        }
        let due: Vec<usize> = (0..self.streams.len())
            .filter(|&at| self.streams[at].vouched)
            .filter(|&at| self.shared.one_command || self.streams[at].next <= soon)
            .collect();
        let groups = self.groups(&due);
        for together in groups.chunks(MAX_TOGETHER) {
            let waits = (groups.len() == 1 && due.len() == self.streams.len()).then_some(self.shared.block);
            let commands = together.iter().map(|group| self.read_command(group, waits));
            let answers = send(connection, commands).await?;
            self.shared.metrics.reads.increment(1);
            let mut doubtful = Vec::new();
            for (group, answer) in together.iter().zip(answers) {
                self.take(group, answer, &mut doubtful).await;
            }
            if !doubtful.is_empty() {
                let places: Vec<usize> = doubtful.iter().map(|(at, _)| *at).collect();
                self.prove(connection, &places).await?;
                for (at, entries) in doubtful {
                    // What was reset or cut is read anew from where it is now.
                    if self.streams[at].vouched {
                        self.append(at, entries);
                    }
                }
            }
        }
        if self.shared.one_command {
            self.rest_together();
        }
        Ok(())
    }

    /// The next read is of all streams again; at once if this one left something behind.
    fn rest_together(&mut self) {
        let now = Instant::now();
        let n = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        let gather = (GATHER * n / GATHERED).clamp(GATHER, MAX_PAUSE);
        let next = if self.streams.iter().any(|reading| reading.next <= now) { now } else { now + gather };
        // One that failed waits longer.
        for reading in self.streams.iter_mut().filter(|reading| reading.vouched) {
            reading.next = next;
        }
    }

    /// The streams at `due`, by commands.
    fn groups(&self, due: &[usize]) -> Vec<Vec<usize>> {
        if self.shared.one_command {
            let (alone, together): (Vec<usize>, Vec<usize>) =
                due.iter().partition(|&&at| self.streams[at].alone);
            let together = together.chunks(MAX_TOGETHER).map(<[usize]>::to_vec);
            return together.chain(alone.into_iter().map(|at| vec![at])).collect();
        }
        let mut by_slot: HashMap<u16, Vec<usize>> = HashMap::new();
        for &at in due {
            by_slot.entry(self.streams[at].slot).or_default().push(at);
        }
        by_slot.into_values().collect()
    }

    fn read_command(&self, group: &[usize], waits: Option<Duration>) -> Cmd {
        let mut read = cmd("XREAD");
        read.arg("COUNT").arg((ANSWER_ENTRIES / group.len()).clamp(READ_ENTRIES[0], READ_ENTRIES[1]));
        if let Some(block) = waits {
            read.arg("BLOCK").arg(block.as_millis().max(1) as u64);
        }
        read.arg("STREAMS");
        for &at in group {
            read.arg(&self.streams[at].key);
        }
        for &at in group {
            read.arg(self.streams[at].stream.position().to_string());
        }
        read
    }

    /// Takes in what one command brought.
    async fn take(
        &mut self,
        group: &[usize],
        answer: RedisResult<Value>,
        doubtful: &mut Vec<(usize, Vec<Entry>)>,
    ) {
        let value = match answer {
            Ok(value) => value,
            Err(error) => match self.elsewhere(group, &error).await {
                Some(value) => value,
                None => {
                    for &at in group {
                        self.streams[at].alone |= group.len() > 1;
                        self.failed(at, &error);
                    }
                    return;
                }
            },
        };
        for &at in group {
            self.streams[at].alone = false;
        }
        let mut brought = answer::streams(value).unwrap_or_default().into_iter().peekable();
        for &at in group {
            // Redis answers in the order of the question.
            let key = self.streams[at].key.as_bytes();
            match brought.next_if(|(of, _)| of == key) {
                Some((_, entries)) if entries.len() >= PROOF_ENTRIES => doubtful.push((at, entries)),
                Some((_, entries)) => self.append(at, entries),
                None => {
                    self.streams[at].stream.set_interrupted(false);
                    self.streams[at].rest(false);
                }
            }
        }
    }

    fn append(&mut self, at: usize, entries: Vec<Entry>) {
        let now = Now::read();
        let newest = entries.last().map_or(0, |entry| entry.id.ms);
        let lag_ms = now.unix_ms().saturating_sub(i64::try_from(newest).unwrap_or(i64::MAX));
        let full = entries.len() >= READ_ENTRIES[0];
        let reading = &mut self.streams[at];
        let n_new = reading.stream.append(entries.iter().map(Encoded::new), now.mono);
        reading.rest(true);
        if full {
            reading.next = reading.last_read;
        }
        self.shared.metrics.entries_read.increment(n_new as u64);
        // An id that a producer chose needs not be a time.
        if (0..MOST_LAG_MS).contains(&lag_ms) {
            self.shared.metrics.source_lag.record(lag_ms as f64 / 1e3);
        }
    }

    fn failed(&mut self, at: usize, error: &RedisError) {
        if error.redirect_node().is_none() && self.complaints.due() {
            tracing::warn!(redis.node = %self.addr, %error, "Redis refuses to let streams be read");
        }
        let reading = &mut self.streams[at];
        reading.vouched = false;
        reading.stream.set_interrupted(true);
        reading.rest(false);
        self.shared.metrics.reads_failed.increment(1);
    }

    /// Follows a slot that is being moved, over the pool. Whoever has it for good may have lost what was read here, as
    /// after a failover that was forced, and has to prove that it didn't.
    async fn elsewhere(&self, group: &[usize], error: &RedisError) -> Option<Value> {
        let (slot, target) = redirect(error, &self.addr)?;
        if error.kind() == ServerErrorKind::Moved.into() {
            self.shared.topology.moved(slot, &target);
            return None;
        }
        let command = self.read_command(group, None);
        self.shared.commands.run(vec![Routed { slot, command }]).await.pop()?.ok()
    }

    /// Asks whether the streams at `places` still go on where they were read to, and notes what became of them.
    async fn prove(&mut self, connection: &mut MultiplexedConnection, places: &[usize]) -> RedisResult<()> {
        let position = |at: &usize| self.streams[*at].stream.position();
        let positions: Vec<EntryId> = places.iter().map(position).collect();
        let commands = places.iter().zip(&positions).flat_map(|(&at, &position)| {
            let key = &self.streams[at].key;
            [newest_before(key, position), info(key)]
        });
        let mut answers = send(connection, commands).await?.into_iter();
        for (&at, position) in places.iter().zip(positions) {
            let (Some(before), Some(known)) = (answers.next(), answers.next()) else { break };
            let known = match known {
                Err(error) if error.to_string().contains("no such key") => Ok(None),
                known => known.map(answer::info),
            };
            let before = before.map(|value| answer::entries(value).unwrap_or_default().pop());
            let (before, known) = match (before, known) {
                (Ok(before), Ok(known)) => (before, known),
                (Err(error), _) | (_, Err(error)) => {
                    if let Some((slot, target)) = redirect(&error, &self.addr) {
                        self.shared.topology.moved(slot, &target);
                    }
                    self.failed(at, &error);
                    continue;
                }
            };
            let reading = &mut self.streams[at];
            // New entries may have been put between; the streams' own task is this one.
            (reading.vouched, reading.last_read) = (true, Instant::now());
            match check(position, before.map(|entry| entry.id), known.as_ref()) {
                Check::Whole => continue,
                Check::Gap(newest) => reading.stream.reset(newest, Now::read().mono),
                Check::Cut(kept) => {
                    let n = reading.stream.cut(kept);
                    tracing::warn!(stream.entries = n, "Redis lost entries of a stream that were delivered");
                }
            }
            // What was read after the old position doesn't follow the new one.
            (reading.vouched, reading.next) = (false, reading.last_read);
        }
        Ok(())
    }
}

/// An id that is older isn't taken for a time.
const MOST_LAG_MS: i64 = 3_600_000;

async fn send(
    connection: &mut MultiplexedConnection,
    commands: impl Iterator<Item = Cmd>,
) -> RedisResult<Vec<RedisResult<Value>>> {
    let mut pipeline = Pipeline::new();
    pipeline.ignore_errors();
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline.query_async(connection).await
}
