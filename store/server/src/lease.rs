//! The Lease service, and the leader's duty to revoke what has expired.
//!
//! Input: requests, leadership, time. Output: entries that grant, revoke and checkpoint leases;
//! renewals, which are the leader's memory alone; answers.
//! **Invariant:** a lease is renewed, or proposed for revocation, only by a member whose leadership
//! a quorum has confirmed within [`CONFIRMED_FOR`] before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_mvcc as mvcc;
use mainstay_mvcc::lease::{CHECKPOINTS_PER_ENTRY, Renewal};
use mainstay_mvcc::{Identity, Response};
use mainstay_proto::etcdserverpb as pb;
use tokio::sync::Semaphore;

use crate::auth::{By, Caller};
use crate::core::{Core, Published};
use crate::error::{Error, NOT_PRIMARY, Result};
use crate::kv::expect_response;
use crate::quota;

/// How long a confirmation of leadership is good for. Well below an election timeout, within which
/// no quorum that has just confirmed a leader elects another one.
const CONFIRMED_FOR: Duration = Duration::from_millis(300);
/// Revocations that are under way at a time.
const REVOCATIONS_IN_FLIGHT: usize = 16;
/// Leases that are taken for revocation at a time.
const REVOCATIONS_AT_ONCE: usize = 500;
/// Longest and shortest pause between two looks at the clock.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// Pause between two tries to reach the leader.
const FORWARD_PAUSE: Duration = Duration::from_millis(50);

impl Core {
    /// Makes a lease.
    pub async fn lease_grant(
        &self,
        by: impl Into<By<pb::LeaseGrantRequest>>,
    ) -> Result<pb::LeaseGrantResponse> {
        let By { mut request, caller } = by.into();
        self.check_quota(quota::LEASE).await?;
        if request.id == 0 {
            request.id = self.ids.next_lease();
        }
        self.require_identity(&caller).await?;
        let entry = pb::InternalRaftRequest { lease_grant: Some(request), ..Default::default() };
        let answer = self.propose(By::new(caller, entry)).await?;
        let mut response = expect_response!(self, answer, LeaseGrant);
        self.complete(&mut response.header);
        Ok(response)
    }

    /// Ends a lease and deletes its keys.
    pub async fn lease_revoke(
        &self,
        by: impl Into<By<pb::LeaseRevokeRequest>>,
    ) -> Result<pb::LeaseRevokeResponse> {
        let By { request, caller } = by.into();
        self.require_identity(&caller).await?;
        let entry = pb::InternalRaftRequest { lease_revoke: Some(request), ..Default::default() };
        let answer = self.propose(By::new(caller, entry)).await?;
        let mut response = expect_response!(self, answer, LeaseRevoke);
        self.complete(&mut response.header);
        Ok(response)
    }

    /// Gives a lease its whole time again. A lease that is not there is answered with TTL 0.
    pub async fn lease_keep_alive(
        &self,
        by: impl Into<By<pb::LeaseKeepAliveRequest>>,
    ) -> Result<pb::LeaseKeepAliveResponse> {
        let By { request, caller } = by.into();
        // The header first: a revocation right after the renewal has a later revision.
        let header = Some(self.header());
        let ttl = match self.renew(request.id, &caller).await {
            Err(Error::LeaseNotFound) => 0,
            result => result?,
        };
        Ok(pb::LeaseKeepAliveResponse { header, id: request.id, ttl })
    }

    async fn renew(&self, id: i64, caller: &Caller) -> Result<i64> {
        if self.leadership.is_local() {
            match self.renew_for(id, caller).await {
                Err(error) if error == NOT_PRIMARY => {}
                result => return result,
            }
        }
        let deadline = Instant::now() + self.config.request_timeout();
        while Instant::now() < deadline {
            let result = if self.leadership.is_local() {
                // Leadership came to this member meanwhile.
                self.renew_for(id, caller).await
            } else {
                let urls = self.leader_urls(deadline).await?;
                self.may_renew(id, caller).await?;
                self.network.renew_lease(&urls, id, deadline).await
            };
            match result {
                Ok(ttl) => return Ok(ttl),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => tracing::debug!(%error, "the leader did not renew the lease"),
            }
            tokio::time::sleep(FORWARD_PAUSE).await;
        }
        Err(Error::Timeout)
    }

    /// Whether a caller may keep a lease alive: that is to write all of its keys.
    async fn may_renew(&self, id: i64, caller: &Caller) -> Result<()> {
        self.may_use_lease(caller, move |at, who| {
            at.state.auth.check_lease_write(who, &*at.view, id)
        })
        .await
    }

    /// Checks something about leases by the state of now. Without an identity nobody may, also where
    /// there is no key to ask about.
    async fn may_use_lease(
        &self,
        caller: &Caller,
        check: impl FnOnce(&Published, &Identity) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(who) = self.identify(caller).await? else {
            return if self.auth_state().is_enabled() { Err(Error::UserEmpty) } else { Ok(()) };
        };
        self.read(true, move |at| check(at, &who)).await
    }

