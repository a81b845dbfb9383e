//! What is configured about lossless streams.

use std::time::Duration;

/// What a request for a stream that doesn't exist gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnknownStream {
    /// A session that waits for the stream to begin: clients often come before the first token.
    Wait,
    /// 404.
    NotFound,
}

/// `streams.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Streams {
    /// Whether streams are served.
    pub enabled: bool,
    /// What a stream's key begins with, before the id in braces.
    pub prefix: String,
    /// What a request for a stream that doesn't exist gets.
    pub unknown: UnknownStream,
    /// Without an entry for this long a session is told that its stream stalls. Models pause for seconds between
    /// tokens; a minute would leave a reader guessing.
    pub producer_timeout: Duration,
    /// Without an entry for this long a session is closed: its producer has died without an end.
    pub abandon_timeout: Duration,
    /// Entries that `POST /streams/<id>` keeps, about. An answer has some thousands.
    pub max_entries: usize,
    /// How long a stream is kept after the last `POST /streams/<id>`. Bounds how late a client can resume.
    pub ttl: Duration,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            enabled: true,
            prefix: "stream:".into(),
            unknown: UnknownStream::Wait,
            producer_timeout: Duration::from_secs(30),
            abandon_timeout: Duration::from_secs(300),
            max_entries: 10_000,
            ttl: Duration::from_secs(3_600),
        }
    }
}
