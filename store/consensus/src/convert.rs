//! etcd's raft messages to raft-rs's and back, by move: payloads stay shared `Bytes`.
//!
//! Input: `mainstay_proto::raftpb` from peers and from the log, raft-rs's `eraftpb` from raft.
//! Output: the other one. Field presence follows what raft 3.7 writes, because entries must be
//! byte-equal to those of real members, in messages and in the log.
//!
//! raft-rs has two entry fields that never travel. They carry what its messages cannot express:
//! - `sync_log` set: `data` is a stand-in for a membership change, and `context` has the bytes that
//!   were proposed (see [`crate::change`]);
//! - `context` equal to [`EXPLICIT_TYPE`]: the entry came with its type 0 written out, as etcd up
//!   to 3.6 writes it, and leaves like that.
//!
//! **Invariant:** a message that passes [`message_in`] does not make raft-rs panic by its form.
//! **Invariant:** fields that only raft-rs knows (13 to 16 of a message) neither enter nor leave.

use bytes::Bytes;
use mainstay_proto::raftpb;
use protobuf::ProtobufEnum;
use raft::eraftpb;

use crate::error::BadMessage;

/// Marks a normal entry whose type was written out. See the module.
const EXPLICIT_TYPE: &[u8] = &[0];

/// The largest message type that travels.
const LAST_TYPE: i32 = eraftpb::MessageType::MsgRequestPreVoteResponse as i32;

pub(crate) fn entry_in(entry: raftpb::Entry) -> Result<eraftpb::Entry, BadMessage> {
    let kind = entry.r#type.unwrap_or(0);
    let mut out = eraftpb::Entry::default();
    out.set_entry_type(eraftpb::EntryType::from_i32(kind).ok_or(BadMessage::EntryType(kind))?);
    out.term = entry.term.unwrap_or(0);
    out.index = entry.index.unwrap_or(0);
    out.data = entry.data.unwrap_or_default();
    if entry.r#type == Some(0) {
        out.context = Bytes::from_static(EXPLICIT_TYPE);
    }
    Ok(out)
}

/// An entry as etcd refuses it: type written out, nothing in it.
pub(crate) fn refused_entry() -> eraftpb::Entry {
    eraftpb::Entry { context: Bytes::from_static(EXPLICIT_TYPE), ..eraftpb::Entry::default() }
}

/// A stand-in for a membership change that raft-rs can parse.
pub(crate) fn stand_in(entry: &mut eraftpb::Entry, parsable: Bytes) {
    entry.context = std::mem::replace(&mut entry.data, parsable);
    entry.sync_log = true;
}

/// Puts the proposed bytes back, if this is a stand-in.
pub(crate) fn unwrap_stand_in(entry: &mut eraftpb::Entry) {
    if entry.sync_log {
        entry.data = std::mem::take(&mut entry.context);
        entry.sync_log = false;
    }
}

pub(crate) fn entry_out(mut entry: eraftpb::Entry) -> raftpb::Entry {
    unwrap_stand_in(&mut entry);
    let kind = entry.entry_type.value();
    raftpb::Entry {
        r#type: (kind != 0 || entry.context == EXPLICIT_TYPE).then_some(kind),
        term: nonzero(entry.term),
        index: nonzero(entry.index),
        data: (!entry.data.is_empty()).then_some(entry.data),
    }
}

pub(crate) fn entries_out(entries: impl IntoIterator<Item = eraftpb::Entry>) -> Vec<raftpb::Entry> {
    entries.into_iter().map(entry_out).collect()
}

fn nonzero(value: u64) -> Option<u64> {
    (value != 0).then_some(value)
}

pub(crate) fn conf_state_in(state: raftpb::ConfState) -> eraftpb::ConfState {
    eraftpb::ConfState {
        voters: state.voters,
        learners: state.learners,
        voters_outgoing: state.voters_outgoing,
        learners_next: state.learners_next,
        auto_leave: state.auto_leave.unwrap_or(false),
        ..Default::default()
    }
}

