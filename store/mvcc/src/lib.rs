//! The deterministic state machine: revisions, ranges, transactions, compaction, hashes, leases,
//! members, users and roles.
//!
//! Input: committed entries of the log ([`StateMachine::apply`]), and reads on a pinned view
//! ([`range()`], [`read_txn`], [`events_between`], [`hash_kv`]). Output: batches for the engine,
//! answers, events. Everything here is pure: no clock, no randomness, no thread, no socket.
//!
//! - **Invariant:** entries have the effect that they have on a real etcd member, bit for bit:
//!   revisions, answers, errors, and the bytes of every row that is hashed.
//! - **Invariant:** memory does not grow with the number of keys.
//!
//! What each engine family holds is in [`keys`] and [`buckets`], and in `docs/engine.md`.

mod alarm;
mod apply;
mod auth;
pub mod buckets;
mod check;
mod compact;
mod error;
mod event;
mod hash;
pub mod keys;
mod kv;
pub mod lease;
mod lease_rows;
pub mod membership;
mod op;
mod overlay;
mod range;
mod revision;
mod span;
mod state;
mod state_machine;
mod stream;
mod tally;
#[cfg(test)]
mod testing;
pub mod transfer;
mod txn;
pub mod version;
mod writer;

pub use alarm::Alarms;
pub use auth::{Access, AuthEffect, AuthState, Identity};
pub use check::{
    MAX_TXN_OPS, check_delete_range, check_put, check_range, check_range_stream, check_txn,
};
pub use compact::{CompactPass, CompactSlice, FoundSlice};
pub use error::{Code, Error, Fatal};
pub use event::{CatchUp, CatchUpLimits, Event, EventKind, RevisionEvents, events_between};
pub use hash::{HashKv, compaction_hash, hash_all, hash_kv};
pub use kv::{decode as decode_kv, encode_to as encode_kv_to, kv_at, user_key};
pub use lease_rows::{MAX_LEASE_TTL, attached_keys, stored_lease, stored_leases};
pub use op::Op;
pub use range::range;
pub use revision::{FRESH, NEVER_COMPACTED, ReadAt, Revision};
pub use span::KeySpan;
pub use state::{LogPosition, StateView};
pub use state_machine::{
    AcceptedCompaction, Applied, ConfChangeOutcome, LeaseChange, Limits, Outcome, Response,
    StateMachine,
};
pub use stream::RangeChunks;
pub use tally::Tally;
pub use txn::{is_read_only_txn, is_serializable_txn, read_txn};
