//! What the tests share: real servers as child processes, faults as named verbs, browsers, waiting.

#![allow(dead_code, reason = "a verb stays when the last test that needs it moves")]

pub mod chaos;
pub mod cluster;
pub mod ports;
pub mod process;
pub mod publisher;
pub mod redis;
pub mod wait;
