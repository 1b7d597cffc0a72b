//! Membership changes: etcd numbers them differently from raft-rs, so raft-rs must never read one.
//!
//! Input: `raftpb::ConfChange` in etcd's numbering. Output: entries that raft-rs can carry, and the
//! raft-rs change to apply.
//!
//! raft-rs parses a change in one place only: when a leader takes a proposal. There it wants to
//! know whether the change is empty, nothing else. So on the way into that place the entry's data
//! is swapped for a stand-in, and [`crate::convert::entry_out`] swaps it back wherever entries
//! leave. Entries from peers and from the log are carried as they are.
//!
//! **Invariant:** the bytes of a membership change never differ between what was proposed and what
//! is sent, written to the log or applied.

use bytes::Bytes;
use mainstay_proto::raftpb::{self, ConfChangeType};
use prost::Message as _;
use raft::eraftpb::{self, EntryType};

use crate::convert;
use crate::error::BadMessage;

/// Bytes that raft-rs reads as a change, as long as those that they stand for: raft-rs counts the
/// uncommitted bytes up by what was proposed and down by what comes out.
fn stand_in(length: usize) -> Bytes {
    const CONTEXT: u8 = 0x22;
    // Tag and length of a context that fills the rest. The length may take a byte more than it
    // needs to, because no context makes 130 bytes otherwise.
    let head: &[u8] = match length {
        0 => &[],
        1..=129 => &[CONTEXT, (length.max(2) - 2) as u8],
        _ => {
            let rest = length - 6;
            let group = |shift: usize| (rest >> shift & 0x7f) as u8;
            let more = 0x80;
            &[
                CONTEXT,
                more | group(0),
                more | group(7),
                more | group(14),
                more | group(21),
                group(28),
            ]
        }
    };
    let mut bytes = head.to_vec();
    bytes.resize(length.max(head.len()), 0);
    bytes.into()
}

/// The entry that proposes `change`.
pub(crate) fn entry(change: &raftpb::ConfChange) -> eraftpb::Entry {
    let mut entry = eraftpb::Entry::default();
    entry.set_entry_type(EntryType::EntryConfChange);
    entry.data = change.encode_to_vec().into();
    entry
}

/// Refuses proposed changes that a real leader would not survive.
pub(crate) fn check(entries: &[eraftpb::Entry]) -> Result<(), BadMessage> {
    for entry in entries {
        match entry.get_entry_type() {
            EntryType::EntryNormal => {}
            // etcd's server never proposes this and dies when it applies one.
            EntryType::EntryConfChangeV2 => return Err(BadMessage::ConfChange),
            EntryType::EntryConfChange => {
                let change = raftpb::ConfChange::decode(&entry.data[..])
                    .map_err(|_| BadMessage::ConfChange)?;
                // A number that etcd does not know would be applied differently by each member.
                ConfChangeType::try_from(change.r#type.unwrap_or(0))
                    .map_err(|_| BadMessage::ConfChange)?;
            }
        }
    }
    Ok(())
}

/// Prepares checked entries for a raft-rs leader. While a change is pending, and for a second one
/// in the same proposal, etcd's leader appends an empty entry in its place: so does this.
pub(crate) fn prepare(entries: &mut [eraftpb::Entry], mut pending: bool) {
    for entry in entries {
        if entry.get_entry_type() != EntryType::EntryConfChange {
            continue;
        }
        if pending {
            *entry = convert::refused_entry();
        } else {
            let parsable = stand_in(entry.data.len());
            convert::stand_in(entry, parsable);
            pending = true;
        }
    }
}

/// What raft has to do when `change` is applied; `None` when only URLs change.
pub(crate) fn to_apply(change: &raftpb::ConfChange) -> Option<eraftpb::ConfChange> {
    let kind = match change.r#type() {
        ConfChangeType::ConfChangeAddNode => eraftpb::ConfChangeType::AddNode,
        ConfChangeType::ConfChangeRemoveNode => eraftpb::ConfChangeType::RemoveNode,
        ConfChangeType::ConfChangeAddLearnerNode => eraftpb::ConfChangeType::AddLearnerNode,
        ConfChangeType::ConfChangeUpdateNode => return None,
    };
    let mut out = eraftpb::ConfChange::default();
    out.set_change_type(kind);
    out.node_id = change.node_id();
    Some(out)
}

