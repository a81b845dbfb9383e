//! The life of one session: writes what follows its cursor, as fast as its client takes it.
//!
//! Invariants:
//! - The cursor moves with what is put into the buffer, and the buffer is filled only when it is empty: a session
//!   holds one write's bytes, and one page while it reads history.
//! - What a client gets between two places is everything, or a message says what is not.
//! - A write that makes no progress for the grace ends the session; its client resumes where it stopped.
//!
//! Not here: reading a client's frames (`inbound`), judging pages of history (`history`), the wire (`output`).

mod history;
mod inbound;

use super::Page;
use super::hub::{Cursor, Next, Watch};
use super::output::Wire;
use super::sessions::{Opening, PAGE_ENTRIES, Shared};
use crate::clock::Now;
use crate::entry::EntryId;
use crate::metrics::streams::Missing;
use crate::protocol::close::CloseReason;
use crate::protocol::stream::Encoded;
use crate::protocol::stream::{self, Silent};
use crate::session::Principal;
use crate::session::linger::{LINGER, linger};
use crate::session::standing::{Due, Standing};
use bytes::Bytes;
use history::Verdict;
use inbound::Inbound;
use std::borrow::Borrow;
use std::io::{self, Write};
use std::net::Shutdown;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Bytes that are put together for one write. Two of the kernel's default send buffers.
const WRITE_BYTES: usize = 32 * 1024;

/// A buffer larger than this isn't kept while the session waits.
const KEPT_BYTES: usize = 4 * 1024;

/// Control bytes (answers to pings) beyond which a client is no longer read from.
const MAX_UNSENT: usize = WRITE_BYTES + 16 * 1024;

/// A page with more bytes than this is followed by a smaller one.
const LARGE_PAGE: usize = 128 * 1024;

/// Pause before history is read again after the source could not be asked.
const READ_PAUSE: Duration = Duration::from_millis(200);

/// Timers are looked at this often: a fraction of the shortest of them, within these bounds.
const TICK: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(2_500)];

/// See the module.
pub(super) struct Session<'a> {
    shared: &'a Shared,
    stream: TcpStream,
    wire: Wire,
    inbound: Inbound,
    standing: Standing,
    /// Written to the kernel up to `written`.
    out: Vec<u8>,
    written: usize,
    /// Since when the kernel takes nothing, on the session's clock.
    blocked_since: Option<Duration>,
    /// Stands still while the process does, so that a frozen process times nobody out.
    clock: Duration,
    last_tick: Duration,
    tick: Duration,
    /// When its turn to connect again is.
    turn: Option<Duration>,
    told_stalled: bool,
    /// Everything that there is was put into the buffer.
    caught_up: bool,
    /// The client has closed, and the answer to that is in the buffer.
    closed: bool,
    /// The end was put into the buffer.
    finished: bool,
    page_entries: usize,
    /// How many entries the stream had had up to the cursor, if that is known.
    index: Option<u64>,
    exists: bool,
}

impl<'a> Session<'a> {
    /// A session that begins with `head`.
    pub(super) fn new(
        shared: &'a Shared,
        stream: TcpStream,
        wire: Wire,
        head: Vec<u8>,
        read_ahead: Bytes,
        principal: Option<Principal>,
        now: Now,
    ) -> Self {
        let spread: f64 = rand::random();
        let is_ws = wire == Wire::Ws;
        let timers = &shared.timers;
        let shortest = [
            timers.heartbeat_interval,
            timers.slow_consumer_grace,
            timers.silence,
            shared.producer_timeout,
            shared.abandon_timeout,
        ];
        let tick = shortest.into_iter().min().unwrap_or_default() / 4;
        let mut out = head;
        if !is_ws {
            // Jitter, so that browsers that lost their connection together don't return together.
            let retry_ms = 1_000 + (spread * 2_000.0) as u64;
            wire.push(&mut out, |out| {
                let _ = write!(out, "retry: {retry_ms}\n\n: open {}\n\n", now.unix_ms());
            });
        }
        Self {
            shared,
            stream,
            wire,
            inbound: Inbound::new(is_ws, read_ahead.to_vec(), shared.max_message_bytes),
            standing: Standing::new(principal, is_ws, timers, Duration::ZERO, spread),
            out,
            written: 0,
            blocked_since: None,
            clock: Duration::ZERO,
            last_tick: now.mono,
            tick: tick.clamp(TICK[0], TICK[1]),
            turn: None,
            told_stalled: false,
            caught_up: false,
            closed: false,
            finished: false,
            page_entries: PAGE_ENTRIES,
            index: None,
            exists: false,
        }
    }

    /// Lives until it ends, and says why.
    pub(super) async fn run(mut self, opening: Result<Box<Opening>, CloseReason>) -> CloseReason {
        let reason = match opening {
            Ok(opening) => self.serve(*opening).await,
            Err(reason) => reason,
        };
        self.say_goodbye(reason).await;
        reason
    }

