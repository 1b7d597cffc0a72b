//! The member as its peers see it: what the peer port asks of it.
//!
//! Input: messages, snapshots and requests of other members, real etcd members among them. Output:
//! messages for raft, staged snapshots, answers.
//! **Invariant:** calls without a future never block; a full inbox is an error.

use std::io;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mainstay_consensus::Refused;
use mainstay_mvcc::membership::Member;
use mainstay_peer::{
    AppliedVersions, HashKv, Host, IncomingSnapshot, LeaseError, LeaseTimeToLive, MemberInfo,
    Pinned, ProcessError, PromoteError, SnapshotBody, StageError,
};
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::raftpb::Message;

use crate::core::{Core, Published};
use crate::error::{Error, NOT_PRIMARY};
use crate::fatal::StopReason;
use crate::snapshot::{StagedSnapshots, for_peer};

/// See the module.
pub(crate) struct PeerHost {
    pub(crate) core: Arc<Core>,
    pub(crate) staged: Arc<StagedSnapshots>,
}

impl PeerHost {
    fn step(&self, message: Message) -> Result<(), ProcessError> {
        let raft = self.core.raft.get().map_err(|_| ProcessError::Stopped)?;
        raft.message(message).map_err(|refused| match refused {
            Refused::Full => ProcessError::Busy,
            Refused::Stopped => ProcessError::Stopped,
            other => ProcessError::Refused(other.to_string()),
        })
    }
}

impl Host for PeerHost {
    fn process(&self, message: Message) -> Result<(), ProcessError> {
        self.step(message)
    }

    fn is_removed(&self, id: u64) -> bool {
        self.core.published.load().state.members.is_removed(id)
    }

    fn report_unreachable(&self, id: u64) {
        if let Ok(raft) = self.core.raft.get() {
            raft.report_unreachable(id);
        }
    }

    fn report_snapshot(&self, id: u64, delivered: bool) {
        if let Ok(raft) = self.core.raft.get() {
            raft.report_snapshot(id, delivered);
        }
    }

    fn removed_from_cluster(&self, told_by: u64) {
        tracing::error!(
            told_by = format!("{told_by:x}"),
            "the member has been permanently removed from the cluster; its data directory must be \
             removed"
        );
        self.core.stop.stop(StopReason::Removed);
    }

    fn snapshot_body(
        &self,
        _message: &Message,
        pinned: Pinned,
    ) -> BoxFuture<'static, io::Result<SnapshotBody>> {
        let metrics = self.core.metrics.clone();
        async move {
            let published = pinned
                .downcast::<Published>()
                .map_err(|_| io::Error::other("the snapshot is not of this member"))?;
            for_peer(published, metrics).await
        }
        .boxed()
    }

    fn stage_snapshot(
        &self,
        message: Message,
        body: IncomingSnapshot,
    ) -> BoxFuture<'static, Result<(), StageError>> {
        let host = Self { core: self.core.clone(), staged: self.staged.clone() };
        async move {
            let metadata = message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.clone());
            let applied = host.core.applied.get();
            let received = host.staged.receive(metadata.unwrap_or_default(), body, applied).await;
            received.map_err(|error| StageError::Save(error.to_string()))?;
            host.step(message).map_err(|error| StageError::Process(error.to_string()))
        }
        .boxed()
    }

    fn members(&self) -> Vec<MemberInfo> {
        self.core.published.load().state.members.members().map(info).collect()
    }

    fn versions(&self) -> AppliedVersions {
        AppliedVersions {
            cluster: self.core.cluster_version(),
            storage: self.core.storage_version(),
        }
    }

    fn wait_applied(&self) -> BoxFuture<'static, ()> {
        let core = self.core.clone();
        async move {
            // The caller has a limit of its own, and a stopped member answers nothing anyway.
            let _ = core.wait_committed_applied().await;
        }
        .boxed()
    }

    fn lease_renew(&self, id: i64) -> BoxFuture<'static, Result<i64, LeaseError>> {
        let core = self.core.clone();
        async move { core.renew_here(id).await.map_err(lease_error) }.boxed()
    }

    fn lease_time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> BoxFuture<'static, Result<LeaseTimeToLive, LeaseError>> {
        let core = self.core.clone();
        async move {
            let left = core.time_to_live_here(id, keys).await.map_err(lease_error)?;
            Ok(LeaseTimeToLive { ttl: left.ttl, granted_ttl: left.granted_ttl, keys: left.keys })
        }
        .boxed()
    }

    fn promote(
        &self,
        id: u64,
        _token: Option<String>,
    ) -> BoxFuture<'static, Result<Vec<MemberInfo>, PromoteError>> {
        let core = self.core.clone();
        async move {
            match core.promote_here(id).await {
                Ok(members) => Ok(members.into_iter().map(info_of_proto).collect()),
                Err(Error::MemberNotFound) => Err(PromoteError::NotFound),
                Err(Error::MemberNotLearner) => Err(PromoteError::NotLearner),
                Err(Error::LearnerNotReady) => Err(PromoteError::NotReady),
                Err(error) => Err(PromoteError::Other(error.to_string())),
            }
        }
        .boxed()
    }

    fn hash_kv(&self, revision: i64) -> BoxFuture<'static, Result<HashKv, String>> {
        let core = self.core.clone();
        async move {
            let (hash, revision) =
                core.hash_at(revision).await.map_err(|error| error.peer_text().into_owned())?;
            Ok(HashKv {
                revision,
                hash: hash.hash,
                compact_revision: hash.compact_revision,
                hash_revision: hash.hash_revision,
            })
        }
        .boxed()
    }

    fn downgrade_enabled(&self) -> BoxFuture<'static, Result<bool, String>> {
        let core = self.core.clone();
        async move {
            core.catch_up().await.map_err(|error| error.to_string())?;
            Ok(core.published.load().state.downgrade.enabled)
        }
        .boxed()
    }
}

fn lease_error(error: Error) -> LeaseError {
    match error {
        Error::LeaseNotFound => LeaseError::NotFound,
        Error::TimeoutWaitAppliedIndex => LeaseError::ApplyTimeout,
        Error::LeaderChanged => LeaseError::NotPrimary,
        error if error == NOT_PRIMARY => LeaseError::NotPrimary,
        error => LeaseError::Other(error.to_string()),
    }
}

fn info(member: &Member) -> MemberInfo {
    MemberInfo {
        id: member.id,
        peer_urls: member.peer_urls().to_vec(),
        is_learner: member.is_learner,
        name: member.name.clone(),
        client_urls: member.client_urls.clone(),
    }
}

fn info_of_proto(member: pb::Member) -> MemberInfo {
    MemberInfo {
        id: member.id,
        peer_urls: member.peer_ur_ls,
        is_learner: member.is_learner,
        name: member.name,
        client_urls: member.client_ur_ls,
    }
}
