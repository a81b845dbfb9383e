//! Publishes quotes that are handed in over HTTP, seen from the core.
//!
//! Not here: Redis (`upstream::publish`), the embedded bus (`upstream::embedded`), HTTP (`edge`).

use std::future::Future;
use std::pin::Pin;

/// What became of one payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Published {
    /// Stored and announced.
    Done,
    /// Refused: what is stored is newer.
    Older,
    /// Refused: no quote. The reason is one of a closed set of words.
    Unusable(&'static str),
    /// Not done; worth another try if `retry`. A part of it may have been done.
    Failed {
        /// Whether trying again may help without anybody acting.
        retry: bool,
    },
}

/// Where quotes can be published to.
pub trait QuotePublisher: Send + Sync + 'static {
    /// Publishes payloads as the Redis contract describes them, and says what became of each, in their
    /// order. Payloads of one instrument are published in their order. Ends within a few command
    /// timeouts whatever happens.
    fn publish(&self, payloads: Vec<Vec<u8>>) -> Pin<Box<dyn Future<Output = Vec<Published>> + Send + '_>>;
}
