//! tickbridge carries market prices from Redis to browsers.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests end their tasks with their runtime"))]

pub mod catch_up;
pub mod cli;
pub mod clock;
pub mod config;
pub mod edge;
pub mod fanout;
pub mod instrument;
pub mod lane;
pub mod metrics;
pub mod protocol;
pub mod publish;
pub mod quote;
pub mod session;
pub mod shutdown;
pub mod telemetry;
pub mod topic;
pub mod upstream;
