//! Which sessions of a lane subscribe to which instrument, and the newest quote of each.
//!
//! Invariants:
//! - An instrument without a subscription isn't in the index.
//! - A member's `(session, sub)` pair and the subscription's `(topic, at)` pair point at each other.

use crate::instrument::InstrumentId;
use crate::protocol::event::EncodedQuote;
use std::collections::HashMap;
use std::sync::Arc;

/// A subscription, seen from its instrument.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Place of the session in the lane's table.
    pub session: u32,
    /// Place of the subscription in the session.
    pub sub: u16,
}

/// One instrument that somebody in the lane subscribes to.
#[derive(Debug)]
pub struct TopicState {
    /// The instrument.
    pub id: InstrumentId,
    /// The newest quote that the lane knows.
    pub latest: Option<Arc<EncodedQuote>>,
    /// Since when the stream is broken, milliseconds since the Unix epoch.
    pub stale_since_ms: Option<i64>,
    /// Everybody who wants it.
    pub members: Vec<Member>,
}

/// See the module.
#[derive(Default, Debug)]
pub struct Index {
    by_id: HashMap<InstrumentId, u32>,
    topics: Vec<Option<TopicState>>,
    vacant: Vec<u32>,
}

impl Index {
    /// The place of an instrument.
    pub fn find(&self, id: InstrumentId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Puts an instrument in that isn't there, and gives its place.
    pub fn insert(&mut self, state: TopicState) -> u32 {
        let id = state.id;
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.topics.push(None);
            u32::try_from(self.topics.len() - 1)
                .expect("sessions and their topics are bounded far below 2^32")
        });
        self.topics[at as usize] = Some(state);
        self.by_id.insert(id, at);
        at
    }

    /// The instrument at a place that a subscription points at.
    pub fn topic(&self, at: u32) -> &TopicState {
        self.topics[at as usize].as_ref().expect("a subscription points at a topic that is there")
    }

    /// See [`Index::topic`].
    pub fn topic_mut(&mut self, at: u32) -> &mut TopicState {
        self.topics[at as usize].as_mut().expect("a subscription points at a topic that is there")
    }

    /// Adds a member and gives its place among the members.
    pub fn add(&mut self, topic: u32, member: Member) -> u32 {
        let members = &mut self.topic_mut(topic).members;
        members.push(member);
        u32::try_from(members.len() - 1).expect("members are sessions, which are bounded far below 2^32")
    }

    /// Takes the member at `at` out. Gives the member that took its place, if one did, and the
    /// instrument if that was its last member.
    pub fn remove(&mut self, topic: u32, at: u32) -> (Option<Member>, Option<InstrumentId>) {
        let state = self.topic_mut(topic);
        state.members.swap_remove(at as usize);
        let moved = state.members.get(at as usize).copied();
        if !state.members.is_empty() {
            return (moved, None);
        }
        let id = state.id;
        self.topics[topic as usize] = None;
        self.vacant.push(topic);
        self.by_id.remove(&id);
        (None, Some(id))
    }

    /// Subscriptions in all.
    pub fn n_subscriptions(&self) -> usize {
        self.topics.iter().flatten().map(|t| t.members.len()).sum()
    }
}
