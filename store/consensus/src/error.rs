//! Why consensus says no.
//!
//! Three kinds that must not be mixed: [`Refused`] answers a caller who may try again,
//! [`BadMessage`] drops one message from a peer, [`Fatal`] ends the process.
//!
//! **Invariant:** whatever could lose acknowledged data is a [`Fatal`]; nothing else is.

use std::io;

/// A request of ours was not taken. Nothing entered the log, so trying again is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Nobody leads, as far as this member knows, and nobody did until the request's deadline.
    #[error("no leader")]
    NoLeader,
    /// The request is for the leader alone, and that is another member.
    #[error("not the leader")]
    NotLeader,
    /// The leader is handing over and takes no proposals meanwhile.
    #[error("leadership is being transferred")]
    Transferring,
    /// The member that leadership was to go to did not take it within an election timeout.
    #[error("the other member did not take over leadership in time")]
    TransferFailed,
    /// Too many requests wait for the raft thread.
    #[error("too many requests wait for the raft thread")]
    Full,
    /// Too many bytes are in the log and not yet committed.
    #[error("too many bytes wait to be committed")]
    Uncommitted,
    /// An earlier membership change has not been applied yet.
    #[error("an earlier membership change is not applied yet")]
    ConfChangePending,
    /// This member has been removed from the cluster.
    #[error("this member is no longer part of the cluster")]
    Removed,
    /// Leadership can only go to a voting member.
    #[error("member {0:x} is not a voting member")]
    NotVoter(u64),
    /// The request is not one that the log can hold.
    #[error("malformed request")]
    Malformed,
    /// The raft thread has ended.
    #[error("stopped")]
    Stopped,
}

/// A message from a peer that is dropped, because raft would misread it or fall over it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// Types from 19 on never travel, and raft-rs cannot decode them.
    #[error("message type {0} is not one that peers send")]
    Type(i32),
    /// Types that a member only sends to itself.
    #[error("message type {0} is local")]
    Local(i32),
    /// It is for somebody else.
    #[error("message for member {to:x}, this is {id:x}")]
    WrongTarget {
        /// The addressee.
        to: u64,
        /// This member.
        id: u64,
    },
    /// It does not say who sent it, or claims to come from this member.
    #[error("message without a proper sender")]
    Sender,
    /// All but proposals and read requests carry a term.
    #[error("message of type {0} without a term")]
    NoTerm(i32),
    /// The number of entries does not fit the type.
    #[error("message of type {kind} with {count} entries")]
    EntryCount {
        /// The message type.
        kind: i32,
        /// The entries in it.
        count: usize,
    },
    /// Entries must follow each other and the index that they are appended to.
    #[error("entry {found} where {expected} should be")]
    EntryOrder {
        /// What would continue the log.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// An entry of a type that raft does not know.
    #[error("entry type {0} is unknown")]
    EntryType(i32),
    /// A membership change that does not decode would end real members.
    #[error("a proposed membership change does not decode")]
    ConfChange,
    /// A snapshot message without a snapshot.
    #[error("snapshot message without a snapshot")]
    NoSnapshot,
    /// A reply from somebody who is not in the configuration.
    #[error("reply from member {0:x}, which is not in the configuration")]
    UnknownPeer(u64),
    /// A proposal that could not be taken now; the peer's client will time out, as with etcd.
    #[error("forwarded proposal dropped: {0}")]
    Dropped(Refused),
    /// This member is configured never to lead and was asked to.
    #[error("asked to lead, but configured never to")]
    NeverLead,
}

/// Consensus cannot go on without risking what has been promised. The process must end.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The log could not be written. Nobody knows what the disk holds now.
    #[error("writing the raft log failed, so nothing can be promised any more: {0}")]
    Log(#[source] io::Error),
    /// What was recovered does not fit together.
    #[error("the recovered state does not fit together: {0}")]
    Start(String),
    /// The leader knows of entries on this member that it no longer has.
    #[error(
        "the leader says that this member holds the log up to {commit}, but it ends at {last}: this \
         member has lost its log and must not go on under its old id. Replace it: `etcdctl member \
         remove {id:x}`, then `etcdctl member add`, and start it with an empty data directory"
    )]
    LostLog {
        /// This member.
        id: u64,
        /// What the leader thinks it has.
        commit: u64,
        /// What it has.
        last: u64,
    },
    /// The state machine claims to have applied what was never committed.
    #[error(
        "entry {applied} is reported as applied, but only entries up to {committed} are committed"
    )]
    AppliedAhead {
        /// The report.
        applied: u64,
        /// The truth.
        committed: u64,
    },
    /// A committed membership change cannot be applied.
    #[error("the membership change at index {index} cannot be applied: {reason}")]
    ConfChange {
        /// Where it stands in the log.
        index: u64,
        /// What raft says.
        reason: String,
    },
    /// raft found a broken invariant.
    #[error("raft found a broken invariant: {0}")]
    Raft(String),
    /// The raft thread could not be started.
    #[error("the raft thread could not be started: {0}")]
    Thread(#[source] io::Error),
}

/// How [`crate::Node::step`] ends when it does not take an input.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A request of ours was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A peer's message was dropped.
    #[error(transparent)]
    BadMessage(#[from] BadMessage),
    /// The node must not be used any more.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}
