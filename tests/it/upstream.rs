//! The live stream from real Redis servers into the fan-out, with nothing of the browser side.

mod faults;
mod listener;
mod stream;
