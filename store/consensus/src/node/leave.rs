//! A leader that is removed.
//!
//! When its removal is committed, the others may not know that yet, and if this was one of two
//! members, the other one needs this one's vote until it does. So, like etcd's, a removed leader
//! goes on for an election timeout: its heartbeats carry the commit index. It takes no proposals
//! any more. raft-rs would panic if the leader were not in its configuration while it counts, so
//! raft hears of the removal only at the end.
//!
//! **Invariant:** raft applies its own removal only when it does not lead.

use raft::eraftpb::{ConfChange, ConfChangeType};

use super::Node;
use crate::error::Fatal;

/// The removal of this member, committed and applied by the state machine, but not by raft yet.
pub(super) struct Leaving {
    index: u64,
    change: ConfChange,
    /// Ticks left to tell the others.
    ticks: usize,
}

impl Node {
    /// Applies a membership change to raft.
    pub(super) fn apply_conf_change(
        &mut self,
        index: u64,
        change: ConfChange,
    ) -> Result<(), Fatal> {
        let removed = change.get_change_type() == ConfChangeType::RemoveNode
            && change.node_id == self.config.id;
        if removed && self.is_leader() {
            self.leaving = Some(Leaving { index, change, ticks: self.config.election_ticks });
            return Ok(());
        }
        self.raw
            .apply_conf_change(&change)
            .map_err(|error| Fatal::ConfChange { index, reason: error.to_string() })?;
        Ok(())
    }

    pub(super) fn tick_leaving(&mut self) -> Result<(), Fatal> {
        if let Some(leaving) = &mut self.leaving {
            leaving.ticks = leaving.ticks.saturating_sub(1);
            if leaving.ticks == 0 {
                let term = self.raw.raft.term;
                self.raw.raft.become_follower(term, raft::INVALID_ID);
            }
        }
        self.leave()
    }

    /// Lets raft know, once that is safe.
    pub(super) fn leave(&mut self) -> Result<(), Fatal> {
        if self.is_leader() {
            return Ok(());
        }
        match self.leaving.take() {
            Some(leaving) => self.apply_conf_change(leaving.index, leaving.change),
            None => Ok(()),
        }
    }
}
