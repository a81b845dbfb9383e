//! One-time tickets: a random name that stands for a principal until it is used, so that no token ever
//! stands in a URL.
//!
//! Not here: the store that all replicas share (`upstream`), the endpoint (`edge::ticket`).

use crate::clock::Now;
use crate::session::Principal;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a ticket is good. A page asks for it right before it connects; longer only widens the time
/// in which a leaked URL is worth something.
pub const TTL: Duration = Duration::from_secs(30);

/// Random bytes of a ticket. 24 can't be guessed in 30 seconds, and need no padding in base64.
const RANDOM_BYTES: usize = 24;

/// Characters of a ticket.
const TEXT_LEN: usize = RANDOM_BYTES / 3 * 4;

/// Tickets that wait in memory at most, about 20 MiB. Two thousand a second for their whole life is 60,000.
const MAX_WAITING: usize = 100_000;

/// The store can't take or find a ticket at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the ticket store can't be reached or is full")]
pub struct StoreUnavailable;

/// The answer of a store.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreUnavailable>> + Send + 'a>>;

/// Keeps tickets until they are used. Every call ends within the store's own deadline.
pub trait Tickets: Send + Sync + 'static {
    /// Keeps `principal` under `ticket` for [`TTL`].
    fn put(&self, ticket: String, principal: Principal, now: Now) -> Answer<'_, ()>;

    /// Gives what `ticket` stands for, once.
    fn take(&self, ticket: String, now: Now) -> Answer<'_, Option<Principal>>;
}

/// A ticket that nobody can guess.
pub fn fresh() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; RANDOM_BYTES]>())
}

/// Whether `text` can be a ticket at all; what can't is not worth asking a store.
pub fn is_plausible(text: &str) -> bool {
    text.len() == TEXT_LEN && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Tickets of a single process.
#[derive(Default)]
pub struct MemoryTickets {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    principals: HashMap<String, Principal>,
    /// All tickets live equally long, so the order of issue is the order of expiry. Used ones stay here
    /// until their time.
    by_expiry: VecDeque<(Duration, String)>,
}

impl Waiting {
    fn forget_expired(&mut self, now: Now) {
        while self.by_expiry.front().is_some_and(|(until, _)| *until <= now.mono) {
            if let Some((_, ticket)) = self.by_expiry.pop_front() {
                self.principals.remove(&ticket);
            }
        }
    }
}

impl MemoryTickets {
    fn with<T>(&self, now: Now, act: impl FnOnce(&mut Waiting) -> T) -> T {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.forget_expired(now);
        act(&mut waiting)
    }
}

impl Tickets for MemoryTickets {
    fn put(&self, ticket: String, principal: Principal, now: Now) -> Answer<'_, ()> {
        let answer = self.with(now, |waiting| {
            if waiting.by_expiry.len() >= MAX_WAITING {
                return Err(StoreUnavailable);
            }
            waiting.by_expiry.push_back((now.mono + TTL, ticket.clone()));
            waiting.principals.insert(ticket, principal);
            Ok(())
        });
        Box::pin(std::future::ready(answer))
    }

    fn take(&self, ticket: String, now: Now) -> Answer<'_, Option<Principal>> {
        let principal = self.with(now, |waiting| waiting.principals.remove(&ticket));
        Box::pin(std::future::ready(Ok(principal)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::permission::Permissions;

    fn at(secs: u64) -> Now {
        Now { mono: Duration::from_secs(secs), unix_us: 0 }
    }

    fn somebody() -> Principal {
        Principal { user_id: "42".into(), expires_at: Some(7), permissions: Permissions::default() }
    }

    #[tokio::test]
    async fn a_ticket_is_good_once() {
        let tickets = MemoryTickets::default();
        tickets.put("a".into(), somebody(), at(0)).await.expect("room");
        assert_eq!(tickets.take("b".into(), at(1)).await, Ok(None));
        assert_eq!(tickets.take("a".into(), at(1)).await, Ok(Some(somebody())));
        assert_eq!(tickets.take("a".into(), at(1)).await, Ok(None));
    }

    #[tokio::test]
    async fn a_ticket_expires() {
        let tickets = MemoryTickets::default();
        tickets.put("a".into(), somebody(), at(0)).await.expect("room");
        assert_eq!(tickets.take("a".into(), at(30)).await, Ok(None));
    }

    #[tokio::test]
    async fn unused_tickets_are_bounded_and_make_room_when_they_expire() {
        let tickets = MemoryTickets::default();
        for n in 0..MAX_WAITING {
            tickets.put(n.to_string(), somebody(), at(0)).await.expect("room");
        }
        assert_eq!(tickets.put("one more".into(), somebody(), at(29)).await, Err(StoreUnavailable));
        assert_eq!(tickets.put("one more".into(), somebody(), at(30)).await, Ok(()));
    }

    #[test]
    fn fresh_tickets_are_plausible_and_differ() {
        let (a, b) = (fresh(), fresh());
        assert!(is_plausible(&a) && is_plausible(&b) && a != b);
        assert!(!is_plausible("") && !is_plausible(&a[1..]) && !is_plausible(&format!("{}\n", &a[1..])));
    }
}
