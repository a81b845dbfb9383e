//! How many sessions there may be, in all and per client address.
//!
//! A permit is held from the admission until the session ends, wherever that happens; dropping it is what
//! gives the place back.
//!
//! Not here: the client's address behind proxies (`edge::address`), connections that aren't sessions
//! (`edge::accept`).

use crate::metrics::edge::Refusal;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A household has at least this much of IPv6; single addresses in it are free to choose.
const IPV6_PREFIX: u32 = 64;

/// The places for sessions.
pub struct Places {
    max_sessions: usize,
    max_per_address: usize,
    n_sessions: AtomicUsize,
    /// Only addresses with sessions, so bounded by them; empty while the limit is off.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl Places {
    /// Places for `max_sessions`, of which `max_per_address` may have the same address; 0 is off.
    pub fn new(max_sessions: usize, max_per_address: usize) -> Arc<Self> {
        let (n_sessions, by_address) = Default::default();
        Arc::new(Self { max_sessions, max_per_address, n_sessions, by_address })
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
        if self.n_sessions.fetch_add(1, Ordering::Relaxed) >= self.max_sessions {
            return Err(Refusal::Sessions);
        }
        if self.max_per_address > 0 {
            let address = household(address);
            let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
            let n = by_address.entry(address).or_default();
            if *n >= self.max_per_address {
                drop(by_address);
                return Err(Refusal::Address);
            }
            *n += 1;
            permit.address = Some(address);
        }
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

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_place_comes_back_with_the_permit() {
        let places = Places::new(2, 0);
        let first = places.take(ip("10.0.0.1")).expect("room");
        let _second = places.take(ip("10.0.0.1")).expect("room");
        assert_eq!(places.take(ip("10.0.0.2")).err(), Some(Refusal::Sessions));
        assert_eq!(places.n_sessions(), 2);
        drop(first);
        assert!(places.take(ip("10.0.0.2")).is_ok());
    }

    #[test]
    fn an_address_has_its_own_limit_and_leaves_nothing_behind() {
        let places = Places::new(100, 1);
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
}
