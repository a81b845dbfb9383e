//! The edge over real sockets, with the test in the place of the lanes.

mod descriptors;
mod lifetime;
mod limits;
mod operators;
mod requests;
mod sessions;
mod stand;
