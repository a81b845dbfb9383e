//! What the tests share: real servers as child processes, faults as named verbs, browsers, waiting.

#![allow(dead_code, reason = "a verb stays when the last test that needs it moves")]

pub mod browser;
pub mod chaos;
pub mod cluster;
pub mod gateway;
pub mod http;
pub mod metrics;
pub mod ports;
pub mod process;
pub mod publisher;
pub mod raw_ws;
pub mod redis;
pub mod sse;
pub mod swarm;
pub mod tls;
pub mod token;
pub mod wait;
pub mod world;
pub mod ws;
