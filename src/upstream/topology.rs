//! The shared handle to the slot table: whom to ask for a slot, now.
//!
//! Invariants:
//! - Reading it never waits for the network.
//! - What a node said with MOVED outlives a poll that was begun before it said so.
//!
//! Not here: polling the nodes.

use super::slots::{NodeAddr, SlotTable};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Who owns which slot, for everyone who needs to know.
#[derive(Debug)]
pub struct Topology {
    table: watch::Sender<Arc<SlotTable>>,
    redirects: Mutex<Redirects>,
    refresh: Notify,
}

/// Owners that MOVED named, until a poll that was begun later has confirmed or corrected them.
#[derive(Default, Debug)]
struct Redirects {
    /// Rises with every poll.
    poll: u64,
    /// The number of the newest poll when the slot moved, and its owner. At most one per slot.
    by_slot: HashMap<u16, (u64, NodeAddr)>,
}

/// The token of a poll that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Poll(u64);

impl Topology {
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

    /// A node answered MOVED: `slot` belongs to `owner`. Takes effect at once, and asks for a poll.
    pub fn moved(&self, slot: u16, owner: &NodeAddr) {
        {
            let mut redirects = self.redirects();
            let poll = redirects.poll;
            redirects.by_slot.insert(slot, (poll, owner.clone()));
        }
        self.table.send_if_modified(|table| {
            let news = table.owner(slot) != Some(owner);
            if news {
                Arc::make_mut(table).set(slot, owner);
            }
            news
        });
        self.request_refresh();
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

    /// A poll begins.
    pub fn begin_poll(&self) -> Poll {
        let mut redirects = self.redirects();
        redirects.poll += 1;
        Poll(redirects.poll)
    }

    /// A poll has ended with `table`. Gives whether an owner changed.
    pub fn end_poll(&self, poll: Poll, mut table: SlotTable) -> bool {
        let mut redirects = self.redirects();
        redirects.by_slot.retain(|_, (at, _)| *at >= poll.0);
        for (&slot, (_, owner)) in &redirects.by_slot {
            table.set(slot, owner);
        }
        self.table.send_if_modified(|old| {
            let news = !old.same_owners(&table);
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
        topology.end_poll(poll, SlotTable::single(a.clone()));
        assert_eq!(topology.owner(7), Some(b));
        let poll = topology.begin_poll();
        assert!(topology.end_poll(poll, SlotTable::single(a.clone())));
        assert_eq!(topology.owner(7), Some(a));
    }

    #[tokio::test]
    async fn only_news_wake_those_who_wait() {
        let (a, b) = (node("a:1"), node("b:1"));
        let topology = Topology::single(a.clone());
        let changes = topology.changes();
        let poll = topology.begin_poll();
        assert!(!topology.end_poll(poll, SlotTable::single(a.clone())));
        topology.moved(7, &a);
        assert!(!changes.has_changed().expect("sender lives"));
        topology.moved(7, &b);
        assert!(changes.has_changed().expect("sender lives"));
        topology.refresh_requested().await;
    }
}
