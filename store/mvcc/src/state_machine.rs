//! The state machine: committed entries in, one batch and the answers out.
//!
//! Input: entries in the order of the log, and the engine as it stands after the entries before
//! them. Output: [`Applied`]. No clock, no randomness, no order of a hash map has any part in it.
//!
//! **Invariant:** the same entries give the same engine content, answers and events, however they
//! are cut into batches, and whatever real member applies them beside us.
//! **Invariant:** applied index, term and conf state are in the same batch as the data.
//! **Invariant:** after a [`Fatal`] nothing of the call is to be written; the process ends.

use std::sync::Arc;

use mainstay_engine::{Batch, View};
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::raftpb::{ConfChange, ConfState, Entry};

use crate::apply::Applier;
use crate::compact::{CompactPass, CompactSlice, FoundSlice};
use crate::membership::MemberChange;
use crate::version::{SERVER_VERSION, Version};
use crate::{AuthEffect, Error, Fatal, Op, RevisionEvents, StateView, Tally};

/// What this member is configured with, as far as it matters to applying. All members of a cluster
/// must be configured alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Shortest TTL of a lease in seconds: one and a half election timeouts, rounded up.
    pub min_lease_ttl: i64,
    /// Learners that the cluster may have.
    pub max_learners: usize,
    /// Whether remaining TTLs are kept over a restart also in clusters older than 3.6.
    pub persist_lease_checkpoints: bool,
    /// Version that this member claims.
    pub server_version: Version,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            min_lease_ttl: 2,
            max_learners: 1,
            persist_lease_checkpoints: false,
            server_version: SERVER_VERSION,
        }
    }
}

/// What became of a run of entries.
#[derive(Debug, Default)]
pub struct Applied {
    /// To be written as a whole before anything of the rest is shown to anyone.
    pub batch: Batch,
    /// One per entry that was applied, in order. Entries that were applied before have none.
    pub outcomes: Vec<Outcome>,
    /// What watchers are told, in order.
    pub events: Vec<RevisionEvents>,
    /// What the lessor is told, in order.
    pub lease_changes: Vec<LeaseChange>,
    /// One per conf change entry, refused ones included.
    pub conf_changes: Vec<ConfChangeOutcome>,
    /// What the keeper of tokens is told, in order.
    pub auth_effects: Vec<AuthEffect>,
    /// Compactions that were accepted, for their hashes.
    pub compactions: Vec<AcceptedCompaction>,
    /// What the entries did to the keys, for metrics.
    pub tally: Tally,
}

/// The answer to one entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Index of the entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// What it asked for; `None` for an empty entry and a change of members.
    pub op: Option<Op>,
    /// Id by which the member that proposed it knows it; 0 for none.
    pub request_id: u64,
    /// What the client is told.
    pub result: Result<Response, Error>,
    /// Revision that the entry compacted to. A physical compaction is answered when
    /// [`CompactSlice::finished`] reaches it.
    pub compaction: Option<i64>,
}

/// A successful answer. Headers have no more than the revision; `None` where apply knows nothing.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is named after its message")]
pub enum Response {
    /// Nothing to say: the first entry of a term, a version test.
    Empty,
    Range(pb::RangeResponse),
    Put(pb::PutResponse),
    DeleteRange(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Compaction(pb::CompactionResponse),
    LeaseGrant(pb::LeaseGrantResponse),
    LeaseRevoke(pb::LeaseRevokeResponse),
    LeaseCheckpoint(pb::LeaseCheckpointResponse),
    Alarm(pb::AlarmResponse),
    AuthEnable(pb::AuthEnableResponse),
    AuthDisable(pb::AuthDisableResponse),
    AuthStatus(pb::AuthStatusResponse),
    Authenticate(pb::AuthenticateResponse),
    AuthUserAdd(pb::AuthUserAddResponse),
    AuthUserGet(pb::AuthUserGetResponse),
    AuthUserList(pb::AuthUserListResponse),
    AuthUserDelete(pb::AuthUserDeleteResponse),
    AuthUserChangePassword(pb::AuthUserChangePasswordResponse),
    AuthUserGrantRole(pb::AuthUserGrantRoleResponse),
    AuthUserRevokeRole(pb::AuthUserRevokeRoleResponse),
    AuthRoleAdd(pb::AuthRoleAddResponse),
    AuthRoleGet(pb::AuthRoleGetResponse),
    AuthRoleList(pb::AuthRoleListResponse),
    AuthRoleDelete(pb::AuthRoleDeleteResponse),
    AuthRoleGrantPermission(pb::AuthRoleGrantPermissionResponse),
    AuthRoleRevokePermission(pb::AuthRoleRevokePermissionResponse),
    /// The members after a conf change.
    Members(Vec<pb::Member>),
    /// The cluster has this version now. `lowered`: it had a higher one.
    ClusterVersion {
        version: Version,
        lowered: bool,
    },
    /// A member published its name and client URLs. `known` is false for a removed member, whose
    /// publication is passed over.
    MemberAttributes {
        id: u64,
        known: bool,
    },
    Downgrade(crate::version::DowngradeInfo),
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// It is new.
    Granted {
        /// Its id.
        id: i64,
        /// Granted TTL in seconds.
        ttl: i64,
    },
    /// It is gone, and so are its keys.
    Revoked {
        /// Its id.
        id: i64,
    },
    /// The leader noted how long it has left.
    Checkpoint {
        /// Its id.
        id: i64,
        /// Remaining seconds; 0 for the full TTL.
        remaining: i64,
    },
}

/// What became of a conf change entry.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfChangeOutcome {
    /// Index of the entry.
    pub index: u64,
    /// The change for raft; `None` if it was refused and has no effect there either.
    pub change: Option<ConfChange>,
    /// Raft's configuration after it.
    pub conf_state: ConfState,
    /// What happened to which member; `None` if it was refused.
    pub member: Option<MemberChange>,
}

