//! The edge over real sockets, with the test in the place of the lanes.

mod sessions;
mod stand;