pub(crate) fn conf_state_out(state: eraftpb::ConfState) -> raftpb::ConfState {
    raftpb::ConfState {
        voters: state.voters,
        learners: state.learners,
        voters_outgoing: state.voters_outgoing,
        learners_next: state.learners_next,
        auto_leave: Some(state.auto_leave),
    }
}

pub(crate) fn metadata_in(metadata: raftpb::SnapshotMetadata) -> eraftpb::SnapshotMetadata {
    let mut out = eraftpb::SnapshotMetadata {
        index: metadata.index.unwrap_or(0),
        term: metadata.term.unwrap_or(0),
        ..Default::default()
    };
    out.set_conf_state(conf_state_in(metadata.conf_state.unwrap_or_default()));
    out
}

fn snapshot_in(snapshot: raftpb::Snapshot) -> eraftpb::Snapshot {
    let mut out =
        eraftpb::Snapshot { data: snapshot.data.unwrap_or_default(), ..Default::default() };
    out.set_metadata(metadata_in(snapshot.metadata.unwrap_or_default()));
    out
}

pub(crate) fn snapshot_out(mut snapshot: eraftpb::Snapshot) -> raftpb::Snapshot {
    let mut metadata = snapshot.take_metadata();
    raftpb::Snapshot {
        data: (!snapshot.data.is_empty()).then_some(snapshot.data),
        metadata: Some(raftpb::SnapshotMetadata {
            conf_state: Some(conf_state_out(metadata.take_conf_state())),
            index: Some(metadata.index),
            term: Some(metadata.term),
        }),
    }
}

pub(crate) fn hard_state_in(state: &raftpb::HardState) -> eraftpb::HardState {
    eraftpb::HardState {
        term: state.term.unwrap_or(0),
        vote: state.vote.unwrap_or(0),
        commit: state.commit.unwrap_or(0),
        ..Default::default()
    }
}

pub(crate) fn hard_state_out(state: &eraftpb::HardState) -> raftpb::HardState {
    raftpb::HardState { term: Some(state.term), vote: Some(state.vote), commit: Some(state.commit) }
}

/// Takes in a message for the member `id`, or says why it must not reach raft-rs.
pub(crate) fn message_in(
    message: raftpb::Message,
    id: u64,
) -> Result<eraftpb::Message, BadMessage> {
    use eraftpb::MessageType::*;

    let number = message.r#type.unwrap_or(0);
    let kind = match eraftpb::MessageType::from_i32(number) {
        Some(kind) if number <= LAST_TYPE => kind,
        _ => return Err(BadMessage::Type(number)),
    };
    if matches!(kind, MsgHup | MsgBeat | MsgUnreachable | MsgSnapStatus | MsgCheckQuorum) {
        return Err(BadMessage::Local(number));
    }
    let to = message.to.unwrap_or(0);
    if to != id {
        return Err(BadMessage::WrongTarget { to, id });
    }
    let from = message.from.unwrap_or(0);
    // Proposals and reads keep their first sender when a follower passes them on, so they come back
    // when leadership has gone the other way meanwhile.
    let forwarded = matches!(kind, MsgPropose | MsgReadIndex);
    if from == 0 || (from == id && !forwarded) {
        return Err(BadMessage::Sender);
    }
    let term = message.term.unwrap_or(0);
    // raft takes a message without a term for one of its own.
    if term == 0 && !forwarded {
        return Err(BadMessage::NoTerm(number));
    }
    let count = message.entries.len();
    let fits = match kind {
        MsgPropose => count > 0,
        MsgReadIndex | MsgReadIndexResp => count == 1,
        MsgAppend => true,
        _ => count == 0,
    };
    if !fits {
        return Err(BadMessage::EntryCount { kind: number, count });
    }
    let index = message.index.unwrap_or(0);
    if kind == MsgAppend {
        let mut expected = index;
        for entry in &message.entries {
            expected += 1;
            let found = entry.index.unwrap_or(0);
            if found != expected {
                return Err(BadMessage::EntryOrder { expected, found });
            }
        }
    }

    let mut out = eraftpb::Message::default();
    out.set_msg_type(kind);
    out.to = to;
    out.from = from;
    // A forwarded proposal or read counts as local, whatever it says.
    out.term = if forwarded { 0 } else { term };
    out.log_term = message.log_term.unwrap_or(0);
    out.index = index;
    if count > 0 {
        let entries: Result<Vec<_>, _> = message.entries.into_iter().map(entry_in).collect();
        out.set_entries(entries?.into());
    }
    out.commit = message.commit.unwrap_or(0);
    if kind == MsgSnapshot {
        let snapshot = snapshot_in(message.snapshot.ok_or(BadMessage::NoSnapshot)?);
        if snapshot.get_metadata().index == 0 {
            return Err(BadMessage::NoSnapshot);
        }
        out.set_snapshot(snapshot);
    }
    out.reject = message.reject.unwrap_or(false);
    out.reject_hint = message.reject_hint.unwrap_or(0);
    out.context = message.context.unwrap_or_default();
    Ok(out)
}

