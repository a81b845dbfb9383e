//! The limits that can change while the gateway runs, at the place where everybody who judges by them reads them.
//!
//! A change holds for what comes after it: nothing that was let in is thrown out.
//!
//! Not here: what else can change (`cli::reload`), the other limits, which hold from the start (`config`).

use super::Config;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// See the module.
#[derive(Debug, Default)]
pub struct LiveLimits {
    max_sessions: AtomicUsize,
    max_sessions_per_ip: AtomicUsize,
    max_sessions_per_user: AtomicUsize,
    accepts_per_second: AtomicU32,
    max_topics: AtomicUsize,
    max_inbound_per_second: AtomicU32,
}

impl LiveLimits {
    /// The limits that `config` begins with.
    pub fn new(config: &Config) -> Arc<Self> {
        let limits = Self::default();
        limits.set(config);
        Arc::new(limits)
    }

    /// Takes the limits of `config` over.
    pub fn set(&self, config: &Config) {
        let limits = &config.limits;
        self.max_sessions.store(limits.max_sessions, Relaxed);
        self.max_sessions_per_ip.store(limits.max_sessions_per_ip, Relaxed);
        self.max_sessions_per_user.store(limits.max_sessions_per_user, Relaxed);
        self.accepts_per_second.store(limits.accepts_per_second, Relaxed);
        self.max_topics.store(config.session.max_topics, Relaxed);
        self.max_inbound_per_second.store(config.session.max_inbound_per_second, Relaxed);
    }

    /// Sessions in all.
    pub fn max_sessions(&self) -> usize {
        self.max_sessions.load(Relaxed)
    }

    /// Sessions per client address; 0 is off.
    pub fn max_sessions_per_ip(&self) -> usize {
        self.max_sessions_per_ip.load(Relaxed)
    }

    /// Sessions per user over all replicas; 0 is off.
    pub fn max_sessions_per_user(&self) -> usize {
        self.max_sessions_per_user.load(Relaxed)
    }

    /// New connections per second.
    pub fn accepts_per_second(&self) -> u32 {
        self.accepts_per_second.load(Relaxed)
    }

    /// Subscriptions per session.
    pub fn max_topics(&self) -> usize {
        self.max_topics.load(Relaxed)
    }

    /// Messages per second and session.
    pub fn max_inbound_per_second(&self) -> f64 {
        f64::from(self.max_inbound_per_second.load(Relaxed))
    }
}
