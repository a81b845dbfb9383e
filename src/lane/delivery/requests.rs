//! What clients ask of a lane: to authenticate, to subscribe, to unsubscribe, at which pace.
//!
//! After the acknowledgement of an unsubscribe no event of the topic follows: it goes into the outbox before every
//! quote that isn't begun, and the subscription's bit is gone by then.

use super::{Delivery, Key};
use crate::clock::Now;
use crate::instrument::InstrumentId;
use crate::lane::books::DropReason;
use crate::lane::index::{Member, TopicState};
use crate::lane::outbox::CONTROL_BOUND;
use crate::lane::pace::Pace;
use crate::lane::session::{Encoder, Pending, Pipe, Session, Sub, VACANT};
use crate::protocol::client::{ClientMessage, TopicRequest};
use crate::protocol::close::CloseReason;
use crate::protocol::server::{self, ErrorCode, Rejection, Subscribed};
use crate::session::Principal;
use crate::session::user_places::{Asked, Verdict, spoken};
use crate::topic::Topic;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

impl<P: Pipe> Delivery<P> {
    /// Handles one text message. Gives the reason to close the session, if there is one.
    pub fn on_message(&mut self, key: Key, text: &str, now: Now) -> Option<CloseReason> {
        self.books.inbound += 1;
        let clock = self.clock;
        let shared = Arc::clone(&self.shared);
        let session = self.session_mut(key)?;
        if !session.standing.may_send(&shared.timers, clock) {
            return Some(CloseReason::RateLimited);
        }
        let answer = match ClientMessage::parse(text) {
            Err(bad) => server::error(&bad.request_id, ErrorCode::BadRequest, bad.problem),
            Ok(ClientMessage::Pong) => return None,
            Ok(ClientMessage::Ping { ts }) => server::pong(&ts, now.unix_ms()),
            Ok(ClientMessage::Auth { token }) => return self.authenticate(key, &token, now),
            Ok(ClientMessage::Subscribe { request, max_rate_hz }) => {
                if self.may_ask(key) {
                    self.subscribe(key, &request, Pace::new(max_rate_hz), now);
                    return self.overflow(key);
                }
                unauthorized(&request)
            }
            Ok(ClientMessage::Unsubscribe(request)) => {
                if self.may_ask(key) {
                    self.unsubscribe(key, &request);
                    return self.overflow(key);
                }
                unauthorized(&request)
            }
        };
        self.say(key, "message", &answer);
        self.overflow(key)
    }

    pub(super) fn may_ask(&mut self, key: Key) -> bool {
        self.shared.anonymous || self.session_mut(key).is_some_and(|s| s.standing.principal().is_some())
    }

    /// A client that asks and never reads the answers.
    pub(super) fn overflow(&mut self, key: Key) -> Option<CloseReason> {
        let bound = 2 * (CONTROL_BOUND + self.shared.max_message_bytes);
        self.session_mut(key)?.outbox.control().len().gt(&bound).then_some(CloseReason::QueueOverflow)
    }

    pub(super) fn authenticate(&mut self, key: Key, token: &str, now: Now) -> Option<CloseReason> {
        let verified = self.shared.authenticator.verify(token, now);
        let session = self.session_mut(key)?;
        let Ok(principal) = verified else { return Some(self.refuse_token(key)) };
        if session.standing.principal().is_some() {
            return self.enter(key, principal, now);
        }
        let asked = self.shared.user_places.as_ref().map(|places| places.take(&principal.user_id));
        match asked.unwrap_or_else(Asked::uncounted) {
            Asked::Now(verdict) => self.judged(key, principal, verdict, now),
            Asked::Later(verdict) => {
                self.session_mut(key)?.pending = Some(Box::new(Pending { principal, verdict }));
                None
            }
        }
    }

    /// Looks whether a verdict has come that the session waits for; `cx` is woken by it. Gives the reason to close
    /// the session, if there is one.
    pub fn poll_pending(&mut self, key: Key, cx: &mut Context<'_>, now: Now) -> Poll<Option<CloseReason>> {
        let Some(session) = self.session_mut(key) else { return Poll::Pending };
        let Some(pending) = &mut session.pending else { return Poll::Pending };
        let Poll::Ready(verdict) = Pin::new(&mut pending.verdict).poll(cx) else { return Poll::Pending };
        let principal = pending.principal.clone();
        session.pending = None;
        Poll::Ready(self.judged(key, principal, spoken(verdict.ok()), now))
    }

    fn judged(&mut self, key: Key, principal: Principal, verdict: Verdict, now: Now) -> Option<CloseReason> {
        let Ok(place) = verdict else {
            let why = "the user has too many sessions";
            self.say(key, "error", &server::error("\"\"", ErrorCode::LimitExceeded, why));
            return Some(CloseReason::TryAgainLater);
        };
        let session = self.session_mut(key)?;
        let others = std::mem::replace(&mut session.permit, Box::new(()));
        session.permit = Box::new((others, place));
        self.enter(key, principal, now)
    }