    async fn serve(&mut self, opening: Opening) -> CloseReason {
        let shared = self.shared;
        let Opening { id, at, newest, exists, page, from_now } = opening;
        let watch = shared.hub.join(&id, newest, Now::read().mono);
        let mut cursor = watch.cursor(at);
        self.exists = exists;
        if let Some(page) = page {
            self.take_page(&mut cursor, page);
        }
        if from_now {
            self.say(Some(at), "begin", &stream::begin(at));
        }
        let mut drain = shared.drain.subscribe();
        let mut tick = pin!(sleep(self.tick));
        loop {
            let mut changed = pin!(watch.changed());
            // From here on nothing that changes is missed.
            changed.as_mut().enable();
            if let Some(reason) = self.look(&watch) {
                return reason;
            }
            if let Some(turn) = self.turn {
                let wait = turn.saturating_sub(self.last_tick).min(self.tick);
                tick.as_mut().reset(Instant::now() + wait);
            }
            let mut more = self.inbound.has_ahead();
            if self.is_flushed() && !self.finished {
                more |= self.fill(&watch, &mut cursor).await;
            }
            if self.flush().is_err() {
                return CloseReason::Gone;
            }
            if self.finished && self.is_flushed() {
                return CloseReason::Normal;
            }
            if more && self.is_flushed() {
                // Others get their turn, and a client that closes is heard.
                tokio::task::yield_now().await;
                if shared.end.is_cancelled() {
                    return CloseReason::ServiceRestart;
                }
                if let Some(reason) = self.hear() {
                    return reason;
                }
                continue;
            }
            let blocked = !self.is_flushed();
            tokio::select! {
                biased;
                () = shared.end.cancelled() => return CloseReason::ServiceRestart,
                read = self.stream.readable(), if self.out.len() < MAX_UNSENT => {
                    if read.is_err() {
                        return CloseReason::Gone;
                    }
                    if let Some(reason) = self.hear() {
                        return reason;
                    }
                }
                write = self.stream.writable(), if blocked => {
                    if write.is_err() {
                        return CloseReason::Gone;
                    }
                }
                () = changed, if !blocked => {}
                Ok(()) = drain.changed() => {}
                () = &mut tick => tick.as_mut().reset(Instant::now() + self.tick),
            }
        }
    }

    /// Looks at timers and turns.
    fn look(&mut self, watch: &Watch) -> Option<CloseReason> {
        let now = Now::read();
        self.clock += now.mono.saturating_sub(self.last_tick).min(self.tick * 2);
        self.last_tick = now.mono;
        if self.turn.is_none()
            && let Some(drain) = self.shared.drain.borrow().as_ref()
        {
            let turn = drain.turn();
            self.turn = Some(turn);
            let after_ms = turn.saturating_sub(now.mono).as_millis() as u64;
            self.wire.push(&mut self.out, |out| self.wire.reconnect(out, after_ms));
        }
        if self.turn.is_some_and(|turn| turn <= now.mono) {
            return Some(CloseReason::ServiceRestart);
        }
        let waited = self.blocked_since.map_or(Duration::ZERO, |since| self.clock.saturating_sub(since));
        match self.standing.sweep(&self.shared.timers, self.clock, now.unix_secs(), waited) {
            Due::Close(reason) => return Some(reason),
            // A client that doesn't read has enough to read.
            Due::Heartbeat if self.is_flushed() => {
                self.wire.push(&mut self.out, |out| self.wire.heartbeat(out, now.unix_ms()));
            }
            Due::Heartbeat | Due::Nothing => {}
        }
        self.look_for_silence(watch, now)
    }

    fn look_for_silence(&mut self, watch: &Watch, now: Now) -> Option<CloseReason> {
        let (since, readable) = watch.last_entry();
        let silence = now.mono.saturating_sub(since);
        if silence < self.shared.producer_timeout || !self.caught_up || self.finished {
            return None;
        }
        if readable && !self.exists {
            return Some(CloseReason::UnknownStream);
        }
        if readable && silence >= self.shared.abandon_timeout {
            return Some(CloseReason::ProducerTimeout);
        }
        if !self.told_stalled {
            self.told_stalled = true;
            self.shared.hub.metrics().stalled.increment(1);
            let silent = if readable { Silent::Producer } else { Silent::Redis };
            let since_ms = now.unix_ms() - silence.as_millis() as i64;
            let json = stream::stalled(silent, since_ms);
            self.say(None, "status", &json);
        }
        None
    }

    fn is_flushed(&self) -> bool {
        self.written == self.out.len()
    }

    /// Puts what follows the cursor into the buffer. Gives whether there may be more.
    async fn fill(&mut self, watch: &Watch, cursor: &mut Cursor) -> bool {
        let next = watch.next(cursor, WRITE_BYTES);
        self.caught_up = matches!(next, Next::Nothing);
        match next {
            Next::Nothing => false,
            Next::Entries(entries) => {
                self.push_entries(cursor, &entries);
                true
            }
            Next::Lost { through, missing } => {
                self.lost(cursor.at, through, missing);
                true
            }
            Next::History => {
                match self.read_page(watch, cursor.at).await {
                    Some(page) => self.take_page(cursor, page),
                    None => sleep(READ_PAUSE).await,
                }
                true
            }
        }
    }

