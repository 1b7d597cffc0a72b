//! A member with a log: the log says who it is, and log and engine are brought together.
//!
//! An engine that is gone is made again where the log reaches back to its first entry, or to a
//! snapshot that waits as a whole generation.
//! **Invariant:** the engine is never trusted above the log's end, and never behind its beginning.

use std::path::PathBuf;

use mainstay_consensus::Start;
use mainstay_log::{Finding, OpenError, Recovered, Wal};
use mainstay_mvcc::StateMachine;
use mainstay_proto::raftpb::Entry;

use super::identity::{first_entries, is_founder, new_cluster, write_first_entries};
use super::{Booted, Ground, StartError, force};
use crate::config::{ClusterState, StoreConfig};
use crate::core::Identity;
use crate::engine_home::{EngineHome, Generation};

/// Starts a member from its log.
pub(super) fn recover(
    config: &StoreConfig,
    home: EngineHome,
    ground: Ground,
) -> Result<Booted, StartError> {
    let (mut wal, mut recovered) =
        Wal::open(ground.files.clone(), &config.wal_dir(), ground.log.clone())?;
    let identity = Identity {
        cluster_id: recovered.metadata.cluster_id,
        member_id: recovered.metadata.node_id,
    };
    warn_of_another_cluster(config, identity);
    let unborn = is_unborn(&recovered);
    let cut_to_nothing =
        unborn && is_founder(config, identity.member_id) && !home.traces()?.is_empty();
    let end_lost = |applied, last| StartError::LogEndLost {
        segment: last_segment(config),
        log: config.wal_dir(),
        engine: config.engine_dir(),
        data: config.data_dir.clone(),
        applied,
        last,
        member: identity.member_id,
    };
    if home.is_durable() && !home.has_engine() {
        if cut_to_nothing {
            return Err(end_lost(0, last_index(&recovered)));
        }
        let mark = recovered.snapshot.index();
        if mark > 0 && !home.has_staged(mark) {
            // Looked at before anything is made: the next start finds what this one found.
            drop(wal);
            (wal, recovered) = reopen_from(config, &ground, 0)
                .map_err(|error| engine_lost(error, config, identity))?;
        }
        tracing::warn!(
            engine = %config.engine_dir().display(),
            log = %config.wal_dir().display(),
            "the log is there and the engine is not: it is made again from the log"
        );
        home.forget_current()?;
    }
    let mut generation = home.open()?;
    let mut machine = StateMachine::open(&**generation.engine(), ground.limits)?;
    let mark = recovered.snapshot.index();
    let applied = machine.status().applied.index;
    let last = last_index(&recovered);
    if cut_to_nothing || applied > last {
        return Err(end_lost(applied, last));
    }
    if applied < mark {
        if home.has_staged(mark) {
            // The log had taken over the leader's snapshot when this member was ended.
            tracing::info!(from = applied, to = mark, "finishing the installation of a snapshot");
            (generation, machine) = switch(&home, generation, mark, &ground)?;
        } else {
            drop(wal);
            (wal, recovered) =
                reopen_from(config, &ground, applied).map_err(|error| match error {
                    // The log was found to be whole from the mark on.
                    OpenError::Damaged(_) => StartError::EngineBehind {
                        engine: config.engine_dir(),
                        applied,
                        mark,
                        member: identity.member_id,
                    },
                    other => other.into(),
                })?;
        }
    }
    home.clean()?;

    let state = machine.status();
    if state.members.is_removed(identity.member_id) && !config.force_new_cluster {
        return Err(StartError::Removed(identity.member_id));
    }
    if unborn && config.initial_cluster_state == ClusterState::New {
        finish_birth(config, identity, &mut wal, &mut recovered)?;
    }
    if config.force_new_cluster {
        force::force_new_cluster(config, identity, &state, &mut wal, &mut recovered)?;
    }
    tracing::info!(
        member = format!("{:x}", identity.member_id),
        cluster = format!("{:x}", identity.cluster_id),
        commit = recovered.hard_state.commit(),
        applied = state.applied.index,
        "restarting local member"
    );
    let start = Start {
        applied: state.applied.index,
        conf_state: (*state.conf_state).clone(),
        hard_state: recovered.hard_state,
        snapshot: recovered.snapshot,
        entries: recovered.entries,
    };
    Ok(Booted { identity, home, generation, machine, wal, start, remotes: Vec::new() })
}

