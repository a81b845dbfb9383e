//! The Redis side: everything that knows Redis, its names and its payloads.

pub mod publish;
