//! A publisher per instrument that goes on through every fault, key first, as the existing one does.

use crate::support::cluster::RedisCluster;
use crate::support::publisher::{Publisher, Statement};
use crate::support::wait::let_pass;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Between two quotes of an instrument.
const EVERY: Duration = Duration::from_millis(20);

/// A publisher gives up a server that takes longer and looks for another. Each time in a row it has more
/// patience: on a machine that has hardly any time for us it would never get anywhere.
const PATIENCE: Duration = Duration::from_millis(300);
const LONGEST_PATIENCE: Duration = Duration::from_secs(1);

/// Quotes of some instruments, each with a time that rises by one.
pub struct Traffic {
    newest: Arc<Mutex<HashMap<i64, i64>>>,
    end: CancellationToken,
    tasks: JoinSet<()>,
}

impl Traffic {
    /// Starts publishing quotes of `ids`.
    pub fn start(cluster: &RedisCluster, partitions: u32, ids: &[i64]) -> Self {
        let (newest, end) = (Arc::<Mutex<HashMap<_, _>>>::default(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        for &id in ids {
            let fresh = Publisher::sharded(cluster, partitions);
            let (newest, end) = (Arc::clone(&newest), end.clone());
            tasks.spawn(async move {
                let (mut publisher, mut patience) = (fresh.clone(), PATIENCE);
                for ts in 1.. {
                    let more = format!(r#""ts":{ts}"#);
                    let quote = Statement { more, ..Statement::new(id, &format!("{ts}.50"), ts) };
                    match tokio::time::timeout(patience, publisher.try_publish(&quote)).await {
                        Ok(Ok(_)) => {
                            newest.lock().unwrap().insert(id, ts);
                            patience = PATIENCE;
                        }
                        _ => {
                            publisher = fresh.clone();
                            patience = (patience * 2).min(LONGEST_PATIENCE);
                        }
                    }
                    if end.is_cancelled() {
                        break;
                    }
                    let_pass(EVERY).await;
                }
            });
        }
        Self { newest, end, tasks }
    }

    /// The newest time of an instrument that was published.
    pub fn newest(&self, id: i64) -> i64 {
        self.newest.lock().unwrap().get(&id).copied().unwrap_or_default()
    }

    /// Ends it, and gives the newest time of each instrument.
    pub async fn stop(mut self) -> HashMap<i64, i64> {
        self.end.cancel();
        while self.tasks.join_next().await.is_some() {}
        std::mem::take(&mut *self.newest.lock().unwrap())
    }
}
