//! Revisions: the store's logical time.
//!
//! A write request takes one `main`; its changes are numbered by `sub` in the order of execution.
//! Clients see `main` alone.

use std::fmt;

/// The place of one change in the history of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// Number of the request that changed something; the first write of a fresh store gets 2.
    pub main: i64,
    /// Number of the change within that request, from 0.
    pub sub: i64,
}

impl Revision {
    /// The revision of change `sub` of request `main`.
    pub const fn new(main: i64, sub: i64) -> Self {
        Self { main, sub }
    }

    /// The first revision that a request `main` can have.
    pub const fn first(main: i64) -> Self {
        Self { main, sub: 0 }
    }

    /// A revision that is not before any of request `main`.
    pub const fn last(main: i64) -> Self {
        Self { main, sub: i64::MAX }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.main, self.sub)
    }
}

/// The revision of a fresh store.
pub const FRESH: i64 = 1;

/// What "compacted" is while nothing was compacted yet.
pub const NEVER_COMPACTED: i64 = -1;

/// The moment that a read sees: what the published state says about the view that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAt {
    /// Current revision of the store.
    pub revision: i64,
    /// Everything before this revision is gone; [`NEVER_COMPACTED`] if nothing is.
    pub compacted: i64,
}
