//! What the raft thread hands out, and where it goes.
//!
//! Input: calls of the raft thread. Output: work for the apply thread, answers to read rounds,
//! the record of leadership. Nothing here blocks.
//! **Invariant:** the committed index is raised before the entries can be applied, so it is never
//! behind the applied index for long, and the overload rule sees all that waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Instant;

use mainstay_consensus::{Fatal, Pinned, Role, Sink, SnapshotSource, SoftState};
use mainstay_proto::raftpb::{Entry, Snapshot, SnapshotMetadata};

use crate::apply_loop::Work;
use crate::core::Core;

/// The raft thread's way out.
pub(crate) struct CoreSink {
    pub(crate) core: Arc<Core>,
    pub(crate) work: Sender<Work>,
}

impl CoreSink {
    fn send(&self, work: Work) {
        // The apply thread ends before the raft thread only when the member stops.
        let _ = self.work.send(work);
    }
}

impl Sink for CoreSink {
    fn committed(&self, entries: Vec<Entry>) {
        if let Some(last) = entries.last() {
            self.core.committed.fetch_max(last.index(), Ordering::SeqCst);
        }
        self.send(Work::Entries(entries));
    }

    fn install_snapshot(&self, snapshot: Snapshot) {
        let index = snapshot.metadata.as_ref().map_or(0, |metadata| metadata.index());
        self.core.committed.fetch_max(index, Ordering::SeqCst);
        self.send(Work::Install(snapshot));
    }

    fn read_state(&self, context: u64, index: u64) {
        self.core.reads.answered(context, index);
    }

    fn read_refused(&self, context: u64) {
        self.core.reads.refused(context);
    }

    fn soft_state(&self, state: SoftState) {
        let leads = state.role == Role::Leader;
        let appeared = self.core.leadership.record(state.leader, leads, state.term, Instant::now());
        self.core.watch.set_term(state.term);
        if appeared && self.core.leadership.now().changes == 1 {
            self.core.reads.leader_found();
        } else if appeared {
            self.core.reads.leader_changed();
        }
    }

    fn stopped(&self, reason: Option<Fatal>) {
        if let Some(fatal) = reason {
            self.core.stop.fatal(fatal.to_string());
        }
        self.core.reads.stop();
        self.send(Work::Stop);
    }
}

/// The published state as the source of snapshots for lagging members.
pub(crate) struct PublishedSnapshots(pub(crate) Arc<Core>);

impl SnapshotSource for PublishedSnapshots {
    fn latest(&self) -> (SnapshotMetadata, Pinned) {
        let published = self.0.published.load_full();
        let metadata = SnapshotMetadata {
            index: Some(published.state.applied.index),
            term: Some(published.state.applied.term),
            conf_state: Some((*published.state.conf_state).clone()),
        };
        (metadata, published)
    }
}
