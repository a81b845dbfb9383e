//! Our own publisher: writes a quote's keys, then announces it.

mod resp;
pub mod statement;
pub mod text;
