//! What tests ask of a cluster: proposals, reads, transfers, and to wait for what comes of them.

use std::collections::BTreeSet;

use bytes::Bytes;
use mainstay_consensus::{Fatal, Input, Refused, Role, StepError};
use mainstay_proto::raftpb::ConfChange;

use crate::cluster::Cluster;

impl Cluster {
    /// Proposes and says whether it was taken.
    pub(crate) fn propose(&mut self, id: u64, data: &[Bytes]) -> Result<(), Refused> {
        let result = self.node(id).step(Input::Propose(data.to_vec()));
        self.drain(id);
        refused(result)
    }

    pub(crate) fn propose_change(&mut self, id: u64, change: &ConfChange) -> Result<(), Refused> {
        let result = self.node(id).step(Input::ProposeConfChange(change.clone()));
        self.drain(id);
        refused(result)
    }

    /// Asks for a read and remembers what it must see.
    pub(crate) fn read(&mut self, id: u64) -> Result<u64, Refused> {
        // Contexts repeat on every member and in every life.
        let floor = self.truth.highest();
        self.member(id).next_read += 1;
        let context = self.members[&id].next_read;
        let result = refused(self.node(id).step(Input::ReadIndex(context)));
        if result.is_ok() {
            self.member(id).reads.insert(context, floor);
        }
        self.drain(id);
        result.map(|()| context)
    }

    pub(crate) fn transfer(&mut self, id: u64, to: u64) -> Result<(), Refused> {
        let result = refused(self.node(id).step(Input::Transfer(to)));
        self.drain(id);
        result
    }

    /// The running member that leads the highest term.
    pub(crate) fn leader(&mut self) -> Option<u64> {
        self.members
            .iter()
            .filter_map(|(id, member)| {
                let status = member.node.as_ref()?.status();
                (status.role == Role::Leader).then_some((status.term, *id))
            })
            .max()
            .map(|(_, id)| id)
    }

    /// Waits for a leader that the others know too.
    pub(crate) fn settle(&mut self) -> u64 {
        self.run_until("a leader", |cluster| {
            let Some(leader) = cluster.leader() else { return false };
            let voters: BTreeSet<u64> = cluster.members[&leader].machine.voters.clone();
            voters.iter().all(|id| {
                let member = &cluster.members[id];
                member.node.as_ref().is_none_or(|node| node.status().leader == leader)
            })
        });
        self.leader().unwrap()
    }

    /// Proposes `data` through `id` and waits until every running member has applied it.
    pub(crate) fn commit(&mut self, id: u64, data: &'static [u8]) {
        self.propose(id, &[Bytes::from_static(data)]).unwrap();
        self.run_until("commit", |cluster| cluster.truth.has(data));
        self.level();
    }

    /// Proposes a change through `id` and waits until every running member has applied it.
    pub(crate) fn commit_change(&mut self, id: u64, change: &ConfChange) {
        let before = self.truth.highest();
        self.propose_change(id, change).unwrap();
        self.run_until("commit", |cluster| cluster.truth.highest() > before);
        self.level();
    }

    /// Waits until every running member has applied everything that is committed.
    pub(crate) fn level(&mut self) {
        self.run_until("everybody applies everything", |cluster| {
            let highest = cluster.truth.highest();
            cluster.members.iter().all(|(_, member)| {
                member.node.as_ref().is_none_or(|node| {
                    member.machine.applied == highest && node.status().applied == highest
                })
            })
        });
    }

    pub(crate) fn isolate(&mut self, id: u64) {
        let others: Vec<u64> = self.members.keys().copied().filter(|other| *other != id).collect();
        for other in others {
            self.cut.insert((id, other));
            self.cut.insert((other, id));
        }
    }
}

fn refused(result: Result<(), StepError>) -> Result<(), Refused> {
    match result {
        Ok(()) => Ok(()),
        Err(StepError::Refused(refused)) => Err(refused),
        Err(other) => panic!("{other}"),
    }
}

/// The error of a step that must end the process.
pub(crate) fn fatal(result: Result<(), StepError>) -> Fatal {
    match result {
        Err(StepError::Fatal(fatal)) => fatal,
        other => panic!("not fatal: {other:?}"),
    }
}
