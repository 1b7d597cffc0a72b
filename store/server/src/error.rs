//! What a request to the store can be answered with instead of a response.
//!
//! The errors are the state machine's, with etcd's codes and texts, because clients compare the
//! texts. What ends the process is never an [`Error`] that a client sees (see [`crate::StopReason`]).

pub use mainstay_mvcc::{Code, Error};

/// Result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The lease is not renewed here any more; ask the leader.
pub(crate) const NOT_PRIMARY: Error =
    Error::Raw(std::borrow::Cow::Borrowed("not a primary lessor"));
