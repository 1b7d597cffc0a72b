//! The traits that the rest of the store reads and writes through.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Batch, Family, Result};

/// Consistent reads. A snapshot is a view that never changes; an engine is a view of "now", where
/// two calls may see different states.
pub trait View: Send + Sync {
    /// The value of `key`.
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>>;

    /// The values of `keys`, in their order. Cheaper than one call each.
    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        keys.iter().map(|key| self.get(family, key)).collect()
    }

    /// A cursor over a part of a family. It is not positioned yet, and sees one state of the
    /// family for its whole life.
    fn cursor(&self, family: Family, scan: Scan) -> Result<Box<dyn Cursor + '_>>;
}

/// What a cursor may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// First key that is seen; `None`: from the beginning.
    pub lower: Option<Bytes>,
    /// First key that is no longer seen; `None`: to the end.
    pub upper: Option<Bytes>,
    /// Whether blocks that are read stay in the cache. Off for passes over everything, which
    /// would push out what clients read.
    pub fill_cache: bool,
}

impl Scan {
    /// The whole family.
    pub const fn all() -> Self {
        Self { lower: None, upper: None, fill_cache: true }
    }

    /// Keys in `lower..upper`.
    pub fn range(lower: impl Into<Bytes>, upper: impl Into<Bytes>) -> Self {
        Self { lower: Some(lower.into()), upper: Some(upper.into()), fill_cache: true }
    }

    /// Keys that start with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let prefix = prefix.into();
        let upper = after_prefix(&prefix);
        Self { lower: Some(prefix), upper, fill_cache: true }
    }

    /// The same without filling the cache.
    #[must_use]
    pub fn uncached(mut self) -> Self {
        self.fill_cache = false;
        self
    }
}

impl Default for Scan {
    fn default() -> Self {
        Self::all()
    }
}

/// The smallest key behind all keys that start with `prefix`; `None` when there is no such key.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// A position in a family, within the bounds of its [`Scan`].
///
/// A move that finds nothing, or fails, leaves the cursor invalid; [`Cursor::status`] tells the two
/// apart and **must** be asked at the end of every loop. Moving an invalid cursor with `next` or
/// `prev` does nothing.
pub trait Cursor: Send {
    /// Moves to the first key `>= key`.
    fn seek(&mut self, key: &[u8]);
    /// Moves to the last key `<= key`.
    fn seek_for_prev(&mut self, key: &[u8]);
    /// Moves to the first key.
    fn seek_to_first(&mut self);
    /// Moves to the last key.
    fn seek_to_last(&mut self);
    /// Moves to the next key.
    fn next(&mut self);
    /// Moves to the previous key.
    fn prev(&mut self);
    /// Whether the cursor stands on a key.
    fn valid(&self) -> bool;
    /// The key.
    ///
    /// # Panics
    /// When the cursor is not valid.
    fn key(&self) -> &[u8];
    /// The value.
    ///
    /// # Panics
    /// When the cursor is not valid.
    fn value(&self) -> &[u8];
    /// The error that made the cursor invalid, if one did.
    fn status(&self) -> Result<()>;
}

/// Bytes that an engine takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Everything the engine holds: files on disk and what is still in memory. What a quota is
    /// held against, and `dbSize` of a status answer.
    pub total_bytes: u64,
    /// Estimate of what would remain after a reclaim: `dbSizeInUse`. Never above `total_bytes`.
    pub in_use_bytes: u64,
    /// Part of `total_bytes` that is in files.
    pub file_bytes: u64,
    /// Part of `total_bytes` that waits in memory for a flush.
    pub memory_bytes: u64,
    /// Memory of the tables that `memory_bytes` is held in, with what they reserve.
    pub memtable_bytes: u64,
    /// Memory of the block cache.
    pub cache_bytes: u64,
}

/// Ordered maps that change by batches.
pub trait Engine: View {
    /// A view of this moment that stays as it is. Cheap; pins what it sees, so it must not be kept
    /// for long without need. It keeps the engine's files open.
    fn snapshot(&self) -> Arc<dyn View>;

    /// Makes a batch visible, whole. Not durable before the next [`Engine::flush`].
    fn write(&self, batch: Batch) -> Result<()>;

    /// Makes all that was written so far durable, all families at one point. Waits for the disk.
    fn flush(&self) -> Result<()>;

    /// Bytes in use. Cheap enough to be asked before every proposal.
    fn usage(&self) -> Usage;

    /// The failure of background work, if any failed. Asked now and then by who can end the process;
    /// a failed write or flush reports the same.
    fn health(&self) -> Result<()>;

    /// Starts to give back the space of deleted and overwritten keys, in the background. Returns
    /// at once, also when such a pass already runs.
    fn reclaim(&self) -> Result<()>;

    /// Waits for the end of what [`Engine::reclaim`] started, at most so long. Returns whether
    /// nothing runs any more.
    fn wait_reclaimed(&self, at_most: Duration) -> bool;

    /// Stops background work and refuses further writes. What was not flushed may be lost, and
    /// comes back from the log. Snapshots that are still held stay readable; on disk, the directory
    /// stays locked until the engine and all of them are dropped.
    fn close(&self);
}
