//! What clients asked and what they were told.
//!
//! **Invariant:** every written value is unique, so that a value in the history names the
//! operation that wrote it.

use bytes::Bytes;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// The revision that wrote it.
    pub(super) revision: i64,
    /// The value.
    pub(super) value: Bytes,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Put with prev_kv.
    Put {
        /// The key.
        key: Bytes,
        /// A unique value.
        value: Bytes,
    },
    /// Put with a lease that does not exist: must be refused.
    Refusable {
        /// The key.
        key: Bytes,
        /// A unique value, which may never be seen.
        value: Bytes,
    },
    /// Deletes one key, with prev_kv.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Deletes all keys that start so, with prev_kv.
    DeletePrefix {
        /// The start of the keys.
        prefix: Bytes,
    },
    /// A transaction: if `key` was last modified at `expected` (0: does not exist), puts `key` and
    /// `mirror`, else reads `key`.
    Swap {
        /// The compared key.
        key: Bytes,
        /// The expected mod revision.
        expected: i64,
        /// A unique value.
        value: Bytes,
        /// The second key.
        mirror: Bytes,
        /// Its unique value.
        mirror_value: Bytes,
    },
    /// Reads one key.
    Get {
        /// The key.
        key: Bytes,
        /// Whether an old state will do.
        serializable: bool,
    },
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// To a put: what the key held before.
    Put(Option<Version>),
    /// To deletes: count, and what the keys held before.
    Deleted(i64, Vec<(Bytes, Version)>),
    /// To a swap whose comparison held.
    Swapped,
    /// To a read, or to a swap whose comparison did not hold.
    Found(Option<Version>),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With an answer.
    Acked {
        /// Revision of the answer's header.
        revision: i64,
        /// The rest.
        answer: Answer,
    },
    /// With an error that says that nothing was done.
    Failed(String),
    /// With an error that leaves open whether it was done.
    Unknown(String),
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// Which client.
    pub(super) client: u32,
    /// The newest revision that anybody had seen when it began: a linearizable operation may not
    /// fall behind it.
    pub(super) floor: i64,
    /// What was asked.
    pub(super) request: Request,
    /// How it ended.
    pub(super) outcome: Outcome,
}

impl Request {
    /// Whether it may change the store.
    pub(super) fn writes(&self) -> bool {
        !matches!(self, Request::Get { .. })
    }
}