    async fn read_page(&self, watch: &Watch, after: EntryId) -> Option<Page> {
        let _turn = self.shared.page_reads.acquire().await.ok()?;
        let metrics = self.shared.hub.metrics();
        metrics.pages.increment(1);
        let page = self.shared.source.page(watch.id(), after, self.page_entries).await;
        page.inspect_err(|_| metrics.reads_failed.increment(1)).ok()
    }

    /// Puts a page into the buffer, and before it what is missing.
    fn take_page(&mut self, cursor: &mut Cursor, page: Page) {
        if cursor.at == EntryId::START {
            self.index = Some(0);
        }
        match history::judge(cursor.at, &page, self.index) {
            Verdict::Whole => {}
            Verdict::Gap { before, go_on, missing } => {
                self.shared.hub.metrics().missing(Missing::Trimmed, missing.unwrap_or(0));
                let json = stream::gap(cursor.at, before, go_on, missing);
                self.say(before.is_none().then_some(go_on), "gap", &json);
                cursor.at = go_on;
                self.index = self.index.zip(missing).map(|(index, missing)| index + missing);
            }
            Verdict::Lost { kept } => {
                let through = std::mem::replace(&mut cursor.at, kept);
                self.lost(kept, through, None);
            }
        }
        self.exists |= page.info.is_some();
        let entries: Vec<Encoded> = page.entries.iter().map(Encoded::new).collect();
        let size: usize = entries.iter().map(Encoded::size).sum();
        self.page_entries = match size {
            LARGE_PAGE.. => (self.page_entries / 4).max(1),
            _ => (self.page_entries * 2).min(PAGE_ENTRIES),
        };
        self.push_entries(cursor, &entries);
        self.index = history::index(&page, cursor.at).or(self.index);
    }

    fn push_entries(&mut self, cursor: &mut Cursor, entries: &[impl Borrow<Encoded>]) {
        if entries.is_empty() {
            return;
        }
        self.exists = true;
        if std::mem::take(&mut self.told_stalled) {
            self.say(None, "status", stream::live());
        }
        let wire = self.wire;
        let (mut n, mut n_large) = (0, 0);
        wire.push(&mut self.out, |out| {
            for entry in entries {
                let entry: &Encoded = entry.borrow();
                wire.entry(out, entry);
                cursor.at = entry.id;
                n += 1;
                n_large += u64::from(entry.too_large);
                if entry.is_end {
                    self.finished = true;
                    break;
                }
            }
        });
        self.index = self.index.map(|index| index + n);
        let metrics = self.shared.hub.metrics();
        metrics.entries_delivered.increment(n - n_large);
        for _ in 0..n_large {
            metrics.missing(Missing::TooLarge, 1);
        }
    }

    fn lost(&mut self, kept: EntryId, through: EntryId, missing: Option<u64>) {
        self.shared.hub.metrics().missing(Missing::Failover, missing.unwrap_or(0));
        self.index = None;
        let json = stream::lost(kept, through, missing);
        self.say(Some(kept), "lost", &json);
    }

    fn say(&mut self, id: Option<EntryId>, name: &str, json: &str) {
        let wire = self.wire;
        wire.push(&mut self.out, |out| wire.message(out, id, name, json));
    }

    /// Writes as much as the kernel takes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.is_flushed() {
            match self.stream.try_write(&self.out[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.written += n;
                    if self.blocked_since.take().is_some() {
                        // There is room again because the client has taken something: it lives, though it may not
                        // have come to the pings yet.
                        self.standing.heard();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked_since.get_or_insert(self.clock);
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.written = 0;
        self.out.clear();
        self.out.shrink_to(KEPT_BYTES);
        Ok(())
    }

    /// Reads what the client says.
    fn hear(&mut self) -> Option<CloseReason> {
        let heard = self.inbound.read(&self.stream, &mut self.out);
        self.closed |= heard.closed;
        if heard.anything {
            self.standing.heard();
        }
        for _ in 0..heard.n_messages {
            if !self.standing.may_send(&self.shared.timers, self.clock) {
                return Some(CloseReason::RateLimited);
            }
        }
        heard.end
    }

    async fn say_goodbye(&mut self, reason: CloseReason) {
        if matches!(reason, CloseReason::Gone) {
            return;
        }
        // A close behind a torn frame would be a part of it. The client has what it has, and resumes there.
        if !self.closed && (self.written == 0 || self.is_flushed()) {
            self.wire.close(&mut self.out, reason);
        }
        let grace = self.shared.timers.slow_consumer_grace.min(LINGER);
        let _ = timeout(grace, async {
            while self.flush().is_ok() && !self.is_flushed() && self.stream.writable().await.is_ok() {}
        })
        .await;
        let _ = socket2::SockRef::from(&self.stream).shutdown(Shutdown::Write);
        linger(&self.stream).await;
    }
}
