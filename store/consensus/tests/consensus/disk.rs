//! A log in memory that loses what was not synced, as a disk does.
//!
//! **Invariant:** what `recover` gives is what a real WAL would give after the same calls.

use std::io;
use std::sync::{Arc, Mutex};

use mainstay_log::LogStore;
use mainstay_proto::raftpb::{Entry, HardState};
use mainstay_proto::walpb;

#[derive(Clone)]
enum Record {
    Entry(Entry),
    State(HardState),
    Mark(walpb::Snapshot),
}

#[derive(Default)]
struct Disk {
    records: Vec<Record>,
    synced: usize,
    syncs: u64,
    state: HardState,
    released: u64,
    failing: bool,
    closed: bool,
    /// Held by a test while a sync should take long.
    gate: Arc<Mutex<()>>,
}

/// Clones are the same disk.
#[derive(Clone, Default)]
pub(crate) struct DiskLog(Arc<Mutex<Disk>>);

/// What a start finds.
pub(crate) struct Found {
    pub(crate) mark: walpb::Snapshot,
    pub(crate) state: HardState,
    pub(crate) entries: Vec<Entry>,
}

impl DiskLog {
    /// A new member's log: the mark at 0 and what the cluster starts with.
    pub(crate) fn new(entries: &[Entry], state: &HardState) -> Self {
        let log = Self::default();
        let mut writer = log.clone();
        writer.save_snapshot(&walpb::Snapshot::default()).unwrap();
        writer.append(entries, Some(state), true).unwrap();
        log
    }

    /// Power fails: of the records that were not synced, only the first `keep(count)` stay.
    pub(crate) fn crash(&self, keep: impl FnOnce(usize) -> usize) {
        let mut disk = self.0.lock().unwrap();
        let unsynced = disk.records.len() - disk.synced;
        let keep = disk.synced + keep(unsynced).min(unsynced);
        disk.records.truncate(keep);
        disk.synced = keep;
        disk.state = disk
            .records
            .iter()
            .rev()
            .find_map(|record| match record {
                Record::State(state) => Some(*state),
                _ => None,
            })
            .unwrap_or_default();
    }

    pub(crate) fn recover(&self) -> Found {
        let disk = self.0.lock().unwrap();
        let mut mark = walpb::Snapshot::default();
        for record in &disk.records {
            if let Record::Mark(found) = record
                && found.index() <= disk.state.commit()
                && found.index() >= mark.index()
            {
                mark = found.clone();
            }
        }
        let mut entries: Vec<Entry> = Vec::new();
        for record in &disk.records {
            let Record::Entry(entry) = record else { continue };
            entries.retain(|before| before.index() < entry.index());
            if entry.index() > mark.index() {
                entries.push(entry.clone());
            }
        }
        Found { mark, state: disk.state, entries }
    }

    pub(crate) fn fail(&self) {
        self.0.lock().unwrap().failing = true;
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.0.lock().unwrap().syncs
    }

    pub(crate) fn released(&self) -> u64 {
        self.0.lock().unwrap().released
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().unwrap().closed
    }

    /// While this is locked, writes wait.
    pub(crate) fn gate(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.0.lock().unwrap().gate)
    }
}

impl LogStore for DiskLog {
    fn append(
        &mut self,
        entries: &[Entry],
        hard_state: Option<&HardState>,
        sync: bool,
    ) -> io::Result<()> {
        let gate = self.gate();
        drop(gate.lock().unwrap());
        let mut disk = self.0.lock().unwrap();
        if disk.failing {
            return Err(io::Error::other("the disk is gone"));
        }
        disk.records.extend(entries.iter().cloned().map(Record::Entry));
        let mut must_sync = sync || !entries.is_empty();
        if let Some(state) = hard_state.filter(|state| **state != HardState::default()) {
            must_sync |= (state.term, state.vote) != (disk.state.term, disk.state.vote);
            disk.state = *state;
            disk.records.push(Record::State(*state));
        }
        if must_sync {
            disk.synced = disk.records.len();
            disk.syncs += 1;
        }
        Ok(())
    }

    fn save_snapshot(&mut self, snapshot: &walpb::Snapshot) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        if disk.failing {
            return Err(io::Error::other("the disk is gone"));
        }
        disk.records.push(Record::Mark(snapshot.clone()));
        disk.synced = disk.records.len();
        disk.syncs += 1;
        Ok(())
    }

    fn release_before(&mut self, index: u64) -> io::Result<()> {
        self.0.lock().unwrap().released = index;
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        disk.synced = disk.records.len();
        disk.closed = true;
        Ok(())
    }
}
