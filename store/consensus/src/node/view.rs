//! What others may see of the node.

use mainstay_proto::raftpb;
use raft::StateRole;

use super::Node;
use crate::convert;
use crate::status::{PeerProgress, Replication, Role, SoftState, Status};

impl Node {
    pub(super) fn soft_now(&self) -> SoftState {
        let raft = &self.raw.raft;
        SoftState { leader: raft.leader_id, role: role(raft.state), term: raft.term }
    }

    /// Term, vote and commit index as they are now, for the end of the log.
    pub fn hard_state(&self) -> raftpb::HardState {
        convert::hard_state_out(&self.raw.raft.hard_state())
    }

    /// Whether this member leads, and to whom it is handing over (0 for nobody).
    pub(crate) fn transferee(&self) -> (bool, u64) {
        (self.is_leader(), self.raw.raft.lead_transferee.unwrap_or(raft::INVALID_ID))
    }

    /// The first entry in memory.
    pub fn first_index(&self) -> u64 {
        self.raw.store().first()
    }

    /// The members as raft sees them now.
    pub fn conf_state(&self) -> raftpb::ConfState {
        convert::conf_state_out(self.raw.raft.prs().conf().to_conf_state())
    }

    /// The node as others may see it.
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let learners = raft.prs().conf().learners();
        let mut progress = Vec::new();
        if self.is_leader() {
            progress.extend(raft.prs().iter().map(|(id, peer)| PeerProgress {
                id: *id,
                matched: peer.matched,
                next: peer.next_idx,
                is_learner: learners.contains(id),
                recent_active: *id == raft.id || peer.recent_active,
                replication: match peer.state {
                    raft::ProgressState::Probe => Replication::Probe,
                    raft::ProgressState::Replicate => Replication::Replicate,
                    raft::ProgressState::Snapshot => Replication::Snapshot,
                },
            }));
            progress.sort_by_key(|peer| peer.id);
        }
        Status {
            id: raft.id,
            term: raft.term,
            vote: raft.vote,
            leader: raft.leader_id,
            role: role(raft.state),
            is_learner: learners.contains(&raft.id),
            commit: raft.raft_log.committed,
            applied: raft.raft_log.applied,
            first: self.first_index(),
            last: raft.raft_log.last_index(),
            transferee: raft.lead_transferee.unwrap_or(raft::INVALID_ID),
            progress,
        }
    }
}

fn role(state: StateRole) -> Role {
    match state {
        StateRole::Follower => Role::Follower,
        StateRole::PreCandidate => Role::PreCandidate,
        StateRole::Candidate => Role::Candidate,
        StateRole::Leader => Role::Leader,
    }
}
