//! What the node wants done, and how it goes on when that is written.
//!
//! **Invariant:** a member's entries are written before they are counted or acknowledged.

use mainstay_proto::raftpb;
use raft::eraftpb::{self, MessageType};

use super::Node;
use crate::convert;
use crate::error::Fatal;
use crate::outbox::{Outbox, coalesce};
use crate::status::SoftState;

/// What a node wants done. In this order: send `outbox`; hand out `committed`, `read_states`,
/// `refused_reads` and `soft`; write `snapshot` as a mark, then `entries` and `hard_state`; send
/// `persisted`; call [`Node::advance`]; install `snapshot`.
#[derive(Default)]
pub struct Ready {
    /// Send at once, before anything is written (a leader's messages).
    pub outbox: Outbox,
    /// Send when everything here is durable.
    pub persisted: Outbox,
    /// Committed entries, which are durable here.
    pub committed: Vec<raftpb::Entry>,
    /// Answers to read requests: context and index.
    pub read_states: Vec<(u64, u64)>,
    /// Read requests that are lost.
    pub refused_reads: Vec<u64>,
    /// Leadership, when it changed.
    pub soft: Option<SoftState>,
    /// A snapshot that replaces the state and the log up to its index.
    pub snapshot: Option<raftpb::Snapshot>,
    /// Entries to append to the log. They replace what stands there from their first index on.
    pub entries: Vec<raftpb::Entry>,
    /// Term, vote and commit index, when one of them changed.
    pub hard_state: Option<raftpb::HardState>,
    /// Whether the write must be durable before going on.
    pub must_sync: bool,
}

/// What follows from a [`Ready`] that has been written.
#[derive(Default)]
pub struct Advanced {
    /// Messages to send.
    pub outbox: Outbox,
    /// Committed entries.
    pub committed: Vec<raftpb::Entry>,
}

/// What `advance` needs of the Ready that is being written.
pub(super) struct Pending {
    ready: raft::Ready,
    entries: Vec<eraftpb::Entry>,
    snapshot: Option<(u64, u64)>,
}

impl Node {
    /// Whether [`Node::ready`] must come before the next input.
    pub fn needs_ready(&self) -> bool {
        self.standing != self.standing_now()
    }

    fn standing_now(&self) -> super::Standing {
        let raft = &self.raw.raft;
        (raft.term, raft.vote, raft.state)
    }

    /// What has to be done now, if anything.
    pub fn ready(&mut self) -> Option<Ready> {
        assert!(self.pending.is_none(), "ready twice without advance");
        self.standing = self.standing_now();
        if !self.raw.has_ready() && !self.reads.has_refused() {
            return None;
        }
        let mut ready = self.raw.ready();
        let mut entries = ready.take_entries();
        entries.iter_mut().for_each(convert::unwrap_stand_in);
        let hard_state = self.raw.raft.hard_state();
        let soft = self.soft_now();
        let snapshot = Some(ready.snapshot()).filter(|snapshot| !snapshot.is_empty()).cloned();
        let read_states = ready
            .take_read_states()
            .into_iter()
            .filter_map(|state| Some((self.reads.answered(&state.request_ctx)?, state.index)))
            .collect();
        let out = Ready {
            outbox: self.outbox(ready.take_messages()),
            persisted: self.outbox(ready.take_persisted_messages()),
            committed: convert::entries_out(ready.take_committed_entries()),
            read_states,
            refused_reads: self.reads.take_refused(),
            soft: (soft != self.soft).then_some(soft),
            entries: convert::entries_out(entries.iter().cloned()),
            hard_state: (hard_state != self.written).then(|| convert::hard_state_out(&hard_state)),
            must_sync: ready.must_sync(),
            snapshot: snapshot.clone().map(convert::snapshot_out),
        };
        self.soft = soft;
        self.written = hard_state;
        let snapshot = snapshot.map(|snapshot| {
            let metadata = snapshot.get_metadata();
            (metadata.index, metadata.term)
        });
        self.pending = Some(Pending { ready, entries, snapshot });
        Some(out)
    }

    /// Everything in the last [`Ready`] is written, durably if it had to be.
    pub fn advance(&mut self) -> Result<Advanced, Fatal> {
        let pending = self.pending.take().expect("advance follows ready");
        let store = self.raw.mut_store();
        if let Some((index, term)) = pending.snapshot {
            store.restore(index, term);
        }
        store.append(&pending.entries);
        let mut light = self.raw.advance_append(pending.ready);
        if let Some((index, _)) = pending.snapshot {
            // raft looks for unapplied changes behind the applied index, where nothing is left.
            self.raw.advance_apply_to(index);
        }
        let advanced = Advanced {
            outbox: self.outbox(light.take_messages()),
            committed: convert::entries_out(light.take_committed_entries()),
        };
        if self.is_leader() && self.raw.raft.commit_to_current_term() {
            for read in self.reads.take_postponed() {
                self.raw.raft.step(read).map_err(|error| Fatal::Raft(error.to_string()))?;
            }
        }
        Ok(advanced)
    }

    fn outbox(&mut self, messages: Vec<eraftpb::Message>) -> Outbox {
        let mut out = Outbox::default();
        for message in messages {
            if message.get_msg_type() != MessageType::MsgSnapshot {
                out.messages.push(convert::message_out(message));
                continue;
            }
            let index = message.get_snapshot().get_metadata().index;
            let pinned = self.raw.store().take_pinned(index);
            let pinned = pinned.expect("raft sends only snapshots that the window gave it");
            self.holds.sent(message.to, index);
            out.snapshots.push((convert::message_out(message), pinned));
        }
        coalesce(&mut out.messages);
        out
    }
}
