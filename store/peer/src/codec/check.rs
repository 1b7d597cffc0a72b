//! Which messages may cross the wire at all, in either direction.
//!
//! Raft also names messages that a member sends to itself; one that arrives from outside is at best
//! meaningless and at worst ends a process. The same check stands before everything that we send.

use mainstay_proto::raftpb::{Message, MessageType};
use thiserror::Error;

/// A message that has no place between peers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    /// A type that peers do not exchange, or that is unknown.
    #[error("message type {0} is not exchanged between peers")]
    Type(i32),
    /// A snapshot outside of the snapshot endpoint.
    #[error("a snapshot travels on its own path only")]
    Snapshot,
    /// A snapshot message that does not say what it is a snapshot of.
    #[error("snapshot message without index and term")]
    NoMetadata,
    /// A proposal of nothing, which raft cores take for a broken invariant.
    #[error("proposal without entries")]
    EmptyProposal,
    /// For another member.
    #[error("message is for member {to:x}, this is about member {expected:x}")]
    To {
        /// The addressee in the message.
        to: u64,
        /// Whom it had to name.
        expected: u64,
    },
}

/// Checks a message that came on a stream or in a POST to /raft, for the member `local`.
pub fn check_incoming(message: &Message, local: u64) -> Result<(), Unfit> {
    check(message, local)?;
    match message.r#type() {
        MessageType::MsgSnap => Err(Unfit::Snapshot),
        _ => Ok(()),
    }
}

/// Checks a message that is about to be sent to the member `remote`.
pub fn check_outgoing(message: &Message, remote: u64) -> Result<(), Unfit> {
    check_incoming(message, remote)
}

/// Checks the message at the head of a snapshot for the member `member`, in either direction. The
/// metadata must be there: real etcd reads it without asking.
pub fn check_snapshot(message: &Message, member: u64) -> Result<(), Unfit> {
    check(message, member)?;
    if message.r#type() != MessageType::MsgSnap {
        return Err(Unfit::Type(message.r#type.unwrap_or(0)));
    }
    let metadata = message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref());
    let sound = metadata.is_some_and(|metadata| {
        metadata.index() > 0 && metadata.term() > 0 && metadata.conf_state.is_some()
    });
    if sound { Ok(()) } else { Err(Unfit::NoMetadata) }
}

fn check(message: &Message, expected: u64) -> Result<(), Unfit> {
    use MessageType::*;
    let raw = message.r#type.unwrap_or(MsgHup as i32);
    let Ok(kind) = MessageType::try_from(raw) else { return Err(Unfit::Type(raw)) };
    match kind {
        MsgProp if message.entries.is_empty() => return Err(Unfit::EmptyProposal),
        MsgProp | MsgApp | MsgAppResp | MsgVote | MsgVoteResp | MsgSnap | MsgHeartbeat
        | MsgHeartbeatResp | MsgTransferLeader | MsgTimeoutNow | MsgReadIndex
        | MsgReadIndexResp | MsgPreVote | MsgPreVoteResp => {}
        MsgHup | MsgBeat | MsgUnreachable | MsgSnapStatus | MsgCheckQuorum | MsgStorageAppend
        | MsgStorageAppendResp | MsgStorageApply | MsgStorageApplyResp | MsgForgetLeader => {
            return Err(Unfit::Type(raw));
        }
    }
    match message.to() {
        to if to == expected => Ok(()),
        to => Err(Unfit::To { to, expected }),
    }
}