/// A compaction that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedCompaction {
    /// Compacted revision before it.
    pub previous: i64,
    /// Compacted revision now.
    pub revision: i64,
    /// Whether the rows of the compaction before it were deleted when it came. Real members keep
    /// no hash otherwise.
    pub previous_finished: bool,
}

/// The deterministic core of a member.
#[derive(Debug)]
pub struct StateMachine {
    limits: Limits,
    state: StateView,
    pass: Option<CompactPass>,
}

impl StateMachine {
    /// Takes over the state of an engine, fresh or not.
    pub fn open(view: &dyn View, limits: Limits) -> Result<Self, Fatal> {
        let state = StateView::load(view)?;
        if let Some(version) = state.cluster_version {
            check_cluster_version(version, limits.server_version)?;
        }
        let pass = (state.compacted > state.compact_finished)
            .then(|| CompactPass::new(state.compact_finished, state.compacted));
        Ok(Self { limits, state, pass })
    }

    /// Applies committed entries, oldest first. Those up to the applied index are passed over.
    pub fn apply(&mut self, engine: &dyn View, entries: &[Entry]) -> Result<Applied, Fatal> {
        self.apply_for(engine, entries, &|_| true)
    }

    /// Like [`StateMachine::apply`] where `waited` tells by request id whether someone here waits
    /// for the answer. Where nobody does, ranges within transactions are not read.
    pub fn apply_for(
        &mut self,
        engine: &dyn View,
        entries: &[Entry],
        waited: &dyn Fn(u64) -> bool,
    ) -> Result<Applied, Fatal> {
        self.apply_observed(engine, entries, waited, &mut |_| {})
    }

    /// Like [`StateMachine::apply_for`]; `observe` is called after each entry, for who has a clock.
    pub fn apply_observed(
        &mut self,
        engine: &dyn View,
        entries: &[Entry],
        waited: &dyn Fn(u64) -> bool,
        observe: &mut dyn FnMut(&Outcome),
    ) -> Result<Applied, Fatal> {
        let mut applier = Applier::new(engine, self.limits, self.state.clone());
        for entry in entries {
            if let Some(outcome) = applier.entry(entry, waited)? {
                observe(outcome);
            }
        }
        let (applied, state) = applier.finish();
        self.state = state;
        for compaction in &applied.compactions {
            match &mut self.pass {
                Some(pass) => pass.extend(compaction.revision),
                None => {
                    let finished = self.state.compact_finished;
                    self.pass = Some(CompactPass::new(finished, compaction.revision));
                }
            }
        }
        Ok(applied)
    }

    /// The deletions that compactions left to do; `None` when there are none.
    pub fn compacting(&self) -> Option<CompactPass> {
        self.pass
    }

    /// Takes over what was found to be deleted by the pass that [`StateMachine::compacting`] told
    /// last. The thread that applies entries writes the answer before it calls anything else here.
    /// `None` when there is no such pass.
    pub fn take_slice(
        &mut self,
        engine: &dyn View,
        found: FoundSlice,
    ) -> Result<Option<CompactSlice>, Fatal> {
        let slice = found.take(&mut self.pass, engine)?;
        if let Some(finished) = slice.as_ref().and_then(|slice| slice.finished) {
            self.state.compact_finished = finished;
        }
        Ok(slice)
    }

    /// Looks for a part of the deletions, at most `max_rows` rows of work, and takes it over: for
    /// who has one thread only.
    pub fn compact_slice(
        &mut self,
        engine: &dyn View,
        max_rows: usize,
    ) -> Result<Option<CompactSlice>, Fatal> {
        let Some(pass) = self.pass else { return Ok(None) };
        let found = pass.slice(engine, max_rows)?;
        self.take_slice(engine, found)
    }

    /// The state beside the keys after the last batch.
    pub fn status(&self) -> StateView {
        self.state.clone()
    }

    /// What the state machine was configured with.
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

/// A member may not be older than its cluster.
pub(crate) fn check_cluster_version(cluster: Version, server: Version) -> Result<(), Fatal> {
    if server.cluster() < cluster {
        return Err(Fatal::Start {
            found: format!("cluster version {cluster}, above this server's {server}"),
            remedy: "use a server that is not older than the cluster",
        });
    }
    Ok(())
}

impl Applied {
    /// Whether nothing was applied.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }
}

/// Replaces the shared value by a changed copy.
pub(crate) fn change<T: Clone, R>(shared: &mut Arc<T>, edit: impl FnOnce(&mut T) -> R) -> R {
    edit(Arc::make_mut(shared))
}
