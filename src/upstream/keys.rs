//! Names of the keys that the gateway reads and writes. Those of an instrument share its hash tag, so
//! that they lie in one slot.

use crate::instrument::InstrumentId;

/// Holds the newest price, as JSON.
pub fn price(id: InstrumentId) -> String {
    format!("market:current-price:{{stock:{id}}}")
}

/// Holds when the price was written, in milliseconds since the Unix epoch.
pub fn updated_at(id: InstrumentId) -> String {
    format!("market:current-price-updated-at:{{stock:{id}}}")
}

/// Holds who watches the instrument.
pub fn watchers(id: InstrumentId) -> String {
    format!("market:current-watcher:{{stock:{id}}}")
}

/// Holds whom a one-time ticket stands for.
pub fn ticket(ticket: &str) -> String {
    format!("tickbridge:ticket:{ticket}")
}

/// Holds how many sessions the user has on which replica.
pub fn user_sessions(user: &str) -> String {
    format!("tickbridge:sessions:{user}")
}
