//! The Maintenance service: status, alarms, hashes, snapshots, space, downgrades.
//!
//! Input: requests of operators. Output: responses with headers where etcd has them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mainstay_engine::Family;
use mainstay_mvcc as mvcc;
use mainstay_mvcc::Response;
use mainstay_mvcc::buckets::{Bucket, names};
use mainstay_mvcc::version::{SERVER_VERSION, Version};
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::downgrade_request::DowngradeAction;
use mainstay_proto::membershippb::DowngradeInfoSetRequest;

use crate::core::{Core, Published};
use crate::engine_home::Generation;
use crate::error::{Error, Result};
use crate::kv::expect_response;
use crate::version;

/// Pause between two looks whether space is still being given back.
const RECLAIM_LOOK: Duration = Duration::from_millis(20);
/// How long an operator waits for space at most: less than etcdctl gives a command.
const DEFRAGMENT_WAIT: Duration = Duration::from_secs(3);

impl Core {
    /// How this member is, by what it knows itself.
    pub fn status(&self) -> pb::StatusResponse {
        let published = self.published.load_full();
        let state = &published.state;
        let usage = published.generation.engine().usage();
        let mut errors = Vec::new();
        let leader = self.leadership.leader();
        if leader == 0 {
            errors.push(Error::NoLeader.text().into_owned());
        }
        for alarm in state.alarms.list(pb::AlarmType::None) {
            errors.push(alarm_text(&alarm));
        }
        pb::StatusResponse {
            header: Some(self.header_at(state.revision)),
            version: SERVER_VERSION.to_string(),
            db_size: usage.total_bytes as i64,
            leader,
            raft_index: self.committed.load(Ordering::SeqCst),
            raft_term: self.leadership.term(),
            raft_applied_index: self.applied.get(),
            errors,
            db_size_in_use: usage.in_use_bytes as i64,
            is_learner: self.is_learner(),
            storage_version: self.storage_version().unwrap_or_default(),
            db_size_quota: match self.config.quota_backend_bytes {
                0 => crate::config::DEFAULT_QUOTA_BYTES,
                bytes => bytes,
            },
            downgrade_info: Some(pb::DowngradeInfo {
                enabled: state.downgrade.enabled,
                target_version: state.downgrade.target_version.clone(),
            }),
        }
    }

    /// Lists, raises or takes back alarms.
    pub async fn alarm(&self, request: pb::AlarmRequest) -> Result<pb::AlarmResponse> {
        let request = pb::InternalRaftRequest { alarm: Some(request), ..Default::default() };
        let mut response = expect_response!(self, self.propose(request).await?, Alarm);
        response.header = Some(self.header());
        Ok(response)
    }

    /// The alarms as this member has applied them.
    pub fn alarms(&self) -> Vec<pb::AlarmMember> {
        self.published.load().state.alarms.list(pb::AlarmType::None)
    }

    /// Gives back space while serving. Answers when that is done, so that an alarm can be taken
    /// back then, or after [`DEFRAGMENT_WAIT`], when it goes on by itself.
    pub async fn defragment(self: &Arc<Self>) -> Result<pb::DefragmentResponse> {
        let generation = self.published.load().generation.clone();
        self.guard(generation.engine().reclaim().map_err(Error::from))?;
        self.time_defragment(generation.clone());
        let deadline = Instant::now() + DEFRAGMENT_WAIT;
        while Instant::now() < deadline
            && !self.stop.is_stopped()
            && !generation.engine().wait_reclaimed(Duration::ZERO)
        {
            tokio::time::sleep(RECLAIM_LOOK).await;
        }
        Ok(pb::DefragmentResponse::default())
    }

    /// Sees how long the engine is at it. Asked again meanwhile, it goes on for longer, and that is
    /// one time.
    fn time_defragment(self: &Arc<Self>, generation: Arc<Generation>) {
        let inflight = &self.metrics.defrag_inflight;
        inflight.inc();
        if inflight.get() > 1 {
            inflight.dec();
            return;
        }
        let core = self.clone();
        let started = Instant::now();
        tokio::spawn(async move {
            while !core.stop.is_stopped() && !generation.engine().wait_reclaimed(Duration::ZERO) {
                tokio::time::sleep(RECLAIM_LOOK).await;
            }
            core.metrics.defrag.observe(started.elapsed().as_secs_f64());
            core.metrics.defrag_inflight.set(0);
        });
    }

    /// The hash of everything on this member.
    pub async fn hash(&self) -> Result<pb::HashResponse> {
        let started = Instant::now();
        let (hash, revision) =
            self.read(true, |at| Ok((mvcc::hash_all(&*at.view)?, at.revision()))).await?;
        self.metrics.hash.observe(started.elapsed().as_secs_f64());
        Ok(pb::HashResponse { header: Some(self.header_at(revision)), hash })
    }

