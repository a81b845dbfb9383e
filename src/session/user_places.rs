//! How many sessions a user has, over all replicas.
//!
//! A place is taken when a session learns who its user is, once, and given back by dropping it.
//!
//! Not here: the count that replicas share (`upstream::user_places`), limits that need no name (`edge::limits`).

use crate::config::live::LiveLimits;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// Counts a session for its user as long as it is held.
pub type Place = Box<dyn Any + Send>;

/// The user has as many sessions as one may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitReached;

/// Whether a user may have one session more.
pub type Verdict = Result<Place, LimitReached>;

/// What comes of asking for a place.
pub enum Asked {
    /// The verdict, where this replica knows it by itself.
    Now(Verdict),
    /// Others have to be asked, which takes no longer than a command to them may.
    Later(oneshot::Receiver<Verdict>),
}

impl Asked {
    /// A place that counts nowhere.
    pub fn uncounted() -> Self {
        Self::Now(Ok(Box::new(())))
    }

    /// Waits for the verdict.
    pub async fn verdict(self) -> Verdict {
        match self {
            Self::Now(verdict) => verdict,
            Self::Later(verdict) => spoken(verdict.await.ok()),
        }
    }
}

/// The verdict, or what stands for it where who was asked has ended: a session more does no harm by then.
pub fn spoken(verdict: Option<Verdict>) -> Verdict {
    verdict.unwrap_or_else(|| Ok(Box::new(())))
}

/// Knows how many sessions each user has.
pub trait UserPlaces: Send + Sync + 'static {
    /// Asks for a place for one more session of `user`. Must not block.
    fn take(&self, user: &Arc<str>) -> Asked;
}

/// The places of a single process.
pub struct MemoryPlaces {
    limits: Arc<LiveLimits>,
    /// Only users with sessions, so bounded by them.
    by_user: Arc<Mutex<HashMap<Arc<str>, usize>>>,
}

impl MemoryPlaces {
    /// Nobody has a session.
    pub fn new(limits: Arc<LiveLimits>) -> Self {
        Self { limits, by_user: Arc::default() }
    }
}

impl UserPlaces for MemoryPlaces {
    fn take(&self, user: &Arc<str>) -> Asked {
        let limit = self.limits.max_sessions_per_user();
        if limit == 0 {
            return Asked::uncounted();
        }
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let n = by_user.entry(Arc::clone(user)).or_default();
        if *n >= limit {
            return Asked::Now(Err(LimitReached));
        }
        *n += 1;
        let held = Held { by_user: Arc::clone(&self.by_user), user: Arc::clone(user) };
        Asked::Now(Ok(Box::new(held)))
    }
}

struct Held {
    by_user: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    user: Arc<str>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = by_user.get_mut(&self.user) {
            *n -= 1;
            if *n == 0 {
                by_user.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn limit(n: usize) -> Config {
        let mut config = Config::default();
        config.limits.max_sessions_per_user = n;
        config
    }

    async fn take(places: &MemoryPlaces, user: &str) -> Option<Place> {
        places.take(&user.into()).verdict().await.ok()
    }

    #[tokio::test]
    async fn each_user_has_as_many_places_as_the_limit_says_at_the_time() {
        let limits = LiveLimits::new(&limit(2));
        let places = MemoryPlaces::new(Arc::clone(&limits));
        let (first, second) = (take(&places, "7").await, take(&places, "7").await);
        assert!(first.is_some() && second.is_some() && take(&places, "7").await.is_none());
        assert!(take(&places, "8").await.is_some());
        drop(first);
        let third = take(&places, "7").await;
        assert!(third.is_some());
        limits.set(&limit(0));
        assert!(take(&places, "7").await.is_some());
        limits.set(&limit(1));
        drop(second);
        assert!(take(&places, "7").await.is_none());
        drop(third);
        assert!(places.by_user.lock().expect("not poisoned").is_empty());
    }

    #[tokio::test]
    async fn who_is_never_answered_is_let_in() {
        let (asker, asked) = oneshot::channel();
        drop(asker);
        assert!(Asked::Later(asked).verdict().await.is_ok());
    }
}
