//! The publisher's open links, one per node, opened when they are needed.
//!
//! A node that can't be reached, or that accepted a link and let it end, is left alone for a growing
//! time: its quotes fail at once meanwhile, and those of other nodes don't wait for it.

use super::dial::dial;
use super::link::Link;
use crate::config;
use crate::upstream::commands::failure::{Failure, Kind};
use crate::upstream::connection::Connector;
use crate::upstream::slots::NodeAddr;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Time between two attempts at a node: the first, and the longest. A failover takes seconds.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A link that lived this long was a good one; the next pause starts small again.
const GOOD_LIFE: Duration = Duration::from_secs(5);

/// Nodes that are remembered. A cluster has fewer; addresses that are no more leave by this, and the
/// links that are needed are opened again.
const MAX_NODES: usize = 1_024;

/// Links of every node.
pub struct Links {
    config: config::Redis,
    connector: Arc<Connector>,
    by_node: Mutex<HashMap<NodeAddr, Arc<tokio::sync::Mutex<State>>>>,
    tasks: TaskTracker,
}

struct State {
    link: Option<Link>,
    opened: Instant,
    not_before: Instant,
    pause: Duration,
}

impl Links {
    /// No link yet.
    pub fn new(connector: Arc<Connector>, config: &config::Redis) -> Self {
        Self { config: config.clone(), connector, by_node: Mutex::default(), tasks: TaskTracker::new() }
    }

    /// The link to `node`, opened if there is none.
    ///
    /// # Errors
    /// It can't be opened, or shouldn't be tried yet.
    pub async fn get(&self, node: &NodeAddr) -> Result<Link, Failure> {
        let state = self.state(node);
        let mut state = state.lock().await;
        if let Some(link) = state.link.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let now = Instant::now();
        if state.link.take().is_some() && now - state.opened < GOOD_LIFE {
            state.back_off(now);
        }
        if now < state.not_before {
            return Err(Failure::new(Kind::Unreachable, node, "the node failed a moment ago"));
        }
        match dial(node, &self.connector, &self.config).await {
            Ok(stream) => {
                let (link, carried) = Link::over(stream, self.config.command_timeout);
                // Its end is seen by whoever waits for answers, and by the next `get`.
                self.tasks.spawn(async move { drop(carried.await) });
                if now - state.opened >= GOOD_LIFE {
                    state.pause = FIRST_PAUSE;
                }
                state.opened = now;
                state.link = Some(link.clone());
                Ok(link)
            }
            Err(failure) => {
                state.back_off(Instant::now());
                Err(failure)
            }
        }
    }

    /// Forgets the link to `node`, which ends when what it owes is answered.
    pub fn forget(&self, node: &NodeAddr) {
        self.by_node().remove(node);
    }

    fn state(&self, node: &NodeAddr) -> Arc<tokio::sync::Mutex<State>> {
        let now = Instant::now();
        let fresh = || State { link: None, opened: now, not_before: now, pause: FIRST_PAUSE };
        let mut by_node = self.by_node();
        if by_node.len() >= MAX_NODES && !by_node.contains_key(node) {
            by_node.clear();
        }
        Arc::clone(by_node.entry(node.clone()).or_insert_with(|| Arc::new(tokio::sync::Mutex::new(fresh()))))
    }

    fn by_node(&self) -> MutexGuard<'_, HashMap<NodeAddr, Arc<tokio::sync::Mutex<State>>>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn back_off(&mut self, now: Instant) {
        self.not_before = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
