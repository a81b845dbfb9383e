//! The live stream from real Redis servers into the fan-out, with nothing of the browser side.

mod cluster_faults;
mod listener;
mod modes;
mod packets;
mod server_faults;
mod stream;
mod traffic;
