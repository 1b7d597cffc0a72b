//! `--force-new-cluster`: one member of a lost cluster goes on alone, with all that its log holds.
//!
//! As in etcd, entries that remove everybody else are appended as committed. Unlike in etcd, what is
//! not known to be committed is kept: the newest commit index may not be on disk, so writes that
//! were acknowledged can be among it; and there is nobody left who could hold something else.

use std::collections::BTreeSet;

use mainstay_log::{LogStore as _, Recovered, Wal};
use mainstay_mvcc::StateView;
use mainstay_mvcc::membership::{ConfChangeKind, Member, json};
use mainstay_proto::raftpb::{ConfChange, ConfChangeType, Entry, EntryType};
use prost::Message as _;

use super::StartError;
use crate::config::StoreConfig;
use crate::core::Identity;

/// Rewrites the end of the log so that this member is the only one.
pub(super) fn force_new_cluster(
    config: &StoreConfig,
    identity: Identity,
    state: &StateView,
    wal: &mut Wal,
    recovered: &mut Recovered,
) -> Result<(), StartError> {
    let own = identity.member_id;
    let applied = state.applied.index;
    let commit = recovered.entries.last().map_or(applied, |entry| entry.index().max(applied));

    let mut voters: BTreeSet<u64> = state.conf_state.voters.iter().copied().collect();
    let mut learners: BTreeSet<u64> = state.conf_state.learners.iter().copied().collect();
    for entry in recovered.entries.iter().filter(|entry| entry.index() > applied) {
        if entry.r#type() != EntryType::EntryConfChange {
            continue;
        }
        let Ok(change) = ConfChange::decode(entry.data.clone().unwrap_or_default()) else {
            continue;
        };
        let id = change.node_id();
        match ConfChangeKind::of(&change) {
            Some(ConfChangeKind::AddNode) => {
                learners.remove(&id);
                voters.insert(id);
            }
            Some(ConfChangeKind::AddLearnerNode) => {
                learners.insert(id);
            }
            Some(ConfChangeKind::RemoveNode) => {
                voters.remove(&id);
                learners.remove(&id);
            }
            Some(ConfChangeKind::UpdateNode) | None => {}
        }
    }
    if learners.contains(&own) {
        return Err(StartError::ForcedLearner);
    }

    let term = recovered.hard_state.term().max(1);
    let mut next = commit;
    let mut entry = |change: ConfChange| {
        next += 1;
        Entry {
            r#type: Some(EntryType::EntryConfChange as i32),
            term: Some(term),
            index: Some(next),
            data: Some(change.encode_to_vec().into()),
        }
    };
    let mut entries = Vec::new();
    // First itself, then the others: there is always a voter.
    if !voters.contains(&own) {
        let member = Member::new(own, "", config.advertise_peer_urls.clone(), false);
        entries.push(entry(ConfChange {
            id: None,
            r#type: Some(ConfChangeType::ConfChangeAddNode as i32),
            node_id: Some(own),
            context: Some(json::member(&member).into()),
        }));
    }
    for id in voters.union(&learners).filter(|id| **id != own) {
        entries.push(entry(ConfChange {
            id: None,
            r#type: Some(ConfChangeType::ConfChangeRemoveNode as i32),
            node_id: Some(*id),
            context: None,
        }));
    }
    recovered.hard_state.term = Some(term);
    recovered.hard_state.commit = Some(next);
    wal.append(&entries, Some(&recovered.hard_state), true).map_err(StartError::FirstEntries)?;
    tracing::warn!(
        member = format!("{own:x}"),
        commit,
        removed = entries.len(),
        "forcing a new cluster of this member alone"
    );
    recovered.entries.append(&mut entries);
    Ok(())
}
