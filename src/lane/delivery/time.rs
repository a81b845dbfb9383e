//! What time asks of a lane: the sweep, the drain, and the books for whoever looks.

use super::{Delivery, Key, SessionView};
use crate::clock::Now;
use crate::lane::books::Books;
use crate::lane::session::{Encoder, Pipe, Session};
use crate::protocol::close::CloseReason;
use crate::protocol::{frame, server};
use crate::session::standing::Due;
use std::sync::Arc;
use std::time::Duration;

impl<P: Pipe> Delivery<P> {
    /// Looks at every `n`-th session, beginning with `slice`. Gives the sessions to close and why.
    pub fn sweep(&mut self, slice: usize, n: usize, tick: Duration, now: Now) -> Vec<(Key, CloseReason)> {
        // While the process stood still, no client had a chance to be heard: that time doesn't count.
        self.clock += now.mono.saturating_sub(self.clock_read).min(2 * tick);
        self.clock_read = now.mono;
        let (clock, clock_ms) = (self.clock, self.clock_ms());
        let mut over = Vec::new();
        let mut heartbeats = Vec::new();
        for at in (slice..self.sessions.capacity()).step_by(n) {
            let Some(session) = self.sessions.get_mut(at) else { continue };
            let key = Key { at: at as u32, generation: session.generation };
            let age = Duration::from_millis(u64::from(session.outbox.age_ms(clock_ms)));
            match session.standing.sweep(&self.shared.timers, clock, now.unix_secs(), age) {
                Due::Nothing => {}
                Due::Close(reason) => over.push((key, reason)),
                // Into a full pipe nothing is pushed: it would only grow what waits.
                Due::Heartbeat if session.blocked => {}
                Due::Heartbeat => heartbeats.push(key),
            }
        }
        for key in heartbeats {
            let session = &mut self.sessions[key.at as usize];
            match &session.encoder {
                Encoder::Ws => {
                    frame::push_text(session.outbox.control(), server::ping(now.unix_ms()).as_bytes())
                }
                Encoder::Sse(sse) => {
                    sse.push_chunk(session.outbox.control(), |out| out.extend_from_slice(b": \n\n"))
                }
            }
            self.schedule(key);
        }
        while self.drain.front().is_some_and(|(turn, _)| *turn <= now.mono) {
            over.extend(self.drain.pop_front().map(|(_, key)| (key, CloseReason::ServiceRestart)));
        }
        over
    }

    /// Tells every session to connect again when its turn comes; turns are `spacing` apart, the first
    /// at `first` from now.
    pub fn begin_drain(&mut self, first: Duration, spacing: Duration, now: Now) {
        self.draining = true;
        for (i, key) in self.keys().into_iter().enumerate() {
            let wait = first + spacing * i as u32;
            let after_ms = wait.as_millis() as u64;
            self.say(key, "reconnect", &server::reconnect(after_ms));
            self.say_retry(key, after_ms);
            self.drain.push_back((now.mono + wait, key));
        }
    }

    /// A browser whose page knows nothing of `reconnect` obeys this after the end of the stream.
    pub(super) fn say_retry(&mut self, key: Key, after_ms: u64) {
        if let Some(session) = self.session_mut(key)
            && let Encoder::Sse(sse) = &session.encoder
        {
            sse.push_chunk(session.outbox.control(), |out| {
                out.extend_from_slice(format!("retry: {after_ms}\n\n").as_bytes());
            });
        }
    }

    /// The books, with what is pending counted now.
    pub fn books(&mut self) -> Books {
        let clock_ms = self.clock_ms();
        self.books.pending = 0;
        self.books.backlog_age_ms = 0;
        for (_, session) in &self.sessions {
            self.books.pending += session.outbox.n_quotes() as u64;
            self.books.backlog_age_ms = self.books.backlog_age_ms.max(session.outbox.age_ms(clock_ms).into());
        }
        self.books.subscriptions = self.index.n_subscriptions() as u64;
        self.books
    }

    /// Up to `n` sessions from place `from` on, and the place to go on from if there are more.
    pub fn list(&self, from: usize, n: usize) -> (Vec<SessionView>, Option<usize>) {
        let clock_ms = self.clock_ms();
        let mut views: Vec<_> = self.sessions.iter().skip_while(|(at, _)| *at < from).take(n + 1).collect();
        let next = (views.len() > n).then(|| views.pop().map(|(at, _)| at)).flatten();
        let view = |(at, session): (usize, &Session<P>)| SessionView {
            lane: self.lane,
            place: at,
            transport: session.transport(),
            user_id: session.standing.principal().map(|p| Arc::clone(&p.user_id)),
            n_subscriptions: session.live_subs().count(),
            n_pending: session.outbox.n_quotes(),
            backlog_age: Duration::from_millis(session.outbox.age_ms(clock_ms).into()),
            blocked: session.blocked,
        };
        (views.into_iter().map(view).collect(), next)
    }

    /// Every session that lives.
    pub fn keys(&self) -> Vec<Key> {
        self.sessions.iter().map(|(at, s)| Key { at: at as u32, generation: s.generation }).collect()
    }
}
