//! A state machine small enough to compare: a digest of everything applied, and the members.
//!
//! **Invariant:** equal applied indexes mean equal states, on every member.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mainstay_consensus::{Pinned, SnapshotSource};
use mainstay_proto::raftpb::{
    ConfChange, ConfChangeType, ConfState, Entry, EntryType, SnapshotMetadata,
};
use prost::Message as _;

/// Marks a change that promotes, as etcd's JSON context does.
pub(crate) const PROMOTE: &[u8] = b"promote";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) applied: u64,
    pub(crate) term: u64,
    pub(crate) voters: BTreeSet<u64>,
    pub(crate) learners: BTreeSet<u64>,
    pub(crate) removed: BTreeSet<u64>,
    pub(crate) digest: u64,
}

impl Machine {
    /// Applies an entry. For a membership change: what to tell raft.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Option<Option<ConfChange>> {
        assert_eq!(entry.index(), self.applied + 1, "entries come in order, each once");
        self.applied = entry.index();
        self.term = entry.term();
        let data = entry.data.clone().unwrap_or_default();
        for byte in data.iter().chain(&entry.index().to_be_bytes()) {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if entry.r#type() != EntryType::EntryConfChange {
            return None;
        }
        let change = ConfChange::decode(&data[..]).unwrap();
        Some(self.change(&change).then_some(change))
    }

    fn change(&mut self, change: &ConfChange) -> bool {
        let id = change.node_id();
        let known = self.voters.contains(&id) || self.learners.contains(&id);
        match change.r#type() {
            _ if self.removed.contains(&id) => false,
            ConfChangeType::ConfChangeAddNode if change.context() == PROMOTE => {
                self.learners.remove(&id) && self.voters.insert(id)
            }
            ConfChangeType::ConfChangeAddNode => !known && self.voters.insert(id),
            ConfChangeType::ConfChangeAddLearnerNode => !known && self.learners.insert(id),
            ConfChangeType::ConfChangeUpdateNode => known,
            ConfChangeType::ConfChangeRemoveNode => {
                let last = self.voters.len() == 1 && self.voters.contains(&id);
                known && !last && {
                    self.voters.remove(&id);
                    self.learners.remove(&id);
                    self.removed.insert(id)
                }
            }
        }
    }

    pub(crate) fn conf_state(&self) -> ConfState {
        ConfState {
            voters: self.voters.iter().copied().collect(),
            learners: self.learners.iter().copied().collect(),
            auto_leave: Some(false),
            ..Default::default()
        }
    }
}

/// The published machine, from which snapshots are taken.
#[derive(Clone, Default)]
pub(crate) struct Published(Arc<Mutex<Machine>>);

impl Published {
    pub(crate) fn publish(&self, machine: &Machine) {
        *self.0.lock().unwrap() = machine.clone();
    }

    pub(crate) fn get(&self) -> Machine {
        self.0.lock().unwrap().clone()
    }
}

impl SnapshotSource for Published {
    fn latest(&self) -> (SnapshotMetadata, Pinned) {
        let machine = self.get();
        let metadata = SnapshotMetadata {
            conf_state: Some(machine.conf_state()),
            index: Some(machine.applied),
            term: Some(machine.term),
        };
        (metadata, Arc::new(machine))
    }
}

/// A membership change in etcd's numbering.
pub(crate) fn change(kind: ConfChangeType, node_id: u64, context: &'static [u8]) -> ConfChange {
    ConfChange {
        id: Some(node_id * 1_000),
        r#type: Some(kind as i32),
        node_id: Some(node_id),
        context: Some(Bytes::from_static(context)),
    }
}