    /// Renews a lease for a caller, as leader.
    async fn renew_for(&self, id: i64, caller: &Caller) -> Result<i64> {
        self.look_up(id).await?;
        self.may_renew(id, caller).await?;
        self.renew_known(id).await
    }

    /// Renews a lease for another member, as leader. That member has checked who asks.
    pub(crate) async fn renew_here(&self, id: i64) -> Result<i64> {
        self.look_up(id).await?;
        self.renew_known(id).await
    }

    /// Makes sure that this member may decide about leases, and knows this one if it is there.
    async fn look_up(&self, id: i64) -> Result<()> {
        self.confirm_recently().await.map_err(|error| match error {
            Error::Stopped => error,
            _ => NOT_PRIMARY,
        })?;
        if !self.leases.knows(id) {
            // It may be about to be granted.
            self.wait_committed_applied().await?;
        }
        Ok(())
    }

    async fn renew_known(&self, id: i64) -> Result<i64> {
        let mut changes = self.leases.changes();
        loop {
            changes.borrow_and_update();
            match self.leases.renew(id) {
                Renewal::Renewed { ttl } => {
                    self.metrics.lease_renewed.inc();
                    return Ok(ttl);
                }
                Renewal::NotFound => return Err(Error::LeaseNotFound),
                Renewal::NotPrimary => return Err(NOT_PRIMARY),
                Renewal::ClearCheckpoint => {
                    let term = self.leadership.term();
                    let cleared = self.checkpoint(vec![(id, 0)], term).await;
                    cleared.map_err(
                        |error| if error == Error::NotLeader { NOT_PRIMARY } else { error },
                    )?;
                }
                // Its revocation is under way, or waits for somebody who can decide it.
                Renewal::Expired => tokio::select! {
                    changed = changes.changed() => changed.map_err(|_| Error::Stopped)?,
                    _ = self.stop.stopped() => return Err(Error::Stopped),
                },
            }
        }
    }

    async fn confirm_recently(&self) -> Result<()> {
        if !self.leadership.is_local() {
            return Err(Error::NotLeader);
        }
        if self.leadership.confirmed_within(CONFIRMED_FOR) {
            return Ok(());
        }
        let asked = Instant::now();
        let term = self.leadership.term();
        self.confirm_leadership().await?;
        self.leadership.confirm(term, asked);
        Ok(())
    }

    /// How long a lease has left, and its keys if asked for.
    pub async fn lease_time_to_live(
        &self,
        by: impl Into<By<pb::LeaseTimeToLiveRequest>>,
    ) -> Result<pb::LeaseTimeToLiveResponse> {
        let By { request, caller } = by.into();
        let (id, keys) = (request.id, request.keys);
        self.require_identity(&caller).await?;
        let rules = self.auth_state().revision();
        if keys {
            self.may_use_lease(&caller, move |at, who| {
                at.state.auth.check_lease_read(who, &*at.view, id)
            })
            .await?;
        }
        let mut response = match self.time_to_live(id, keys).await {
            Err(Error::LeaseNotFound) => {
                pb::LeaseTimeToLiveResponse { id, ttl: -1, ..Default::default() }
            }
            result => result?,
        };
        let auth = self.auth_state();
        if keys && auth.is_enabled() && auth.revision() != rules {
            return Err(Error::AuthOldRevision);
        }
        response.header = Some(self.header());
        Ok(response)
    }

    async fn time_to_live(&self, id: i64, keys: bool) -> Result<pb::LeaseTimeToLiveResponse> {
        if self.leadership.is_local() {
            return self.time_to_live_here(id, keys).await;
        }
        let deadline = Instant::now() + self.config.request_timeout();
        while Instant::now() < deadline {
            if self.leadership.is_local() {
                return self.time_to_live_here(id, keys).await;
            }
            let urls = self.leader_urls(deadline).await?;
            match self.network.lease_time_to_live(&urls, id, keys, deadline).await {
                Ok(left) => {
                    return Ok(pb::LeaseTimeToLiveResponse {
                        header: None,
                        id,
                        ttl: left.ttl,
                        granted_ttl: left.granted_ttl,
                        keys: left.keys,
                    });
                }
                Err(error @ (Error::LeaseNotFound | Error::Stopped)) => return Err(error),
                Err(error) => tracing::debug!(%error, "the leader did not tell about the lease"),
            }
            tokio::time::sleep(FORWARD_PAUSE).await;
        }
        Err(Error::Timeout)
    }

    /// How long a lease has left, as leader.
    pub(crate) async fn time_to_live_here(
        &self,
        id: i64,
        keys: bool,
    ) -> Result<pb::LeaseTimeToLiveResponse> {
        self.wait_committed_applied().await?;
        if !self.leases.knows(id) {
            return Err(Error::LeaseNotFound);
        }
        let keys = if keys {
            self.read(true, move |at| Ok(mvcc::attached_keys(&*at.view, id)?)).await?
        } else {
            Vec::new()
        };
        match self.leases.time_to_live(id) {
            Ok(left) => Ok(pb::LeaseTimeToLiveResponse {
                header: None,
                id,
                ttl: left.remaining,
                granted_ttl: left.granted,
                keys,
            }),
            Err(Renewal::NotFound) => Err(Error::LeaseNotFound),
            Err(_) => Err(Error::LeaderChanged),
        }
    }