fn switch(
    home: &EngineHome,
    old: Generation,
    mark: u64,
    ground: &Ground,
) -> Result<(Generation, StateMachine), StartError> {
    let generation = home.switch_to(mark)?;
    old.retire();
    drop(old);
    let machine = StateMachine::open(&**generation.engine(), ground.limits)?;
    Ok((generation, machine))
}

/// Replays from an older mark, for an engine that does not hold what the newest one names.
fn reopen_from(
    config: &StoreConfig,
    ground: &Ground,
    applied: u64,
) -> Result<(Wal, Recovered), OpenError> {
    let mut options = ground.log.clone();
    options.replay_from_at_most = Some(applied);
    Wal::open(ground.files.clone(), &config.wal_dir(), options)
}

/// The log does not go back to the first entry, and there is no engine that it continues.
fn engine_lost(error: OpenError, config: &StoreConfig, identity: Identity) -> StartError {
    let OpenError::Damaged(damage) = error else { return error.into() };
    // The log was found to be whole from its newest mark on.
    let missing = match damage.finding {
        Finding::NoSnapshot { first } => {
            format!("its oldest segment begins at entry {first}, what was before it is missing")
        }
        Finding::EntryGap { last, found } => {
            format!("the entries from {} to {} are missing", last + 1, found - 1)
        }
        Finding::CommitPastEnd { commit, last } => {
            format!("the entries from {} to {commit} are missing", last + 1)
        }
        other => other.to_string(),
    };
    StartError::EngineLost {
        engine: config.engine_dir(),
        log: config.wal_dir(),
        data: config.data_dir.clone(),
        missing,
        member: identity.member_id,
    }
}

fn last_index(recovered: &Recovered) -> u64 {
    recovered.entries.last().map_or(recovered.snapshot.index(), Entry::index)
}

/// The segment that the log ends in; the directory when it cannot be listed any more.
fn last_segment(config: &StoreConfig) -> PathBuf {
    let dir = config.wal_dir();
    let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
    let segments = entries.map(|entry| entry.path());
    segments.filter(|path| path.extension().is_some_and(|e| e == "wal")).max().unwrap_or(dir)
}

/// Whether the log was made and the member ended before its first entries were written, all of
/// them: the state that is written behind them is not there.
fn is_unborn(recovered: &Recovered) -> bool {
    recovered.hard_state.term() == 0 && recovered.snapshot.index() == 0
}

fn finish_birth(
    config: &StoreConfig,
    identity: Identity,
    wal: &mut Wal,
    recovered: &mut Recovered,
) -> Result<(), StartError> {
    let (configured, members) = new_cluster(config)?;
    if configured == identity {
        recovered.entries = first_entries(&members);
        recovered.hard_state = write_first_entries(wal, &recovered.entries)?;
    }
    Ok(())
}

/// The data counts, not the flags; but who gave flags of another cluster wants to know.
fn warn_of_another_cluster(config: &StoreConfig, identity: Identity) {
    if config.initial_cluster_state != ClusterState::New {
        return;
    }
    if let Ok((configured, _)) = new_cluster(config)
        && configured.cluster_id != identity.cluster_id
    {
        tracing::warn!(
            data = format!("{:x}", identity.cluster_id),
            flags = format!("{:x}", configured.cluster_id),
            "the data directory belongs to another cluster than --initial-cluster and \
             --initial-cluster-token describe; the data directory counts, the flags are ignored"
        );
    }
}
