//! `tickbridge feed`: publishes quotes into Redis at a given rate.

pub mod source;
