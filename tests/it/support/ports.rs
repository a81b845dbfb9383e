//! Ports for servers that are told their port instead of choosing it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

/// Below the range from which the kernel takes the ports of outgoing connections: a server that is
/// down for a while must find its port free when it comes back, and a client that retries a closed
/// port of that range can even end up connected to itself.
const FIRST: u16 = 10_000;
const LAST: u16 = 22_000;

/// Distance of a cluster node's bus port, where Redis expects it.
pub const BUS_OFFSET: u16 = 10_000;

static TAKEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// A port on which nothing listens, handed out once per process.
pub fn free() -> u16 {
    pick(is_free)
}

/// A port that is free together with its cluster bus port.
pub fn free_with_bus() -> u16 {
    pick(|port| is_free(port) && is_free(port + BUS_OFFSET))
}

fn pick(fits: impl Fn(u16) -> bool) -> u16 {
    let mut taken = TAKEN.lock().unwrap();
    // Several test processes may run on one machine, so that each begins elsewhere.
    let start = RandomState::new().hash_one(std::process::id()) as u16;
    let span = LAST - FIRST;
    let port = (0..span)
        .map(|i| FIRST + (start % span + i) % span)
        .find(|port| !taken.contains(port) && fits(*port))
        .expect("a free port among twelve thousand");
    taken.push(port);
    port
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
