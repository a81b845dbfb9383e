//! What the fan-out brings: quotes, finished reads, statuses, each made a bit in the outboxes of those whom it
//! concerns. The way of a delivery: no lock, no atomic, nothing allocated.

use super::{Delivery, Key};
use crate::clock::Now;
use crate::fanout::inbox::Batch;
use crate::instrument::InstrumentId;
use crate::lane::index::Member;
use crate::lane::session::{Encoder, Pipe};

impl<P: Pipe> Delivery<P> {
    /// Takes over everything from the inbox and leaves the batch empty.
    pub fn take_in(&mut self, batch: &mut Batch, now: Now) {
        for (id, incoming) in batch.quotes.drain(..) {
            let Some(topic) = self.index.find(id) else { continue };
            let state = self.index.topic_mut(topic);
            if state.latest.as_ref().is_some_and(|known| known.serial >= incoming.quote.serial) {
                continue;
            }
            let stored = incoming.quote.stored;
            state.latest = Some(incoming.quote);
            // Marking doesn't change who is a member.
            let members = std::mem::take(&mut state.members);
            for &Member { session, sub } in &members {
                let first = &mut self.sessions[session as usize].subs[usize::from(sub)].awaits_first;
                let initial = std::mem::take(first) && stored;
                self.mark_quote(session, sub, initial, incoming.n_replaced, now);
            }
            self.index.topic_mut(topic).members = members;
        }
        for id in batch.read_done.drain(..) {
            self.for_members(id, |lane, session, sub| lane.settle_first(session, sub, now));
        }
        for (id, stale_since_ms) in batch.statuses.drain(..) {
            if let Some(topic) = self.index.find(id) {
                self.index.topic_mut(topic).stale_since_ms = stale_since_ms;
            }
            self.for_members(id, |lane, session, sub| lane.mark_status(session, sub));
        }
    }

    pub(super) fn for_members(&mut self, id: InstrumentId, act: impl Fn(&mut Self, u32, u16)) {
        let Some(topic) = self.index.find(id) else { return };
        for i in 0..self.index.topic(topic).members.len() {
            let Member { session, sub } = self.index.topic(topic).members[i];
            act(self, session, sub);
        }
    }

    #[inline]
    pub(super) fn mark_quote(&mut self, session_at: u32, sub: u16, initial: bool, n_replaced: u32, now: Now) {
        let now_ms = self.clock_ms();
        let session = &mut self.sessions[session_at as usize];
        let place = &mut session.subs[usize::from(sub)];
        if let (true, Encoder::Sse(sse)) = (place.resumed, &session.encoder) {
            let latest = &self.index.topic(place.topic).latest;
            if latest.as_ref().is_some_and(|quote| !sse.needs(sub, quote, initial)) {
                return;
            }
            place.resumed = false;
        }
        let turn = if session.outbox.is_held(sub) {
            // It waits for its turn already, even if that has just come.
            Err(now.mono)
        } else {
            session.pace_mut(sub).map_or(Ok(()), |pace| pace.take_turn(now.mono))
        };
        let conflated = match turn {
            Ok(()) => session.outbox.mark_quote(sub, initial, now_ms),
            Err(at) => {
                let conflated = session.outbox.hold_quote(sub);
                if !conflated {
                    let key = Key { at: session_at, generation: session.generation };
                    self.turns.hold(at, key, sub);
                }
                conflated
            }
        };
        self.books.offered += 1 + u64::from(n_replaced);
        self.books.conflated += u64::from(n_replaced) + u64::from(conflated);
        self.schedule_at(session_at);
    }

    pub(super) fn mark_status(&mut self, session_at: u32, sub: u16) {
        let now_ms = self.clock_ms();
        self.sessions[session_at as usize].outbox.mark_status(sub, now_ms);
        self.schedule_at(session_at);
    }

    /// Sends a message other than an event.
    pub(super) fn say(&mut self, key: Key, name: &str, json: &str) {
        if let Some(session) = self.session_mut(key) {
            session.encoder.push_message(session.outbox.control(), name, json);
            self.schedule(key);
        }
    }
}
