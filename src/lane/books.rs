//! The accounts of one lane: what was offered to sessions and what became of it.
//!
//! `offered = delivered + conflated + dropped + pending`, always, where `pending` is counted from the
//! sessions themselves and not derived. The lane counts in plain integers and publishes them once per
//! pass, so that counting costs nothing per delivery.

use crate::protocol::close::CloseReason;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Why a quote that was offered to a session is nobody's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// The client took the topic back.
    Unsubscribed,
    /// The client closed or is gone.
    ClientGone,
    /// The session was closed as a slow consumer.
    SlowConsumer,
    /// The session was told to reconnect while draining.
    Drained,
    /// The session was closed for another reason of ours.
    SessionClosed,
}

impl DropReason {
    /// Every reason, in the order of the metric's labels.
    pub const ALL: [DropReason; 5] = [
        DropReason::Unsubscribed,
        DropReason::ClientGone,
        DropReason::SlowConsumer,
        DropReason::Drained,
        DropReason::SessionClosed,
    ];

    /// The value of the metric's `reason` label.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unsubscribed => "unsubscribed",
            Self::ClientGone => "client_gone",
            Self::SlowConsumer => "slow_consumer",
            Self::Drained => "drained",
            Self::SessionClosed => "session_closed",
        }
    }

    /// What a close means for the quotes that were still due.
    pub const fn of_close(reason: CloseReason) -> Self {
        match reason {
            CloseReason::Normal | CloseReason::Gone => Self::ClientGone,
            CloseReason::SlowConsumer => Self::SlowConsumer,
            CloseReason::ServiceRestart => Self::Drained,
            _ => Self::SessionClosed,
        }
    }
}

/// Upper bounds of the buckets of [`Stage`], in microseconds.
pub const STAGE_BOUNDS_US: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    5_000_000, 60_000_000,
];

/// Counts of one latency stage by bucket, the last one for what exceeds every bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stage {
    /// Count per bucket, not cumulated.
    pub buckets: [u64; STAGE_BOUNDS_US.len() + 1],
    /// Sum of everything counted, in microseconds.
    pub sum_us: u64,
}

impl Stage {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        self.buckets[Self::bucket(duration)] += 1;
        self.sum_us = self.sum_us.saturating_add(micros(duration));
    }

    /// Which bucket a duration falls into.
    pub fn bucket(duration: Duration) -> usize {
        let us = micros(duration);
        STAGE_BOUNDS_US.partition_point(|&bound| bound < us)
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// What a lane counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Books {
    /// Quotes times sessions that they were meant for.
    pub offered: u64,
    /// Written to the session's socket completely.
    pub delivered: u64,
    /// Replaced by a newer quote before they were written.
    pub conflated: u64,
    /// Nobody will get them.
    pub dropped: [u64; DropReason::ALL.len()],
    /// Counted in the sessions at the last look.
    pub pending: u64,
    /// Sessions over WebSocket and SSE.
    pub sessions: [u64; 2],
    /// Sessions ever opened, by transport.
    pub opened: [u64; 2],
    /// Sessions ended, by reason.
    pub closed: [u64; CloseReason::ALL.len()],
    /// Subscriptions in all.
    pub subscriptions: u64,
    /// Calls of `write`.
    pub writes: u64,
    /// Bytes that the kernel took.
    pub written_bytes: u64,
    /// Messages from clients.
    pub inbound: u64,
    /// Age of the oldest unsent quote at the last look, in milliseconds.
    pub backlog_age_ms: u64,
    /// From the encoding to the write of each delivered quote.
    pub emitted_to_written: Stage,
}

impl Books {
    /// `offered` less everything that it must equal; anything but 0 is a fault.
    pub fn imbalance(&self) -> i64 {
        let settled = self.delivered + self.conflated + self.dropped.iter().sum::<u64>() + self.pending;
        self.offered as i64 - settled as i64
    }
}

/// A lane's books as others may read them, a fraction of a second old.
#[derive(Debug, Default)]
pub struct PublishedBooks(Mutex<Books>);

impl PublishedBooks {
    /// Publishes a copy, whose `pending` must have been counted at this moment.
    pub fn publish(&self, books: &Books) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = *books;
    }

    /// The last copy.
    pub fn read(&self) -> Books {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
