//! Compaction: forgetting what was before a revision.
//!
//! The entry itself only moves the compacted revision; from then on nothing before it can be read.
//! The rows are deleted afterwards, in slices. What a slice deletes is looked for on any view that
//! has the compaction, by any thread ([`CompactPass::slice`]): nothing but a pass changes rows up to
//! its target. The thread that applies entries takes it over and writes it between its batches.
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
use crate::range::{decode_entry, newest_in_history};
use crate::{Fatal, Revision, kv};

/// Deletions that the thread that applies entries writes.
#[derive(Debug)]
pub struct CompactSlice {
    /// The deletions, and the mark of the finished revision if this is the last part.
    pub batch: Batch,
    /// Revision whose compaction is physically done once the batch is written.
    pub finished: Option<i64>,
    /// Rows of the log of changes that go.
    pub rows: u64,
}

/// A part of a pass as it was found, for [`crate::StateMachine::take_slice`].
#[derive(Debug)]
pub struct FoundSlice {
    /// Revision that the pass went to when this was looked for.
    target: i64,
    /// Rows that nobody can read any more.
    batch: Batch,
    /// How many these are.
    rows: u64,
    /// Deleted keys: nothing is left of each unless it was written again since.
    gone: Vec<(Vec<u8>, Revision)>,
    /// First row that was not looked at; `None` when there is no such row.
    next: Option<Revision>,
}

/// A pass under way: how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactPass {
    /// Revision that is compacted to.
    target: i64,
    /// First row that was not looked at.
    next: Revision,
}

impl CompactPass {
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

    /// Looks at up to `max_rows` rows. `view` is the state after the compaction was accepted, with
    /// all slices before this one written or not.
    pub fn slice(&self, view: &dyn View, max_rows: usize) -> Result<FoundSlice, Fatal> {
        let mut found = FoundSlice {
            target: self.target,
            batch: Batch::new(),
            rows: 0,
            gone: Vec::new(),
            next: None,
        };
        let mut scan = revision_scan(self.next.main, self.target).uncached();
        scan.lower = Some(revision_bytes(self.next).to_vec().into());
        let mut rows = view.cursor(Family::Key, scan)?;
        let mut history = view.cursor(Family::History, Scan::all().uncached())?;
        let mut buffer = BytesMut::new();
        let mut looked = 0;
        rows.seek_to_first();
        while rows.valid() {
            let row = kv::row_key(rows.key())?;
            if looked >= max_rows.max(1) {
                found.next = Some(row.revision);
                return Ok(found);
            }
            looked += 1;
            let key = kv::user_key(rows.key(), rows.value())?;
            let last = before(row.revision);
            let older = newest_in_history(&mut *history, key, last, &mut buffer)?;
            if let Some((revision, tombstone)) = older {
                found.delete(key, RowKey { revision, tombstone });
            }
            if row.tombstone && row.revision.main < self.target {
                found.delete(key, row);
                found.gone.push((key.to_vec(), row.revision));
            }
            rows.next();
        }
        rows.status()?;
        Ok(found)
    }
}

impl FoundSlice {
    fn delete(&mut self, key: &[u8], row: RowKey) {
        self.rows += 1;
        self.batch.delete(Family::Key, row.encode());
        self.batch.delete(Family::History, history_key(key, row.revision));
    }

    /// Completes the deletions by what only the newest state tells. `pass` is the pass that this
    /// is a part of as it is now, and is moved on; `None` is left when it ends.
    pub(crate) fn take(
        mut self,
        pass: &mut Option<CompactPass>,
        engine: &dyn View,
    ) -> Result<Option<CompactSlice>, Fatal> {
        let Some(going) = pass else { return Ok(None) };
        let keys: Vec<_> = self.gone.iter().map(|(key, _)| key.as_slice()).collect();
        let entries = engine.multi_get(Family::Index, &keys)?;
        for ((key, revision), entry) in self.gone.iter().zip(entries) {
            let entry = entry.map(|entry| decode_entry(key, &entry)).transpose()?;
            if entry.is_some_and(|entry| entry.modified == *revision) {
                self.batch.delete(Family::Index, key.clone());
            }
        }
        let extended = going.target > self.target;
        let finished = match self.next {
            Some(next) if extended => {
                going.next = Revision { sub: 0, ..next };
                None
            }
            Some(next) => {
                going.next = next;
                None
            }
            None if extended => {
                going.next = Revision::first(self.target);
                None
            }
            None => {
                *pass = None;
                let mark = revision_bytes(Revision::first(self.target)).to_vec();
                let key = Bucket::Meta.engine_key(names::FINISHED_COMPACT);
                self.batch.put(Family::System, key, mark);
                Some(self.target)
            }
        };
        Ok(Some(CompactSlice { batch: self.batch, finished, rows: self.rows }))
    }
}

/// The last revision before this one.
fn before(revision: Revision) -> Revision {
    match revision.sub {
        0 => Revision::last(revision.main - 1),
        sub => Revision { sub: sub - 1, ..revision },
    }
}