    /// All leases as this member has applied them, next to expire first.
    pub async fn lease_leases(
        &self,
        by: impl Into<By<pb::LeaseLeasesRequest>>,
    ) -> Result<pb::LeaseLeasesResponse> {
        let By { caller, .. } = by.into();
        let leases = self.leases.list();
        if self.auth_state().is_enabled() {
            let listed = leases.clone();
            self.may_use_lease(&caller, move |at, who| {
                let mut listed = listed.iter();
                listed.try_for_each(|id| at.state.auth.check_lease_read(who, &*at.view, *id))
            })
            .await?;
        }
        let leases = leases.into_iter().map(|id| pb::LeaseStatus { id }).collect();
        Ok(pb::LeaseLeasesResponse { header: Some(self.header()), leases })
    }

    async fn checkpoint(&self, remaining: Vec<(i64, i64)>, term: u64) -> Result<()> {
        let checkpoints = remaining
            .into_iter()
            .map(|(id, remaining_ttl)| pb::LeaseCheckpoint { id, remaining_ttl })
            .collect();
        let request = pb::InternalRaftRequest {
            lease_checkpoint: Some(pb::LeaseCheckpointRequest { checkpoints }),
            ..Default::default()
        };
        self.propose_as_leader(request, term).await.map(drop)
    }
}

/// Whether it makes no sense to ask for a renewal once more.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::LeaseNotFound
            | Error::Stopped
            | Error::UserEmpty
            | Error::PermissionDenied
            | Error::InvalidAuthToken
            | Error::AuthOldRevision
    )
}

/// Is the leases' keeper for as long as this member leads, again and again.
pub(crate) async fn keep_leases(core: Arc<Core>) {
    let mut leadership = core.leadership.subscribe();
    loop {
        let Ok(term) = leadership.wait_for(|state| state.is_local).await.map(|state| state.term)
        else {
            return;
        };
        if take_office(&core, term).await.is_ok() {
            let serving = serve(&core, term);
            let replaced = leadership.wait_for(|state| !state.is_local || state.term != term);
            tokio::select! {
                () = serving => {}
                _ = replaced => {}
            }
            core.leases.demote();
        } else {
            tokio::time::sleep(PAUSE.0).await;
        }
    }
}

/// Becomes the keeper when nothing of a former leader is still to come.
async fn take_office(core: &Core, term: u64) -> Result<()> {
    let mut applied_term = core.applied_term.subscribe();
    let reached = applied_term.wait_for(|applied| *applied >= term);
    match tokio::time::timeout(core.config.election_timeout(), reached).await {
        Ok(Ok(applied)) if *applied == term => {}
        _ => return Err(Error::NotLeader),
    }
    core.confirm_leadership().await?;
    if core.leadership.term() != term {
        return Err(Error::NotLeader);
    }
    core.leases.promote(term, core.config.election_timeout());
    Ok(())
}

/// Revokes what expires and notes remaining times, while this member is primary in `term`.
async fn serve(core: &Arc<Core>, term: u64) {
    let in_flight = Arc::new(Semaphore::new(REVOCATIONS_IN_FLIGHT));
    while core.leases.is_primary_in(term) {
        if let Some(due) = core.leases.next_due_in()
            && due.is_zero()
            && core.confirm_recently().await.is_ok()
        {
            revoke_expired(core, term, &in_flight).await;
            note_remaining(core, term).await;
        }
        let due = core.leases.next_due_in().unwrap_or(PAUSE.1);
        tokio::time::sleep(due.clamp(PAUSE.0, PAUSE.1)).await;
    }
}

async fn revoke_expired(core: &Arc<Core>, term: u64, in_flight: &Arc<Semaphore>) {
    for id in core.leases.expired(REVOCATIONS_AT_ONCE) {
        let Ok(permit) = in_flight.clone().acquire_owned().await else { return };
        if !core.leases.is_primary_in(term) {
            return;
        }
        let core = core.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let revoke = Some(pb::LeaseRevokeRequest { id });
            let request = pb::InternalRaftRequest { lease_revoke: revoke, ..Default::default() };
            match core.propose_as_leader(request, term).await {
                Ok(_) => core.metrics.lease_expired.inc(),
                Err(Error::LeaseNotFound | Error::NotLeader | Error::Stopped) => {}
                Err(error) => {
                    tracing::warn!(lease = format!("{id:016x}"), %error, "failed to revoke a lease");
                }
            }
        });
    }
}

async fn note_remaining(core: &Arc<Core>, term: u64) {
    loop {
        let due = core.leases.checkpoints(CHECKPOINTS_PER_ENTRY);
        let full = due.len() == CHECKPOINTS_PER_ENTRY;
        if due.is_empty() || !core.leases.is_primary_in(term) {
            return;
        }
        let noted = due.into_iter().map(|note| (note.id, note.remaining)).collect();
        if let Err(error) = core.checkpoint(noted, term).await {
            tracing::warn!(%error, "failed to checkpoint leases");
            return;
        }
        if !full {
            return;
        }
    }
}