/// The start of the log of a new cluster: one AddNode per founding member, in order of id, term 1,
/// all committed. Byte-equal to what etcd's members write, so each member makes them on its own.
/// `context` is the member as JSON.
pub fn bootstrap(members: &[(u64, Bytes)]) -> (Vec<raftpb::Entry>, raftpb::HardState) {
    let mut members: Vec<_> = members.iter().collect();
    members.sort_by_key(|(id, _)| *id);
    let entries: Vec<_> = members
        .iter()
        .zip(1..)
        .map(|((id, context), index)| {
            let change = raftpb::ConfChange {
                id: None,
                r#type: Some(ConfChangeType::ConfChangeAddNode as i32),
                node_id: Some(*id),
                context: (!context.is_empty()).then(|| context.clone()),
            };
            raftpb::Entry {
                r#type: Some(raftpb::EntryType::EntryConfChange as i32),
                term: Some(1),
                index: Some(index),
                data: Some(change.encode_to_vec().into()),
            }
        })
        .collect();
    let commit = entries.len() as u64;
    (entries, raftpb::HardState { term: Some(1), vote: Some(0), commit: Some(commit) })
}

#[cfg(test)]
mod tests {
    use protobuf::Message as _;

    use super::*;

    fn change(kind: ConfChangeType) -> raftpb::ConfChange {
        raftpb::ConfChange {
            id: Some(77),
            r#type: Some(kind as i32),
            node_id: Some(3),
            context: Some(Bytes::from_static(b"{\"id\":3}")),
        }
    }

    #[test]
    fn a_prepared_change_leaves_with_its_own_bytes() {
        let change = change(ConfChangeType::ConfChangeAddLearnerNode);
        let mut entries = [entry(&change)];
        prepare(&mut entries, false);
        let [entry] = entries;
        // raft-rs reads this, and does not take it for the end of a joint configuration.
        eraftpb::ConfChange::parse_from_bytes(&entry.data).unwrap();
        let out = convert::entry_out(entry);
        assert_eq!(out.r#type, Some(1));
        assert_eq!(out.data.unwrap(), change.encode_to_vec());
    }

    #[test]
    fn stand_ins_of_every_length_parse() {
        for length in (0..300).filter(|length| *length != 1).chain([16_000, 17_000, 3_000_000]) {
            let bytes = stand_in(length);
            assert_eq!(bytes.len(), length);
            let change = eraftpb::ConfChange::parse_from_bytes(&bytes).unwrap();
            assert_eq!(change.node_id, 0);
        }
    }

    #[test]
    fn an_empty_change_leaves_empty() {
        let mut entries = [eraftpb::Entry::default()];
        entries[0].set_entry_type(EntryType::EntryConfChange);
        prepare(&mut entries, false);
        let [entry] = entries;
        assert_eq!(convert::entry_out(entry).data, None);
    }

    #[test]
    fn one_change_at_a_time() {
        let change = change(ConfChangeType::ConfChangeRemoveNode);
        let mut entries = [entry(&change), entry(&change)];
        prepare(&mut entries, false);
        assert!(entries[0].sync_log);
        let [_, second] = entries;
        let second = convert::entry_out(second);
        assert_eq!((second.r#type, second.data), (Some(0), None));
    }

    #[test]
    fn what_would_kill_a_real_member_is_refused() {
        let mut bad = entry(&change(ConfChangeType::ConfChangeAddNode));
        bad.data = Bytes::from_static(b"\xff");
        assert_eq!(check(&[bad.clone()]), Err(BadMessage::ConfChange));
        bad.data = Bytes::from_static(&[0x10, 0x04]);
        assert_eq!(check(&[bad.clone()]), Err(BadMessage::ConfChange));
        bad.set_entry_type(EntryType::EntryConfChangeV2);
        bad.data = Bytes::new();
        assert_eq!(check(&[bad]), Err(BadMessage::ConfChange));
    }

    #[test]
    fn bootstrap_entries_are_those_of_a_real_member() {
        // From the log of a 3.7.3 member that founded a cluster of one.
        let context =
            br#"{"id":9265619892315062708,"peerURLs":["http://127.0.0.1:33800"],"name":"default"}"#;
        let (entries, state) = bootstrap(&[(9265619892315062708, Bytes::from_static(context))]);
        let mut real = vec![
            0x08, 0x01, 0x10, 0x01, 0x18, 0x01, 0x22, 0x60, 0x10, 0x00, 0x18, 0xb4, 0x83, 0xee,
            0x89, 0xb6, 0x86, 0x86, 0xcb, 0x80, 0x01, 0x22, 0x51,
        ];
        real.extend_from_slice(context);
        assert_eq!(entries[0].encode_to_vec(), real);
        assert_eq!(state.encode_to_vec(), [8, 1, 16, 0, 24, 1]);
    }
}
