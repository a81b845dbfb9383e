//! How the process's descriptors are shared out: for connections, for those that are being refused, and for
//! Redis, files and the admin listener.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept back at most; with small limits it is a quarter.
const MAX_RESERVED: usize = 192;

/// The part of what is kept back that refused connections may hold while they read their answer: 1/3.
const LINGERING_SHARE: usize = 3;

/// What the public listener may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Open connections, sessions included.
    pub max_open: usize,
    /// Refused connections that are waited for.
    pub max_lingering: usize,
}

impl Budget {
    /// Shares out `limit` descriptors.
    pub fn of(limit: usize) -> Self {
        let reserved = MAX_RESERVED.min(limit / 4);
        Self { max_open: limit - reserved, max_lingering: reserved / LINGERING_SHARE }
    }
}

/// Raises the process's limit as far as it may, and gives it. The low default exists for programs that wait
/// with `select`, which this one doesn't.
pub fn raise_limit() -> usize {
    let before = getrlimit(Resource::Nofile);
    // Fails where the system allows less than it says; what counts is read again.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_kept_back_whatever_the_limit() {
        for (limit, max_open, max_lingering) in
            [(128, 96, 10), (1_024, 832, 64), (20_000, 19_808, 64), (usize::MAX, usize::MAX - 192, 64)]
        {
            assert_eq!(Budget::of(limit), Budget { max_open, max_lingering }, "{limit}");
        }
    }
}
