//! etcd's peer protocol, both sides: how a member sends raft messages and snapshots to others, and
//! what it answers on its peer port. Real etcd members are on the other end as often as our own.
//!
//! Above it stands one trait, [`Host`], which the server implements. `docs/peer-protocol.md`
//! describes the wire.
//!
//! **Invariant:** everything that leaves here is read by real etcd with the same meaning; several
//! kinds of malformed input end a real member's process, so nothing malformed is ever sent.
//! **Invariant:** what comes in is untrusted: a bad frame, header or body ends its own connection
//! and nothing else, and no length field is believed before its bytes are there.

mod host;
mod version;

pub use host::*;
pub use version::{MIN_CLUSTER_VERSION, Version, VersionError, compatible};
