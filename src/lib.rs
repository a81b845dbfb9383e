//! tickbridge carries market prices from Redis to browsers.

pub mod catch_up;
pub mod cli;
pub mod clock;
pub mod config;
pub mod fanout;
pub mod instrument;
pub mod lane;
pub mod metrics;
pub mod protocol;
pub mod quote;
pub mod session;
pub mod topic;
pub mod upstream;
