//! One bounded pool of command connections per node.
//!
//! Invariants:
//! - A connection has one user at a time, and goes back to its pool only when every answer that it owed
//!   was read. A call that fails or is cancelled takes its connection with it.
//! - Waiting for a connection, making one and checking one have deadlines.

use super::failure::{Failure, Kind};
use crate::config;
use crate::upstream::connection::Connector;
use crate::upstream::slots::NodeAddr;
use deadpool::managed::{self, Metrics, Object, PoolError, RecycleResult, Timeouts};
use redis::aio::MultiplexedConnection;
use redis::{ProtocolVersion, RedisError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A connection used less than this ago is taken without asking the server whether it is still there,
/// which saves a round trip per batch. A server's `timeout` is at least a second, and one that broke
/// all the same is replaced by the quiet retry.
const FRESH: Duration = Duration::from_millis(500);

/// Pools kept for nodes that own no slot (targets of ASK, primaries before a failover) before those are
/// thrown out.
const MAX_SURPLUS: usize = 8;

/// The connections of every node.
pub struct Pools {
    connector: Arc<Connector>,
    size: usize,
    timeouts: Timeouts,
    by_node: Mutex<HashMap<NodeAddr, Pool>>,
}

type Pool = managed::Pool<NodeConnections>;

/// Makes and checks the connections of one node.
pub struct NodeConnections(deadpool_redis::Manager);

impl managed::Manager for NodeConnections {
    type Type = MultiplexedConnection;
    type Error = RedisError;

    async fn create(&self) -> Result<MultiplexedConnection, RedisError> {
        self.0.create().await
    }

    async fn recycle(
        &self,
        connection: &mut MultiplexedConnection,
        metrics: &Metrics,
    ) -> RecycleResult<RedisError> {
        if metrics.last_used() < FRESH { Ok(()) } else { self.0.recycle(connection, metrics).await }
    }
}

impl Pools {
    /// No connection yet.
    pub fn new(connector: Arc<Connector>, config: &config::Redis) -> Self {
        let timeouts = Timeouts {
            wait: Some(config.command_timeout),
            create: Some(config.connect_timeout),
            recycle: Some(config.command_timeout),
        };
        Self { connector, size: config.pool_size.max(1), timeouts, by_node: Mutex::default() }
    }

    /// A connection of `node`, for one batch. `owners` are the nodes whose pools are worth keeping.
    pub async fn lease(
        &self,
        node: &NodeAddr,
        owners: impl FnOnce() -> Vec<NodeAddr>,
    ) -> Result<Lease, Failure> {
        let pool = self.pool(node, owners)?;
        match pool.get().await {
            Ok(object) => Ok(Lease(Some(object))),
            Err(error) => {
                if matches!(error, PoolError::Backend(_)) {
                    // The next pool reads the password and the CA anew.
                    self.forget(node);
                }
                Err(pool_failure(node, error))
            }
        }
    }

    /// Drops the idle connections of `node`: what made one of them useless holds for all.
    pub fn drop_idle(&self, node: &NodeAddr) {
        if let Some(pool) = self.by_node().get(node) {
            pool.retain(|_, _| false);
        }
    }

    /// Drops the pool of `node`. Its name is resolved, and its credentials are read, again.
    pub fn forget(&self, node: &NodeAddr) {
        self.by_node().remove(node);
    }

    fn pool(&self, node: &NodeAddr, owners: impl FnOnce() -> Vec<NodeAddr>) -> Result<Pool, Failure> {
        if let Some(pool) = self.by_node().get(node) {
            return Ok(pool.clone());
        }
        let failed = |error: &dyn std::fmt::Display| Failure::new(Kind::Other, node, error.to_string());
        let info = self.connector.info(node, ProtocolVersion::RESP2).map_err(|e| failed(&e))?;
        let manager = deadpool_redis::Manager::new_with_config(info, self.connector.options())
            .map_err(|e| failed(&e))?;
        let pool = Pool::builder(NodeConnections(manager))
            .max_size(self.size)
            .timeouts(self.timeouts)
            .runtime(deadpool_redis::Runtime::Tokio1)
            .build()
            .map_err(|e| failed(&e))?;
        let mut by_node = self.by_node();
        if by_node.len() >= MAX_SURPLUS {
            let owners = owners();
            if by_node.len() >= owners.len() + MAX_SURPLUS {
                by_node.retain(|node, _| owners.contains(node));
            }
        }
        Ok(by_node.entry(node.clone()).or_insert(pool).clone())
    }

    fn by_node(&self) -> MutexGuard<'_, HashMap<NodeAddr, Pool>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection out of its pool. Dropped before [`Lease::give_back`], it is closed: an answer may still
/// be on its way.
pub struct Lease(Option<Object<NodeConnections>>);

impl Lease {
    /// The connection.
    pub fn connection(&mut self) -> &mut MultiplexedConnection {
        self.0.as_mut().expect("the object is only taken by drop and give_back")
    }

    /// Whether the connection has served a batch before, so that it may have been closed meanwhile.
    pub fn is_used(&self) -> bool {
        self.0.as_ref().is_some_and(|object| Object::metrics(object).recycle_count > 0)
    }

    /// Every answer was read; the next may have it.
    pub fn give_back(mut self) {
        self.0.take();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}

fn pool_failure(node: &NodeAddr, error: PoolError<RedisError>) -> Failure {
    match error {
        PoolError::Timeout(managed::TimeoutType::Wait) => {
            Failure::new(Kind::PoolBusy, node, "no connection became free in time")
        }
        PoolError::Timeout(_) => Failure::new(Kind::Timeout, node, "connecting took too long"),
        PoolError::Backend(error) => Failure::new(Kind::of(&error), node, error.to_string()),
        other => Failure::new(Kind::Other, node, other.to_string()),
    }
}
