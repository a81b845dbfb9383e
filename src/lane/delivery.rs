//! What a lane does with quotes, requests and time: the state of one delivery thread.
//!
//! Invariants:
//! - Everything here belongs to one thread; there is no lock and no atomic on the way of a delivery.
//! - A session joins a topic before its snapshot is looked up.
//! - After the acknowledgement of an unsubscribe no event of the topic follows.
//!
//! What clients ask is in `requests`, what the fan-out brings in `quotes`, writing in `flush`, timers and books
//! in `time`. Not here: the loop and the tasks (`lane::run`), reading frames (`lane::reader`).

mod flush;
mod quotes;
mod requests;
mod time;

use super::books::{Books, DropReason};
use super::index::Index;
use super::outbox::{Mark, Outbox};
use super::pace::{Pace, Turns};
use super::session::{Encoder, Pipe, Session, SseEncoder, Undo};
use crate::catch_up::CatchUp;
use crate::clock::Now;
use crate::config::live::LiveLimits;
use crate::fanout::{Fanout, LaneId};
use crate::protocol::close::CloseReason;
use crate::protocol::cursor::Cursor;
use crate::session::standing::{Standing, Timers};
use crate::session::user_places::UserPlaces;
use crate::session::{Authenticator, Principal, Transport, WatchRegistry};
use slab::Slab;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A write carries at most about this much; more would only be copied to wait in a full kernel buffer.
const GATHER_BYTES: usize = 32 * 1024;

/// What every lane of a gateway shares.
pub struct Shared {
    /// Where quotes come from.
    pub fanout: Arc<Fanout>,
    /// Reads stored quotes.
    pub catch_up: Arc<CatchUp>,
    /// Judges tokens.
    pub authenticator: Arc<dyn Authenticator>,
    /// Learns who watches what, if anybody wants to know.
    pub watchers: Option<Arc<dyn WatchRegistry>>,
    /// Timers of sessions.
    pub timers: Timers,
    /// Whether sessions without a token may subscribe.
    pub anonymous: bool,
    /// Subscriptions per session.
    pub limits: Arc<LiveLimits>,
    /// Sessions per user, if anybody counts them.
    pub user_places: Option<Arc<dyn UserPlaces>>,
    /// Size of a client's message in bytes.
    pub max_message_bytes: usize,
    /// How long a woken lane gathers before it writes.
    pub flush_interval: Duration,
}

/// A session as an operator sees it. Nothing personal but the user's id.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// Its lane.
    pub lane: LaneId,
    /// Its place in the lane.
    pub place: usize,
    /// 0 is WebSocket, 1 is SSE, as in [`Books::sessions`].
    pub transport: usize,
    /// Who it acts for; `None` is a guest, or not authenticated yet.
    pub user_id: Option<Arc<str>>,
    /// Topics it subscribes to.
    pub n_subscriptions: usize,
    /// Quotes that are due to it.
    pub n_pending: usize,
    /// Age of the oldest of them.
    pub backlog_age: Duration,
    /// Its socket takes no more at the moment.
    pub blocked: bool,
}

/// Names a session as long as it lives; its place may be taken by another afterwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    at: u32,
    generation: u32,
}

/// See the module.
pub struct Delivery<P> {
    lane: LaneId,
    shared: Arc<Shared>,
    sessions: Slab<Session<P>>,
    next_generation: u32,
    index: Index,
    ready: VecDeque<Key>,
    books: Books,
    /// The sweep's clock; see `session::sweep`.
    clock: Duration,
    clock_read: Duration,
    /// Subscriptions whose quote waits under a rate limit.
    turns: Turns,
    scratch: Vec<u8>,
    marks: Vec<Mark>,
    undo: Undo,
    /// Sessions that were told to connect again, with their turns on the monotonic clock.
    drain: VecDeque<(Duration, Key)>,
    draining: bool,
}

impl<P: Pipe> Delivery<P> {
    /// An empty lane.
    pub fn new(lane: LaneId, shared: Arc<Shared>, now: Now) -> Self {
        Self {
            lane,
            shared,
            sessions: Slab::new(),
            next_generation: 0,
            index: Index::default(),
            ready: VecDeque::new(),
            books: Books::default(),
            clock: Duration::ZERO,
            clock_read: now.mono,
            turns: Turns::default(),
            scratch: Vec::with_capacity(2 * GATHER_BYTES),
            marks: Vec::new(),
            undo: Undo::new(),
            drain: VecDeque::new(),
            draining: false,
        }
    }

