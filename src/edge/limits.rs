//! How many sessions there may be, in all and per client address.
//!
//! A permit is held from the admission until the session ends, wherever that happens; dropping it is what
//! gives the place back.
//!
//! Not here: the client's address behind proxies (`edge::address`), connections that aren't sessions
//! (`edge::accept`).

use crate::config::live::LiveLimits;
use crate::metrics::edge::Refusal;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A household has at least this much of IPv6; single addresses in it are free to choose.
const IPV6_PREFIX: u32 = 64;

/// The places for sessions.
pub struct Places {
    limits: Arc<LiveLimits>,
    n_sessions: AtomicUsize,
    /// Only addresses with sessions, so bounded by them. Counted also while the limit is off, so that it holds for
    /// those who are there when it is turned on.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl Places {
    /// Places for as many sessions as `limits` say at the time.
    pub fn new(limits: Arc<LiveLimits>) -> Arc<Self> {
        let (n_sessions, by_address) = Default::default();
        Arc::new(Self { limits, n_sessions, by_address })
    }

    /// Sessions at this moment.
    pub fn n_sessions(&self) -> usize {
        self.n_sessions.load(Ordering::Relaxed)
    }

    /// Takes a place for a session of `address`.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Result<Permit, Refusal> {
        // The permit exists before its address is counted, so that a refusal gives the place back.
        let mut permit = Permit { places: Arc::clone(self), address: None };
        if self.n_sessions.fetch_add(1, Ordering::Relaxed) >= self.limits.max_sessions() {
            return Err(Refusal::Sessions);
        }
        let (address, most) = (household(address), self.limits.max_sessions_per_ip());
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let n = by_address.entry(address).or_default();
        if most > 0 && *n >= most {
            drop(by_address);
            return Err(Refusal::Address);
        }
        *n += 1;
        permit.address = Some(address);
        Ok(permit)
    }
}

/// A session's place.
pub struct Permit {
    places: Arc<Places>,
    address: Option<IpAddr>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.places.n_sessions.fetch_sub(1, Ordering::Relaxed);
        let Some(address) = self.address else { return };
        let mut by_address = self.places.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = by_address.get_mut(&address) {
            *n -= 1;
            if *n == 0 {
                by_address.remove(&address);
            }
        }
    }
}

fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - IPV6_PREFIX)))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn places(max_sessions: usize, max_sessions_per_ip: usize) -> (Arc<Places>, Arc<LiveLimits>) {
        let limits = LiveLimits::new(&config(max_sessions, max_sessions_per_ip));
        (Places::new(Arc::clone(&limits)), limits)
    }

    fn config(max_sessions: usize, max_sessions_per_ip: usize) -> Config {
        let mut config = Config::default();
        config.limits.max_sessions = max_sessions;
        config.limits.max_sessions_per_ip = max_sessions_per_ip;
        config
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_place_comes_back_with_the_permit() {
        let (places, _) = places(2, 0);
        let first = places.take(ip("10.0.0.1")).expect("room");
        let _second = places.take(ip("10.0.0.1")).expect("room");
        assert_eq!(places.take(ip("10.0.0.2")).err(), Some(Refusal::Sessions));
        assert_eq!(places.n_sessions(), 2);
        drop(first);
        assert!(places.take(ip("10.0.0.2")).is_ok());
    }

    #[test]
    fn an_address_has_its_own_limit_and_leaves_nothing_behind() {
        let (places, _) = places(100, 1);
        let held = places.take(ip("10.0.0.1")).expect("room");
        for same in ["10.0.0.1", "::ffff:10.0.0.1"] {
            assert_eq!(places.take(ip(same)).err(), Some(Refusal::Address), "{same}");
        }
        assert_eq!(places.n_sessions(), 1);
        let v6 = places.take(ip("2001:db8::1")).expect("room");
        assert_eq!(places.take(ip("2001:db8::ffff")).err(), Some(Refusal::Address));
        assert!(places.take(ip("2001:db8:0:1::1")).is_ok());
        drop((held, v6));
        assert!(places.by_address.lock().expect("not poisoned").is_empty());
    }

    #[test]
    fn a_changed_limit_holds_for_who_comes_and_counts_who_is_there() {
        let (places, limits) = places(2, 0);
        let held: Vec<_> = (0..2).map(|_| places.take(ip("10.0.0.1")).expect("room")).collect();
        limits.set(&config(3, 2));
        assert_eq!(places.take(ip("10.0.0.1")).err(), Some(Refusal::Address));
        let third = places.take(ip("10.0.0.2")).expect("room");
        limits.set(&config(1, 0));
        assert_eq!(places.take(ip("10.0.0.2")).err(), Some(Refusal::Sessions));
        drop((held, third));
        assert!(places.take(ip("10.0.0.1")).is_ok());
    }
}
