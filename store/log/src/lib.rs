//! The raft log on disk, in the format of etcd 3.7's WAL: a real etcd reads what this writes and
//! the other way round.
//!
//! Input: batches of entries, hard states and snapshot marks from the raft thread ([`LogStore`]),
//! and at start the segments found in the directory ([`Wal::open`]). Output: segments of
//! 64,000,000 bytes, and at start what they hold ([`Recovered`]).
//! Every touch of a file goes through [`Files`]; [`OsFiles`] is the disk, [`SimFiles`] is one in
//! memory that loses, tears and fails on demand.
//!
//! **Invariant:** when `append` has returned, what had to be durable is on the disk.
//! **Invariant:** a failed write or sync ends the log: every later call fails. It is never retried,
//! because after a failed fsync nobody knows what the disk holds.
//! **Invariant:** recovery cuts a torn tail and nothing else. Any other damage is named, with the
//! file and the offset, and the log does not open.

mod dump;
mod error;
mod files;
mod os;
mod pipeline;
mod recover;
mod scan;
mod sim;
mod store;
mod wal;

pub use dump::{DumpEnd, DumpRecord, DumpValue, read_all, visit_all};
pub use error::{Damage, Finding, OpenError};
pub use files::{Access, File, Files};
pub use os::OsFiles;
pub use sim::{Fault, SimFiles};
pub use store::{LogStore, Metadata, NoObserver, Observer, Options, Recovered, Repair};
pub use wal::Wal;