    /// The session acts for `principal` from now on.
    fn enter(&mut self, key: Key, principal: Principal, now: Now) -> Option<CloseReason> {
        let standing = &mut self.session_mut(key)?.standing;
        let is_new = standing.principal().is_none();
        if standing.authenticated(principal).is_err() {
            return Some(self.refuse_token(key));
        }
        self.say(key, "auth", &server::auth_ok(now.unix_ms()));
        if is_new {
            self.move_watches(key);
        }
        self.revoke(key);
        None
    }

    fn refuse_token(&mut self, key: Key) -> CloseReason {
        let why = "the token is not accepted";
        self.say(key, "error", &server::error("\"\"", ErrorCode::Unauthorized, why));
        CloseReason::AuthError
    }

    /// Ends the subscriptions that the session's present token doesn't allow, and says so.
    fn revoke(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key.at as usize) else { return };
        let subs = session.live_subs().map(|(at, sub)| (at, Topic::of(self.index.topic(sub.topic).id)));
        let (subs, topics): (Vec<_>, Vec<_>) =
            subs.filter(|&(_, topic)| !session.standing.may_see(topic)).unzip();
        for sub in subs {
            let n_dropped = u64::from(self.remove_sub(key.at, sub));
            self.books.dropped[DropReason::Unsubscribed as usize] += n_dropped;
        }
        if !topics.is_empty() {
            self.say(key, "revoked", &server::revoked(&topics));
        }
    }

    /// A guest who subscribed and then signed in: the topics are watched by the user from now on.
    pub(super) fn move_watches(&mut self, key: Key) {
        let Some(registry) = self.shared.watchers.clone() else { return };
        let Some(session) = self.session_mut(key) else { return };
        let Some(user) = session.standing.principal().map(|p| Arc::clone(&p.user_id)) else { return };
        let topics: Vec<u32> = session.live_subs().map(|(_, sub)| sub.topic).collect();
        let guest = guest();
        for topic in topics {
            let id = self.index.topic(topic).id;
            registry.watched(&user, id);
            registry.unwatched(&guest, id);
        }
    }

    pub(super) fn subscribe(&mut self, key: Key, request: &TopicRequest, pace: Pace, now: Now) {
        let mut outcome = Subscribed::default();
        let mut added = Vec::new();
        let Some(session) = self.session_mut(key) else { return };
        let mut n_live = session.live_subs().count();
        for &topic in &request.topics {
            if !self.sessions[key.at as usize].standing.may_see(topic) {
                outcome.refused.push((topic, Rejection::Forbidden));
            } else if let Some(sub) = self.find_sub(key.at, topic.instrument()) {
                self.set_pace(key, sub, pace, now);
                outcome.active.push(topic);
                outcome.already.push(topic);
            } else if n_live >= self.shared.limits.max_topics() {
                outcome.refused.push((topic, Rejection::Limit));
            } else {
                n_live += 1;
                outcome.active.push(topic);
                let sub = self.add_sub(key.at, topic.instrument(), now);
                self.set_pace(key, sub, pace, now);
                added.push(sub);
            }
        }
        let session = &mut self.sessions[key.at as usize];
        session.subs.shrink_to_fit();
        session.outbox.shrink();
        // The acknowledgement is control and goes before every quote that isn't begun.
        self.say(key, "subscribe", &server::subscribed(request, &outcome));
        let mut to_read = Vec::new();
        for sub in added {
            to_read.extend(self.first_quote(key.at, sub, now));
        }
        if !to_read.is_empty() {
            self.shared.catch_up.request(to_read);
        }
    }

    pub(super) fn unsubscribe(&mut self, key: Key, request: &TopicRequest) {
        let (mut ended, mut not_active) = (Vec::new(), Vec::new());
        for &topic in &request.topics {
            match self.find_sub(key.at, topic.instrument()) {
                Some(sub) => {
                    let n_dropped = u64::from(self.remove_sub(key.at, sub));
                    self.books.dropped[DropReason::Unsubscribed as usize] += n_dropped;
                    ended.push(topic);
                }
                None => not_active.push(topic),
            }
        }
        self.say(key, "unsubscribe", &server::unsubscribed(request, &ended, &not_active));
    }

    pub(super) fn set_pace(&mut self, key: Key, sub: u16, new: Pace, now: Now) {
        let session = &mut self.sessions[key.at as usize];
        let at = usize::from(sub);
        if session.paces.len() <= at {
            if !new.is_limited() {
                return;
            }
            session.paces.resize(at + 1, Pace::default());
        }
        let pace = &mut session.paces[at];
        self.turns.release(pace, key, sub);
        *pace = pace.changed_to(new);
        if session.outbox.is_held(sub) {
            match pace.take_turn(now.mono) {
                Ok(()) => self.release(key, sub),
                Err(at) => self.turns.hold(at, key, sub),
            }
        }
    }

    pub(super) fn release(&mut self, key: Key, sub: u16) {
        let now_ms = self.clock_ms();
        if self.session_mut(key).is_some_and(|session| session.outbox.release(sub, now_ms)) {
            self.schedule(key);
        }
    }

    /// Releases what was held and whose turn has come at `now`.
    pub fn release_due(&mut self, now: Now) {
        while let Some((key, sub)) = self.turns.pop(now.mono) {
            if let Some(pace) = self.session_mut(key).and_then(|session| session.pace_mut(sub)) {
                // It can't be too early: the set is in the order of these turns.
                let _ = pace.take_turn(now.mono);
            }
            self.release(key, sub);
        }
    }

    /// When the next held quote is to be released, on the monotonic clock.
    pub fn next_release(&self) -> Option<Duration> {
        self.turns.next()
    }

    pub(super) fn find_sub(&self, session: u32, id: InstrumentId) -> Option<u16> {
        let topic = self.index.find(id)?;
        self.sessions[session as usize].live_subs().find(|(_, sub)| sub.topic == topic).map(|(at, _)| at)
    }

    pub(super) fn add_sub(&mut self, session_at: u32, id: InstrumentId, now: Now) -> u16 {
        let topic = self.index.find(id).unwrap_or_else(|| {
            let joined = self.shared.fanout.join(self.lane, id, now);
            let latest = joined.latest;
            self.index.insert(TopicState {
                id,
                latest,
                stale_since_ms: joined.stale_since_ms,
                members: Vec::new(),
            })
        });
        let session = &mut self.sessions[session_at as usize];
        let vacant = session.subs.iter().position(|sub| sub.topic == VACANT);
        let sub_at = vacant.unwrap_or(session.subs.len()) as u16;
        let at = self.index.add(topic, Member { session: session_at, sub: sub_at });
        let resumed = match &session.encoder {
            Encoder::Sse(sse) => sse.cursor.seen(usize::from(sub_at)).is_some(),
            Encoder::Ws => false,
        };
        let sub = Sub { topic, at, awaits_first: true, resumed };
        match session.subs.get_mut(usize::from(sub_at)) {
            Some(place) => *place = sub,
            None => session.subs.push(sub),
        }
        session.outbox.open(sub_at);
        if let Some(registry) = &self.shared.watchers {
            registry.watched(&watcher(session), id);
        }
        sub_at
    }

    /// Gives the session its first quote from memory where that is complete; otherwise gives the
    /// instrument whose key is to be read.
    pub(super) fn first_quote(&mut self, session_at: u32, sub_at: u16, now: Now) -> Option<InstrumentId> {
        let session = &self.sessions[session_at as usize];
        let state = self.index.topic(session.subs[usize::from(sub_at)].topic);
        let (id, stale) = (state.id, state.stale_since_ms.is_some());
        if stale {
            self.mark_status(session_at, sub_at);
        }
        // A quote that memory has and the lane hasn't is in the inbox, and reaches the session from there.
        if self.shared.fanout.peek(id, now).1 {
            self.settle_first(session_at, sub_at, now);
            return None;
        }
        Some(id)
    }

    /// The session gets the newest quote as a snapshot, unless a live one has come first.
    pub(super) fn settle_first(&mut self, session_at: u32, sub_at: u16, now: Now) {
        let session = &mut self.sessions[session_at as usize];
        let sub = &mut session.subs[usize::from(sub_at)];
        if sub.awaits_first && self.index.topic(sub.topic).latest.is_some() {
            sub.awaits_first = false;
            self.mark_quote(session_at, sub_at, true, 0, now);
        }
    }

    /// Ends a subscription. Gives whether a quote was due.
    pub(super) fn remove_sub(&mut self, session_at: u32, sub_at: u16) -> bool {
        let session = &mut self.sessions[session_at as usize];
        let sub = &mut session.subs[usize::from(sub_at)];
        let Sub { topic, at, .. } = *sub;
        sub.topic = VACANT;
        if let Some(pace) = session.paces.get_mut(usize::from(sub_at)) {
            let key = Key { at: session_at, generation: session.generation };
            self.turns.release(&std::mem::take(pace), key, sub_at);
        }
        let was_due = session.outbox.close(sub_at);
        let id = self.index.topic(topic).id;
        if let Some(registry) = &self.shared.watchers {
            registry.unwatched(&watcher(session), id);
        }
        let (moved, emptied) = self.index.remove(topic, at);
        if let Some(member) = moved {
            self.sessions[member.session as usize].subs[usize::from(member.sub)].at = at;
        }
        if let Some(id) = emptied {
            self.shared.fanout.leave(self.lane, id);
        }
        was_due
    }
}

fn unauthorized(request: &TopicRequest) -> String {
    server::error(&request.request_id, ErrorCode::Unauthorized, "authenticate first")
}

fn guest() -> Arc<str> {
    Arc::from("anonymous")
}

fn watcher<P>(session: &Session<P>) -> Arc<str> {
    session.standing.principal().map_or_else(guest, |p| Arc::clone(&p.user_id))
}
