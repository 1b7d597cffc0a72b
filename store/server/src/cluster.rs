//! The Cluster service: members come, go, move and are promoted.
//!
//! Input: requests of operators. Output: all members after the change.
//! The checks here look at what this member knows; the decision that counts is made again, the
//! same on every member, when the entry is applied.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mainstay_consensus::{Role, Status};
use mainstay_mvcc::Response;
use mainstay_mvcc::membership::{Member, json, member_id, parse_peer_urls};
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::raftpb::{ConfChange, ConfChangeType};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::kv::expect_response;

/// How long a connection must have been up to count as healthy.
const HEALTHY_AFTER: Duration = Duration::from_secs(5);
/// Pause between two tries to reach the leader.
const FORWARD_PAUSE: Duration = Duration::from_millis(50);

impl Core {
    /// Adds a member, which is then to be started with `--initial-cluster-state=existing`.
    pub async fn member_add(&self, request: pb::MemberAddRequest) -> Result<pb::MemberAddResponse> {
        let urls = parse_peer_urls(&request.peer_ur_ls)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = member_id(&urls, "", Some(now.as_secs() as i64));
        let member = Member::new(id, "", urls, request.is_learner);
        self.may_add(&member)?;
        let kind = if member.is_learner {
            ConfChangeType::ConfChangeAddLearnerNode
        } else {
            ConfChangeType::ConfChangeAddNode
        };
        let members = self.configure(kind, id, Some(json::member(&member))).await?;
        Ok(pb::MemberAddResponse {
            header: Some(self.header_without_revision()),
            member: Some(member.to_proto()),
            members,
        })
    }

    fn may_add(&self, member: &Member) -> Result<()> {
        if !self.config.strict_reconfig_check {
            return Ok(());
        }
        let published = self.published.load();
        let members = &published.state.members;
        if !member.is_learner {
            members.check_add_voter()?;
        }
        // A cluster of one must be able to grow. Otherwise the newcomer counts as unreachable.
        let voters = members.voters().count();
        let connected = self.connected(members.voters().map(|m| m.id), healthy_since());
        if voters > 1 && connected < quorum(voters + 1) {
            return Err(Error::Unhealthy);
        }
        Ok(())
    }

    /// Removes a member for good.
    pub async fn member_remove(
        &self,
        request: pb::MemberRemoveRequest,
    ) -> Result<pb::MemberRemoveResponse> {
        self.may_remove(request.id)?;
        let kind = ConfChangeType::ConfChangeRemoveNode;
        let members = self.configure(kind, request.id, None).await?;
        Ok(pb::MemberRemoveResponse { header: Some(self.header_without_revision()), members })
    }

    fn may_remove(&self, id: u64) -> Result<()> {
        if !self.config.strict_reconfig_check {
            return Ok(());
        }
        let published = self.published.load();
        let members = &published.state.members;
        if members.get(id).is_some_and(|member| member.is_learner) {
            return Ok(());
        }
        members.check_remove(id)?;
        // Who is down is not part of the quorum that works now.
        if id != self.identity.member_id && self.network.active_since(id).is_none() {
            return Ok(());
        }
        let voters = members.voters().count();
        let connected = self.connected(members.voters().map(|m| m.id), healthy_since());
        if connected.saturating_sub(1) < quorum(voters.saturating_sub(1)) {
            return Err(Error::Unhealthy);
        }
        Ok(())
    }

    /// Changes where a member is reached by the others.
    pub async fn member_update(
        &self,
        request: pb::MemberUpdateRequest,
    ) -> Result<pb::MemberUpdateResponse> {
        let urls = parse_peer_urls(&request.peer_ur_ls).map_err(|error| {
            // etcd looks at the URLs last.
            let known = self.published.load().state.members.get(request.id).is_some();
            if known { error } else { Error::MemberNotFound }
        })?;
        let context = json::update_context(request.id, urls);
        let kind = ConfChangeType::ConfChangeUpdateNode;
        let members = self.configure(kind, request.id, Some(context)).await?;
        Ok(pb::MemberUpdateResponse { header: Some(self.header_without_revision()), members })
    }

    /// Makes a learner a voter, once it has nearly all of the log.
    pub async fn member_promote(
        &self,
        request: pb::MemberPromoteRequest,
    ) -> Result<pb::MemberPromoteResponse> {
        let members = match self.promote_here(request.id).await {
            Err(Error::NotLeader) => self.promote_at_leader(request.id).await?,
            result => result?,
        };
        Ok(pb::MemberPromoteResponse { header: Some(self.header_without_revision()), members })
    }

    /// Promotes a learner, as leader: nobody else knows how far the learner is.
    pub(crate) async fn promote_here(&self, id: u64) -> Result<Vec<pb::Member>> {
        let result = self.try_promote(id).await;
        match &result {
            Ok(_) => self.metrics.learner_promote_successes.inc(),
            Err(Error::NotLeader) => {}
            Err(error) => {
                self.metrics.learner_promote_failures.with_label_values(&[&error.text()]).inc();
            }
        }
        result
    }

