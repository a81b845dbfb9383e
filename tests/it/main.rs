//! The gateway from outside: a module per behaviour, against real servers and real sockets.
//!
//! Every test starts the servers that it needs itself, on free ports, and ends them by their process
//! ids. Real time, real handshakes, bounded waits; no test is repeated and none depends on another.

#![allow(clippy::disallowed_methods, reason = "tests end their tasks with their runtime")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on ends with the error")]

mod alone;
mod asyncapi;
mod auth;
mod browser_control;
mod catch_up;
mod cli;
mod client_js;
mod closing;
mod compose;
mod config;
mod contract;
mod deploy;
mod digits;
mod drain;
mod examples;
mod full_pipe;
mod fuzz;
mod ingest;
mod limits;
mod live_page;
mod main_job;
mod ops;
mod permissions;
mod process;
mod proxies;
mod publish;
mod redis_commands;
mod redis_faults;
mod redis_servers;
mod reload;
mod schema;
mod simulation;
mod slow_consumer;
mod sse;
mod start;
mod streams;
mod subscribe;
mod support;
mod tidy;
mod upstream;
mod user_places;
mod watched;
mod watchers;