/// A message on its way out, with the fields that raft 3.7 sets for its type.
pub(crate) fn message_out(mut message: eraftpb::Message) -> raftpb::Message {
    use eraftpb::MessageType::*;

    let kind = message.get_msg_type();
    let mut out = raftpb::Message {
        r#type: Some(kind.value()),
        to: Some(message.to),
        from: Some(message.from),
        term: nonzero(message.term),
        entries: entries_out(message.take_entries()),
        reject: message.reject.then_some(true),
        context: (!message.context.is_empty()).then_some(message.context),
        ..raftpb::Message::default()
    };
    match kind {
        MsgAppend => {
            out.index = Some(message.index);
            out.log_term = Some(message.log_term);
            out.commit = Some(message.commit);
        }
        MsgHeartbeat => out.commit = Some(message.commit),
        MsgRequestVote | MsgRequestPreVote => {
            out.index = Some(message.index);
            out.log_term = Some(message.log_term);
        }
        MsgAppendResponse if message.reject => {
            out.index = Some(message.index);
            out.log_term = Some(message.log_term);
            out.reject_hint = Some(message.reject_hint);
        }
        MsgSnapshot => out.snapshot = message.snapshot.take().map(snapshot_out),
        MsgAppendResponse | MsgReadIndexResp => out.index = Some(message.index),
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn append(entries: Vec<raftpb::Entry>) -> raftpb::Message {
        raftpb::Message {
            r#type: Some(3),
            to: Some(2),
            from: Some(1),
            term: Some(5),
            log_term: Some(4),
            index: Some(7),
            commit: Some(0),
            entries,
            ..Default::default()
        }
    }

    fn entry(kind: Option<i32>, index: u64, data: Option<&'static [u8]>) -> raftpb::Entry {
        raftpb::Entry {
            r#type: kind,
            term: Some(5),
            index: Some(index),
            data: data.map(Bytes::from_static),
        }
    }

    #[test]
    fn entries_keep_their_bytes() {
        // The shapes that real members write: a leader's first entry, a request, a membership
        // change, a refused one, and a request from 3.6.
        let shapes = [
            entry(None, 8, None),
            entry(None, 9, Some(b"\xa2\x06\x00")),
            entry(Some(1), 10, Some(b"\x10\x03\x18\x07")),
            entry(Some(0), 11, None),
            entry(Some(0), 12, Some(b"x")),
        ];
        let before = append(shapes.to_vec());
        let after = message_out(message_in(before.clone(), 2).unwrap());
        assert_eq!(after.encode_to_vec(), before.encode_to_vec());
    }

    #[test]
    fn a_real_members_log_entry_comes_through() {
        // An entry of a 3.7.3 log: `put a b`, term 2, index 5, type absent.
        let bytes: &[u8] = &[
            0x10, 0x02, 0x18, 0x05, 0x22, 0x16, 0x22, 0x06, 0x0a, 0x01, 0x61, 0x12, 0x01, 0x62,
            0xa2, 0x06, 0x0b, 0x08, 0x83, 0xa0, 0x9f, 0xd8, 0xe8, 0xc5, 0xa8, 0xda, 0x81, 0x01,
        ];
        let entry = raftpb::Entry::decode(bytes).unwrap();
        assert_eq!(entry_out(entry_in(entry).unwrap()).encode_to_vec(), bytes);
        let state = raftpb::HardState { term: Some(1), vote: Some(0), commit: Some(1) };
        assert_eq!(hard_state_out(&hard_state_in(&state)).encode_to_vec(), [8, 1, 16, 0, 24, 1]);
    }

    #[test]
    fn payloads_are_shared() {
        let data = Bytes::from(vec![7; 1_000]);
        let before = append(vec![raftpb::Entry {
            r#type: None,
            term: Some(5),
            index: Some(8),
            data: Some(data.clone()),
        }]);
        let after = message_out(message_in(before, 2).unwrap());
        let out = after.entries[0].data.as_ref().unwrap();
        assert_eq!(out.as_ptr(), data.as_ptr());
    }

    #[test]
    fn raft_rs_fields_stay_home() {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(eraftpb::MessageType::MsgRequestVote);
        message.to = 2;
        message.from = 1;
        message.term = 3;
        message.index = 4;
        message.commit = 4;
        message.commit_term = 2;
        message.priority = 9;
        message.deprecated_priority = 9;
        message.request_snapshot = 1;
        let out = message_out(message);
        assert_eq!(out.commit, None);
        // type, to, from, term, logTerm, index.
        assert_eq!(out.encode_to_vec(), [8, 5, 16, 2, 24, 1, 32, 3, 40, 0, 48, 4]);
    }

    #[test]
    fn a_proposal_that_comes_back_is_taken() {
        let mut message = append(vec![entry(None, 0, Some(b"x"))]);
        message.r#type = Some(2);
        message.from = Some(2);
        message.term = None;
        assert_eq!(message_in(message, 2).unwrap().from, 2);
    }

    #[test]
    fn what_raft_would_fall_over_is_refused() {
        let base = append(Vec::new());
        let refuse = |change: &dyn Fn(&mut raftpb::Message)| {
            let mut message = base.clone();
            change(&mut message);
            message_in(message, 2).unwrap_err()
        };
        assert_eq!(refuse(&|m| m.r#type = Some(19)), BadMessage::Type(19));
        assert_eq!(refuse(&|m| m.r#type = Some(-1)), BadMessage::Type(-1));
        assert_eq!(refuse(&|m| m.r#type = None), BadMessage::Local(0));
        assert_eq!(refuse(&|m| m.r#type = Some(11)), BadMessage::Local(11));
        assert_eq!(refuse(&|m| m.to = Some(3)), BadMessage::WrongTarget { to: 3, id: 2 });
        assert_eq!(refuse(&|m| m.from = None), BadMessage::Sender);
        assert_eq!(refuse(&|m| m.from = Some(2)), BadMessage::Sender);
        assert_eq!(refuse(&|m| m.term = None), BadMessage::NoTerm(3));
        assert_eq!(refuse(&|m| m.r#type = Some(2)), BadMessage::EntryCount { kind: 2, count: 0 });
        assert_eq!(refuse(&|m| m.r#type = Some(15)), BadMessage::EntryCount { kind: 15, count: 0 });
        assert_eq!(refuse(&|m| m.r#type = Some(7)), BadMessage::NoSnapshot);
        assert_eq!(
            refuse(&|m| m.entries = vec![entry(None, 9, None)]),
            BadMessage::EntryOrder { expected: 8, found: 9 }
        );
        assert_eq!(
            refuse(&|m| m.entries = vec![entry(Some(3), 8, None)]),
            BadMessage::EntryType(3)
        );
    }
}
