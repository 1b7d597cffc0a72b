//! Compaction: forgetting what was before a revision.
//!
//! The entry itself only moves the compacted revision; from then on nothing before it can be read.
//! The rows are deleted afterwards, in slices that the apply thread writes between its batches.
//!
//! A pass to revision C looks at the rows from the last finished revision on, and at no others:
//! each of them supersedes at most one older row of its key, which the History finds. So the work
//! is in proportion to what changed, not to what is stored.
//!
//! **Invariant:** after a pass to C there is for each key the newest row up to C, unless that is a
//! tombstone before C; all rows behind C; and nothing else. A tombstone exactly at C stays until
//! the next pass.
//! **Invariant:** a pass that was interrupted anywhere and begins again ends with the same rows.

use bytes::BytesMut;
use mainstay_engine::{Batch, Family, Scan, View};

use crate::buckets::{Bucket, names};
use crate::event::revision_scan;
use crate::keys::{RowKey, history_key, revision_bytes};
use crate::range::{index_entry, newest_in_history};
use crate::{Fatal, Revision, kv};

/// A part of a pass: deletions to be written by the thread that applies entries.
#[derive(Debug)]
pub struct CompactSlice {
    /// The deletions, and the mark of the finished revision if this is the last part.
    pub batch: Batch,
    /// Revision whose compaction is physically done once the batch is written.
    pub finished: Option<i64>,
}

/// A pass under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Revision that is compacted to.
    pub(crate) target: i64,
    /// First row that was not looked at.
    next: Revision,
}

impl Pass {
    /// A pass to `target` over a store in which the pass to `finished` was the last one.
    pub(crate) fn new(finished: i64, target: i64) -> Self {
        Self { target, next: Revision::first(finished.max(0)) }
    }

    /// Goes on to a later target. What was done stays valid, but tombstones at the old target were
    /// kept: they are looked at again.
    pub(crate) fn extend(&mut self, target: i64) {
        self.target = target;
        self.next.sub = 0;
    }

    /// Looks at up to `max_rows` rows. True with the slice that ends the pass.
    pub(crate) fn slice(
        &mut self,
        view: &dyn View,
        max_rows: usize,
    ) -> Result<(Batch, bool), Fatal> {
        let mut batch = Batch::new();
        let mut scan = revision_scan(self.next.main, self.target).uncached();
        scan.lower = Some(revision_bytes(self.next).to_vec().into());
        let mut rows = view.cursor(Family::Key, scan)?;
        let mut history = view.cursor(Family::History, Scan::all())?;
        let mut buffer = BytesMut::new();
        let mut looked = 0;
        rows.seek_to_first();
        while rows.valid() {
            if looked >= max_rows.max(1) {
                self.next = kv::row_key(rows.key())?.revision;
                return Ok((batch, false));
            }
            looked += 1;
            let row = kv::row_key(rows.key())?;
            let key = kv::user_key(rows.key(), rows.value())?;
            let last = before(row.revision);
            let older = newest_in_history(&mut *history, key, last, &mut buffer)?;
            if let Some((revision, tombstone)) = older {
                delete(&mut batch, key, RowKey { revision, tombstone });
            }
            if row.tombstone && row.revision.main < self.target {
                delete(&mut batch, key, row);
                let newest = index_entry(view, key)?;
                if newest.is_some_and(|entry| entry.modified == row.revision) {
                    batch.delete(Family::Index, key.to_vec());
                }
            }
            rows.next();
        }
        rows.status()?;
        let mark = revision_bytes(Revision::first(self.target)).to_vec();
        batch.put(Family::System, Bucket::Meta.engine_key(names::FINISHED_COMPACT), mark);
        Ok((batch, true))
    }
}

/// The last revision before this one.
fn before(revision: Revision) -> Revision {
    match revision.sub {
        0 => Revision::last(revision.main - 1),
        sub => Revision { sub: sub - 1, ..revision },
    }
}

fn delete(batch: &mut Batch, key: &[u8], row: RowKey) {
    batch.delete(Family::Key, row.encode());
    batch.delete(Family::History, history_key(key, row.revision));
}
