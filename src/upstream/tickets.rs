//! One-time tickets in Redis, so that every replica can redeem what any of them issued.
//!
//! A ticket's value is `<expiry>:<user>`, where the expiry is that of the token in seconds since the Unix
//! epoch or `-`. The token itself is never stored.
//!
//! Not here: what a ticket is good for (`session::tickets`).

use super::commands::{Commands, Routed};
use super::keys;
use super::slots::slot;
use crate::clock::Now;
use crate::session::Principal;
use crate::session::tickets::{Answer, StoreUnavailable, TTL, Tickets};
use redis::{Value, cmd};
use std::sync::Arc;

/// Tickets that all replicas share.
pub struct RedisTickets {
    commands: Arc<Commands>,
}

impl RedisTickets {
    /// Keeps tickets through `commands`.
    pub fn new(commands: Arc<Commands>) -> Self {
        Self { commands }
    }

    async fn ask(&self, slot: u16, command: redis::Cmd) -> Result<Value, StoreUnavailable> {
        let mut answers = self.commands.run(&[Routed { slot, command }]).await;
        answers.pop().and_then(Result::ok).ok_or(StoreUnavailable)
    }
}

impl Tickets for RedisTickets {
    fn put(&self, ticket: String, principal: Principal, _now: Now) -> Answer<'_, ()> {
        let key = keys::ticket(&ticket);
        let set = cmd("SET").arg(&key).arg(text(&principal)).arg("EX").arg(TTL.as_secs()).to_owned();
        Box::pin(async move { self.ask(slot(key.as_bytes()), set).await.map(|_| ()) })
    }

    /// Where the connection breaks between the server's answer and us, the ticket is used up although nobody
    /// got it; the client asks for another.
    fn take(&self, ticket: String, _now: Now) -> Answer<'_, Option<Principal>> {
        let key = keys::ticket(&ticket);
        let take = cmd("GETDEL").arg(&key).to_owned();
        Box::pin(async move {
            match self.ask(slot(key.as_bytes()), take).await? {
                Value::BulkString(value) => Ok(principal(&value)),
                _ => Ok(None),
            }
        })
    }
}

fn text(principal: &Principal) -> String {
    let expires_at = principal.expires_at.map_or("-".to_owned(), |at| at.to_string());
    format!("{expires_at}:{}", principal.user_id)
}

fn principal(value: &[u8]) -> Option<Principal> {
    let (expires_at, user_id) = std::str::from_utf8(value).ok()?.split_once(':')?;
    let expires_at = if expires_at == "-" { None } else { Some(expires_at.parse().ok()?) };
    Some(Principal { user_id: user_id.into(), expires_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_survives_the_journey() {
        for (user_id, expires_at) in [("42", Some(1_760_000_000)), ("a:b", None), ("-", Some(-1))] {
            let before = Principal { user_id: user_id.into(), expires_at };
            assert_eq!(principal(text(&before).as_bytes()), Some(before));
        }
        for bad in [&b"x:42"[..], b"42", b"", b"\xff:1"] {
            assert_eq!(principal(bad), None);
        }
    }
}
