//! Requests to the node and messages from peers: what is taken, what is refused and why.
//!
//! **Invariant:** nothing reaches raft-rs that it would panic on or drop without a word.

use bytes::Bytes;
use mainstay_proto::raftpb::{ConfChange, Message};
use raft::StateRole;
use raft::eraftpb::{self, MessageType};

use super::Node;
use crate::change;
use crate::convert;
use crate::error::{BadMessage, Fatal, Refused, StepError};
use crate::reads::MAX_READS;

impl Node {
    /// Whether a proposal would be taken now.
    pub fn may_propose(&self) -> Result<(), Refused> {
        let raft = &self.raw.raft;
        match raft.state {
            StateRole::Leader if self.leaving.is_some() => Err(Refused::Removed),
            StateRole::Leader if raft.lead_transferee.is_some() => Err(Refused::Transferring),
            StateRole::Leader => Ok(()),
            StateRole::Follower if raft.leader_id != raft::INVALID_ID => Ok(()),
            _ => Err(Refused::NoLeader),
        }
    }

    /// Whether this member leads, and in this term.
    pub fn leads_in(&self, term: u64) -> bool {
        self.raw.raft.state == StateRole::Leader && self.raw.raft.term == term
    }

    pub(super) fn propose(&mut self, data: Vec<Bytes>) -> Result<(), StepError> {
        self.may_propose()?;
        if data.is_empty() || data.iter().any(Bytes::is_empty) {
            return Err(Refused::Malformed.into());
        }
        let entries = data
            .into_iter()
            .map(|data| eraftpb::Entry { data, ..eraftpb::Entry::default() })
            .collect();
        self.append(self.config.id, entries)
    }

    pub(super) fn propose_conf_change(&mut self, change: &ConfChange) -> Result<(), StepError> {
        self.may_propose()?;
        let mut entries = vec![change::entry(change)];
        if change.node_id() == raft::INVALID_ID || change::check(&entries).is_err() {
            return Err(Refused::Malformed.into());
        }
        if self.is_leader() {
            if self.raw.raft.has_pending_conf() {
                return Err(Refused::ConfChangePending.into());
            }
            change::prepare(&mut entries, false);
        }
        self.append(self.config.id, entries)
    }

    fn append(&mut self, from: u64, entries: Vec<eraftpb::Entry>) -> Result<(), StepError> {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = from;
        message.set_entries(entries.into());
        match self.raw.raft.step(message) {
            Ok(()) => Ok(()),
            // `may_propose` has excluded the other reasons.
            Err(raft::Error::ProposalDropped) => Err(Refused::Uncommitted.into()),
            Err(error) => Err(Fatal::Raft(error.to_string()).into()),
        }
    }

    pub(super) fn message(&mut self, message: Message) -> Result<(), StepError> {
        let mut message = convert::message_in(message, self.config.id)?;
        let raft = &self.raw.raft;
        match message.get_msg_type() {
            MessageType::MsgPropose => {
                change::check(message.get_entries())?;
                self.may_propose().map_err(BadMessage::Dropped)?;
                if self.is_leader() {
                    let pending = raft.has_pending_conf();
                    change::prepare(message.mut_entries(), pending);
                }
            }
            MessageType::MsgTimeoutNow if self.config.never_lead => {
                return Err(BadMessage::NeverLead.into());
            }
            // The leader sends it only to a member that has acknowledged everything.
            MessageType::MsgTimeoutNow if !self.is_quiet() => return Ok(()),
            MessageType::MsgHeartbeat if message.term >= raft.term => {
                let last = raft.raft_log.last_index();
                if message.commit > last {
                    let id = self.config.id;
                    return Err(Fatal::LostLog { id, commit: message.commit, last }.into());
                }
            }
            MessageType::MsgReadIndex if self.is_leader() => {
                if !raft.commit_to_current_term() {
                    self.reads.postpone(message);
                    return Ok(());
                }
                if raft.pending_read_count() >= MAX_READS {
                    return Err(BadMessage::Dropped(Refused::Full).into());
                }
            }
            _ => {}
        }
        let from = message.from;
        match self.raw.step(message) {
            Ok(()) => Ok(()),
            Err(raft::Error::ProposalDropped) => {
                Err(BadMessage::Dropped(Refused::Uncommitted).into())
            }
            Err(raft::Error::StepPeerNotFound) => Err(BadMessage::UnknownPeer(from).into()),
            Err(error) => Err(Fatal::Raft(error.to_string()).into()),
        }
    }

    pub(super) fn read_index(&mut self, context: u64) -> Result<(), StepError> {
        let raft = &self.raw.raft;
        let leads = self.is_leader();
        match raft.state {
            StateRole::Leader => {}
            StateRole::Follower if raft.leader_id != raft::INVALID_ID => {}
            _ => return Err(Refused::NoLeader.into()),
        }
        let ready = !leads || raft.commit_to_current_term();
        let bytes = self.reads.ask(context)?;
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgReadIndex);
        let entry = eraftpb::Entry { data: bytes.into(), ..eraftpb::Entry::default() };
        message.set_entries(vec![entry].into());
        if ready {
            self.raw.raft.step(message).map_err(|error| Fatal::Raft(error.to_string()))?;
        } else {
            self.reads.postpone(message);
        }
        Ok(())
    }

    pub(super) fn transfer(&mut self, to: u64) -> Result<(), StepError> {
        if !self.is_leader() {
            return Err(Refused::NotLeader.into());
        }
        let prs = self.raw.raft.prs();
        if prs.get(to).is_none() || prs.conf().learners().contains(&to) {
            return Err(Refused::NotVoter(to).into());
        }
        self.raw.transfer_leader(to);
        Ok(())
    }
}
