//! A member with a log: the log says who it is, and log and engine are brought together.
//!
//! **Invariant:** the engine is never trusted above the log's end, and never behind its beginning.

use mainstay_consensus::Start;
use mainstay_log::{Finding, OpenError, Recovered, Wal};
use mainstay_mvcc::StateMachine;
use mainstay_proto::walpb;

use super::identity::{first_entries, new_cluster, write_first_entries};
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
    if let Some(repair) = &recovered.repair {
        tracing::warn!(
            file = %repair.file.display(),
            offset = repair.offset,
            kept_as = %repair.kept_as.display(),
            "cut the torn tail of the log"
        );
    }
    let identity = Identity {
        cluster_id: recovered.metadata.cluster_id,
        member_id: recovered.metadata.node_id,
    };
    warn_of_another_cluster(config, identity);
    let mut generation = home.open()?;
    let mut machine = StateMachine::open(&**generation.engine(), ground.limits)?;
    let mark = recovered.snapshot.index();
    let applied = machine.status().applied.index;
    if applied < mark {
        if home.has_staged(mark) {
            // The log had taken over the leader's snapshot when this member was ended.
            tracing::info!(from = applied, to = mark, "finishing the installation of a snapshot");
            (generation, machine) = switch(&home, generation, mark, &ground)?;
        } else {
            drop(wal);
            (wal, recovered) =
                reopen_from(config, &ground, applied).map_err(|error| match error {
                    OpenError::Damaged(damage)
                        if matches!(damage.finding, Finding::NoSnapshot { .. }) =>
                    {
                        StartError::EngineBehind {
                            engine: config.engine_dir(),
                            applied,
                            mark,
                            member: identity.member_id,
                        }
                    }
                    other => other.into(),
                })?;
        }
    }
    home.clean()?;

    let state = machine.status();
    if state.members.is_removed(identity.member_id) && !config.force_new_cluster {
        return Err(StartError::Removed(identity.member_id));
    }
    if is_unborn(&recovered) && config.initial_cluster_state == ClusterState::New {
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

/// Whether the log was made and the member ended before its first entries were written.
fn is_unborn(recovered: &Recovered) -> bool {
    let nothing = walpb::Snapshot { index: Some(0), term: Some(0), conf_state: None };
    recovered.entries.is_empty()
        && recovered.hard_state.term() == 0
        && recovered.snapshot.index() == nothing.index()
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
