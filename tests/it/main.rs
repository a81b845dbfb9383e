//! The gateway from outside: a module per behaviour, against real servers and real sockets.
//!
//! Every test starts the servers that it needs itself, on free ports, and ends them by their process
//! ids. Real time, real handshakes, bounded waits; no test is repeated and none depends on another.

#![allow(clippy::disallowed_methods, reason = "tests end their tasks with their runtime")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on ends with the error")]

mod browser_control;
mod cli;
mod client_js;
mod config;
mod deploy;
mod process;
mod proxies;
mod redis_commands;
mod redis_servers;
mod simulation;
mod support;
mod tidy;
mod upstream;
mod watchers;