    async fn try_promote(&self, id: u64) -> Result<Vec<pb::Member>> {
        self.wait_committed_applied().await?;
        let status = self.raft_status()?;
        if status.role != Role::Leader {
            return Err(Error::NotLeader);
        }
        match status.is_ready_to_vote(id) {
            None => return Err(Error::MemberNotFound),
            Some(false) => return Err(Error::LearnerNotReady),
            Some(true) => {}
        }
        if self.config.strict_reconfig_check {
            self.published.load().state.members.check_promote()?;
        }
        let kind = ConfChangeType::ConfChangeAddNode;
        self.configure(kind, id, Some(json::promote_context(id))).await
    }

    async fn promote_at_leader(&self, id: u64) -> Result<Vec<pb::Member>> {
        let deadline = Instant::now() + self.config.request_timeout();
        while Instant::now() < deadline {
            let urls = self.leader_urls(deadline).await?;
            match self.network.promote(&urls, id, deadline).await {
                Err(
                    error @ (Error::LearnerNotReady
                    | Error::MemberNotFound
                    | Error::MemberNotLearner),
                ) => return Err(error),
                Ok(members) => return Ok(members),
                Err(error) => tracing::debug!(%error, "the leader did not promote the member"),
            }
            tokio::time::sleep(FORWARD_PAUSE).await;
        }
        Err(Error::Timeout)
    }

    /// All members.
    pub async fn member_list(
        &self,
        request: pb::MemberListRequest,
    ) -> Result<pb::MemberListResponse> {
        if request.linearizable {
            self.catch_up().await?;
        }
        Ok(pb::MemberListResponse {
            header: Some(self.header_without_revision()),
            members: self.published.load().state.members.to_proto(),
        })
    }

    /// Hands leadership to another voter. Only the leader can.
    pub async fn move_leader(
        &self,
        request: pb::MoveLeaderRequest,
    ) -> Result<pb::MoveLeaderResponse> {
        if !self.leadership.is_local() {
            return Err(Error::NotLeader);
        }
        self.transfer_leadership(request.target_id).await?;
        Ok(pb::MoveLeaderResponse::default())
    }

    pub(crate) async fn transfer_leadership(&self, to: u64) -> Result<()> {
        let is_voter = {
            let published = self.published.load();
            published.state.members.get(to).is_some_and(|member| !member.is_learner)
        };
        if !is_voter {
            return Err(Error::BadLeaderTransferee);
        }
        let mut leadership = self.leadership.subscribe();
        let (sender, refused) = tokio::sync::oneshot::channel();
        let on_refused = move |reason| {
            // Nobody listens any more when the transfer has worked or timed out.
            let _ = sender.send(reason);
        };
        self.raft.get()?.transfer(to, on_refused).map_err(crate::core::refused)?;
        let own = self.identity.member_id;
        let moved = leadership
            .wait_for(|state| state.leader.is_some_and(|leader| leader == to || leader != own));
        let timeout = tokio::time::sleep(self.config.request_timeout());
        let refused = async {
            match refused.await {
                Ok(reason) => reason,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            state = moved => match state {
                Ok(state) if state.leader == Some(to) => Ok(()),
                _ => Err(Error::TimeoutLeaderTransfer),
            },
            reason = refused => Err(crate::core::refused(reason)),
            () = timeout => Err(Error::TimeoutLeaderTransfer),
            _ = self.stop.stopped() => Err(Error::Stopped),
        }
    }

    pub(crate) fn raft_status(&self) -> Result<std::sync::Arc<Status>> {
        Ok(self.raft.get()?.status())
    }

    /// Where the leader is reached. Waits for one.
    pub(crate) async fn leader_urls(&self, deadline: Instant) -> Result<Vec<String>> {
        let mut leadership = self.leadership.subscribe();
        let known = leadership.wait_for(|state| state.leader.is_some());
        let leader = match tokio::time::timeout_at(deadline.into(), known).await {
            Ok(Ok(state)) => state.leader.unwrap_or_default(),
            Ok(Err(_)) => return Err(Error::Stopped),
            Err(_) => return Err(Error::NoLeader),
        };
        let published = self.published.load();
        let leader = published.state.members.get(leader);
        leader.map(|member| member.peer_urls().to_vec()).ok_or(Error::NoLeader)
    }

    /// Puts a change of members into the log and waits until this member has applied it.
    async fn configure(
        &self,
        kind: ConfChangeType,
        node_id: u64,
        context: Option<String>,
    ) -> Result<Vec<pb::Member>> {
        let id = self.ids.next();
        let change = ConfChange {
            id: Some(id),
            r#type: Some(kind as i32),
            node_id: Some(node_id),
            context: context.map(Into::into),
        };
        let propose = |handle: &mainstay_consensus::Handle, deadline, refused| {
            handle.propose_conf_change(change, deadline, refused)
        };
        let members = expect_response!(self, self.enter_log(id, propose).await?, Members);
        tracing::info!(
            kind = kind.as_str_name(),
            member = format!("{node_id:x}"),
            "applied a change of members"
        );
        Ok(members)
    }
}

fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

fn healthy_since() -> Instant {
    let now = Instant::now();
    now.checked_sub(HEALTHY_AFTER).unwrap_or(now)
}
