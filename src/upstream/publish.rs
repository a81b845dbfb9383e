//! Our own publisher: writes a quote's keys, then announces it.

pub mod statement;
