//! raft's view of the log: a window of the newest entries in memory.
//!
//! Input: the entries that the log on disk already holds or is just being given, and the applied
//! index that lets the window shrink. Output: entries for followers that lag, terms, and snapshots
//! taken from the published state ([`SnapshotSource`]).
//!
//! **Invariant:** the window has no gaps, and reaches from at most `applied + 1` to the log's end.
//! **Invariant:** entries in the window carry their own bytes, never stand-ins.
//! **Invariant:** a snapshot is never older than the entries that were dropped from the window, so
//! a follower that installs it can go on with entries.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

use crate::convert;
use crate::inbox::ENTRY_OVERHEAD;
use crate::seam::{Pinned, SnapshotSource};

/// See the module.
pub(crate) struct Window {
    /// Index and term of the entry before the first one in the window.
    before: (u64, u64),
    entries: VecDeque<Entry>,
    bytes: usize,
    hard_state: HardState,
    conf_state: ConfState,
    source: Arc<dyn SnapshotSource>,
    /// States of snapshots that raft has put into messages which have not left yet, by index.
    pinned: RefCell<Vec<(u64, Pinned)>>,
}

impl Window {
    /// `hard_state` and `conf_state` are what raft starts from; it keeps them from then on.
    pub(crate) fn new(
        before: (u64, u64),
        entries: Vec<Entry>,
        hard_state: HardState,
        conf_state: ConfState,
        source: Arc<dyn SnapshotSource>,
    ) -> Self {
        let bytes = entries.iter().map(entry_bytes).sum();
        Self {
            before,
            entries: entries.into(),
            bytes,
            hard_state,
            conf_state,
            source,
            pinned: RefCell::default(),
        }
    }

    /// The first index in the window.
    pub(crate) fn first(&self) -> u64 {
        self.before.0 + 1
    }

    /// The last index in the window, or the one before it when it is empty.
    pub(crate) fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
    }

    /// Puts entries at their index; what stood there and after goes away.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let keep = first
            .index
            .checked_sub(self.first())
            .expect("raft never rewrites entries that are applied") as usize;
        assert!(
            keep <= self.entries.len(),
            "entry {} would leave a gap after {}",
            first.index,
            self.last()
        );
        for dropped in self.entries.drain(keep..) {
            self.bytes -= entry_bytes(&dropped);
        }
        for entry in entries {
            debug_assert!(!entry.sync_log, "stand-ins stay in raft");
            self.bytes += entry_bytes(entry);
            self.entries.push_back(entry.clone());
        }
    }

    /// Starts anew behind a snapshot that came from the leader.
    pub(crate) fn restore(&mut self, index: u64, term: u64) {
        self.before = (index, term);
        self.entries.clear();
        self.bytes = 0;
    }

    /// Drops what need not be kept: `keep` entries up to `applied` stay, unless they take more than
    /// `max_bytes`. `hold`, if given, is a snapshot's index on its way to a follower: the entries
    /// after it stay too, within twice the bytes.
    pub(crate) fn compact(&mut self, applied: u64, keep: u64, max_bytes: usize, hold: Option<u64>) {
        let by_count = applied.saturating_sub(keep).min(hold.unwrap_or(u64::MAX));
        let max_bytes = if hold.is_some() { max_bytes.saturating_mul(2) } else { max_bytes };
        while self.first() <= applied && (self.first() <= by_count || self.bytes > max_bytes) {
            let Some(dropped) = self.entries.pop_front() else { break };
            self.bytes -= entry_bytes(&dropped);
            self.before = (dropped.index, dropped.term);
        }
    }

    /// Hands over the state behind the snapshot at `index` that raft put into a message. Call it
    /// once for each such message.
    pub(crate) fn take_pinned(&self, index: u64) -> Option<Pinned> {
        let mut pinned = self.pinned.borrow_mut();
        let at = pinned.iter().position(|(i, _)| *i == index)?;
        Some(pinned.swap_remove(at).1)
    }
}

fn entry_bytes(entry: &Entry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD
}

