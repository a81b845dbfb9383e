//! The live stream from real Redis servers into the fan-out, with nothing of the browser side.

mod cluster_cuts;
mod cluster_faults;
mod listener;
mod modes;
mod packets;
mod scene;
mod server_faults;
mod stream;
mod traffic;
