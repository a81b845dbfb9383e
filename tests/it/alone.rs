//! What measures time or fills the machine: run one after the other, apart from everything else, by
//! `make test`.

mod capacity;
mod idle;
mod latency;
mod order;
mod rolling;
mod stall;
mod stopped;
mod storm;
mod stream_load;
mod streams;