impl Storage for Window {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low < self.first() {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let range = (low - self.first()) as usize..(high - self.first()) as usize;
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0;
        let mut out = Vec::new();
        for entry in self.entries.range(range) {
            size += u64::from(protobuf::Message::compute_size(entry));
            if size > limit && !out.is_empty() {
                break;
            }
            out.push(entry.clone());
        }
        Ok(out)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.before.0 {
            return Ok(self.before.1);
        }
        if index < self.before.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        match self.entries.get((index - self.first()) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> Result<Snapshot> {
        let unavailable = || Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        let (metadata, pinned) = self.source.latest();
        let metadata = convert::metadata_in(metadata);
        // Too old to go on from, or not even there yet.
        if metadata.index == 0 || metadata.index < request_index.max(self.before.0) {
            return unavailable();
        }
        // A member refuses a snapshot that it is not part of.
        let conf = metadata.get_conf_state();
        let mut members = conf.voters.iter().chain(&conf.learners).chain(&conf.voters_outgoing);
        if !members.any(|id| *id == to) {
            return unavailable();
        }
        self.pinned.borrow_mut().push((metadata.index, pinned));
        let mut snapshot = Snapshot::default();
        snapshot.set_metadata(metadata);
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use mainstay_proto::raftpb;

    use super::*;

    struct At(u64, Vec<u64>);

    impl SnapshotSource for At {
        fn latest(&self) -> (raftpb::SnapshotMetadata, Pinned) {
            let metadata = raftpb::SnapshotMetadata {
                conf_state: Some(raftpb::ConfState {
                    voters: self.1.clone(),
                    ..Default::default()
                }),
                index: Some(self.0),
                term: Some(1),
            };
            (metadata, Arc::new(self.0))
        }
    }

    fn entries(range: std::ops::Range<u64>, term: u64, bytes: usize) -> Vec<Entry> {
        range
            .map(|index| Entry {
                index,
                term,
                data: Bytes::from(vec![0; bytes]),
                ..Entry::default()
            })
            .collect()
    }

    fn window(source: At) -> Window {
        Window::new(
            (0, 0),
            entries(1..11, 1, 10),
            HardState::default(),
            ConfState::default(),
            Arc::new(source),
        )
    }

    fn get(window: &Window, low: u64, high: u64, max: u64) -> Result<Vec<u64>> {
        let entries = window.entries(low, high, max, GetEntriesContext::empty(false))?;
        Ok(entries.iter().map(|entry| entry.index).collect())
    }

    #[test]
    fn appending_replaces_the_tail() {
        let mut window = window(At(0, vec![]));
        window.append(&entries(8..10, 2, 10));
        assert_eq!(window.last(), 9);
        assert_eq!((window.term(7).unwrap(), window.term(8).unwrap()), (1, 2));
        assert_eq!(window.bytes, 9 * (10 + ENTRY_OVERHEAD));
    }

    #[test]
    fn entries_come_within_bounds_and_sizes() {
        let mut window = window(At(0, vec![]));
        assert_eq!(get(&window, 3, 6, u64::MAX).unwrap(), [3, 4, 5]);
        // One entry of 10 bytes encodes to 16 bytes; the first always comes.
        assert_eq!(get(&window, 3, 6, 0).unwrap(), [3]);
        assert_eq!(get(&window, 3, 6, 33).unwrap(), [3, 4]);
        window.compact(5, 1, usize::MAX, None);
        assert_eq!(window.first(), 5);
        assert_eq!(get(&window, 4, 6, 0), Err(Error::Store(StorageError::Compacted)));
        assert_eq!(get(&window, 9, 12, 0), Err(Error::Store(StorageError::Unavailable)));
        assert_eq!(window.term(4).unwrap(), 1);
        assert_eq!(window.term(3), Err(Error::Store(StorageError::Compacted)));
        assert_eq!(window.term(11), Err(Error::Store(StorageError::Unavailable)));
    }

    #[test]
    fn bytes_cut_deeper_than_the_count_but_never_beyond_applied() {
        let mut window = window(At(0, vec![]));
        window.compact(6, 5_000, 5 * (10 + ENTRY_OVERHEAD), None);
        assert_eq!(window.first(), 6);
        window.compact(6, 5_000, 0, None);
        assert_eq!((window.first(), window.last()), (7, 10));
    }

    #[test]
    fn entries_behind_a_snapshot_under_way_stay() {
        let mut window = window(At(0, vec![]));
        window.compact(9, 0, usize::MAX, Some(4));
        assert_eq!(window.first(), 5);
        window.compact(9, 0, usize::MAX, None);
        assert_eq!(window.first(), 10);
    }

    #[test]
    fn a_snapshot_must_be_usable_by_the_follower() {
        let unavailable = Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        assert_eq!(window(At(0, vec![2])).snapshot(0, 2), unavailable);
        assert_eq!(window(At(5, vec![2])).snapshot(6, 2), unavailable);
        assert_eq!(window(At(5, vec![3])).snapshot(0, 2), unavailable);
        let mut cut = window(At(5, vec![2]));
        cut.compact(7, 1, usize::MAX, None);
        assert_eq!(cut.snapshot(0, 2), unavailable);
        let good = window(At(5, vec![2]));
        assert_eq!(good.snapshot(5, 2).unwrap().get_metadata().index, 5);
        assert!(good.take_pinned(4).is_none());
        assert!(good.take_pinned(5).is_some());
        assert!(good.take_pinned(5).is_none());
    }
}
