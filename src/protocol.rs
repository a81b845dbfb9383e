//! The wire contract between a browser and the gateway: messages, frames, close reasons, cursors.
//!
//! Invariants:
//! - Names, spelling and order of what existing front ends read never change; the rest may grow.
//! - An event is encoded once, however many sessions receive it and over whichever transport.
//!
//! Not here: sockets (`lane`), HTTP (`edge`), Redis payloads (`upstream::payload`).

pub mod client;
pub mod close;
pub mod cursor;
pub mod event;
pub mod frame;
pub mod server;
pub mod stream;
