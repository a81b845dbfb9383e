//! One-time tickets in Redis, so that every replica can redeem what any of them issued.
//!
//! A ticket's value is JSON with what the token proved, never the token itself. One that can't be read, as of
//! another version, stands for nobody.
//!
//! Not here: what a ticket is good for (`session::tickets`).

use super::commands::{Commands, Routed};
use super::keys;
use super::slots::slot;
use crate::clock::Now;
use crate::session::Principal;
use crate::session::permission::{Grant, Pattern, Permissions};
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
        let mut answers = self.commands.run(vec![Routed { slot, command }]).await;
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

/// The user, the expiry of the token with the leeway, and the patterns of topics and of streams; `null` is never, and
/// everything.
/// A list, so that nothing can be missing from it.
type Stored = (String, Option<i64>, Option<Vec<String>>, Option<Vec<String>>);

fn text(principal: &Principal) -> String {
    let Principal { user_id, expires_at, permissions } = principal;
    let Permissions { topics, streams } = permissions;
    let stored: Stored = (user_id.to_string(), *expires_at, topics.patterns(), streams.patterns());
    serde_json::to_string(&stored).expect("text, numbers and lists of text are JSON")
}

fn principal(value: &[u8]) -> Option<Principal> {
    let (user_id, expires_at, topics, streams): Stored = serde_json::from_slice(value).ok()?;
    let permissions = Permissions { topics: granted(topics)?, streams: granted(streams)? };
    Some(Principal { user_id: user_id.into(), expires_at, permissions })
}

fn granted<P: Pattern>(patterns: Option<Vec<String>>) -> Option<Grant<P>> {
    patterns.map_or(Some(Grant::All), Grant::read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_survives_the_journey() {
        let limited = Permissions {
            topics: Grant::read(["5", "7..9"]).expect("readable"),
            streams: Grant::read(["chat:7", "demo-*"]).expect("readable"),
        };
        let nothing = Permissions { topics: Grant::none(), streams: Grant::none() };
        for (user_id, expires_at, permissions) in [
            ("42", Some(1_760_000_000), Permissions::default()),
            ("a:b\"c", None, limited),
            ("-", Some(-1), nothing),
        ] {
            let before = Principal { user_id: user_id.into(), expires_at, permissions };
            assert_eq!(principal(text(&before).as_bytes()), Some(before));
        }
    }

    #[test]
    fn what_is_not_understood_stands_for_nobody() {
        for bad in [
            "",
            "1760000000:42",
            "{}",
            r#"["42"]"#,
            r#"["42",1]"#,
            r#"["42",1,null]"#,
            r#"["42",1,["x"],null]"#,
            r#"["42",1,null,["*a"]]"#,
            r#"["42",1,null,null,["a"]]"#,
        ] {
            assert_eq!(principal(bad.as_bytes()), None, "{bad}");
        }
    }
}
