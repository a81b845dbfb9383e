//! Faults of real servers.
