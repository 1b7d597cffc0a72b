//! Read requests of this member, and reads that a fresh leader cannot answer yet.
//!
//! Input: contexts from the caller, read states and changes of leadership from the node. Output:
//! per context one answer or one refusal, unless the request was lost on the way to the leader.
//!
//! raft-rs drops a read on a leader that has not committed in its own term, and forgets all reads
//! when leadership changes, both silently. Here the former waits for the commit, as in etcd, and
//! the latter is reported.
//!
//! **Invariant:** the bytes that stand for a read are unique in the cluster and over restarts.
//! raft answers a repeated one with the index of its first use, which would be a stale read.

use std::collections::BTreeSet;

use raft::eraftpb::Message;

use crate::error::Refused;

/// Reads of ours under way, reads postponed, reads of others pending in raft: at most so many each.
pub(crate) const MAX_READS: usize = 4_096;

/// See the module.
pub(crate) struct Reads {
    /// Member and a number drawn at start: the prefix of our contexts.
    prefix: [u8; 16],
    outstanding: BTreeSet<u64>,
    refused: Vec<u64>,
    postponed: Vec<Message>,
    /// Term and leader under which the outstanding reads were asked.
    leadership: (u64, u64),
}

impl Reads {
    pub(crate) fn new(id: u64, incarnation: u64) -> Self {
        let mut prefix = [0; 16];
        prefix[..8].copy_from_slice(&id.to_be_bytes());
        prefix[8..].copy_from_slice(&incarnation.to_be_bytes());
        Self {
            prefix,
            outstanding: BTreeSet::new(),
            refused: Vec::new(),
            postponed: Vec::new(),
            leadership: (0, 0),
        }
    }

    /// Takes note of a read and gives the bytes that stand for it.
    pub(crate) fn ask(&mut self, context: u64) -> Result<Vec<u8>, Refused> {
        if self.outstanding.len() >= MAX_READS {
            return Err(Refused::Full);
        }
        if !self.outstanding.insert(context) {
            return Err(Refused::Malformed);
        }
        let mut bytes = self.prefix.to_vec();
        bytes.extend_from_slice(&context.to_be_bytes());
        Ok(bytes)
    }

    /// The context of an answer, if it is one of ours that nobody was told of yet.
    pub(crate) fn answered(&mut self, bytes: &[u8]) -> Option<u64> {
        let context = bytes.strip_prefix(&self.prefix)?;
        let context = u64::from_be_bytes(context.try_into().ok()?);
        self.outstanding.remove(&context).then_some(context)
    }

    /// Keeps a read until this leader has committed in its term. Dropped when too many wait; the
    /// member that asked tries again.
    pub(crate) fn postpone(&mut self, message: Message) {
        if self.postponed.len() < MAX_READS {
            self.postponed.push(message);
        }
    }

    pub(crate) fn take_postponed(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.postponed)
    }

    /// Gives up everything that was asked under another leadership.
    pub(crate) fn note_leadership(&mut self, term: u64, leader: u64) {
        if self.leadership != (term, leader) {
            self.leadership = (term, leader);
            self.postponed.clear();
            self.refused.extend(std::mem::take(&mut self.outstanding));
        }
    }

    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    pub(crate) fn take_refused(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_others_and_of_earlier_lives_are_not_ours() {
        let mut reads = Reads::new(1, 10);
        let bytes = reads.ask(7).unwrap();
        for mut other in [Reads::new(2, 10), Reads::new(1, 11)] {
            assert_ne!(other.ask(7).unwrap(), bytes);
            assert_eq!(other.answered(&bytes), None);
        }
        assert_eq!(reads.answered(b"\0\0\0\0\0\0\0\x07"), None);
        assert_eq!(reads.ask(7), Err(Refused::Malformed));
        assert_eq!(reads.answered(&bytes), Some(7));
        assert_eq!(reads.answered(&bytes), None);
    }

    #[test]
    fn a_change_of_leadership_refuses_what_was_asked() {
        let mut reads = Reads::new(1, 10);
        reads.note_leadership(2, 3);
        let bytes = reads.ask(1).unwrap();
        reads.note_leadership(2, 3);
        assert!(!reads.has_refused());
        reads.note_leadership(3, 3);
        assert_eq!(reads.take_refused(), [1]);
        assert_eq!(reads.answered(&bytes), None);
    }

    #[test]
    fn too_many_reads_are_refused() {
        let mut reads = Reads::new(1, 10);
        for context in 0..MAX_READS as u64 {
            reads.ask(context).unwrap();
        }
        assert_eq!(reads.ask(MAX_READS as u64), Err(Refused::Full));
    }
}
