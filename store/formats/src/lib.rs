//! Pure codecs for real etcd's files: the bbolt database, the snapshot file made of it, the raft
//! snapshot file, and the records of the log on disk.
//!
//! Input is bytes (or a [`ReadAt`] over a file), output is bytes or a named error. Nothing here
//! opens, creates, renames or syncs a file, and nothing knows what the rows mean.
//! **Invariant:** no input, however damaged, makes a codec panic, loop for ever or allocate more
//! than the input is long.

pub mod bbolt;
mod read_at;
pub mod snap;
pub mod snapshot;
pub mod wal;

pub use read_at::ReadAt;