    /// The session, if it still lives.
    pub fn session_mut(&mut self, key: Key) -> Option<&mut Session<P>> {
        self.sessions.get_mut(key.at as usize).filter(|s| s.generation == key.generation)
    }

    fn clock_ms(&self) -> u32 {
        // Only differences are used, so wrapping after 49 days is harmless.
        self.clock.as_millis() as u32
    }

    // Sessions come and go.

    /// Takes a session in. What its request asked for is done at once.
    pub fn admit(
        &mut self,
        pipe: P,
        head: &[u8],
        transport: Transport,
        admission: Admitted,
        now: Now,
    ) -> Key {
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let answers = matches!(transport, Transport::Ws);
        let spread = f64::from(generation.wrapping_mul(0x9e37_79b9)) / f64::from(u32::MAX);
        let Admitted { principal, permit } = admission;
        let standing = Standing::new(principal, answers, &self.shared.timers, self.clock, spread);
        let mut outbox = Outbox::default();
        outbox.push_control(head);
        let (encoder, request) = match transport {
            Transport::Ws => (Encoder::Ws, None),
            Transport::Sse { mut request, last_event_id, chunked, max_rate_hz } => {
                // A subscription's place is its place in the cursor.
                request.topics.sort();
                let granted = request.topics.iter().filter(|topic| standing.may_see(**topic));
                let instruments: Vec<_> =
                    granted.take(self.shared.limits.max_topics()).map(|topic| topic.instrument()).collect();
                let base_ms = now.unix_ms();
                let cursor = last_event_id
                    .and_then(|id| Cursor::resume(&id, &instruments, base_ms))
                    .unwrap_or_else(|| Cursor::new(&instruments, base_ms));
                let encoder = SseEncoder { chunked, cursor };
                // Jitter, so that browsers that lost their connection together don't return together.
                let retry_ms = 1_000 + (spread * 2_000.0) as u64;
                // The gateway's time lets a client compare the clocks, as `pong` does on the WebSocket.
                let opening = format!("retry: {retry_ms}\n\n: open {}\n\n", now.unix_ms());
                encoder.push_chunk(outbox.control(), |out| out.extend_from_slice(opening.as_bytes()));
                (Encoder::Sse(Box::new(encoder)), Some((request, Pace::new(max_rate_hz))))
            }
        };
        let session = Session {
            generation,
            pipe,
            encoder,
            standing,
            outbox,
            subs: Vec::new(),
            paces: Vec::new(),
            blocked: false,
            scheduled: false,
            waker: None,
            permit,
            pending: None,
        };
        let transport = session.transport();
        self.books.opened[transport] += 1;
        self.books.sessions[transport] += 1;
        let at = u32::try_from(self.sessions.insert(session)).expect("sessions are bounded far below 2^32");
        let key = Key { at, generation };
        if let Some((request, pace)) = request {
            self.subscribe(key, &request, pace, now);
        }
        if self.draining {
            // It was on its way when the drain began.
            self.drain.push_front((now.mono, key));
        }
        self.schedule(key);
        key
    }

    /// Ends a session. Its connection is closed politely if the kernel takes the goodbye at once.
    pub fn close(&mut self, key: Key, reason: CloseReason, now: Now) {
        if reason == CloseReason::ServiceRestart {
            // A drain takes nothing from a session that reads.
            let _ = self.flush(key, now);
        }
        if self.session_mut(key).is_none() {
            return;
        }
        let live: Vec<u16> = self.sessions[key.at as usize].live_subs().map(|(at, _)| at).collect();
        let mut n_dropped = 0;
        for sub in live {
            n_dropped += u64::from(self.remove_sub(key.at, sub));
        }
        let mut session = self.sessions.remove(key.at as usize);
        // What is left now is the torn quote, if any.
        n_dropped += session.outbox.n_quotes() as u64;
        self.books.dropped[DropReason::of_close(reason) as usize] += n_dropped;
        let transport = session.transport();
        self.books.sessions[transport] -= 1;
        self.books.closed[reason as usize] += 1;
        session.wake();
        let polite = reason != CloseReason::Gone && flush::say_goodbye(&mut session, reason);
        session.pipe.finish(polite);
    }
}

/// The part of an [`Admission`](crate::session::Admission) that the session keeps.
pub struct Admitted {
    /// Who the request proved to come from, if it did.
    pub principal: Option<Principal>,
    /// Held until the session ends.
    pub permit: Box<dyn Any + Send>,
}

#[cfg(test)]
mod tests;
