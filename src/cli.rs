//! The subcommands.

pub mod feed;
