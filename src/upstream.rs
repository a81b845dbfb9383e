//! The Redis side: the only part that knows Redis.
//!
//! Live quotes come in through `subscriber`, one RESP3 connection per primary that carries nothing but
//! subscriptions; commands go out through pools of their own. A subscription connection never carries a
//! command whose answer matters: an unsolicited `sunsubscribe` takes the place of a pending answer.
//!
//! Not here: which quote is newer (`quote`), who gets it (`fanout`), anything about browsers.

mod backoff;
pub mod channels;
pub mod commands;
pub mod connection;
pub mod coverage;
pub mod embedded;
pub mod feed;
pub mod keys;
pub mod migrate;
mod node;
pub mod payload;
pub mod probe;
pub mod publish;
pub mod readiness;
mod sink;
pub mod slots;
pub mod snapshot;
pub mod streams;
pub mod subscriber;
pub mod tickets;
pub mod topology;
pub mod user_places;
pub mod watchers;
mod wire;
