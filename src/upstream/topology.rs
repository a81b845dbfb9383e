//! The shared handle to the slot table: whom to ask for a slot, now.
//!
//! Invariants:
//! - Reading it never waits for the network.
//! - What a node said with MOVED outlives a poll that was begun before it said so.
//!
//! Not here: parsing what nodes say (`view`), asking them (`poll`), asking sentinels (`sentinel`).

pub mod poll;
mod sentinel;
mod view;

use super::slots::{NodeAddr, SlotTable};
use crate::config::{self, RedisMode};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Who owns which slot, for everyone who needs to know.
#[derive(Debug)]
pub struct Topology {
    table: watch::Sender<Arc<SlotTable>>,
    redirects: Mutex<Redirects>,
    refresh: Notify,
    urgent: AtomicBool,
}

/// Owners that MOVED named, until a poll that was begun later has confirmed or corrected them.
#[derive(Default, Debug)]
struct Redirects {
    /// Rises with every poll.
    poll: u64,
    /// The number of the newest poll when the slot moved, and its owner. At most one per slot.
    by_slot: HashMap<u16, Redirect>,
    /// Other names of nodes, as redirects may use them.
    aliases: HashMap<NodeAddr, NodeAddr>,
}

#[derive(Debug)]
struct Redirect {
    owner: NodeAddr,
    poll: u64,
    at: Instant,
}

/// Two nodes that point at each other for a slot, as they do while it moves, are followed once in this
/// time; without it, they would be asked as fast as the network goes.
const REDIRECT_PAUSE: Duration = Duration::from_millis(50);

/// The token of a poll that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Poll(u64);

impl Topology {
    /// What is known from the configuration alone.
    pub fn of_config(config: &config::Redis) -> Self {
        let first = config.nodes.first().and_then(|node| NodeAddr::parse(node));
        match (config.mode, first) {
            (RedisMode::Standalone, Some(node)) => Self::single(node),
            _ => Self::unknown(),
        }
    }

    /// Nothing is known yet: a cluster before its first poll, a sentinel before it was asked.
    pub fn unknown() -> Self {
        Self::of(SlotTable::empty())
    }

    /// One server that owns everything.
    pub fn single(node: NodeAddr) -> Self {
        Self::of(SlotTable::single(node))
    }

    fn of(table: SlotTable) -> Self {
        Self {
            table: watch::Sender::new(Arc::new(table)),
            redirects: Mutex::default(),
            refresh: Notify::new(),
            urgent: AtomicBool::new(false),
        }
    }

    /// The newest table.
    pub fn table(&self) -> Arc<SlotTable> {
        Arc::clone(&self.table.borrow())
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: u16) -> Option<NodeAddr> {
        self.table.borrow().owner(slot).cloned()
    }

    /// Every node that owns a slot.
    pub fn all_primaries(&self) -> Vec<NodeAddr> {
        self.table.borrow().primaries()
    }

    /// Wakes whenever the table changes.
    pub fn changes(&self) -> watch::Receiver<Arc<SlotTable>> {
        self.table.subscribe()
    }

    /// A node answered MOVED: `slot` belongs to `owner`. Takes effect at once, but for the same slot only
    /// once in a while, and asks for a poll.
    pub fn moved(&self, slot: u16, owner: &NodeAddr) {
        self.moved_at(slot, owner, Instant::now());
        self.request_refresh();
    }

    fn moved_at(&self, slot: u16, owner: &NodeAddr, now: Instant) {
        let mut redirects = self.redirects();
        if redirects.by_slot.get(&slot).is_some_and(|last| now - last.at < REDIRECT_PAUSE) {
            return;
        }
        let owner = redirects.aliases.get(owner).unwrap_or(owner).clone();
        let poll = redirects.poll;
        redirects.by_slot.insert(slot, Redirect { owner: owner.clone(), poll, at: now });
        self.table.send_if_modified(|table| {
            let news = table.owner(slot) != Some(&owner);
            if news {
                Arc::make_mut(table).set(slot, &owner);
            }
            news
        });
    }