    /// The hash of the keys at a revision, 0 for now.
    pub async fn hash_kv(&self, request: pb::HashKvRequest) -> Result<pb::HashKvResponse> {
        let (hash, revision) = self.hash_at(request.revision).await?;
        Ok(pb::HashKvResponse {
            header: Some(self.header_at(revision)),
            hash: hash.hash,
            compact_revision: hash.compact_revision,
            hash_revision: hash.hash_revision,
        })
    }

    /// The hash of the keys at a revision, and the current revision. Hashes of compactions are
    /// kept and given when their revision is asked for.
    pub(crate) async fn hash_at(&self, revision: i64) -> Result<(mvcc::HashKv, i64)> {
        // Zero is the current revision, also when the store was once compacted to it.
        if revision > 0
            && let Some(kept) = self.hashes.of(revision).await
        {
            return Ok((kept, self.published.load().revision()));
        }
        let started = Instant::now();
        let read =
            move |at: &Published| Ok((mvcc::hash_kv(&*at.view, at.at(), revision)?, at.revision()));
        let hash = self.read(true, read).await;
        self.metrics.hash_by_revision.observe(started.elapsed().as_secs_f64());
        hash
    }

    /// The storage version of this member's data, once it is decided.
    pub fn storage_version(&self) -> Option<String> {
        let published = self.published.load();
        let key = Bucket::Meta.engine_key(names::STORAGE_VERSION);
        let stored = published.view.get(Family::System, &key).map_err(Error::from);
        let text = self.guard(stored).ok().flatten()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// The cluster version, once it is decided.
    pub fn cluster_version(&self) -> Option<String> {
        self.published.load().state.cluster_version.map(|version| version.to_string())
    }

    /// Checks, starts or stops a downgrade of the cluster.
    pub async fn downgrade(&self, request: pb::DowngradeRequest) -> Result<pb::DowngradeResponse> {
        let version = match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Validate) => {
                let target = version::parse_target(&request.version)
                    .ok_or(Error::WrongDowngradeVersionFormat)?;
                let current = self.published.load().state.cluster_version;
                let current = current.ok_or(Error::ClusterVersionUnavailable)?;
                self.check_downgrade(target).await?;
                current
            }
            Ok(DowngradeAction::Enable) => {
                let target = version::parse_target(&request.version)
                    .ok_or(Error::WrongDowngradeVersionFormat)?;
                self.check_downgrade(target).await?;
                self.set_downgrade(true, target.to_string()).await?;
                self.cluster_version_or_error()?
            }
            Ok(DowngradeAction::Cancel) => {
                match self.cancel_downgrade().await {
                    // etcd 3.7 notes it in its log and answers as if there had been one.
                    Err(Error::NoInflightDowngrade) => {
                        tracing::warn!("failed to cancel downgrade: none is in progress");
                    }
                    result => result?,
                }
                self.cluster_version_or_error()?
            }
            Err(_) => return Err(Error::UnknownMethod),
        };
        Ok(pb::DowngradeResponse { header: Some(self.header()), version: version::short(version) })
    }

    fn cluster_version_or_error(&self) -> Result<Version> {
        self.published.load().state.cluster_version.ok_or(Error::ClusterVersionUnavailable)
    }

    async fn check_downgrade(&self, target: Version) -> Result<()> {
        // Whether one is under way must not be judged by an old state.
        self.catch_up().await?;
        let published = self.published.load();
        let current = published.state.cluster_version.ok_or(Error::ClusterVersionUnavailable)?;
        if !version::is_downgrade_step(current, target) {
            return Err(Error::InvalidDowngradeTargetVersion);
        }
        if published.state.downgrade.enabled {
            return Err(Error::DowngradeInProcess);
        }
        Ok(())
    }

    pub(crate) async fn cancel_downgrade(&self) -> Result<()> {
        self.catch_up().await?;
        if !self.published.load().state.downgrade.enabled {
            return Err(Error::NoInflightDowngrade);
        }
        self.set_downgrade(false, String::new()).await
    }

    async fn set_downgrade(&self, enabled: bool, ver: String) -> Result<()> {
        let set = DowngradeInfoSetRequest { enabled, ver };
        let request =
            pb::InternalRaftRequest { downgrade_info_set: Some(set), ..Default::default() };
        self.propose(request).await.map(drop)
    }
}

/// An alarm as Go prints the message, which is what operators see in a status.
fn alarm_text(alarm: &pb::AlarmMember) -> String {
    let kind = pb::AlarmType::try_from(alarm.alarm).map_or("UNKNOWN", |kind| kind.as_str_name());
    match alarm.member_id {
        0 => format!("alarm:{kind}"),
        id => format!("memberID:{id} alarm:{kind}"),
    }
}
