//! tickbridge carries market prices from Redis to browsers.
//!
//! ```text
//! Redis ──► upstream ──► fanout ──► lane 0..n-1 ──► socket ──► browser
//!    ▲                     ▲           │ index, newest quotes, outboxes
//!    └── keys: catch_up ───┘           │
//! browser ──► edge (accept, HTTP, auth, limits) ──► hands the session to a lane
//! ```
//!
//! Invariants, each kept in one place:
//! - For one session and instrument, versions never go back: the gate in `fanout`.
//! - A quote that wasn't sent is replaced by a newer one and never queued behind it: `lane::outbox`.
//! - `offered = delivered + conflated + dropped + pending`: `lane::books`.
//! - After any fault that heals, every subscription shows the newest stored quote: `catch_up`.
//!
//! Imports point at the core: domain ← core ← `upstream` and `edge`, which never meet; `app` wires them.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests end their tasks with their runtime"))]

// The domain.
pub mod clock;
pub mod entry;
pub mod instrument;
pub mod protocol;
pub mod quote;
pub mod topic;

// The core: neither Redis nor HTTP.
pub mod catch_up;
pub mod fanout;
pub mod lane;
pub mod publish;
pub mod session;
pub mod stream;

// The two sides.
pub mod edge;
pub mod upstream;

// The process.
pub mod app;
pub mod cli;
pub mod config;
pub mod metrics;
pub mod shutdown;
pub mod telemetry;