    /// Asks for a poll soon: something suggests that the table is out of date. Cheap to call often.
    pub fn request_refresh(&self) {
        self.refresh.notify_one();
    }

    /// Waits until a poll was asked for.
    ///
    /// # Cancel safety
    /// A request that arrives while nobody waits is kept for the next call.
    pub async fn refresh_requested(&self) {
        self.refresh.notified().await;
    }

    /// Something is lost: polls follow each other quickly until it is found again.
    pub fn set_urgent(&self, urgent: bool) {
        if self.urgent.swap(urgent, Ordering::Relaxed) != urgent && urgent {
            self.request_refresh();
        }
    }

    /// Whether something is lost.
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed)
    }

    /// A poll begins.
    pub fn begin_poll(&self) -> Poll {
        let mut redirects = self.redirects();
        redirects.poll += 1;
        Poll(redirects.poll)
    }

    /// A poll has ended with `table`, and other names of its nodes. Gives whether the table is news.
    pub fn end_poll(&self, poll: Poll, mut table: SlotTable, aliases: HashMap<NodeAddr, NodeAddr>) -> bool {
        let mut redirects = self.redirects();
        redirects.aliases = aliases;
        redirects.by_slot.retain(|_, redirect| redirect.poll >= poll.0);
        for (&slot, redirect) in &redirects.by_slot {
            table.set(slot, &redirect.owner);
        }
        self.table.send_if_modified(|old| {
            let news = !old.agrees_with(&table);
            if news {
                *old = Arc::new(table);
            }
            news
        })
    }

    fn redirects(&self) -> MutexGuard<'_, Redirects> {
        self.redirects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> NodeAddr {
        NodeAddr::parse(text).expect("valid")
    }

    #[test]
    fn a_redirect_outlives_the_poll_that_it_overtook_and_no_other() {
        let (a, b) = (node("a:1"), node("b:1"));
        let topology = Topology::single(a.clone());
        let poll = topology.begin_poll();
        topology.moved(7, &b);
        assert_eq!(topology.owner(7), Some(b.clone()));
        topology.end_poll(poll, SlotTable::single(a.clone()), HashMap::new());
        assert_eq!(topology.owner(7), Some(b));
        let poll = topology.begin_poll();
        assert!(topology.end_poll(poll, SlotTable::single(a.clone()), HashMap::new()));
        assert_eq!(topology.owner(7), Some(a));
    }

    #[test]
    fn two_nodes_that_point_at_each_other_are_followed_slowly() {
        let (a, b) = (node("a:1"), node("b:1"));
        let topology = Topology::single(a.clone());
        let now = Instant::now();
        topology.moved_at(7, &b, now);
        topology.moved_at(7, &a, now + REDIRECT_PAUSE / 2);
        assert_eq!(topology.owner(7), Some(b));
        topology.moved_at(7, &a, now + REDIRECT_PAUSE);
        assert_eq!(topology.owner(7), Some(a));
    }

    #[test]
    fn a_redirect_by_another_name_means_the_same_node() {
        let (ip, name) = (node("10.0.0.1:1"), node("host1:1"));
        let topology = Topology::unknown();
        let poll = topology.begin_poll();
        topology.end_poll(poll, SlotTable::single(ip.clone()), HashMap::from([(name.clone(), ip.clone())]));
        topology.moved(7, &name);
        assert_eq!(topology.all_primaries(), [ip]);
    }

    #[tokio::test]
    async fn only_news_wake_those_who_wait() {
        let (a, b) = (node("a:1"), node("b:1"));
        let topology = Topology::single(a.clone());
        let changes = topology.changes();
        let poll = topology.begin_poll();
        assert!(!topology.end_poll(poll, SlotTable::single(a.clone()), HashMap::new()));
        topology.moved(7, &a);
        assert!(!changes.has_changed().expect("sender lives"));
        topology.moved(8, &b);
        assert!(changes.has_changed().expect("sender lives"));
        topology.refresh_requested().await;
    }
}
